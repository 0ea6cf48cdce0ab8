import Foundation

/// What a post says about its purchase beside the proof. Apple's data decides. The declaration decides only what the
/// poster alone knows: which item of a shared store product it was. Everything else is compared and recorded, never
/// believed.
package struct Declaration: Sendable, Equatable, Codable {
    /// One of the items that are sold under the store product; old clients also send the store product itself (S0-1).
    package var item: String?
    package var productID: String?
    package var quantity: Int?
    /// The price of one unit or of all units.
    package var priceMilliunits: Int?
    package var currency: String?
    /// The user whom the old clients' record names (S0-1), if that is not the poster.
    package var uid: String?
    /// The promotion (`collectionID`) that a service key names for a purchase without an order (S3-68).
    package var promotion: String?
    /// Names of fields that make no sense. Their values are stored with the details as they came.
    package var disregarded: [String]?
    /// True if the post names a placeholder in the place of its user (`users.placeholders`); else nil. The placeholder
    /// itself is stored with the details as it came.
    package var isOfPlaceholder: Bool?

    package init(
        item: String? = nil, productID: String? = nil, quantity: Int? = nil, priceMilliunits: Int? = nil,
        currency: String? = nil, uid: String? = nil, promotion: String? = nil,
        disregarded: [String]? = nil, isOfPlaceholder: Bool? = nil
    ) {
        self.item = item
        self.productID = productID
        self.quantity = quantity
        self.priceMilliunits = priceMilliunits
        self.currency = currency
        self.uid = uid
        self.promotion = promotion
        self.disregarded = disregarded
        self.isOfPlaceholder = isOfPlaceholder
    }

    package var isEmpty: Bool { self == Declaration() }

    /// The id of the purchase that the declaration is about, of several in one receipt: the one that the post names;
    /// else, if the declaration says what was bought, the newest of such a product; else the newest. Nil: none of them.
    package func meant(of transactions: [Transaction], named: String?, sold: Catalogue?) -> String? {
        if transactions.count <= 1 { return transactions.first?.id }
        if let meant = transactions.first(where: { $0.isCalled(named) }) { return meant.id }
        let newest = transactions.max { ($0.purchasedAt, $0.id) < ($1.purchasedAt, $1.id) }
        return transactions.filter { transaction in
            let id = transaction.productID
            return productID == id || item == id || item.map { sold?.products[id]?.items[$0] != nil } ?? false
        }.max { ($0.purchasedAt, $0.id) < ($1.purchasedAt, $1.id) }?.id
            ?? (item == nil && productID == nil ? newest?.id : nil)
    }

    /// Where the declaration contradicts Apple, or the grant.
    ///
    /// - Parameter item: the item that is given; nil: the catalogue has no name for it.
    package func contradictions(of transaction: Transaction, given item: String?) -> [MatchReason] {
        var reasons: [MatchReason] = []
        if let productID, productID != transaction.productID { reasons.append(.productDiffers) }
        if let declared = self.item, let item, declared != item, declared != transaction.productID {
            reasons.append(.itemDiffers)
        }
        if let quantity, quantity != transaction.quantity { reasons.append(.quantityDiffers) }
        if let priceMilliunits, differs(priceMilliunits, from: transaction) { reasons.append(.priceDiffers) }
        if disregarded?.isEmpty == false { reasons.append(.fieldsDisregarded) }
        return reasons
    }

    private func differs(_ price: Int, from transaction: Transaction) -> Bool {
        struct Facts: Decodable {
            var price: Int?
            var currency: String?
        }
        guard let facts = try? JSONDecoder().decode(Facts.self, from: Data(transaction.facts.utf8)),
            let apple = facts.price
        else { return false }
        if let currency, let other = facts.currency, currency != other { return true }
        return price != apple && price.multipliedReportingOverflow(by: transaction.quantity).partialValue != apple
    }
}
