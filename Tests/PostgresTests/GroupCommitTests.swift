import Foundation
import Postgres
import Synchronization
import TestRandom
import TestServers
import Testing

/// Goal: a caller's answer is right about its own item, whatever happens to the batches around it. Method: ten
/// thousand callers over a pretended database that fails at random before and after its commit (seed printed); at the
/// end its content is compared with the answers. Then the real database.
@Suite(.serialized, .timeLimit(.minutes(3))) struct GroupCommitTests {
    /// Commits idempotently, and fails as a database does.
    private final class Pretended: Sendable {
        struct State {
            var random: SeededRandom
            var committed: Set<Int> = []
            var flushes = 0
            var running = 0
            var mostRunning = 0
            var largest = 0
        }

        let state: Mutex<State>
        let failureRate: Double

        init(seed: UInt64, failureRate: Double) {
            state = Mutex(State(random: SeededRandom(seed: seed)))
            self.failureRate = failureRate
        }

        static func isPoison(_ item: Int) -> Bool { item % 997 == 13 }

        func flush(_ items: [Int]) async throws(PostgresError) -> [Int] {
            let (chance, pause) = state.withLock { state in
                state.flushes += 1
                state.running += 1
                state.mostRunning = max(state.mostRunning, state.running)
                state.largest = max(state.largest, items.count)
                return (
                    Double.random(in: 0...1, using: &state.random), Int.random(in: 0...3, using: &state.random)
                )
            }
            try? await Task.sleep(for: .milliseconds(pause))
            defer { state.withLock { $0.running -= 1 } }
            if items.contains(where: Self.isPoison) { throw .data(sqlState: "22003", statement: "pretended") }
            guard chance < failureRate else {
                state.withLock { $0.committed.formUnion(items) }
                return items.map { $0 * 2 }
            }
            switch Int(chance / failureRate * 5) {
            case 0: throw .serialization
            case 1: throw .timedOut(.lock)
            case 2: throw .unavailable
            case 3: throw .lost  // before the commit
            default:
                state.withLock { $0.committed.formUnion(items) }
                throw .lost  // after it
            }
        }
    }

    @Test(arguments: [1, 3]) func tenThousandCallersUnderRandomFailures(writers: Int) async throws {
        let seed = SeededRandom(announcing: "ten thousand callers, \(writers) writers").seed
        let database = Pretended(seed: seed, failureRate: 0.3)
        let group = GroupCommit<Int, Int>(
            name: "test", limits: .init(batchRows: 64, queueRows: 100_000), writers: writers,
            size: { _ in (1, 100) }, flush: { items throws(PostgresError) in try await database.flush(items) })
        let answers = await withTaskGroup { tasks in
            for item in 0..<10_000 {
                tasks.addTask { (item, await Self.answer(group, item)) }
            }
            return await tasks.reduce(into: [(Int, Result<Int, GroupCommitError>)]()) { $0.append($1) }
        }
        await group.close()
        #expect(answers.count == 10_000)
        let committed = database.state.withLock { $0.committed }
        var (successes, poison, failures) = (0, 0, 0)
        for (item, answer) in answers {
            switch answer {
            case .success(let outcome):
                successes += 1
                #expect(outcome == item * 2 && committed.contains(item), "seed \(seed)")
            case .failure(.poison(let error)):
                poison += 1
                #expect(Pretended.isPoison(item) && !committed.contains(item), "seed \(seed)")
                #expect(error == .data(sqlState: "22003", statement: "pretended"))
            case .failure(.failed(let error)):
                failures += 1
                #expect(error.isRetryable && !Pretended.isPoison(item), "seed \(seed)")
            case .failure(.full), .failure(.closed):
                Issue.record("\(answer), seed \(seed)")
            }
        }
        #expect(poison + failures + successes == 10_000)
        #expect(poison > 0 && successes > 5_000)
        database.state.withLock { state in
            #expect(state.largest <= 64)
            #expect(state.mostRunning <= writers)
        }
        #expect(group.held == (0, 0))
    }

    /// 10,000 callers at once over a database that does not fail: few, full batches.
    @Test func whatArrivesTogetherIsWrittenTogether() async throws {
        let database = Pretended(seed: 1, failureRate: 0)
        let latch = Latch()
        let group = GroupCommit<Int, Int>(
            name: "test", limits: .init(queueRows: 10_000), size: { _ in (1, 1) },
            flush: { items throws(PostgresError) in
                await latch.wait()
                return try await database.flush(items.filter { !Pretended.isPoison($0) })
                    + items.filter(Pretended.isPoison)
            })
        await withTaskGroup { tasks in
            for item in 0..<9_000 { tasks.addTask { _ = await Self.answer(group, item) } }
            // Waits until all are held, however long the machine needs to begin so many.
            while group.held.rows < 9_000 { try? await Task.sleep(for: .milliseconds(1)) }
            latch.open()
        }
        database.state.withLock { #expect($0.flushes < 200, "\($0.flushes) flushes of 9,000 items") }
    }

    /// One writer at a time while little waits: items that arrive during its batch are the next batch, whole. Another
    /// writer begins if the first does not return, or if many items wait.
    @Test func anotherWriterOnlyWhereItHelps() async throws {
        let cases: [(crowd: Int, patience: Duration, expected: Int)] = [
            (20, .seconds(60), 1), (20, .milliseconds(1), 2), (400, .seconds(60), 2),
            // No further item arrives when the patience ends.
            (20, .milliseconds(500), 2),
        ]
        for (crowd, patience, expected) in cases {
            let latch = Latch()
            let batches = Mutex<[Int]>([])
            let group = GroupCommit<Int, Int>(
                name: "test", writers: 2, patience: patience, size: { _ in (1, 1) },
                flush: { items throws(PostgresError) in
                    batches.withLock { $0.append(items.count) }
                    await latch.wait()
                    return items
                })
            await withTaskGroup { tasks in
                tasks.addTask { _ = await Self.answer(group, 0) }
                while batches.withLock({ $0.isEmpty }) { try? await Task.sleep(for: .milliseconds(1)) }
                try? await Task.sleep(for: .milliseconds(20))
                for item in 1...crowd { tasks.addTask { _ = await Self.answer(group, item) } }
                while group.held.rows <= crowd { try? await Task.sleep(for: .milliseconds(1)) }
                let deadline = ContinuousClock.now + .seconds(10)
                while batches.withLock({ $0.count }) < expected, ContinuousClock.now < deadline {
                    try? await Task.sleep(for: .milliseconds(1))
                }
                try? await Task.sleep(for: .milliseconds(20))
                #expect(batches.withLock { $0.count } == expected, "\(crowd), \(patience)")
                latch.open()
            }
            #expect(batches.withLock { $0.reduce(0, +) } == crowd + 1)
        }
    }

    /// Items that arrive in a stream share statements; a caller that submits one by one does not wait for others.
    @Test func whatComesInAStreamSharesItsStatements() async throws {
        let batches = Mutex<[Int]>([])
        func group(pace: Duration, items: Int? = nil, latch: Latch = Latch()) -> GroupCommit<Int, Int> {
            GroupCommit<Int, Int>(
                name: "test", pace: .init(shortest: pace, items: items), size: { _ in (1, 1) },
                flush: { items throws(PostgresError) in
                    batches.withLock { $0.append(items.count) }
                    if items == [0] { await latch.wait() }
                    return items
                })
        }
        let patient = group(pace: .seconds(3600))
        for item in 1...50 { #expect(try await patient.submit(item) == item) }
        #expect(batches.withLock { $0 } == Array(repeating: 1, count: 50))

        // The second time the pace is an hour and no batch waits for it: three items are enough.
        for (pace, items) in [(Duration.seconds(3), Int?.none), (.seconds(3600), 3)] {
            batches.withLock { $0 = [] }
            let latch = Latch()
            let paced = group(pace: pace, items: items, latch: latch)
            func submit(_ items: ClosedRange<Int>, _ tasks: inout ThrowingTaskGroup<Void, any Error>) async throws {
                let held = paced.held.rows
                for item in items { tasks.addTask { #expect(await Self.answer(paced, item) == .success(item)) } }
                while paced.held.rows < held + items.count { try await Task.sleep(for: .milliseconds(1)) }
            }
            try await withThrowingTaskGroup(of: Void.self) { tasks in
                try await submit(0...0, &tasks)
                while batches.withLock({ $0.isEmpty }) { try await Task.sleep(for: .milliseconds(1)) }
                try await submit(1...3, &tasks)
                latch.open()
                while paced.held.rows > 0 { try await Task.sleep(for: .milliseconds(1)) }
                for item in 4...6 {
                    tasks.addTask { #expect(await Self.answer(paced, item) == .success(item)) }
                    try await Task.sleep(for: .milliseconds(20))
                }
                try await tasks.waitForAll()
            }
            #expect(batches.withLock { $0 } == [1, 3, 3])
        }
    }

    @Test func aCrowdIsNotPaced() async throws {
        let latch = Latch()
        let batches = Mutex<[Int]>([])
        let group = GroupCommit<Int, Int>(
            name: "test", limits: .init(batchRows: 100), pace: .init(shortest: .seconds(3600)), size: { _ in (1, 1) },
            flush: { items throws(PostgresError) in
                batches.withLock { $0.append(items.count) }
                await latch.wait()
                return items
            })
        await withTaskGroup { tasks in
            tasks.addTask { _ = await Self.answer(group, 0) }
            while batches.withLock({ $0.isEmpty }) { try? await Task.sleep(for: .milliseconds(1)) }
            for item in 1...300 { tasks.addTask { _ = await Self.answer(group, item) } }
            while group.held.rows < 301 { try? await Task.sleep(for: .milliseconds(1)) }
            latch.open()
        }
        #expect(batches.withLock { $0 } == [1, 100, 100, 100])
    }

    @Test func aCrowdEndsThePause() async throws {
        let latch = Latch()
        let batches = Mutex<[Int]>([])
        let group = GroupCommit<Int, Int>(
            name: "test", pace: .init(shortest: .seconds(3600)), size: { _ in (1, 1) },
            flush: { items throws(PostgresError) in
                batches.withLock { $0.append(items.count) }
                await latch.wait()
                return items
            })
        try await withThrowingTaskGroup(of: Void.self) { tasks in
            tasks.addTask { _ = await Self.answer(group, 0) }
            while batches.withLock({ $0.isEmpty }) { try await Task.sleep(for: .milliseconds(1)) }
            for item in 1...2 { tasks.addTask { _ = await Self.answer(group, item) } }
            while group.held.rows < 3 { try await Task.sleep(for: .milliseconds(1)) }
            latch.open()
            while group.held.rows > 0 { try await Task.sleep(for: .milliseconds(1)) }
            tasks.addTask { _ = await Self.answer(group, 3) }
            try await Task.sleep(for: .milliseconds(50))
            #expect(batches.withLock { $0 } == [1, 2])
            for item in 4...130 { tasks.addTask { _ = await Self.answer(group, item) } }
            try await tasks.waitForAll()
        }
        #expect(batches.withLock { $0 } == [1, 2, 128])
    }

    /// Every item is answered, also one that arrives at the very end of a pause. A few callers submit at all moments of
    /// the pause, with one writer and with two.
    @Test(arguments: [1, 2]) func nobodyIsForgotten(writers: Int) async throws {
        let group = GroupCommit<Int, Int>(
            name: "test", writers: writers, patience: .milliseconds(3),
            pace: .init(shortest: .milliseconds(1), items: 3), size: { _ in (1, 1) },
            flush: { items throws(PostgresError) in
                if items.count > 2 { try? await Task.sleep(for: .microseconds(.random(in: 0...4000))) }
                return items
            })
        await withTaskGroup { tasks in
            for poster in 0..<4 {
                tasks.addTask {
                    for item in 0..<1500 {
                        #expect(await Self.answer(group, item) == .success(item))
                        if poster > 0 { try? await Task.sleep(for: .microseconds(.random(in: 0...2000))) }
                    }
                }
            }
        }
        await group.close()
        #expect(group.held.rows == 0)
    }

    @Test func boundsRefuse() async throws {
        let latch = Latch()
        let group = GroupCommit<Int, Int>(
            name: "test", limits: .init(queueRows: 10, queueBytes: 1_000), size: { _ in (1, 90) },
            flush: { items throws(PostgresError) in
                await latch.wait()
                return items
            })
        async let answers = withTaskGroup { tasks in
            for item in 0..<30 { tasks.addTask { await Self.answer(group, item) } }
            return await tasks.reduce(into: [Result<Int, GroupCommitError>]()) { $0.append($1) }
        }
        // Items that are being written count as well.
        for _ in 0..<500 where group.held.rows < 10 { try await Task.sleep(for: .milliseconds(2)) }
        try await Task.sleep(for: .milliseconds(50))
        #expect(group.held == (10, 900))
        await #expect(throws: GroupCommitError.full) { try await group.submit(99) }
        latch.open()
        let all = await answers
        #expect(all.count { (try? $0.get()) != nil } == 10)
        #expect(all.count { $0 == .failure(.full) } == 20)
        #expect(try await group.submit(99) == 99)
        let wide = GroupCommit<Int, Int>(
            name: "test", limits: .init(queueRows: 10, queueBytes: 1_000), size: { (1, $0) },
            flush: { items throws(PostgresError) in items })
        await #expect(throws: GroupCommitError.full) { try await wide.submit(1_001) }
        #expect(try await wide.submit(1_000) == 1_000)
    }

    @Test func closeFlushesWhatIsQueued() async throws {
        let latch = Latch()
        let group = GroupCommit<Int, Int>(
            name: "test", size: { _ in (1, 1) },
            flush: { items throws(PostgresError) in
                await latch.wait()
                return items
            })
        async let answers = withTaskGroup { tasks in
            for item in 0..<100 { tasks.addTask { await Self.answer(group, item) } }
            return await tasks.reduce(into: [Result<Int, GroupCommitError>]()) { $0.append($1) }
        }
        for _ in 0..<500 where group.held.rows < 100 { try await Task.sleep(for: .milliseconds(2)) }
        async let closed: Void = group.close()
        try await Task.sleep(for: .milliseconds(100))
        latch.open()
        await closed
        #expect(await answers.allSatisfy { (try? $0.get()) != nil })
        await #expect(throws: GroupCommitError.closed) { try await group.submit(1) }
        await group.close()
    }

    /// The caller is cancelled in the middle: its item and its neighbours are committed all the same.
    @Test func cancelledCallersDoNotHarmTheBatch() async throws {
        let database = Pretended(seed: 2, failureRate: 0)
        let group = GroupCommit<Int, Int>(
            name: "test", size: { _ in (1, 1) },
            flush: { items throws(PostgresError) in try await database.flush(items) })
        let items = (0..<1_000).filter { !Pretended.isPoison($0) }
        await withTaskGroup { tasks in
            for item in items {
                tasks.addTask {
                    let task = Task { await Self.answer(group, item) }
                    if item % 3 == 0 { task.cancel() }
                    #expect(await task.value == .success(item * 2))
                }
            }
        }
        #expect(database.state.withLock { $0.committed } == Set(items))
    }

    /// If one answer were missing, callers would get each other's outcomes.
    @Test func aFlushThatLosesAnOutcomeFailsItsBatch() async throws {
        let group = GroupCommit<Int, Int>(
            name: "odd", size: { _ in (1, 1) }, flush: { items throws(PostgresError) in Array(items.dropLast()) })
        await #expect(throws: GroupCommitError.failed(.undecodable(statement: "odd", column: 0))) {
            try await group.submit(1)
        }
    }

    // MARK: The real database

    private static let insert = Statement<[Int], Int>(
        "test.insert",
        """
        with stored as (insert into numbers select * from unnest($1::int8[]) on conflict do nothing)
        select * from unnest($1::int8[]) with ordinality as n(value, place) order by place
        """,
        bind: { [.ints($0)] }, read: { row throws(PostgresError) in try row.int(0) })

    /// 2,000 callers, some with a value the table refuses, while backends are killed: each gets a right answer.
    @Test(.database) func callersOnARealDatabaseWhileBackendsAreKilled() async throws {
        _ = try await withDatabase {
            try await $0.run(command("create table numbers (value int8 primary key check (value <> 77))"))
        }
        try await withDatabase(connections: 2) { database async throws in
            let group = GroupCommit<Int, Int>(
                name: "test", limits: .init(batchRows: 50), writers: 2, size: { _ in (1, 8) },
                flush: { items throws(PostgresError) in try await database.run(Self.insert, items) })
            let killer = Task {
                try await withDatabase { other in
                    while !Task.isCancelled {
                        try await Task.sleep(for: .milliseconds(.random(in: 20...300)))
                        try await other.run(
                            command(
                                """
                                select pg_terminate_backend(pid) from pg_stat_activity
                                where datname = current_database() and query like '/* test.insert%'
                                order by random() limit 1
                                """
                            ))
                    }
                }
            }
            let answers = await withTaskGroup { tasks in
                for item in 0..<2_000 {
                    tasks.addTask {
                        try? await Task.sleep(for: .milliseconds(item / 4))
                        return (item, await Self.answer(group, item))
                    }
                }
                return await tasks.reduce(into: [(Int, Result<Int, GroupCommitError>)]()) { $0.append($1) }
            }
            killer.cancel()
            _ = await killer.result
            await group.close()
            let stored = Set(try await withDatabase { try await $0.run(oneNumber("select value from numbers")) })
            for (item, answer) in answers {
                switch answer {
                case .success(let value): #expect(value == item && stored.contains(item))
                case .failure(.poison): #expect(item == 77)
                case .failure(let error): #expect(error.isRetryable && item != 77)
                }
            }
            #expect(answers.count { (try? $0.1.get()) != nil } > 1_000)
            #expect(!stored.contains(77))
        }
    }

    /// A neighbour's lock holds up one row: the other callers commit while it waits.
    @Test(.database) func onlyTheLockedRowWaits() async throws {
        try await withDatabase { database async throws in
            try await database.run(command("create table rows (id int8 primary key, touched int not null default 0)"))
            try await database.run(command("insert into rows select generate_series(1, 64)"))
        }
        let touch = Statement<[Int], Int>(
            "test.touch",
            """
            with t as (update rows set touched = touched + 1 where id = any($1) returning id)
            select n.id from unnest($1::int8[]) with ordinality as n(id, place) order by place
            """,
            bind: { [.ints($0)] }, read: { row throws(PostgresError) in try row.int(0) })
        try await withDatabase({
            $0.statementTimeout = .seconds(60)
            $0.callDeadline = .seconds(60)
        }) { holder async throws in
            async let held = holder.failure(
                of: """
                    do $$ begin
                      perform 1 from rows where id = 40 for update;
                      perform pg_advisory_xact_lock(40); perform pg_sleep(50);
                    end $$
                    """)
            try await until(exists: "select from pg_locks where locktype = 'advisory' and objid = 40 and granted")
            try await withDatabase({ $0.lockTimeout = .milliseconds(300) }) { database async throws in
                let group = GroupCommit<Int, Int>(
                    name: "test", size: { _ in (1, 8) },
                    flush: { items throws(PostgresError) in try await database.run(touch, items) })
                let answers = await withTaskGroup { tasks in
                    for item in 1...64 { tasks.addTask { (item, await Self.answer(group, item)) } }
                    return await tasks.reduce(into: [Int: Result<Int, GroupCommitError>]()) { $0[$1.0] = $1.1 }
                }
                for (item, answer) in answers {
                    #expect(answer == (item == 40 ? .failure(.failed(.timedOut(.lock))) : .success(item)))
                }
            }
            holder.abort()
            #expect(await held == .lost)
        }
    }

    private static func answer(_ group: GroupCommit<Int, Int>, _ item: Int) async -> Result<Int, GroupCommitError> {
        do throws(GroupCommitError) {
            return .success(try await group.submit(item))
        } catch {
            return .failure(error)
        }
    }
}

/// Holds every caller until it is opened.
private final class Latch: Sendable {
    private let state = Mutex<(isOpen: Bool, waiting: [CheckedContinuation<Void, Never>])>((false, []))

    func wait() async {
        await withCheckedContinuation { continuation in
            let isOpen = state.withLock { state in
                if !state.isOpen { state.waiting.append(continuation) }
                return state.isOpen
            }
            if isOpen { continuation.resume() }
        }
    }

    func open() {
        let waiting = state.withLock { state in
            state.isOpen = true
            defer { state.waiting = [] }
            return state.waiting
        }
        for continuation in waiting { continuation.resume() }
    }
}
