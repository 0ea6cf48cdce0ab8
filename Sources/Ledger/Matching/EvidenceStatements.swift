import Encoding
package import Foundation
package import Postgres
package import Purchases

/// The question who owns a purchase, for one purchase of one receipt.
package struct EvidenceQuestion: Sendable {
    package let appID: String
    /// The poster.
    package let userID: String?
    package let namedOrderID: UUID?
    /// The installation of the token that the submission carries; never a client's text.
    package let installationID: String?
    /// The user whom the posted record names, where that is not the poster.
    package let recordUserID: String?
    package let transaction: Transaction
    /// Whether this receipt may have been given the purchase on trust: then the order that the purchase has bound must
    /// be found again.
    package let isOnTrust: Bool
    /// False: nobody posted it, so the evidence includes the users of its Apple customer.
    package let isPosted: Bool
    /// Whether the receipt has other purchases. Then a named order may belong to one of them, and the answer must say
    /// whether this purchase is granted.
    package let isOneOfSeveral: Bool
    /// The kind of its product by the configuration, where Apple does not say it.
    package let kind: Transaction.Kind?

    package init(
        appID: String, userID: String?, namedOrderID: UUID?, installationID: String?, recordUserID: String? = nil,
        transaction: Transaction, isOnTrust: Bool = false, isPosted: Bool = true, isOneOfSeveral: Bool = false,
        soldAs kind: Transaction.Kind? = nil
    ) {
        self.appID = appID
        self.userID = userID
        self.namedOrderID = namedOrderID
        self.installationID = installationID
        self.recordUserID = recordUserID
        self.transaction = transaction
        self.isOnTrust = isOnTrust
        self.isPosted = isPosted
        self.isOneOfSeveral = isOneOfSeveral
        self.kind = kind
    }
}

extension EvidenceQuestion {
    /// Whether no chain and no earlier grant can answer, and a user posted it.
    private var isPlain: Bool { !transaction.isOfChain && !isOnTrust && isPosted }

    /// Whether the order of its token may be the only answer: its token may be an order, and no other order is named.
    /// If that order is unbound, row 2 of Ownership decides by it alone.
    private var mayEndWithToken: Bool {
        guard let token = transaction.appAccountToken else { return false }
        return isPlain && !isOneOfSeveral && (namedOrderID == nil || namedOrderID == token)
    }

    /// Whether there may be no answer: it has no token and no named order, so only an open order or a support decision
    /// may answer.
    private var mayHaveNone: Bool {
        isPlain && transaction.appAccountToken == nil && namedOrderID == nil && recordUserID == nil
    }

    /// The evidence for each question, in order. The cheap statements come first: for the order of the token, and for
    /// questions without any evidence. Only the rest are asked for everything that could answer.
    package static func answers(
        to questions: [EvidenceQuestion], in database: Database
    ) async throws(PostgresError) -> [Evidence] {
        var answers = Array(repeating: Evidence?.none, count: questions.count)
        let short = questions.indices.filter { questions[$0].mayEndWithToken }
        if !short.isEmpty {
            for row in try await database.run(Statements.orderOfToken, short.map { questions[$0] }) {
                answers[short[row.question]] = row.evidence
            }
        }
        let tokenless = questions.indices.filter { questions[$0].mayHaveNone }
        if !tokenless.isEmpty {
            let known = Set(try await database.run(Statements.hasEvidence, tokenless.map { questions[$0] }))
            for (place, index) in tokenless.enumerated() where !known.contains(place) { answers[index] = Evidence.none }
        }
        let open = questions.indices.filter { answers[$0] == nil }
        if !open.isEmpty {
            let rows = try await database.run(Statements.evidence, open.map { questions[$0] })
            for (index, evidence) in zip(open, Statements.join(rows, count: open.count)) { answers[index] = evidence }
        }
        return answers.map { $0 ?? .none }
    }
}

extension Statements {
    /// How many open orders of one user and product, and of one installation, are read; the latest.
    package static let ordersMax = 16
    /// How many of the newest orders are searched for open ones, bound orders included.
    private static let ordersReadMax = 256
    /// How many users of one token are read: more than two count as many, but several may be one person.
    private static let tokenUsersMax = 8
    /// How many users of one Apple customer are read: two count as many, but each may have the order.
    private static let customerUsersMax = 16

