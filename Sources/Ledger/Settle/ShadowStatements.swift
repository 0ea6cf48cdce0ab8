import Encoding
package import Foundation
package import Postgres
package import Purchases

/// What would have been given, to whom and by which rule, while an app was in shadow.
package struct ShadowDecision: Sendable, Equatable {
    package let transaction: Transaction
    package let appID: String
    package let receiptID: UUID
    package let userID: String
    package let goods: [AppPolicy.Goods]
    package let source: BindingSource
    package let orderID: UUID?

    /// - Parameter entry: one that gives.
    package init(_ entry: Verdict.Entry, of receipt: StoredReceipt) {
        transaction = entry.transaction
        appID = receipt.appID
        receiptID = receipt.id
        userID = entry.match?.userID ?? receipt.userID ?? ""
        switch entry.decision {
        case .grant(let goods, let source), .provisional(let goods, let source):
            (self.goods, self.source) = (goods, source)
        case .rejected, .held, .open: preconditionFailure("only what gives is decided in shadow")
        }
        orderID = entry.match?.order?.id
    }
}

extension Statements {
    /// Writes down what would be given. Who decided a purchase first is who would have been granted it; only the same
    /// receipt decides it anew. Idempotent.
    package static let decideInShadow = Statement<[ShadowDecision], Void>(
        "shadow.decide",
        [
            .text("id") { $0.transaction.id },
            .text("purchase_key") { $0.transaction.purchaseKey },
            .text("app") { $0.appID },
            .text("environment") { $0.transaction.environment },
            .text("original") { $0.transaction.originalID },
            .text("usr") { $0.userID },
            .text("product") { $0.transaction.productID },
            .json("goods") { GoodsJSON.encode($0.goods) },
            .text("binding") { $0.source.rawValue },
            .text("order_text") { $0.orderID?.text },
            .text("token_text") { $0.transaction.appAccountToken?.text },
            .date("purchased_at") { $0.transaction.purchasedAt },
            .uuid("receipt") { $0.receiptID },
        ],
        sql: { decisions in
            """
            insert into shadow_decisions as s (transaction_id, purchase_key, app_id, environment,
              original_transaction_id, user_id, product_id, goods, binding_source, order_id, token, purchased_at,
              receipt_id)
            select i.id, i.purchase_key, i.app, i.environment, i.original, i.usr, i.product, i.goods, i.binding,
              i.order_text::uuid, i.token_text::uuid, i.purchased_at, i.receipt
            from \(decisions.rows(as: "i"))
            where not exists (select from shadow_decisions other
              where other.purchase_key = i.purchase_key and other.transaction_id <> i.id)
            order by i.id
            on conflict (transaction_id) do update set user_id = excluded.user_id, goods = excluded.goods,
              binding_source = excluded.binding_source, order_id = excluded.order_id, decided_at = now()
              where s.receipt_id = excluded.receipt_id
            """
        })

    /// What shadow says of one purchase: whose its chain would be by now, and whom purchases with its token would have been
    /// given to; two stand for many.
    typealias ShadowAnswer = (chainOwner: String?, tokenUsers: [String])

    /// One row per question, in order. Behind `offset 0`: by the keys alone, or a plan may walk an app's decisions to
    /// the first that fits.
    static let shadowEvidence = Statement<[EvidenceQuestion], ShadowAnswer>(
        "shadow.evidence",
        [
            .text("app") { $0.appID }, .text("id") { $0.transaction.id },
            .text("environment") { $0.transaction.environment }, .text("original") { $0.transaction.originalID },
            .text("token_text") { $0.transaction.appAccountToken?.text },
            .bool("is_shared") { $0.transaction.isShared },
        ],
        sql: { questions in
            """
            select c.user_id, coalesce(t.users, '{}')
            from \(questions.rows(as: "i", ordinality: "n"))
            left join lateral (
              select \(person("s.user_id", of: "i.app")) as user_id from (
                select * from shadow_decisions where original_transaction_id = i.original offset 0) s
              where app_id = i.app and environment = i.environment and transaction_id <> i.id
                and (binding_source <> 'shared' or i.is_shared)
              order by purchased_at desc, transaction_id desc limit 1) c on true
            left join lateral (
              select array_agg(user_id) as users from (
                select distinct \(person("s.user_id", of: "i.app")) as user_id from (
                  select * from shadow_decisions where token = i.token_text::uuid offset 0) s
                where app_id = i.app and transaction_id <> i.id and environment = '\(Transaction.production)'
                  and binding_source not in ('order_token', 'user_token', 'shared') limit 2) u) t on true
            order by i.n
            """
        },
        read: { row throws(PostgresError) in
            (chainOwner: try row.optionalText(0), tokenUsers: try row.texts(1))
        })

    /// Which of these orders would be bound, and by which purchase.
    static let shadowOrders = Statement<[UUID], (order: UUID, transactionID: String)>(
        "shadow.orders",
        "select order_id, transaction_id from shadow_decisions where order_id = any($1::uuid[]) order by decided_at desc",
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in (order: try row.uuid(0), transactionID: try row.text(1)) })
}

