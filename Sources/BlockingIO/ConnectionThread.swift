import Dispatch
import Foundation
import Glibc
import Synchronization

/// One operating-system thread that is the executor of one actor and sleeps in poll(2) on that actor's socket.
///
/// A blocking C library (libpq, librabbitmq) allows one thread at a time per connection. The language gives that to an
/// actor pinned to this executor: the actor's synchronous methods cannot interleave, its calls may block, and no thread
/// of the cooperative pool ever blocks.
///
/// Ownership: the actor holds the thread, queued jobs hold both, and a `Watch` holds the actor through its closure. The
/// caller of `watch` must call `unwatch` when it closes, or actor and thread live for ever. When the last reference
/// goes, the thread ends by itself.
public final class ConnectionThread: SerialExecutor, Sendable {
    /// The socket that the thread sleeps on between jobs, and the closure that it then calls.
    public struct Watch: Sendable {
        /// A file descriptor that stays open until `unwatch`.
        public let socket: Int32
        /// The longest sleep of the thread before it calls `onReady` (a library's heartbeats need a call).
        public let tick: Duration
        /// The thread calls this closure after each turn: after jobs ran, after the socket became readable, after a
        /// tick. The closure must drain the bytes that the library has already buffered: poll(2) knows nothing of them.
        public let onReady: @Sendable () -> Void

        public init(socket: Int32, tick: Duration, onReady: @escaping @Sendable () -> Void) {
            self.socket = socket
            self.tick = tick
            self.onReady = onReady
        }
    }

    private let core: Core

    /// - Parameters:
    ///   - name: shown by ps and top; the kernel keeps 15 bytes (proc(5), comm).
    ///   - pace: the least time from one turn that `wake` asked for to the next.
    public init(name: String, pace: Duration = .zero) {
        core = .started(name: name, pace: pace)
    }

    deinit { core.end() }

    public func enqueue(_ job: consuming ExecutorJob) {
        core.append(Core.Entry(job: UnownedJob(job), executor: .serial(self)))
    }

    public func checkIsolated() {
        precondition(core.isCurrentThread, "called off the connection's thread")
    }

    public func isIsolatingCurrentContext() -> Bool? { core.isCurrentThread }

    /// Gives the watch a turn soon, without the cost of a job: a mailbox holds something for `onReady`.
    ///
    /// The turn comes after `gatherTime` if the thread sleeps, and not before the thread's pace has passed since the
    /// turn before. So a burst of calls is one turn, and one read for the other side; no caller of this method is in a
    /// hurry. A job that comes meanwhile waits as long.
    public func wake() { core.wake() }

    /// Starts sleeping on a socket. Replaces an earlier watch.
    ///
    /// Before its first watch a thread has no file descriptor; then it takes two, for the rest of its life.
    ///
    /// - Throws: if no descriptors are left. Then nothing is watched. Retryable, once others were closed.
    public func watch(_ watch: Watch) throws(OutOfDescriptors) {
        try core.openPipe()
        core.setWatch(watch)
    }

    /// Stops sleeping on the socket and releases the watch's closure. Call it before the socket is closed.
    public func unwatch() { core.setWatch(nil) }
}

/// The process, or the machine, has no file descriptor left: EMFILE or ENFILE, pipe(2). Raise `ulimit -n`.
public struct OutOfDescriptors: Error, CustomStringConvertible {
    public let description = "no file descriptors are left (ulimit -n)"
}

/// One operating-system thread for tasks that would otherwise queue behind all other work of the process
/// (`Task(executorPreference:)`). The thread ends with its last reference; tasks enqueued before run first.
public final class TaskThread: TaskExecutor, Sendable {
    private let core: Core

    /// - Parameter name: shown by ps and top; the kernel keeps 15 bytes (proc(5), comm).
    public init(name: String) {
        core = .started(name: name)
    }

    deinit { core.end() }

    public func enqueue(_ job: consuming ExecutorJob) {
        core.append(Core.Entry(job: UnownedJob(job), executor: .tasks(self)))
    }
}

