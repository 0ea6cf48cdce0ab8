import Encoding
import Foundation
import Ledger
import Purchases
import Settings

/// The timeline's entries about Apple's notifications and questions, and about the later life of granted purchases.
extension TimelineBuilder {
    var hearingLines: [TimelineEntry] {
        let hearing = rows.hearing
        return hearing.notifications.map(notification) + hearing.refundRequests.flatMap(refundRequest)
            + hearing.revocations.map(revocation) + hearing.consumption.map(consumption)
            + hearing.subscriptions.compactMap(subscription)
    }

    /// The way by which a receipt came: by a post, or from Apple without a post.
    static func arrival(of kind: String, as id: String, from source: String?, by poster: String?) -> String {
        switch source.flatMap(ReceiptSource.init(rawValue:)) {
        case .notification?: "Apple told of \(kind) that nobody had posted, as receipt \(id)"
        case .sweep?: "Makegood asked Apple, and got \(kind) that nobody had posted, as receipt \(id)"
        case .post?, nil: "\(poster ?? "somebody") posted \(kind) as receipt \(id)"
        }
    }

    private func notification(_ notification: TimelineHearing.Notification) -> TimelineEntry {
        let type = [notification.type, notification.subtype].compactMap(\.self).joined(separator: " ")
        var text = "Apple sent the notification \(type) about transaction \(notification.transactionId)"
        if notification.repeats > 0 { text += ", and \(notification.repeats) more times" }
        switch notification.state {
        case "ended": break
        case "received": text += "; a worker has yet to read it"
        default:
            text += "; it is \(notification.state)" + (notification.reason.map { ", because \($0)" } ?? "")
        }
        return TimelineEntry(
            notification.receivedAt, .notified, text,
            [
                ("notificationId", .string(notification.id.text)), ("type", .string(notification.type)),
                ("subtype", notification.subtype.map(JSONValue.string)), ("version", .integer(notification.version)),
                ("transactionId", .string(notification.transactionId)), ("state", .string(notification.state)),
                ("reason", notification.reason.map(JSONValue.string)), ("repeats", .integer(notification.repeats)),
                ("endedAt", notification.settledAt.map { .string($0.rfc3339) }),
            ])
    }

    private func refundRequest(_ request: TimelineHearing.RefundRequest) -> [TimelineEntry] {
        let id = request.transactionId
        var text = "Apple was asked for a refund of transaction \(id)"
        if audience.isSupport {
            if let reason = request.requestReason { text += " (\(reason))" }
            text += ", and asks how much of it was used"
            if let dueAt = request.dueAt { text += "; it is answered at \(dueAt.rfc3339)" }
        }
        let asked = TimelineEntry(
            request.askedAt, .refundAsked, text,
            [
                ("transactionId", .string(id)),
                ("caseId", audience.isSupport ? .string(request.caseId.text) : nil),
                ("requestReason", audience.isSupport ? request.requestReason.map(JSONValue.string) : nil),
            ],
            PlayerSentence(
                zh: "您向 Apple 申请了这笔购买的退款,是否退款由 Apple 决定。",
                en: "Apple was asked for a refund of this purchase; whether it is given is Apple's decision."))
        guard audience.isSupport, let endedAt = request.endedAt else { return [asked] }
        let answer =
            request.state == "answered"
            ? "Apple was told how much of transaction \(id) was used"
            : "Apple was not told how much of transaction \(id) was used"
                + (request.reason.map { ", because \($0)" } ?? "")
        return [
            asked,
            TimelineEntry(
                endedAt, .answeredApple, answer,
                [
                    ("transactionId", .string(id)), ("caseId", .string(request.caseId.text)),
                    ("state", .string(request.state)), ("reason", request.reason.map(JSONValue.string)),
                    ("answer", request.answer.flatMap { try? JSONValue(parsing: Array($0.utf8)) }),
                ]),
        ]
    }

