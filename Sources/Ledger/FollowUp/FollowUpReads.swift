import Encoding
import Foundation
import Postgres
import Purchases

// The statements by which a follow-up locks and reads, in their order.
extension Statements {
    /// SQL: the chains of the oldest marks, each once with its marks, in the order of its oldest one. Many marks are
    /// read and few chains taken, because one chain may have hundreds while another follow-up has locked it.
    private static let markedChains = """
        select app_id, environment, original_transaction_id, min(id) as id, array_agg(id) as ids
        from (select * from chain_marks order by id limit \(FollowUpTransaction.marksMax)) m
        group by 1, 2, 3 order by min(id) limit \(FollowUpTransaction.markedChainsMax)
        """

    /// Enters the chains of the oldest marks that have no row yet, in the order of their keys.
    static let enterChains = Statement<Void, Void>(
        "followup.enter_chains",
        """
        insert into chains (app_id, environment, original_transaction_id)
        select m.app_id, m.environment, m.original_transaction_id
        from (\(markedChains)) m
          left join lateral (select true as is_known from chains
            where app_id = m.app_id and environment = m.environment
              and original_transaction_id = m.original_transaction_id offset 0) c on true
        where c.is_known is null
        order by 1, 2, 3
        on conflict do nothing
        """)

    /// A chain that a follow-up has locked.
    struct TakenChain: Sendable {
        /// Without purchases.
        let facts: ChainFacts
        /// Marks that this statement saw. Every later statement sees the facts of these marks.
        let marks: [Int]
        /// Seconds since the chain became due; 0 where only marks brought the chain.
        let lag: Double
    }

    /// SQL: CTEs that lock chains which are marked or due, in turn (`taken`), each with its marks. A chain that another
    /// follow-up has locked is left out.
    private static func chainsInTurn(_ limit: String) -> String {
        """
        wanted as materialized (
          select app_id, environment, original_transaction_id, min(n) as n, max(due_at) as due_at, max(ids) as marks
          from (
            select app_id, environment, original_transaction_id, row_number() over (order by id) as n,
              null::timestamptz as due_at, ids
            from (\(markedChains)) m
            union all
            select app_id, environment, original_transaction_id, row_number() over (order by due_at), due_at, null
            from (select * from chains where due_at <= now() order by due_at limit \(limit)) d) w
          group by 1, 2, 3),
        taken as materialized (
          select c.*, w.due_at as was_due_at, coalesce(w.marks, '{}') as marks
          from (select * from wanted order by n, app_id, environment, original_transaction_id offset 0) w
          cross join lateral (
            select * from chains where app_id = w.app_id and environment = w.environment
              and original_transaction_id = w.original_transaction_id for no key update skip locked) c
          limit \(limit))
        """
    }

    /// Locks chains that are marked or due, in turn, at most as many as the parameter says. A chain that another
    /// follow-up has locked is left out. The user who was told is the account that the user is part of by now.
    static let takeChains = Statement<Int, TakenChain>(
        "followup.take_chains",
        """
        with \(chainsInTurn("$1"))
        select t.app_id, t.environment, t.original_transaction_id, t.previous_original_transaction_id, t.renewal, t.told,
          \(person("t.told_user_id", of: "t.app_id")), t.lapse_seen_at, t.steps, now(), t.marks,
          exists (select from (select app_id, environment from chains
              where previous_original_transaction_id = t.original_transaction_id offset 0) after
            where after.app_id = t.app_id and after.environment = t.environment),
          coalesce(extract(epoch from now() - t.was_due_at), 0)::float8, t.asked_at, t.asked_end, t.asks
        from taken t
        """,
        bind: { [.int($0)] }, read: readTakenChain)

    private static let readTakenChain: @Sendable (borrowing RowReader) throws(PostgresError) -> TakenChain = {
        row throws(PostgresError) in
        var facts = ChainFacts(
            appID: try row.text(0), environment: try row.text(1), originalID: try row.text(2),
            previousOriginalID: try row.optionalText(3), purchases: [], renewal: try row.renewal(4),
            told: try row.told(5, by: 6), lapseSeenAt: try row.optionalDate(7), steps: try row.int(8),
            now: try row.date(9))
        facts.isContinued = try row.bool(11)
        if let at = try row.optionalDate(13), let end = try row.optionalDate(14) {
            facts.asked = Asked(at: at, end: end, count: try row.int(15))
        }
        return TakenChain(facts: facts, marks: try row.ints(10), lag: try row.double(12))
    }

    /// A page of chains that a check reads.
    struct FollowedPage: Sendable {
        /// How long ago the last follow-up of a chain may lie, in seconds.
        var seconds: Double
        /// Behind which key: app, environment and original transaction id.
        var after = (app: "", environment: "", original: "")
        var limit: Int
    }

