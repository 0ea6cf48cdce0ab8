import Foundation
import Glibc
import Synchronization

/// Ends a blocked C call from outside: past its deadline the socket is shut down, and the call returns with an error.
///
/// libpq and librabbitmq 0.11 can wait without limit when a server stalls; shutdown(2) from another thread makes the
/// pending read or write fail at once. The descriptor is cleared before its owner closes it, so a number that the
/// system has given to someone else is never shut down.
public final class Cutoff: Sendable {
    private struct State {
        var socket: Int32?
        var deadline: ContinuousClock.Instant?
        var hasFired = false
        var hasExpired = false

        mutating func fire() {
            guard let socket else { return }
            hasFired = true
            shutdown(socket, Int32(SHUT_RDWR))
        }
    }

    private let state = Mutex(State())

    public init() {
        Watchdog.shared.add(self)
    }

    /// The connection is open on this socket from now on.
    public func opened(_ socket: Int32) {
        state.withLock { $0 = State(socket: socket) }
    }

    /// Call before the socket is closed.
    public func closed() {
        state.withLock { $0 = State() }
    }

    /// Runs a blocking call; when it takes longer than `limit` (checked every 100 ms), its socket is shut down.
    public func limited<Result>(to limit: Duration, _ body: () -> Result) -> Result {
        state.withLock { $0.deadline = .now + limit }
        defer { state.withLock { $0.deadline = nil } }
        return body()
    }

    /// Gives a running call this much time from now on.
    public func extend(to limit: Duration) {
        state.withLock { $0.deadline = .now + limit }
    }

    /// Shuts the socket down now. Safe from any thread, any number of times.
    public func fire() {
        state.withLock { $0.fire() }
    }

    /// Whether this socket was shut down by a deadline or by `fire`.
    public var hasFired: Bool { state.withLock { $0.hasFired } }

    /// Whether a deadline shut this socket down, and not `fire`.
    public var hasExpired: Bool { state.withLock { $0.hasExpired } }

    /// Compares and fires under one lock: between two locks the call may end and the next call begin, on another
    /// socket.
    fileprivate func fireIfLate(_ now: ContinuousClock.Instant) {
        state.withLock { state in
            guard let deadline = state.deadline, deadline < now else { return }
            state.fire()
            state.hasExpired = state.hasFired
        }
    }
}

/// One thread for all cutoffs of the process.
private final class Watchdog: Sendable {
    static let shared = Watchdog()

    private struct Reference {
        weak let cutoff: Cutoff?
    }

    private let references = Mutex<[Reference]>([])

    private init() {
        let thread = Thread { [self] in
            nameThisThread("watchdog")
            while true {
                usleep(100_000)
                check()
            }
        }
        thread.stackSize = 256 << 10
        thread.start()
    }

    func add(_ cutoff: Cutoff) {
        references.withLock { $0.append(Reference(cutoff: cutoff)) }
    }

    private func check() {
        let now = ContinuousClock.now
        let living = references.withLock { references in
            references.removeAll { $0.cutoff == nil }
            return references
        }
        for reference in living { reference.cutoff?.fireIfLate(now) }
    }
}
