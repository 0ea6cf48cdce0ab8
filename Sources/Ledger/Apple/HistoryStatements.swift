import Encoding
package import Foundation
package import Postgres
package import Purchases

extension Statements {
    /// The columns of `insert into transactions as t`. Where older facts are stored, ``onOlderFacts`` merges them with
    /// Apple's newest.
    static let factColumns =
        "transaction_id, app_id, environment, original_transaction_id, product_id, kind, quantity, purchased_at, "
        + "expires_at, revoked_at, app_account_token, ownership, customer_id, signed_at, facts"
    /// The columns that `RowReader.transaction(from:)` reads.
    static let storedFacts =
        "transaction_id, original_transaction_id, product_id, kind, environment, quantity, purchased_at, "
        + "expires_at, revoked_at, app_account_token, ownership, customer_id, signed_at, facts, "
        + "facts ->> 'reason', (facts ->> 'offerType')::int, facts ->> 'isUpgraded' = 'true', "
        + "(facts ->> 'revocationReason')::int, facts ->> 'revocationType', (facts ->> 'revocationPercentage')::int, "
        + "facts ->> 'previousOriginalTransactionId'"
    /// SQL: of two statements of Apple's the later one counts. A field that the later statement's source cannot show
    /// keeps its value: app receipts show neither an owner nor why a purchase ended. But the earlier statement's
    /// details of an end go with that end. An app receipt tells an end to the second. Of two statements of one moment
    /// the statement with an end counts.
    ///
    /// The row is locked also where it stays as it is.
    static let onOlderFacts = """
        on conflict (transaction_id) do update set
            revoked_at = greatest(excluded.revoked_at, case when \(endIsSame) then t.revoked_at end),
            facts = case when \(endIsSame) then t.facts else t.facts - '{\(membersOfEnd)}'::text[] end || excluded.facts,
            expires_at = coalesce(excluded.expires_at, t.expires_at), signed_at = excluded.signed_at,
            ownership = coalesce(excluded.ownership, t.ownership),
            app_account_token = coalesce(excluded.app_account_token, t.app_account_token),
            kind = coalesce(excluded.kind, t.kind), customer_id = coalesce(excluded.customer_id, t.customer_id)
            where (excluded.signed_at > coalesce(t.signed_at, '-infinity')
                or excluded.signed_at = t.signed_at and excluded.revoked_at > coalesce(t.revoked_at, '-infinity'))
              and t.app_id = excluded.app_id and t.environment = excluded.environment
        """
    private static let endIsSame =
        "date_trunc('second', excluded.revoked_at) is not distinct from date_trunc('second', t.revoked_at)"
    /// `reason` too: it says that the statement would have named an upgrade (``Transaction/mayHaveSuccessor``).
    private static let membersOfEnd = "revocationReason,revocationType,revocationPercentage,isUpgraded,reason"

    /// The columns of a batch that ``storingFacts(from:)`` reads.
    static func columnsOfFacts<Row: Sendable>(
        _ transaction: @escaping @Sendable (Row) -> Transaction?
    ) -> [Column<Row>] {
        [
            .text("transaction") { transaction($0)?.id },
            .text("environment") { transaction($0)?.environment }, .text("original") { transaction($0)?.originalID },
            .text("product") { transaction($0)?.productID }, .text("kind") { transaction($0)?.kind?.rawValue },
            .int32("quantity") { transaction($0)?.quantity }, .date("purchased_at") { transaction($0)?.purchasedAt },
            .date("expires_at") { transaction($0)?.expiresAt }, .date("revoked_at") { transaction($0)?.revokedAt },
            .text("token") { transaction($0)?.appAccountToken?.text },
            .text("ownership") { transaction($0)?.ownership },
            .text("customer") { transaction($0)?.customerID }, .date("signed_at") { transaction($0)?.signedAt },
            .json("facts") { transaction($0)?.facts },
        ]
    }

