internal import Synchronization

/// Knows which connections are up, how busy each is, and which callers wait while none is up.
final class Pool: Sendable {
    private struct Slot {
        var isUp = false
        var calls = 0
    }

    private struct State {
        var slots: [Slot]
        var calls = 0
        var isClosed = false
        /// The instant since which no connection is up; the bound on waiting counts from here.
        var downSince: ContinuousClock.Instant? = .now
        /// Why the last attempt to connect failed.
        var lastError: PostgresError?
        var hasReported = false
        var waiting: [CheckedContinuation<Void, Never>] = []
        var timer: Task<Void, Never>?
    }

    private let state: Mutex<State>
    private let queueLimit: Int
    private let reconnectWait: Duration

    init(connections: Int, queueLimit: Int, reconnectWait: Duration) {
        state = Mutex(State(slots: Array(repeating: Slot(), count: connections)))
        self.queueLimit = queueLimit
        self.reconnectWait = reconnectWait
    }

    var hasConnection: Bool { state.withLock { !$0.isClosed && $0.slots.contains { $0.isUp } } }

    /// Returns the least busy connection that is up, and counts it as one call busier until `release`.
    func acquire() async throws(PostgresError) -> Int {
        try enter()
        while true {
            switch state.withLock({ choose(&$0) }) {
            case .use(let index): return index
            case .fail(let error):
                state.withLock { $0.calls -= 1 }
                throw error
            case .wait: await waitForChange()
            }
        }
    }

    func release(_ index: Int) {
        state.withLock { state in
            state.slots[index].calls -= 1
            state.calls -= 1
        }
    }

    func isUp(_ index: Int) {
        wake { state in
            state.slots[index].isUp = true
            state.downSince = nil
            state.lastError = nil
            state.hasReported = false
            return true
        }
    }

    /// - Returns: whether this is the first failure since a connection was up.
    func isDown(_ index: Int, _ error: PostgresError) -> Bool {
        var isFirst = false
        wake { state in
            let wasUp = state.slots[index].isUp
            state.slots[index].isUp = false
            guard !state.slots.contains(where: \.isUp) else { return false }
            if state.downSince == nil { state.downSince = .now }
            if !wasUp {
                state.lastError = error
                isFirst = !state.hasReported
                state.hasReported = true
            }
            // Callers that wait for another attempt go on waiting. A misconfiguration, such as a wrong password, ends
            // every wait.
            if case .misconfigured = error { return true }
            return false
        }
        return isFirst
    }

    func close() {
        wake { state in
            state.isClosed = true
            return true
        }
    }

    private enum Choice {
        case use(Int)
        case wait
        case fail(PostgresError)
    }

    private func enter() throws(PostgresError) {
        let error: PostgresError? = state.withLock { state in
            if state.isClosed { return .closed }
            if state.calls >= queueLimit { return .tooManyWaiting }
            state.calls += 1
            return nil
        }
        if let error { throw error }
    }

    private func choose(_ state: inout State) -> Choice {
        if state.isClosed { return .fail(.closed) }
        let up = state.slots.indices.filter { state.slots[$0].isUp }
        if let index = up.min(by: { state.slots[$0].calls < state.slots[$1].calls }) {
            state.slots[index].calls += 1
            return .use(index)
        }
        if case .misconfigured = state.lastError { return .fail(state.lastError!) }
        if let downSince = state.downSince, downSince + reconnectWait <= .now {
            return .fail(state.lastError ?? .unavailable)
        }
        return .wait
    }

    private func waitForChange() async {
        await withCheckedContinuation { continuation in
            let isLate = state.withLock { state in
                guard let downSince = state.downSince, !state.isClosed else { return true }
                state.waiting.append(continuation)
                if state.timer == nil {
                    state.timer = Task {
                        try? await Task.sleep(until: downSince + self.reconnectWait, clock: .continuous)
                        self.wake { _ in true }
                    }
                }
                return false
            }
            if isLate { continuation.resume() }
        }
    }

    /// Changes the state and, if the change returns true, wakes all waiting callers, which look again.
    private func wake(_ change: (inout State) -> Bool) {
        let waiting: [CheckedContinuation<Void, Never>] = state.withLock { state in
            guard change(&state) else { return [] }
            state.timer?.cancel()
            state.timer = nil
            defer { state.waiting = [] }
            return state.waiting
        }
        for continuation in waiting { continuation.resume() }
    }
}
