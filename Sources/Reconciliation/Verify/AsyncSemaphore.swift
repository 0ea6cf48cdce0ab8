import DequeModule
import Synchronization

/// Lets a number of tasks through at a time; the others wait in the order of their arrival.
final class AsyncSemaphore: Sendable {
    private struct State {
        var free: Int
        var waiters: Deque<CheckedContinuation<Bool, Never>> = []
    }

    private let state: Mutex<State>
    private let waitersMax: Int

    /// - Parameters:
    ///   - count: how many tasks may be inside.
    ///   - waitersMax: how many may wait; one more is sent away.
    init(_ count: Int, waitersMax: Int = .max) {
        state = Mutex(State(free: count))
        self.waitersMax = waitersMax
    }

    /// Waits for a place.
    ///
    /// - Returns: true: the task has a place and must call `leave` afterwards. False: too many tasks wait already.
    @discardableResult
    func enter() async -> Bool {
        await withCheckedContinuation { continuation in
            let answer: Bool? = state.withLock { state in
                if state.free > 0 {
                    state.free -= 1
                    return true
                }
                guard state.waiters.count < waitersMax else { return false }
                state.waiters.append(continuation)
                return nil
            }
            if let answer { continuation.resume(returning: answer) }
        }
    }

    /// Gives the place to the task that has waited longest.
    func leave() {
        let next = state.withLock { state in
            let next = state.waiters.popFirst()
            if next == nil { state.free += 1 }
            return next
        }
        next?.resume(returning: true)
    }
}
