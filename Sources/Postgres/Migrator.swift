internal import BlockingIO
public import Logging

/// Brings the schema forward, and tells a service whether it may start on the schema.
///
/// The table `schema_migrations` lists the executed migrations with their SHA-256. Each migration is one transaction
/// under an advisory lock, so any number of migrators may run at once, also through PgBouncer. A migration has no
/// statement_timeout, but waits for a lock only half as long as a service does: a migration that waits for a lock stops
/// the traffic behind it, and gives up before any of that traffic does.
public struct Migrator: Sendable {
    private let configuration: PostgresConfiguration
    fileprivate let migrations: [Migration]
    private let logger: Logger

    /// - Parameter migrations: all of them, in any order.
    public init(_ configuration: PostgresConfiguration, migrations: [Migration], logger: Logger) {
        self.configuration = configuration
        self.migrations = migrations.sorted { $0.number < $1.number }
        self.logger = logger
    }

    /// The migrations that `migrate` would execute now. Writes nothing.
    public func plan() async throws(MigrationError) -> MigrationPlan {
        try checkNumbers()
        return try await withSession { (session) async throws(MigrationError) in
            let records = try await session.records(migrations)
            return MigrationPlan(executed: records.count, pending: try pending(records))
        }
    }

    /// Executes the pending migrations, in order, and returns them. A failure leaves the earlier ones executed.
    public func migrate() async throws(MigrationError) -> [Migration] {
        try checkNumbers()
        return try await withSession { (session) async throws(MigrationError) in
            var applied: [Migration] = []
            while let migration = try await session.executeNext(of: self) {
                applied.append(migration)
                logger.info("migrated", metadata: [PostgresLogKey.migration: "\(migration.fileName)"])
            }
            return applied
        }
    }

    /// Runs commands that are safe to repeat, such as GRANT, in one transaction, while no migration and no other script
    /// runs.
    public func run(script: String) async throws(MigrationError) {
        try await withSession { (session) async throws(MigrationError) in try await session.run(script: script) }
    }

    /// Throws unless a service may work on this schema; for the service's start. The service may work on its own
    /// version, and on a newer one whose migrations all say that they serve it (`-- serves: N`, N not above the
    /// service's own newest).
    public func check() async throws(MigrationError) {
        try checkNumbers()
        let records = try await withSession { (session) async throws(MigrationError) in
            try await session.records(migrations)
        }
        let missing = try pending(records)
        guard missing.isEmpty else { throw .pending(missing.map(\.fileName)) }
        for newer in records.dropFirst(migrations.count) {
            guard let serves = newer.serves, serves <= migrations.count else { throw .tooNew(newer.fileName) }
        }
    }

    private func checkNumbers() throws(MigrationError) {
        for (index, migration) in migrations.enumerated() where migration.number != index + 1 {
            throw .misnumbered(migration.fileName)
        }
    }

    /// Our migrations that are not executed. Throws if the executed ones are not our history.
    fileprivate func pending(_ records: [MigrationRecord]) throws(MigrationError) -> [Migration] {
        for (index, record) in records.enumerated() {
            // 1, 2, 3 …: one row missing in the middle means rows that are not ours.
            guard record.number == index + 1 else { throw .unknown(record.fileName) }
            guard index < migrations.count else { break }
            guard record.name == migrations[index].name else { throw .unknown(record.fileName) }
            guard record.isUnchanged else { throw .changed(record.fileName) }
        }
        return Array(migrations.dropFirst(records.count))
    }

    private func withSession<Value: Sendable>(
        _ body: (MigrationSession) async throws(MigrationError) -> Value
    ) async throws(MigrationError) -> Value {
        let session = MigrationSession(configuration)
        try await session.open()
        do throws(MigrationError) {
            let value = try await body(session)
            await session.close()
            return value
        } catch {
            await session.close()
            throw error
        }
    }
}

/// A row of `schema_migrations`.
private struct MigrationRecord: Sendable {
    let number: Int
    let name: String
    let serves: Int?
    /// Whether its checksum is that of our migration of this number.
    let isUnchanged: Bool

    var fileName: String { Migration.fileName(number, name) }
}

