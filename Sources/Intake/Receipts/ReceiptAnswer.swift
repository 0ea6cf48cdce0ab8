package import Encoding
import Foundation
package import Ledger
package import Purchases
import Settings
import Support

/// The answer to a poster about a receipt: the JSON of `POST /v1/receipts` and `GET /v1/receipts/{id}`.
package struct ReceiptAnswer: Sendable {
    private let view: ReceiptView
    private let finishing: FinishPolicy
    private let ignored: [String]
    private let disregarded: [String]
    private let repaired: [FieldRepair]
    private let hints: OwnerHints

    /// - Parameter finishing: the app's policy.
    package init(
        _ view: ReceiptView, finishing: FinishPolicy, hints: OwnerHints = OwnerHints(), ignored: [String] = [],
        disregarded: [String] = [],
        repaired: [FieldRepair] = []

    ) {
        self.view = view
        self.finishing = finishing
        self.hints = hints
        self.ignored = ignored
        self.disregarded = disregarded
        self.repaired = repaired
    }

    /// Whether the client may finish the transaction (P2): the named transaction's value, or else whether all are safe.
    package var safeToFinish: Bool {
        if let named = view.transactions.first(where: {
            $0.shownID.isSameText(as: view.transactionID) || $0.transactionId.isSameText(as: view.transactionID)
        }) {
            return isSafe(named)
        }
        guard view.transactions.isEmpty else { return view.transactions.allSatisfy(isSafe) }
        return isSafe(state: view.state.rawValue, reason: view.reason, hasFacts: false)
    }

    package var json: JSONValue {
        var members: [JSONValue.Member] = [
            .init("id", .string(view.id.text)),
            .init("state", .string(view.state.rawValue)),
        ]
        if let reason = view.reason { members.append(.init("reason", .string(reason))) }
        members.append(.init("safeToFinish", .bool(safeToFinish)))
        // The receipt is genuine and empty: the client's copy is older than the purchase (P19).
        if view.reason == Reason.noTransactionYet.rawValue { members.append(.init("refreshReceipt", .bool(true))) }
        members.append(.init("receivedAt", .string(view.receivedAt.rfc3339)))
        if let dueAt = view.dueAt, !view.state.isEnded {
            members.append(.init("nextAttemptAt", .string(dueAt.rfc3339)))
        } else if !safeToFinish, let safeAt = view.transactions.compactMap(\.safeAt).max() {
            // Another user owns it, by less than proof: from that time on the client may finish, unless a person has
            // decided otherwise.
            members.append(.init("nextAttemptAt", .string(safeAt)))
        }
        members.append(.init("transactions", .array(view.transactions.map(json))))
        let isShared = !view.transactions.isEmpty && view.transactions.allSatisfy { $0.terms?.isShared ?? false }
        let sentence = PlayerSentence(view.state, view.reason.flatMap(Reason.init(rawValue:)), isShared: isShared)
        members.append(.init("sentence", sentence.json))
        if !ignored.isEmpty { members.append(.init("ignored", .array(ignored.map(JSONValue.string)))) }
        if !disregarded.isEmpty {
            members.append(.init("disregarded", .array(disregarded.map(JSONValue.string))))
        }
        if !repaired.isEmpty { members.append(.init("repaired", .array(repaired.map(\.json)))) }
        return .object(members)
    }

    private func json(_ transaction: ReceiptView.TransactionView) -> JSONValue {
        var members: [JSONValue.Member] = [.init("transactionId", .string(transaction.shownID))]
        if showsFacts(transaction) {
            if let id = transaction.originalTransactionId {
                let shown = Transaction.shownID(id, in: transaction.environment)
                members.append(.init("originalTransactionId", .string(shown)))
            }
            if let id = transaction.productId { members.append(.init("productId", .string(id))) }
            if let quantity = transaction.quantity { members.append(.init("quantity", .integer(quantity))) }
            if let name = transaction.environment { members.append(.init("environment", .string(name))) }
            if let time = transaction.purchasedAt { members.append(.init("purchasedAt", .string(time))) }
            members += transaction.terms?.members ?? []
        }
        members.append(.init("state", .string(transaction.state)))
        if let reason = transaction.reason { members.append(.init("reason", .string(reason))) }
        // The purchase was given on trust. The debt to confirm it is ours, so the client may finish the transaction.
        if transaction.reason == Reason.unconfirmed.rawValue { members.append(.init("provisional", .bool(true))) }
        // The proof was old, and nobody could ask Apple whether the purchase still stands.
        if transaction.appleAsked == false { members.append(.init("appleAsked", .bool(false))) }
        members.append(.init("safeToFinish", .bool(isSafe(transaction))))
        if let isOwn = transaction.isOwn { members.append(.init("owner", .string(isOwn ? "you" : "another"))) }
        if let hint = transaction.holder.flatMap({ hints[UserName(appID: view.appID, key: $0)] }) {
            members.append(.init("ownerHint", .string(hint)))
        }
        if let goods = transaction.goods { members.append(.init("goods", .goods(goods))) }
        if let id = transaction.grantedAs {
            let number = transaction.orderId ?? OrderID.ofPurchase(id, of: view.appID)
            members.append(.init("orderNumber", .string(number.text)))
        }
        members.append(.init("sentence", sentence(transaction).json))
        return .object(members)
    }

    /// A purchase whose outcome is open is in the state of its receipt.
    private func sentence(_ transaction: ReceiptView.TransactionView) -> PlayerSentence {
        PlayerSentence(
            ReceiptState(rawValue: transaction.state) ?? (view.state == .parked ? .parked : .received),
            transaction.reason.flatMap(Reason.init(rawValue:)),
            isShared: showsFacts(transaction) && transaction.terms?.isShared ?? false)
    }

    private func isSafe(_ transaction: ReceiptView.TransactionView) -> Bool {
        isSafe(
            state: transaction.state, reason: transaction.reason,
            // Facts that another user's proof brought do not make the transaction safe: this poster's own proof is
            // still needed.
            hasFacts: transaction.productId != nil && showsFacts(transaction),
            isDisputed: transaction.isDisputed ?? false)
    }

    private func isSafe(state: String, reason: String?, hasFacts: Bool, isDisputed: Bool = false) -> Bool {
        // What a post of nobody waits with may be claimed by its user's own post, whatever else it waits for.
        let isOfNobody = view.userID == nil && view.orderID == nil
        return finishing != .never
            && SafeToFinish.judge(
                state: state, reason: reason, hasFacts: hasFacts, finishHeld: finishing == .held && !isOfNobody,
                isDisputed: isDisputed)
    }

    /// A poster who knows only an id gets no hint about the purchase behind it (Ownership, note 5).
    private func showsFacts(_ transaction: ReceiptView.TransactionView) -> Bool {
        transaction.isOwn == true || transaction.reason != Reason.possessionMissing.rawValue
    }
}
