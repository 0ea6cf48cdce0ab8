import Caching
import Metrics
import Purchases
package import Settings
import Synchronization

/// Limits how often each caller may come to this process.
///
/// Each key has a token bucket, kept as one instant (the generic cell rate algorithm, ITU-T I.371): `full` is when the
/// bucket will have filled up again. Each request moves `full` on by one interval. A request that would move `full`
/// further than a burst ahead of now is refused, and moves nothing. If a request turns out to hold more entries than
/// one, its service key, which speaks for many users, owes the rest. That request is not refused, and later requests of
/// the key wait, for a batch's worth at most however many batches came at once. A reload of the configuration keeps the
/// buckets. Where the reload changes a rate, each bucket is at most as empty as the new rate allows, and owes nothing.
///
/// A request costs one lock for callers with a rate, nothing for the others, and allocates only if it is the key's
/// first. Users that did not come lately are forgotten, and begin with a full bucket when they come again.
package final class RateLimiter: Sendable {
    package enum Key: Hashable, Sendable {
        /// By hash: two keys that exist side by side for rotation may have one name.
        case key([UInt8])
        case gateway
        /// A user of the gateway, by the bytes of the id in the token.
        case user([UInt8])
    }

    /// Buckets of users are twice as many at most, about 100 bytes each.
    package static let usersMax = 20_000

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

        private var room: Duration { rate.interval * rate.burst }

        /// Nil if `count` requests may pass, otherwise how long until they may.
        mutating func take(_ count: Int, _ new: Rate, _ now: ContinuousClock.Instant) -> Duration? {
            if rate != new {
                rate = new
                full = min(full, now + room)
            }
            let next = max(full, now) + rate.interval * count
            let wait = next - room - now
            guard wait <= .zero else { return wait }
            full = next
            return nil
        }

        /// Adds a debt, from now on. Tokens that came back while the request was still being read do not pay for it.
        mutating func owe(_ more: Int, _ now: ContinuousClock.Instant) {
            full = max(full, now)
            let most = max(full, now + room + rate.interval * FieldBounds.batchEntriesMax)
            full = min(full + rate.interval * more, most)
        }
    }

    private struct Buckets {
        var ofKeys: [Key: Bucket] = [:]
        var ofUsers = RecentDictionary<Key, Bucket>(generationMax: usersMax)

        subscript(key: Key) -> Bucket? {
            mutating get {
                if case .user = key { ofUsers[key] } else { ofKeys[key] }
            }
            set {
                if case .user = key { ofUsers[key] = newValue } else { ofKeys[key] = newValue }
            }
        }
    }

    private let buckets = Mutex(Buckets())

    package init() {}

    /// Takes `count` requests from a bucket, or none.
    ///
    /// - Throws: 429; Retry-After says when `count` requests will be allowed.
    package func take(_ share: Share, _ count: Int = 1, at now: ContinuousClock.Instant = .now) throws(Problem) {
        let wait = buckets.withLock { buckets in
            var bucket = buckets[share.key] ?? Bucket(rate: share.rate, full: now)
            defer { buckets[share.key] = bucket }
            return bucket.take(count, share.rate, now)
        }
        guard let wait else { return }
        Counter(label: "makegood_requests_limited_total", dimensions: [("key", share.name)]).increment()
        throw .tooManyRequests(share.limit, retryAfterSeconds: Int(wait.inSeconds.rounded(.up)))
    }

    /// Counts the entries of an admitted request beyond the first, for which it was counted before.
    package func owe(_ share: Share, _ more: Int, at now: ContinuousClock.Instant = .now) {
        buckets.withLock { $0[share.key]?.owe(more, now) }
    }
}

extension RateLimiter.Share {
    fileprivate var limit: Limit {
        if case .user = key { .userRate } else { .callerRate }
    }
}

extension Rate {
    /// The time from one request to the next of a caller that comes as often as it may.
    fileprivate var interval: Duration { .seconds(1) / perSecond }
}
