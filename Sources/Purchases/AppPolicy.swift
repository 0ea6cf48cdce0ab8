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

    /// How a legacy receipt is judged. Several are tried in order: one that cannot answer now leaves it to the next.
    package enum LegacyStrategy: String, Sendable, CaseIterable {
        /// Apple's verifyReceipt is asked about the receipt as a whole.
        case verifyReceipt
        /// The receipt is verified here; the App Store Server API is asked about what it lists and we do not know.
        case serverApi
        /// The receipt is verified here, and its word is the last one: nobody is asked, later refunds are not seen.
        case local
    }

    /// Who gives the goods.
    ///
    /// In shadow it is still the system before this one: everything is received, verified and decided, and each decision
    /// to give is written down (`shadow_decisions`) instead of being carried out. Nothing is granted, bound, told or
    /// written to Apple, and no client may finish on our word. Whoever acts after a grant (write-back, finish) has nothing
    /// to act on; whoever acts without one asks ``AppPolicy/mode``.
    ///
    /// What was decided in shadow is no grant, neither before nor after going live: only the system before knows what it
    /// gave, so only its own list says so (`makegood import grants`). Counting our decisions as given would lose, silently,
    /// exactly the purchases that it has missed. The receipts wait (`held`, `shadow`) and are judged once more when the app
    /// is live: what was imported is already granted; what was not was bought before ``grantFrom``, which by default is
    /// the moment of going live, and since ``hereSince``: it waits for a person, and what lasts is its owner's, without
    /// goods. Who goes back into shadow goes live anew: ``grantFrom`` is then the later of the two.
    package enum Mode: String, Sendable, CaseIterable {
        case live, shadow
    }

    /// What becomes of a subscription or non-consumable that was given to one user and is shown by another, with
    /// Apple's own data (P10). Goods are never given again.
    package enum Transfer: String, Sendable, CaseIterable {
        /// It stays with its owner.
        case keep
        /// It is whoever's shows it, within ``AppPolicy/movesPerDayMax`` and ``AppPolicy/movesPerMonthMax``.
        case transfer
        /// A person decides.
        case hold
    }

    /// What becomes of what another customer bought and shares with its user (Family Sharing, seats of an organization).
    package enum Shared: String, Sendable, CaseIterable {
        /// The user has the entitlement, without goods: goods were paid for once.
        case entitlement
        /// It gives what its buyer gets.
        case goods
        /// It counts for nothing in this app.
        case reject
    }

    package struct Goods: Sendable, Equatable, Codable {
        package var item: String
        package var amount: Int
        /// Given once, beside what was bought: the id of its ``Catalogue/Bonus``.
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
        /// Whether it may be given before Apple has confirmed it, within the limits of the app.
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
    /// No set: String's own equality would let one spelling of an id stand for another (``isTester(_:)``).
    package var testers: [String]
    /// Sandbox purchases of users who are no testers, per UTC day; 0 = none.
    package var sandboxPerUserPerDay: Int
    package var sandboxPerAppPerDay: Int
    /// Purchases before this were another system's duty.
    package var grantFrom: Date
    /// The app's first start here. What was bought since is nobody's past: it may be all that shadow has held, or what came
    /// before ``grantFrom`` was set. Nil: as ``grantFrom``.
    package var hereSince: Date?
    /// The oldest purchase, in seconds before it was submitted, that a post alone is granted for; 0 = no limit.
    package var makeUpMaxAge: Duration
    /// How many users one Apple customer may make purchases good for; 0 = no limit.
    package var makeUpUsersPerCustomer: Int
    /// How many purchases one user may make good per UTC day; 0 = no limit.
    package var makeUpPerUserPerDay: Int
    package var confirmWithApple: ConfirmWithApple
    package var transfer: Transfer = .keep
    package var shared: Shared = .entitlement
    /// Whether the `uid` of the old clients' records is a user as `userId` names one (row 5a).
    package var recordsNameUsers = true
    /// In the order they are tried; empty where Apple cannot be asked.
    package var legacyReceipts: [LegacyStrategy] = []
    /// Only where Apple can be told.
    package var finishAtApple = FinishAtApple.never
    /// Whether purchases that an order found carry it at Apple from then on. Only where Apple can be told.
    package var writesBackTokens = false
    /// Nil: nothing is given before Apple has confirmed what it must confirm.
    package var provisional: Provisional?
    package var products: [String: Product]
    /// The catalogue in force, which goes before `products`. Nil: none was applied.
    package var sold: Catalogue?

    package init(
        id: String, sandboxPurchases: SandboxPurchases = .testers, testers: [String] = [],
        sandboxPerUserPerDay: Int = 0, sandboxPerAppPerDay: Int = 0, grantFrom: Date,
        makeUpMaxAge: Duration = .seconds(7 * 86_400), makeUpUsersPerCustomer: Int = 3, makeUpPerUserPerDay: Int = 0,
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
    /// Where a submission waits first. A receipt that may be judged without Apple does not wait behind those that Apple
    /// is asked about; if it needs Apple after all, it is rerouted. A big one is looked at apart from the others.
    ///
    /// - Parameter isAwaited: it comes with a purchase that its poster waits for: it names an order, or a transaction
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
    /// Two devices of one Apple account, each with its own user, show the same subscription whenever they start, and
    /// would pass it to and fro for ever. So a chain moves so often at most, in 24 hours and in 30 days; after that it
    /// stays where it is, and whoever shows it is told that it is another's. Nothing is lost by that: its owner got it by
    /// this very rule, and tomorrow it may move again.
    package static let movesPerDayMax = 1
    package static let movesPerMonthMax = 3

    /// What the policy says of a purchase that somebody else turns out to have. Nil: it stays his, as do consumables,
    /// non-renewing subscriptions, what the family shares, and whatever is shown without possession.
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
