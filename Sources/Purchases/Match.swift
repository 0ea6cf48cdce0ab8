package import Foundation

/// The owner that was found for a purchase, by which row of Ownership, and by which order.
package struct Match: Sendable, Equatable {
    package var userID: String
    package var source: BindingSource
    /// The order that this purchase binds if it is granted. Nil: a make-up order, whose only record is the grant.
    package var order: PlacedOrder?
    /// The order whose frozen offer counts. Nil: the goods of the day of the purchase.
    package var offer: PlacedOrder?
    /// The order, bound by another purchase, on which this purchase was bought once more. Both purchases are granted,
    /// and the event `purchase.possible_double_charge` tells it.
    package var secondChargeOf: UUID?
    /// Whether the purchase's chain is its owner's from this purchase on, and was nobody's or another user's before
    /// (note 3).
    package var takesChain = false
    package var chainWasOf: String?
    /// The token that leads to the owner, of a support decision. No order is needed to name the owner then.
    package var token: UUID?
    /// The order that the purchase's own token names, bound or not: it says where in the game the goods go.
    package var orderOfToken: PlacedOrder?
    /// The item of the product. Nil: the item has the product's name, or no name.
    package var item: String?
    /// Bonuses beside the goods. The database grants those that the user has not had in their period.
    package var bonuses: [Catalogue.Bonus] = []
    package var reasons: [MatchReason]

    package init(
        userID: String, source: BindingSource, order: PlacedOrder? = nil, offer: PlacedOrder? = nil,
        secondChargeOf: UUID? = nil, reasons: [MatchReason] = []
    ) {
        self.userID = userID
        self.source = source
        self.order = order
        self.offer = offer
        self.secondChargeOf = secondChargeOf
        self.reasons = reasons
    }
}
