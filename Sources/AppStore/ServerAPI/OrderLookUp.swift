package import Encoding

/// What Apple's order id stands for (Look Up Order ID).
package struct OrderLookUp: Sendable, Hashable {
    package struct Status: RawRepresentable, Hashable, Sendable {
        package var rawValue: Int

        package init(rawValue: Int) { self.rawValue = rawValue }

        package static let valid = Status(rawValue: 0)
        /// Unknown to Apple, or nothing of this app.
        package static let invalid = Status(rawValue: 1)
    }

    package let status: Status?
    /// Still to be verified. Empty where the order is not valid.
    package let signedTransactions: [String]

    package init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        status = fields.int("status").map(Status.init(rawValue:))
        signedTransactions = try fields.strings("signedTransactions") ?? []
    }
}

extension ServerAPIClient {
    /// The transactions of an order, by the number on the customer's invoice. Production only.
    ///
    /// An order that does not exist is an answer, not an error.
    package func lookUpOrder(_ orderId: String) async throws(AppStoreFailure) -> Answer<OrderLookUp> {
        try await ask(Request(.orderLookUp, orderId, read: OrderLookUp.init), in: [.production])
    }
}
