/// Lets one through at a time, in order of arrival.
package actor Turnstile {
    /// More than these do not wait: each holds a message, and the broker's patience is bounded.
    static let waitersMax = 16

    private var isTaken = false
    private var waiters: [CheckedContinuation<Void, Never>] = []

    package init() {}

    /// False: too many wait already. True: call `leave` afterwards.
    package func enter() async -> Bool {
        guard isTaken else {
            isTaken = true
            return true
        }
        guard waiters.count < Self.waitersMax else { return false }
        await withCheckedContinuation { waiters.append($0) }
        return true
    }

    package func leave() {
        if waiters.isEmpty { isTaken = false } else { waiters.removeFirst().resume() }
    }
}
