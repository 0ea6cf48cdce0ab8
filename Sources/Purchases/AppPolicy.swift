import Encoding
package import Foundation

/// What one app of the configuration sells and how it decides. Pure values; credentials live elsewhere.
package struct AppPolicy: Sendable, Equatable {
    /// What to do with a purchase that Apple signed as Sandbox.
    package enum SandboxPurchases: String, Sendable, CaseIterable {
        case testers, grant, hold
    }

    /// Whether a signed transaction is also looked up at Apple before it is granted.
    package enum ConfirmWithApple: String, Sendable, CaseIterable {
        case never, stale, always
    }

    /// How a legacy receipt is judged. Several strategies are tried in order: if one cannot answer now, the next is
    /// tried.
    package enum LegacyStrategy: String, Sendable, CaseIterable {
        /// Apple's verifyReceipt is asked about the receipt as a whole.
        case verifyReceipt
        /// The receipt is verified here. The App Store Server API is asked about the listed purchases that are not
        /// known here.
        case serverApi
        /// The receipt is verified here, and Apple is not asked: later refunds are not detected.
        case local
    }

    /// Who gives the goods.
    ///
    /// In shadow the former system still gives them. This server receives, verifies and decides everything, but writes
    /// each decision to give into `shadow_decisions` and does not carry it out. It grants nothing, binds nothing, tells
    /// nobody and writes nothing to Apple, and no client may finish because of its answer. Code that acts after a grant
    /// (write-back, finish) has nothing to act on; code that acts without a grant asks ``AppPolicy/mode``.
    ///
    /// A decision in shadow is no grant, neither before nor after going live: only the former system knows what it
    /// gave, so only its own list says so (`makegood import grants`). If our decisions counted as given, exactly the
    /// purchases that the former system has missed would be lost, silently. The receipts wait (`held`, `shadow`) and
    /// are judged once more when the app is live. An imported purchase is already granted. A purchase that was not
    /// imported was made before ``grantFrom``, which by default is the moment of going live, and since ``hereSince``:
    /// it is held for a person, but a subscription or non-consumable is its owner's, without goods. An app that goes
    /// back into shadow goes live anew: ``grantFrom`` is then the later of the two moments.
    package enum Mode: String, Sendable, CaseIterable {
        case live, shadow
    }

    /// What happens to a subscription or non-consumable that one user was granted and another user shows with Apple's
    /// own data (P10). Goods are never given again.
    package enum Transfer: String, Sendable, CaseIterable {
        /// It stays with its owner.
        case keep
        /// The user who shows it becomes its owner, within ``AppPolicy/movesPerDayMax`` and
        /// ``AppPolicy/movesPerMonthMax``.
        case transfer
        /// A person decides.
        case hold
    }

    /// What happens to a purchase that another customer bought and shares with the user (Family Sharing, seats of an
    /// organization).
    package enum Shared: String, Sendable, CaseIterable {
        /// The user has the entitlement, without goods: goods were paid for once.
        case entitlement
        /// The user gets the same goods as the buyer.
        case goods
        /// The purchase gives nothing in this app.
        case reject
    }

    package struct Goods: Sendable, Equatable, Codable {
        package var item: String
        package var amount: Int
        /// The id of the ``Catalogue/Bonus`` that these goods belong to. Nil: they are the goods of the item itself.
        package var bonus: String?

        package init(item: String, amount: Int, bonus: String? = nil) {
            self.item = item
            self.amount = amount
            self.bonus = bonus
        }
    }

    package struct Product: Sendable, Equatable {
        package var id: String
        package var kind: Transaction.Kind
        package var goods: [Goods]
        /// Whether the product may be given before Apple has confirmed the purchase, within the limits of the app.
        package var isProvisional: Bool

        package init(id: String, kind: Transaction.Kind, goods: [Goods], isProvisional: Bool = false) {
            self.id = id
            self.kind = kind
            self.goods = goods
            self.isProvisional = isProvisional
        }
    }

    package var id: String
    package var mode = Mode.live
    package var sandboxPurchases: SandboxPurchases
    /// Not a set, because String's own equality would let one spelling of an id stand for another (``isTester(_:)``).
    package var testers: [String]
    /// Sandbox purchases of users who are no testers, per UTC day; 0 = none.
    package var sandboxPerUserPerDay: Int
    package var sandboxPerAppPerDay: Int
    /// The former system had to give the purchases from before this moment.
    package var grantFrom: Date
    /// The app's first start here. A purchase since then may be one that was held in shadow, or that came before
    /// ``grantFrom`` was set, so it is held and not rejected as historical. Nil: as ``grantFrom``.
    package var hereSince: Date?
    /// The oldest purchase, in seconds before it was submitted, that a post alone is granted for; 0 = no limit, the
    /// default: a genuine purchase that was never granted is granted however late it comes (S1-24, S3-32).
    package var makeUpMaxAge: Duration
    /// To how many users one Apple customer's purchases may be given by a post alone; 0 = no limit.
    package var makeUpUsersPerCustomer: Int
    /// How many purchases one user may be given by a post alone per UTC day; 0 = no limit.
    package var makeUpPerUserPerDay: Int
    package var confirmWithApple: ConfirmWithApple
    package var transfer: Transfer = .keep
    package var shared: Shared = .entitlement
    package var subscriptions = SubscriptionPolicy()
    package var sweeps = SweepPolicy()
    /// Whether the `uid` of the old clients' records is a user as `userId` names one (row 5a).
    package var recordsNameUsers = true
    /// In the order they are tried; empty where Apple cannot be asked.
    package var legacyReceipts: [LegacyStrategy] = []
    /// Only where Apple can be told.
    package var finishAtApple = FinishAtApple.never
    /// Whether this server sets the order as the token at Apple if an order found the owner. Only where Apple can be
    /// told.
    package var writesBackTokens = false
    /// Nil: nothing is given before Apple has confirmed what it must confirm.
    package var provisional: Provisional?
    /// How Apple is answered about refunds.
    package var refunds = RefundPolicy()
    package var products: [String: Product]
    /// The terms for entitlements that the configuration says in `products`, by product; no term decides about a
    /// purchase.
    package var terms: [String: EntitlementTerms] = [:]
    /// The catalogue in force, which goes before `products`. Nil: none was applied.
    package var sold: Catalogue?

    package init(
        id: String, sandboxPurchases: SandboxPurchases = .testers, testers: [String] = [],
        sandboxPerUserPerDay: Int = 0, sandboxPerAppPerDay: Int = 0, grantFrom: Date,
        makeUpMaxAge: Duration = .zero, makeUpUsersPerCustomer: Int = 3, makeUpPerUserPerDay: Int = 0,
        confirmWithApple: ConfirmWithApple = .stale, provisional: Provisional? = nil, products: [Product]
    ) {
        self.id = id
        self.sandboxPurchases = sandboxPurchases
        self.testers = testers
        self.sandboxPerUserPerDay = sandboxPerUserPerDay
        self.sandboxPerAppPerDay = sandboxPerAppPerDay
        self.grantFrom = grantFrom
        self.makeUpMaxAge = makeUpMaxAge
        self.makeUpUsersPerCustomer = makeUpUsersPerCustomer
        self.makeUpPerUserPerDay = makeUpPerUserPerDay
        self.confirmWithApple = confirmWithApple
        self.provisional = provisional
        self.products = Dictionary(products.map { ($0.id, $0) }, uniquingKeysWith: { first, _ in first })
    }

    package func isTester(_ userID: String) -> Bool { testers.contains { $0.isSameText(as: userID) } }
}