    private func revocation(_ revocation: TimelineHearing.Revocation) -> TimelineEntry {
        let id = revocation.transactionId
        let isBack = revocation.kind == RevocationEntry.Kind.reinstated.rawValue
        let share = Self.percent(revocation.percentage)
        let goods = Self.text(revocation.goods)
        var text =
            isBack ? "Apple gave transaction \(id) back" : "Apple took transaction \(id) back: \(revocation.reason)"
        if !isBack, revocation.percentage > 0, revocation.percentage < Self.wholePercentage { text += ", \(share) %" }
        switch (revocation.takesBack, isBack) {
        case (true, false): text += "; \(goods) to be taken back from \(name(revocation.userId))"
        case (true, true): text += "; \(goods) to be given again to \(name(revocation.userId))"
        case (false, _): text += "; the goods stay"
        }
        return TimelineEntry(
            revocation.recordedAt, isBack ? .reinstated : .revoked, text,
            [
                ("transactionId", .string(id)), ("ordinal", .integer(revocation.ordinal)),
                ("user", .string(name(revocation.userId))), ("reason", .string(revocation.reason)),
                ("takesBack", .bool(revocation.takesBack)), ("percentage", .number(share)),
                ("goods", .goods(revocation.goods)), ("date", .string(revocation.at.rfc3339)),
            ], Self.sentence(revocation))
    }

    private func consumption(_ consumption: TimelineHearing.Consumption) -> TimelineEntry {
        let share = Self.percent(consumption.percentage)
        return TimelineEntry(
            consumption.reportedAt, .used,
            "the app backend said that \(share) % of transaction \(consumption.transactionId) was used",
            [("transactionId", .string(consumption.transactionId)), ("percentage", .number(share))])
    }

    /// The state that was told last; the events tell the states before. Nil: no follow-up has looked at the chain.
    private func subscription(_ subscription: TimelineHearing.Subscription) -> TimelineEntry? {
        guard let followedAt = subscription.followedAt else { return nil }
        let id = subscription.originalTransactionId
        var text = "subscription \(id) is \(subscription.state)"
        if let product = subscription.productId { text += ", with \(product)" }
        if let until = subscription.accessUntil { text += ", until \(until.rfc3339)" }
        return TimelineEntry(
            followedAt, .subscription, text,
            [
                ("originalTransactionId", .string(id)), ("state", .string(subscription.state)),
                ("transactionId", subscription.transactionId.map(JSONValue.string)),
                ("productId", subscription.productId.map(JSONValue.string)),
                ("accessUntil", subscription.accessUntil.map { .string($0.rfc3339) }),
                ("user", subscription.userId.map { .string(name($0)) }),
            ])
    }

    private static let wholePercentage = 100_000

    /// Thousandths of a percent as percent: 33333 is 33.333, 50000 is 50.
    private static func percent(_ thousandths: Int) -> String {
        let rest = thousandths % 1000
        guard rest > 0 else { return "\(thousandths / 1000)" }
        var decimals = String(String(rest + 1000).dropFirst())
        while decimals.hasSuffix("0") { decimals.removeLast() }
        return "\(thousandths / 1000).\(decimals)"
    }

    /// The sentence about it for the player.
    private static func sentence(_ revocation: TimelineHearing.Revocation) -> PlayerSentence? {
        if revocation.kind == RevocationEntry.Kind.reinstated.rawValue {
            return PlayerSentence(
                zh: "Apple 撤回了对这笔购买的退款或收回,这笔购买重新有效。",
                en: "Apple no longer takes this purchase back, so it is yours again.")
        }
        switch RevocationEntry.Reason(rawValue: revocation.reason) {
        case .refunded?: return PlayerSentence(.granted, .refunded)
        case .withdrawn?: return PlayerSentence(.granted, .withdrawn)
        case .upgraded?:
            return PlayerSentence(
                zh: "这笔购买已被另一项订阅取代,已发放的商品不受影响。",
                en: "Another subscription took the place of this purchase; what it brought stays yours.")
        case nil: return nil
        }
    }
}
