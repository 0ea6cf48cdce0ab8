import Caching
import Foundation
import HTTPTypes
import Synchronization

/// How many bytes of bodies each user of the gateway sent today, by UTC, to this process (`limits.user.bytesPerDay`).
final class UserBytes: Sendable {
    private struct Count {
        /// Days since 1970.
        var day: Int
        var bytes = 0
    }

    private let counts = Mutex(RecentDictionary<[UInt8], Count>(generationMax: RateLimiter.usersMax))

    /// - Throws: 429 where the day's bytes are used up; nothing was read.
    func check(_ caller: Caller) throws(Problem) {
        guard let limit = caller.bytesPerDay, let user = caller.userID else { return }
        let count = counts.withLock { $0[Array(user.utf8)] }
        guard let count, count.day == Self.today, count.bytes >= limit else { return }
        throw Problem(
            .tooManyRequests, .tooManyBytes, "this user sent more than \(limit) bytes today", limit: .userBytes,
            headers: [.retryAfter: "3600"])
    }

    func note(_ bytes: Int, of caller: Caller) {
        guard caller.bytesPerDay != nil, let user = caller.userID else { return }
        let (key, today) = (Array(user.utf8), Self.today)
        counts.withLock { counts in
            var count = counts[key] ?? Count(day: today)
            if count.day != today { count = Count(day: today) }
            count.bytes += bytes
            counts[key] = count
        }
    }

    private static var today: Int { Int(Date.now.timeIntervalSince1970 / 86_400) }
}
