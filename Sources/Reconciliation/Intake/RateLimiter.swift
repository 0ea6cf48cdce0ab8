import Metrics
import Purchases
import Synchronization

/// How often each caller came lately, in this process.
///
/// A token bucket per key, kept as one instant (the generic cell rate algorithm, ITU-T I.371): `full` is when the
/// bucket will have filled up again. Each request moves it on by one interval; one that would move it further than a
/// burst ahead of now is refused, and moves nothing. A reload of the configuration keeps the
/// buckets, each at most as empty as its new rate allows.
///
/// Costs one lock for callers with a rate, nothing for the others, and allocates on a key's first request only.
package final class RateLimiter: Sendable {
    package enum Key: Hashable, Sendable {
        /// By hash: two keys that stand side by side for rotation may have one name.
        case key([UInt8])
        case gateway
    }

    private struct Bucket {
        var full: ContinuousClock.Instant
        let refused: Counter
    }

    private let buckets = Mutex<[Key: Bucket]>([:])

    package init() {}

    /// - Throws: 429; Retry-After says when one request will be allowed.
    package func take(
        _ key: Key, name: String, _ rate: Rate, at now: ContinuousClock.Instant = .now
    ) throws(Problem) {
        let interval = Duration.seconds(1) / rate.perSecond
        let wait = buckets.withLock { buckets in
            Self.take(&buckets[key, default: Self.bucket(name, now)], interval, burst: rate.burst, now)
        }
        guard let wait else { return }
        throw .tooManyRequests(retryAfterSeconds: Int(wait.inSeconds.rounded(.up)))
    }

    /// Nil if the request may pass, else how long until one may.
    private static func take(
        _ bucket: inout Bucket, _ interval: Duration, burst: Int, _ now: ContinuousClock.Instant
    ) -> Duration? {
        // Only a reload with a higher rate or a smaller burst finds a bucket emptier than empty; from then on it fills.
        bucket.full = min(max(bucket.full, now), now + interval * burst)
        let next = bucket.full + interval
        let wait = next - interval * burst - now
        guard wait <= .zero else {
            bucket.refused.increment()
            return wait
        }
        bucket.full = next
        return nil
    }

    private static func bucket(_ name: String, _ now: ContinuousClock.Instant) -> Bucket {
        Bucket(full: now, refused: Counter(label: "makegood_requests_limited_total", dimensions: [("key", name)]))
    }
}
