package import Encoding
package import Foundation

/// What Apple wants to know before it refunds a purchase, version 2 (AppleFacts 3.5).
package struct ConsumptionInformation: Sendable, Hashable {
    package enum DeliveryStatus: String, Sendable, CaseIterable {
        case delivered = "DELIVERED"
        case qualityIssue = "UNDELIVERED_QUALITY_ISSUE"
        case wrongItem = "UNDELIVERED_WRONG_ITEM"
        case serverOutage = "UNDELIVERED_SERVER_OUTAGE"
        case other = "UNDELIVERED_OTHER"
    }

    package enum RefundPreference: String, Sendable, CaseIterable {
        case decline = "DECLINE"
        case grantFull = "GRANT_FULL"
        case grantProrated = "GRANT_PRORATED"
    }

    /// Milliunits: 100000 is everything.
    package static let percentageMax = 100_000

    /// As it is sent.
    package let body: JSON

    /// - Parameters:
    ///   - customerConsented: that we tell Apple; without consent there is nothing to send.
    ///   - isAutoRenewable: the product, of which Apple then computes the percentage itself.
    ///   - consumptionPercentage: in milliunits, 100000 for everything. If the product was not delivered, only 0 is
    ///     allowed, and 0 is sent unasked.
    /// - Throws: ``InvalidRequest`` where Apple's rules forbid the combination.
    package init(
        customerConsented: Bool, sampleContentProvided: Bool, deliveryStatus: DeliveryStatus, isAutoRenewable: Bool,
        consumptionPercentage: Int? = nil, refundPreference: RefundPreference? = nil
    ) throws(InvalidRequest) {
        guard customerConsented else { throw InvalidRequest("customerConsented", "must be true") }
        let percentage = try Self.percentage(
            consumptionPercentage, isAutoRenewable: isAutoRenewable, isDelivered: deliveryStatus == .delivered)
        if refundPreference == .grantProrated, !isAutoRenewable {
            guard let percentage, percentage > 0, percentage < Self.percentageMax else {
                throw InvalidRequest(
                    "consumptionPercentage", "must be above 0 and below 100000 for a part of the money")
            }
        }
        var members: [String: JSON] = [
            "customerConsented": .bool(true), "sampleContentProvided": .bool(sampleContentProvided),
            "deliveryStatus": .string(deliveryStatus.rawValue),
        ]
        members["consumptionPercentage"] = percentage.map { .integer(Int64($0)) }
        members["refundPreference"] = refundPreference.map { .string($0.rawValue) }
        body = .object(members)
    }

    private static func percentage(
        _ given: Int?, isAutoRenewable: Bool, isDelivered: Bool
    ) throws(InvalidRequest) -> Int? {
        let field = "consumptionPercentage"
        if isAutoRenewable {
            guard given == nil else { throw InvalidRequest(field, "must not be sent for an auto-renewable") }
            return nil
        }
        guard isDelivered else {
            guard given ?? 0 == 0 else { throw InvalidRequest(field, "must be 0 for what was not delivered") }
            return 0
        }
        guard given.map((0...percentageMax).contains) ?? true else {
            throw InvalidRequest(field, "must be 0 to 100000")
        }
        return given
    }
}

