package import Foundation
package import Ledger
import Metrics
package import Postgres
import Service
import Synchronization

/// Requests that wait until workers no longer try their receipt, or until their order has its purchase.
///
/// One statement every 50 ms serves all of them together, and none runs while no request waits: 5,000 waiters cost the
/// database 20 statements a second, each a look-up by primary key. LISTEN/NOTIFY is not used: it serialises commits and
/// does not pass PgBouncer.
package final class LongPoll: Sendable {
    /// The most waiters. Ingest answers one more with the current state at once, and says so in the answer's
    /// `Makegood-Limit`.
    package static let waitersMax = 5000
    /// The most waiters for one user's receipts or orders; one more is answered in the same way.
    package static let waitersOfUserMax = 200
    package static let interval: Duration = .milliseconds(50)
    /// Below the 29, 30 and 60 s after which gateways give up.
    package static let waitMax: Duration = .seconds(25)

    private struct Waiter {
        let awaitedID: UUID
        let user: [UInt8]?
        let deadline: ContinuousClock.Instant
        /// Nil: the request is registered, and still reads its row.
        var continuation: CheckedContinuation<Void, Never>?
        /// Whether the wait ended before it began.
        var isOver = false
    }

    private struct State {
        var waiters: [Int: Waiter] = [:]
        /// The number of waiters for each user who has any, by the bytes of the user's id.
        var ofUsers: [[UInt8]: Int] = [:]
        var lastID = 0
        var isAsking = false
        var isClosed = false
    }

    private let ledger: Ledger
    private let finished: Statement<[UUID], UUID>
    private let state = Mutex(State())
    private let wakeUps: AsyncStream<Void>
    private let wakeUp: AsyncStream<Void>.Continuation
    private let waiting: Gauge

    /// - Parameters:
    ///   - finished: of these ids, returns those for which no request need wait any more.
    ///   - name: the metrics' name for the awaited rows.
    package init(
        ledger: Ledger, finished: Statement<[UUID], UUID> = Statements.finishedReceipts, name: String = "receipts"
    ) {
        self.ledger = ledger
        self.finished = finished
        waiting = Gauge(label: "makegood_long_poll_waiters", dimensions: [("of", name)])
        (wakeUps, wakeUp) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    /// Asks the database for all waiters and ends the waits whose time is up, until the task is cancelled or `close` is
    /// called; both end every wait. The bounds on waits hold only while this method runs.
    package func run() async {
        for await _ in wakeUps {
            while !Task.isCancelled, let ids = next() {
                if !ids.isEmpty { Task { await ask(ids) } }
                try? await Task.sleep(for: Self.interval)
            }
        }
        close()
    }

    /// Ends every wait now, and later ones at once, because the process drains.
    package func close() {
        let continuations = state.withLock { state in
            state.isClosed = true
            return state.waiters.keys.compactMap { Self.end($0, &state) }
        }
        wakeUp.finish()
        for continuation in continuations { continuation.resume() }
    }

    /// Registers a waiter. The caller registers, then reads the row, then waits: so it misses no change in between.
    ///
    /// - Parameter user: the user of the receipt or order; nil: none, and only the bound of all waiters counts.
    /// - Returns: nil where the process drains or there is no room, which the answer then tells. The caller gives the
    ///   ticket back with `leave` in any case.
    func register(_ awaitedID: UUID, of user: String?, upTo wait: Duration) -> Ticket? {
        let user = user.map { Array($0.utf8) }
        let (id, limit): (Int?, Limit?) = state.withLock { state in
            guard !state.isClosed else { return (nil, nil) }
            guard state.waiters.count < Self.waitersMax else { return (nil, .waiters) }
            if let user {
                guard state.ofUsers[user, default: 0] < Self.waitersOfUserMax else { return (nil, .userWaiters) }
                state.ofUsers[user, default: 0] += 1
            }
            state.lastID += 1
            state.waiters[state.lastID] = Waiter(
                awaitedID: awaitedID, user: user, deadline: .now + min(wait, Self.waitMax), continuation: nil)
            return (state.lastID, nil)
        }
        guard let id else {
            if let limit { Requester.current?.reached(limit) }
            return nil
        }
        wakeUp.yield()
        return Ticket(poll: self, id: id)
    }

    /// The newest view after a wait; nil where there was no room to wait, or the database went away meanwhile. The
    /// caller then answers with the view that it had: an error would wrongly say that nothing was stored.
    func latest<View>(
        _ id: UUID, of user: String?, upTo wait: Duration, isOver: (View) -> Bool, _ read: () async throws -> View?
    ) async -> View? {
        guard let ticket = register(id, of: user, upTo: wait) else { return nil }
        defer { ticket.leave() }
        // The waiter is registered first: a change between this read and the wait is not missed.
        guard let view = try? await read() else { return nil }
        guard !isOver(view) else { return view }
        await ticket.wait()
        return (try? await read()) ?? view
    }

    struct Ticket: Sendable {
        fileprivate let poll: LongPoll
        fileprivate let id: Int

        /// Returns when workers no longer try the receipt, the time is up, the process drains or the task is cancelled.
        func wait() async {
            await withTaskCancellationHandler {
                await withCheckedContinuation { continuation in
                    let isOver = poll.state.withLock { state in
                        guard let waiter = state.waiters[id], !waiter.isOver, !Task.isCancelled else { return true }
                        state.waiters[id]?.continuation = continuation
                        return false
                    }
                    if isOver { continuation.resume() }
                }
            } onCancel: {
                poll.state.withLock { LongPoll.end(id, &$0) }?.resume()
            }
        }

        func leave() {
            poll.state.withLock { state in
                guard let user = state.waiters.removeValue(forKey: id)?.user, let count = state.ofUsers[user] else {
                    return
                }
                state.ofUsers[user] = count > 1 ? count - 1 : nil
            }
        }
    }

    /// Ends the waits whose time is up and returns the ids to ask about: none while a statement is under way, nil where
    /// no request waits.
    private func next() -> [UUID]? {
        let now = ContinuousClock.now
        let (late, ids): ([CheckedContinuation<Void, Never>], [UUID]?) = state.withLock { state in
            let late = state.waiters.filter { $0.value.deadline <= now }.keys.compactMap { Self.end($0, &state) }
            let open = state.waiters.values.filter { !$0.isOver }
            guard !open.isEmpty else { return (late, nil) }
            if state.isAsking { return (late, []) }
            state.isAsking = true
            return (late, Array(Set(open.map(\.awaitedID))))
        }
        for continuation in late { continuation.resume() }
        waiting.record(ids == nil ? 0 : state.withLock { $0.waiters.count })
        return ids
    }

    private func ask(_ ids: [UUID]) async {
        // An error gives no answer: the next statement comes in 50 ms, and each wait ends when its time is up.
        let finished = Set((try? await ledger.run(finished, ids)) ?? [])
        let continuations = state.withLock { state in
            state.isAsking = false
            return state.waiters.filter { finished.contains($0.value.awaitedID) }.keys
                .compactMap { Self.end($0, &state) }
        }
        for continuation in continuations { continuation.resume() }
    }

    /// Marks a waiter as ended and returns its continuation, if it already waits; the caller resumes the continuation
    /// outside the lock.
    private static func end(_ id: Int, _ state: inout State) -> CheckedContinuation<Void, Never>? {
        state.waiters[id]?.isOver = true
        let continuation = state.waiters[id]?.continuation
        state.waiters[id]?.continuation = nil
        return continuation
    }
}
