import Foundation

/// A sale: the body of `POST /control/purchases`.
///
/// A field left out has the value of a plain consumable bought now, in production, for 0.99 USD, without an account
/// token. Times are UNIX milliseconds.
package struct SaleRequest: ControlBody, Sendable {
    /// Bundle id, or the short name it was registered under.
    package var app: String
    package var productId: String
    /// 1 to 10 (Apple's limit); default 1.
    package var quantity: Int?
    /// A UUID.
    package var appAccountToken: String?
    /// `Production` (default) or `Sandbox`.
    package var environment: StoreEnvironment?
    /// Default `Consumable`.
    package var type: ProductType?
    package var purchaseDate: Int64?
    package var originalPurchaseDate: Int64?
    /// Default: the new transaction's own id.
    package var originalTransactionId: String?
    /// The chain that this one continues, after a migration or a change between a subscription and a bundle.
    package var previousOriginalTransactionId: String?
    /// Subscriptions only; default for auto-renewables: 30 days after purchaseDate.
    package var expiresDate: Int64?
    package var subscriptionGroupIdentifier: String?
    /// Empty: Apple names no billing event.
    package var webOrderLineItemId: String?
    /// `PURCHASED` (default), `FAMILY_SHARED`, `ASSIGNED`.
    package var inAppOwnershipType: String?
    /// `PURCHASE`, `RENEWAL`; default: `RENEWAL` for an auto-renewable that names an originalTransactionId.
    package var transactionReason: String?
    package var storefront: String?
    package var storefrontId: String?
    package var currency: String?
    /// Thousandths of the currency; default 990 times quantity.
    package var price: Int64?
    package var isUpgraded: Bool?
    /// When the JWS says it was signed; default now. Not stored.
    package var signedDate: Int64?
    /// How many to sell at once: 1 to 10,000. Over HTTP the answer is then an array, even for 1.
    package var count: Int?
    /// Earlier purchases that the receipt shows as well, before the new one; at most 1,000.
    package var receiptOf: [String]?
    /// Name of the Apple account that buys; default: that of the originalTransactionId's purchase, else the
    /// appAccountToken, else an account of its own.
    package var customer: String?
    /// Apple accounts of family members who get the purchase too: at most 5, for non-consumables and auto-renewables. A
    /// member who shares the originalTransactionId's purchase already gets a renewal.
    package var family: [String]?
    /// Default: an order of its own. Up to 64 capital letters and digits.
    package var orderId: String?
    /// 1 introductory, 2 promotional, 3 offer code, 4 win-back.
    package var offerType: Int?
    package var offerIdentifier: String?
    /// `FREE_TRIAL`, `PAY_AS_YOU_GO`, `PAY_UP_FRONT`, `ONE_TIME`.
    package var offerDiscountType: String?
    /// ISO 8601 duration, e.g. `P1M`.
    package var offerPeriod: String?
    /// How long the App Store Server API does not know the purchase: 0 to 86,400,000; default: the store's setting.
    package var visibleAfterMilliseconds: Int64?
    /// False: the store makes no receipt (over HTTP, an empty string). That saves a third of the answer, and an RSA
    /// signature, which takes longer than all the rest.
    package var receipts: Bool?
    /// Default `sha256`.
    package var receiptStyle: ReceiptStyle?
    /// Auto-renewables only: the subscription lives, with periods of this ISO 8601 duration (`P1W`, `P1M`, `PT5M`);
    /// default: the store's setting, else it ends with this period.
    package var period: String?
    /// Auto-renewables only: a purchase of so many seats, 1 to 10,000. `price` is then the price of each.
    package var seats: Int?
    /// False: Apple sends no notification of this sale. True: also of a one-time product (ONE_TIME_CHARGE).
    package var notify: Bool?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, productId, quantity, appAccountToken, environment, type, purchaseDate, originalPurchaseDate
        case originalTransactionId, previousOriginalTransactionId, expiresDate, subscriptionGroupIdentifier,
            webOrderLineItemId, inAppOwnershipType
        case transactionReason, storefront, storefrontId, currency, price, isUpgraded, signedDate, count, receiptOf
        case receipts, receiptStyle, customer, family, orderId, offerType, offerIdentifier, offerDiscountType,
            offerPeriod
        case visibleAfterMilliseconds, period, seats, notify
    }

    package init(
        app: String,
        productId: String,
        quantity: Int? = nil,
        appAccountToken: String? = nil,
        environment: StoreEnvironment? = nil,
        type: ProductType? = nil
    ) {
        self.app = app
        self.productId = productId
        self.quantity = quantity
        self.appAccountToken = appAccountToken
        self.environment = environment
        self.type = type
    }

    /// How many a single call may sell.
    static let countMax = 10_000
    /// How many purchases one receipt may show.
    static let receiptMax = 1000
    /// Apple's families have six members; one of them buys.
    static let familyMax = 5
    /// Apple's limit on the quantity of one consumable purchase.
    static let quantityMax = 10
    /// How many seats one purchase may have.
    static let seatsMax = 10_000
    /// The largest time that is accepted: 9999-12-31.
    static let millisecondsMax: Int64 = 253_402_300_799_000

    /// Refuses what no App Store would sell.
    func validate() throws(ControlError) {
        try Self.check(app, "app")
        try Self.check(productId, "productId")
        for (field, value) in [
            ("subscriptionGroupIdentifier", subscriptionGroupIdentifier), ("storefront", storefront),
            ("storefrontId", storefrontId), ("currency", currency), ("customer", customer),
            ("webOrderLineItemId", webOrderLineItemId.flatMap { $0.isEmpty ? nil : $0 }),
        ] {
            if let value { try Self.check(value, field) }
        }
        if let quantity, !(1...Self.quantityMax).contains(quantity) {
            throw ControlError(field: "quantity", "must be 1 to \(Self.quantityMax)")
        }
        if let count, !(1...Self.countMax).contains(count) {
            throw ControlError(field: "count", "must be 1 to \(Self.countMax)")
        }
        if let appAccountToken, UUID(uuidString: appAccountToken) == nil {
            throw ControlError(field: "appAccountToken", "must be a UUID")
        }
        if let originalTransactionId { try Self.checkId(originalTransactionId, "originalTransactionId") }
        if let previousOriginalTransactionId {
            try Self.checkId(previousOriginalTransactionId, "previousOriginalTransactionId")
        }
        if let inAppOwnershipType, !["PURCHASED", "FAMILY_SHARED", "ASSIGNED"].contains(inAppOwnershipType) {
            throw ControlError(field: "inAppOwnershipType", "must be PURCHASED, FAMILY_SHARED or ASSIGNED")
        }
        if let transactionReason, !["PURCHASE", "RENEWAL"].contains(transactionReason) {
            throw ControlError(field: "transactionReason", "must be PURCHASE or RENEWAL")
        }
        if let price, price < 0 { throw ControlError(field: "price", "must not be negative") }
        if let receiptOf, receiptOf.count >= Self.receiptMax {
            throw ControlError(field: "receiptOf", "must name fewer than \(Self.receiptMax) purchases")
        }
        for (field, value) in [
            ("purchaseDate", purchaseDate), ("originalPurchaseDate", originalPurchaseDate),
            ("expiresDate", expiresDate), ("signedDate", signedDate),
        ] {
            try Self.checkTime(value, field)
        }
        try Self.checkOffer(
            type: offerType, identifier: offerIdentifier, discount: offerDiscountType, period: offerPeriod)
        if let orderId, !OrderId.isWellFormed(orderId) {
            throw ControlError(field: "orderId", "must be 1 to 64 capital letters and digits")
        }
        if let visibleAfterMilliseconds, !(0...SettingsRequest.millisecondsMax).contains(visibleAfterMilliseconds) {
            throw ControlError(
                field: "visibleAfterMilliseconds", "must be 0 to \(SettingsRequest.millisecondsMax)")
        }
        try validateFamily()
        if let period {
            guard type == .autoRenewable else {
                throw ControlError(field: "period", "belongs to auto-renewables")
            }
            try Period.check(period, "period")
        }
        if let seats {
            guard type == .autoRenewable, quantity == nil, (1...Self.seatsMax).contains(seats) else {
                throw ControlError(
                    field: "seats", "must be 1 to \(Self.seatsMax), for an auto-renewable without a quantity")
            }
        }
    }

    /// The end of a subscription's first period. A free or prepaid offer lasts as long as its own period says.
    private func end(from start: Int64) -> Int64 {
        let isWhole = offerDiscountType == "FREE_TRIAL" || offerDiscountType == "PAY_UP_FRONT"
        let length = period == nil ? nil : (isWhole ? offerPeriod : nil).flatMap { Period($0) }
        return (length ?? period.flatMap { Period($0) })?.after(start) ?? start + 30 * 86_400_000
    }

    private func validateFamily() throws(ControlError) {
        guard let family else { return }
        guard type == .nonConsumable || type == .autoRenewable else {
            throw ControlError(field: "family", "only non-consumables and auto-renewables can be shared")
        }
        guard (1...Self.familyMax).contains(family.count), Set(family).count == family.count else {
            throw ControlError(field: "family", "must name 1 to \(Self.familyMax) different accounts")
        }
        for member in family { try Self.check(member, "family") }
    }

    /// The purchase under the ids the ledger chose. `app` is the bundle id.
    func purchase(
        transactionId: String,
        lineItemId: String,
        app: String,
        now: Int64,
        propagationMilliseconds: Int64 = 0,
        familyOf: String? = nil
    ) -> Purchase {
        let type = type ?? .consumable
        let subscription = type == .autoRenewable
        let purchaseDate = purchaseDate ?? now
        let quantity = seats ?? quantity ?? 1
        let delay = visibleAfterMilliseconds ?? propagationMilliseconds
        return Purchase(
            transactionId: transactionId,
            originalTransactionId: originalTransactionId ?? transactionId,
            previousOriginalTransactionId: previousOriginalTransactionId,
            app: app,
            productId: productId,
            type: type,
            quantity: quantity,
            environment: environment ?? .production,
            appAccountToken: appAccountToken?.lowercased(),
            purchaseDate: purchaseDate,
            originalPurchaseDate: originalPurchaseDate ?? purchaseDate,
            expiresDate: expiresDate ?? (subscription ? end(from: purchaseDate) : nil),
            webOrderLineItemId: webOrderLineItemId.map { $0.isEmpty ? nil : $0 } ?? (subscription ? lineItemId : nil),
            subscriptionGroupIdentifier: subscriptionGroupIdentifier ?? (subscription ? "20000001" : nil),
            inAppOwnershipType: inAppOwnershipType ?? "PURCHASED",
            transactionReason: transactionReason
                ?? (subscription && originalTransactionId != nil ? "RENEWAL" : "PURCHASE"),
            storefront: storefront ?? "USA",
            storefrontId: storefrontId ?? "143441",
            currency: currency ?? "USD",
            price: price ?? 990 * Int64(seats == nil ? quantity : 1),
            offerType: offerType,
            offerIdentifier: offerIdentifier,
            offerDiscountType: offerDiscountType,
            offerPeriod: offerPeriod,
            orderId: orderId,
            familyOf: familyOf,
            isUpgraded: isUpgraded,
            customer: customer,
            visibleAt: delay > 0 ? now + delay : nil,
            isMultiSeat: seats == nil ? nil : true
        )
    }

    /// The share of `purchase` that a family member gets. `original` is the member's own first transaction, for a
    /// renewal.
    func share(of purchase: Purchase, with member: String, original: Purchase?) -> SaleRequest {
        var share = self
        share.customer = member
        share.appAccountToken = nil
        share.inAppOwnershipType = "FAMILY_SHARED"
        share.originalTransactionId = original?.transactionId
        share.originalPurchaseDate = original?.originalPurchaseDate
        share.purchaseDate = purchase.purchaseDate
        share.transactionReason = purchase.transactionReason
        share.webOrderLineItemId = nil
        share.orderId = nil
        return share
    }

    /// Refuses an offer that Apple's fields cannot express.
    static func checkOffer(
        type: Int?, identifier: String?, discount: String?, period: String?
    ) throws(ControlError) {
        if let type, !(1...4).contains(type) { throw ControlError(field: "offerType", "must be 1 to 4") }
        if let identifier { try check(identifier, "offerIdentifier") }
        let discounts = ["FREE_TRIAL", "PAY_AS_YOU_GO", "PAY_UP_FRONT", "ONE_TIME"]
        if let discount, !discounts.contains(discount) {
            throw ControlError(field: "offerDiscountType", "must be one of \(discounts.joined(separator: ", "))")
        }
        if let period { try check(period, "offerPeriod") }
    }

    /// A name: 1 to 255 bytes without control characters.
    static func check(_ value: String, _ field: String) throws(ControlError) {
        guard (1...255).contains(value.utf8.count), value.utf8.allSatisfy({ $0 >= 0x20 && $0 != 0x7F }) else {
            throw ControlError(field: field, "must be 1 to 255 bytes without control characters")
        }
    }

    /// A transaction id: 1 to 32 digits.
    static func checkId(_ value: String, _ field: String) throws(ControlError) {
        guard isTransactionId(value) else { throw ControlError(field: field, "must be 1 to 32 digits") }
    }

    static func checkTime(_ value: Int64?, _ field: String) throws(ControlError) {
        if let value, !(0...millisecondsMax).contains(value) {
            throw ControlError(field: field, "must be UNIX milliseconds from 0 to \(millisecondsMax)")
        }
    }

    static func isTransactionId(_ value: some StringProtocol) -> Bool {
        (1...32).contains(value.utf8.count) && value.utf8.allSatisfy { (0x30...0x39).contains($0) }
    }
}
