import BlockingIO
import Foundation
import Glibc
import Synchronization
import Testing

/// Goal: the properties that the wrappers of C libraries rely on. Jobs of an actor run on its one thread and nowhere
/// else, the thread wakes for its socket, and the thread ends when nothing refers to it. Method: an actor that records
/// its thread.
@Suite struct ConnectionThreadTests {
    fileprivate actor Worker {
        let thread: ConnectionThread
        private(set) var threads: Set<UInt> = []
        private(set) var runs = 0

        init(_ thread: ConnectionThread) { self.thread = thread }

        nonisolated var unownedExecutor: UnownedSerialExecutor { thread.asUnownedSerialExecutor() }

        func note() {
            threads.insert(UInt(pthread_self()))
            runs += 1
        }

        /// Blocks its thread, as a C call would.
        func block(_ milliseconds: UInt32) { usleep(milliseconds * 1000) }
    }

    @Test func everyJobRunsOnTheOneThread() async {
        let worker = Worker(ConnectionThread(name: "test"))
        await withTaskGroup { group in
            for _ in 0..<1_000 { group.addTask { await worker.note() } }
        }
        #expect(await worker.runs == 1_000)
        #expect(await worker.threads.count == 1)
        #expect(await !worker.threads.contains(UInt(pthread_self())))
    }

    /// A sleeping thread must not miss a job that arrives while it goes to sleep: many single hops would hang.
    @Test(.timeLimit(.minutes(1))) func noWakeUpIsLost() async {
        let worker = Worker(ConnectionThread(name: "test"))
        for _ in 0..<20_000 { await worker.note() }
        #expect(await worker.runs == 20_000)
    }

    /// While eight threads block on a machine with fewer cores, the cooperative pool goes on.
    @Test(.timeLimit(.minutes(1))) func blockingBlocksNobodyElse() async {
        let workers = (0..<8).map { _ in Worker(ConnectionThread(name: "test")) }
        let start = ContinuousClock.now
        await withTaskGroup { group in
            for worker in workers { group.addTask { await worker.block(1_000) } }
            for _ in 0..<100 { group.addTask { await Task.yield() } }
        }
        #expect(start.duration(to: .now) < .seconds(6), "one after the other it would be 8 s")
    }

    @Test func isolationIsTheThread() async {
        let thread = ConnectionThread(name: "test")
        let worker = Worker(thread)
        #expect(thread.isIsolatingCurrentContext() == false)
        #expect(await worker.isOnThread)
    }

    @Test(.timeLimit(.minutes(1))) func watchFiresWhenBytesArriveAndNotAfterUnwatch() async throws {
        let ends = try openPipe()
        defer { for end in ends { close(end) } }
        let thread = ConnectionThread(name: "test")
        let worker = Worker(thread)
        let (received, sink) = AsyncStream<UInt8>.makeStream()
        try thread.watch(
            .init(socket: ends[0], tick: .seconds(60)) {
                worker.assumeIsolated { _ in
                    var byte: UInt8 = 0
                    while read(ends[0], &byte, 1) == 1 { sink.yield(byte) }
                }
            })
        var bytes = received.makeAsyncIterator()
        for sent: UInt8 in 1...10 {
            var sent = sent
            #expect(write(ends[1], &sent, 1) == 1)
            #expect(await bytes.next() == sent)
        }
        thread.unwatch()
        await worker.note()  // behind this, the thread sleeps without the socket
        var late: UInt8 = 11
        #expect(write(ends[1], &late, 1) == 1)
        try await Task.sleep(for: .milliseconds(100))
        sink.finish()
        #expect(await bytes.next() == nil)
    }

    /// A library must be called for its heartbeats even if nothing arrives.
    @Test(.timeLimit(.minutes(1))) func watchTicks() async throws {
        let ends = try openPipe()
        defer { for end in ends { close(end) } }
        let thread = ConnectionThread(name: "test")
        let (ticks, sink) = AsyncStream<Void>.makeStream()
        try thread.watch(.init(socket: ends[0], tick: .milliseconds(20)) { sink.yield() })
        var iterator = ticks.makeAsyncIterator()
        for _ in 0..<5 { _ = await iterator.next() }
        thread.unwatch()
    }

