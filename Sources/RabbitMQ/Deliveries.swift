import DequeModule
import Synchronization

/// A consumer's deliveries, across reconnects. Ends when the consumer is drained or closed, or the task is cancelled.
///
/// Holds at most the deliveries that the broker may send unsettled: the sum of the prefetches times the bodies per
/// message. When a connection ends, its deliveries that nobody took are dropped, because the broker delivers them
/// again. Several tasks may iterate; each delivery goes to one of them.
package struct Deliveries: AsyncSequence, Sendable {
    package typealias Element = Delivery
    package typealias Failure = Never

    let mailbox: Mailbox

    package struct AsyncIterator: AsyncIteratorProtocol {
        let mailbox: Mailbox

        package mutating func next() async -> Delivery? { await mailbox.next() }

        package mutating func next(isolation actor: isolated (any Actor)?) async -> Delivery? { await mailbox.next() }
    }

    package func makeAsyncIterator() -> AsyncIterator { AsyncIterator(mailbox: mailbox) }
}

/// Passes deliveries from the connection's thread to the tasks that iterate.
final class Mailbox: Sendable {
    private struct State {
        var letters: Deque<Delivery> = []
        var readers: [(id: UInt64, continuation: CheckedContinuation<Delivery?, Never>)] = []
        var lastID: UInt64 = 0
        var isFinished = false
    }

    private let state = Mutex(State())

    func put(_ delivery: Delivery) {
        let reader = state.withLock { state -> CheckedContinuation<Delivery?, Never>? in
            guard !state.isFinished else { return nil }
            if state.readers.isEmpty {
                state.letters.append(delivery)
                return nil
            }
            return state.readers.removeFirst().continuation
        }
        reader?.resume(returning: delivery)
    }

    /// Drops the deliveries that nobody took.
    func empty() { state.withLock { $0.letters = [] } }

    /// Drops the deliveries that nobody took, and ends the sequence.
    func finish() {
        let readers = state.withLock { state in
            let readers = state.readers
            state.readers = []
            state.letters = []
            state.isFinished = true
            return readers
        }
        for reader in readers { reader.continuation.resume(returning: nil) }
    }

    func next() async -> Delivery? {
        let id = state.withLock { state in
            state.lastID += 1
            return state.lastID
        }
        return await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                // The outer nil: wait. This closure sees a cancellation before this line, `cancel` sees one after it.
                let answer = state.withLock { state -> Delivery?? in
                    if state.isFinished || Task.isCancelled { return .some(nil) }
                    if let letter = state.letters.popFirst() { return .some(letter) }
                    state.readers.append((id, continuation))
                    return nil
                }
                if let answer { continuation.resume(returning: answer) }
            }
        } onCancel: {
            cancel(id)
        }
    }

    private func cancel(_ id: UInt64) {
        let continuation = state.withLock { state -> CheckedContinuation<Delivery?, Never>? in
            guard let index = state.readers.firstIndex(where: { $0.id == id }) else { return nil }
            return state.readers.remove(at: index).continuation
        }
        continuation?.resume(returning: nil)
    }
}
