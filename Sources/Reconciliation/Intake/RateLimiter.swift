import Metrics
import Purchases
import Synchronization

/// How often each caller came lately, in this process.
///
/// A token bucket per key, kept as one instant (the generic cell rate algorithm, ITU-T I.371): `full` is when the
/// bucket will have filled up again. Each request moves it on by one interval; one that would move it further than a
/// burst ahead of now is refused, and moves nothing. What a request turns out to hold beyond one is owed: it is not
/// refused for it, whoever comes after waits. A reload of the configuration keeps the buckets; where it changes a rate,
/// each is at most as empty as the new one allows, and owes nothing.
///
/// Costs one lock for callers with a rate, nothing for the others, and allocates on a key's first request only.
package final class RateLimiter: Sendable {
    package enum Key: Hashable, Sendable {
        /// By hash: two keys that stand side by side for rotation may have one name.
        case key([UInt8])
        case gateway
    }

    /// What a caller has a right to.
    package struct Share: Sendable, Equatable {
        let key: Key
        /// For the metric.
        let name: String
        let rate: Rate

        package init(_ key: Key, name: String, _ rate: Rate) {
            self.key = key
            self.name = name
            self.rate = rate
        }
    }

    private struct Bucket {
        var rate: Rate
        var full: ContinuousClock.Instant
        let refused: Counter

        init(_ share: Share, _ now: ContinuousClock.Instant) {
            rate = share.rate
            full = now
            refused = Counter(label: "makegood_requests_limited_total", dimensions: [("key", share.name)])
        }

        /// Nil if the request may pass, else how long until one may.
        mutating func take(_ share: Share, _ now: ContinuousClock.Instant) -> Duration? {
            let room = share.rate.interval * share.rate.burst
            if rate != share.rate {
                rate = share.rate
                full = min(full, now + room)
            }
            let next = max(full, now) + share.rate.interval
            let wait = next - room - now
            guard wait <= .zero else {
                refused.increment()
                return wait
            }
            full = next
            return nil
        }

        /// From now on: what came back while the request was still being read is not paid with.
        mutating func owe(_ more: Int, _ now: ContinuousClock.Instant) {
            full = max(full, now) + rate.interval * more
        }
    }

    private let buckets = Mutex<[Key: Bucket]>([:])

    package init() {}

    /// - Throws: 429; Retry-After says when one request will be allowed.
    package func take(_ share: Share, at now: ContinuousClock.Instant = .now) throws(Problem) {
        let wait = buckets.withLock { $0[share.key, default: Bucket(share, now)].take(share, now) }
        guard let wait else { return }
        throw .tooManyRequests(retryAfterSeconds: Int(wait.inSeconds.rounded(.up)))
    }

    /// Counts what a request that was let in holds beyond the one it was counted as.
    package func owe(_ share: Share, _ more: Int, at now: ContinuousClock.Instant = .now) {
        buckets.withLock { $0[share.key]?.owe(more, now) }
    }
}

extension Rate {
    /// From one request to the next, of whoever comes as often as he may.
    fileprivate var interval: Duration { .seconds(1) / perSecond }
}
