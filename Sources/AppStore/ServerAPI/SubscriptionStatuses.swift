package import Encoding

/// The state of each subscription of a customer (Get All Subscription Statuses).
package struct SubscriptionStatuses: Sendable, Hashable {
    package struct Status: RawRepresentable, Hashable, Sendable {
        package var rawValue: Int

        package init(rawValue: Int) { self.rawValue = rawValue }

        package static let active = Status(rawValue: 1)
        package static let expired = Status(rawValue: 2)
        package static let billingRetry = Status(rawValue: 3)
        package static let gracePeriod = Status(rawValue: 4)
        package static let revoked = Status(rawValue: 5)
    }

    /// The latest of one chain of renewals.
    package struct LastTransaction: Sendable, Hashable {
        package let status: Status?
        package let originalTransactionId: String?
        /// Still to be verified.
        package let signedTransactionInfo: String?
        /// Still to be verified, and names no app: see ``SignedDataVerifier/renewalInfo(_:at:)``.
        package let signedRenewalInfo: String?

        init(_ object: [String: JSON]) throws(FieldMismatch) {
            let fields = AppleFields(object)
            status = fields.int("status").map(Status.init(rawValue:))
            originalTransactionId = fields.string("originalTransactionId")
            signedTransactionInfo = fields.string("signedTransactionInfo")
            signedRenewalInfo = fields.string("signedRenewalInfo")
        }
    }

    package struct Group: Sendable, Hashable {
        package let subscriptionGroupIdentifier: String?
        package let lastTransactions: [LastTransaction]

        init(_ object: [String: JSON]) throws(FieldMismatch) {
            let fields = AppleFields(object)
            subscriptionGroupIdentifier = fields.string("subscriptionGroupIdentifier")
            lastTransactions = try fields.objects("lastTransactions", LastTransaction.init) ?? []
        }
    }

    package let groups: [Group]
    package let bundleId: String?
    package let appAppleId: Int64?
    package let environment: StoreEnvironment?

    package init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        groups = try fields.objects("data", Group.init) ?? []
        bundleId = fields.string("bundleId")
        appAppleId = fields.int64("appAppleId")
        environment = fields.environment("environment")
    }
}

extension ServerAPIClient {
    /// - Parameters:
    ///   - id: any transactionId, originalTransactionId or appTransactionId of the customer.
    ///   - statuses: only these; empty for all.
    package func subscriptionStatuses(
        ofCustomerWith id: String, only statuses: [SubscriptionStatuses.Status] = [],
        in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<SubscriptionStatuses> {
        let query = statuses.map { QueryItem(name: "status", value: String($0.rawValue)) }
        return try await ask(
            Request(.subscriptionStatuses, id, query: query, read: SubscriptionStatuses.init), in: environments)
    }
}
