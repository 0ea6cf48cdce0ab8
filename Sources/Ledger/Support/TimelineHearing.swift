package import Foundation
package import Postgres
package import Purchases

/// Apple's notifications and questions about the purchases of a timeline, and the later life of these purchases.
package struct TimelineHearing: Sendable {
    /// A notification of Apple's.
    package struct Notification: Sendable, Decodable {
        package let id: UUID
        package let version: Int
        package let type: String
        package let subtype: String?
        package let transactionId: String
        package let state: String
        package let reason: String?
        package let receivedAt: Date
        package let settledAt: Date?
        package let dueAt: Date?
        /// How often Apple sent it again.
        package let repeats: Int
    }

    /// Apple took a granted purchase back, or gave it back.
    package struct Revocation: Sendable, Decodable {
        package let transactionId: String
        package let ordinal: Int
        package let userId: String
        package let kind: String
        package let reason: String
        package let takesBack: Bool
        /// In thousandths of a percent.
        package let percentage: Int
        package let goods: [AppPolicy.Goods]
        /// Apple's date.
        package let at: Date
        package let recordedAt: Date
    }

    /// Apple's question how much of a purchase was used.
    package struct RefundRequest: Sendable, Decodable {
        package let caseId: UUID
        package let transactionId: String
        /// As Apple gives it: `UNINTENDED_PURCHASE`, ….
        package let requestReason: String?
        package let askedAt: Date
        package let state: String
        package let reason: String?
        package let dueAt: Date?
        package let endedAt: Date?
        /// The body that was sent, a JSON object.
        package let answer: String?
    }

    /// A report of the app's backend about the consumption of a purchase.
    package struct Consumption: Sendable, Decodable {
        package let transactionId: String
        package let reportedAt: Date
        /// In thousandths of a percent.
        package let percentage: Int
    }

    /// A subscription of the timeline, as its app's backend was told of it last.
    package struct Subscription: Sendable, Decodable {
        package let originalTransactionId: String
        package let userId: String?
        package let state: String
        package let transactionId: String?
        package let productId: String?
        package let accessUntil: Date?
        package let followedAt: Date?
    }

    package var notifications: [Notification] = []
    package var revocations: [Revocation] = []
    package var refundRequests: [RefundRequest] = []
    package var consumption: [Consumption] = []
    package var subscriptions: [Subscription] = []

    package init() {}
}

extension Statements {
    package static let timelineNotifications = Statement<TimelineKeys, TimelineHearing.Notification>(
        "timeline.notifications",
        objects: """
            select n.* from unnest($2::text[]) as i(id) cross join lateral (
              select id, version, type, subtype, transaction_id as "transactionId", state, reason,
                extract(epoch from received_at) as "receivedAt", extract(epoch from settled_at) as "settledAt",
                extract(epoch from due_at) as "dueAt", repeats
              from notifications where transaction_id = i.id and \(isOfApp)
              order by received_at desc limit \(timelinePurchasesMax)) n
            """,
        bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineRevocations = Statement<TimelineKeys, TimelineHearing.Revocation>(
        "timeline.revocations",
        objects: """
            select transaction_id as "transactionId", ordinal, user_id as "userId", kind, reason,
              takes_back as "takesBack", percentage, goods, extract(epoch from at) as at,
              extract(epoch from recorded_at) as "recordedAt"
            from revocations where transaction_id = any($2::text[]) and \(isOfApp)
            """,
        bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineRefundRequests = Statement<TimelineKeys, TimelineHearing.RefundRequest>(
        "timeline.refund_requests",
        objects: """
            select r.* from unnest($2::text[]) as i(id) cross join lateral (
              select case_id as "caseId", transaction_id as "transactionId", request_reason as "requestReason",
                extract(epoch from asked_at) as "askedAt", state, reason, extract(epoch from due_at) as "dueAt",
                extract(epoch from ended_at) as "endedAt", answer::text as answer
              from refund_requests where transaction_id = i.id and \(isOfApp)
              order by asked_at desc limit \(timelinePurchasesMax)) r
            """,
        bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineConsumption = Statement<TimelineKeys, TimelineHearing.Consumption>(
        "timeline.consumption_reports",
        objects: """
            select c.* from unnest($2::text[]) as i(id) cross join lateral (
              select transaction_id as "transactionId", extract(epoch from reported_at) as "reportedAt", percentage
              from consumption_reports where transaction_id = i.id and \(isOfApp)
              order by reported_at desc limit \(timelinePurchasesMax)) c
            """,
        bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineSubscriptions = Statement<TimelineKeys, TimelineHearing.Subscription>(
        "timeline.chains",
        objects: """
            select c.original_transaction_id as "originalTransactionId", c.told_user_id as "userId", c.state,
              c.transaction_id as "transactionId", c.product_id as "productId",
              extract(epoch from c.expires_at) as "accessUntil", extract(epoch from c.followed_at) as "followedAt"
            from (select distinct environment, original_transaction_id from transactions
              where transaction_id = any($2::text[]) and \(isOfApp)) t
            cross join lateral (
              select original_transaction_id, told_user_id, state, transaction_id, product_id, expires_at, followed_at
              from chains where app_id = $1 and environment = t.environment
                and original_transaction_id = t.original_transaction_id and state is not null offset 0) c
            """,
        bind: { [.text($0.appID), .texts($0.transactions)] })
}
