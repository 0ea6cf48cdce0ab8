import Encoding
import Foundation
import Postgres
import Purchases

// What a settle transaction locks and reads, in its order.
extension Statements {
    /// A receipt that a settle transaction has locked.
    struct TakenReceipt: Sendable {
        let id: UUID
        /// When it was posted so that a claim in it counts.
        let claimedAt: Date
        /// The database's clock.
        let now: Date
        /// As ``StoredReceipt/wakes``.
        let wakes: Int
    }

    /// Columns of a row that say whether its verdict still counts.
    private static let guardColumns: [Column<VerdictRow>] = [
        .uuid("receipt") { $0.verdict.receiptID }, .int32("attempt") { $0.verdict.attempt },
        .int32("lines") { $0.verdict.lines },
    ]

    /// SQL: a CTE of the receipts whose verdicts count no more: they are about a user who became part of another
    /// account since it was matched, or was erased.
    private static func outdated(_ rows: BatchRows) -> String {
        """
        outdated as (
          select i.receipt from \(rows.rows(as: "i", "receipt", "app", "usr", "owner"))
            cross join lateral (select 1 from merges where app_id = i.app and user_id = any(array[i.usr, i.owner])
              limit 1) m
          where (select true from merges limit 1)
          union all
          select i.receipt from \(rows.rows(as: "i", "receipt", "app", "usr", "owner", "judged_at"))
            cross join lateral (select 1 from erasures
              where app_id = i.app and erased_at > i.judged_at and user_sha256 = any(array[
                  sha256(convert_to(i.usr, 'UTF8')), sha256(convert_to(i.owner, 'UTF8'))]) limit 1) e
          where (select true from erasures
            where erased_at > (select min(judged_at) from \(rows.rows(as: "i", "judged_at"))) limit 1))
        """
    }

    /// Locks the receipts that are as they were when they were judged. A receipt that another process has locked is
    /// left out, so that nobody waits for a neighbour.
    ///
    /// An outdated verdict is left out too: the row is read again, and names the user by the account.
    static let takeReceipts = Statement<[VerdictRow], TakenReceipt>(
        "settle.take_receipts",
        guardColumns + [
            .text("app") { $0.verdict.appID }, .text("usr") { $0.poster }, .text("owner") { $0.match?.userID },
            .date("judged_at") { $0.verdict.claim.judgedAt },
        ],
        sql: { rows in
            """
            with \(outdated(rows))
            select v.receipt, r.claimed_at, now(), r.wakes
            from (select distinct receipt, attempt, lines from \(rows.rows(as: "i", "receipt", "attempt", "lines"))) v
              cross join lateral (
                select coalesce(claimed_at, received_at) as claimed_at, wakes from receipts
                where id = v.receipt and settled_at is null and attempt = v.attempt and lines = v.lines
                for no key update skip locked) r
            where (v.receipt in (select receipt from outdated)) is not true
            """
        },
        read: { row throws(PostgresError) in
            TakenReceipt(
                id: try row.uuid(0), claimedAt: try row.date(1), now: try row.date(2), wakes: try row.int(3))
        })

    /// Stores Apple's facts of the batch's purchases, of each the newest, where none newer are stored. What a receipt
    /// says of a purchase is no news where facts of it are stored.
    ///
    /// Comes before the gates: the lock on the facts lets two transactions about one purchase follow one another, so
    /// that the gate of the second one sees a refund that the first one has stored. A purchase that is to be given
    /// locks its facts whether or not it brings newer ones.
    static let storeFacts = Statement<[VerdictRow], Void>(
        "settle.store_facts",
        guardColumns + [.text("app") { $0.verdict.appID }, .bool("gives") { $0.asked.gives }]
            + columnsOfFacts { $0.transaction },
        sql: { rows in
            storingFacts(
                from: """
                    \(rows.rows(as: "i")) \(lockedReceipt)
                    where (signed_at is not null or gives
                        or (select true from transactions t where t.transaction_id = i.transaction) is null)
                    """)
        })

    /// SQL: a join of a row `i` with its receipt, if the receipt is as it was and no other process has it. The
    /// transaction has locked the receipts already.
    private static let lockedReceipt = """
        cross join lateral (
          select 1 from receipts
          where id = i.receipt and settled_at is null and attempt = i.attempt and lines = i.lines
          for no key update skip locked) r
        """

    /// A place that a verdict needs, for the owner of its purchase.
    struct PlaceOfVerdict: Sendable {
        let verdict: Verdict
        let owner: String?
        let place: LimitPlace
    }

