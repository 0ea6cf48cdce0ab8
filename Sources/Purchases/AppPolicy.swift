package import Foundation

/// What one app of the configuration sells and how it decides. Pure values; credentials live elsewhere.
package struct AppPolicy: Sendable, Equatable {
    /// What to do with a purchase that Apple signed as Sandbox.
    package enum SandboxPurchases: String, Sendable, CaseIterable {
        case testers, grant, hold
    }

    /// Whether a signed transaction is also looked up at Apple before it is granted (design.md 5.4).
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

    package struct Goods: Sendable, Equatable, Codable {
        package var item: String
        package var amount: Int

        package init(item: String, amount: Int) {
            self.item = item
            self.amount = amount
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
    package var sandboxPurchases: SandboxPurchases
    package var testers: Set<String>
    /// Sandbox purchases of users who are no testers, per UTC day; 0 = none.
    package var sandboxPerUserPerDay: Int
    package var sandboxPerAppPerDay: Int
    /// Purchases before this were another system's duty.
    package var grantFrom: Date
    /// The oldest purchase, in seconds before it was submitted, that a post alone is granted for; 0 = no limit.
    package var makeUpMaxAge: Duration
    /// How many users one Apple customer may make purchases good for; 0 = no limit.
    package var makeUpUsersPerCustomer: Int
    /// How many purchases one user may make good per UTC day; 0 = no limit.
    package var makeUpPerUserPerDay: Int
    package var confirmWithApple: ConfirmWithApple
    /// In the order they are tried; empty where Apple cannot be asked.
    package var legacyReceipts: [LegacyStrategy] = []
    /// Nil: nothing is given before Apple has confirmed what it must confirm.
    package var provisional: Provisional?
    package var products: [String: Product]
    /// The catalogue in force, which goes before `products`. Nil: none was applied.
    package var sold: Catalogue?

    package init(
        id: String, sandboxPurchases: SandboxPurchases = .testers, testers: Set<String> = [],
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
}

extension AppPolicy {
    /// Where a submission waits first. A receipt that may be judged without Apple does not wait behind those that Apple
    /// is asked about; if it needs Apple after all, it is rerouted.
    package func lane(of kind: Proof.Kind) -> Lane {
        switch kind {
        case .signedTransaction: confirmWithApple == .always ? .apple : .local
        case .receipt: legacyReceipts.contains(.local) ? .local : .apple
        case .identifier: .apple
        }
    }
}
