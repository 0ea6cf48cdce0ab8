import Encoding
package import Foundation

/// An order as the matcher sees it: its user, its product, and until when its offer counts.
package struct PlacedOrder: Sendable, Equatable {
    package var id: UUID
    package var userID: String
    package var productID: String
    /// One of the items that are sold under the product. Nil: the default item.
    package var item: String?
    /// What the client asked for; Apple's quantity multiplies the goods.
    package var quantity: Int
    package var environment: String?
    /// By the database's clock.
    package var placedAt: Date
    /// The offer counts until then. A later purchase gets the goods of its own day.
    package var payBy: Date
    /// The goods of one unit, frozen when the order was placed. Nil: the catalogue held nothing for the order then.
    package var goods: [AppPolicy.Goods]?
    /// The bonuses beside the goods, each once; frozen when the order was placed.
    package var bonuses: [Catalogue.Bonus]
    /// Where in the game the goods go, one JSON object as stored.
    package var target: String
    /// Whether the order was placed on the installation that the submission came from. The token that this server
    /// issued to the installation says so.
    package var isOnProvenInstallation: Bool
    /// The transaction that came without an order, so that the app asked for this order (S2-17).
    package var reservedFor: String?
    /// The purchase that has bound the order, once and for ever.
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

    /// Whether both orders promise the same goods, item and bonuses, to the same place in the game.
    package func promisesTheSame(as other: PlacedOrder) -> Bool {
        goods == other.goods && item == other.item && bonuses == other.bonuses && target == other.target
    }
}

