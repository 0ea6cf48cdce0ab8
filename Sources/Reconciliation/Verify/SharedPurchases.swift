import Caching
import Ledger
import Postgres
import Synchronization

/// Notices a purchase that very many users show: its proof is passed around (F20). The purchase has one owner, and each
/// of the others is told that another user has it; a person should know which purchase it is.
///
/// A process counts the verdicts that it writes itself. So of several workers the one whose count is reached asks the
/// database for the number of users.
final class SharedPurchases: Sendable {
    static let window: Duration = .seconds(3600)
    /// So many users are no family and no change of accounts.
    static let usersMin = 20
    private static let purchasesMax = 4096

    private struct Window {
        var start: ContinuousClock.Instant
        var count = 0
        var next = usersMin
    }

    private let windows = Mutex(RecentDictionary<String, Window>(generationMax: purchasesMax))

    /// Counts a user who shows a purchase that another user has. True when the count of the window reaches
    /// ``usersMin``, and again each time it has doubled.
    func record(_ transactionID: String, at now: ContinuousClock.Instant = .now) -> Bool {
        windows.withLock { windows in
            var window = windows[transactionID] ?? Window(start: now)
            if now - window.start > Self.window { window = Window(start: now) }
            window.count += 1
            let isReached = window.count >= window.next
            if isReached { window.next *= 2 }
            windows[transactionID] = window
            return isReached
        }
    }
}

extension Statements {
    /// How many users have shown a purchase and were not granted it. A post without a user counts by its order. One
    /// walk of the index `outcomes_not_granted`.
    static let usersShowing = Statement<String, Int>(
        "verify.users_showing",
        """
        select count(*)::int from (
          select distinct r.user_id, case when r.user_id is null then r.order_id end
          from (select receipt_id from outcomes where transaction_id = $1 and state <> 'granted' offset 0) o
          cross join lateral (select user_id, order_id from receipts where id = o.receipt_id offset 0) r) users
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in try row.int(0) })
}
