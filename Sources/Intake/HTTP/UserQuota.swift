import Caching
import Foundation
package import Ledger
package import Service
package import Settings
import Synchronization

/// The number of receipts that each user stored today and has open, as far as this process must know (`limits.user`).
///
/// Nearly all users post a few receipts a day, so this process asks the database only about a user who has stored
/// dozens through it: an honest post costs one look into a dictionary. With several processes a user may exceed a limit
/// by the receipts that each process stores between two looks, about a hundred.
package final class UserQuota: Sendable {
    /// The number of receipts a day that pass without a question to the database.
    package static let unasked = 64
    /// The database's answer holds for so many further receipts; after a reached limit for a second.
    package static let askedEach = 32

    private struct Standing {
        /// Days since 1970, UTC.
        var day: Int
        var stored = 0
        var nextLook = unasked
        var reached: Limit?
        var looked = ContinuousClock.now
    }

    private let ledger: Ledger
    private let standings = Mutex(RecentDictionary<UserName, Standing>(generationMax: UserRegister.knownMax))

    package init(ledger: Ledger) {
        self.ledger = ledger
    }

    private static var today: Int { Int(Date.now.timeIntervalSince1970 / 86_400) }

    /// The limit that a user has reached; nil: ingest may store the user's post.
    ///
    /// - Throws: the database's error, retryable as it says.
    package func limit(of user: UserName, _ limits: UserLimits) async throws(LedgerError) -> Limit? {
        let today = Self.today
        let (reached, mustLook) = standings.withLock { standings -> (Limit?, Bool) in
            guard let standing = standings[user], standing.day == today else { return (nil, false) }
            if standing.reached != nil { return (standing.reached, .now - standing.looked >= .seconds(1)) }
            return (nil, standing.stored >= standing.nextLook)
        }
        guard mustLook,
            let standing = try await ledger.run(Statements.userStanding, .init(user: user, limits: limits)).first
        else { return reached }
        let limit: Limit? =
            standing.today >= limits.receiptsPerDay
            ? .userReceipts : standing.open >= limits.openReceipts ? .userOpen : nil
        standings.withLock { standings in
            guard var known = standings[user] else { return }
            known.reached = limit
            known.nextLook = known.stored + Self.askedEach
            known.looked = .now
            standings[user] = known
        }
        return limit
    }

    /// Counts receipts that were newly stored.
    package func note(_ stored: Int, of user: UserName) {
        let today = Self.today
        standings.withLock { standings in
            var standing = standings[user] ?? Standing(day: today)
            if standing.day != today { standing = Standing(day: today) }
            standing.stored += stored
            standings[user] = standing
        }
    }
}