    /// The SQL of the columns of an order `o` for a question `i`.
    ///
    /// - Parameter isProven: SQL: whether the order was placed on the installation that posted the purchase.
    private static func orderColumns(isProven: String) -> String {
        """
        o.id, o.user_id, o.product_id, o.quantity, o.environment, o.placed_at, o.pay_by, o.goods,
          nullif(o.bonuses, '[]'), o.target, \(isProven), o.reserved_for, o.bound_by, o.item
        """
    }
    private static let orderFields = """
        id, \(person("orders.user_id", of: "i.app")) as user_id, \(soldProduct) as product_id, quantity, environment,
              placed_at, pay_by, goods, item, bonuses, target, installation_id, reserved_for, bound_by
        """

    /// SQL: the ids of a user's open orders that may fit the purchase of a question `i`, the latest first. Bound orders
    /// stand in the same index, so at most `ordersReadMax` orders are read, bound ones included.
    private static func openOrders(of user: String) -> String {
        openOrders("user_id = \(user)", placedBefore: placedBeforeMax)
    }
    /// As ``openOrders(of:)``, for orders on the installation that posted the purchase, placed near it in time.
    private static let openOrdersNearby = openOrders("installation_id = i.installation", placedBefore: nearMax)

    private static func openOrders(_ condition: String, placedBefore: String) -> String {
        """
        select id from (
          select id, placed_at from orders
          where app_id = i.app and \(condition) and product_id = i.product and \(isOfApple)
            and placed_at between i.purchased_at - \(placedBefore) and i.purchased_at + \(placedAfterMax)
          order by placed_at desc limit \(ordersReadMax)) newest
        \(binding(of: "newest"))
        where bound_by is null
        order by placed_at desc limit \(ordersMax)
        """
    }

    private static let isOfApple =
        "lower(channel) in (\(NewOrder.channelsOfApple.map { "'\($0)'" }.joined(separator: ", ")))"

    /// The unbound order that the token of each question names. No row for a question without one, or with a purchase
    /// that a support decision exists for. Where ``EvidenceQuestion/mayEndWithToken`` is true, nothing else need be
    /// read. Nearly every purchase of an app with orders is asked this way, for a seventh of what `evidence` costs.
    package static let orderOfToken = Statement<[EvidenceQuestion], EvidenceRow>(
        "matching.order_of_token",
        [
            .text("app") { $0.appID }, .text("token") { $0.transaction.appAccountToken?.text },
            .text("id") { $0.transaction.id },
        ],
        sql: { questions in
            """
            select i.n, \(orderColumns(isProven: "false"))
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select \(orderFields), app_id from orders \(binding(of: "orders")) where id = i.token::uuid offset 0) o
            where o.app_id = i.app and o.bound_by is null and (o.reserved_for is null or o.reserved_for = i.id)
              and case when (select true from support_decisions limit 1)
                then (select true from support_decisions where app_id = i.app and transaction_id = i.id) end is not true
            """
        },
        read: { row throws(PostgresError) in
            var evidence = Evidence()
            if let order = try row.order(from: 1) { evidence.orders = [order] }
            return EvidenceRow(question: try row.int(0) - 1, evidence: evidence)
        })

