import Foundation
import Synchronization

/// The fault script: rules that decide for each of Apple's calls what goes wrong.
///
/// The script asks the rules in the order in which they were added. Latencies add up; the first other rule that fires
/// ends the search.
final class Faults: Sendable {
    /// The faults of one call.
    struct Plan: Sendable {
        var delayMilliseconds = 0.0
        var fault: FaultRequest?
        /// The kinds that fired, latency first.
        var kinds: [String] = []
    }

    private let state: Mutex<FaultRules<FaultRequest>>

    init(seed: UInt64) {
        state = Mutex(FaultRules(seed: seed))
    }

    /// Adds a rule and returns its id.
    func add(_ request: FaultRequest) throws(ControlError) -> Int {
        try state.withLock { rules throws(ControlError) in try rules.add(request) }
    }

    /// Removes all rules and returns how many there were.
    func removeAll() -> Int { state.withLock { $0.removeAll() } }

    /// Removes one rule; false if there is none.
    func remove(_ id: Int) -> Bool { state.withLock { $0.remove(id) } }

    var rules: [FaultRules<FaultRequest>.Rule] { state.withLock(\.rules) }

    /// Decides the faults of one call, and counts the rules that fire.
    func plan(_ service: SimulatedService, _ environment: StoreEnvironment) -> Plan {
        state.withLock { state in
            var plan = Plan()
            for index in state.rules.indices {
                let request = state.rules[index].request
                guard request.matches(service, environment), state.fires(index) else { continue }
                plan.kinds.append(request.kind.rawValue)
                guard request.kind == .latency else {
                    plan.fault = request
                    break
                }
                plan.delayMilliseconds += request.latency(&state.random)
            }
            plan.delayMilliseconds = min(plan.delayMilliseconds, FaultRequest.latencyMax)
            return plan
        }
    }
}

extension FaultRequest {
    /// Value of the `Retry-After` header.
    func retryAfter(now: Int64) -> String? {
        guard let wait = retryAfterMilliseconds else { return nil }
        switch retryAfterForm ?? .milliseconds {
        case .milliseconds: return String(now + wait)
        case .seconds: return String((wait + 999) / 1000)
        case .date:
            let formatter = DateFormatter()
            formatter.locale = Locale(identifier: "en_US_POSIX")
            formatter.timeZone = TimeZone(secondsFromGMT: 0)
            formatter.dateFormat = "EEE, dd MMM yyyy HH:mm:ss 'GMT'"
            return formatter.string(from: Date(timeIntervalSince1970: Double(now + wait) / 1000))
        }
    }

    /// Whether Apple would have refused the call: a refused call changes nothing. After a lost or garbled answer the
    /// call has taken effect.
    var isRefusal: Bool {
        switch kind {
        case .status, .error, .receiptStatus, .notFound: true
        case .latency, .timeout, .reset, .garbage, .foreignRoot: false
        }
    }

    func matches(_ service: SimulatedService, _ environment: StoreEnvironment) -> Bool {
        (endpoint == .all || endpoint.rawValue == service.rawValue)
            && (self.environment == nil || self.environment == environment)
    }

    /// One draw from the latency. Log-normal: the logarithm is normal with mean ln(median), and the 99th percentile
    /// of a normal variable lies 2.3263 deviations above its mean.
    func latency(_ random: inout SplitMix64) -> Double {
        guard let medianMilliseconds, let p99Milliseconds else { return milliseconds ?? 0 }
        let deviation = log(p99Milliseconds / medianMilliseconds) / 2.3263
        // Box and Muller, 1958; 1 - unit keeps the logarithm finite.
        let normal = (-2 * log(1 - random.unit())).squareRoot() * cos(2 * .pi * random.unit())
        return min(medianMilliseconds * exp(deviation * normal), Self.latencyMax)
    }
}

/// Small reproducible random numbers (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
package struct SplitMix64: RandomNumberGenerator, Sendable {
    private var state: UInt64

    package init(seed: UInt64) {
        state = seed
    }

    package mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var value = state
        value = (value ^ (value >> 30)) &* 0xBF58_476D_1CE4_E5B9
        value = (value ^ (value >> 27)) &* 0x94D0_49BB_1331_11EB
        return value ^ (value >> 31)
    }

    /// From 0 up to, not including, 1.
    package mutating func unit() -> Double {
        Double(next() >> 11) * 0x1p-53
    }
}