extension AppPolicy {
    /// The queue in which a submission waits first. A receipt that may be judged without Apple does not wait behind
    /// receipts about which Apple is asked; if Apple is needed after all, the receipt is rerouted. A big receipt has a
    /// queue of its own.
    ///
    /// - Parameter isAwaited: whether the poster waits for a purchase in it: the post names an order, or a transaction
    ///   that is new here.
    package func lane(of proof: Proof, isAwaited: Bool) -> Lane {
        switch proof {
        case .signedTransaction: confirmWithApple == .always ? .apple : .local
        case .receipt(let base64) where base64.utf8.count >= Lane.bulkBytesMin && !isAwaited: .bulk
        case .receipt: legacyReceipts.contains(.local) ? .local : .apple
        case .identifier: .apple
        }
    }
}

extension AppPolicy {
    /// How often a chain may move in 24 hours. Two devices of one Apple account, each with its own user, show the same
    /// subscription whenever they start, and would move it to and fro for ever. After so many moves the chain stays
    /// with its owner, and a user who shows it is told that it is another user's. Nothing is lost by that: the owner
    /// got it by this very rule, and tomorrow it may move again.
    package static let movesPerDayMax = 1
    /// The same, in 30 days.
    package static let movesPerMonthMax = 3

    /// What the policy says if another user turns out to have the purchase. Nil: the purchase stays with that user, as
    /// do consumables, non-renewing subscriptions, shared purchases, and every purchase that is shown without
    /// possession.
    func transfer(
        of transaction: Transaction, _ kind: Transaction.Kind?, _ claim: Claim, _ decision: Decision
    ) -> Transfer? {
        guard transfer != .keep, claim.hasPossession, claim.userID != nil, !transaction.isShared else { return nil }
        guard transaction.isPeriod || (transaction.kind ?? kind) == .nonConsumable else { return nil }
        switch decision {
        // A purchase that was given long ago is nothing to be reviewed now.
        case .grant, .held(.review): return transfer
        case .held, .open, .rejected, .provisional: return nil
        }
    }
}