    /// SQL: stores Apple's facts, of each purchase the newest of the batch, in the order of their keys. A purchase that a
    /// person gave apart from one of another environment has its id behind its environment
    /// (``Transaction/idBehindEnvironment``).
    ///
    /// - Parameter rows: a `from` clause with the columns of ``columnsOfFacts(_:)`` and `app`, and its `where`.
    static func storingFacts(from rows: String) -> String {
        """
        insert into transactions as t (\(factColumns))
        select distinct on (stored) case when (select true from support_decisions limit 1)
              and (select true from support_decisions
                where app_id = app and transaction_id = environment || '/' || transaction)
            then environment || '/' || transaction else transaction end as stored, app, environment, original, product,
          kind, quantity, purchased_at, expires_at, revoked_at, token::uuid, ownership, customer, signed_at, facts
        from \(rows)
        order by stored, signed_at desc nulls last, revoked_at desc nulls last
        \(onOlderFacts)
        """
    }

    package struct ListedQuestion: Sendable {
        package let receiptID: UUID
        package let appID: String
        /// The transactions that the receipt lists, of one environment, each id once.
        package let transactions: [Transaction]

        package init(receiptID: UUID, appID: String, transactions: [Transaction]) {
            self.receiptID = receiptID
            self.appID = appID
            self.transactions = transactions
        }
    }

    package typealias KnownPurchase = (stored: Transaction?, isGranted: Bool, isOnTrust: Bool, before: Decision?)

    /// What is stored about every purchase that a receipt lists: one row each, in order. Key look-ups only. A purchase
    /// that this receipt was given on trust does not count as granted: Apple has yet to be asked.
    package static let knownPurchases = Statement<ListedQuestion, KnownPurchase>(
        "history.known_purchases",
        """
        select coalesce(g.transaction_id is not null and p.waits is not true or imported.user_id is not null, false),
          p.waits, o.state, o.reason, t.*
        from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::text[]) with ordinality
          as i(id, purchase_key, environment, original, purchased_at, period_key, n)
        left join lateral (\(importedGrant("i"))) imported on true
        left join lateral (
          (select transaction_id from grants where transaction_id = i.id)
          union all (select transaction_id from grants where purchase_key = i.purchase_key)
          union all (select transaction_id from grants where period_key = i.period_key) limit 1) g on true
        left join lateral (select \(waitsForAnswer) as waits from provisional_grants p
          where p.transaction_id = g.transaction_id and p.receipt_id = $1 offset 0) p on true
        left join lateral (select state, reason from outcomes
          where receipt_id = $1 and transaction_id = i.id offset 0) o on true
        left join lateral (
          select \(storedFacts)
          from transactions where transaction_id = i.id and app_id = $2 and environment = i.environment offset 0) t
          on true
        order by i.n
        """,
        bind: { question in
            [
                .uuid(question.receiptID), .text(question.appID), .texts(question.transactions.map(\.id)),
                .texts(question.transactions.map(\.purchaseKey)), .texts(question.transactions.map(\.environment)),
                .texts(question.transactions.map(\.originalID)), .dates(question.transactions.map(\.purchasedAt)),
                .texts(question.transactions.map(\.periodKey)),
            ]
        },
        read: { row throws(PostgresError) in
            (
                stored: try row.transaction(from: 4), isGranted: try row.bool(0),
                isOnTrust: try row.optionalBool(1) ?? false, before: try row.waitingDecision(2, 3)
            )
        })

    /// Apple's newest facts about a transaction of an app. No row: none are stored.
    package static let storedTransaction = Statement<(appID: String, id: String), Transaction>(
        "history.stored_transaction",
        "select \(storedFacts) from (select * from transactions where transaction_id = $2 offset 0) t where app_id = $1",
        bind: { [.text($0.appID), .text($0.id)] },
        read: { row throws(PostgresError) in
            guard let transaction = try row.transaction(from: 0) else { throw row.undecodable(0) }
            return transaction
        })