    /// Wake-ups that are requested in a stream get turns at the thread's pace, and the last one gets a turn too.
    @Test(.timeLimit(.minutes(1))) func turnsThatAreAskedForKeepThePace() async throws {
        let ends = try openPipe()
        defer { for end in ends { close(end) } }
        let pace = Duration.milliseconds(20)
        let thread = ConnectionThread(name: "test", pace: pace)
        let mailbox = Mutex<(put: Int, taken: Int, turns: Int)>((0, 0, 0))
        try thread.watch(
            .init(socket: ends[0], tick: .seconds(60)) { mailbox.withLock { $0 = ($0.put, $0.put, $0.turns + 1) } })
        let start = ContinuousClock.now
        for _ in 0..<300 {
            mailbox.withLock { $0.put += 1 }
            thread.wake()
            usleep(1_000)
        }
        while mailbox.withLock({ $0.taken < 300 }) { try await Task.sleep(for: .milliseconds(1)) }
        thread.unwatch()
        let (turns, length) = (mailbox.withLock(\.turns), start.duration(to: .now))
        // The watch's own turn and the first requested turn do not wait.
        #expect(pace * (turns - 2) <= length && turns > 2, "\(turns) turns in \(length)")
    }

    @Test(.timeLimit(.minutes(1))) func threadEndsAfterTheLastRelease() async throws {
        let name = "ends-\(UInt32.random(in: 0...99_999))"
        func isRunning() -> Bool { threadNames().contains(name) }
        var worker: Worker? = Worker(ConnectionThread(name: name))
        await worker?.note()
        // A listing of /proc may miss an entry while other threads come and go.
        for _ in 0..<200 where !isRunning() { try await Task.sleep(for: .milliseconds(10)) }
        #expect(isRunning())
        worker = nil
        for _ in 0..<200 where isRunning() { try await Task.sleep(for: .milliseconds(10)) }
        #expect(!isRunning())
    }

    /// The watch's closure may hold the actor: `unwatch` breaks the cycle, also if its job is the last reference.
    @Test(.timeLimit(.minutes(1))) func threadEndsAfterUnwatch() async throws {
        let ends = try openPipe()
        defer { for end in ends { close(end) } }
        let name = "watch-\(UInt32.random(in: 0...9_999))"
        func start() async throws {
            let thread = ConnectionThread(name: name)
            let worker = Worker(thread)
            try thread.watch(.init(socket: ends[0], tick: .milliseconds(10)) { worker.assumeIsolated { $0.note() } })
            await worker.note()
            thread.unwatch()
        }
        try await start()
        for _ in 0..<200 where threadNames().contains(name) { try await Task.sleep(for: .milliseconds(10)) }
        #expect(!threadNames().contains(name))
    }

    /// A turn in which a watch ended must release the watch before the thread sleeps.
    @Test(.timeLimit(.minutes(1))) func threadEndsAfterItsWatchHasEndedItself() async throws {
        let ends = try openPipe()
        defer { for end in ends { close(end) } }
        let name = "turn-\(UInt32.random(in: 0...9_999))"
        func start() throws {
            let thread = ConnectionThread(name: name)
            let worker = Worker(thread)
            try thread.watch(
                .init(socket: ends[0], tick: .milliseconds(10)) { worker.assumeIsolated { $0.thread.unwatch() } })
        }
        try start()
        for _ in 0..<200 where threadNames().contains(name) { try await Task.sleep(for: .milliseconds(10)) }
        #expect(!threadNames().contains(name))
    }

    private func openPipe() throws -> [Int32] {
        var ends: [Int32] = [-1, -1]
        try #require(pipe(&ends) == 0)
        _ = fcntl(ends[0], F_SETFL, O_NONBLOCK)
        return ends
    }

    /// proc(5): the names of this process's threads.
    private func threadNames() -> [String] {
        let tasks = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/task")) ?? []
        return tasks.compactMap { task in
            try? String(contentsOfFile: "/proc/self/task/\(task)/comm", encoding: .utf8)
                .trimmingCharacters(in: .newlines)
        }
    }
}

extension ConnectionThreadTests.Worker {
    fileprivate var isOnThread: Bool { thread.isIsolatingCurrentContext() == true }
}