    /// Chains that were followed up in a span, and that are neither marked nor due within ten minutes, for which a
    /// follow-up that failed is put off, in the order of their keys.
    static let followedChains = Statement<FollowedPage, TakenChain>(
        "check.followed_chains",
        """
        select t.app_id, t.environment, t.original_transaction_id, t.previous_original_transaction_id, t.renewal, t.told,
          \(person("t.told_user_id", of: "t.app_id")), t.lapse_seen_at, t.steps, now(), '{}'::bigint[],
          exists (select from (select app_id, environment from chains
              where previous_original_transaction_id = t.original_transaction_id offset 0) after
            where after.app_id = t.app_id and after.environment = t.environment), 0::float8, t.asked_at,
          t.asked_end, t.asks
        from chains t
        where t.followed_at >= now() - make_interval(secs => $1) and (t.due_at is null or t.due_at > now() + interval '10 minutes')
          and (t.app_id, t.environment, t.original_transaction_id) > ($2, $3, $4)
          and not exists (
            select from chain_marks m where m.app_id = t.app_id and m.environment = t.environment
              and m.original_transaction_id = t.original_transaction_id)
        order by t.app_id, t.environment, t.original_transaction_id limit $5
        """,
        bind: { page in
            [
                .double(page.seconds), .text(page.after.app), .text(page.after.environment),
                .text(page.after.original), .int(page.limit),
            ]
        },
        read: readTakenChain)

    /// Has the chain whose turn it is followed up later: it is due in ten minutes, and not marked. What its marks stand
    /// for is read then. Returns what the log may say of the chain.
    static let putOffChain = Statement<Void, String>(
        "followup.put_off_chain",
        """
        with \(chainsInTurn("1")),
        later as (
          update chains c set due_at = now() + interval '10 minutes' from taken t
          where c.app_id = t.app_id and c.environment = t.environment
            and c.original_transaction_id = t.original_transaction_id
          returning c.app_id, c.original_transaction_id, t.marks)
        select l.app_id || ' …' || right(l.original_transaction_id, 4), forget_chain_marks(l.marks) from later l
        """,
        read: { row throws(PostgresError) in try row.text(0) })

    private static let chainColumns: [Column<TakenChain>] = [
        .text("app") { $0.facts.appID }, .text("environment") { $0.facts.environment },
        .text("original") { $0.facts.originalID },
    ]

    /// One transaction of a chain.
    struct ChainPurchase: Sendable {
        /// The chain's place, from 0.
        let chain: Int
        let purchase: ChainFacts.Purchase
        /// The holder, by the name in the tables, also where the user was erased. Nil: the transaction is not granted.
        let holder: String?
    }

    /// SQL: the transactions of a chain `i`, by the newest facts, and the imported purchases of which Apple has named
    /// other ids only. What such a purchase is, the facts of the same second say.
    private static func transactionsOfChain(_ facts: String) -> String {
        """
        select \(facts), app_id from transactions where original_transaction_id = i.original
              union all
              select m.transaction_id, m.original_transaction_id, m.product_id, s.kind, m.environment, 1, m.purchased_at,
                s.expires_at, null, null, null, null, null, '{}', null, null, null, null, null, null, null, m.app_id
              from (select * from imported_grants
                where (select true from imported_grants limit 1) and original_transaction_id = i.original offset 0) m
              left join lateral (
                select kind, expires_at from (select app_id, environment, kind, purchased_at, expires_at from transactions
                  where original_transaction_id = m.original_transaction_id offset 0) t
                where t.app_id = m.app_id and t.environment = m.environment
                  and date_trunc('second', t.purchased_at) = date_trunc('second', m.purchased_at)
                order by expires_at limit 1) s on true
              where (select true from transactions where transaction_id = m.transaction_id) is null
        """
    }

    /// SQL: who was given the transaction of a row `t`, here or by the former system, which did not say which goods.
    private static let grantOfTransaction = """
        select receipt_id, goods, quantity, granted_at, user_id, app_id, environment, transaction_id, false as is_imported
                from grants where transaction_id = t.transaction_id
                union all select null, '[]', t.quantity, imported_at, user_id, app_id, environment, transaction_id, true
                from imported_grants
                where (select true from imported_grants limit 1) and transaction_id = t.transaction_id limit 1
        """

    /// All transactions of the chains with their grants, in the order of their purchase.
    static let readChainPurchases = readingPurchases("followup.read_purchases", storedFacts)

    /// As ``readChainPurchases``, for a reader who may not know which customer of Apple's bought what.
    static let recheckChainPurchases = readingPurchases(
        "check.chain_purchases", storedFacts.replacing("customer_id", with: "null::text"))

