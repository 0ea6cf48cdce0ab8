@testable import PurchaseClient

/// What Apple sells, as far as an app sees it.
struct AppleModel {
    struct Sale {
        let id: String
        let product: String
        let token: AccountToken?
        let time: Int64
        /// Whose tap it was; nil of a purchase in the App Store.
        let user: UserID?
        /// Whether StoreKit told the app that the payment failed or was cancelled.
        var isDenied = false
        /// Whether it carries the token of an earlier purchase.
        var isRenewal = false
        /// Whether the app's queue shows it already.
        var isVisible = true
        var isFinished = false
    }

    struct Approval {
        let product: String
        let token: AccountToken?
        let user: UserID
    }

    private(set) var sales: [String: Sale] = [:]
    /// What waits for a parent.
    private(set) var approvals: [Approval] = []
    /// Failed transactions of StoreKit 1 that were not finished, with their products.
    private(set) var failed: [String: String] = [:]
    private var lastID = 0

    /// What the queue shows, in a fixed order.
    var unfinished: [Sale] {
        sales.values.filter { $0.isVisible && !$0.isFinished }.sorted { ($0.id.count, $0.id) < ($1.id.count, $1.id) }
    }

    mutating func newID() -> String {
        lastID += 1
        return "\(lastID)"
    }

    @discardableResult
    mutating func sell(
        _ product: String, _ token: AccountToken?, to user: UserID?, at time: Int64, id: String? = nil,
        isDenied: Bool = false, isVisible: Bool = true
    ) -> Sale {
        let sale = Sale(
            id: id ?? newID(), product: product, token: token, time: time, user: user, isDenied: isDenied,
            isVisible: isVisible)
        sales[sale.id] = sale
        return sale
    }

    mutating func renew(_ sale: Sale, at time: Int64) {
        let renewal = sell(sale.product, sale.token, to: sale.user, at: time)
        sales[renewal.id]?.isRenewal = true
    }

    mutating func askParent(_ approval: Approval) { approvals.append(approval) }

    /// A parent says yes or no.
    mutating func decide(_ index: Int, isApproved: Bool, at time: Int64) {
        let approval = approvals.remove(at: index)
        if isApproved { sell(approval.product, approval.token, to: approval.user, at: time) }
    }

    mutating func fail(_ id: String, _ product: String) { failed[id] = product }

    /// Shows everything that was paid. A success takes the place of the failure under its id.
    mutating func reveal() {
        for id in sales.keys {
            sales[id]?.isVisible = true
            failed[id] = nil
        }
    }

    mutating func finishFailed(_ id: String) { failed[id] = nil }

    mutating func finish(_ id: String) {
        if sales[id]?.isVisible == true { sales[id]?.isFinished = true }
    }
}

extension AppleModel.Sale {
    /// The transaction as StoreKit shows it. Apple signs it anew each time.
    func shown(byStoreKit1 isStoreKit1: Bool, signed: Int) -> StoreTransaction {
        var transaction = StoreTransaction.of(id, token.map { .some($0) } ?? .none, product: product, at: time)
        if isStoreKit1 { transaction.token = .unknown }
        if signed > 1 { transaction.proof = .signedTransaction("jws \(id) \(signed)") }
        return transaction
    }
}
