import HTTPTypes
import NIOCore
package import Service
import Synchronization

/// Admits the readers of lists of purchases and orders and of timelines: one at a time for a user, two at a time for
/// the process.
///
/// Each list takes the database more time than a post does. A further request waits at most 2 s, in order of arrival; a
/// request of a user who has a list under way delays only that user's requests.
package final class ListLimiter: Sendable {
    package static let readersMax = DescriptorShares.listConnections
    /// The most waiting requests of one user; ingest refuses more at once.
    package static let waitersOfUserMax = 8
    package static let waitMax: Duration = .seconds(2)

    private struct Waiter {
        let id: Int
        let user: [UInt8]?
        let continuation: CheckedContinuation<Limit?, Never>
    }

    private struct State {
        var readers = 0
        /// The users of the readers, by the bytes of their ids.
        var users: Set<[UInt8]> = []
        var waiters: [Waiter] = []
        var lastID = 0

        func admits(_ user: [UInt8]?) -> Bool {
            readers < ListLimiter.readersMax && !(user.map(users.contains) ?? false)
        }

        mutating func begin(_ user: [UInt8]?) {
            readers += 1
            if let user { users.insert(user) }
        }
    }

    private let connections: ConnectionLimit
    private let state = Mutex(State())

    /// - Parameter connections: the connections of the clients that ask.
    package init(connections: ConnectionLimit) {
        self.connections = connections
    }

    /// Waits for this request's turn and calls `read`.
    ///
    /// - Parameter user: whose list it is, as the request names the user; nil: no particular user's.
    /// - Throws: `Problem` 429 `user.lists` or 503 `process.lists` where the turn did not come in time, both retryable;
    ///   `CancellationError` where the client closed the connection while the request waited; the errors of `read`.
    func withTurn<Result>(
        of user: String?, _ channel: any Channel, _ read: () async throws -> Result
    ) async throws -> Result {
        let user = user.map { Array($0.utf8) }
        let hasWaited = try await enter(user)
        defer { leave(user) }
        if hasWaited, connections.hasLeft(channel) { throw CancellationError() }
        return try await read()
    }

    /// - Returns: whether the request had to wait for others.
    private func enter(_ user: [UInt8]?) async throws(Problem) -> Bool {
        let isAdmitted = state.withLock { state in
            let isAdmitted = state.admits(user)
            if isAdmitted { state.begin(user) }
            return isAdmitted
        }
        if isAdmitted { return false }
        let limit: Limit? = await withCheckedContinuation { wait(user, $0) }
        if let limit { throw .tooManyLists(limit) }
        return true
    }

    private func wait(_ user: [UInt8]?, _ continuation: CheckedContinuation<Limit?, Never>) {
        enum Step {
            case goesOn(Limit?)
            case waits(Int)
        }
        let step: Step = state.withLock { state in
            // A place may have become free since the first look.
            if state.admits(user) {
                state.begin(user)
                return .goesOn(nil)
            }
            if let user, state.waiters.count(where: { $0.user == user }) >= Self.waitersOfUserMax {
                return .goesOn(.userLists)
            }
            state.lastID += 1
            state.waiters.append(Waiter(id: state.lastID, user: user, continuation: continuation))
            return .waits(state.lastID)
        }
        switch step {
        case .goesOn(let limit): continuation.resume(returning: limit)
        case .waits(let id):
            Task {
                try? await Task.sleep(for: Self.waitMax)
                expire(id)
            }
        }
    }

    /// Ends a wait whose time is up; does nothing if the request's turn came before.
    private func expire(_ id: Int) {
        let (waiter, limit): (Waiter?, Limit) = state.withLock { state in
            guard let place = state.waiters.firstIndex(where: { $0.id == id }) else { return (nil, .lists) }
            let waiter = state.waiters.remove(at: place)
            return (waiter, waiter.user.map(state.users.contains) ?? false ? .userLists : .lists)
        }
        waiter?.continuation.resume(returning: limit)
    }

    private func leave(_ user: [UInt8]?) {
        let next: Waiter? = state.withLock { state in
            state.readers -= 1
            if let user { state.users.remove(user) }
            guard let place = state.waiters.firstIndex(where: { state.admits($0.user) }) else { return nil }
            let next = state.waiters.remove(at: place)
            state.begin(next.user)
            return next
        }
        next?.continuation.resume(returning: nil)
    }
}

extension Problem {
    /// The list was not read; the same request may succeed in a moment.
    fileprivate static func tooManyLists(_ limit: Limit) -> Problem {
        limit == .userLists
            ? Problem(
                .tooManyRequests, .tooManyLists, "lists of this user are being read; ask again when they are there",
                limit: limit, headers: [.retryAfter: "1"])
            : Problem(
                .serviceUnavailable, .listsBusy, "too many lists are being read; ask again", limit: limit,
                headers: [.retryAfter: retryAfter])
    }
}