/// The migrator's connection, on its own thread.
private actor MigrationSession {
    private let thread = ConnectionThread(name: "postgres-schema")
    private let configuration: PostgresConfiguration
    private var link: LibPQConnection?

    nonisolated var unownedExecutor: UnownedSerialExecutor {
        // The thread is a constant of this actor and lives as long (SE-0392, custom actor executors).
        unsafe thread.asUnownedSerialExecutor()
    }

    init(_ configuration: PostgresConfiguration) {
        self.configuration = configuration
    }

    func open() throws(MigrationError) {
        do throws(LibPQConnection.Failure) {
            link = try LibPQConnection(configuration)
        } catch {
            throw .database(error.asPostgresError)
        }
    }

    func close() {
        link = nil
    }

    func records(_ migrations: [Migration]) throws(MigrationError) -> [MigrationRecord] {
        try asking { () throws(PostgresError) in
            guard try run(Self.hasTable, ()).first == true else { return [] }
            return try run(Self.allRecords, migrations)
        }
    }

    func run(script sql: String) throws(MigrationError) {
        try asking { () throws(PostgresError) in
            // If it fails, closing the connection rolls back.
            try script("begin; set local statement_timeout = 0; set local lock_timeout = 0")
            _ = try run(Self.lock, ())
            try script(sql)
            try script("commit")
        }
    }

    /// Executes the next migration in its transaction and returns it; nil if none is pending. Other migrators wait for
    /// the lock and then read the records again.
    func executeNext(of migrator: Migrator) throws(MigrationError) -> Migration? {
        do throws(MigrationError) {
            let next = try begin(migrator)
            if let next { try execute(next) }
            try asking(next) { () throws(PostgresError) in try script("commit") }
            return next
        } catch {
            // If this fails too, closing the connection rolls back.
            try? script("rollback")
            throw error
        }
    }

    private func begin(_ migrator: Migrator) throws(MigrationError) -> Migration? {
        let records = try asking { () throws(PostgresError) in
            // The wait for another migrator is not bounded by lock_timeout.
            try script("begin; set local statement_timeout = 0; set local lock_timeout = 0")
            _ = try run(Self.lock, ())
            try script(
                """
                create table if not exists schema_migrations (
                  number int primary key, name text not null, checksum bytea not null, serves int,
                  applied_at timestamptz not null default now());
                set local lock_timeout = \(configuration.migrationLockTimeout.wholeMilliseconds)
                """)
            return try run(Self.allRecords, migrator.migrations)
        }
        return try migrator.pending(records).first
    }

    private func execute(_ migration: Migration) throws(MigrationError) {
        try asking(migration) { () throws(PostgresError) in try script(migration.sql) }
        guard link?.isInTransaction == true else { throw .leftTransaction(migration.fileName) }
        try asking(migration) { () throws(PostgresError) in _ = try run(Self.record, migration) }
    }

    private func asking<Value>(
        _ migration: Migration? = nil, _ body: () throws(PostgresError) -> Value
    ) throws(MigrationError) -> Value {
        do throws(PostgresError) {
            return try body()
        } catch {
            if let migration { throw .failed(migration.fileName, error) }
            throw .database(error)
        }
    }

    private func script(_ sql: String) throws(PostgresError) {
        guard let link else { throw .closed }
        _ = try link.checked(link.execute(script: sql), "migration")
    }

    private func run<Parameters, Row>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) throws(PostgresError) -> [Row] {
        guard let link else { throw .closed }
        let encoded = try EncodedParameters(statement.bind(parameters), statement: statement.name)
        return try statement.rows(of: link.checked(link.execute(statement.sql, encoded), statement.name))
    }

    private static let hasTable = Statement<Void, Bool>(
        "migrations.has_table", "select to_regclass('schema_migrations') is not null",
        read: { row throws(PostgresError) in try row.bool(0) })

    /// The key is "makegood" in ASCII.
    private static let lock = Statement<Void, Void>(
        "migrations.lock", "select pg_advisory_xact_lock(x'6d616b65676f6f64'::bigint)")

    /// The server computes the checksums: so this program needs no SHA-256 for them.
    private static let allRecords = Statement<[Migration], MigrationRecord>(
        "migrations.records",
        """
        select m.number, m.name, m.serves, coalesce(m.checksum = sha256(ours.sql), false)
        from schema_migrations m left join unnest($1::int[], $2::bytea[]) as ours(number, sql) using (number)
        order by m.number
        """,
        bind: { migrations in
            [.int32s(migrations.map(\.number)), .bytesArray(migrations.map { Array($0.sql.utf8) })]
        },
        read: { row throws(PostgresError) in
            MigrationRecord(
                number: try row.int(0), name: try row.text(1), serves: try row.optionalInt(2),
                isUnchanged: try row.bool(3))
        })

    private static let record = Statement<Migration, Void>(
        "migrations.record",
        "insert into schema_migrations (number, name, checksum, serves) values ($1, $2, sha256($3), $4)",
        bind: { migration in
            [
                .int32(migration.number), .text(migration.name), .bytes(Array(migration.sql.utf8)),
                .int32(migration.serves),
            ]
        })
}
