import FaultProxy
import Foundation
import Postgres
import TestRandom
import TestServers
import Testing

/// Goal: when network or server stop answering, no call waits longer than its bound, callers fail fast, and the
/// connections recover without help. Method: a TCP proxy in front of the real server that freezes, cuts and heals.
@Suite(.database, .serialized, .timeLimit(.minutes(2))) struct OutageTests {
    private func withProxy<Result>(
        connections: Int = 1, _ change: (inout PostgresConfiguration) -> Void = { _ in },
        _ body: (FaultProxy, Database) async throws -> Result
    ) async throws -> Result {
        let proxy = try FaultProxy(to: TestDatabase.current.url)
        defer { proxy.end() }
        return try await withDatabase(
            connections: connections,
            {
                $0.url = proxy.url($0.url)
                change(&$0)
            }
        ) { database in
            try await body(proxy, database)
        }
    }

    /// The server's keepalives and statement_timeout cannot help: packets vanish.
    @Test func aCallWithoutAnswerEndsAtItsDeadline() async throws {
        try await withProxy({ $0.callDeadline = .seconds(2) }) { proxy, database async throws in
            #expect(try await database.run(oneNumber("select 1")) == [1])
            proxy.set(.frozen)
            let start = ContinuousClock.now
            #expect(await database.failure(of: "select 1") == .lost)
            let duration = start.duration(to: .now)
            #expect(duration > .milliseconds(1_900) && duration < .seconds(4))
            proxy.set(.forwarding)
            try await untilItWorks(database)
        }
    }

    /// Work that the server did before the answer was swallowed stays done: `lost` means unknown, not undone.
    @Test func lostMayBeCommitted() async throws {
        try await withProxy({ $0.callDeadline = .seconds(4) }) { proxy, database async throws in
            try await database.run(command("create table kept (id int)"))
            async let call = database.failure(of: "with s as (select pg_sleep(3)) insert into kept select 1 from s")
            try await until(running: "pg_sleep(3)")
            proxy.set(.frozen)
            #expect(await call == .lost)
            proxy.set(.forwarding)
            try await untilItWorks(database)
            #expect(try await database.run(oneNumber("select count(*) from kept")) == [1])
        }
    }

    @Test func callersFailFastWhileTheServerIsDownAndRecoverByThemselves() async throws {
        try await withProxy(connections: 2, { $0.reconnectWait = .seconds(3) }) { proxy, database async throws in
            #expect(try await database.run(oneNumber("select 1")) == [1])
            proxy.set(.cut)
            let start = ContinuousClock.now
            let errors = await withTaskGroup { group in
                for _ in 0..<100 { group.addTask { await database.failure(of: "select 1") } }
                return await group.reduce(into: [PostgresError?]()) { $0.append($1) }
            }
            #expect(errors.allSatisfy { $0 == .unavailable || $0 == .lost })
            #expect(start.duration(to: .now) < .seconds(6))
            #expect(!database.isReady)
            // Later callers do not wait at all.
            let later = ContinuousClock.now
            #expect(await database.failure(of: "select 1") == .unavailable)
            #expect(later.duration(to: .now) < .milliseconds(1500), "half of a wait")
            proxy.set(.forwarding)
            // A background probe finds the server without any call.
            for _ in 0..<100 where !database.isReady { try await Task.sleep(for: .milliseconds(100)) }
            #expect(database.isReady)
            #expect(try await database.run(oneNumber("select 1")) == [1])
        }
    }

    /// An outage shorter than `reconnectWait` costs time, not calls.
    @Test func aShortOutageIsWaitedFor() async throws {
        try await withProxy({ $0.reconnectWait = .seconds(20) }) { proxy, database async throws in
            #expect(try await database.run(oneNumber("select 1")) == [1])
            proxy.set(.cut)
            for _ in 0..<100 where database.isReady { try await Task.sleep(for: .milliseconds(10)) }
            async let call = database.run(oneNumber("select 1"))
            try await Task.sleep(for: .milliseconds(300))
            proxy.set(.forwarding)
            let rows = try await call
            #expect(rows == [1])
        }
    }

    /// The server goes away while no call runs: readiness tells within moments.
    @Test func anIdleConnectionNoticesThatItBroke() async throws {
        try await withProxy { proxy, database async throws in
            #expect(try await database.run(oneNumber("select 1")) == [1])
            #expect(database.isReady)
            proxy.set(.cut)
            for _ in 0..<500 where database.isReady { try await Task.sleep(for: .milliseconds(20)) }
            #expect(!database.isReady)
        }
    }

    @Test func aConnectionAttemptWithoutAnswerEnds() async throws {
        let proxy = try FaultProxy(to: TestDatabase.current.url)
        defer { proxy.end() }
        proxy.set(.frozen)
        try await withDatabase({
            $0.url = proxy.url($0.url)
            $0.connectTimeout = .seconds(2)
            $0.reconnectWait = .milliseconds(200)
        }) { database async throws in
            let start = ContinuousClock.now
            #expect(await database.failure(of: "select 1") == .unavailable)
            #expect(start.duration(to: .now) < .seconds(2))
            // Closing waits for the attempt, which ends by connect_timeout.
            await database.close()
            #expect(start.duration(to: .now) < .seconds(8))
        }
    }

    /// A process that may open no more files, such as one with `ulimit -n 64` under load. The test runs in a process of
    /// its own.
    /// Method: room for no socket, for the socket alone, and for one more: the thread's own pipe has two ends.
    @Test func withoutDescriptorsNothingConnectsUntilThereAreSome() async {
        await #expect(processExitsWith: .success) {
            // Closed at the end: a connection that closes earlier would leave room for the next.
            var databases: [Database] = []
            for room in 0...2 {
                let configuration = PostgresConfiguration(
                    url: try TestDatabase.serverURL, reconnectWait: .milliseconds(500))
                let database = try await DescriptorLimit.leaving(room) {
                    let database = Database(configuration, connections: 1, logger: .quiet)
                    let error = await database.failure(of: "select 1")
                    #expect(error == .unavailable && error?.isRetryable == true, "room for \(room)")
                    #expect(!database.isReady)
                    return database
                }
                for _ in 0..<200 where !database.isReady { try await Task.sleep(for: .milliseconds(50)) }
                #expect(await database.failure(of: "select 1") == nil, "room for \(room)")
                databases.append(database)
            }
            for database in databases { await database.close() }
        }
    }

    /// A server that falls silent (SIGSTOP, a dead host) is noticed once and not by every connection in turn: calls
    /// that begin later, and calls that wait behind them, end with the first.
    @Test func aSilentServerEndsEveryCallWithinOneBound() async throws {
        let change = { @Sendable (configuration: inout PostgresConfiguration) in
            configuration.callDeadline = .seconds(3)
            configuration.reconnectWait = .seconds(1)
        }
        try await withProxy(connections: 4, change) { proxy, database async throws in
            for _ in 0..<100 where !database.isReady { try await Task.sleep(for: .milliseconds(50)) }
            try await Task.sleep(for: .seconds(1))
            proxy.set(.frozen)
            let start = ContinuousClock.now
            let errors = await withTaskGroup(of: PostgresError?.self) { group in
                for index in 0..<32 {
                    group.addTask {
                        // Two at a time: the last begins when the first is nearly over.
                        try? await Task.sleep(for: .milliseconds(index / 2 * 160))
                        return await database.failure(of: "select 1")
                    }
                }
                return await group.reduce(into: [PostgresError?]()) { $0.append($1) }
            }
            let duration = start.duration(to: .now)
            #expect(errors.allSatisfy { $0 == .lost || $0 == .unavailable }, "\(errors)")
            // Two deadlines one after the other would take longer.
            #expect(duration < .seconds(4) + .seconds(2), "silenceMax, and what a busy machine adds")
            #expect(!database.isReady)
            proxy.set(.forwarding)
            try await untilItWorks(database)
        }
    }

    /// The server falls silent without closing while no call runs: readiness tells within `noticeMax`.
    @Test func anIdleConnectionNoticesSilence() async throws {
        let change = { @Sendable (configuration: inout PostgresConfiguration) in
            configuration.idleCheckInterval = .milliseconds(500)
            // A sign of life may be late if the server has to wait for the processor.
            configuration.callDeadline = .seconds(2)
        }
        try await withProxy(connections: 2, change) { proxy, database async throws in
            #expect(try await database.run(oneNumber("select 1")) == [1])
            // Signs of life do not count as a loss.
            try await Task.sleep(for: .seconds(2))
            #expect(database.isReady)
            proxy.set(.frozen)
            let start = ContinuousClock.now
            for _ in 0..<100 where database.isReady { try await Task.sleep(for: .milliseconds(50)) }
            #expect(!database.isReady)
            #expect(start.duration(to: .now) < .milliseconds(2500) + .seconds(2), "noticeMax")
            proxy.set(.forwarding)
            try await untilItWorks(database)
        }
    }

    @Test func nobodyThere() async throws {
        try await withDatabase({
            $0.url = "postgresql://postgres@127.0.0.1:1/none"
            $0.reconnectWait = .milliseconds(300)
        }) { database async throws in
            #expect(await database.failure(of: "select 1") == .unavailable)
        }
    }

    /// The first host of two is dead: libpq goes on to the second, as in a fail-over.
    @Test func severalHosts() async throws {
        guard let parts = URLComponents(string: TestDatabase.current.url), let host = parts.host else { return }
        try await withDatabase({
            $0.url =
                "host=127.0.0.1,\(host) port=1,\(parts.port ?? 5432) user=\(parts.user ?? "postgres") "
                + "password='\(parts.password ?? "")' dbname=\(TestDatabase.current.name)"
        }) { database async throws in
            #expect(try await database.run(oneNumber("select 1")) == [1])
        }
    }

    /// A connection with TLS required never falls back to plain text.
    @Test func tlsIsNotOptional() async throws {
        let serverHasTLS =
            try await withDatabase { try await $0.run(oneText("select current_setting('ssl')")) } == ["on"]
        try await withDatabase({
            $0.url = query($0.url, "sslmode", "require")
            $0.reconnectWait = .milliseconds(500)
        }) { database async throws in
            let failure = await database.failure(of: "select 1")
            if serverHasTLS {
                #expect(failure == nil)
            } else {
                #expect(Self.isMisconfigured(failure), "\(String(describing: failure))")
            }
        }
        try await withDatabase({
            $0.url = query(query($0.url, "sslmode", "verify-full"), "sslrootcert", "/nonexistent/root.crt")
            $0.reconnectWait = .milliseconds(500)
        }) { database async throws in
            let failure = await database.failure(of: "select 1")
            #expect(Self.isMisconfigured(failure), "\(String(describing: failure))")
        }
    }

    /// Whether waiting would not help, because a person must correct the address, a file or the server.
    private static func isMisconfigured(_ error: PostgresError?) -> Bool {
        if case .misconfigured(sqlState: "08001", statement: _) = error { true } else { false }
    }

    /// 8 s of random cuts and freezes under load: no call outlives its bounds, and none of them hangs.
    @Test func randomOutages() async throws {
        let seed = SeededRandom(announcing: "random outages").seed
        try await withProxy(
            connections: 2,
            {
                $0.callDeadline = .seconds(1)
                $0.reconnectWait = .milliseconds(500)
            }
        ) { proxy, database async throws in
            let end = ContinuousClock.now + .seconds(8)
            let outages = Task {
                var random = SeededRandom(seed: seed)
                while ContinuousClock.now < end {
                    proxy.set([FaultProxy.Conditions.cut, .frozen, .forwarding].randomElement(using: &random)!)
                    try? await Task.sleep(for: .milliseconds(.random(in: 20...400, using: &random)))
                    proxy.set(.forwarding)
                    try? await Task.sleep(for: .milliseconds(.random(in: 20...600, using: &random)))
                }
            }
            let (calls, slowest) = await withTaskGroup { group in
                for _ in 0..<16 {
                    group.addTask {
                        var (calls, slowest) = (0, Duration.zero)
                        while ContinuousClock.now < end {
                            let start = ContinuousClock.now
                            _ = await database.failure(of: "select 1")
                            slowest = max(slowest, start.duration(to: .now))
                            calls += 1
                            try? await Task.sleep(for: .milliseconds(1))
                        }
                        return (calls, slowest)
                    }
                }
                return await group.reduce((0, Duration.zero)) { ($0.0 + $1.0, max($0.1, $1.1)) }
            }
            await outages.value
            #expect(calls > 100)
            // 8 callers before it on the same connection share one deadline: the first ends the connection. A deadline
            // for each would be 8 s.
            #expect(slowest < .seconds(6), "seed \(seed)")
            proxy.set(.forwarding)
            try await untilItWorks(database)
        }
    }

    private func untilItWorks(_ database: Database) async throws {
        for _ in 0..<200 {
            if await database.failure(of: "select 1") == nil { return }
            try await Task.sleep(for: .milliseconds(50))
        }
        Issue.record("the database did not come back")
    }
}
