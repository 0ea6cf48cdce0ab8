/// Lets one through at a time, in order of arrival.
actor Turnstile {
    /// More than these do not wait: each holds a message, and the broker's patience is bounded.
    static let waitersMax = 16

    private var isTaken = false
    private var waiters: [CheckedContinuation<Void, Never>] = []

    /// False: too many wait already. True: call `leave` afterwards.
    func enter() async -> Bool {
        guard isTaken else {
            isTaken = true
            return true
        }
        guard waiters.count < Self.waitersMax else { return false }
        await withCheckedContinuation { waiters.append($0) }
        return true
    }

    func leave() {
        if waiters.isEmpty { isTaken = false } else { waiters.removeFirst().resume() }
    }
}
