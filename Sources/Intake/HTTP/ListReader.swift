import HTTPTypes
import Ledger
import NIOCore
package import Postgres
import Service

/// Reads lists of purchases and orders and timelines, in turns, on database connections of its own: a player's lists
/// take no connection from posts.
package struct ListReader: Sendable {
    /// The number of connections: each reader runs one statement at a time.
    package static let connections = ListLimiter.readersMax
    /// The server ends a statement after this time; behind PgBouncer after the time-out of the role.
    package static let patience: Duration = .seconds(2)

    private let limiter: ListLimiter
    private let database: Database

    package init(limiter: ListLimiter, database: Database) {
        self.limiter = limiter
        self.database = database
    }

    /// Waits for this request's turn and calls `read`.
    ///
    /// - Parameter user: as in ``ListLimiter/withTurn(of:_:_:)``.
    /// - Throws: the errors of that method; `Problem` 503 `request.listTime` where the database needs longer;
    ///   `LedgerError`.
    func read<Result>(
        of user: String?, _ channel: any Channel, _ body: (Database) async throws(PostgresError) -> Result
    ) async throws -> Result {
        try await limiter.withTurn(of: user, channel) {
            do throws(PostgresError) {
                return try await body(database)
            } catch {
                if case .timedOut = error { throw Problem.listTooSlow }
                throw LedgerError(error)
            }
        }
    }
}

extension Problem {
    fileprivate static let listTooSlow = Problem(
        .serviceUnavailable, .listTooSlow, "the database needed too long for this list; ask again", limit: .listTime,
        headers: [.retryAfter: "5"])
}
