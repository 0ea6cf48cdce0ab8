package import Foundation
import Ledger
import Postgres
package import Purchases
import Settings

/// The checked content of one line of an imported file.
protocol ImportRow: Sendable {
    static var required: [ImportColumn] { get }
    /// The key of the line's subject: two lines with the same key are about the same thing.
    var identity: String { get }
    var user: ImportedUser { get }
    /// The product of the line, where it has one.
    var product: String? { get }

    init(_ fields: ImportFields) throws(ImportFault)

    static func statement(isDryRun: Bool) -> Statement<Statements.ImportBatch<Self>, Statements.ImportResult>
}

extension ImportRow {
    var product: String? { nil }
}

/// A user's id in the file and in the tables.
package struct ImportedUser: Sendable, Equatable {
    package let id: String
    package let stored: String

    init(_ id: String, _ app: ImportContext) {
        self.id = id
        stored = app.stored(id)
    }
}

/// A purchase that the former system gave to a user.
package struct ImportedGrant: ImportRow, Equatable {
    package let transactionID: String
    package let originalID: String
    package let user: ImportedUser
    package let productID: String
    package let environment: String
    package let purchasedAt: Date
    /// Whether later purchases of its chain belong to its owner: true unless the product is known as a consumable or a
    /// non-renewing subscription.
    package let isChain: Bool

    static let required: [ImportColumn] = [.transactionId, .userId, .productId, .purchasedAt]
    var identity: String { transactionID }
    var product: String? { productID }

    init(_ fields: ImportFields) throws(ImportFault) {
        transactionID = try fields.required(.transactionId, fields.appleID)
        originalID = try fields.appleID(.originalTransactionId) ?? transactionID
        user = ImportedUser(try fields.userID(), fields.app)
        productID = try fields.required(.productId) { column throws(ImportFault) in try fields.text(column) }
        environment = try fields.environment()
        purchasedAt = try fields.required(.purchasedAt) { column throws(ImportFault) in try fields.time(column) }
        isChain =
            switch fields.app.catalogue.products[productID]?.kind {
            case .consumable, .nonRenewing: false
            case .nonConsumable, .autoRenewable, nil: true
            }
    }

    static func statement(isDryRun: Bool) -> Statement<Statements.ImportBatch<Self>, Statements.ImportResult> {
        Statements.importGrants(isDryRun: isDryRun)
    }
}

/// The owner of a subscription, or of any other chain of one original transaction.
package struct ImportedOwner: ImportRow, Equatable {
    package let originalID: String
    package let user: ImportedUser
    package let environment: String
    /// Since when the user is the owner; nil: since the import.
    package let since: Date?

    static let required: [ImportColumn] = [.originalTransactionId, .userId]
    var identity: String { "\(environment) \(originalID)" }

    init(_ fields: ImportFields) throws(ImportFault) {
        originalID = try fields.required(.originalTransactionId, fields.appleID)
        user = ImportedUser(try fields.userID(), fields.app)
        environment = try fields.environment()
        since = try fields.time(.since)
    }

    static func statement(isDryRun: Bool) -> Statement<Statements.ImportBatch<Self>, Statements.ImportResult> {
        Statements.importOwners(isDryRun: isDryRun)
    }
}

/// A token that the app sends as `appAccountToken` with all purchases of a user.
package struct ImportedToken: ImportRow, Equatable {
    package let token: UUID
    package let user: ImportedUser

    static let required: [ImportColumn] = [.token, .userId]
    var identity: String { token.uuidString }

    init(_ fields: ImportFields) throws(ImportFault) {
        token = try fields.required(.token, fields.uuid)
        user = ImportedUser(try fields.userID(), fields.app)
    }

    static func statement(isDryRun: Bool) -> Statement<Statements.ImportBatch<Self>, Statements.ImportResult> {
        Statements.importTokens(isDryRun: isDryRun)
    }
}

