package import Foundation

/// Whose a purchase is, by which row of Ownership, and by which order.
package struct Match: Sendable, Equatable {
    package var userID: String
    package var source: BindingSource
    /// Bound by this purchase, if it is the one that is granted. Nil: a make-up order, of which the grant is the record.
    package var order: PlacedOrder?
    /// Whose frozen offer counts. Nil: the goods of the day it was bought.
    package var offer: PlacedOrder?
    /// Bought once more on an order that another purchase has bound: both are given, and it is told.
    package var secondChargeOf: UUID?
    /// Whether the purchase's chain is its owner's from it on, and was nobody's or another user's before (note 3).
    package var takesChain = false
    package var chainWasOf: String?
    /// The token that leads to the owner, where a person of support named the owner and no order need say it.
    package var token: UUID?
    /// The order that the purchase's own token names, bound or not: it says where in the game the goods go.
    package var orderOfToken: PlacedOrder?
    /// Which of the product's items it is, where that is not named as the product.
    package var item: String?
    /// What comes beside the goods where the user has not had it in its period: the database knows.
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
