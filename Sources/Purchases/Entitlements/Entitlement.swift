package import Foundation

/// An entitlement of one user, present or past: one subscription, or all purchases of one product of another kind.
package struct Entitlement: Sendable, Equatable {
    /// A purchase that the entitlement follows from.
    package struct Purchase: Sendable, Equatable {
        package var transactionID: String
        package var originalID: String

        package init(transactionID: String, originalID: String) {
            self.transactionID = transactionID
            self.originalID = originalID
        }
    }

    package var productID: String
    /// Never ``Transaction/Kind/consumable``.
    package var kind: Transaction.Kind
    package var environment: String
    /// Of a product that is no subscription: active, expired or revoked.
    package var state: SubscriptionState
    /// Whether the user may use the product now, by the app's policies.
    package var isActive: Bool
    /// Whether this entitlement counts: of the active entitlements of a group the one of the highest level.
    package var isCurrent = false
    /// The time when the entitlement ends or ended, by the facts that are known now. Nil: never.
    package var until: Date?
    package var group: String?
    package var level: Int?
    /// Whether another customer of Apple's bought the product and shares it with the user.
    package var isShared: Bool
    /// Of a subscription: whether Apple charges the next period. Nil: Apple has not said it.
    package var willRenew: Bool?
    /// Of a subscription with a commitment: when the commitment ends, as far as a source has named it.
    package var commitmentUntil: Date?
    /// Of a subscription with a commitment: whether another one follows, where Apple says it.
    package var commitmentRenews: Bool?
    /// Of a subscription: the product of the next period, where Apple says it.
    package var nextProductID: String?
    /// In the order of their purchase.
    package var purchases: [Purchase]

    package init(
        productID: String, kind: Transaction.Kind, environment: String, state: SubscriptionState, isActive: Bool,
        until: Date?, terms: EntitlementTerms?, isShared: Bool, purchases: [Purchase]
    ) {
        self.productID = productID
        self.kind = kind
        self.environment = environment
        self.state = state
        self.isActive = isActive
        self.until = until
        group = terms?.group
        level = terms?.level
        self.isShared = isShared
        self.purchases = purchases
    }
}