    /// A limit in which a purchase found no place.
    struct LackingPlace: Sendable {
        let receiptID: UUID
        let transactionID: String
        let limit: LimitPlace.Limit
    }

    /// Takes the places that the batch's purchases need, and returns the places that there were not. In key order in
    /// every statement, users' and customers' before the app's, and all before bonuses and grants. A purchase of which
    /// nothing is left to give takes none.
    static let takeLimitPlaces = Statement<[PlaceOfVerdict], LackingPlace>(
        "settle.take_limit_places",
        [
            .uuid("receipt") { $0.verdict.receiptID }, .int32("attempt") { $0.verdict.attempt },
            .int32("lines") { $0.verdict.lines }, .text("usr") { $0.verdict.claim.userID },
            .text("owner") { $0.owner }, .date("judged_at") { $0.verdict.claim.judgedAt },
            .text("transaction") { $0.place.transactionID },
            .text("purchase_key") { $0.place.purchaseKey }, .text("app") { $0.verdict.appID },
            .text("name") { $0.place.limit.rawValue }, .text("holder") { $0.place.holder },
            .text("taken_for") { $0.place.takenFor }, .int32("places") { $0.place.places },
        ],
        sql: { places in
            """
            with \(outdated(places)),
            asked as materialized (
              select i.*, case when i.name in ('make_up_customer', 'item_ever') then '-infinity'
                  when i.name = 'item_month'
                    then (date_trunc('month', now() at time zone 'UTC') + interval '1 month' - interval '1 day')::date
                  else (now() at time zone 'UTC')::date end as day
              from \(places.rows(
                as: "i", "receipt", "attempt", "lines", "transaction", "purchase_key", "app", "name", "holder",
                "taken_for", "places")) \(lockedReceipt)
              where (i.receipt in (select receipt from outdated)) is not true
                and (select true from grants where transaction_id = i.transaction) is null
                and (select true from grants where purchase_key = i.purchase_key) is null
                and (select \(takenBack("t")) from transactions t where t.transaction_id = i.transaction) is null),
            narrow as materialized (
              select receipt, transaction, name, take_limit_place(app, name, holder, day, taken_for, places) as has
              from (select * from asked where name <> 'sandbox_app'
                order by name, app, holder, taken_for, receipt offset 0) a),
            wide as materialized (
              select receipt, transaction, name, take_limit_place(app, name, holder, day, taken_for, places) as has
              from (select * from asked where name = 'sandbox_app'
                  and ((receipt, transaction) in (
                    select receipt, transaction from narrow where not has and not starts_with(name, 'item_'))) is not true
                order by app, taken_for, receipt offset 0) a)
            select receipt, transaction, name from (select * from narrow union all select * from wide) taken where not has
            """
        },
        read: { row throws(PostgresError) in
            LackingPlace(receiptID: try row.uuid(0), transactionID: try row.text(1), limit: try row.word(2))
        })

    /// The gates of purchases that are to be given, or to be rejected for their end, each with the row's place in the
    /// batch, from 0; a purchase without a row has nothing at its gate.
    ///
    /// By the purchase's id alone: the index of refunds is empty to statistics of a time without any, and would be
    /// walked. An end that the proof shows itself was judged.
    static let readGates = Statement<[VerdictRow], (row: Int, gate: Gate)>(
        "settle.read_gates",
        [
            .uuid("receipt") { $0.verdict.receiptID }, .text("app") { $0.verdict.appID },
            .text("transaction") { $0.transactionID }, .bool("is_provisional") { $0.asked.isProvisional },
            .text("environment") { $0.transaction?.environment }, .text("original") { $0.transaction?.originalID },
            .text("purchase_key") { $0.transaction?.purchaseKey },
            .date("purchased_at") { $0.transaction?.purchasedAt }, .date("revoked_at") { $0.transaction?.revokedAt },
            .date("signed_at") { $0.transaction?.signedAt }, .bool("gives") { $0.asked.gives },
        ],
        sql: { rows in
            """
            select i.n - 1, case when i.gives then k.word end, imported.user_id, imported.app_id, imported.environment,
              place.is_taken, i.transaction, not i.gives and k.stands
            from \(rows.rows(as: "i", ordinality: "n"))
            left join lateral (
              select w.word, w.word is null and i.revoked_at is not null as stands from (
                select \(takenBack("t")) as word from (\(factsOfEnd) where transaction_id = i.transaction offset 0) t
                where t.app_id = i.app and t.environment = i.environment and t.revoked_at is distinct from i.revoked_at
                  and t.signed_at > coalesce(i.signed_at, '-infinity') offset 0) w) k on true
            left join lateral (\(importedGrant("i", id: "transaction"))) imported on i.gives
            left join lateral (
              select p.confirmed_at is null and p.revoked_at is null and not exists (select from outcomes o
                  where o.receipt_id = i.receipt and o.transaction_id = i.transaction
                    and o.state in ('held', 'rejected')) as is_taken
              from provisional_grants p
              where i.is_provisional and p.transaction_id = i.transaction and p.receipt_id = i.receipt
              offset 0) place on true
            where k.word is not null and i.gives or k.stands and not i.gives or imported.user_id is not null
              or place.is_taken
            """
        },
        read: { row throws(PostgresError) in
            var gate = Gate()
            gate.standsAgain = try row.optionalBool(7) ?? false
            gate.takenBack = try row.optionalText(1).flatMap(Reason.init(rawValue:))
            if let userID = try row.optionalText(2) {
                gate.imported = Standing.Holding(
                    receiptID: nil, transactionID: try row.text(6), userID: userID, appID: try row.text(3),
                    environment: try row.text(4), source: nil)
            }
            gate.hasTrustPlace = try row.optionalBool(5) ?? false
            return (row: try row.int(0), gate: gate)
        })

