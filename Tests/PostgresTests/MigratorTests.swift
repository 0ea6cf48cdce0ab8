import Logging
import Postgres
import TestServers
import Testing

/// Goal: the schema only moves forward, each step completely or not at all, also while others migrate. A service never
/// starts on a schema that it does not fit. Method: a fresh database per test, with SQL as in real files.
@Suite(.serialized, .timeLimit(.minutes(2))) struct MigratorTests {
    private let one = Migration(
        number: 1, name: "one", sql: "-- why\ncreate table a (id int); create table b (id int);")
    private let two = Migration(number: 2, name: "two", sql: "insert into a values (1); alter table b add name text;")
    private let three = Migration(number: 3, name: "three", sql: "-- why\n-- serves: 1\ncreate table c (id int);")

    private func migrator(_ migrations: Migration...) -> Migrator {
        Migrator(PostgresConfiguration(url: TestDatabase.current.url), migrations: migrations, logger: .quiet)
    }

    @Test(.database) func forwardOnce() async throws {
        let migrator = migrator(two, one)
        let plan = MigrationPlan(executed: 0, pending: [one, two])
        #expect(try await migrator.plan() == plan)
        #expect(try await migrator.plan() == plan, "planning writes nothing")
        #expect(try await migrator.migrate() == [one, two])
        #expect(try await migrator.migrate() == [])
        #expect(try await migrator.plan() == MigrationPlan(executed: 2, pending: []))
        try await migrator.check()
        try await withDatabase { database async throws in
            #expect(try await database.run(oneNumber("select count(*) from a")) == [1])
            #expect(
                try await database.run(
                    oneText(
                        "select string_agg(number || name || length(checksum), ',') from schema_migrations"
                    ))
                    == ["1one32,2two32"])
        }
    }

    @Test(.database) func laterOnes() async throws {
        _ = try await migrator(one).migrate()
        let plan = try await migrator(one, two, three).plan()
        #expect(plan == MigrationPlan(executed: 1, pending: [two, three]))
        // The programs of version 1 work on the third version, and not on the second.
        #expect(plan.keepsRunning(three) && !plan.keepsRunning(two) && !plan.keepsRunning)
        #expect(try await migrator(one, two, three).migrate() == [two, three])
    }

    @Test(.database) func aChangedFileStopsEverything() async throws {
        _ = try await migrator(one, two).migrate()
        let changed = Migration(number: 1, name: "one", sql: one.sql + " ")
        for action in [migrator(changed, two, three)] {
            await #expect(throws: MigrationError.changed("0001_one.sql")) { try await action.plan() }
            await #expect(throws: MigrationError.changed("0001_one.sql")) { try await action.migrate() }
            await #expect(throws: MigrationError.changed("0001_one.sql")) { try await action.check() }
        }
        #expect("\(MigrationError.changed("0001_one.sql"))".contains("0001_one.sql"))
        // The refused calls left nothing behind, nor a lock.
        #expect(try await migrator(one, two, three).migrate() == [three])
    }

    @Test(.database) func aFailingMigrationLeavesNothing() async throws {
        let bad = Migration(number: 2, name: "bad", sql: "create table d (id int); insert into a values (1/0);")
        await #expect(throws: MigrationError.failed("0002_bad.sql", .data(sqlState: "22012", statement: "migration"))) {
            try await migrator(one, bad, three).migrate()
        }
        try await withDatabase { database async throws in
            #expect(try await database.run(oneText("select coalesce(to_regclass('d')::text, 'none')")) == ["none"])
            #expect(try await database.run(oneNumber("select max(number) from schema_migrations")) == [1])
        }
        let wrong = Migration(number: 2, name: "wrong", sql: "create tabel d (id int);")
        let error = await #expect(throws: MigrationError.self) { try await migrator(one, wrong).migrate() }
        #expect(error == .failed("0002_wrong.sql", .misconfigured(sqlState: "42601", statement: "migration")))
        #expect(
            error.map { "\($0)" }?.contains("0002_wrong.sql") == true
                && error.map { "\($0)" }?.contains("42601") == true)
    }

    @Test(.database) func aMigrationMayNotEndItsTransaction() async throws {
        let sneaky = Migration(number: 1, name: "sneaky", sql: "create table d (id int); commit;")
        await #expect(throws: MigrationError.leftTransaction("0001_sneaky.sql")) {
            try await migrator(sneaky).migrate()
        }
    }

    /// A migration may take longer than statement_timeout.
    @Test(.database) func noStatementTimeout() async throws {
        var configuration = PostgresConfiguration(url: TestDatabase.current.url, statementTimeout: .milliseconds(100))
        configuration.callDeadline = .milliseconds(200)
        let slow = Migration(number: 1, name: "slow", sql: "select pg_sleep(0.5); create table d (id int);")
        #expect(try await Migrator(configuration, migrations: [slow], logger: .quiet).migrate() == [slow])
    }

    /// Goal: a migration delays the statements behind it, but never makes them fail.
    /// Method: a session reads a table for longer than any statement waits, a migration wants the table, and statements
    /// of services come behind the migration.
    @Test(.database) func givesUpBeforeThoseBehindIt() async throws {
        _ = try await migrator(one, two).migrate()
        let alters = Migration(number: 3, name: "alters", sql: "alter table a add name text;")
        try await withDatabase({ $0.statementTimeout = .seconds(60) }) { holder async throws in
            async let held = holder.failure(of: "select pg_sleep(50) from a")
            try await until(exists: "select from pg_locks where relation = 'a'::regclass and granted")
            let refusal = Task {
                await #expect(throws: MigrationError.self) { try await migrator(one, two, alters).migrate() }
            }
            try await until(exists: "select from pg_locks where relation = 'a'::regclass and not granted")
            try await withDatabase(connections: 8) { database async throws in
                try await withThrowingTaskGroup(of: [Int].self) { services in
                    for _ in 0..<8 {
                        services.addTask { try await database.run(oneNumber("select count(*) from a")) }
                    }
                    for try await rows in services { #expect(rows == [1]) }
                }
            }
            #expect(await refusal.value == .failed("0003_alters.sql", .timedOut(.lock)))
            holder.abort()
            #expect(await held == .lost)
        }
    }

    @Test(.database) func manyAtOnce() async throws {
        let slow = Migration(number: 2, name: "slow", sql: "select pg_sleep(0.3); create table d (id int);")
        let applied = try await withThrowingTaskGroup { group in
            for _ in 0..<6 {
                group.addTask {
                    // A short lock_timeout must not end the wait for the other migrator.
                    let configuration = PostgresConfiguration(
                        url: TestDatabase.current.url, lockTimeout: .milliseconds(50))
                    return try await Migrator(configuration, migrations: [one, slow, three], logger: .quiet).migrate()
                }
            }
            return try await group.reduce(into: []) { $0 += $1 }
        }
        #expect(applied.map(\.number).sorted() == [1, 2, 3])
    }

    @Test(.database) func checkRefusesAnOlderSchema() async throws {
        await #expect(throws: MigrationError.pending(["0001_one.sql", "0002_two.sql"])) {
            try await migrator(one, two).check()
        }
        _ = try await migrator(one).migrate()
        await #expect(throws: MigrationError.pending(["0002_two.sql"])) { try await migrator(one, two).check() }
    }

    @Test(.database) func checkOfANewerSchema() async throws {
        let alsoServes = Migration(number: 4, name: "four", sql: "-- serves: 2\n")
        _ = try await migrator(one, two, three, alsoServes).migrate()
        try await migrator(one, two, three).check()
        try await migrator(one, two).check()
        await #expect(throws: MigrationError.tooNew("0002_two.sql")) { try await migrator(one).check() }
        // An older migrator has nothing to do and returns no migration.
        #expect(try await migrator(one, two).migrate() == [])
    }

    @Test(.database) func aNewerMigrationThatServesOnlyNewerPrograms() async throws {
        let serves = Migration(number: 4, name: "four", sql: "-- serves: 3\n")
        _ = try await migrator(one, two, three, serves).migrate()
        try await migrator(one, two, three).check()
        await #expect(throws: MigrationError.tooNew("0004_four.sql")) { try await migrator(one, two).check() }
    }

    @Test(.database) func anotherHistory() async throws {
        let other = Migration(number: 2, name: "other", sql: "create table o (id int);")
        _ = try await migrator(one, other).migrate()
        await #expect(throws: MigrationError.unknown("0002_other.sql")) { try await migrator(one, two).check() }
        await #expect(throws: MigrationError.unknown("0002_other.sql")) {
            try await migrator(one, two, three).migrate()
        }
        try await withDatabase { _ = try await $0.run(command("delete from schema_migrations where number = 1")) }
        await #expect(throws: MigrationError.unknown("0002_other.sql")) { try await migrator(one, other).check() }
    }

    @Test func misnumbered() async throws {
        let configuration = PostgresConfiguration(url: "unused")
        for migrations in [[one, three], [two], [one, one]] {
            await #expect(throws: MigrationError.misnumbered(migrations.last!.fileName)) {
                try await Migrator(configuration, migrations: migrations, logger: .quiet).migrate()
            }
        }
    }

    @Test func serves() {
        #expect(one.serves == nil && three.serves == 1)
        #expect(Migration(number: 12_345, name: "x", sql: "-- serves:  7 \r\n").serves == 7)
        #expect(Migration(number: 12_345, name: "x", sql: "").fileName == "12345_x.sql")
    }

    @Test func nobodyThere() async throws {
        let configuration = PostgresConfiguration(url: "postgresql://postgres@127.0.0.1:1/none")
        await #expect(throws: MigrationError.database(.unavailable)) {
            try await Migrator(configuration, migrations: [one], logger: .quiet).check()
        }
    }

    /// As behind PgBouncer in transaction mode: no startup options, everything within its transaction.
    @Test(.database) func withoutNamedStatements() async throws {
        let configuration = PostgresConfiguration(url: TestDatabase.current.url, namedStatements: false)
        #expect(try await Migrator(configuration, migrations: [one, two], logger: .quiet).migrate() == [one, two])
    }
}
