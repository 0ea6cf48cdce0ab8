package import Foundation

/// Who has a purchase, as the database says it after the grants of a batch were inserted.
package struct Standing: Sendable {
    /// A grant of the purchase, under its own id or another one; or what the former system gave.
    package struct Holding: Sendable, Equatable {
        /// Nil: the former system gave it.
        package var receiptID: UUID?
        package var transactionID: String
        /// The user, by the name of the account that the user became part of.
        package var userID: String
        package var appID: String
        package var environment: String
        package var source: BindingSource?
        package var orderID: UUID?
        /// When it was bought; nil where no facts are stored.
        package var purchasedAt: Date?
        /// What kind of product it is, as Apple said it; nil where Apple did not.
        package var kind: Transaction.Kind?

        package init(
            receiptID: UUID?, transactionID: String, userID: String, appID: String, environment: String,
            source: BindingSource?, orderID: UUID? = nil, purchasedAt: Date? = nil, kind: Transaction.Kind? = nil
        ) {
            self.receiptID = receiptID
            self.transactionID = transactionID
            self.userID = userID
            self.appID = appID
            self.environment = environment
            self.source = source
            self.orderID = orderID
            self.purchasedAt = purchasedAt
            self.kind = kind
        }
    }

    package var holding: Holding?
    /// Whether its poster or owner became part of another account since it was matched.
    package var isOutdated = false
    /// Whose it is since, by a move or a person.
    package var moved: (userID: String, source: BindingSource?)?
    /// Whether the grant is on trust and Apple has not answered.
    package var isOnTrust = false
    /// The event that would tell that Apple confirmed it.
    package var confirmationID: UUID?
    /// Until when the poster keeps a copy, as an earlier receipt said.
    package var keepsCopyUntil: Date?
    /// Who posted the receipt of the grant.
    package var granteeReceiptPoster: String?
    /// The chain's moves so far, where the app's policy may move it.
    package var chain: Chain?

    /// What a move of the purchase's chain depends on.
    package struct Chain: Sendable, Equatable {
        package var originalID: String
        package var purchasedAt: Date
        /// Whose it is by the latest move.
        package var holderID: String
        package var move: Int
        package var movedAt: Date?
        package var movesOfDay: Int
        package var movesOfMonth: Int
        /// Whether a later purchase of the chain is granted: what is over gives no right to what runs.
        package var hasLaterGrant: Bool

        package init(
            originalID: String, purchasedAt: Date, holderID: String, move: Int, movedAt: Date?, movesOfDay: Int,
            movesOfMonth: Int,
            hasLaterGrant: Bool
        ) {
            self.originalID = originalID
            self.purchasedAt = purchasedAt
            self.holderID = holderID
            self.move = move
            self.movedAt = movedAt
            self.movesOfDay = movesOfDay
            self.movesOfMonth = movesOfMonth
            self.hasLaterGrant = hasLaterGrant
        }
    }

    package init() {}
}