    /// SQL: the grants of the purchase of a row `i`, under its id or one of its keys: one or none, as often as it is
    /// found.
    private static func grantsOfPurchase(_ columns: String) -> String {
        ["transaction_id = i.transaction", "purchase_key = i.purchase_key", "period_key = i.period_key"]
            .map { "(select \(columns) from grants where \($0))" }.joined(separator: " union all ")
    }

    private static let holdingColumns =
        "receipt_id, transaction_id, user_id, app_id, environment, binding_source, order_id"

    /// Who has the purchases of these rows, here or by the former system, each with the row's place, from 0; no row for
    /// a purchase that nobody has.
    static let readStandings = Statement<[VerdictRow], (row: Int, standing: Standing)>(
        "settle.read_standings",
        [
            .uuid("receipt") { $0.verdict.receiptID }, .text("transaction") { $0.transactionID },
            .text("purchase_key") { $0.transaction?.purchaseKey }, .text("period_key") { $0.transaction?.periodKey },
            .text("app") { $0.verdict.appID }, .text("usr") { $0.poster }, .text("owner") { $0.owner },
            .bool("may_be_consumable") { $0.entry?.mayBeConsumable ?? false },
            .text("environment") { $0.transaction?.environment }, .text("original") { $0.transaction?.originalID },
            .date("purchased_at") { $0.transaction?.purchasedAt },
        ],
        sql: { rows in
            """
            select i.n - 1, g.receipt_id, g.transaction_id, \(person("g.user_id", of: "g.app_id")), g.app_id,
              g.environment, g.binding_source, g.order_id, bought.at, h.user_id, h.binding_source, p.is_open,
              p.event_id, told.safe_at, poster.user_id,
              (i.usr, i.owner) is distinct from (\(person("i.usr", of: "i.app")), \(person("i.owner", of: "i.app"))),
              bought.kind
            from \(rows.rows(as: "i", ordinality: "n"))
            cross join lateral (
              \(grantsOfPurchase(holdingColumns))
              union all (select null, i.transaction, user_id, app_id, environment, null, null
                from (\(importedGrant("i", id: "transaction"))) imported)
              limit 1) g
            -- Whose it is since, by a move or a person.
            left join lateral (
              select \(person("o.user_id", of: "o.app_id")) as user_id, binding_source from ownerships o
              where o.transaction_id = g.transaction_id and o.app_id = g.app_id and o.environment = g.environment
                and o.move > 0 order by o.move desc limit 1) h on true
            left join lateral (select purchased_at as at, kind from transactions
              where i.may_be_consumable and g.transaction_id <> i.transaction and transaction_id = g.transaction_id
              offset 0) bought on true
            -- By their keys alone: the index of the unconfirmed would be walked for each.
            left join lateral (
              select \(waitsForAnswer) as is_open, event_id from provisional_grants p
              where g.transaction_id = i.transaction and g.receipt_id = i.receipt and p.transaction_id = i.transaction
                and p.receipt_id = i.receipt offset 0) p on true
            left join lateral (
              select o.safe_at from (
                  select receipt_id, safe_at from outcomes
                  where transaction_id = i.transaction and state <> 'granted' offset 0) o
                cross join lateral (select from receipts where id = o.receipt_id and user_id = i.usr offset 0) own
              where i.usr is distinct from coalesce(h.user_id, g.user_id) and o.safe_at is not null
              order by o.safe_at limit 1) told on true
            left join lateral (select user_id from receipts
              where g.binding_source = '\(BindingSource.record.rawValue)' and id = g.receipt_id offset 0) poster on true
            """
        },
        read: { row throws(PostgresError) in
            var standing = Standing()
            standing.holding = Standing.Holding(
                receiptID: try row.optionalUUID(1), transactionID: try row.text(2), userID: try row.text(3),
                appID: try row.text(4), environment: try row.text(5),
                source: try row.optionalText(6).flatMap(BindingSource.init(rawValue:)),
                orderID: try row.optionalUUID(7),
                purchasedAt: try row.optionalDate(8),
                kind: try row.optionalText(16).flatMap(Transaction.Kind.init(rawValue:)))
            if let userID = try row.optionalText(9) {
                standing.moved = (
                    userID: userID, source: try row.optionalText(10).flatMap(BindingSource.init(rawValue:))
                )
            }
            standing.isOnTrust = try row.optionalBool(11) ?? false
            standing.confirmationID = try row.optionalUUID(12)
            standing.keepsCopyUntil = try row.optionalDate(13)
            standing.granteeReceiptPoster = try row.optionalText(14)
            standing.isOutdated = try row.bool(15)
            return (row: try row.int(0), standing: standing)
        })

