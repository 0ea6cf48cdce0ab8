package import Foundation
package import Ledger
package import Postgres
package import Purchases

extension Statements {
    /// The moments at which days of reports begin and end, in order. An odd bucket lies in the days of one report.
    package struct BookSpan: Sendable {
        package var appID: String
        package var bounds: [Date]

        package init(appID: String, days: [AppleDays]) {
            self.appID = appID
            bounds = days.flatMap { [$0.start, $0.end] }
        }
    }

    /// Units of one product in one country on the days of one report.
    package struct BookUnits: Sendable, Equatable {
        package var product: String
        /// Three letters, as Apple writes it; empty: Apple has not said it.
        package var storefront: String
        /// The place of the report's days, from 0.
        package var report: Int
        /// Units that Apple counts too.
        package var units: Int
        /// Units of the sandbox, and of purchases that another customer shares.
        package var others: Int
    }

    /// A question for the transactions of products in countries where Apple's units and ours differ.
    package struct BookQuestion: Sendable {
        package var appID: String
        package var from: Date
        package var through: Date
        /// Pairs of a product and a storefront.
        package var pairs: [(product: String, storefront: String)]

        package init(appID: String, from: Date, through: Date, pairs: [(product: String, storefront: String)]) {
            self.appID = appID
            self.from = from
            self.through = through
            self.pairs = pairs
        }
    }

    private static let isShared =
        "coalesce(t.ownership in ('\(Transaction.sharedOwnerships.joined(separator: "', '"))'), false)"
    private static let isOther = "(t.environment <> '\(Transaction.production)' or \(isShared))"
    private static let storefront = "coalesce(t.facts ->> 'storefront', '')"
    private static let columns = """
        t.transaction_id, t.product_id, \(storefront), t.environment <> '\(Transaction.production)', \(isShared),
          coalesce(t.facts ->> 'price' = '0', false), coalesce(t.facts ->> 'reason' = '\(Transaction.renewal)', false)
        """
    private static let isAsked = """
        (t.product_id, \(storefront)) in (select p, s from unnest($4::text[], $5::text[]) as a(p, s))
        """

    /// The units that were granted, and bought on the days of reports.
    package static let unitsSold = Statement<BookSpan, BookUnits>(
        "books.units_sold",
        """
        select product_id, storefront, bucket / 2, coalesce(sum(quantity) filter (where not is_other), 0)::int8,
          coalesce(sum(quantity) filter (where is_other), 0)::int8
        from (
          select t.product_id, \(storefront) as storefront, width_bucket(t.purchased_at, $2) as bucket, g.quantity,
            \(isOther) as is_other
          from grants g join transactions t on t.transaction_id = g.transaction_id
          where g.app_id = $1 and g.granted_at >= $3) u
        where bucket % 2 = 1 group by 1, 2, 3
        """,
        // A purchase may be dated up to two hours after its grant.
        bind: { [.text($0.appID), .dates($0.bounds), .date(($0.bounds.first ?? .distantFuture) - 86_400)] },
        read: readBookUnits)

    /// The units of granted purchases that Apple took back as refunds on the days of reports.
    package static let unitsRefunded = Statement<BookSpan, BookUnits>(
        "books.units_refunded",
        """
        select product_id, storefront, bucket / 2, coalesce(sum(quantity) filter (where not is_other), 0)::int8,
          coalesce(sum(quantity) filter (where is_other), 0)::int8
        from (
          select t.product_id, \(storefront) as storefront, width_bucket(r.at, $2) as bucket, t.quantity,
            \(isOther) as is_other
          from revocations r join transactions t on t.transaction_id = r.transaction_id
          where r.app_id = $1 and r.kind = 'revoked' and r.reason = 'refunded') u
        where bucket % 2 = 1 group by 1, 2, 3
        """,
        bind: { [.text($0.appID), .dates($0.bounds)] },
        read: readBookUnits)

    private static let readBookUnits: @Sendable (borrowing RowReader) throws(PostgresError) -> BookUnits = {
        row throws(PostgresError) in
        BookUnits(
            product: try row.text(0), storefront: try row.text(1), report: try row.int(2), units: try row.int(3),
            others: try row.int(4))
    }

    package static let entriesSold = Statement<BookQuestion, BookEntry>(
        "books.entries_sold",
        """
        select \(columns), t.purchased_at, g.quantity
        from grants g join transactions t on t.transaction_id = g.transaction_id
        where g.app_id = $1 and g.granted_at >= $2 - interval '1 day' and t.purchased_at >= $2 and t.purchased_at < $3
          and \(isAsked)
        """,
        bind: bindQuestion,
        read: { row throws(PostgresError) in try readEntry(row) })

