import Encoding
import Foundation
import Purchases

/// A system whose exports the importer reads as they are (`makegood import --from`): the names of its columns, and
/// which of its lines are purchases that Makegood has to know.
///
/// Sources, read in November 2026:
/// - RevenueCat, "Transactions feed" of the Scheduled Data Exports
///   (www.revenuecat.com/docs/integrations/scheduled-data-exports/transactions) and the pages of the data export
///   versions 3 to 7. All times are UTC, without a zone (`2023-01-01 08:27:06`). Stores are `app_store`, `play_store`,
///   `stripe`, `promotional`. Flags are `true` and `false` since version 4, `t` and `f` before. Earlier versions
///   separate by semicolons, later ones by commas. A refund is a time in the purchase's line; an upgrade sets none.
/// - Adapty, "Amazon S3" and "Google Cloud Storage", table of the events (adapty.io/docs/s3-exports), and "Webhook
///   event types and fields" for the names `vendor_product_id` and `purchase_date`. Times are ISO 8601 with a zone
///   (`2020-02-18T18:40:22.000000+0000`). A line is an event; a refund is a line of its own.
package enum ImportOrigin: String, Sendable, CaseIterable {
    case revenuecat, adapty

    /// The names that a column has in the system's files; a file that has several is read by the first.
    func names(of column: ImportColumn) -> [String] {
        switch (self, column) {
        case (.revenuecat, .transactionId): ["store_transaction_id"]
        case (.revenuecat, .originalTransactionId): ["original_store_transaction_id"]
        case (.revenuecat, .userId): ["rc_last_seen_app_user_id_alias"]
        case (.revenuecat, .firstUserId): ["rc_original_app_user_id"]
        case (.revenuecat, .productId): ["product_identifier"]
        case (.revenuecat, .purchasedAt): ["start_time"]
        case (.revenuecat, .isSandbox): ["is_sandbox"]
        case (.revenuecat, .ownership): ["ownership_type"]
        case (.revenuecat, .refundedAt): ["refunded_at"]
        case (.adapty, .transactionId): ["transaction_id"]
        case (.adapty, .originalTransactionId): ["original_transaction_id"]
        case (.adapty, .userId): ["customer_user_id"]
        case (.adapty, .productId): ["vendor_product_id", "product_id"]
        case (.adapty, .purchasedAt): ["purchase_date", "event_datetime"]
        case (.adapty, .environment): ["environment"]
        case (.adapty, .event): ["event_type"]
        case (_, .store): ["store"]
        default: []
        }
    }

    /// The columns that a file of the system must have.
    var required: [ImportColumn] {
        switch self {
        case .revenuecat:
            [
                .transactionId, .originalTransactionId, .userId, .productId, .purchasedAt, .store, .isSandbox,
                .refundedAt,
            ]
        case .adapty:
            [
                .transactionId, .originalTransactionId, .userId, .productId, .purchasedAt, .store, .environment,
                .event,
            ]
        }
    }

    /// The zone of times that name none; nil: such times are refused.
    var timeZone: TimeZone? {
        switch self {
        case .revenuecat: .gmt
        case .adapty: nil
        }
    }

    /// Whether the system made the id up itself, for a user who had not logged in: `$RCAnonymousID:87c6…`. The app's
    /// backend knows no user by it.
    func isAnonymous(_ userID: String) -> Bool {
        self == .revenuecat && userID.hasPrefix("$RCAnonymousID:")
    }

    /// Events of Adapty that stand for a purchase. `subscription_initial_purchase` is the earlier name of
    /// `subscription_started`.
    static let purchaseEvents: Set<String> = [
        "subscription_started", "subscription_initial_purchase", "subscription_renewed", "trial_started",
        "trial_converted", "non_subscription_purchase",
    ]
    static let refundEvents: Set<String> = ["subscription_refunded", "non_subscription_purchase_refunded"]
    /// The Mac App Store sells a purchase of the same app with ids of the same kind.
    static let ownStores: Set<String> = ["app_store", "mac_app_store"]

    /// The transactions that a file says were refunded in lines of their own. They are found before the import, because
    /// the refund comes after its purchase. The memory grows by about a hundred bytes for each refund.
    ///
    /// - Throws: `ImportFileError`; the errors of reading the file.
    package func refunds(in file: inout ImportFile) throws -> Set<String> {
        var found: Set<String> = []
        while let record = try file.next(requiring: required) {
            guard case .success(let values) = record.values, case .text(let event)? = values[.event],
                Self.refundEvents.contains(event)
            else { continue }
            switch values[.transactionId] {
            case .text(let id), .number(let id): found.insert(id)
            case .other, nil: continue
            }
        }
        return found
    }
}

/// Why the importer passes over a line of another system's file: the line is in order, and is no purchase that Makegood
/// has to know.
package enum ImportSkip: String, Sendable, CaseIterable {
    /// The purchase of another store, or a gift of the system itself (RevenueCat's `promotional`).
    case otherStore = "other_store"
    /// A sandbox purchase of an app that takes none.
    case sandbox
    /// The purchase was given and taken back. Apple's own data say so when it is posted here, and nothing is given.
    /// Taken over as given, it would stand in the way of buying the product anew.
    case refunded
    /// A family member's share: nobody paid for it. Makegood judges it when it is posted.
    case familyShared = "family_shared"
    /// The system knew no user of the app, only an id of its own. The purchase stays without an owner, and belongs to
    /// the user who posts it.
    case anonymousUser = "anonymous_user"
    /// An event that is no purchase: an expiry, a billing issue, a cancelled renewal.
    case noPurchase = "no_purchase"

    static func json(_ counts: [Self: Int]) -> JSONValue {
        .object(allCases.compactMap { kind in counts[kind].map { .init(kind.rawValue, .integer($0)) } })
    }
}

extension ImportFields {
    /// Why the line is passed over; nil: it is to be imported. Lines of Makegood's own format are never passed over.
    func skip() throws(ImportFault) -> ImportSkip? {
        guard let origin = app.origin else { return nil }
        let store = try required(.store) { column throws(ImportFault) in try text(column) }.lowercased()
        if !ImportOrigin.ownStores.contains(store) { return .otherStore }
        if origin == .adapty {
            let event = try required(.event) { column throws(ImportFault) in try text(column) }
            if ImportOrigin.refundEvents.contains(event) { return .refunded }
            if !ImportOrigin.purchaseEvents.contains(event) { return .noPurchase }
        }
        if try environment() == Transaction.sandbox, !app.takesSandbox { return .sandbox }
        if try text(.refundedAt) != nil { return .refunded }
        if let id = try appleID(.transactionId), app.refunded.contains(id) { return .refunded }
        if try text(.ownership)?.uppercased() == "FAMILY_SHARED" { return .familyShared }
        return isOfAnonymousUser ? .anonymousUser : nil
    }
}
