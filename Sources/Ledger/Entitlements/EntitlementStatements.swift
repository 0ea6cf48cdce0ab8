import Foundation
import Postgres
import Purchases

/// One question: a user whose purchases are asked for, in one environment.
package struct EntitlementQuestion: Sendable {
    package var user: UserName
    /// Whether the account that the user became part of is meant too. False for a user's own token: a guest's token
    /// outlives the guest's registration.
    package var isOfPerson: Bool
    package var environment: String

    package init(user: UserName, isOfPerson: Bool, environment: String) {
        self.user = user
        self.isOfPerson = isOfPerson
        self.environment = environment
    }
}

/// A chain that is a user's.
struct ChainOfQuestion: Sendable, Hashable {
    /// The place of the question, from 0.
    let question: Int
    let appID: String
    let environment: String
    let originalID: String
}

/// A purchase of a chain that is a user's.
struct PurchaseOfChain: Sendable {
    /// The place of the chain, from 0.
    let chain: Int
    /// As `chains.renewal` holds it.
    let renewal: String?
    let isContinued: Bool
    let purchase: ChainFacts.Purchase
    /// The database's clock.
    let now: Date
}

extension Statements {
    /// The newest purchases of a chain that are read. A state follows from the newest periods, and a period has several
    /// transactions where seats were added.
    static let purchasesOfChainMax = 100

    /// The chains that these users have now: of subscriptions, of non-consumables, and of marked grants. No row for a
    /// user who has no chain, is unknown, or was erased.
    ///
    /// Key look-ups only: a user's consumables are not read.
    static let ownedChains = Statement<[EntitlementQuestion], ChainOfQuestion>(
        "entitlements.chains",
        [
            .text("app") { $0.user.appID }, .text("usr") { $0.user.key }, .bool("is_person") { $0.isOfPerson },
            .text("environment") { $0.environment },
        ],
        sql: { questions in
            """
            with asked as materialized (
              select i.n, i.app, i.environment, ids.id
              from \(questions.rows(as: "i", ordinality: "n"))
              cross join lateral (
                select case when i.is_person then \(person("i.usr", of: "i.app")) else i.usr end as id offset 0) r
              cross join lateral (
                select r.id union all select user_id from merges
                where (select true from merges limit 1) and app_id = i.app and into_user_id = r.id offset 0) ids
              where ids.id !~ '\(UserErasure.tombstonePattern)'
                and (select erased_at from users where app_id = i.app and user_key = ids.id) is null),
            named as materialized (
              select distinct a.n, a.app, a.environment, c.original from asked a cross join lateral (
                select original_transaction_id as original, environment from ownerships where app_id = a.app and user_id = a.id
                union all
                select t.* from (
                    select transaction_id from grants where app_id = a.app and user_id = a.id and is_entitling offset 0) g
                  cross join lateral (select original_transaction_id, environment from transactions
                    where transaction_id = g.transaction_id and app_id = a.app offset 0) t
                offset 0) c where c.environment = a.environment)
            select i.n - 1, i.app, i.environment, i.original from (
              select m.*, p.* from named m cross join lateral (
                select max(facts ->> 'previousOriginalTransactionId') as previous,
                  coalesce(bool_or(ownership in (\(sharedOwnerships))), false) as is_shared
                from transactions
                where original_transaction_id = m.original and app_id = m.app and environment = m.environment offset 0) p offset 0) i
            \(ownerOfChain)
            where coalesce(l.user_id, o.user_id) in (select id from asked where asked.n = i.n)
            """
        },
        read: { row throws(PostgresError) in
            ChainOfQuestion(
                question: try row.int(0), appID: try row.text(1), environment: try row.text(2),
                originalID: try row.text(3))
        })

