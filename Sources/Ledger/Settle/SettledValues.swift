import Encoding
import Foundation
import Purchases
import Settings

/// A row of a batch with what became of it.
struct SettledPurchase: Sendable {
    let row: VerdictRow
    let decision: Decision
    let gate: Gate
    let standing: Standing
    let isWon: Bool
    let outcome: PurchaseOutcome
    /// Nothing is written over an outcome that is there.
    var isWrittenOnlyIfNew = false

    /// The event that tells Apple's answer about a grant on trust.
    var answer: (type: EventType, id: UUID)? {
        switch outcome.mark {
        case .confirmed: standing.confirmationID.map { (.purchaseConfirmed, $0) }
        case .revoked: row.eventID(.purchaseRevoked).map { (.purchaseRevoked, $0) }
        case .given, nil: nil
        }
    }
}

/// A receipt of a batch with what becomes of it.
struct SettledReceipt: Sendable {
    let verdict: Verdict
    let summary: ReceiptSummary
}

/// A purchase that moves to a poster who claims it.
struct SettledMove: Sendable {
    let row: VerdictRow
    let chain: Standing.Chain
    /// The transaction under which it is granted.
    let grantedID: String
    let holder: String
}

/// An event that a settle transaction writes.
struct SettledEvent: Sendable {
    let id: UUID
    let appID: String
    let type: EventType
    let userID: String
    let transactionID: String
    let receiptID: UUID
    /// One JSON object.
    let body: String
    /// Where in the game the goods go, as JSON.
    var target: String?
    /// Whether the goods are the grant's, which has bonuses beside those of the verdict.
    var takesGoodsOfGrant = false
}

extension SettledEvent {
    /// An event about a row.
    ///
    /// - Parameter distinction: what tells the event from others of its type about the same purchase.
    init(
        _ type: EventType, to userID: String, about transactionID: String, of row: VerdictRow, distinction: String = "",
        _ body: [JSONValue.Member]
    ) {
        id = DerivedID.event(
            appID: row.verdict.appID, transactionID: transactionID, type: type, distinction: distinction)
        appID = row.verdict.appID
        self.type = type
        self.userID = userID
        self.transactionID = transactionID
        receiptID = row.verdict.receiptID
        self.body = JSONValue.object(body).text
    }

    /// That a purchase was granted.
    static func granted(_ row: VerdictRow) -> SettledEvent? {
        guard let transaction = row.transaction, let owner = row.owner, let goods = row.asked.goods else { return nil }
        var body: [JSONValue.Member] = [
            .init("productId", .string(transaction.productID)), .init("quantity", .number("\(transaction.quantity)")),
            .init("environment", .string(transaction.environment)),
            .init("originalTransactionId", .string(transaction.originalID)),
            .init("purchasedAt", .string(transaction.purchasedAt.rfc3339)), .init("goods", .goods(goods)),
        ]
        body += PurchaseTerms(transaction).members
        if let binding = row.binding { body.append(.init("bindingSource", .string(binding.rawValue))) }
        if row.asked.isProvisional { body.append(.init("provisional", .bool(true))) }
        let order = row.match?.order
        if let order { body.append(.init("orderId", .string(order.id.text))) }
        let number = order?.id ?? OrderID.ofPurchase(transaction.id, of: row.verdict.appID)
        body.append(.init("orderNumber", .string(number.text)))
        var event = SettledEvent(.purchaseGranted, to: owner, about: transaction.id, of: row, body)
        event.target = row.target
        event.takesGoodsOfGrant = row.bonuses != nil
        return event
    }

    /// Beside a grant: that a chain changed hands, to both users; that the user may have paid twice.
    static func beside(_ row: VerdictRow) -> [SettledEvent] {
        guard let transaction = row.transaction, let match = row.match else { return [] }
        var events: [SettledEvent] = []
        func tell(_ type: EventType, _ userID: String, _ member: JSONValue.Member) {
            events.append(
                SettledEvent(
                    type, to: userID, about: transaction.id, of: row,
                    [.init("productId", .string(transaction.productID)), member]))
        }
        if match.takesChain, let before = match.chainWasOf {
            let chain = JSONValue.Member("originalTransactionId", .string(transaction.originalID))
            tell(.ownershipLost, before, chain)
            tell(.ownershipGained, match.userID, chain)
        }
        if let order = match.secondChargeOf {
            tell(.possibleDoubleCharge, match.userID, .init("orderId", .string(order.text)))
        }
        return events
    }