    /// The indexes, from 0, of the questions that have any evidence, among questions for which
    /// ``EvidenceQuestion/mayHaveNone`` is true. Mostly none: a purchase without an order, in an app with orders, costs
    /// only this look-up.
    package static let hasEvidence = Statement<[EvidenceQuestion], Int>(
        "matching.has_evidence",
        [
            .text("app") { $0.appID }, .text("usr") { $0.userID }, .text("installation") { $0.installationID },
            .text("id") { $0.transaction.id }, .text("product") { $0.transaction.productID },
            .date("purchased_at") { $0.transaction.purchasedAt },
        ],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            where coalesce(
              (select true from (\(openOrders(of: "i.usr"))) own limit 1),
              (select true from (\(openOrdersNearby)) near limit 1),
              (select true from support_decisions where app_id = i.app and transaction_id = i.id),
              case when (select true from merges limit 1)
                then (select true from merges where app_id = i.app and into_user_id = i.usr limit 1) end)
            """
        },
        read: { row throws(PostgresError) in try row.int(0) })

    /// The columns of a question, by the names that ``evidence`` reads them under.
    private static let questionColumns: [Column<EvidenceQuestion>] = [
        .text("app") { $0.appID },
        .text("usr") { $0.userID },
        .text("named_text") { $0.namedOrderID?.text },
        .text("installation") { $0.installationID },
        .text("record") { $0.recordUserID },
        .bool("is_on_trust") { $0.isOnTrust },
        .bool("is_unposted") { !$0.isPosted },
        .bool("is_one_of_several") { $0.isOneOfSeveral },
        .text("id") { $0.transaction.id },
        .text("purchase_key") { $0.transaction.keyOfItsIDs },
        .text("environment") { $0.transaction.environment },
        .text("original") { $0.transaction.originalID },
        .text("previous") { $0.transaction.previousOriginalID },
        .text("product") { $0.transaction.productID },
        .date("purchased_at") { $0.transaction.purchasedAt },
        .date("expires_at") { $0.transaction.expiresAt },
        .date("signed_at") { $0.transaction.signedAt },
        .date("ended_at") { $0.transaction.mayHaveSuccessor ? $0.transaction.revokedAt : nil },
        .text("token_text") { $0.transaction.appAccountToken?.text },
        .text("customer") { $0.isPosted ? nil : $0.transaction.customerID },
        .bool("is_chain") { $0.transaction.isOfChain },
        .bool("is_period") { $0.transaction.isPeriod },
        .bool("is_shared") { $0.transaction.isShared },
        .bool("is_consumable") { ($0.transaction.kind ?? $0.kind) == .consumable },
    ]

    /// The evidence: one row for each order that may matter, and one for a question without any order. A row names its
    /// question, what is known beside the orders, and the order. Key look-ups only.
    ///
    /// An order of another way of payment (S3-21) is found only where the token or the submission names it.
    ///
    /// The SQL looks up orders by one index each, behind limits and `offset 0`, so that no plan reads the whole table,
    /// whatever its statistics say. The SQL looks up an order by its id alone and compares the app outside: a service
    /// keeps the plan of an empty table, in which any index of the app looks as good. The SQL avoids EXISTS, which a
    /// plan may answer by reading the whole other table.
    package static let evidence = Statement<[EvidenceQuestion], EvidenceRow>(
        "matching.evidence",
        questionColumns,
        sql: { questions in
            """
            select i.n, r.user_id, coalesce(u.users, '{}'),
              case when i.token is not null and r.user_id is null and w.decides is not true then (
                select true from user_tokens where app_id = i.app and user_id = any(
                  i.usr || array(select user_id from merges where app_id = i.app and into_user_id = i.usr)) limit 1) end,
              c.user_id, q.revocations,
              case when i.named is not null and i.is_one_of_several then coalesce(
                (select true from grants where transaction_id = i.id),
                (select true from grants where purchase_key = i.purchase_key),
                case when same.purchase_key is not null then true end,
                (select true from (\(importedGrant("i"))) imported)) end,
              \(orderColumns(isProven: "o.installation_id = i.installation and v.is_proof and w.decides is not true")), s.is_written, c.is_moved,
              coalesce(b.users, '{}'), d.user_id, d.item, d.token, x.user_id,
              case when i.record is not null and x.user_id is null then (select true from record_apps where app_id = i.app) end,
              same.purchase_key, case when d.user_id is not null then (
                select true from (select transaction_id from grants where purchase_key = i.purchase_key and transaction_id <> i.id
                    offset 0) had
                  cross join lateral (select purchased_at from transactions
                    where transaction_id = had.transaction_id offset 0) t
                where date_trunc('second', t.purchased_at) <> date_trunc('second', i.purchased_at)) end,
              \(takenBackUnderAnotherID),
              case when i.ended_at is not null then (\(successor(original: "i.original", app: "i.app",
                environment: "i.environment", product: "i.product", endedAt: "i.ended_at"))) end,
              y.product_id, y.expires_at
            from \(questions.rows(as: "raw", ordinality: "n"))
            cross join lateral (select raw.*, raw.named_text::uuid as named, raw.token_text::uuid as token offset 0) i
            -- What Apple took back of the chain before it. By the chain alone: the index of refunds may be walked.
            cross join lateral (
              select count(*) as revocations, max(t.revoked_at) as last
              from (select transaction_id, revoked_at from transactions
                  where i.is_chain and not i.is_period and original_transaction_id = i.original and app_id = i.app
                    and environment = i.environment offset 0) t
                cross join lateral (
                  select from grants where transaction_id = t.transaction_id
                  union all select from imported_grants where transaction_id = t.transaction_id limit 1) g
              where t.revoked_at < i.purchased_at) q
            -- The key that it was granted under by another id. A period is found by the end that Apple names now; the
            -- `period_key` of its grant holds the end of that day.
            left join lateral (
              select g.purchase_key from (
                  select transaction_id, app_id, environment, purchased_at from transactions
                  where i.is_chain and i.is_period and original_transaction_id = i.original and expires_at = i.expires_at
                  union all
                  select transaction_id, app_id, environment, purchased_at from transactions
                  where i.is_chain and not i.is_period and original_transaction_id = i.original and purchased_at > q.last) t
                cross join lateral (select purchase_key from grants where transaction_id = t.transaction_id
                  and binding_source <> 'shared' offset 0) g
              where t.app_id = i.app and t.environment = i.environment
              order by t.purchased_at limit 1) same on true
            -- A person's word.
            left join lateral (
              select \(person("support_decisions.user_id", of: "i.app")) as user_id, item, token from support_decisions
              where app_id = i.app and transaction_id = i.id
                and not \(isForgotten("support_decisions.user_id", since: "decided_at")) offset 0) d on true
            -- A token that we set for the purchase's chain ourselves.
            left join lateral (
              select true as is_written from apple_updates
              where i.is_chain and original_transaction_id = any(array[i.original, i.previous]) and kind = 'set_token'
                and (token = i.token or i.token = any(former_tokens))
                and app_id = i.app and environment = i.environment limit 1) s on true
            -- The purchase's token is an unbound order: row 2 decides, and nothing else need be known.
            left join lateral (
              select \(person("orders.user_id", of: "i.app")) as user_id,
                bound_by is null and (reserved_for is null or reserved_for = i.id) and not i.is_chain and d.user_id is null
                  as decides
              from (select app_id, user_id, bound_by, reserved_for from orders \(binding(of: "orders")) where id = i.token offset 0) orders
              where app_id = i.app offset 0) w on true
            left join lateral (
              select \(person("user_tokens.user_id", of: "i.app")) as user_id from user_tokens
              where w.decides is not true and app_id = i.app and token = i.token
                and (not i.is_chain or not \(isForgotten("user_tokens.user_id", since: "registered_at"))) offset 0) r on true
            left join lateral (
              select array_agg(distinct user_id) as users from (
                select \(person("granted_tokens.user_id", of: "i.app")) as user_id from granted_tokens
                  -- It stands on a purchase that stands.
                  cross join lateral (select from transactions where transaction_id = granted_tokens.transaction_id
                    and revoked_at is null offset 0) standing
                where w.decides is not true and i.environment = '\(Transaction.production)' and app_id = i.app and token = i.token
                  and (not i.is_chain or not \(isForgotten("granted_tokens.user_id", since: "granted_at")))
                limit \(tokenUsersMax)) t) u on true
            -- An installation that was issued here, not revoked, and seen with one Apple customer only.
            left join lateral (
              select revoked_at is null and (select count(*) from (select from installation_customers
                where installation_id = i.installation and environment = i.environment limit 2) c) < 2 as is_proof
              from installations where id = i.installation and app_id = i.app offset 0) v on true
            -- Whom the record names, if he is known here by that name.
            left join lateral (
              select \(person("k.user_id", of: "i.app")) as user_id from (
                (select user_id from orders where app_id = i.app and user_id = i.record limit 1)
                union all
                (select user_id from user_tokens where app_id = i.app and user_id = i.record limit 1)
                union all
                (select user_id from grants where app_id = i.app and user_id = i.record limit 1)
                limit 1) k offset 0) x on true
            left join lateral (\(ownerOfChain)) c on true
            left join lateral (\(purchaseBefore)) y on true
            left join lateral (
              select array_agg(user_id) as users from (
                select distinct \(person("grants.user_id", of: "i.app")) as user_id from grants
                where i.customer is not null and customer_id = i.customer and app_id = i.app
                  and not \(isForgotten("grants.user_id", since: "granted_at")) limit \(customerUsersMax)) g) b on true
            left join lateral (
              select array[i.usr, r.user_id, case when array_length(u.users, 1) = 1 then u.users[1] end, w.user_id, c.user_id,
                d.user_id, x.user_id]
                || b.users as users offset 0) p on true
            left join lateral (
              select f.* from (
                select i.token as id
                union all select i.named where i.named is distinct from i.token
                union all select bound.id
                from (select order_id as id from grants where i.is_on_trust and transaction_id = i.id limit 1) bound
                union all select open.id
                from (
                  select user_id from unnest(p.users) as known(user_id) where w.decides is not true
                  union all
                  -- What was placed under an id that is part of theirs by now.
                  select user_id from merges
                  where w.decides is not true and app_id = i.app and into_user_id = any(p.users)) owner
                cross join lateral (\(openOrders(of: "owner.user_id"))) open
                union all select near.id
                from (select where w.decides is not true) unknown cross join lateral (\(openOrdersNearby)) near) k
              cross join lateral (
                select \(orderFields)
                from (select * from orders where id = k.id offset 0) orders \(binding(of: "orders")) where app_id = i.app
                  and (not i.is_chain or not \(isForgotten("orders.user_id", since: "placed_at"))) offset 0) f) o on true
            order by i.n
            """
        },
        read: { row throws(PostgresError) in
            var evidence = Evidence()
            evidence.registeredUserID = try row.optionalText(1)
            evidence.rememberedUserIDs = try row.texts(2)
            evidence.posterHasToken = try row.optionalBool(3) ?? false
            evidence.customerUserIDs = try row.texts(23)
            let isMoved = try row.optionalBool(22) ?? false
            if let userID = try row.optionalText(4) {
                evidence.chain = Evidence.Chain(
                    userID: userID, isMoved: isMoved, productID: try row.optionalText(33),
                    runsUntil: try row.optionalDate(34))
            }
            if let userID = try row.optionalText(24) {
                evidence.supportDecision = Evidence.SupportDecision(
                    userID: userID, item: try row.optionalText(25), token: try row.optionalUUID(26),
                    isOfKeyInUse: try row.optionalBool(30) ?? false)
            }
            evidence.recordUserID = try row.optionalText(27)
            evidence.isRecordOfUnknown = try row.optionalBool(28) ?? false
            evidence.revocations = try row.int(5)
            evidence.grantedKey = try row.optionalText(29)
            evidence.takenBack = try row.optionalText(31).flatMap(Reason.init(rawValue:))
            evidence.hasSuccessor = try row.optionalBool(32) ?? false
            evidence.isGranted = try row.optionalBool(6) ?? false
            evidence.isTokenWritten = try row.optionalBool(21) ?? false
            if let order = try row.order(from: 7) { evidence.orders.append(order) }
            return EvidenceRow(question: try row.int(0) - 1, evidence: evidence)
        })

    /// Joins rows to the evidence of each question, in order. An order that was found in two ways counts once.
    package static func join(_ rows: [EvidenceRow], count: Int) -> [Evidence] {
        var all = Array(repeating: Evidence?.none, count: count)
        for row in rows {
            if let known = all[row.question]?.orders {
                let isKnown = { (order: PlacedOrder) in known.contains { $0.id == order.id } }
                all[row.question]?.orders += row.evidence.orders.filter { !isKnown($0) }
            } else {
                all[row.question] = row.evidence
            }
        }
        return all.map { $0 ?? .none }
    }

    /// SQL: whether a user was erased after becoming the owner at `since`. In a protected database the user's name in
    /// the tables outlives the erasure.
    static func isForgotten(_ user: String, since: String) -> String {
        """
        (\(user) ~ '\(UserErasure.tombstonePattern)'
          or coalesce((select erased_at from users where app_id = i.app and user_key = \(user)) >= \(since), false))
        """
    }

    private static let placedAfterMax = "interval '\(Int(Matcher.placedAfterMax)) seconds'"
    /// No offer is valid for longer: by row 7 an older order decides nothing. Without this bound a user's bound orders
    /// have no end.
    private static let placedBeforeMax = "interval '366 days'"
    private static let nearMax = "interval '\(Int(Matcher.nearMax)) seconds'"
}

/// One row of `Statements/evidence`: what is known of the question, with one of its orders.
package struct EvidenceRow: Sendable {
    package let question: Int
    package let evidence: Evidence
}

extension RowReader {
    /// The order in the columns of `orderColumns` from this column on; nil where there is no order.
    fileprivate func order(from column: Int) throws(PostgresError) -> PlacedOrder? {
        guard let id = try optionalUUID(column) else { return nil }
        return PlacedOrder(
            id: id, userID: try text(column + 1), productID: try text(column + 2),
            item: try optionalText(column + 13), quantity: try int(column + 3),
            environment: try optionalText(column + 4), placedAt: try date(column + 5), payBy: try date(column + 6),
            goods: try goods(column + 7), bonuses: try optionalJSON(column + 8) == nil ? [] : try bonuses(column + 8),
            target: try json(column + 9),
            isOnProvenInstallation: try optionalBool(column + 10) ?? false, reservedFor: try optionalText(column + 11),
            transactionID: try optionalText(column + 12))
    }
}