    /// The newest purchases of chains, by the newest facts, each with its chain's renewal. Without the purchases that
    /// were given on trust and that Apple denied.
    static let purchasesOfChains = Statement<[ChainOfQuestion], PurchaseOfChain>(
        "entitlements.purchases",
        [
            .text("app") { $0.appID }, .text("environment") { $0.environment }, .text("original") { $0.originalID },
        ],
        sql: { chains in
            """
            select i.n - 1, k.renewal, after.is_continued, now(), f.*
            from \(chains.rows(as: "i", ordinality: "n"))
            left join lateral (
              select renewal from chains
              where app_id = i.app and environment = i.environment and original_transaction_id = i.original offset 0) k
              on true
            -- By its name alone: the plan of an empty table would walk the app's chains.
            cross join lateral (
              select coalesce(bool_or(c.app_id = i.app and c.environment = i.environment), false) as is_continued
              from (select app_id, environment from chains
                where previous_original_transaction_id = i.original offset 0) c) after
            cross join lateral (
              \(purchasesOfChain)
              union all
              \(importedOfChain)) f
            """
        },
        read: { row throws(PostgresError) in
            guard let transaction = try row.transaction(from: 4) else { throw row.undecodable(4) }
            var purchase = ChainFacts.Purchase(transaction: transaction)
            if let receiptID = try row.optionalUUID(25) {
                purchase.grant = ChainFacts.Grant(
                    receiptID: receiptID, userID: try row.text(26), goods: try row.goods(27) ?? [],
                    quantity: transaction.quantity, grantedAt: try row.date(28))
            }
            return PurchaseOfChain(
                chain: try row.int(0), renewal: try row.optionalJSON(1), isContinued: try row.bool(2),
                purchase: purchase, now: try row.date(3))
        })

    /// Of a chain `i`: the columns that `RowReader.transaction(from:)` reads, and those of the grant. Ingest may not
    /// read the customer. A period's grant decides nothing.
    private static let purchasesOfChain = """
        (select t.*, g.*
              from (select \(storedFacts.replacing("customer_id", with: "null::text")) from transactions t
                where original_transaction_id = i.original and app_id = i.app and environment = i.environment
                  and (select true from provisional_grants p
                    where (select true from provisional_grants limit 1) and p.transaction_id = t.transaction_id
                      and p.revoked_at > coalesce(t.signed_at, '-infinity')) is null
                order by expires_at desc nulls last, purchased_at desc limit \(purchasesOfChainMax)) t
              left join lateral (select receipt_id, user_id, goods, granted_at from grants
                where t.expires_at is null and transaction_id = t.transaction_id offset 0) g on true)
        """

    /// The purchases of a chain `i` that the former system gave and of which Apple has said nothing here, in the same
    /// columns.
    private static let importedOfChain = """
        (select m.transaction_id, m.original_transaction_id, m.product_id, null, m.environment, 1, m.purchased_at, null,
                null, null, null, null, null, '{}', null, null, null, null, null, null, null, null, null, null, null
              from (select * from imported_grants where (select true from imported_grants limit 1)
                  and original_transaction_id = i.original offset 0) m
              where m.app_id = i.app and m.environment = i.environment
                and (select true from transactions where transaction_id = m.transaction_id) is null)
        """
}

extension Ledger {
    /// The chains of each question, in order.
    static func ownedChains(
        _ questions: [EntitlementQuestion], in database: Database
    ) async throws(PostgresError) -> [[ChainFacts]] {
        let chains = try await database.run(Statements.ownedChains, questions)
        var found: [[ChainFacts]] = questions.map { _ in [] }
        guard !chains.isEmpty else { return found }
        var facts: [Int: ChainFacts] = [:]
        for row in try await database.run(Statements.purchasesOfChains, chains) {
            let chain = chains[row.chain]
            if facts[row.chain] == nil {
                facts[row.chain] = ChainFacts(
                    appID: chain.appID, environment: chain.environment, originalID: chain.originalID, purchases: [],
                    renewal: try row.renewal.map(Self.renewal), now: row.now)
                facts[row.chain]?.isContinued = row.isContinued
            }
            facts[row.chain]?.purchases.append(row.purchase)
        }
        for (place, chain) in facts { found[chains[place].question].append(chain) }
        return found
    }

    /// Of `chains.renewal`.
    private static func renewal(_ text: String) throws(PostgresError) -> Renewal {
        guard let renewal: Renewal = StoredJSON.decode(text) else {
            throw .undecodable(statement: Statements.purchasesOfChains.name, column: 1)
        }
        return renewal
    }
}
