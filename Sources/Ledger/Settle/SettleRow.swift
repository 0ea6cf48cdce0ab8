import Encoding
import Foundation
import Postgres
import Purchases
import Settings

/// One row of a batch of verdicts: a purchase of a receipt, or the receipt where nothing is known of its purchases.
struct SettleRow: Sendable {
    let verdict: Verdict
    let transactionID: String?
    let decision: Decision
    /// Nil: Apple has proved nothing of it.
    let entry: Verdict.Entry?
    /// Whether another purchase of the batch gets the order that this purchase wants.
    private(set) var yields = false

    private init(_ verdict: Verdict, _ transactionID: String?, _ decision: Decision, _ entry: Verdict.Entry? = nil) {
        self.verdict = verdict
        self.transactionID = transactionID
        self.decision = decision
        self.entry = entry
    }

    /// The rows of these verdicts, in order. Of the purchases that want the same order, the first gets it.
    static func rows(of verdicts: [Verdict]) -> [SettleRow] {
        var rows: [SettleRow] = []
        var wantedOrders: Set<UUID> = []
        for verdict in verdicts {
            switch verdict.finding {
            case .transactions(let entries):
                for entry in entries {
                    var row = SettleRow(verdict, entry.transaction.id, entry.decision, entry)
                    if row.source != nil, let order = entry.match?.order {
                        row.yields = !wantedOrders.insert(order.id).inserted
                    }
                    rows.append(row)
                }
            case .identifier(let id, let reason): rows.append(SettleRow(verdict, id, .held(reason)))
            case .receipt(let decision): rows.append(SettleRow(verdict, nil, decision))
            }
        }
        return rows
    }

    /// Each column, by the name that the statement reads it under.
    static let columns: [Column<SettleRow>] = [
        // The receipt.
        .uuid("receipt") { $0.verdict.receiptID },
        .int32("attempt") { $0.verdict.attempt },
        .int32("lines") { $0.verdict.lines },
        .double("due_in") { $0.verdict.dueIn.inSeconds },
        .text("app") { $0.verdict.appID },
        .text("usr") { $0.verdict.claim.userID },
        .bool("possession") { $0.verdict.claim.hasPossession },
        .date("judged_at") { $0.verdict.claim.judgedAt },
        .text("call_service") { $0.verdict.call?.service },
        .text("call_environment") { $0.verdict.call?.environment },
        .int32("call_status") { $0.verdict.call?.httpStatus },
        .int("call_code") { $0.verdict.call?.code },
        .int32("call_ms") { $0.verdict.call?.milliseconds },
        // The decision.
        .text("transaction") { $0.transactionID },
        .text("asked") { $0.decision.word },
        .text("cause") { $0.decision.reason?.rawValue },
        .text("binding") { ($0.source ?? $0.entry?.heldBy?.source)?.rawValue },
        .json("goods") { $0.decision.goods.map(GoodsJSON.encode) },
        .text("event_id") { $0.eventID?.text },
        // Apple's facts.
        .text("environment") { $0.transaction?.environment },
        .text("product") { $0.transaction?.productID },
        .int32("quantity") { $0.transaction?.quantity },
        .text("purchase_key") { $0.transaction?.purchaseKey },
        .text("period_key") { $0.transaction?.periodKey },
        .text("original") { $0.transaction?.originalID },
        .text("kind") { $0.transaction?.kind?.rawValue },
        .bool("is_consumable") { $0.entry?.isConsumable ?? false },
        .date("purchased_at") { $0.transaction?.purchasedAt },
        .date("expires_at") { $0.transaction?.expiresAt },
        .date("revoked_at") { $0.transaction?.revokedAt },
        .text("token") { $0.transaction?.appAccountToken?.text },
        .text("ownership") { $0.transaction?.ownership },
        .text("customer") { $0.transaction?.customerID },
        .date("signed_at") { $0.transaction?.signedAt },
        .json("facts") { $0.transaction?.facts },
        // Whose it is.
        .text("matched_owner") { $0.match?.userID },
        .text("order_text") { $0.match?.order?.id.text },
        .text("why") { $0.reasons },
        .text("charged_order") { $0.match?.secondChargeOf?.text },
        .json("order_facts") { $0.orderFacts },
        .bool("takes_chain") { $0.match?.takesChain ?? false },
        .json("beside") { $0.eventsBeside },
        .bool("proves_owner") { $0.match?.source == .orderToken || $0.match?.source == .userToken },
        .text("transfer") { $0.entry?.transfer?.rawValue },
        .json("bonuses") { $0.bonuses },
        .bool("yields") { $0.yields },
        .bool("remembers") { $0.remembersToken },
        .text("item") { $0.match?.item },
        .text("rival") { $0.entry?.rival },
    ]
}

