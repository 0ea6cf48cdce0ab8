package import Foundation

/// A reason to tell Apple nothing about a refund. The raw value is the word in SQL, metrics and the command's output.
package enum RefundSilence: String, Sendable, CaseIterable {
    /// The user has not agreed that Apple is told.
    case noConsent = "no_consent"
    /// Apple takes no answer any more.
    case tooLate = "too_late"
    /// Another customer bought the purchase and shares it: Apple takes no answer.
    case shared
    /// Apple's facts of the transaction are not known here.
    case notKnown = "not_known"
    /// A newer request of the same case is answered.
    case superseded
    /// The user was erased.
    case erased
    /// Apple has given the money back meanwhile.
    case decided
    /// Support said not to answer.
    case withheld
    /// The former system still gives the app's goods (``AppPolicy/Mode/shadow``).
    case shadow
    /// Apple said that it will never take the answer.
    case refused
}

/// The answer to Apple about a purchase whose refund Apple's customer asked for.
package struct RefundStatement: Sendable, Equatable {
    /// The raw value is Apple's word in version 2.
    package enum Delivery: String, Sendable, CaseIterable, Codable {
        case delivered = "DELIVERED"
        case qualityIssue = "UNDELIVERED_QUALITY_ISSUE"
        case wrongItem = "UNDELIVERED_WRONG_ITEM"
        case serverOutage = "UNDELIVERED_SERVER_OUTAGE"
        case other = "UNDELIVERED_OTHER"
    }

    /// The raw value is Apple's word in version 2, but for ``unsaid``.
    package enum Preference: String, Sendable, CaseIterable, Codable {
        /// Apple is told nothing about it.
        case unsaid = "NONE"
        case decline = "DECLINE"
        case grantFull = "GRANT_FULL"
        /// Apple takes it for an auto-renewable subscription, and else beside a percentage between 0 and 100.
        case grantProrated = "GRANT_PRORATED"
    }

    /// The version of Apple's call, 2 or 1.
    package var apiVersion: Int
    package var isAutoRenewable: Bool
    package var providesSample: Bool
    package var delivery: Delivery
    /// How much of the purchase was used, in thousandths of a percent. Nil: not known, or an auto-renewable
    /// subscription, of which Apple computes it.
    package var percentage: Int?
    package var preference: Preference
    /// The purchase's own token, which version 1 takes.
    package var appAccountToken: UUID?

    package init(
        apiVersion: Int, isAutoRenewable: Bool, providesSample: Bool, delivery: Delivery, percentage: Int?,
        preference: Preference, appAccountToken: UUID? = nil
    ) {
        self.apiVersion = apiVersion
        self.isAutoRenewable = isAutoRenewable
        self.providesSample = providesSample
        self.delivery = delivery
        self.percentage = percentage
        self.preference = preference
        self.appAccountToken = appAccountToken
    }
}

/// The facts of this server about a purchase about whose refund Apple asks.
package struct RefundFacts: Sendable, Equatable {
    /// Whether Apple's facts of the transaction are stored.
    package var isKnown: Bool
    /// Whether the goods were handed out: where the app's backend acknowledges, whether it said so (S0-23). Otherwise
    /// what was given to its user counts as delivered, by this system or the former one.
    package var isDelivered: Bool
    package var isShared: Bool
    /// Nil: Apple does not say it.
    package var kind: Transaction.Kind?
    package var productID: String?
    /// Whether Apple says when it ends.
    package var expires: Bool
    package var isAdvancedCommerce: Bool
    package var appAccountToken: UUID?
    /// The account of the user who has the purchase, or of the one to whom it will belong as far as that is known. In
    /// the form of the tables; nil: nobody is known.
    package var userID: String?
    package var isErased: Bool
    package var hasConsent: Bool
    /// The consumption that the app's backend last reported, in thousandths of a percent. Nil: it reported none.
    package var consumed: Int?
    /// The time when Apple gave the money back, all or in part, by the newest facts. Nil: Apple gave none back.
    package var refundedAt: Date?

    package init(
        isKnown: Bool, isDelivered: Bool, isShared: Bool = false, kind: Transaction.Kind?,
        productID: String?,
        expires: Bool = false, isAdvancedCommerce: Bool = false, appAccountToken: UUID? = nil, userID: String?,
        isErased: Bool = false, hasConsent: Bool, consumed: Int? = nil, refundedAt: Date? = nil
    ) {
        self.isKnown = isKnown
        self.isDelivered = isDelivered
        self.isShared = isShared
        self.kind = kind
        self.productID = productID
        self.expires = expires
        self.isAdvancedCommerce = isAdvancedCommerce
        self.appAccountToken = appAccountToken
        self.userID = userID
        self.isErased = isErased
        self.hasConsent = hasConsent
        self.consumed = consumed
        self.refundedAt = refundedAt
    }
}

/// Support's changes of the answer. A value that support leaves out is as the rules say.
package struct RefundEdit: Sendable, Equatable, Codable {
    package var delivery: RefundStatement.Delivery?
    /// In thousandths of a percent.
    package var percentage: Int?
    package var preference: RefundStatement.Preference?
    /// True: Apple is told nothing.
    package var withhold: Bool?
    /// True: the answer is sent at once.
    package var sendNow: Bool?

    package init(
        delivery: RefundStatement.Delivery? = nil, percentage: Int? = nil,
        preference: RefundStatement.Preference? = nil, withhold: Bool? = nil, sendNow: Bool? = nil
    ) {
        self.delivery = delivery
        self.percentage = percentage
        self.preference = preference
        self.withhold = withhold
        self.sendNow = sendNow
    }
}

