import Encoding
package import Foundation

/// An order as the matcher sees it: whose it is, what for, and until when its offer counts.
package struct PlacedOrder: Sendable, Equatable {
    package var id: UUID
    package var userID: String
    package var productID: String
    /// Of those that are sold under its product; nil: the default.
    package var item: String?
    /// What the client asked for; Apple's quantity multiplies the goods.
    package var quantity: Int
    package var environment: String?
    /// By the database's clock.
    package var placedAt: Date
    /// Bought later, it gets the goods of that day.
    package var payBy: Date
    /// Frozen, of one unit. Nil: the catalogue held nothing for it then.
    package var goods: [AppPolicy.Goods]?
    /// Frozen: what comes beside them, once.
    package var bonuses: [Catalogue.Bonus]
    /// Where in the game the goods go, one JSON object as stored.
    package var target: String
    /// Placed on the installation that the submission came from, as the token says that this server issued to it.
    package var isOnProvenInstallation: Bool
    /// Asked for because this transaction came without an order (S2-17).
    package var reservedFor: String?
    /// The purchase it was bound to, once and for ever.
    package var transactionID: String?

    package init(
        id: UUID, userID: String, productID: String, item: String? = nil, quantity: Int = 1, environment: String? = nil,
        placedAt: Date, payBy: Date, goods: [AppPolicy.Goods]? = nil, bonuses: [Catalogue.Bonus] = [],
        target: String = "{}", isOnProvenInstallation: Bool = false, reservedFor: String? = nil,
        transactionID: String? = nil
    ) {
        self.id = id
        self.userID = userID
        self.productID = productID
        self.item = item
        self.quantity = quantity
        self.environment = environment
        self.placedAt = placedAt
        self.payBy = payBy
        self.goods = goods
        self.bonuses = bonuses
        self.target = target
        self.isOnProvenInstallation = isOnProvenInstallation
        self.reservedFor = reservedFor
        self.transactionID = transactionID
    }

    /// What it gives, and where in the game.
    package func promisesTheSame(as other: PlacedOrder) -> Bool {
        goods == other.goods && item == other.item && bonuses == other.bonuses && target == other.target
    }
}

/// What the database knows about whose a purchase is: the input of ``Matcher``, as of one moment.
package struct Evidence: Sendable, Equatable {
    /// A chain of transactions (one originalTransactionId, and the one that it was called by before) of which something
    /// was granted.
    package struct Chain: Sendable, Equatable {
        /// Whose it is since its latest granted purchase.
        package var userID: String
        /// Whether it became his after that purchase was given to somebody else.
        package var isMoved: Bool
        /// Of the chain's latest purchase before this one, and when it ends or ended; asked only where nobody posted it.
        package var productID: String?
        package var runsUntil: Date?

        package init(userID: String, isMoved: Bool = false, productID: String? = nil, runsUntil: Date? = nil) {
            self.userID = userID
            self.isMoved = isMoved
            self.productID = productID
            self.runsUntil = runsUntil
        }
    }

    /// A person's word on whose a held purchase is.
    package struct SupportDecision: Sendable, Equatable {
        package var userID: String
        /// Which of the items that are sold as its product; nil: as it is found.
        package var item: String?
        /// Leads to the user. Nil: Apple was not to be told when it was decided.
        package var token: UUID?
        /// What was bought at another time, with another id, was granted under the key of its ids.
        package var isOfKeyInUse: Bool

        package init(userID: String, item: String? = nil, token: UUID? = nil, isOfKeyInUse: Bool = false) {
            self.userID = userID
            self.item = item
            self.token = token
            self.isOfKeyInUse = isOfKeyInUse
        }
    }

    /// Orders of this app, each once: the one that the token names, the one that the submission names, unbound ones of
    /// this product of everybody whom the purchase may belong to, and of this product and installation; and the one that
    /// this purchase was given by on trust.
    package var orders: [PlacedOrder] = []
    /// What the submission names for this purchase.
    package var namedOrderID: UUID?
    /// Whom the app registered the purchase's token for.
    package var registeredUserID: String?
    /// Whom purchases of Production with this token were given to before, which still stand, where nobody registered it;
    /// two stand for many.
    package var rememberedUserIDs: [String] = []
    /// The user of this app whom the record that was posted names, where that is not its poster's name (S0-24).
    package var recordUserID: String?
    /// The record names somebody whom nobody knows here.
    package var isRecordOfUnknown = false
    /// Whether a token is registered for the poster, while this purchase carries one.
    package var posterHasToken = false
    /// To whom purchases of its Apple customer were given before; asked only where nobody posted it.
    package var customerUserIDs: [String] = []
    package var chain: Chain?
    package var supportDecision: SupportDecision?
    /// How many purchases that the chain was granted Apple took back before this one; not of periods. They count also
    /// where nobody is known for the chain any more.
    package var revocations = 0
    /// What this purchase was granted by under another id: a period that ends with it, or what was bought anew after the
    /// same refund. Two that come at once are not known here.
    package var grantedKey: String?
    /// Why Apple took this purchase back under another of its ids, after this one was bought and signed: `refunded`,
    /// `withdrawn`, or `review` for a reason that is not known here. Asked only of one whose chain may have an owner.
    package var takenBack: Reason?
    /// Whether another product of its chain was bought within a minute of its end; asked only where that may explain it.
    package var hasSuccessor = false
    /// Whether we set the token of this later purchase of its chain at Apple, for an earlier one.
    package var isTokenWritten = false
    /// To whomever, under this id or another one of the same purchase; asked only of one of several.
    package var isGranted = false
    /// Of ``orders``, those that other purchases of the same receipt have taken in this round.
    package fileprivate(set) var takenOrderIDs: Set<UUID> = []

    package init() {}

    /// Nothing speaks for anybody.
    package static let none = Evidence()

    /// Notes of which purchases another one of the same receipt took the place.
    package static func explain(_ transactions: [Transaction], _ evidence: inout [String: Evidence]) {
        for ended in transactions where ended.mayHaveSuccessor && transactions.contains(where: { $0.follows(ended) }) {
            evidence[ended.id]?.hasSuccessor = true
        }
    }

    /// As it is when other purchases have bound these orders.
    package func with(bound: [UUID: String]) -> Evidence {
        guard !bound.isEmpty else { return self }
        var evidence = self
        for index in evidence.orders.indices where evidence.orders[index].transactionID == nil {
            evidence.orders[index].transactionID = bound[evidence.orders[index].id]
        }
        return evidence
    }

    /// As it is when other purchases of the same receipt take these orders.
    package func with(taken: [UUID: String]) -> Evidence {
        guard !taken.isEmpty else { return self }
        var evidence = with(bound: taken)
        evidence.takenOrderIDs = Set(orders.lazy.filter { $0.transactionID == nil && taken[$0.id] != nil }.map(\.id))
        return evidence
    }
}

