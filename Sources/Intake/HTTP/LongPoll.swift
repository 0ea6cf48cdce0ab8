package import Foundation
package import Ledger
import Metrics
package import Postgres
import Service
import Synchronization

/// Requests that wait until their receipt is no longer being tried, or their order no longer waits for its purchase.
///
/// One statement every 50 ms for all of them together, none while nobody waits: 5,000 waiters cost the database 20
/// look-ups by primary key a second. No LISTEN/NOTIFY: it serialises commits and does not pass PgBouncer.
package final class LongPoll: Sendable {
    /// One more is answered with the current state at once, and the answer's `Makegood-Limit` says so.
    package static let waitersMax = 5000
    /// The same for those who wait for one user's.
    package static let waitersOfUserMax = 200
    package static let interval: Duration = .milliseconds(50)
    /// Below the 29, 30 and 60 s after which gateways give up.
    package static let waitMax: Duration = .seconds(25)

    private struct Waiter {
        let awaitedID: UUID
        let user: [UInt8]?
        let deadline: ContinuousClock.Instant
        /// Nil: registered, and still reading its row.
        var continuation: CheckedContinuation<Void, Never>?
        /// The end came before the wait.
        var isOver = false
    }

    private struct State {
        var waiters: [Int: Waiter] = [:]
        /// Of each user who has any, by the bytes of the id.
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
    ///   - finished: which of these ids nobody need wait for any more.
    ///   - name: what metrics call those who are waited for.
    package init(
        ledger: Ledger, finished: Statement<[UUID], UUID> = Statements.finishedReceipts, name: String = "receipts"
    ) {
        self.ledger = ledger
        self.finished = finished
        waiting = Gauge(label: "makegood_long_poll_waiters", dimensions: [("of", name)])
        (wakeUps, wakeUp) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    /// Asks for those who wait and ends what is late, until it is cancelled or closed; both end every wait. Waits are
    /// bounded only while it runs.
    package func run() async {
        for await _ in wakeUps {
            while !Task.isCancelled, let ids = next() {
                if !ids.isEmpty { Task { await ask(ids) } }
                try? await Task.sleep(for: Self.interval)
            }
        }
        close()
    }

    /// Ends every wait now, and those to come at once: the process drains.
    package func close() {
        let continuations = state.withLock { state in
            state.isClosed = true
            return state.waiters.keys.compactMap { Self.end($0, &state) }
        }
        wakeUp.finish()
        for continuation in continuations { continuation.resume() }
    }

    /// A place among those who wait. Register, then read the row, then wait: what ends in between is not missed.
    ///
    /// - Parameter user: whose it is; nil: nobody's, and only the bound of all counts.
    /// - Returns: nil where there is no room, which the requester is told, or the process drains. Give the ticket back with
    ///   `leave` in any case.
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

    /// The newest view after a wait; nil where there was no room to wait, or the database went away meanwhile: then what
    /// was known before is true enough, and "nothing was stored" would not be.
    func latest<View>(
        _ id: UUID, of user: String?, upTo wait: Duration, isOver: (View) -> Bool, _ read: () async throws -> View?
    ) async -> View? {
        guard let ticket = register(id, of: user, upTo: wait) else { return nil }
        defer { ticket.leave() }
        // Registered first: what ends between this look and the wait is not missed.
        guard let view = try? await read() else { return nil }
        guard !isOver(view) else { return view }
        await ticket.wait()
        return (try? await read()) ?? view
    }

    struct Ticket: Sendable {
        fileprivate let poll: LongPoll
        fileprivate let id: Int

        /// Returns when the receipt is no longer being tried, the time is up, the process drains or the task ends.
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

    /// Ends what is late. The ids to ask about, none while a question is under way; nil where nobody waits.
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
        // An error is no answer: the next question comes in 50 ms, and everyone's time runs out by itself.
        let finished = Set((try? await ledger.run(finished, ids)) ?? [])
        let continuations = state.withLock { state in
            state.isAsking = false
            return state.waiters.filter { finished.contains($0.value.awaitedID) }.keys
                .compactMap { Self.end($0, &state) }
        }
        for continuation in continuations { continuation.resume() }
    }

    /// Marks a waiter as ended; its continuation, if it waits already, is the caller's to resume outside the lock.
    private static func end(_ id: Int, _ state: inout State) -> CheckedContinuation<Void, Never>? {
        state.waiters[id]?.isOver = true
        let continuation = state.waiters[id]?.continuation
        state.waiters[id]?.continuation = nil
        return continuation
    }
}