    /// The chains of purchases that another user has and the policy may move, each with the row's place, from 0.
    static let readClaimedChains = Statement<[VerdictRow], (row: Int, chain: Standing.Chain)>(
        "settle.read_claimed_chains",
        [
            .text("transaction") { $0.transactionID }, .text("purchase_key") { $0.transaction?.purchaseKey },
            .text("period_key") { $0.transaction?.periodKey },
        ],
        sql: { rows in
            """
            select i.n - 1, t.original_transaction_id, t.purchased_at,
              \(person("coalesce(o.user_id, g.user_id)", of: "g.app_id")), coalesce(o.move, 0), o.decided_at, m.of_day,
              m.of_month, exists (
                select from transactions later
                  cross join lateral (select 1 from grants where transaction_id = later.transaction_id offset 0) k
                where later.original_transaction_id = t.original_transaction_id and later.app_id = g.app_id
                  and later.environment = g.environment and later.purchased_at > t.purchased_at)
            from \(rows.rows(as: "i", ordinality: "n"))
            cross join lateral (
              \(grantsOfPurchase("transaction_id, user_id, app_id, environment"))
              limit 1) g
            cross join lateral (
              select original_transaction_id, purchased_at from transactions
              where transaction_id = g.transaction_id and revoked_at is null offset 0) t
            left join lateral (
              select user_id, move, decided_at from ownerships
              where transaction_id = g.transaction_id and app_id = g.app_id and environment = g.environment and move > 0
              order by move desc limit 1) o on true
            cross join lateral (
              select count(*) filter (where decided_at > now() - interval '24 hours') as of_day, count(*) as of_month
              from ownerships
              where app_id = g.app_id and environment = g.environment
                and original_transaction_id = t.original_transaction_id and move > 0
                and decided_at > now() - interval '30 days') m
            """
        },
        read: { row throws(PostgresError) in
            (
                row: try row.int(0),
                chain: Standing.Chain(
                    originalID: try row.text(1), purchasedAt: try row.date(2), holderID: try row.text(3),
                    move: try row.int(4), movedAt: try row.optionalDate(5), movesOfDay: try row.int(6),
                    movesOfMonth: try row.int(7), hasLaterGrant: try row.bool(8))
            )
        })

    /// What was given on trust in these receipts and is not answered by Apple.
    static let readTrust = Statement<[UUID], (receiptID: UUID, transactionID: String)>(
        "settle.read_trust",
        """
        select p.receipt_id, p.transaction_id
        from unnest($1::uuid[]) as i(id) cross join lateral (
          select * from provisional_grants where receipt_id = i.id offset 0) p
        where (select true from provisional_grants limit 1) and \(waitsForAnswer)
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in (receiptID: try row.uuid(0), transactionID: try row.text(1)) })

    /// What earlier verdicts of these receipts gave, or found given.
    static let readGiven = Statement<[UUID], (receiptID: UUID, state: PurchaseOutcome.State, reason: String?)>(
        "settle.read_given",
        """
        select o.receipt_id, o.state, o.reason
        from unnest($1::uuid[]) as i(id) cross join lateral (
          select receipt_id, state, reason from outcomes where receipt_id = i.id offset 0) o
        where o.state in ('granted', 'already_granted')
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            (receiptID: try row.uuid(0), state: try row.word(1), reason: try row.optionalText(2))
        })

    static let takingBack = Reason.takingBack.map { "'\($0.rawValue)'" }.joined(separator: ", ")
}