    package struct Walk: Sendable, Hashable {
        package let appID: String
        package let environment: String
        /// Apple's appTransactionId, or an original transaction id where Apple does not give one.
        package let customer: String

        package init(appID: String, environment: String, customer: String) {
            self.appID = appID
            self.environment = environment
            self.customer = customer
        }

        fileprivate var values: [Value] { [.text(appID), .text(environment), .text(customer)] }
    }

    package struct WalkClaim: Sendable {
        package let walk: Walk
        /// The id that Apple is asked with, if the walk begins now.
        package let askedID: String
        /// How long no other reader may read on. If a reader dies, the next one goes on after that.
        package let lease: Duration
        /// The shortest time between the beginnings of two walks.
        package let interval: Duration

        package init(walk: Walk, askedID: String, lease: Duration, interval: Duration) {
            self.walk = walk
            self.askedID = askedID
            self.lease = lease
            self.interval = interval
        }
    }

    package enum WalkStart: Sendable, Equatable {
        /// The caller reads on behind this revision, or from the first page. The caller needs `reader` to store pages.
        case claimed(askedID: String, revision: String?, begunAt: Date, reader: Int)
        /// Another reader reads, and has until then to store the next page.
        case busy(until: Date)
        /// A walk that began within the interval has read all pages.
        case ended(begunAt: Date)
    }

