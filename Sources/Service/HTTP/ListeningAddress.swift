import Synchronization

/// The port of a server, for callers that asked for any free port.
package final class ListeningAddress: Sendable {
    /// The server ended without listening, or does not listen any more.
    package struct NotListening: Error {}

    private enum State {
        case starting([CheckedContinuation<Int?, Never>])
        case listening(Int)
        case ended
    }

    private let state = Mutex(State.starting([]))

    package init() {}

    /// Waits until the server listens.
    package var port: Int {
        get async throws(NotListening) {
            let port: Int? = await withCheckedContinuation { continuation in
                let known: Int?? = state.withLock { state in
                    switch state {
                    case .starting(let waiting):
                        state = .starting(waiting + [continuation])
                        return .none
                    case .listening(let port): return .some(port)
                    case .ended: return .some(nil)
                    }
                }
                if let known { continuation.resume(returning: known) }
            }
            guard let port else { throw NotListening() }
            return port
        }
    }

    package func listening(_ port: Int) { settle(.listening(port), port) }
    package func ended() { settle(.ended, nil) }

    private func settle(_ new: State, _ port: Int?) {
        let waiting: [CheckedContinuation<Int?, Never>] = state.withLock { state in
            defer { state = new }
            if case .starting(let waiting) = state { return waiting }
            return []
        }
        for continuation in waiting { continuation.resume(returning: port) }
    }
}