/// The part that the thread itself holds. It never holds the executor, so that releasing the executor can end the
/// thread.
private final class Core: Sendable {
    struct Entry {
        let job: UnownedJob
        /// Kept alive while its job runs.
        let executor: Executor
    }

    enum Executor {
        case serial(ConnectionThread)
        case tasks(TaskThread)
    }

    /// What the thread sleeps on. Another thread must touch that to wake the thread.
    private enum Sleep {
        case none
        case onSemaphore
        case onPipe(WakeUpPipe)
    }

    private struct State {
        var entries: [Entry] = []
        var watch: ConnectionThread.Watch?
        /// Exists whenever something is watched.
        var pipe: WakeUpPipe?
        var sleep = Sleep.none
        /// `wake` was called since the last turn began.
        var isWoken = false
        var hasEnded = false
    }

    private let state = Mutex(State())
    /// pthread_self() of the thread; 0 before it runs.
    private let threadID = Atomic<UInt>(0)
    /// Signalled once for each sleep on it.
    private let semaphore = DispatchSemaphore(value: 0)

    private let pace: Duration

    private init(pace: Duration) { self.pace = pace }

    static func started(name: String, pace: Duration = .zero) -> Core {
        let core = Core(pace: pace)
        let thread = Thread {
            nameThisThread(name)
            core.run()
        }
        thread.stackSize = 1 << 20
        thread.start()
        return core
    }

    var isCurrentThread: Bool { threadID.load(ordering: .acquiring) == UInt(pthread_self()) }

    func append(_ entry: Entry) {
        change { $0.entries.append(entry) }
    }

    func wake() {
        change { $0.isWoken = true }
    }

    /// Makes the pipe that wakes a thread that watches a socket: poll(2) sleeps on descriptors only.
    func openPipe() throws(OutOfDescriptors) {
        guard state.withLock({ $0.pipe == nil }) else { return }
        let pipe = try WakeUpPipe()
        state.withLock { $0.pipe = $0.pipe ?? pipe }
    }

    func setWatch(_ watch: ConnectionThread.Watch?) {
        // The old watch is released outside the lock: it may hold the last reference to an actor.
        let old = change { state in
            let old = state.watch
            state.watch = watch
            return old
        }
        withExtendedLifetime(old) {}
    }

    func end() {
        change { $0.hasEnded = true }
    }

    func run() {
        threadID.store(UInt(pthread_self()), ordering: .releasing)
        var gatheredAt = ContinuousClock.now - pace
        while true {
            let (hasRun, hasEnded) = takeTurn()
            if hasEnded, !hasRun { return }
            if !hasRun, sleep() { gather(since: &gatheredAt) }
        }
    }

    /// Runs the enqueued jobs, then the watch. A function of its own, so that it has released jobs and watch when the
    /// thread goes to sleep: a watch that was ended meanwhile may hold the last reference to the actor, and the thread
    /// would sleep for ever on it.
    private func takeTurn() -> (hasRun: Bool, hasEnded: Bool) {
        let (entries, watch, hasEnded) = state.withLock { state in
            let taken = state.entries
            state.entries = []
            state.isWoken = false
            return (taken, state.watch, state.hasEnded)
        }
        for entry in entries {
            // The entry holds the executor for as long as the job runs.
            switch entry.executor {
            case .serial(let executor): unsafe entry.job.runSynchronously(on: executor.asUnownedSerialExecutor())
            case .tasks(let executor): unsafe entry.job.runSynchronously(on: executor.asUnownedTaskExecutor())
            }
        }
        if !hasEnded || !entries.isEmpty { watch?.onReady() }
        return (!entries.isEmpty, hasEnded)
    }

    /// Half a millisecond: a burst of resumed tasks takes less, and no deadline of ours notices.
    private static let gatherTime: Duration = .microseconds(500)

    private func gather(since last: inout ContinuousClock.Instant) {
        let now = ContinuousClock.now
        last = max(now + Self.gatherTime, last + pace)
        usleep(useconds_t((last - now) / .microseconds(1)))
    }