/// What the database knows about the owner of a purchase: the input of ``Matcher``, as of one moment.
package struct Evidence: Sendable, Equatable {
    /// A chain of transactions (one originalTransactionId, and the one that it was called by before) of which something
    /// was granted.
    package struct Chain: Sendable, Equatable {
        /// The chain's owner since its latest granted purchase, or since a later move.
        package var userID: String
        /// Whether the chain became this user's after its latest purchase was granted to another user.
        package var isMoved: Bool
        /// The product of the chain's latest purchase before this one, and the end of that purchase. Read only if
        /// nobody posted this purchase.
        package var productID: String?
        package var runsUntil: Date?

        package init(userID: String, isMoved: Bool = false, productID: String? = nil, runsUntil: Date? = nil) {
            self.userID = userID
            self.isMoved = isMoved
            self.productID = productID
            self.runsUntil = runsUntil
        }
    }

    /// A person's decision who owns a held purchase.
    package struct SupportDecision: Sendable, Equatable {
        package var userID: String
        /// The item that the person chose, of those that are sold as the product. Nil: the rules find the item.
        package var item: String?
        /// The token that leads to the user. Nil: Apple was not to be told when the person decided.
        package var token: UUID?
        /// Whether another transaction, bought at another second, was granted under the key of this purchase's ids.
        package var isOfKeyInUse: Bool
        /// Whether the decision names the purchase by its environment too, because a purchase of another environment is
        /// granted under its id.
        package var isOfIDInUse: Bool

        package init(
            userID: String, item: String? = nil, token: UUID? = nil, isOfKeyInUse: Bool = false,
            isOfIDInUse: Bool = false
        ) {
            self.userID = userID
            self.item = item
            self.token = token
            self.isOfKeyInUse = isOfKeyInUse
            self.isOfIDInUse = isOfIDInUse
        }
    }

    /// Orders of this app, each once: the order that the token names; the order that the submission names; unbound
    /// orders of this product, of every user who may be the owner and of this installation; and the order by which this
    /// purchase was given on trust.
    package var orders: [PlacedOrder] = []
    /// The order that the submission names for this purchase.
    package var namedOrderID: UUID?
    /// The user for whom the app registered the purchase's token.
    package var registeredUserID: String?
    /// The users of earlier Production grants with this token that Apple has not taken back. The matcher reads them if
    /// nobody registered the token; two users stand for many.
    package var rememberedUserIDs: [String] = []
    /// The known user of this app whom the posted record names, if that is not the poster (S0-24).
    package var recordUserID: String?
    /// Whether the posted record names a user who is not known here, in an app whose records name users.
    package var isRecordOfUnknown = false
    /// Whether a token is registered for the poster, while this purchase carries one that nobody registered.
    package var posterHasToken = false
    /// The users of earlier grants to the purchase's Apple customer. Read only if nobody posted this purchase.
    package var customerUserIDs: [String] = []
    /// Whether a receipt of this purchase that a user posted is open or held. Read only if nobody posted this purchase.
    package var isPostedByUser = false
    package var chain: Chain?
    package var supportDecision: SupportDecision?
    /// How many granted purchases of the chain Apple took back before this one was bought; 0 for a period. They count
    /// also if the chain has no known owner any more.
    package var revocations = 0
    /// The key under which this purchase was granted by another id: a period with the same end, or a purchase made anew
    /// after the same refund. Of two ids that are judged at the same time, neither is known here.
    package var grantedKey: String?
    /// Why Apple took this purchase back under another of its ids, after this one was bought and signed: `refunded`,
    /// `withdrawn`, or `review` for a reason that this program does not know. Read only for a purchase whose chain may
    /// have an owner.
    package var takenBack: Reason?
    /// Whether facts of this very purchase that Apple signed later than its proof say that it stands, though the proof
    /// shows an end. Read only if the proof shows an end.
    package var standsAgain = false
    /// Whether another product of the chain was bought within a minute of this purchase's end. Read only if that may
    /// explain the end.
    package var hasSuccessor = false
    /// Whether this server set the purchase's token at Apple, for an earlier purchase of the chain.
    package var isTokenWritten = false
    /// Whether the purchase is granted, to any user, under this id or another id of the same purchase. Read only if the
    /// receipt has several purchases and the submission names an order.
    package var isGranted = false
    /// Of ``orders``, those that other purchases of the same receipt have taken in this round.
    package fileprivate(set) var takenOrderIDs: Set<UUID> = []

    package init() {}

    /// No evidence for any user.
    package static let none = Evidence()

    /// Notes for each ended purchase whether another purchase of the same receipt took its place.
    package static func explain(_ transactions: [Transaction], _ evidence: inout [String: Evidence]) {
        for ended in transactions where ended.mayHaveSuccessor && transactions.contains(where: { $0.follows(ended) }) {
            evidence[ended.id]?.hasSuccessor = true
        }
    }

    /// This evidence, if other purchases have bound these orders: transaction ids by order id.
    package func with(bound: [UUID: String]) -> Evidence {
        guard !bound.isEmpty else { return self }
        var evidence = self
        for index in evidence.orders.indices where evidence.orders[index].transactionID == nil {
            evidence.orders[index].transactionID = bound[evidence.orders[index].id]
        }
        return evidence
    }

    /// This evidence, if other purchases of the same receipt take these orders: transaction ids by order id.
    package func with(taken: [UUID: String]) -> Evidence {
        guard !taken.isEmpty else { return self }
        var evidence = with(bound: taken)
        evidence.takenOrderIDs = Set(orders.lazy.filter { $0.transactionID == nil && taken[$0.id] != nil }.map(\.id))
        return evidence
    }
}

extension Evidence {
    /// Assigns the order that the submission names to one of several purchases of a receipt (Ownership, note 1): to the
    /// purchase whose token is the order; else to the one with the named id; else (StoreKit 1 ids differ by device) to
    /// the newest ungranted purchase of the order's product. An order of another user that is for none of these
    /// products goes to the newest ungranted purchase of any product. The other purchases are judged as if the order
    /// did not exist.
    ///
    /// - Parameter spokenOf: ids of purchases that have a statement of their own (``ReceiptLine``). The search for the
    ///   newest purchase skips them.
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
        if let meant = transactions.first(where: { $0.isCalled(transactionID) }) { return meant.id }
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
