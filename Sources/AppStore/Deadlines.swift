internal import Synchronization

/// Cancels tasks that take too long. One task looks at all of them, because a timer for each would cost more than the
/// timed work. A task is cancelled at most ``tick`` late.
final class Deadlines: Sendable {
    private struct State {
        var running: [UInt64: (deadline: ContinuousClock.Instant, cancel: @Sendable () -> Void)] = [:]
        var lastID: UInt64 = 0
        var isWatched = false
    }

    static let tick: Duration = .milliseconds(250)

    private let state = Mutex(State())

    /// Runs `work` in a task of its own, which is cancelled at the deadline or with the caller.
    ///
    /// - Returns: the result of `work`, and whether the deadline cancelled it.
    func run<Value: Sendable>(
        by deadline: ContinuousClock.Instant, _ work: @escaping @concurrent @Sendable () async throws -> Value
    ) async -> (result: Result<Value, any Error>, isLate: Bool) {
        let task = Task(operation: work)
        let (id, startsWatch) = state.withLock { state in
            state.lastID += 1
            state.running[state.lastID] = (deadline, task.cancel)
            defer { state.isWatched = true }
            return (state.lastID, !state.isWatched)
        }
        // Detached from the caller's priority and trace: the watch serves all callers.
        if startsWatch { Task.detached { await self.watch() } }
        let result = await withTaskCancellationHandler {
            await task.result
        } onCancel: {
            task.cancel()
        }
        return (result, state.withLock { $0.running.removeValue(forKey: id) } == nil)
    }

    /// Cancels late tasks until no task runs.
    private func watch() async {
        while let next = next() {
            try? await Task.sleep(until: min(next, .now + Self.tick), clock: .continuous)
            let now = ContinuousClock.now
            let late = state.withLock { state in
                let late = state.running.filter { $0.value.deadline <= now }
                for id in late.keys { state.running.removeValue(forKey: id) }
                return late
            }
            for task in late.values { task.cancel() }
        }
    }

    private func next() -> ContinuousClock.Instant? {
        state.withLock { state in
            let next = state.running.values.map(\.deadline).min()
            state.isWatched = next != nil
            return next
        }
    }
}