    /// - Returns: whether `wake` alone asks for the next turn.
    private func sleep() -> Bool {
        // The watch is read again: `onReady` may have ended it and closed its socket, or begun another.
        let (sleep, watch) = state.withLock { state in
            let mayPark = state.entries.isEmpty && !state.isWoken && !state.hasEnded
            state.sleep =
                switch (state.watch, state.pipe) {
                case (_?, let pipe?) where mayPark: .onPipe(pipe)
                case _ where mayPark: .onSemaphore
                default: .none
                }
            return (state.sleep, state.watch)
        }
        switch sleep {
        case .none: break
        case .onSemaphore: semaphore.wait()
        case .onPipe(let pipe):
            pipe.sleep(on: watch)
            pipe.drain()
        }
        return state.withLock { state in
            state.sleep = .none
            return state.isWoken && state.entries.isEmpty && !state.hasEnded
        }
    }

    /// Changes the state and wakes the thread if it sleeps; a system call per job would be too much.
    @discardableResult
    private func change<Result>(_ body: (inout sending State) -> sending Result) -> sending Result {
        var sleep = Sleep.none
        let result = state.withLock { state in
            let result = body(&state)
            sleep = state.sleep
            state.sleep = .none
            return result
        }
        switch sleep {
        case .none: break
        case .onSemaphore: semaphore.signal()
        case .onPipe(let pipe): pipe.wake()
        }
        return result
    }
}

/// Ends a sleep in poll(2) from another thread. A pipe, because the Glibc module has no eventfd.
private final class WakeUpPipe: Sendable {
    private let readEnd: Int32
    private let writeEnd: Int32

    init() throws(OutOfDescriptors) {
        var ends: [Int32] = [-1, -1]
        guard unsafe pipe(&ends) == 0 else { throw OutOfDescriptors() }  // pipe(2) fills both or none
        // Non-blocking: a full pipe is as good as one byte.
        for end in ends {
            _ = fcntl(end, F_SETFL, O_NONBLOCK)
            _ = fcntl(end, F_SETFD, FD_CLOEXEC)
        }
        (readEnd, writeEnd) = (ends[0], ends[1])
    }

    deinit {
        close(readEnd)
        close(writeEnd)
    }

    /// Sleeps until `wake`, or until the watch has something to do.
    func sleep(on watch: ConnectionThread.Watch?) {
        var descriptors = [pollfd(fd: readEnd, events: Int16(POLLIN), revents: 0)]
        if let watch { descriptors.append(pollfd(fd: watch.socket, events: Int16(POLLIN), revents: 0)) }
        _ = unsafe poll(&descriptors, nfds_t(descriptors.count), watch.map { $0.tick.wholeMilliseconds } ?? -1)
    }

    func wake() {
        var byte: UInt8 = 1
        _ = unsafe write(writeEnd, &byte, 1)
    }

    func drain() {
        var drained: [UInt8] = Array(repeating: 0, count: 64)
        while unsafe read(readEnd, &drained, drained.count) > 0 {}
    }
}

/// Names the calling thread for ps and top.
///
/// Foundation's `Thread.name` races with the thread's own start and is often lost; pthread_setname_np is not in the
/// Glibc module. Writing one's own comm is the kernel's documented other way (proc(5)). Fails silently: it is a label.
func nameThisThread(_ name: String) {
    let file = unsafe open("/proc/thread-self/comm", O_WRONLY | O_CLOEXEC)  // open(2) copies the path
    guard file >= 0 else { return }
    let bytes = Array(name.utf8.prefix(15))
    _ = unsafe write(file, bytes, bytes.count)  // write(2) reads exactly these bytes
    close(file)
}

extension Duration {
    /// Rounded down, at least 0, at most Int32.max: what poll(2) takes.
    fileprivate var wholeMilliseconds: Int32 {
        let (seconds, attoseconds) = components
        return Int32(clamping: max(0, seconds * 1000 + attoseconds / 1_000_000_000_000_000))
    }
}
