import Synchronization

/// Counts how many of something each user has had in the current period, so that one player's receipts do not delay
/// everybody's purchases. Each process counts for itself. Periods are the same for all users.
package final class UserShares: Sendable {
    /// Fresh calls to Apple.
    package static var calls: UserShares { UserShares(most: 10, each: .seconds(60)) }
    /// Receipts of a user that are published at once; further ones take turns.
    package static var receiptsAtOnce: UserShares { UserShares(most: 64, each: .seconds(1)) }
    /// Users of one period, some 100 bytes each.
    static let usersMax = 20_000

    let most: Int
    let period: Duration

    private struct Period {
        var begunAt: ContinuousClock.Instant?
        /// By app and user, as bytes.
        var taken: [[UInt8]: Int] = [:]
    }

    private let current = Mutex(Period())

    init(most: Int, each period: Duration) {
        self.most = most
        self.period = period
    }

    /// Takes one of the user's share; false: it is used up for this period.
    package func take(of userID: String, app: String, at now: ContinuousClock.Instant) -> Bool {
        let key = Array(app.utf8) + [0] + Array(userID.utf8)
        return current.withLock { current in
            if current.begunAt.map({ now - $0 >= period }) ?? true {
                current.begunAt = now
                current.taken.removeAll(keepingCapacity: true)
            }
            let taken = current.taken[key, default: 0]
            guard taken < most else { return false }
            if taken == 0, current.taken.count >= Self.usersMax { current.taken.removeAll(keepingCapacity: true) }
            current.taken[key] = taken + 1
            return true
        }
    }
}
