import Encoding
package import Foundation

/// Days given to a subscriber before the next renewal, for free.
package struct RenewalExtension: Sendable, Hashable {
    package enum Reason: Int, Sendable, CaseIterable {
        case undeclared = 0
        case customerSatisfaction = 1
        case other = 2
        case serviceIssue = 3
    }

    package static let daysMax = 90

    package let days: Int
    package let reason: Reason
    /// Our id of the request, by which we know it again.
    package let requestIdentifier: String

    /// - Throws: ``InvalidRequest`` for other than 1 to 90 days or an empty identifier.
    package init(days: Int, reason: Reason, requestIdentifier: String) throws(InvalidRequest) {
        guard (1...Self.daysMax).contains(days) else {
            throw InvalidRequest("extendByDays", "must be 1 to \(Self.daysMax)")
        }
        guard !requestIdentifier.isEmpty else { throw InvalidRequest("requestIdentifier", "must not be empty") }
        self.days = days
        self.reason = reason
        self.requestIdentifier = requestIdentifier
    }

    fileprivate var members: [String: JSON] {
        [
            "extendByDays": .integer(Int64(days)), "extendReasonCode": .integer(Int64(reason.rawValue)),
            "requestIdentifier": .string(requestIdentifier),
        ]
    }
}

/// The subscribers of one product who get an extension.
package struct MassRenewalExtension: Sendable, Hashable {
    package let renewalExtension: RenewalExtension
    package let productId: String
    /// Three letters each (ISO 3166-1 alpha-3).
    package let storefrontCountryCodes: [String]?

    /// - Parameter storefrontCountryCodes: nil for all storefronts.
    /// - Throws: ``InvalidRequest`` for an empty product id, an empty list, or a code that is not three capital
    ///   letters.
    package init(
        _ renewalExtension: RenewalExtension, productId: String, storefrontCountryCodes: [String]? = nil
    ) throws(InvalidRequest) {
        guard !productId.isEmpty else { throw InvalidRequest("productId", "must not be empty") }
        if let codes = storefrontCountryCodes {
            let areCodes = codes.allSatisfy { code in
                code.utf8.count == 3 && code.utf8.allSatisfy { (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains($0) }
            }
            guard !codes.isEmpty, areCodes else {
                throw InvalidRequest("storefrontCountryCodes", "must be three capital letters each, one code at least")
            }
        }
        self.renewalExtension = renewalExtension
        self.productId = productId
        self.storefrontCountryCodes = storefrontCountryCodes
    }

    fileprivate var body: JSON {
        var members = renewalExtension.members
        members["productId"] = .string(productId)
        members["storefrontCountryCodes"] = storefrontCountryCodes.map { .array($0.map(JSON.string)) }
        return .object(members)
    }
}

/// What became of one extension.
package struct ExtendedRenewalDate: Sendable, Hashable {
    package let originalTransactionId: String?
    package let webOrderLineItemId: String?
    package let success: Bool?
    /// The new renewal date.
    package let effectiveDate: Date?

    init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        originalTransactionId = fields.string("originalTransactionId")
        webOrderLineItemId = fields.string("webOrderLineItemId")
        success = fields.bool("success")
        effectiveDate = fields.date("effectiveDate")
    }
}

/// How far a mass extension is.
package struct MassRenewalExtensionStatus: Sendable, Hashable {
    package let requestIdentifier: String?
    package let complete: Bool?
    package let completeDate: Date?
    package let succeededCount: Int64?
    package let failedCount: Int64?

    init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        requestIdentifier = fields.string("requestIdentifier")
        complete = fields.bool("complete")
        completeDate = fields.date("completeDate")
        succeededCount = fields.int64("succeededCount")
        failedCount = fields.int64("failedCount")
    }
}

extension ServerAPIClient {
    /// Gives one subscriber more days (Extend a Subscription Renewal Date).
    ///
    /// Apple does not say what a second request with the same identifier does: after a time-out, look at the renewal
    /// date before asking again.
    /// - Throws: `.api` with 4030004, 4030005 or 4030007, not retryable, for a subscription that may not be extended,
    ///   or not any more.
    package func extendRenewalDate(
        ofSubscription originalTransactionId: String, _ renewalExtension: RenewalExtension,
        in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<ExtendedRenewalDate> {
        try await ask(
            Request(
                .extendRenewalDate, originalTransactionId, body: .object(renewalExtension.members),
                read: ExtendedRenewalDate.init), in: environments)
    }

    /// Gives every eligible subscriber of a product more days (Extend Subscription Renewal Dates for All Active
    /// Subscribers): Apple's name for the request, nil if it gave none.
    ///
    /// Apple works on it for a while; ``massRenewalExtensionStatus(ofProduct:requestIdentifier:in:)`` tells how far it
    /// is.
    package func extendRenewalDates(
        _ extensions: MassRenewalExtension, in environment: StoreEnvironment
    ) async throws(AppStoreFailure) -> Answer<String?> {
        try await ask(
            Request(.extendRenewalDates, body: extensions.body) {
                AppleFields($0).string("requestIdentifier")
            }, in: [environment])
    }

    /// How far a mass extension is (Get Status of Subscription Renewal Date Extensions).
    ///
    /// - Throws: `.api` with 4040009, not retryable, for a request Apple does not know.
    package func massRenewalExtensionStatus(
        ofProduct productId: String, requestIdentifier: String, in environment: StoreEnvironment
    ) async throws(AppStoreFailure) -> Answer<MassRenewalExtensionStatus> {
        try await ask(
            Request(.renewalDateExtension, productId, requestIdentifier, read: MassRenewalExtensionStatus.init),
            in: [environment])
    }
}
