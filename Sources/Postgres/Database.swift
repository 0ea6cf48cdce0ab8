internal import BlockingIO
public import Logging

/// A database behind a few connections, each on its own thread.
///
/// Each connection connects at once, in the background, and again whenever it breaks. The owner must call `close()` at
/// the end.
public final class Database: Sendable {
    private let connections: [Connection]
    private let pool: Pool

    /// - Parameter connections: how many, at least 1. If the calls are batches, one or two write as fast as eight.
    public init(_ configuration: PostgresConfiguration, connections: Int, logger: Logger) {
        precondition(connections > 0)
        let pool = Pool(
            connections: connections, queueLimit: configuration.queueLimit, reconnectWait: configuration.reconnectWait)
        self.pool = pool
        let cutoffs = (0..<connections).map { _ in Cutoff() }
        self.connections = cutoffs.indices.map { index in
            Connection(configuration, pool: pool, index: index, cutoffs: cutoffs, logger: logger)
        }
        for connection in self.connections { Task { await connection.open() } }
    }

    /// Whether a connection is open now.
    public var isReady: Bool { pool.hasConnection }

    /// Runs one statement on the least busy connection.
    ///
    /// While no connection is open, calls wait for one until `reconnectWait` after the last one broke; later they fail
    /// at once with the reason. If the server has fallen silent, calls end within `silenceMax`. Cancellation does not
    /// end a call: a statement that was sent may be committed, and the wait is bounded.
    ///
    /// - Throws: `lost` only if the statement may have been executed: repeat it, if it is idempotent.
    @discardableResult
    public func run<Parameters, Row>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) async throws(PostgresError) -> [Row] {
        let encoded = try EncodedParameters(statement.bind(parameters), statement: statement.name)
        return try await lend { connection async throws(PostgresError) in
            try await connection.run(statement, encoded)
        }
    }

    /// Runs a transaction on the least busy connection, with the waits and errors of ``run(_:_:)``.
    ///
    /// - Parameters:
    ///   - name: metrics call the transaction so, as a statement.
    ///   - isSnapshot: the transaction only reads, and all its statements see the database as the first of them found it
    ///     (REPEATABLE READ, READ ONLY).
    ///   - body: queues and exchanges rounds, and commits at its end; without a commit everything is rolled back. Runs
    ///     on the connection's thread, and again if a prepared statement was out of date.
    /// - Throws: `lost` if the transaction may have been committed, `undecodable` also after the commit: repeat it, if it
    ///   is idempotent. After any other error nothing of it is written.
    public func transact<Result: Sendable>(
        _ name: String, isSnapshot: Bool = false,
        _ body: @escaping @Sendable (DatabaseTransaction) throws(PostgresError) -> Result
    ) async throws(PostgresError) -> Result {
        try await lend { connection async throws(PostgresError) in
            try await connection.transact(name, isSnapshot: isSnapshot, body)
        }
    }

    /// Lends the least busy connection to a call. A connection found broken before anything was sent costs one turn.
    /// Each connection can break once; then the call fails.
    private func lend<Result: Sendable>(
        _ call: (Connection) async throws(PostgresError) -> Connection.Attempt<Result>
    ) async throws(PostgresError) -> Result {
        for _ in 0...connections.count {
            let index = try await pool.acquire()
            defer { pool.release(index) }
            switch try await call(connections[index]) {
            case .done(let result): return result
            case .notSent: continue
            }
        }
        throw .unavailable
    }

    /// Runs a statement that has no parameters.
    @discardableResult
    public func run<Row>(_ statement: Statement<Void, Row>) async throws(PostgresError) -> [Row] {
        try await run(statement, ())
    }

    /// Refuses new calls, lets running ones end, and closes the connections.
    public func close() async {
        pool.close()
        for connection in connections { await connection.close() }
    }

    /// Ends every running call now, as `lost`: for a shutdown that cannot wait.
    public func abort() {
        for connection in connections { connection.abort() }
    }
}
