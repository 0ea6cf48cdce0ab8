import AppStore
import Encoding
import Foundation
import HTTPTypes
import Ledger
import Purchases
package import Service
package import Settings

/// The body of `POST /v1/orders`, checked by the rules of ingest and completed from the catalogue.
///
/// Before a payment ingest refuses a contradiction, so that no user pays for something else than was meant. With a
/// `transactionId` the payment is made already (S2-17, S3-23): then the catalogue's present offers refuse no order, and
/// the order promises nothing, because the goods are those of the purchase's date.
package struct OrderRequest: Sendable {
    package let appID: String
    package let userID: String
    /// Unknown fields, and fields that ingest does not keep here.
    package private(set) var ignored: [String]
    let idempotencyKey: String?
    private let fields: IntakeFields

    /// - Parameters:
    ///   - apps: the apps of the configuration.
    ///   - placeholders: what names nobody where a user is named.
    /// - Throws: as `IntakeFields`; 403 for an app, a user or a promotion that the caller may not name; 422 for a
    ///   placeholder.
    package init(
        body: [UInt8], caller: Caller, apps: Set<String>, placeholders: PlaceholderUsers
    ) throws(Problem) {
        var fields = try IntakeFields(body: body, of: .order)
        appID = try caller.app(fields.appID, of: apps)
        guard let userID = try caller.user(fields.userID, noneOf: placeholders) else {
            throw .incomplete(.noUser, "must be there", field: "userId")
        }
        self.userID = userID
        idempotencyKey = fields.idempotencyKey
        ignored = fields.unknown
        if let promotion = fields.promotion, !caller.mayOrder(promotion: promotion) {
            guard fields.transactionID != nil else { throw .promotionNotAllowed }
            fields.promotion = nil
            ignored.append("promotion")
        }
        self.fields = fields
    }

    /// The order as the database stores it.
    ///
    /// - Parameters:
    ///   - id: a new id, which is no secret.
    ///   - keys: the user keys, where the tables hold keys instead of ids.
    ///   - now: decides which version of an item is offered.
    /// - Throws: 422 for an item that is not sold, or not like this; 409 for a promotion that is over.
    mutating func order(
        id: UUID, app: AppConfiguration, catalogue: Catalogue, keys: UserKeys?, now: Date
    ) throws(Problem) -> NewOrder {
        let selection = try selection(catalogue, now)
        let user = keys?.key(of: userID, app: appID) ?? userID
        let target = try fields.completedTarget { (column, part) throws(Problem) in
            throw .incomplete(.contradiction, "is not what target.\(part) says", field: column)
        }
        let text = JSONValue.object(target).canonical.text
        return NewOrder(
            id: id, appID: appID, userID: user, productID: selection.productID, item: selection.item,
            quantity: quantity,
            promotion: fields.promotion, channel: fields.channel ?? NewOrder.channelDefault,
            environment: environment(app, user), offer: selection.offer, payBy: app.orders.payBy,
            target: keys?.protecting(text, of: userID, app: appID) ?? text,
            details: keys?.protecting(fields.details, of: userID, app: appID) ?? fields.details,
            installationTokenSHA256: fields.installationTokenSHA256,
            debounceKey: debounceKey(user, selection, target), debounce: app.orders.debounce,
            idempotencyKey: fields.idempotencyKey.map { keys?.digest($0, app: appID) ?? $0 }
                ?? fields.transactionID.map { "transaction \($0)" },
            reservedFor: fields.transactionID)
    }

    /// Whether the price that the app showed differs from the promised one: ingest records a difference, and never
    /// refuses for it.
    func priceDiffers(from price: Catalogue.Price?) -> Bool {
        guard let price, let shown = fields.price, let currency = fields.currency else { return false }
        return currency == price.currency && shown != price.milliunits
    }

    private var quantity: Int { fields.quantity ?? 1 }
    private var isPaid: Bool { fields.transactionID != nil }

    // MARK: What is wanted

    private struct Selection {
        var productID: String
        /// Nil: not in the catalogue.
        var product: Catalogue.Product?
        var item: String?
        var offer: Offer?
    }

    private func selection(_ catalogue: Catalogue, _ now: Date) throws(Problem) -> Selection {
        var selection = try named(catalogue)
        guard !isPaid else { return selection }
        guard let product = selection.product else {
            throw fields.productID == nil
                ? .incomplete(.itemUnknown, "is not sold", field: "item")
                : .incomplete(.productUnknown, "is not sold", field: "productId")
        }
        guard let item = selection.item else {
            throw .incomplete(.itemMissing, "must be there: this product is sold as several items", field: "item")
        }
        guard product.items[item] != nil else {
            throw .incomplete(.itemUnknown, "is not sold under this product", field: "item")
        }
        guard quantity == 1 || product.kind == .consumable else {
            throw .incomplete(.quantity, "must be 1: only consumables are sold by number", field: "quantity")
        }
        selection.offer = catalogue.offer(product: product.id, item: item, promotion: fields.promotion, at: now)
        guard selection.offer == nil else { return selection }
        guard fields.promotion == nil else {
            throw .conflict(.promotionOver, "is not valid for this item now", field: "promotion")
        }
        throw .conflict(.notOnSale, "is not sold now", field: "item")
    }

    /// By `productId`, by `item`, or by both. The old clients' `item` may be the store product itself (S0-1).
    private func named(_ catalogue: Catalogue) throws(Problem) -> Selection {
        guard let name = fields.productID ?? fields.item else {
            throw .incomplete(.noProduct, "productId or item must be there")
        }
        if let product = catalogue.products[name] {
            let isItem = fields.item.map { product.items[$0] != nil || $0 != name } ?? false
            return Selection(productID: name, product: product, item: isItem ? fields.item : product.defaultItem)
        }
        guard fields.productID == nil else { return Selection(productID: name, item: fields.item) }
        let selling = catalogue.products(selling: name)
        guard selling.count <= 1 else {
            throw .incomplete(.itemAmbiguous, "is sold under several products: send productId too", field: "item")
        }
        return Selection(productID: selling.first?.id ?? name, product: selling.first, item: name)
    }

    // MARK: Where to

    /// The environment in which Apple is expected to sell (S1-9); Apple's data decides later. An environment that the
    /// app does not have is ignored.
    private mutating func environment(_ app: AppConfiguration, _ user: String) -> String? {
        let served = Set(app.identity.environments.map(\.rawValue))
        if let given = fields.environment {
            if served.contains(given) { return given }
            ignored.append("environment")
        }
        let isTester = app.policy.isTester(user) && served.contains(Transaction.sandbox)
        if isTester { return Transaction.sandbox }
        return [Transaction.production, Transaction.sandbox].first(where: served.contains) ?? served.min()
    }

    /// The key by which a repeated tap is recognised (S3-43): SHA-256 over the selection, the user and the target.
    private func debounceKey(_ user: String, _ selection: Selection, _ target: [JSONValue.Member]) -> [UInt8] {
        let target = JSONValue.object(target)
        return DerivedID.digest([
            appID, user, selection.productID, selection.item ?? "", String(quantity),
            target["server"]?.targetText ?? "",
            target["role"]?.targetText ?? "", fields.promotion ?? "", fields.channel ?? "",
            fields.transactionID ?? "",
        ])
    }
}

extension Problem {
    /// A refusal: the request cannot be fulfilled now, and may be at another time.
    static func conflict(_ code: Code, _ detail: String, field: String? = nil, limit: Limit? = nil) -> Problem {
        Problem(.conflict, code, detail, field: field, limit: limit)
    }
}