    /// Ends of granted purchases: refunds, and periods that an upgrade replaced.
    package static let entriesRefunded = Statement<BookQuestion, BookEntry>(
        "books.entries_refunded",
        """
        select \(columns), r.at, t.quantity, r.reason, exists (
            select from revocations b
            where b.transaction_id = r.transaction_id and b.ordinal > r.ordinal and b.kind = 'reinstated')
        from revocations r join transactions t on t.transaction_id = r.transaction_id
        where r.app_id = $1 and r.kind = 'revoked' and r.reason in ('refunded', 'upgraded') and r.at >= $2 and r.at < $3
          and \(isAsked)
        """,
        bind: bindQuestion,
        read: { row throws(PostgresError) in
            var entry = try readEntry(row)
            entry.side = .refunds
            entry.standing = try row.text(9) == "upgraded" ? .upgraded : .counted
            entry.isReversed = try row.bool(10)
            return entry
        })

    /// Purchases that are known here and were never granted, with why, and their refunds. A purchase of which the feed
    /// has told that it was granted is none of them: if its grant is missing, nothing explains that.
    package static let entriesNotGranted = Statement<BookQuestion, [BookEntry]>(
        "books.entries_not_granted",
        """
        select \(columns), t.purchased_at, t.quantity, case
            when exists (select from imported_grants where transaction_id = t.transaction_id) then 'imported'
            else o.state end, o.reason,
          case when not t.facts ->> 'revocationType' = any($6) is true
            and t.facts ->> 'isUpgraded' is distinct from 'true' then t.revoked_at end
        from transactions t
        left join lateral (
          select state, reason from outcomes where transaction_id = t.transaction_id and state <> 'granted'
          order by state = 'already_granted', decided_at desc, receipt_id limit 1) o on true
        where t.app_id = $1
          and (t.purchased_at >= $2 and t.purchased_at < $3 or t.revoked_at >= $2 and t.revoked_at < $3)
          and \(isAsked)
          and not exists (select from grants where transaction_id = t.transaction_id)
          and not exists (
            select from events where transaction_id = t.transaction_id and type = '\(EventType.purchaseGranted.rawValue)')
        """,
        bind: { bindQuestion($0) + [.texts(Revocation.withdrawals)] },
        read: { row throws(PostgresError) in
            var entry = try readEntry(row)
            let reason = try row.optionalText(10).flatMap(Reason.init(rawValue:))
            switch (try row.optionalText(9), reason) {
            case ("imported", _), (_, .imported): entry.standing = .imported
            case (_, .beforeCutover), (_, .historical): entry.standing = .beforeCutover
            case ("held", _), ("open", _): entry.standing = .undecided
            case ("rejected", _): entry.standing = .rejected
            default: return []
            }
            guard let revokedAt = try row.optionalDate(11) else { return [entry] }
            var refund = entry
            refund.side = .refunds
            refund.at = revokedAt
            return [entry, refund]
        })

    /// Purchases that the former system gave, and of which Apple has told nothing here.
    package static let entriesImported = Statement<BookQuestion, BookEntry>(
        "books.entries_imported",
        """
        select i.transaction_id, i.product_id, '', i.environment <> '\(Transaction.production)', false, false, false,
          i.purchased_at, 1
        from imported_grants i
        where i.app_id = $1 and i.purchased_at >= $2 and i.purchased_at < $3 and i.product_id = any($4)
          and not exists (select from transactions where transaction_id = i.transaction_id)
        """,
        bind: {
            [.text($0.appID), .date($0.from), .date($0.through), .texts(Array(Set($0.pairs.map(\.product))).sorted())]
        },
        read: { row throws(PostgresError) in
            var entry = try readEntry(row)
            entry.standing = .imported
            return entry
        })

    /// When an app went live here, or first started; no row: it never did.
    package static let liveSince = Statement<String, Date>(
        "books.live_since",
        "select coalesce(live_since, first_started_at) from apps where app_id = $1",
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in try row.date(0) })

    private static let bindQuestion: @Sendable (BookQuestion) -> [Value] = {
        [
            .text($0.appID), .date($0.from), .date($0.through), .texts($0.pairs.map(\.product)),
            .texts($0.pairs.map(\.storefront)),
        ]
    }

    private static func readEntry(_ row: borrowing RowReader) throws(PostgresError) -> BookEntry {
        BookEntry(
            id: try row.text(0), product: try row.text(1), country: Territory.twoLetters(try row.text(2)),
            at: try row.date(7), units: try row.int(8), isSandbox: try row.bool(3), isShared: try row.bool(4),
            isFree: try row.bool(5), isRenewal: try row.bool(6))
    }
}
