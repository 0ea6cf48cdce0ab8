import Settings

/// When the next event may be sent to an endpoint, by its rate and by what its receiver asked for.
///
/// A new pace has no tokens, so dispatchers that take turns send no more than one does.
struct SendPace: Sendable {
    private var tokens = 0.0
    private var filledAt: ContinuousClock.Instant
    /// Before, nothing is sent: the receiver answered 429 or 503 with a time.
    private(set) var restsUntil: ContinuousClock.Instant

    init(now: ContinuousClock.Instant) {
        filledAt = now
        restsUntil = now
    }

    mutating func rest(until instant: ContinuousClock.Instant) { restsUntil = max(restsUntil, instant) }

    /// Takes the right to send one event now; false: it is too early.
    mutating func take(_ rate: Rate?, now: ContinuousClock.Instant) -> Bool {
        guard now >= restsUntil else { return false }
        guard let rate else { return true }
        tokens = min(Double(rate.burst), tokens + (now - filledAt) / .seconds(1) * Double(rate.perSecond))
        filledAt = now
        guard tokens >= 1 else { return false }
        tokens -= 1
        return true
    }
}
