package import Encoding
package import Foundation

/// Selects from a customer's transactions. Several values of one field mean any of them, several fields all of them
/// (AppleFacts 3.4).
package struct HistoryQuery: Sendable, Hashable {
    package enum ProductType: String, Sendable, CaseIterable {
        case autoRenewable = "AUTO_RENEWABLE"
        case nonRenewable = "NON_RENEWABLE"
        case consumable = "CONSUMABLE"
        case nonConsumable = "NON_CONSUMABLE"
    }

    /// By the date of the last change.
    package enum Sort: String, Sendable, CaseIterable {
        case ascending = "ASCENDING"
        case descending = "DESCENDING"
    }

    /// All there is: every type of product, finished or not, revoked or not, oldest first.
    package static let everything = HistoryQuery()

    /// In the order they are sent.
    private(set) var items: [ServerAPIClient.QueryItem] = []

    private init() {}

    /// - Parameters:
    ///   - purchasedFrom: of the purchase date, inclusive.
    ///   - purchasedBefore: of the purchase date, exclusive; may lie in the future.
    ///   - ownershipType: `PURCHASED`, `FAMILY_SHARED`, `ASSIGNED`.
    ///   - revoked: only revoked ones, or only others; nil for both.
    ///   - sort: nil is Apple's default, ascending.
    /// - Throws: ``InvalidRequest`` for dates that are none or leave no room, and for an empty name.
    package init(
        purchasedFrom: Date? = nil, purchasedBefore: Date? = nil, productIds: [String] = [],
        productTypes: [ProductType] = [], subscriptionGroupIdentifiers: [String] = [], ownershipType: String? = nil,
        revoked: Bool? = nil, sort: Sort? = nil
    ) throws(InvalidRequest) {
        if let purchasedFrom, let purchasedBefore, purchasedFrom >= purchasedBefore {
            throw InvalidRequest("startDate", "must lie before endDate")
        }
        try add("startDate", purchasedFrom)
        try add("endDate", purchasedBefore)
        for id in productIds { try add("productId", id) }
        for type in productTypes { try add("productType", type.rawValue) }
        for group in subscriptionGroupIdentifiers { try add("subscriptionGroupIdentifier", group) }
        if let ownershipType { try add("inAppOwnershipType", ownershipType) }
        if let revoked { try add("revoked", revoked ? "true" : "false") }
        if let sort { try add("sort", sort.rawValue) }
    }

    private mutating func add(_ name: String, _ value: String) throws(InvalidRequest) {
        guard !value.isEmpty else { throw InvalidRequest(name, "must not be empty") }
        items.append(.init(name: name, value: value))
    }

    private mutating func add(_ name: String, _ date: Date?) throws(InvalidRequest) {
        if let date { items.append(.init(name: name, value: String(try date.milliseconds(for: name)))) }
    }
}

/// Up to 20 transactions of a customer, still to be verified.
package struct HistoryPage: Page, Hashable {
    package static let cursorName = "revision"

    /// In an ascending history the same transaction comes again, with its new data, if it is upgraded or revoked while
    /// the pages are read: keep the newest by transactionId and signedDate.
    package let signedTransactions: [String]
    package let next: String?
    /// The cursor for the page after this one, also if there is no such page yet.
    package let revision: String?
    package let bundleId: String?
    package let appAppleId: Int64?
    package let environment: StoreEnvironment?

    package init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        signedTransactions = try fields.strings("signedTransactions") ?? []
        revision = fields.string("revision")
        next = try fields.next(revision, isEmpty: signedTransactions.isEmpty)
        bundleId = fields.string("bundleId")
        appAppleId = fields.int64("appAppleId")
        environment = fields.environment("environment")
    }
}

/// Up to 20 revoked transactions of a customer, oldest revocation first, still to be verified.
package struct RefundPage: Page, Hashable {
    package static let cursorName = "revision"

    package let signedTransactions: [String]
    package let next: String?
    package let revision: String?

    package init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        signedTransactions = try fields.strings("signedTransactions") ?? []
        revision = fields.string("revision")
        next = try fields.next(revision, isEmpty: signedTransactions.isEmpty)
    }
}

extension ServerAPIClient {
    /// A customer's transactions (Get Transaction History, version 2).
    ///
    /// - Parameters:
    ///   - id: any transactionId, originalTransactionId or appTransactionId of the customer.
    ///   - revision: of the last page read before, with the same query, to go on from there; then `environments` is the
    ///     one of that page.
    package func transactionHistory(
        ofCustomerWith id: String, _ query: HistoryQuery = .everything, after revision: String? = nil,
        in environments: [StoreEnvironment]
    ) -> Pages<HistoryPage> {
        Pages(
            self, Request(.transactionHistory, id, query: query.items, read: HistoryPage.init), after: revision,
            in: environments)
    }

    /// A customer's refunds (Get Refund History, version 2).
    ///
    /// - Parameters:
    ///   - id: any transactionId, originalTransactionId or appTransactionId of the customer.
    ///   - revision: of the last page read before, to go on from there; then `environments` is the one of that page.
    package func refundHistory(
        ofCustomerWith id: String, after revision: String? = nil, in environments: [StoreEnvironment]
    ) -> Pages<RefundPage> {
        Pages(self, Request(.refundHistory, id, read: RefundPage.init), after: revision, in: environments)
    }
}

extension AppleFields {
    /// The cursor of the next page, if `hasMore` says there is one. If the field is missing, Apple is asked until a
    /// page is empty: a transaction must not be lost for a missing field.
    fileprivate func next(_ cursor: String?, isEmpty: Bool) throws(FieldMismatch) -> String? {
        let hasMore = bool("hasMore")
        if hasMore == true, cursor == nil { throw FieldMismatch() }
        return hasMore ?? !isEmpty ? cursor : nil
    }
}
