import Foundation
import Postgres
import Purchases

extension Statements {
    /// A support decision about the owner of a held purchase.
    package struct SupportDecision: Sendable {
        package var appID: String
        package var transactionID: String
        /// The user as the tables name users.
        package var userID: String
        /// One of the items that are sold as the purchase's product.
        package var item: String?
        /// Why, for the audit.
        package var because: String
        /// Whether Apple can be asked about a bare id.
        package var canAsk: Bool
        /// Whether the owner's token is to be set at Apple.
        package var isWrittenBack: Bool
        /// Whether nothing is to be stored, only answered.
        package var isDryRun: Bool

        package init(
            appID: String, transactionID: String, userID: String, item: String? = nil, because: String,
            canAsk: Bool = true, isWrittenBack: Bool = false, isDryRun: Bool = false
        ) {
            self.appID = appID
            self.transactionID = transactionID
            self.userID = userID
            self.item = item
            self.because = because
            self.canAsk = canAsk
            self.isWrittenBack = isWrittenBack
            self.isDryRun = isDryRun
        }
    }

    /// A receipt of the app that shows a purchase and has not granted it.
    struct ShowingReceipt: Sendable {
        let id: UUID
        let showing: UndecidedPurchase.Showing
    }

    /// The receipts that show a purchase and have not granted it, in the order of ``UndecidedPurchase/showings``.
    static let readShowings = Statement<SupportDecision, ShowingReceipt>(
        "give.read_showings",
        """
        select r.id, o.state, o.reason, o.granted_as, r.settled_at is null,
          r.kind = '\(Proof.Kind.identifier.rawValue)',
          r.kind = '\(Proof.Kind.identifier.rawValue)' or \(isStored)
            or exists (select from kept_payloads k where k.receipt_id = r.id)
        from outcomes o cross join lateral (
          select id, kind, received_at, settled_at from receipts where id = o.receipt_id and app_id = $1 offset 0) r
        where o.transaction_id = $2 and o.state <> 'granted'
        order by r.settled_at is null desc, o.state = 'held' desc, o.granted_as nulls last, r.id
        """,
        bind: { [.text($0.appID), .text($0.transactionID)] },
        read: { row throws(PostgresError) in
            ShowingReceipt(
                id: try row.uuid(0),
                showing: .init(
                    state: try row.word(1), reason: try row.optionalText(2).flatMap(Reason.init(rawValue:)),
                    grantedAs: try row.optionalText(3), isOpen: try row.bool(4), isBareID: try row.bool(5),
                    hasProof: try row.bool(6)))
        })

    /// What stands against giving a purchase to a user, beside its receipts.
    struct PurchaseToGive: Sendable {
        let isGrantOfApp: Bool?
        let isImported: Bool
        let isTakenBack: Bool
        let isShared: Bool
        /// The user who has the named user's things by now.
        let receiverID: String
        let isForStranger: Bool
    }

    /// One row: the grants and facts of the purchase under the id by which it would be given, and the user who is to
    /// have it.
    static let readPurchaseToGive = Statement<SupportDecision, PurchaseToGive>(
        "give.read_purchase",
        """
        select (select app_id = $1 from grants where transaction_id = $2),
          exists (select from imported_grants where transaction_id = $2 and app_id = $1),
          coalesce(t.ending in ('\(Reason.refunded.rawValue)', '\(Reason.withdrawn.rawValue)'), false),
          coalesce(t.is_shared, false), receiver.user_id,
          exists (select from user_protection where fingerprint <> '') and not exists (select from users u
            where u.app_id = $1 and u.user_key = receiver.user_id and u.erased_at is null)
        from (select \(person("$3", of: "$1")) as user_id offset 0) receiver
        left join lateral (
          select \(takenBack("transactions")) as ending, ownership in (\(sharedOwnerships)) as is_shared
          from transactions where transaction_id = $2 and app_id = $1 offset 0) t on true
        """,
        bind: { [.text($0.appID), .text($0.transactionID), .text($0.userID)] },
        read: { row throws(PostgresError) in
            PurchaseToGive(
                isGrantOfApp: try row.optionalBool(0), isImported: try row.bool(1), isTakenBack: try row.bool(2),
                isShared: try row.bool(3), receiverID: try row.text(4), isForStranger: try row.bool(5))
        })

    /// A support decision as it is stored.
    struct StoredDecision: Sendable {
        let decision: SupportDecision
        let receiverID: String
        /// Leads to the receiver; nil: Apple is not told.
        let token: UUID?
    }

    /// Stores a decision. While nothing is granted, a later decision replaces an earlier one.
    static let writeDecision = Statement<StoredDecision, Void>(
        "give.write_decision",
        """
        insert into support_decisions (app_id, transaction_id, user_id, item, token) values ($1, $2, $3, $4, $5)
        on conflict (app_id, transaction_id) do update set user_id = excluded.user_id, item = excluded.item,
          token = excluded.token, decided_at = now()
        """,
        bind: {
            [
                .text($0.decision.appID), .text($0.decision.transactionID), .text($0.receiverID),
                .text($0.decision.item), .uuid($0.token),
            ]
        })

    /// Makes receipts due that are still open, in the order of their ids: two persons may decide about purchases of the
    /// same receipts. Verdicts that were matched before are stale, because they would hold the purchase for another
    /// while.
    static let judgeAgain = Statement<[UUID], Void>(
        "give.judge_again",
        """
        update receipts set due_at = now(), rescues = 0, attempt = attempt + 1
        where id = any(array(
          select id from receipts where id = any($1::uuid[]) and settled_at is null order by id for no key update))
        """,
        bind: { [.uuids($0)] })
}
