package import Foundation
import Postgres
import Purchases

extension Statements {
    /// A support decision about the owner of a subscription or non-consumable.
    package struct OwnerDecision: Sendable {
        package var appID: String
        /// The id under which the purchase was granted.
        package var transactionID: String
        /// The new owner as the tables name users.
        package var userID: String
        package var actor: String
        /// Whether Apple is told the new owner if the chain moves.
        package var isWrittenBack = false
        /// Each decision has its own id, so that each has events of its own.
        package var id = UUID()

        package init(
            appID: String, transactionID: String, userID: String, actor: String, isWrittenBack: Bool = false,
            id: UUID = UUID()
        ) {
            self.appID = appID
            self.transactionID = transactionID
            self.userID = userID
            self.actor = actor
            self.isWrittenBack = isWrittenBack
            self.id = id
        }
    }

    /// A purchase whose owner was decided, with what its events and its Apple update say.
    struct DecidedGrant: Sendable {
        let purchase: DecidedPurchase
        let receiptID: UUID
        let productID: String
        let originalID: String
        let purchasedAt: Date
    }

    /// Stores the owner of a purchase. No row: no subscription or non-consumable was granted under this id, or another
    /// transaction moves it at this moment.
    static let decideOwner = Statement<OwnerDecision, DecidedGrant>(
        "own.decide",
        """
        with known as (
          select g.app_id, g.environment, g.transaction_id, g.receipt_id, g.product_id, t.original_transaction_id,
            t.purchased_at, t.app_account_token, \(person("coalesce(o.user_id, g.user_id)", of: "g.app_id")) as holder,
            coalesce(o.move, 0) as move
          from grants g
          cross join lateral (
            select original_transaction_id, purchased_at, kind, app_account_token from transactions
            where transaction_id = g.transaction_id offset 0) t
          left join lateral (
            select user_id, move from ownerships
            where transaction_id = g.transaction_id and app_id = g.app_id and environment = g.environment and move > 0
            order by move desc limit 1) o on true
          where g.transaction_id = $2 and g.app_id = $1 and g.binding_source <> '\(BindingSource.shared.rawValue)'
            and (t.kind is null or t.kind in ('\(Transaction.Kind.autoRenewable.rawValue)',
              '\(Transaction.Kind.nonConsumable.rawValue)'))),
        decided as (
          insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
            binding_source, move)
          select app_id, environment, original_transaction_id, purchased_at, transaction_id, $3,
            '\(BindingSource.support.rawValue)', move + 1
          from known on conflict do nothing returning transaction_id)
        select k.holder, k.environment, k.app_account_token, k.receipt_id, k.product_id, k.original_transaction_id,
          k.purchased_at, not exists (
            select from transactions later
              cross join lateral (select 1 from grants where transaction_id = later.transaction_id offset 0) g
            where later.original_transaction_id = k.original_transaction_id and later.app_id = k.app_id
              and later.environment = k.environment and later.purchased_at > k.purchased_at)
        from known k where k.transaction_id in (select transaction_id from decided)
        """,
        bind: { [.text($0.appID), .text($0.transactionID), .text($0.userID)] },
        read: { row throws(PostgresError) in
            DecidedGrant(
                purchase: DecidedPurchase(
                    holderID: try row.text(0), environment: try row.text(1), isLatest: try row.bool(7),
                    token: try row.optionalUUID(2)),
                receiptID: try row.uuid(3), productID: try row.text(4), originalID: try row.text(5),
                purchasedAt: try row.date(6))
        })

    /// A token of a purchase's new owner.
    struct OwnersToken: Sendable {
        let decision: OwnerDecision
        let grant: DecidedGrant
        let token: UUID
    }

    /// Has Apple told the token of a purchase's new owner. What Apple was told before stays ours.
    static let writeOwnersToken = Statement<OwnersToken, Void>(
        "own.write_token",
        """
        insert into apple_updates as e (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at,
          token)
        values ($1, '\(AppleUpdate.Kind.setToken.rawValue)', $2, $3, $4, $5, $6)
        on conflict (transaction_id, kind) do update set
          token = excluded.token, former_tokens = e.former_tokens || e.token, state = 'open', attempt = 0, reason = null,
          http_status = null, code = null, due_at = now(), ended_at = null
        where e.token <> excluded.token or e.state in ('refused', 'superseded')
        """,
        bind: {
            [
                .text($0.decision.transactionID), .text($0.decision.appID), .text($0.grant.purchase.environment),
                .text($0.grant.originalID), .date($0.grant.purchasedAt), .uuid($0.token),
            ]
        })

    /// Makes the claims of an app due that wait for a person, so that they are judged by the decision at once.
    static let judgeClaims = Statement<OwnerDecision, Void>(
        "own.judge_claims",
        """
        update receipts set due_at = now(), rescues = 0
        where id = any(array(
          select id from receipts where state = 'held' and app_id = $1 and id = any(array(
            select receipt_id from outcomes where state = 'held' and reason = '\(Reason.transferReview.rawValue)'))
          order by id for no key update))
        """,
        bind: { [.text($0.appID)] })
}
