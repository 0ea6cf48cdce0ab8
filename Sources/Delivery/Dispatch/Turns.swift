import Foundation
import Synchronization

/// The endpoints to which this process sends, or tries to. No ring is lost: a ring that comes while a turn ends begins
/// another one.
final class Turns: Sendable {
    private struct Turn {
        let wake: AsyncStream<Void>.Continuation
        var isRung = false
    }

    private let turns = Mutex<[UUID: Turn]>([:])

    /// Passes on a ring.
    ///
    /// - Returns: what wakes the caller, which now serves the endpoint. Nil: the endpoint is served already.
    func ring(_ id: UUID) -> (signals: AsyncStream<Void>, wake: AsyncStream<Void>.Continuation)? {
        turns.withLock { turns in
            if let turn = turns[id] {
                turns[id]?.isRung = true
                turn.wake.yield()
                return nil
            }
            let (signals, wake) = AsyncStream.makeStream(of: Void.self, bufferingPolicy: .bufferingNewest(1))
            turns[id] = Turn(wake: wake)
            return (signals, wake)
        }
    }

    /// Has all turns of this process look for due events now.
    func wakeAll() {
        for wake in turns.withLock({ $0.values.map(\.wake) }) { wake.yield() }
    }

    /// Notes that whatever was rung for is looked for from now on.
    func begin(_ id: UUID) {
        turns.withLock { $0[id]?.isRung = false }
    }

    /// Ends the service of an endpoint, unless a ring has come since `begin`: then it goes on.
    func end(_ id: UUID) -> Bool {
        turns.withLock { turns in
            guard turns[id]?.isRung == false else { return false }
            turns[id] = nil
            return true
        }
    }
}
