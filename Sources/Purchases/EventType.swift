/// The type of an event for the app's backend: one closed table. The raw value is the type in the feed and in the table
/// `events`.
///
/// Every writer takes its type from here. The page deploy/events.md says when each type is written and what the backend
/// does. The directory deploy/events has a JSON schema of each body. Tests hold table, page and schemas together (B8).
package enum EventType: String, Sendable, CaseIterable {
    case purchaseGranted = "purchase.granted"
    case purchaseConfirmed = "purchase.confirmed"
    case purchaseRevoked = "purchase.revoked"
    case purchaseReinstated = "purchase.reinstated"
    case purchaseHeld = "purchase.held"
    case possibleDoubleCharge = "purchase.possible_double_charge"
    case subscriptionStarted = "subscription.started"
    case subscriptionRenewed = "subscription.renewed"
    case subscriptionRecovered = "subscription.recovered"
    case subscriptionInGrace = "subscription.in_grace"
    case subscriptionInRetry = "subscription.in_retry"
    case subscriptionExpired = "subscription.expired"
    case subscriptionRevoked = "subscription.revoked"
    case subscriptionChanged = "subscription.changed"
    case priceConsent = "subscription.price_consent"
    case entitlementChanged = "entitlement.changed"
    case ownershipGained = "ownership.gained"
    case ownershipLost = "ownership.lost"
    case ownershipDisputed = "ownership.disputed"
    case orderPaid = "order.paid"
    case orderClosed = "order.closed"
    case orderRefunded = "order.refunded"
    case receiptParked = "receipt.parked"
    case endpointFailing = "endpoint.failing"
    case endpointRecovered = "endpoint.recovered"
    case endpointExhausted = "endpoint.exhausted"

    /// What an event is about.
    package enum Subject: Sendable, CaseIterable {
        /// One purchase at Apple.
        case purchase
        /// A subscription with all of its periods. The event names the period that it follows from.
        case chain
        /// The user to whom a purchase or a chain belongs.
        case ownership
        /// An order of another way of payment than Apple's. It has neither a transaction nor a receipt.
        case order
        /// A receipt of which no purchase need be known.
        case receipt
        /// An endpoint of the app's backend. It has no user, no transaction and no receipt.
        case endpoint
    }

    package var subject: Subject { row.subject }
    /// The version of Makegood that brought the type, as deploy/changelog.md names it.
    package var since: String { row.since }
    /// The number of the newest schema of the body, from 1 on. A later schema takes every event that a former one took.
    package var schema: Int { row.schema }
    /// The schema's file in deploy/events.
    package var schemaFile: String { "\(rawValue).\(schema).json" }
    /// Whether the feed names the transaction that an event of this type is about.
    package var namesTransaction: Bool {
        switch subject {
        case .purchase, .chain, .ownership: true
        case .order, .receipt, .endpoint: false
        }
    }
    /// Whether the feed names the receipt of an event of this type.
    package var namesReceipt: Bool { subject != .order && subject != .endpoint }
    /// Whether the feed names the user of an event of this type.
    package var namesUser: Bool { subject != .endpoint }

    private var row: (subject: Subject, since: String, schema: Int) {
        switch self {
        case .purchaseGranted, .purchaseConfirmed, .purchaseRevoked, .purchaseReinstated, .purchaseHeld,
            .possibleDoubleCharge:
            (.purchase, "0.1.0", 1)
        case .subscriptionStarted, .subscriptionRenewed, .subscriptionRecovered, .subscriptionInGrace,
            .subscriptionInRetry, .subscriptionExpired, .subscriptionRevoked, .subscriptionChanged, .priceConsent,
            .entitlementChanged:
            (.chain, "0.1.0", 1)
        case .ownershipGained, .ownershipLost, .ownershipDisputed: (.ownership, "0.1.0", 1)
        case .orderPaid, .orderClosed, .orderRefunded: (.order, "0.1.0", 1)
        case .receiptParked: (.receipt, "0.1.0", 1)
        case .endpointFailing, .endpointRecovered, .endpointExhausted: (.endpoint, "0.1.0", 1)
        }
    }
}