    private static func readingPurchases(_ name: String, _ facts: String) -> Statement<[TakenChain], ChainPurchase> {
        Statement(
            name,
            chainColumns,
            sql: { rows in
                """
                select i.n - 1, g.receipt_id, g.holder, \(isForgotten("g.holder", since: "g.held_since")), g.goods,
                  g.quantity, g.granted_at, g.is_taken_back, g.is_denied, u.percentage, g.is_imported, t.*
                from \(rows.rows(as: "i", ordinality: "n"))
                cross join lateral (
                  \(transactionsOfChain(facts)) offset 0) t
                left join lateral (
                  select g.receipt_id, g.goods, g.quantity, g.granted_at, g.is_imported,
                    \(person("coalesce(moved.user_id, g.user_id)", of: "i.app")) as holder,
                    coalesce(moved.decided_at, g.granted_at) as held_since,
                    p.is_taken_back, p.is_denied
                  from (\(grantOfTransaction)) g
                  left join lateral (
                    select user_id, decided_at from ownerships
                    where transaction_id = g.transaction_id and app_id = g.app_id and environment = g.environment and move > 0
                    order by move desc limit 1) moved on true
                  left join lateral (
                    select revoked_at is not null as is_taken_back,
                      revoked_at > coalesce(t.signed_at, '-infinity') and not coalesce((
                        select reason in ('\(Reason.refunded.rawValue)', '\(Reason.withdrawn.rawValue)') from outcomes
                        where receipt_id = g.receipt_id and transaction_id = g.transaction_id), false) as is_denied
                    from provisional_grants
                    where transaction_id = g.transaction_id and receipt_id = g.receipt_id offset 0) p on true
                  where g.app_id = i.app and g.environment = i.environment offset 0) g on true
                left join lateral (
                  select percentage from consumption_reports
                  where g.holder is not null and transaction_id = t.transaction_id and app_id = i.app
                  order by at desc, reported_at desc limit 1) u on true
                where t.app_id = i.app and t.environment = i.environment
                order by i.n, t.purchased_at, t.transaction_id
                """
            },
            read: { row throws(PostgresError) in
                guard let transaction = try row.transaction(from: 11) else { throw row.undecodable(11) }
                var purchase = ChainFacts.Purchase(transaction: transaction, consumed: try row.optionalInt(9))
                let holder = try row.optionalText(2)
                let appID = try row.text(32)
                if let goods = try row.goods(4) {
                    let unposted = {
                        Submission.unpostedID(of: transaction.id, in: transaction.environment, app: appID)
                    }
                    purchase.grant = ChainFacts.Grant(
                        receiptID: try row.optionalUUID(1) ?? unposted(), userID: try row.bool(3) ? nil : holder,
                        goods: goods, quantity: try row.int(5), grantedAt: try row.date(6),
                        isTakenBackOnTrust: try row.optionalBool(7) ?? false,
                        isDenied: try row.optionalBool(8) ?? false, isImported: try row.bool(10))
                }
                return ChainPurchase(chain: try row.int(0), purchase: purchase, holder: holder)
            })
    }

    /// The revocations of the chains' purchases so far, in the order of their ordinals.
    static let readRevocations = Statement<[TakenChain], RevocationEntry>(
        "followup.read_revocations",
        chainColumns,
        sql: { rows in
            """
            select r.transaction_id, r.ordinal, r.kind, r.reason, r.takes_back, r.percentage, r.goods, r.at, r.signed_at
            from \(rows.rows(as: "i"))
            cross join lateral (
              select transaction_id from transactions
              where original_transaction_id = i.original and (select true from revocations limit 1)
              union
              select transaction_id from imported_grants
              where original_transaction_id = i.original and (select true from revocations limit 1)
                and (select true from imported_grants limit 1) offset 0) t
            cross join lateral (select * from revocations where transaction_id = t.transaction_id offset 0) r
            where r.app_id = i.app and r.environment = i.environment
            order by r.transaction_id, r.ordinal
            """
        },
        read: { row throws(PostgresError) in
            guard let goods = try row.goods(6) else { throw row.undecodable(6) }
            return RevocationEntry(
                transactionID: try row.text(0), ordinal: try row.int(1), kind: try row.word(2), reason: try row.word(3),
                takesBack: try row.bool(4), percentage: try row.int(5), goods: goods, at: try row.date(7),
                signedAt: try row.optionalDate(8))
        })

    /// A user who holds a purchase of a chain.
    struct HolderOfChain: Sendable {
        let chain: Int
        let appID: String
        let userID: String
    }

