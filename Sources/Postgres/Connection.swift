internal import BlockingIO
internal import Logging
internal import Metrics

/// One connection to PostgreSQL, pinned to a thread of its own: its calls block that thread and no other.
///
/// The connection connects and reconnects by itself, in the background, and tells the pool when it is up or down. A
/// call while it is down returns `notSent` at once. The owner must call `close()`; releasing the connection does not
/// end it, because thread and actor hold each other while the socket is open.
actor Connection {
    /// The result of a call. `notSent`: the connection was found broken before anything was sent; the caller tries
    /// another.
    enum Attempt<Result: Sendable>: Sendable {
        case done(Result)
        case notSent
    }

    private let thread: ConnectionThread
    private let cutoff: Cutoff
    /// The cutoffs of all connections to this server.
    private let cutoffs: [Cutoff]
    private let configuration: PostgresConfiguration
    private let pool: Pool
    private let index: Int
    private let logger: Logger

    private var link: LibPQConnection?
    private var prepared: [PreparedKey: String] = [:]
    private var preparedCount = 0
    /// Whether the last round failed because a statement that it named is not prepared any more.
    private var isOutOfDate = false
    private var timers: [String: Timer] = [:]
    private var reconnecting: Task<Void, Never>?
    /// Attempts to connect since the last call that succeeded, counting attempts that succeeded too.
    private var fruitless = 0
    /// When the server last answered.
    private var heardAt = ContinuousClock.now
    private var hasBeenUp = false
    private var isClosed = false

    /// The most named statements of one connection; beyond that, statements run unnamed.
    private static let preparedMax = 256
    /// Full jitter between 0 and 0.1 s, 0.2 s, … 5 s.
    private static let backoffSeconds = (first: 0.1, most: 5.0)

    nonisolated var unownedExecutor: UnownedSerialExecutor {
        // The thread is a constant of this actor and lives as long (SE-0392, custom actor executors).
        unsafe thread.asUnownedSerialExecutor()
    }

    /// - Parameter cutoffs: of all connections to this server, by index.
    init(_ configuration: PostgresConfiguration, pool: Pool, index: Int, cutoffs: [Cutoff], logger: Logger) {
        cutoff = cutoffs[index]
        self.cutoffs = cutoffs
        thread = ConnectionThread(name: "postgres-\(index)")
        self.configuration = configuration
        self.pool = pool
        self.index = index
        self.logger = logger
    }

    /// Starts connecting in the background.
    func open() {
        guard reconnecting == nil, link == nil, !isClosed else { return }
        reconnecting = Task { await self.connectUntilUp() }
    }

    /// Ends the connection; calls made before this one end first.
    func close() async {
        isClosed = true
        reconnecting?.cancel()
        await reconnecting?.value
        disconnect()
    }

    /// Ends a running call now, as `lost`. Safe from any thread.
    nonisolated func abort() { cutoff.fire() }

    // MARK: Calls

    func run<Parameters, Row>(
        _ statement: Statement<Parameters, Row>, _ parameters: EncodedParameters
    ) throws(PostgresError) -> Attempt<[Row]> {
        guard let link = usable else { return .notSent }
        return .done(
            try watched(statement.name, on: link) { () throws(PostgresError) in
                try statement.rows(of: result(of: statement.name, statement.sql, parameters, on: link))
            })
    }

    func transact<Result: Sendable>(
        _ name: String, isSnapshot: Bool, _ body: (DatabaseTransaction) throws(PostgresError) -> Result
    ) throws(PostgresError) -> Attempt<Result> {
        guard let link = usable else { return .notSent }
        return .done(
            try watched(name, on: link) { () throws(PostgresError) in
                let isNested = link.isInTransaction
                var isSecondTry = false
                while true {
                    isOutOfDate = false
                    let transaction = DatabaseTransaction(isNested: isNested, isSnapshot: isSnapshot) {
                        round throws(PostgresError) in
                        try self.exchange(round, on: link)
                    }
                    do throws(PostgresError) {
                        let result = try body(transaction)
                        if transaction.isOpen, !isNested { try rollBack(link) }
                        return result
                    } catch {
                        if isNested { throw error }
                        if error.endsConnection { throw error }
                        if link.isInTransaction { try rollBack(link) }
                        // Nothing is written of a transaction that named a statement which is not prepared any more.
                        guard isOutOfDate, !isSecondTry else { throw error }
                        isSecondTry = true
                    }
                }
            })
    }

    private func rollBack(_ link: LibPQConnection) throws(PostgresError) {
        // A connection that cannot be cleared is not used again.
        guard limited({ link.execute(script: "rollback") }).isSuccess else { throw .lost }
    }

    /// The open connection, unless it is found broken now.
    private var usable: LibPQConnection? {
        guard let link else { return nil }
        guard !cutoff.hasFired, link.takeUnasked() else {
            drop(.lost)
            return nil
        }
        return link
    }

    /// Runs a call that goes into the metrics under this name, and drops a connection that the call has broken.
    private func watched<Result>(
        _ name: String, on link: LibPQConnection, _ call: () throws(PostgresError) -> Result
    ) throws(PostgresError) -> Result {
        let start = ContinuousClock.now
        do throws(PostgresError) {
            let result = try call()
            fruitless = 0
            record(name, since: start)
            return result
        } catch {
            record(name, since: start)
            Counter(label: PostgresMetrics.errors, dimensions: [("statement", name), ("class", error.label)])
                .increment()
            if error.endsConnection || !link.isOpen { drop(error) }
            throw error
        }
    }

    /// Sends a round of a transaction, hands each reply its result, and throws the round's first error. What a round
    /// names for the first time on this connection is prepared on the way.
    private func exchange(_ round: [any QueuedReply], on link: LibPQConnection) throws(PostgresError) {
        var calls: [(reply: any QueuedReply, parameters: EncodedParameters)] = []
        for reply in round {
            calls.append((reply, try EncodedParameters(reply.values, statement: reply.name)))
        }
        var preparations: [String: PreparedKey] = [:]
        var outcome = LibPQPipeline.Outcome()
        underDeadline {
            let pipeline = LibPQPipeline(on: link)
            for (reply, parameters) in calls {
                let key = PreparedKey(sql: reply.sql, types: parameters.types)
                guard configuration.namedStatements, prepared[key] != nil || prepared.count < Self.preparedMax else {
                    pipeline.execute(reply.sql, parameters, for: reply)
                    continue
                }
                let name = prepared[key] ?? nextPreparedName(reply.name)
                if prepared[key] == nil {
                    prepared[key] = name
                    preparations[name] = key
                    pipeline.prepare(name: name, reply.sql, types: parameters.types, for: reply)
                }
                pipeline.execute(prepared: name, parameters, for: reply)
            }
            // Each statement has the time of a call: the server limits each by itself.
            outcome = pipeline.finish { cutoff.extend(to: configuration.callDeadline) }
        }
        // A statement that was not prepared is prepared by the next round that names it.
        for (name, key) in preparations where !outcome.prepared.contains(name) { prepared[key] = nil }
        guard let failure = outcome.failure else { return }
        if ["26000", "0A000", "42P05"].contains(outcome.sqlState) {
            // Prepared statements are gone, out of date, or another client of the same pooler has the name.
            prepared = [:]
            preparedCount += .random(in: 1_000...1_000_000_000)
            isOutOfDate = true
        }
        throw failure
    }

    /// Runs a statement, prepared if it can be, and returns its result. The prepared statement may be gone (DISCARD
    /// ALL, a pooler's other server) or out of date (a migration): then it is prepared again, once; nothing was
    /// executed before that.
    private func result(
        of name: String, _ sql: String, _ parameters: EncodedParameters, on link: LibPQConnection
    ) throws(PostgresError) -> QueryResult {
        let key = PreparedKey(sql: sql, types: parameters.types)
        var isSecondTry = false
        while true {
            let known = prepared[key]
            guard configuration.namedStatements, known != nil || prepared.count < Self.preparedMax else {
                return try link.checked(limited { link.execute(sql, parameters) }, name)
            }
            let preparedName = known ?? nextPreparedName(name)
            if known == nil {
                let result = limited { link.prepare(name: preparedName, sql, types: parameters.types) }
                if result.sqlState == "42P05", !isSecondTry {
                    isSecondTry = true
                    // Another client of the same pooler chose the same name: go on with a distant number.
                    preparedCount += .random(in: 1_000...1_000_000_000)
                    continue
                }
                _ = try link.checked(result, name)
                prepared[key] = preparedName
            }
            let result = limited { link.execute(prepared: preparedName, parameters) }
            if !isSecondTry, ["26000", "0A000"].contains(result.sqlState) {
                isSecondTry = true
                prepared[key] = nil
                continue
            }
            return try link.checked(result, name)
        }
    }

    private func nextPreparedName(_ name: String) -> String {
        preparedCount += 1
        return "\(name)#\(preparedCount)"
    }

    /// Runs a blocking libpq call under the deadline.
    private func limited(_ body: () -> QueryResult) -> QueryResult {
        var result = QueryResult.missing
        underDeadline { result = body() }
        return result
    }

    /// Runs blocking libpq calls under one deadline.
    private func underDeadline(_ body: () -> Void) {
        cutoff.limited(to: configuration.callDeadline) { body() }
        heardAt = .now
        // A server that does not answer this connection answers no other either: no other call has to find that out by
        // itself. Behind PgBouncer we set no statement_timeout, and one slow statement says nothing about the others.
        if cutoff.hasExpired, configuration.namedStatements { for cutoff in cutoffs { cutoff.fire() } }
    }

    private func record(_ name: String, since start: ContinuousClock.Instant) {
        let timer = timers[name] ?? Timer(label: PostgresMetrics.callSeconds, dimensions: [("statement", name)])
        timers[name] = timer
        timer.record(duration: start.duration(to: .now))
    }

    // MARK: Up and down

    private func connectUntilUp() async {
        defer { reconnecting = nil }
        while !isClosed, !Task.isCancelled {
            if fruitless > 0 {
                let limit = min(Self.backoffSeconds.most, Self.backoffSeconds.first * Double(1 << min(fruitless, 10)))
                try? await Task.sleep(for: .seconds(.random(in: 0...limit)))
                if isClosed || Task.isCancelled { return }
            }
            fruitless += 1
            if connect() { return }
        }
    }

    private func connect() -> Bool {
        do throws(LibPQConnection.Failure) {
            try watch(LibPQConnection(configuration))
        } catch {
            report(error)
            return false
        }
        if hasBeenUp { Counter(label: PostgresMetrics.reconnects).increment() }
        hasBeenUp = true
        logger.info("connected to PostgreSQL", metadata: [PostgresLogKey.connection: "\(index)"])
        pool.isUp(index)
        return true
    }

    private func watch(_ link: LibPQConnection) throws(LibPQConnection.Failure) {
        let socket = link.socket
        do {
            // The closure holds this actor until `disconnect`.
            try thread.watch(
                .init(socket: socket, tick: configuration.idleCheckInterval) {
                    self.assumeIsolated { $0.checkUnasked() }
                })
        } catch {
            throw .outOfDescriptors(error)
        }
        self.link = link
        heardAt = .now
        cutoff.opened(socket)
    }

    private func report(_ failure: LibPQConnection.Failure) {
        let error = failure.asPostgresError
        Counter(label: PostgresMetrics.errors, dimensions: [("statement", "connect"), ("class", error.label)])
            .increment()
        // One line per outage.
        guard pool.isDown(index, error) else { return }
        logger.warning(
            "cannot connect to PostgreSQL",
            metadata: [
                PostgresLogKey.connection: "\(index)", PostgresLogKey.error: "\(error)",
                PostgresLogKey.reason: "\(failure.reason)",
            ])
    }

    /// Runs on the thread, between calls: finds out whether the server has hung up or fallen silent. The server answers
    /// an empty script, which does nothing (PostgreSQL manual, 55.2.3).
    private func checkUnasked() {
        guard let link else { return }
        guard !cutoff.hasFired, link.takeUnasked() else { return drop(.lost) }
        guard heardAt + configuration.idleCheckInterval <= .now else { return }
        _ = limited { link.execute(script: "") }
        if !link.isOpen { drop(.lost) }
    }

    private func drop(_ error: PostgresError) {
        disconnect()
        _ = pool.isDown(index, .unavailable)
        logger.warning(
            "lost the connection to PostgreSQL",
            metadata: [PostgresLogKey.connection: "\(index)", PostgresLogKey.error: "\(error.label)"])
        open()
    }

    private func disconnect() {
        thread.unwatch()
        cutoff.closed()
        link = nil
        prepared = [:]
    }
}

/// The key of a prepared statement: the same text with other parameter types is another statement.
private struct PreparedKey: Hashable {
    let sql: String
    let types: [UInt32]
}
