import Synchronization

/// Admits publishes or refuses them, without a visit to the thread, which may be busy connecting.
final class PublishAdmission: Sendable {
    private enum Phase {
        case fresh
        case open
        case blocked
        case failed(RabbitMQError)
        case closed
    }

    private struct State {
        var phase = Phase.fresh
        /// Publishes that were admitted and have no outcome yet.
        var count = 0
    }

    private let limit: Int
    private let contents = Mutex(State())

    /// - Parameter limit: the most publishes admitted at the same time, awaited or offered.
    init(limit: Int) { self.limit = limit }

    /// - Parameter isOffered: no caller waits for the outcome. Offers get half of the places, so that a caller that
    ///   waits for a confirm finds a place however many offers come.
    func enter(isOffered: Bool = false) throws(RabbitMQError) {
        let limit = isOffered ? limit / 2 : limit
        let refusal = contents.withLock { contents -> RabbitMQError? in
            switch contents.phase {
            case .fresh, .open: break
            case .blocked: return .blocked
            case .failed(let reason): return reason
            case .closed: return .closed
            }
            guard contents.count < limit else { return .tooManyWaiting }
            contents.count += 1
            return nil
        }
        if let refusal { throw refusal }
    }

    func leave(_ count: Int = 1) { contents.withLock { $0.count -= count } }

    func opened() { change { $0 = .open } }

    func setBlocked(_ isBlocked: Bool) {
        change { phase in
            switch phase {
            case .open, .blocked: phase = isBlocked ? .blocked : .open
            case .fresh, .failed, .closed: break
            }
        }
    }

    func failed(_ reason: RabbitMQError) { change { $0 = .failed(reason) } }

    func close() { change { $0 = .closed } }

    var isFresh: Bool {
        contents.withLock { if case .fresh = $0.phase { true } else { false } }
    }

    var isClosed: Bool {
        contents.withLock { if case .closed = $0.phase { true } else { false } }
    }

    /// Why there is no connection.
    var reason: RabbitMQError {
        contents.withLock { contents in
            switch contents.phase {
            case .fresh, .open: .unreachable
            case .blocked: .blocked
            case .failed(let reason): reason
            case .closed: .closed
            }
        }
    }

    var state: PublisherState {
        contents.withLock { contents in
            switch contents.phase {
            case .open: .connected
            case .blocked: .blocked
            case .fresh: .disconnected(.unreachable)
            case .failed(let reason): .disconnected(reason)
            case .closed: .disconnected(.closed)
            }
        }
    }

    /// Changes the phase, unless it is `closed`, which is final.
    private func change(_ body: (inout Phase) -> Void) {
        contents.withLock { contents in
            if case .closed = contents.phase { return }
            body(&contents.phase)
        }
    }
}