    /// The places of the chains of which a holder is being erased at this moment: the erasure would not find what is
    /// written now.
    static let holdersBeingErased = Statement<[HolderOfChain], Int>(
        "followup.holders_being_erased",
        [.int("chain") { $0.chain }, .text("app") { $0.appID }, .text("usr") { $0.userID }],
        sql: { rows in
            """
            select i.chain from \(rows.rows(as: "i"))
            cross join lateral (select from erasures
              where app_id = i.app and user_sha256 = sha256(convert_to(i.usr, 'UTF8')) and erased_at > now() offset 0) e
            where (select true from erasures where erased_at > now() limit 1)
            """
        },
        read: { row throws(PostgresError) in try row.int(0) })

    struct RejudgedTransaction: Sendable {
        let chain: Int
        let appID: String
        let transactionID: String
    }

    struct RejudgedQuestion: Sendable {
        var transactions: [RejudgedTransaction]
        /// Granted purchases that are taken back now.
        var revokedIDs: [String]
    }

    /// A receipt that is to be judged again.
    struct ReceiptOfChain: Sendable {
        let chain: Int
        let receiptID: UUID
        /// The transaction whose outcome is opened again. Nil: the receipt is open, and becomes due.
        let opens: String?
        /// False: another process has locked it.
        let isOurs: Bool
    }

    /// Locks the receipts whose answer may be another one now, the earliest first: rejected for the end of a purchase
    /// that stands; answered by the grant of a purchase that was taken back since; or held. Leaves out the receipts of
    /// a user who was erased.
    static let takeRejudged: Statement<RejudgedQuestion, ReceiptOfChain> = {
        var parameters = ParameterList<RejudgedQuestion>()
        let rows = parameters.add(
            [.int("chain") { $0.chain }, .text("app") { $0.appID }, .text("transaction") { $0.transactionID }]
        ) { $0.transactions }
        let revoked = parameters.add { .texts($0.revokedIDs) }
        return Statement(
            "followup.take_rejudged",
            """
            select w.chain, w.id, case when w.state <> 'held' then w.transaction end, l.is_ours is not null
            from (
              select i.chain, i.transaction, o.state, r.id, r.received_at
              from \(rows.rows(as: "i"))
              cross join lateral (
                select receipt_id, state, reason, granted_as from outcomes
                where transaction_id = i.transaction and state <> 'granted' offset 0) o
              cross join lateral (select id, app_id, user_id, received_at, settled_at from receipts
                where id = o.receipt_id offset 0) r
              where r.app_id = i.app and case o.state
                  when 'rejected' then o.reason in ('\(Reason.refunded.rawValue)', '\(Reason.withdrawn.rawValue)')
                  when 'already_granted' then o.granted_as = any(\(revoked)::text[])
                  when 'held' then r.settled_at is null
                  else false end
                and (r.user_id is null or not \(isForgotten("r.user_id", since: "r.received_at"))) offset 0) w
            left join lateral (
              select true as is_ours from receipts where id = w.id for no key update skip locked) l on true
            order by w.received_at, w.id, w.transaction
            """,
            parameters: parameters, read: readReceiptOfChain)
    }()

    struct UnpostedQuestion: Sendable {
        let chain: Int
        let appID: String
        let originalID: String?
        let customerID: String?
    }

    /// Locks open receipts that nobody posted, of these chains and customers.
    static let takeUnposted = Statement<[UnpostedQuestion], ReceiptOfChain>(
        "followup.take_unposted",
        [
            .int("chain") { $0.chain }, .text("app") { $0.appID }, .text("original") { $0.originalID },
            .text("customer") { $0.customerID },
        ],
        sql: { rows in
            """
            select w.chain, w.id, null::text, l.is_ours is not null
            from (
              select i.chain, r.id from \(rows.rows(as: "i"))
              cross join lateral (\(waitingUnposted)) u
              cross join lateral (select id, app_id from receipts where id = u.id offset 0) r
              where r.app_id = i.app offset 0) w
            left join lateral (
              select true as is_ours from receipts where id = w.id for no key update skip locked) l on true
            """
        },
        read: readReceiptOfChain)

    private static let readReceiptOfChain: @Sendable (borrowing RowReader) throws(PostgresError) -> ReceiptOfChain = {
        row throws(PostgresError) in
        ReceiptOfChain(
            chain: try row.int(0), receiptID: try row.uuid(1), opens: try row.optionalText(2), isOurs: try row.bool(3))
    }
}

extension RowReader {
    /// The told state of a chain; nil: nothing was told yet.
    fileprivate func told(_ column: Int, by user: Int) throws(PostgresError) -> ToldState? {
        guard let text = try optionalJSON(column), let userID = try optionalText(user) else { return nil }
        guard var told: ToldState = StoredJSON.decode(text) else { throw undecodable(column) }
        told.userID = userID
        return told
    }
}
