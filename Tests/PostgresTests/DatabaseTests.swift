import Foundation
import Postgres
import TestServers
import Testing

/// Goal: every failure that a server can report becomes the error that says what to do about it, and the connection is
/// usable (or replaced) afterwards. Method: each SQLSTATE is provoked on a real server.
@Suite(.database, .serialized, .timeLimit(.minutes(2))) struct DatabaseTests {
    /// Runs `sql`, returns its error, and checks that the next call works.
    private func failure(
        of sql: String, _ change: @Sendable (inout PostgresConfiguration) -> Void = { _ in }
    ) async throws -> PostgresError? {
        try await withDatabase(change) { database async throws in
            let failure = await database.failure(of: sql)
            let next = try await database.run(oneNumber("select 1"))
            #expect(next == [1])
            return failure
        }
    }

    @Test(arguments: [
        ("select 1/0", "22012"), ("select 'x'::int", "22P02"),
        ("insert into w select string_agg(md5(i::text), '') from generate_series(1, 1000) i", "54000"),
        ("insert into t values (1), (1)", "23505"), ("insert into t values (-1)", "23514"),
        ("insert into t values (null)", "23502"), ("insert into u values (99)", "23503"),
        ("insert into t values (5), (5) on conflict (id) do update set id = 6", "21000"),
        ("do $$ begin raise exception 'secret' using errcode = 'P0001'; end $$", "P0001"),
    ])
    func dataErrors(sql: String, sqlState: String) async throws {
        try await withDatabase { database async throws in
            try await database.run(command("create temp table t (id int primary key check (id > 0))"))
            try await database.run(command("create temp table u (id int references t)"))
            try await database.run(command("create temp table w (id text primary key)"))
            let error = await database.failure(of: sql)
            #expect(error == .data(sqlState: sqlState, statement: "test.command"))
            #expect(try await database.run(oneNumber("select count(*) from t")) == [0], "the connection is the same")
        }
    }

    @Test("a service's statement is planned once, by an index while its table is empty, and run by one process")
    func keptPlans() async throws {
        try await withDatabase({ $0.keepsPlans = true }) { database async throws in
            try await database.run(command("create table kept_plans (id int8 primary key)"))
            let find = Statement<[Int], Int>(
                "test.find", "select id from kept_plans where id = any ($1)", bind: { [.ints($0)] },
                read: { row throws(PostgresError) in try row.int(0) })
            for count in 1...8 { _ = try await database.run(find, Array(0..<count)) }
            let plans = oneNumber(
                "select generic_plans * 100 + custom_plans from pg_prepared_statements where name like 'test.find#%'")
            #expect(try await database.run(plans) == [800])
            let plan = try await database.run(oneText("explain select id from kept_plans where id = any ('{1,2}')"))
            #expect(!plan.joined().contains("Seq Scan"), "\(plan)")
            #expect(try await database.run(oneText("show max_parallel_workers_per_gather")) == ["0"])
            try await database.run(command("drop table kept_plans"))
        }
    }

    @Test(arguments: [
        ("select * from nothing", "42P01"), ("selekt", "42601"), ("select nothing", "42703"),
        ("select nothing()", "42883"),
    ])
    func mistakesInTheSchema(sql: String, sqlState: String) async throws {
        #expect(try await failure(of: sql) == .misconfigured(sqlState: sqlState, statement: "test.command"))
    }

    @Test func missingPermission() async throws {
        let role = "makegood_test_role_\(UInt32.random(in: 0 ... .max))"
        try await withDatabase { database async throws in
            try await database.run(command("create role \(role)"))
            try await database.run(command("create table secrets (id int)"))
        }
        let error = await Result {
            try await failure(of: "select * from secrets") { $0.url = options($0.url, "-c role=\(role)") }
        }
        try await withDatabase { _ = try await $0.run(command("drop role \(role)")) }
        #expect(try error.get() == .misconfigured(sqlState: "42501", statement: "test.command"))
    }

    @Test func statementTimeout() async throws {
        let error = try await failure(of: "select pg_sleep(10)") { $0.statementTimeout = .milliseconds(100) }
        #expect(error == .timedOut(.statement))
    }

    @Test func lockTimeout() async throws {
        try await withDatabase(connections: 2) { database async throws in
            async let holder = database.failure(
                of: "do $$ begin perform pg_advisory_xact_lock(7); perform pg_sleep(4); end $$")
            try await until(exists: "select from pg_locks where locktype = 'advisory' and objid = 7 and granted")
            let error = try await failure(of: "select pg_advisory_xact_lock(7)") { $0.lockTimeout = .milliseconds(100) }
            #expect(error == .timedOut(.lock))
            #expect(await holder == nil)
        }
    }

    /// Two connections take two locks in opposite order, the second one when each has its first; the server ends one of
    /// them.
    @Test func deadlock() async throws {
        try await withDatabase(connections: 2, { $0.lockTimeout = .seconds(10) }) { database async throws in
            try await untilBothAreUp(database)
            func take(_ first: Int, _ second: Int) async -> PostgresError? {
                await database.failure(
                    of: """
                        do $$ begin
                          perform pg_advisory_xact_lock(\(first));
                          while not exists (
                            select from pg_locks where locktype = 'advisory' and objid = \(second) and granted)
                          loop perform pg_sleep(0.02); end loop;
                          perform pg_advisory_xact_lock(\(second));
                        end $$
                        """)
            }
            async let one = take(101, 102)
            async let other = take(102, 101)
            let errors = await [one, other].compactMap(\.self)
            #expect(errors == [.serialization])
        }
    }

    @Test func readOnlyServerDropsTheConnection() async throws {
        // A connection that began on a primary becomes read-only, as after a fail-over.
        try await withDatabase { database async throws in
            let before = try await database.run(oneNumber("select pg_backend_pid()"))
            await #expect(throws: PostgresError.readOnly) {
                try await database.run(
                    command("do $$ begin set local transaction_read_only = on; create table no (id int); end $$"))
            }
            let after = try await database.run(oneNumber("select pg_backend_pid()"))
            #expect(before != after)
        }
    }

    @Test func aReadOnlyServerIsNotConnectedTo() async throws {
        await #expect(throws: PostgresError.unavailable) {
            try await withDatabase({
                $0.url = options($0.url, "-c default_transaction_read_only=on")
                $0.reconnectWait = .milliseconds(300)
            }) { _ = try await $0.run(oneNumber("select 1")) }
        }
    }

    @Test func wrongRoleAndDatabase() async throws {
        for (key, value, sqlState) in [
            ("user", "nobody_\(UInt32.random(in: 0 ... .max))", "28000"), ("dbname", "none", "3D000"),
        ] {
            let error = await #expect(throws: PostgresError.self) {
                try await withDatabase({ $0.url = query($0.url, key, value) }) {
                    _ = try await $0.run(oneNumber("select 1"))
                }
            }
            guard case .misconfigured(let state, "connect") = error else {
                Issue.record("\(String(describing: error))")
                continue
            }
            // With password authentication a server does not say that the role does not exist.
            #expect(state == sqlState || (key == "user" && state == "28P01"))
        }
    }

    @Test func aUrlThatCannotBeRead() async throws {
        await #expect(throws: PostgresError.misconfigured(sqlState: "08001", statement: "connect")) {
            try await withDatabase({ $0.url = "postgresql://%zz:secret@x" }) {
                _ = try await $0.run(oneNumber("select 1"))
            }
        }
    }

    /// The backend is killed during a call: the outcome is unknown, and the next call gets a new connection.
    @Test func backendKilledInACall() async throws {
        try await withDatabase { database async throws in
            let backend = try await database.run(oneNumber("select pg_backend_pid()"))[0]
            async let call = database.failure(of: "select pg_sleep(4)")
            try await until(running: "pg_sleep(4)")
            try await withDatabase { _ = try await $0.run(command("select pg_terminate_backend(\(backend), 5000)")) }
            #expect(await call == .lost)
            let next = try await database.run(oneNumber("select pg_backend_pid()"))[0]
            #expect(next != backend)
        }
    }

    /// The backend is killed while it was idle: no call fails, because nothing was lost.
    @Test func backendKilledWhenIdle() async throws {
        try await withDatabase { database async throws in
            for _ in 0..<5 {
                let backend = try await database.run(oneNumber("select pg_backend_pid()"))[0]
                try await withDatabase {
                    _ = try await $0.run(command("select pg_terminate_backend(\(backend), 5000)"))
                }
                let next = try await database.run(oneNumber("select pg_backend_pid()"))[0]
                #expect(next != backend)
            }
        }
    }

    @Test func abortEndsARunningCall() async throws {
        try await withDatabase { database async throws in
            _ = try await database.run(oneNumber("select 1"))
            async let call = database.failure(of: "select pg_sleep(4)")
            try await until(running: "pg_sleep(4)")
            database.abort()
            #expect(await call == .lost)
        }
    }

    @Test func closedDatabase() async throws {
        let database = Database(
            PostgresConfiguration(url: TestDatabase.current.url, reconnectWait: .seconds(20)), connections: 2,
            logger: .quiet)
        _ = try await database.run(oneNumber("select 1"))
        #expect(database.isReady)
        async let running = database.run(oneNumber("select 1 from pg_sleep(2)"))
        try await until(running: "pg_sleep(2)")
        await database.close()
        #expect(!database.isReady)
        let rows = try await running
        #expect(rows == [1])  // what ran before, ends
        await #expect(throws: PostgresError.closed) { try await database.run(oneNumber("select 1")) }
        await database.close()
    }

    @Test func tooManyCallsAreRefused() async throws {
        try await withDatabase({ $0.queueLimit = 3 }) { database async throws in
            let errors = await withTaskGroup { group in
                for _ in 0..<10 {
                    group.addTask { await database.failure(of: "select pg_sleep(1.2)") }
                }
                return await group.reduce(into: [PostgresError?]()) { $0.append($1) }
            }
            #expect(errors.count { $0 == nil } == 3)
            #expect(errors.count { $0 == .tooManyWaiting } == 7)
            #expect(try await database.run(oneNumber("select 1")) == [1])
        }
    }

    /// The busy connection is passed over.
    @Test func leastBusyConnection() async throws {
        try await withDatabase(connections: 2) { database async throws in
            try await untilBothAreUp(database)
            async let slow = database.failure(of: "select pg_sleep(4)")
            try await until(running: "pg_sleep(4)")
            let start = ContinuousClock.now
            for _ in 0..<10 { _ = try await database.run(oneNumber("select 1")) }
            #expect(start.duration(to: .now) < .seconds(3))
            #expect(await slow == nil)
        }
    }

    // MARK: Prepared statements

    @Test func statementsArePreparedOnceAndSurviveDiscardAll() async throws {
        try await withDatabase { database async throws in
            let prepared = Statement<Void, Int>(
                "test.count", "select count(*) from pg_prepared_statements where name like 'test.count#%'",
                read: { row throws(PostgresError) in try row.int(0) })
            #expect(try await database.run(prepared) == [1])
            #expect(try await database.run(prepared) == [1])
            try await database.run(command("discard all"))
            #expect(try await database.run(prepared) == [1])
            try await database.run(command("deallocate all"))
            #expect(try await database.run(prepared) == [1])
        }
    }

    /// A migration changes the columns of `select *`: 0A000, and the statement is prepared again.
    @Test func statementsSurviveAChangedTable() async throws {
        try await withDatabase { database async throws in
            try await database.run(command("create table changing (id int)"))
            try await database.run(command("insert into changing values (1)"))
            let all = oneNumber("select * from changing")
            #expect(try await database.run(all) == [1])
            try await database.run(command("alter table changing add name text"))
            #expect(try await database.run(all) == [1])
        }
    }

    /// The same SQL with other parameter types is another statement, not wrong bytes.
    @Test func sameSqlWithOtherTypes() async throws {
        try await withDatabase { database async throws in
            let statement = Statement<Value, String>(
                "test.any", "select $1::text", bind: { [$0] }, read: { row throws(PostgresError) in try row.text(0) })
            #expect(try await database.run(statement, .int(12)) == ["12"])
            #expect(try await database.run(statement, .text("abc")) == ["abc"])
            #expect(try await database.run(statement, .bool(true)) == ["true"])
            #expect(try await database.run(statement, .int(13)) == ["13"])
        }
    }

    @Test func manyStatementsStayBounded() async throws {
        try await withDatabase { database async throws in
            for number in 0..<400 { #expect(try await database.run(oneNumber("select \(number)")) == [number]) }
            let prepared = try await database.run(oneNumber("select count(*) from pg_prepared_statements"))
            #expect(prepared[0] <= 256)
        }
    }

    @Test func withoutNamedStatements() async throws {
        try await withDatabase({ $0.namedStatements = false }) { database async throws in
            for _ in 0..<3 { #expect(try await database.run(oneNumber("select 1")) == [1]) }
            #expect(try await database.run(oneNumber("select count(*) from pg_prepared_statements")) == [0])
            // No startup options either: the server's own setting holds.
            #expect(try await database.run(oneText("select current_setting('lock_timeout')")) == ["0"])
        }
    }

    // MARK: Settings

    @Test func settingsReachTheServer() async throws {
        try await withDatabase { database async throws in
            #expect(try await database.run(oneText("select current_setting('statement_timeout')")) == ["5s"])
            #expect(try await database.run(oneText("select current_setting('lock_timeout')")) == ["2s"])
            #expect(
                try await database.run(oneText("select current_setting('idle_in_transaction_session_timeout')"))
                    == ["10s"])
            #expect(try await database.run(oneText("select current_setting('application_name')")) == ["makegood-tests"])
            #expect(try await database.run(oneText("select current_setting('client_encoding')")) == ["UTF8"])
            let comment = try await database.run(
                oneText("select query from pg_stat_activity where pid = pg_backend_pid()"))
            #expect(comment[0].hasPrefix("/* test.text */ "))
        }
    }

    @Test func theUrlWins() async throws {
        try await withDatabase({
            $0.url = query(options($0.url, "-c lock_timeout=7s -c work_mem=5MB"), "application_name", "other")
        }) { database async throws in
            #expect(try await database.run(oneText("select current_setting('lock_timeout')")) == ["7s"])
            #expect(try await database.run(oneText("select current_setting('work_mem')")) == ["5MB"])
            #expect(try await database.run(oneText("select current_setting('statement_timeout')")) == ["5s"])
            #expect(try await database.run(oneText("select current_setting('application_name')")) == ["other"])
        }
    }

    @Test func descriptionsNeverShowThePassword() {
        for url in [
            "postgresql://u:secret@h:1/d?sslmode=require", "host=h user=u password=secret", "postgresql://%zz:secret@",
        ] {
            let configuration = PostgresConfiguration(url: url)
            var dumped = ""
            dump(configuration, to: &dumped)
            for text in ["\(configuration)", String(reflecting: configuration), dumped] {
                #expect(!text.contains("secret"), "\(text)")
            }
        }
        #expect(
            "\(PostgresConfiguration(url: "postgresql://u:secret@h:1/d?sslmode=require"))"
                == "postgres host=h port=1 dbname=d user=u sslmode=require")
    }

    // MARK: Helpers of this suite

    private func untilBothAreUp(_ database: Database) async throws {
        var pids: Set<Int> = []
        for _ in 0..<200 where pids.count < 2 {
            async let one = database.run(oneNumber("select pg_backend_pid() from pg_sleep(0.05)"))
            async let other = database.run(oneNumber("select pg_backend_pid() from pg_sleep(0.05)"))
            pids = Set(try await one + other)
        }
        try #require(pids.count == 2)
    }
}

/// The URL with one more setting.
func query(_ url: String, _ key: String, _ value: String) -> String {
    guard var parts = URLComponents(string: url), parts.scheme != nil else {
        return "\(url) \(key)='\(value)'"
    }
    parts.queryItems = (parts.queryItems ?? []) + [URLQueryItem(name: key, value: value)]
    return parts.string ?? url
}

/// The URL with startup options.
private func options(_ url: String, _ options: String) -> String { query(url, "options", options) }

extension Result where Failure == any Error {
    fileprivate init(_ body: () async throws -> Success) async {
        do { self = .success(try await body()) } catch { self = .failure(error) }
    }
}