extension Ledger {
    /// The evidence as it would be if what was decided in shadow had been carried out. What is really known goes first.
    package func shadowed(
        _ evidence: [Evidence], of questions: [EvidenceQuestion]
    ) async throws(LedgerError) -> [Evidence] {
        guard !questions.isEmpty else { return evidence }
        let answers = try await run(Statements.shadowEvidence, questions)
        let open = Set(evidence.flatMap(\.orders).filter { $0.transactionID == nil }.map(\.id))
        let bound = open.isEmpty ? [] : try await run(Statements.shadowOrders, Array(open))
        let taken = Dictionary(bound.map { ($0.order, $0.transactionID) }, uniquingKeysWith: { first, _ in first })
        return zip(zip(evidence, questions), answers).map { known, answer in
            var (evidence, question) = known
            let transaction = question.transaction
            if evidence.chain == nil, transaction.isOfChain {
                evidence.chain = answer.chainOwner.map { Evidence.Chain(userID: $0) }
            }
            if evidence.registeredUserID == nil, evidence.rememberedUserIDs.isEmpty {
                evidence.rememberedUserIDs = answer.tokenUsers
            }
            return evidence.with(bound: taken)
        }
    }
}

// MARK: - Comparing with the system before

extension Statements {
    package struct ShadowQuestion: Sendable {
        var appID: String
        var transactionIDs: [String]

        package init(appID: String, transactionIDs: [String]) {
            self.appID = appID
            self.transactionIDs = transactionIDs
        }
    }

    /// What is known here of a purchase that the other system has given.
    package struct ShadowFact: Sendable {
        package var userID: String?
        package var productID: String?
        /// Of the receipts that brought it, where nothing is decided: the state of the furthest, and why.
        package var state: String?
        package var reason: String?
    }

    /// One row per id, in order. A grant goes before a decision in shadow. What was imported counts as decided as it was
    /// imported.
    package static let shadowFacts = Statement<ShadowQuestion, ShadowFact>(
        "shadow.facts",
        """
        select coalesce(g.user_id, s.user_id, m.user_id), coalesce(g.product_id, s.product_id, m.product_id), o.state,
          o.reason
        from unnest($2::text[]) with ordinality as i(id, n)
        left join lateral (select app_id, user_id, product_id from grants
          where transaction_id = i.id offset 0) g on g.app_id = $1
        left join lateral (select app_id, user_id, product_id from shadow_decisions
          where transaction_id = i.id offset 0) s on s.app_id = $1
        left join lateral (select app_id, user_id, product_id from imported_grants
          where transaction_id = i.id offset 0) m on m.app_id = $1
        left join lateral (
          select state, reason from outcomes
          where transaction_id = i.id and state <> 'granted' and g.user_id is null and s.user_id is null
            and m.user_id is null
          order by array_position(array['rejected', 'held', 'open'], state) desc nulls last limit 1) o on true
        order by i.n
        """,
        bind: { [.text($0.appID), .texts($0.transactionIDs)] },
        read: { row throws(PostgresError) in
            ShadowFact(
                userID: try row.optionalText(0), productID: try row.optionalText(1), state: try row.optionalText(2),
                reason: try row.optionalText(3))
        })

    package struct ShadowPage: Sendable {
        var appID: String
        var from: Date
        /// Inclusive.
        var through: Date
        var after: (purchasedAt: Date, transactionID: String)
        var limit: Int

        package init(
            appID: String, from: Date, through: Date, after: (purchasedAt: Date, transactionID: String), limit: Int
        ) {
            self.appID = appID
            self.from = from
            self.through = through
            self.after = after
            self.limit = limit
        }
    }

    package struct ShadowRow: Sendable {
        package var transactionID: String
        package var userID: String
        package var productID: String
        package var purchasedAt: Date
    }

    /// What was decided of purchases of some time, in order.
    package static let shadowPage = Statement<ShadowPage, ShadowRow>(
        "shadow.page",
        """
        select transaction_id, user_id, product_id, purchased_at from shadow_decisions
        where app_id = $1 and purchased_at >= $2 and purchased_at <= $3 and (purchased_at, transaction_id) > ($4, $5)
        order by purchased_at, transaction_id limit $6
        """,
        bind: {
            [
                .text($0.appID), .date($0.from), .date($0.through), .date($0.after.purchasedAt),
                .text($0.after.transactionID), .int($0.limit),
            ]
        },
        read: readShadowRow)

    private static let readShadowRow: @Sendable (borrowing RowReader) throws(PostgresError) -> ShadowRow = {
        row throws(PostgresError) in
        ShadowRow(
            transactionID: try row.text(0), userID: try row.text(1), productID: try row.text(2),
            purchasedAt: try row.date(3))
    }

    /// What was granted of purchases of some time, by id: as ``shadowPage``, for an app that is live. Shares of family
    /// members are left out, because no former system gave goods for them.
    package static let grantedPage = Statement<ShadowPage, ShadowRow>(
        "shadow.granted_page",
        """
        select g.transaction_id, g.user_id, g.product_id, t.purchased_at from grants g
        cross join lateral (select purchased_at from transactions where transaction_id = g.transaction_id offset 0) t
        where g.app_id = $1 and g.binding_source <> 'shared' and g.transaction_id > $4
          and t.purchased_at >= $2 and t.purchased_at <= $3
        order by g.transaction_id limit $5
        """,
        bind: {
            [
                .text($0.appID), .date($0.from), .date($0.through), .text($0.after.transactionID), .int($0.limit),
            ]
        },
        read: readShadowRow)

    /// Receipts of an app that nobody has judged to an end: their purchases may not be known yet.
    package static let undecidedReceipts = Statement<String, Int>(
        "shadow.undecided_receipts",
        "select count(*) from receipts where app_id = $1 and due_at is not null and state in ('received', 'parked')",
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in try row.int(0) })
}
