import DequeModule
import Synchronization

/// Lets a number of tasks through at a time, or tasks of a total weight; the others wait in the order of their arrival.
package final class AsyncSemaphore: Sendable {
    private struct State {
        var free: Int
        var waiters: Deque<(weight: Int, continuation: CheckedContinuation<Bool, Never>)> = []
    }

    private let state: Mutex<State>
    private let waitersMax: Int

    /// - Parameters:
    ///   - count: how many tasks, or which weight, may be inside.
    ///   - waitersMax: how many may wait; one more is sent away.
    package init(_ count: Int, waitersMax: Int = .max) {
        state = Mutex(State(free: count))
        self.waitersMax = waitersMax
    }

    /// Waits for a place.
    ///
    /// - Parameter weight: at most the weight that may be inside.
    /// - Returns: true: the task has a place and must call `leave` afterwards, with the same weight. False: too many
    ///   tasks wait already.
    @discardableResult
    package func enter(_ weight: Int = 1) async -> Bool {
        await withCheckedContinuation { continuation in
            let answer: Bool? = state.withLock { state in
                if state.waiters.isEmpty, state.free >= weight {
                    state.free -= weight
                    return true
                }
                guard state.waiters.count < waitersMax else { return false }
                state.waiters.append((weight, continuation))
                return nil
            }
            if let answer { continuation.resume(returning: answer) }
        }
    }

    /// Gives the place to the tasks that have waited longest.
    package func leave(_ weight: Int = 1) {
        let next = state.withLock { state in
            var next: [CheckedContinuation<Bool, Never>] = []
            state.free += weight
            while let first = state.waiters.first, first.weight <= state.free {
                state.free -= first.weight
                next.append(first.continuation)
                state.waiters.removeFirst()
            }
            return next
        }
        for continuation in next { continuation.resume(returning: true) }
    }
}
