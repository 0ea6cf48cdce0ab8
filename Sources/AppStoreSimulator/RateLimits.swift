import Synchronization

/// How many calls a second an app may make: the setting `rateLimits`.
package enum RateLimitRule: Sendable, Equatable, Codable {
    /// No limit: the default, since a load test is not a test of Apple.
    case off
    /// Apple's own limits (AppleFacts 3.8); in the sandbox a tenth of them.
    case apple
    /// Names of endpoints, or `perSecond` for all the others, with calls a second; the same in the sandbox.
    case custom([String: Int])

    /// The key that stands for every endpoint without a key of its own.
    static let everywhere = "perSecond"
    static let perSecondMax = 1_000_000

    package init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        if let limits = try? container.decode([String: Int].self) {
            let known = Set(SimulatedService.allCases.map(\.rawValue)).subtracting(["verifyReceipt"])
            for (name, limit) in limits {
                guard known.contains(name) || name == Self.everywhere else {
                    throw Self.corrupted(container, "has no endpoint \(name)")
                }
                guard (1...Self.perSecondMax).contains(limit) else {
                    throw Self.corrupted(container, "\(name) must be 1 to \(Self.perSecondMax)")
                }
            }
            self = .custom(limits)
            return
        }
        switch try? container.decode(String.self) {
        case "off": self = .off
        case "apple": self = .apple
        default: throw Self.corrupted(container, "must be off, apple or an object of calls per second")
        }
    }

    private static func corrupted(_ container: any SingleValueDecodingContainer, _ reason: String) -> DecodingError {
        .dataCorruptedError(in: container, debugDescription: reason)
    }

    package func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        switch self {
        case .off: try container.encode("off")
        case .apple: try container.encode("apple")
        case .custom(let limits): try container.encode(limits)
        }
    }

    /// Calls a second; nil: as many as come.
    func perSecond(_ service: SimulatedService, _ environment: StoreEnvironment) -> Double? {
        switch self {
        case .off: nil
        case .apple: service.perSecond.map { environment == .sandbox ? $0 / 10 : $0 }
        case .custom(let limits): (limits[service.rawValue] ?? limits[Self.everywhere]).map(Double.init)
        }
    }
}

/// Counts the calls of each app at each endpoint in windows of one second.
///
/// Apple's limits are per second but enforced by the hour, so Apple accepts a burst that the simulator refuses: a
/// client that stays below these windows stays below Apple's limits. A limit below one call a second has a longer
/// window.
final class RateLimits: Sendable {
    private struct Counter: Hashable {
        let service: SimulatedService
        let environment: StoreEnvironment
        let app: String
    }

    private struct Window {
        var end: Int64
        var calls: Int
    }

    /// How many counters are kept before all begin anew.
    private static let countersMax = 100_000

    private let windows = Mutex<[Counter: Window]>([:])

    /// Counts one call. Nil: the call may pass. Otherwise the time from which the next call may pass, in UNIX
    /// milliseconds.
    func refusal(
        _ rule: RateLimitRule,
        _ service: SimulatedService,
        _ environment: StoreEnvironment,
        app: String,
        now: Int64
    ) -> Int64? {
        guard let limit = rule.perSecond(service, environment) else { return nil }
        let length = limit < 1 ? Int64(1000 / limit) : 1000
        return windows.withLock { windows in
            if windows.count >= Self.countersMax { windows = [:] }
            let counter = Counter(service: service, environment: environment, app: app)
            var window = windows[counter] ?? Window(end: 0, calls: 0)
            if now >= window.end { window = Window(end: now + length, calls: 0) }
            defer { windows[counter] = window }
            guard window.calls < max(1, Int(limit)) else { return window.end }
            window.calls += 1
            return nil
        }
    }
}