/// The same in version 1, which Advanced Commerce purchases still need (AppleFacts 3.3, endpoint 9b).
package struct ConsumptionInformationV1: Sendable, Hashable {
    package enum ConsumptionStatus: Int, Sendable, CaseIterable {
        case undeclared = 0
        case notConsumed = 1
        case partiallyConsumed = 2
        case fullyConsumed = 3
    }

    package enum Platform: Int, Sendable, CaseIterable {
        case undeclared = 0
        case apple = 1
        case other = 2
    }

    package enum DeliveryStatus: Int, Sendable, CaseIterable {
        case delivered = 0
        case qualityIssue = 1
        case wrongItem = 2
        case serverOutage = 3
        case currencyChange = 4
        case other = 5
    }

    package enum UserStatus: Int, Sendable, CaseIterable {
        case undeclared = 0
        case active = 1
        case suspended = 2
        case terminated = 3
        case limited = 4
    }

    package enum RefundPreference: Int, Sendable, CaseIterable {
        case undeclared = 0
        case grant = 1
        case decline = 2
        case noPreference = 3
    }

    /// Age of the customer's account in days.
    package enum AccountTenure: Int, Sendable, CaseIterable {
        case undeclared = 0
        case upTo3 = 1
        case upTo10 = 2
        case upTo30 = 3
        case upTo90 = 4
        case upTo180 = 5
        case upTo365 = 6
        case longer = 7
    }

    /// How long the customer has used the app.
    package enum PlayTime: Int, Sendable, CaseIterable {
        case undeclared = 0
        case upTo5Minutes = 1
        case upTo1Hour = 2
        case upTo6Hours = 3
        case upTo24Hours = 4
        case upTo4Days = 5
        case upTo16Days = 6
        case longer = 7
    }

    /// In US dollars, over the life of the account.
    package enum LifetimeDollars: Int, Sendable, CaseIterable {
        case undeclared = 0
        case none = 1
        case below50 = 2
        case below100 = 3
        case below500 = 4
        case below1000 = 5
        case below2000 = 6
        case atLeast2000 = 7
    }

    package var sampleContentProvided: Bool
    package var deliveryStatus: DeliveryStatus
    package var appAccountToken: UUID?
    package var consumptionStatus = ConsumptionStatus.undeclared
    package var platform = Platform.undeclared
    package var accountTenure = AccountTenure.undeclared
    package var playTime = PlayTime.undeclared
    package var lifetimeDollarsPurchased = LifetimeDollars.undeclared
    package var lifetimeDollarsRefunded = LifetimeDollars.undeclared
    package var userStatus = UserStatus.undeclared
    package var refundPreference = RefundPreference.undeclared

    /// - Throws: ``InvalidRequest`` without the customer's consent: then there is nothing to send.
    package init(
        customerConsented: Bool, sampleContentProvided: Bool, deliveryStatus: DeliveryStatus
    ) throws(InvalidRequest) {
        guard customerConsented else { throw InvalidRequest("customerConsented", "must be true") }
        self.sampleContentProvided = sampleContentProvided
        self.deliveryStatus = deliveryStatus
    }

    /// As it is sent.
    package var body: JSON {
        func number(_ value: some RawRepresentable<Int>) -> JSON { .integer(Int64(value.rawValue)) }
        return .object([
            "customerConsented": .bool(true), "sampleContentProvided": .bool(sampleContentProvided),
            "deliveryStatus": number(deliveryStatus), "consumptionStatus": number(consumptionStatus),
            "platform": number(platform), "accountTenure": number(accountTenure), "playTime": number(playTime),
            "appAccountToken": .string(appAccountToken?.uuidString.lowercased() ?? ""),
            "lifetimeDollarsPurchased": number(lifetimeDollarsPurchased),
            "lifetimeDollarsRefunded": number(lifetimeDollarsRefunded),
            "userStatus": number(userStatus), "refundPreference": number(refundPreference),
        ])
    }
}

extension ServerAPIClient {
    /// Answers a `CONSUMPTION_REQUEST` (Send Consumption Information). Apple waits 12 hours for it.
    ///
    /// - Throws: `.api` with 4000185, not retryable, for a purchase shared by a family member.
    @discardableResult package func sendConsumption(
        of transactionId: String, _ information: ConsumptionInformation, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<Void> {
        try await ask(Request(.sendConsumption, transactionId, body: information.body), in: environments)
    }

    /// The same for what was bought through the Advanced Commerce API (Send Consumption Information, version 1).
    @discardableResult package func sendConsumption(
        of transactionId: String, _ information: ConsumptionInformationV1, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<Void> {
        try await ask(Request(.sendConsumptionV1, transactionId, body: information.body), in: environments)
    }
}
