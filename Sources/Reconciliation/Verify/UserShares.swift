import Synchronization

/// How many fresh calls to Apple each user has had in a minute, so that no player's receipts stand before everybody's
/// purchases. Of this process, whose share is its own.
final class UserShares: Sendable {
    static let callsMax = 10
    static let minute: Duration = .seconds(60)
    /// Of one minute, some 100 bytes each.
    static let usersMax = 20_000

    private struct Minute {
        var begunAt: ContinuousClock.Instant?
        /// By app and user, as bytes.
        var calls: [[UInt8]: Int] = [:]
    }

    private let current = Mutex(Minute())

    /// Takes a call of the user's share; false: it is used up for this minute.
    func take(of userID: String, app: String, at now: ContinuousClock.Instant) -> Bool {
        let key = Array(app.utf8) + [0] + Array(userID.utf8)
        return current.withLock { minute in
            if minute.begunAt.map({ now - $0 >= Self.minute }) ?? true {
                minute.begunAt = now
                minute.calls.removeAll(keepingCapacity: true)
            }
            let taken = minute.calls[key, default: 0]
            guard taken < Self.callsMax else { return false }
            if taken == 0, minute.calls.count >= Self.usersMax { minute.calls.removeAll(keepingCapacity: true) }
            minute.calls[key] = taken + 1
            return true
        }
    }
}
