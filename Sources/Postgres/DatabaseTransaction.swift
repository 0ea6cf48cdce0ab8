/// A transaction on one connection, in rounds: what a round queues is sent at once, and its answers come with one
/// `exchange`.
///
/// READ COMMITTED: each statement sees what was committed before it began, and what the transaction itself wrote. In a
/// snapshot, which only reads, each statement sees what was committed before the first one began. The whole transaction
/// is one synchronous call on the connection's thread, so that no other call gets into it. The server ends it (25P03,
/// `lost`) if the next round does not come within `idleMax`: an idle transaction holds locks, and hides the event feed of
/// every app (`pg_snapshot_xmin`).
public final class DatabaseTransaction {
    /// Longer than any round takes to decide, shorter than `lock_timeout`.
    static let idleMax = "1s"

    private let send: ([any QueuedReply]) throws(PostgresError) -> Void
    private var round: [any QueuedReply] = []
    /// Whether nothing of it was committed.
    private(set) var isOpen = true

    private let isNested: Bool

    /// - Parameters:
    ///   - isNested: the connection's owner has begun a transaction by a statement, and ends it.
    ///   - isSnapshot: it only reads, and sees one state of the database; a nested one sees what its owner's begin says.
    ///   - send: sends a round on the transaction's connection, and hands each reply its result.
    init(
        isNested: Bool, isSnapshot: Bool,
        sendingBy send: @escaping ([any QueuedReply]) throws(PostgresError) -> Void
    ) {
        self.isNested = isNested
        self.send = send
        guard !isNested else { return }
        queue(isSnapshot ? Self.beginSnapshot : Self.begin, ())
        queue(Self.limitIdle, ())
    }

    private static let begin = Statement<Void, Void>("transaction.begin", "begin")
    private static let beginSnapshot = Statement<Void, Void>(
        "transaction.begin_snapshot", "begin isolation level repeatable read read only")
    private static let limitIdle = Statement<Void, Void>(
        "transaction.limit_idle", "set local idle_in_transaction_session_timeout = '\(idleMax)'")
    private static let commit = Statement<Void, Void>("transaction.commit", "commit")

    /// Adds a statement to the round. Its reply has rows after `exchange`.
    @discardableResult
    public func queue<Parameters, Row>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) -> Reply<Row> {
        let reply = Reply<Row>(name: statement.name, sql: statement.sql, values: statement.bind(parameters)) {
            result throws(PostgresError) in try statement.rows(of: result)
        }
        round.append(reply)
        return reply
    }

    /// Sends the round, and waits for the answers. The first error ends the transaction.
    public func exchange() throws(PostgresError) {
        let queued = round
        round = []
        try send(queued)
    }

    /// Commits with the round that is queued: the last exchange.
    public func commit() throws(PostgresError) {
        if !isNested { queue(Self.commit, ()) }
        try exchange()
        isOpen = false
    }

    /// The rows that a queued statement brings.
    public final class Reply<Row: Sendable>: QueuedReply {
        let name: String
        let sql: String
        let values: [Value]
        private let read: (consuming QueryResult) throws(PostgresError) -> [Row]
        /// Empty before the round is exchanged.
        public private(set) var rows: [Row] = []

        init(
            name: String, sql: String, values: [Value],
            read: @escaping (consuming QueryResult) throws(PostgresError) -> [Row]
        ) {
            self.name = name
            self.sql = sql
            self.values = values
            self.read = read
        }

        func take(_ result: consuming QueryResult) throws(PostgresError) { rows = try read(result) }
    }
}

/// A statement in a round, whatever its rows are.
protocol QueuedReply: AnyObject {
    var name: String { get }
    var sql: String { get }
    var values: [Value] { get }
    func take(_ result: consuming QueryResult) throws(PostgresError)
}
