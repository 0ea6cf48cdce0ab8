/// The time without a connection: how long to wait before the next attempt, and which failures are worth a log line.
/// Pure.
///
/// Full jitter between 0.2 s and a ceiling that doubles up to 5 s. So many processes do not come back at once, and a
/// broker that is back is used again within seconds.
struct Outage {
    typealias Instant = ContinuousClock.Instant

    static let shortestDelay: Duration = .milliseconds(200)
    static let longestDelay: Duration = .seconds(5)

    private(set) var since: Instant?
    private(set) var attempts = 0
    private var reportedReason: RabbitMQError?

    init() {}

    /// Records that the connection failed or could not be made. True if that is news: the first failure, or a
    /// misconfiguration that was not reported last.
    mutating func failed(_ reason: RabbitMQError, at now: Instant) -> Bool {
        let isNews = since == nil || (reason.isMisconfiguration && reason != reportedReason)
        if since == nil { since = now }
        attempts += 1
        if isNews { reportedReason = reason }
        return isNews
    }

    /// - Parameter random: 0 to 1.
    func delay(random: Double) -> Duration {
        var ceiling = Self.shortestDelay
        for _ in 0..<min(attempts, 10) where ceiling < Self.longestDelay { ceiling *= 2 }
        return Self.shortestDelay + (min(ceiling, Self.longestDelay) - Self.shortestDelay) * random
    }

    /// Ends the outage after a new connection. Returns how long it took; nil if there was no outage.
    mutating func ended(at now: Instant) -> Duration? {
        defer { self = Outage() }
        return since.map { now - $0 }
    }
}