/// What becomes of Apple's question about a refund, at this moment.
package enum RefundAnswer: Sendable, Equatable {
    case send(RefundStatement)
    case silence(RefundSilence)
}

extension AppPolicy {
    /// The answer to Apple's question about a refund (B11).
    ///
    /// | the first row that holds | the answer |
    /// | Apple asked 12 hours ago or longer | `too_late` |
    /// | support said not to answer | `withheld` |
    /// | the app is in shadow | `shadow` |
    /// | Apple's facts are not known here | `not_known` |
    /// | Apple gave money back since it asked | `decided` |
    /// | another customer shares the purchase | `shared` |
    /// | the user was erased | `erased` |
    /// | the user has not agreed, or no user is known | `no_consent` |
    /// | anything else | what Apple is told |
    ///
    /// A purchase that was granted counts as delivered, unless the app's backend acknowledges what it hands out.
    ///
    /// - Parameter age: since Apple signed the question, in seconds.
    package func answer(
        to request: RefundRequest, _ facts: RefundFacts, edit: RefundEdit?, age: TimeInterval
    ) -> RefundAnswer {
        if age >= RefundRequest.answerWithin { return .silence(.tooLate) }
        if edit?.withhold == true { return .silence(.withheld) }
        if mode == .shadow { return .silence(.shadow) }
        guard facts.isKnown else { return .silence(.notKnown) }
        if let refundedAt = facts.refundedAt, refundedAt >= request.askedAt { return .silence(.decided) }
        if facts.isShared { return .silence(.shared) }
        if facts.isErased { return .silence(.erased) }
        guard facts.hasConsent else { return .silence(.noConsent) }
        return .send(statement(facts, edit))
    }

    private func statement(_ facts: RefundFacts, _ edit: RefundEdit?) -> RefundStatement {
        let delivery = edit?.delivery ?? (facts.isDelivered ? .delivered : .other)
        let isAutoRenewable = isAutoRenewable(facts)
        let percentage: Int? =
            switch (isAutoRenewable, delivery) {
            case (true, _): nil
            case (false, .delivered): (edit?.percentage ?? facts.consumed).map { min(max($0, 0), Revocation.whole) }
            case (false, _): 0
            }
        var preference = edit?.preference ?? refunds.preference(of: delivery, percentage)
        // The percentage may have changed since support asked for a part of the money.
        if preference == .grantProrated, !isAutoRenewable, !RefundStatement.isPart(percentage) { preference = .unsaid }
        return RefundStatement(
            apiVersion: facts.isAdvancedCommerce ? 1 : refunds.apiVersion, isAutoRenewable: isAutoRenewable,
            providesSample: refunds.providesSample, delivery: delivery, percentage: percentage, preference: preference,
            appAccountToken: facts.appAccountToken)
    }

    private func isAutoRenewable(_ facts: RefundFacts) -> Bool {
        switch facts.kind ?? facts.productID.flatMap(kind(of:)) {
        case let kind?: kind == .autoRenewable
        case nil: facts.expires
        }
    }

    /// The reason why Apple would not take an answer with this edit; nil: Apple would take it. The text begins with the
    /// part of the edit.
    package func objection(to edit: RefundEdit, _ facts: RefundFacts) -> String? {
        let delivery = edit.delivery ?? (facts.isDelivered ? .delivered : .other)
        if let percentage = edit.percentage {
            guard (0...Revocation.whole).contains(percentage) else { return "percentage must be 0 to 100" }
            if isAutoRenewable(facts) { return "percentage: Apple takes none for an auto-renewable subscription" }
            if percentage > 0, delivery != .delivered { return "percentage must be 0 for what was not delivered" }
        }
        guard edit.preference == .grantProrated, !isAutoRenewable(facts) else { return nil }
        let isPart = delivery == .delivered && RefundStatement.isPart(edit.percentage ?? facts.consumed)
        return isPart ? nil : "preference GRANT_PRORATED needs a percentage above 0 and below 100"
    }
}

extension RefundStatement {
    fileprivate static func isPart(_ percentage: Int?) -> Bool {
        percentage.map { $0 > 0 && $0 < Revocation.whole } ?? false
    }
}

extension RefundPolicy {
    /// For a purchase that was not delivered every preference but ``Preference/noPreference`` is to give all of the
    /// money back.
    fileprivate func preference(
        of delivery: RefundStatement.Delivery, _ percentage: Int?
    ) -> RefundStatement.Preference {
        switch (preference, delivery) {
        case (.noPreference, _): return .unsaid
        case (.decline, .delivered): return .decline
        case (.grant, _), (.decline, _): return .grantFull
        case (.byConsumption, .delivered):
            guard let percentage else { return .unsaid }
            if percentage >= declineFrom { return .decline }
            return percentage <= grantUpTo ? .grantFull : .grantProrated
        case (.byConsumption, _): return .grantFull
        }
    }
}