extension Evidence {
    /// Ownership, note 1: of several purchases of one receipt, the order that the submission names belongs to the
    /// one with the named id; if that is not among them (StoreKit 1 ids differ by device), to the newest ungranted one
    /// of its product, and another user's order that is for none of their products to the newest ungranted one of any.
    /// The others are judged as if it did not exist.
    ///
    /// - Parameter spokenOf: purchases that words of their own are about.
    package static func assign(
        named orderID: UUID?, meant transactionID: String?, by poster: String?, to transactions: [Transaction],
        except spokenOf: Set<String> = [], _ evidence: inout [String: Evidence]
    ) {
        guard let orderID else { return }
        let chosen = chosenID(orderID, transactionID, poster, transactions, spokenOf, evidence)
        for id in Array(evidence.keys) {
            if id == chosen {
                evidence[id]?.namedOrderID = orderID
            } else if transactions.count > 1,
                !transactions.contains(where: { $0.id == id && $0.appAccountToken == orderID })
            {
                evidence[id]?.orders.removeAll { $0.id == orderID }
            }
        }
    }

    private static func chosenID(
        _ orderID: UUID, _ transactionID: String?, _ poster: String?, _ transactions: [Transaction],
        _ spokenOf: Set<String>, _ evidence: [String: Evidence]
    ) -> String? {
        if transactions.count == 1 { return transactions[0].id }
        // Proven by its token, whatever the submission says.
        if let proven = transactions.first(where: { $0.appAccountToken == orderID }) { return proven.id }
        if let transactionID, transactions.contains(where: { $0.id == transactionID }) { return transactionID }
        let order = evidence.values.lazy.flatMap(\.orders).first { $0.id == orderID }
        let ungranted = transactions.filter {
            !$0.isShared && !spokenOf.contains($0.id) && evidence[$0.id]?.isGranted == false
        }
        let ofProduct = ungranted.filter { $0.productID == order?.productID }
        let isAnothers = order.map { !$0.userID.isSameText(as: poster) } ?? false
        return (ofProduct.isEmpty && isAnothers ? ungranted : ofProduct)
            .max { ($0.purchasedAt, $0.id) < ($1.purchasedAt, $1.id) }?.id
    }
}