/// An order that was placed with the former system and waits for its purchase. It promises the offer that our catalogue
/// has for the day on which it was placed.
package struct ImportedOrder: ImportRow, Equatable {
    package let id: UUID
    package let user: ImportedUser
    package let productID: String
    package let item: String?
    package let quantity: Int
    package let promotion: String?
    package let environment: String
    package let placedAt: Date
    package let payBy: Date
    /// The promised offer; nil: the catalogue has none for that day.
    package let offer: Offer?
    /// The price that the former system fixed; nil: the offer's price.
    package let price: Catalogue.Price?
    /// A JSON object.
    package let target: String

    /// The longest that an offer may hold: a year.
    private static let payByMax: TimeInterval = 365 * 86_400

    static let required: [ImportColumn] = [.orderId, .userId, .productId, .placedAt]
    var identity: String { id.uuidString }
    var product: String? { productID }

    init(_ fields: ImportFields) throws(ImportFault) {
        let app = fields.app
        id = try fields.required(.orderId) { column throws(ImportFault) in
            try fields.text(column, bytesMax: FieldBounds.orderBytesMax).map { number throws(ImportFault) in
                let user = try fields.userID()
                // The order number is stored in the same way as from a post that names it.
                let stored = app.keys?.protecting(message: number, of: user, app: app.appID) ?? number
                return OrderID.named(stored, of: app.appID)
            }
        }
        user = ImportedUser(try fields.userID(), fields.app)
        productID = try fields.required(.productId) { column throws(ImportFault) in try fields.text(column) }
        let sold = fields.app.catalogue.products[productID]
        item = try fields.text(.item) ?? sold?.defaultItem
        if let item, let sold, sold.items[item] == nil {
            throw fields.fault(.item, "is not sold under this product")
        }
        quantity = try fields.quantity() ?? 1
        environment = try fields.environment()
        placedAt = try fields.required(.placedAt) { column throws(ImportFault) in try fields.time(column) }
        payBy =
            try fields.time(.payBy, aheadMax: Self.payByMax)
            ?? placedAt.addingTimeInterval(fields.app.payBy.inSeconds)
        guard payBy >= placedAt else { throw fields.fault(.payBy, "is before placedAt") }
        promotion = try fields.text(.promotion)
        offer = fields.app.catalogue.offer(product: productID, item: item, promotion: promotion, at: placedAt)
        if promotion != nil, sold != nil, offer == nil {
            throw fields.fault(.promotion, "was not on for this item when it was placed")
        }
        price = try fields.price() ?? offer?.price
        target = try fields.target(of: user.id)
    }

    static func statement(isDryRun: Bool) -> Statement<Statements.ImportBatch<Self>, Statements.ImportResult> {
        Statements.importOrders(isDryRun: isDryRun)
    }
}

/// A bonus that the former system gave with a purchase.
package struct ImportedBonus: ImportRow, Equatable {
    package let user: ImportedUser
    package let bonus: String
    /// The period of the bonus, as in `Catalogue/Bonus/period(at:)`.
    package let period: String

    static let required: [ImportColumn] = [.userId, .bonus]
    var identity: String { "\(bonus) \(period) \(user.stored)" }

    init(_ fields: ImportFields) throws(ImportFault) {
        user = ImportedUser(try fields.userID(), fields.app)
        let id = try fields.required(.bonus) { column throws(ImportFault) in try fields.text(column) }
        guard let bonus = fields.app.catalogue.bonus(id) else {
            throw fields.fault(.bonus, "is no bonus of the catalogue")
        }
        self.bonus = id
        let givenAt = try fields.time(.givenAt)
        guard bonus.once == .ever || givenAt != nil else { throw fields.fault(.givenAt, "is missing") }
        period = bonus.period(at: givenAt ?? fields.app.now)
    }

    static func statement(isDryRun: Bool) -> Statement<Statements.ImportBatch<Self>, Statements.ImportResult> {
        Statements.importBonuses(isDryRun: isDryRun)
    }
}