extension Decision {
    /// The word for it in SQL.
    fileprivate var word: String {
        switch self {
        case .grant: "grant"
        case .provisional: "provisional"
        case .rejected: "rejected"
        case .held: "held"
        case .open: "open"
        }
    }

    fileprivate var reason: Reason? {
        switch self {
        case .grant: nil
        case .provisional: .appleUnavailable
        case .rejected(let reason), .held(let reason), .open(let reason): reason
        }
    }

    fileprivate var goods: [AppPolicy.Goods]? {
        switch self {
        case .grant(let goods, _), .provisional(let goods, _): goods
        case .rejected, .held, .open: nil
        }
    }
}

extension SettleRow {
    private var transaction: Transaction? { entry?.transaction }
    private var match: Match? { entry?.match }

    /// What gives it; nil where nothing is given.
    private var source: BindingSource? {
        switch decision {
        case .grant(_, let source), .provisional(_, let source): source
        case .rejected, .held, .open: nil
        }
    }

    /// Of what the decision tells if it is carried out: of the grant, or that Apple took it back.
    private var eventID: UUID? {
        guard let transaction else { return nil }
        let type = if case .rejected = decision { "purchase.revoked" } else { "purchase.granted" }
        return DerivedID.event(appID: verdict.appID, transactionID: transaction.id, type: type)
    }

    /// The words of the reasons, with commas between.
    private var reasons: String? {
        let words = (match?.reasons ?? entry?.heldBy?.reasons ?? []).map(\.rawValue)
        return words.isEmpty ? nil : words.joined(separator: ",")
    }

    /// Whether an unregistered token belongs to this owner from now on: not for a token that we set ourselves.
    private var remembersToken: Bool {
        guard transaction?.appAccountToken != nil, match?.reasons.contains(.tokenWritten) != true else { return false }
        return switch source {
        case nil, .orderToken, .userToken, .shared: false
        default: true
        }
    }

    /// The JSON that the grant's event says of its order: the order's id, and where in the game the goods go. Members
    /// that the order (or the order that the purchase's token names) leaves out come from the post, if the owner posted
    /// it or the post is the owner's record (S0-9).
    private var orderFacts: String? {
        let claim = verdict.claim
        let isOwners =
            match.map { claim.userID == nil || $0.userID.isSameText(as: claim.userID) || $0.source == .record } ?? true
        let ordered = (match?.order ?? match?.orderOfToken)?.target
        let posted = isOwners ? entry?.target ?? claim.target : nil
        guard let target = Self.target(ordered, completedBy: posted) else { return nil }
        // `target` is JSON as it came from the database.
        let orderID = match?.order.map { #","orderId":"\#($0.id.text)""# } ?? ""
        return #"{"target":\#(target)\#(orderID)}"#
    }

    /// The order's target, completed member by member. A member that is missing, null or "" says nothing.
    private static func target(_ ordered: String?, completedBy posted: String?) -> String? {
        guard let ordered, !ordered.isSameText(as: "{}") else { return posted ?? ordered }
        guard let posted, !posted.isSameText(as: "{}"),
            case .object(var members)? = try? JSONValue(parsing: Array(ordered.utf8)),
            case .object(let more)? = try? JSONValue(parsing: Array(posted.utf8))
        else { return ordered }
        let says = { (member: JSONValue.Member) in ![.null, .string("")].contains(member.value) }
        members.removeAll { !says($0) }
        members += more.filter { member in
            says(member) && !members.contains { $0.key.utf8.elementsEqual(member.key.utf8) }
        }
        return JSONValue.object(members).text
    }

    /// The events beside the grant, as JSON: that a chain changed hands, to both users; that the user may have paid
    /// twice.
    private var eventsBeside: String? {
        guard let transaction, let match else { return nil }
        var events: [JSONValue] = []
        func tell(_ type: String, _ userID: String, _ body: [JSONValue.Member]) {
            let id = DerivedID.event(appID: verdict.appID, transactionID: transaction.id, type: type)
            events.append(
                .object([
                    .init("id", .string(id.text)), .init("type", .string(type)), .init("user", .string(userID)),
                    .init("body", .object([.init("productId", .string(transaction.productID))] + body)),
                ]))
        }
        if match.takesChain, let before = match.chainWasOf {
            let chain = [JSONValue.Member("originalTransactionId", .string(transaction.originalID))]
            tell("ownership.lost", before, chain)
            tell("ownership.gained", match.userID, chain)
        }
        if let order = match.secondChargeOf {
            tell(
                "purchase.possible_double_charge", match.userID,
                [.init("orderId", .string(order.text))])
        }
        return events.isEmpty ? nil : JSONValue.array(events).text
    }

    /// The bonuses as JSON, each with the period that the purchase belongs to, and with its goods as they will stand in
    /// the grant.
    private var bonuses: String? {
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