    /// That two users claim a purchase, to both, each once: by proof, or by less than proof.
    static func disputes(_ purchase: SettledPurchase) -> [SettledEvent] {
        let (row, outcome) = (purchase.row, purchase.outcome)
        guard let transaction = row.transaction else { return [] }
        var events: [SettledEvent] = []
        let product = JSONValue.Member("productId", .string(transaction.productID))
        if let holder = outcome.disputedHolder, let owner = row.owner {
            for (side, user) in [("claimant", owner), ("holder", holder)] {
                events.append(
                    SettledEvent(
                        .ownershipDisputed, to: user, about: transaction.id, of: row, distinction: "." + side,
                        [product, .init("isOwner", .bool(user.isSameText(as: holder)))]))
            }
        }
        if let rival = outcome.rival, let poster = row.poster {
            for (side, user) in [("claimant", poster), ("holder", rival)] {
                events.append(
                    SettledEvent(
                        .ownershipDisputed, to: user, about: transaction.originalID, of: row,
                        distinction: ".\(side).\(user)",
                        [product, .init("isOwner", .bool(outcome.state != .held && user.isSameText(as: rival)))]))
            }
        }
        return events
    }

    /// That a purchase of a known owner is held, to the owner: once for each reason.
    static func held(_ purchase: SettledPurchase) -> SettledEvent? {
        guard let owner = purchase.outcome.heldOwner, let reason = purchase.outcome.reason,
            let transaction = purchase.row.transaction
        else { return nil }
        return SettledEvent(
            .purchaseHeld, to: owner, about: transaction.id, of: purchase.row, distinction: "." + reason,
            [
                .init("productId", .string(transaction.productID)),
                .init("quantity", .number("\(transaction.quantity)")),
                .init("environment", .string(transaction.environment)),
                .init("originalTransactionId", .string(transaction.originalID)),
                .init("purchasedAt", .string(transaction.purchasedAt.rfc3339)), .init("reason", .string(reason)),
            ])
    }

    /// That a purchase moved to who claimed it, to both users. It may move again, but by another receipt.
    static func moved(_ move: SettledMove) -> [SettledEvent] {
        guard let poster = move.row.poster, let transaction = move.row.transaction else { return [] }
        let told: [(EventType, String)] = [(.ownershipLost, move.holder), (.ownershipGained, poster)]
        return told.map { type, user in
            SettledEvent(
                type, to: user, about: transaction.id, of: move.row,
                distinction: "." + move.row.verdict.receiptID.uuidString,
                [
                    .init("productId", .string(transaction.productID)),
                    .init("originalTransactionId", .string(move.chain.originalID)),
                    .init("bindingSource", .string(BindingSource.transfer.rawValue)),
                ])
        }
    }
}

extension VerdictRow {
    func eventID(_ type: EventType) -> UUID? {
        transactionID.map { DerivedID.event(appID: verdict.appID, transactionID: $0, type: type) }
    }

    /// Whether an unregistered token belongs to this owner from now on: not for a token that we set ourselves.
    var remembersToken: Bool {
        guard transaction?.appAccountToken != nil, match?.reasons.contains(.tokenWritten) != true else { return false }
        return switch asked.source {
        case nil, .orderToken, .userToken, .shared: false
        default: true
        }
    }

    /// Where in the game the goods go. Members that the order (or the order that the purchase's token names) leaves out
    /// come from the post, if the owner posted it or the post is the owner's record (S0-9).
    var target: String? {
        let isOwners =
            match.map {
                poster == nil && !verdict.claim.isOfPlaceholder || $0.userID.isSameText(as: poster)
                    || $0.source == .record
            } ?? true
        let posted = isOwners ? entry?.target ?? verdict.claim.target : nil
        guard let ordered = (match?.order ?? match?.orderOfToken)?.target, !ordered.isSameText(as: "{}") else {
            return posted ?? (match?.order ?? match?.orderOfToken)?.target
        }
        guard let posted, !posted.isSameText(as: "{}"),
            case .object(var members)? = try? JSONValue(parsing: Array(ordered.utf8)),
            case .object(let more)? = try? JSONValue(parsing: Array(posted.utf8))
        else { return ordered }
        // A member that is missing, null or "" says nothing.
        let says = { (member: JSONValue.Member) in ![.null, .string("")].contains(member.value) }
        members.removeAll { !says($0) }
        members += more.filter { member in
            says(member) && !members.contains { $0.key.utf8.elementsEqual(member.key.utf8) }
        }
        return JSONValue.object(members).text
    }

    /// The bonuses as JSON, each with the period that the purchase belongs to, and with its goods as they will stand in
    /// the grant.
    var bonuses: String? {
        guard let transaction, let bonuses = match?.bonuses, !bonuses.isEmpty else { return nil }
        return JSONValue.array(
            bonuses.map { bonus in
                let goods = bonus.goods.map { AppPolicy.Goods(item: $0.item, amount: $0.amount, bonus: bonus.id) }
                return .object([
                    .init("id", .string(bonus.id)), .init("period", .string(bonus.period(at: transaction.purchasedAt))),
                    .init("goods", .goods(goods)),
                ])
            }
        ).text
    }
}
