import Caching
import Metrics
import Purchases
package import Settings
import Synchronization

/// How often each caller came lately, in this process.
///
/// A token bucket per key, kept as one instant (the generic cell rate algorithm, ITU-T I.371): `full` is when the
/// bucket will have filled up again. Each request moves it on by one interval; one that would move it further than a
/// burst ahead of now is refused, and moves nothing. What a request turns out to hold beyond one is owed by a key, which
/// speaks for many: it is not refused for it, whoever comes after waits, for a batch's worth at most however many batches
/// came at once. A reload of the configuration keeps the buckets; where it changes a rate, each is at most as empty as
/// the new one allows, and owes nothing.
///
/// Costs one lock for callers with a rate, nothing for the others, and allocates on a key's first request only. Users
/// are forgotten who did not come lately, and begin with a full bucket then.
package final class RateLimiter: Sendable {
    package enum Key: Hashable, Sendable {
        /// By hash: two keys that stand side by side for rotation may have one name.
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

        /// Nil if as many requests may pass, else how long until they may.
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

        /// From now on: what came back while the request was still being read is not paid with.
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

    /// Takes as many requests from a bucket, or none.
    ///
    /// - Throws: 429; Retry-After says when as many will be allowed.
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

    /// Counts what a request that was let in holds beyond the one it was counted as.
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
    /// From one request to the next, of whoever comes as often as he may.
    fileprivate var interval: Duration { .seconds(1) / perSecond }
}