    /// Begins a customer's walk, or goes on with one that was left unfinished: over all workers one reader at a time
    /// and one walk per interval. No row: another reader began it a moment ago.
    package static let claimWalk = Statement<WalkClaim, WalkStart>(
        "history.claim_walk",
        """
        with claimed as (
          insert into history_walks as w (app_id, environment, customer, asked_id, busy_until)
          values ($1, $2, $3, $4, now() + make_interval(secs => $5))
          on conflict (app_id, environment, customer) do update set
            asked_id = case when \(isOver) then excluded.asked_id else w.asked_id end,
            revision = case when \(isOver) then null else w.revision end,
            begun_at = case when \(isOver) then now() else w.begun_at end,
            ended_at = null, busy_until = excluded.busy_until, reader = w.reader + 1
          where w.busy_until <= now() and (w.ended_at is null or \(isOver))
          returning asked_id, revision, begun_at, reader)
        select asked_id, revision, begun_at, null, reader from claimed
        union all
        select null, null, begun_at, case when ended_at is null then busy_until end, null from history_walks
        where app_id = $1 and environment = $2 and customer = $3 and not exists (select from claimed)
        """,
        bind: { claim in
            claim.walk.values + [
                .text(claim.askedID), .double(claim.lease.inSeconds), .double(claim.interval.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in
            let begunAt = try row.date(2)
            if let askedID = try row.optionalText(0) {
                return .claimed(
                    askedID: askedID, revision: try row.optionalText(1), begunAt: begunAt, reader: try row.int(4))
            }
            return try row.optionalDate(3).map { .busy(until: $0) } ?? .ended(begunAt: begunAt)
        })
    private static let isOver = "w.begun_at <= now() - make_interval(secs => $6)"

    /// What is stored of the purchases of one chain of the walk's app and environment, in the order they were bought.
    package static let chainFacts = Statement<(walk: Walk, originalID: String), Transaction>(
        "history.chain_facts",
        """
        select \(storedFacts) from transactions
        where original_transaction_id = $3 and app_id = $1 and environment = $2
        order by purchased_at, transaction_id
        """,
        bind: { [.text($0.walk.appID), .text($0.walk.environment), .text($0.originalID)] },
        read: { row throws(PostgresError) in
            guard let transaction = try row.transaction(from: 0) else { throw row.undecodable(0) }
            return transaction
        })

    package struct WalkPage: Sendable {
        package let walk: Walk
        /// The reader that read the page, as the claim said.
        package let reader: Int
        package let transactions: [Transaction]
        /// The revision behind this page; nil on the last page.
        package let revision: String?
        /// How long the reader may take for the next page; zero: any reader may go on.
        package let lease: Duration

        package init(walk: Walk, reader: Int, transactions: [Transaction], revision: String?, lease: Duration) {
            self.walk = walk
            self.reader = reader
            self.transactions = transactions
            self.revision = revision
            self.lease = lease
        }
    }

    /// Stores the facts of a page and the progress of the walk in one statement, so that a page counts as read only
    /// with its facts. The statement stores Apple's facts in any case. No row: another reader has the walk by now, and
    /// the progress stays as it is.
    package static let storePage = Statement<WalkPage, Int>(
        "history.store_page",
        """
        with known as (
          insert into transactions as t (\(factColumns))
          select distinct on (id) id, $1, $2, original, product, kind, quantity, purchased_at, expires_at, revoked_at,
            token::uuid, ownership, customer, signed_at, facts
          from unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::int[], $9::timestamptz[], $10::timestamptz[],
              $11::timestamptz[], $12::text[], $13::text[], $14::text[], $15::timestamptz[], $16::jsonb[])
            as i(id, original, product, kind, quantity, purchased_at, expires_at, revoked_at, token, ownership, customer,
              signed_at, facts)
          order by id, signed_at desc nulls last, revoked_at desc nulls last
          \(onOlderFacts))
        update history_walks set revision = $17, busy_until = now() + make_interval(secs => $18),
          ended_at = case when $17::text is null then now() end
        where app_id = $1 and environment = $2 and customer = $3 and reader = $19
        returning reader
        """,
        bind: { page in
            let all = page.transactions
            return page.walk.values + [
                .texts(all.map(\.id)), .texts(all.map(\.originalID)), .texts(all.map(\.productID)),
                .texts(all.map(\.kind?.rawValue)), .int32s(all.map(\.quantity)), .dates(all.map(\.purchasedAt)),
                .dates(all.map(\.expiresAt)), .dates(all.map(\.revokedAt)),
                .texts(all.map(\.appAccountToken?.text)),
                .texts(all.map(\.ownership)), .texts(all.map(\.customerID)), .dates(all.map(\.signedAt)),
                .jsons(all.map(\.facts)), .text(page.revision), .double(page.lease.inSeconds), .int(page.reader),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })
}

extension RowReader {
    /// `Statements.storedFacts` from here on; nil where there is no such row.
    func transaction(from column: Int) throws(PostgresError) -> Transaction? {
        guard let id = try optionalText(column) else { return nil }
        return Transaction(
            id: id, originalID: try text(column + 1), previousOriginalID: try optionalText(column + 20),
            productID: try text(column + 2),
            kind: try optionalText(column + 3).flatMap(Transaction.Kind.init(rawValue:)),
            environment: try text(column + 4), quantity: try int(column + 5), purchasedAt: try date(column + 6),
            expiresAt: try optionalDate(column + 7), revokedAt: try optionalDate(column + 8),
            revocation: Revocation(
                reason: try optionalInt(column + 17), type: try optionalText(column + 18),
                percentage: try optionalInt(column + 19)),
            isUpgraded: try optionalBool(column + 16) ?? false, appAccountToken: try optionalUUID(column + 9),
            ownership: try optionalText(column + 10),
            customerID: try optionalText(column + 11), signedAt: try optionalDate(column + 12),
            reason: try optionalText(column + 14), offerType: try optionalInt(column + 15),
            facts: try json(column + 13))
    }

    /// The decision of an outcome that gave nothing; nil for any other outcome, and where there is no outcome.
    func waitingDecision(_ state: Int, _ reason: Int) throws(PostgresError) -> Decision? {
        guard let reason = try optionalText(reason).flatMap(Reason.init(rawValue:)) else { return nil }
        return switch try text(state) {
        case "held": .held(reason)
        case "open": .open(reason)
        case "rejected": .rejected(reason)
        default: nil
        }
    }
}
