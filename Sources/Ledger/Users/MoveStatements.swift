package import Foundation
package import Postgres
import Purchases

extension Statements {
    /// A receipt whose submission was posted again, and whether its app's policy moves purchases to the user who shows
    /// them.
    package struct RepeatedClaim: Sendable {
        package var receiptID: UUID
        package var payload: String
        package var moves: Bool

        package init(receiptID: UUID, payload: String, moves: Bool) {
            self.receiptID = receiptID
            self.payload = payload
            self.moves = moves
        }
    }

    /// Opens a receipt again that was refused because another user has the purchase, where the answer may differ by now
    /// (0001_receipts.sql). One row: whether the receipt is open again.
    package static let reopenClaim = Statement<RepeatedClaim, Bool>(
        "ledger.reopen_claim", "select reopen_claim($1, $2, $3)",
        bind: { [.uuid($0.receiptID), .text($0.payload), .bool($0.moves)] },
        read: { row throws(PostgresError) in try row.bool(0) })

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

        fileprivate func event(_ type: EventType) -> UUID {
            DerivedID.event(appID: appID, transactionID: transactionID, type: type, distinction: ".\(id)")
        }
    }

    /// The SQL of a token that leads to a person of app `$1`, whose ids are `person(id)`: a token that the app
    /// registered or we issued, a token that only this person's purchases carried, or an order of this person. Null:
    /// there is none.
    static let tokenOfPerson = """
        (select token from user_tokens where app_id = $1 and user_id in (select id from person)
              order by source = 'registered' desc, registered_at limit 1),
            (select token from granted_tokens t where app_id = $1 and user_id in (select id from person)
              and not exists (select from granted_tokens other where other.app_id = $1 and other.token = t.token
                and other.user_id not in (select id from person))
              order by granted_at desc limit 1),
            (select id from orders where app_id = $1 and user_id in (select id from person)
              order by placed_at desc limit 1)
        """

    /// `makegood support own`: decides the owner, and returns the owner until now. No row: no subscription or
    /// non-consumable was granted under this id, or another person decides at this moment. If the owner changes, the
    /// statement writes an event for both users. The statement also makes waiting claims due, so that they are judged
    /// by the decision at once.
    ///
    /// Apple is told by a token that leads to the new owner: a token that the app registered or we issued, a token that
    /// the owner's purchases carried, an order of the owner, or else a token that the statement issues. Apple is told
    /// only for a chain's latest purchase, because that purchase decides the owner of the chain.
    package static let decideOwner = Statement<OwnerDecision, String>(
        "repair.own",
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
          where g.transaction_id = $2 and g.app_id = $1 and g.binding_source <> 'shared'
            and (t.kind is null or t.kind in ('\(Transaction.Kind.autoRenewable.rawValue)',
              '\(Transaction.Kind.nonConsumable.rawValue)'))),
        decided as (
          insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
            binding_source, move)
          select app_id, environment, original_transaction_id, purchased_at, transaction_id, $3, 'support', move + 1
          from known on conflict do nothing returning transaction_id),
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select e.id, k.app_id, e.type, e.usr, k.transaction_id, k.receipt_id,
            jsonb_build_object('productId', k.product_id, 'originalTransactionId', k.original_transaction_id,
              'bindingSource', 'support')
          from known k cross join lateral (
            values ($4::uuid, '\(EventType.ownershipLost.rawValue)', k.holder),
              ($5::uuid, '\(EventType.ownershipGained.rawValue)', $3)) e(id, type, usr)
          where k.holder <> $3 and k.transaction_id in (select transaction_id from decided)),
        person(id) as (\(idsOfPerson("$3", of: "$1"))),
        addressed as (
          select k.*, coalesce(\(tokenOfPerson), $8) as token
          from known k
          where $7 and k.holder not in (select id from person) and k.transaction_id in (select transaction_id from decided)
            and k.environment in ('\(Transaction.production)', '\(Transaction.sandbox)')
            and not exists (
              select from transactions later
                cross join lateral (select 1 from grants where transaction_id = later.transaction_id offset 0) g
              where later.original_transaction_id = k.original_transaction_id and later.app_id = k.app_id
                and later.environment = k.environment and later.purchased_at > k.purchased_at)),
        issued as (
          insert into user_tokens (app_id, token, user_id, source)
          select app_id, token, $3, 'issued' from addressed where token = $8
          on conflict do nothing),
        apple_update as (
          insert into apple_updates as e (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
          select transaction_id, '\(AppleUpdate.Kind.setToken.rawValue)', app_id, environment, original_transaction_id,
            purchased_at, token
          from addressed where token is distinct from app_account_token
          on conflict (transaction_id, kind) do update set
            token = excluded.token, former_tokens = e.former_tokens || e.token, state = 'open', attempt = 0, reason = null,
            http_status = null, code = null, due_at = now(), ended_at = null
          where e.token <> excluded.token or e.state in ('refused', 'superseded')),
        audited as (
          insert into audits (actor, action, details)
          select $6, 'support.own', jsonb_build_object('app', $1, 'transaction', transaction_id) from decided),
        due as (
          update receipts set due_at = now(), rescues = 0
          where state = 'held' and app_id = $1 and (select count(*) from decided) > 0 and id in (
            select receipt_id from outcomes where state = 'held' and reason = '\(Reason.transferReview.rawValue)'))
        select holder from known where transaction_id in (select transaction_id from decided)
        """,
        bind: {
            [
                .text($0.appID), .text($0.transactionID), .text($0.userID), .uuid($0.event(.ownershipLost)),
                .uuid($0.event(.ownershipGained)), .text($0.actor), .bool($0.isWrittenBack), .uuid(UUID()),
            ]
        },
        read: { row throws(PostgresError) in try row.text(0) })
}
