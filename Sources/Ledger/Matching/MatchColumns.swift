import Encoding
import Foundation
import Postgres
import Purchases
import Settings

/// The columns that the settle statement takes from each row's match.
struct MatchColumns {
    private var owners: [String?] = []
    private var orders: [String?] = []
    private var reasons: [String?] = []
    private var chargedOrders: [String?] = []
    private var orderFacts: [String?] = []
    private var chains: [Bool?] = []
    private var beside: [String?] = []
    private var proofs: [Bool?] = []
    private var transfers: [String?] = []
    private var bonuses: [String?] = []
    private var judgedAt: [Date?] = []
    private var yields: [Bool?] = []
    private var remembers: [Bool?] = []
    private var items: [String?] = []
    private var wantedOrders: Set<UUID> = []

    mutating func append(
        _ match: Match?, of transaction: Transaction?, _ transfer: AppPolicy.Transfer?, in verdict: Verdict,
        givenBy source: BindingSource?, _ heldBy: Verdict.Entry.HoldingRow?, target: String?
    ) {
        let appID = verdict.appID
        owners.append(match?.userID)
        orders.append(match?.order?.id.text)
        let words = (match?.reasons ?? heldBy?.reasons ?? []).map(\.rawValue)
        reasons.append(words.isEmpty ? nil : words.joined(separator: ","))
        chargedOrders.append(match?.secondChargeOf?.text)
        orderFacts.append(Self.facts(match, verdict.claim, posted: target))
        chains.append(match?.takesChain ?? false)
        beside.append(transaction.flatMap { transaction in match.flatMap { Self.beside($0, transaction, appID) } })
        // Only a token that names an order or a registered user proves the owner. Where another user has the purchase,
        // that proof is told (note 2). A token that was only used before proves nothing.
        proofs.append(match?.source == .orderToken || match?.source == .userToken)
        transfers.append(transfer?.rawValue)
        bonuses.append(transaction.flatMap { Self.bonuses(match?.bonuses ?? [], $0) })
        judgedAt.append(verdict.claim.judgedAt)
        // Of the purchases of a batch that want the same order, the first gets it.
        yields.append(match?.order.map { source != nil && !wantedOrders.insert($0.id).inserted } ?? false)
        remembers.append(Self.remembers(match, transaction, source))
        items.append(match?.item)
    }

    /// Whether an unregistered token belongs to this owner from now on: not for a token that we set ourselves.
    private static func remembers(_ match: Match?, _ transaction: Transaction?, _ source: BindingSource?) -> Bool {
        guard transaction?.appAccountToken != nil, match?.reasons.contains(.tokenWritten) != true else { return false }
        return switch source {
        case nil, .orderToken, .userToken, .shared: false
        default: true
        }
    }

    /// The JSON that the grant's event says of its order: the order's id, and where in the game the goods go. Members
    /// that the order (or the order that the purchase's token names) leaves out come from the post, if the owner posted
    /// it or the post is the owner's record (S0-9).
    private static func facts(_ match: Match?, _ claim: Claim, posted: String?) -> String? {
        let isOwners =
            match.map { claim.userID == nil || $0.userID.isSameText(as: claim.userID) || $0.source == .record } ?? true
        let ordered = (match?.order ?? match?.orderOfToken)?.target
        guard let target = Self.target(ordered, completedBy: isOwners ? posted : nil) else { return nil }
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

    /// The events beside the grant: that a chain changed hands, to both users; that the user may have paid twice.
    private static func beside(_ match: Match, _ transaction: Transaction, _ appID: String) -> String? {
        var events: [JSONValue] = []
        func tell(_ type: String, _ userID: String, _ body: [JSONValue.Member]) {
            let id = DerivedID.event(appID: appID, transactionID: transaction.id, type: type)
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

    /// The bonuses, each with the period that the purchase belongs to, and with its goods as they will stand in the
    /// grant.
    private static func bonuses(_ bonuses: [Catalogue.Bonus], _ transaction: Transaction) -> String? {
        guard !bonuses.isEmpty else { return nil }
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

    /// The parameters `$36` to `$49`.
    var values: [Value] {
        [
            .texts(owners), .texts(orders), .texts(reasons), .texts(chargedOrders), .jsons(orderFacts), .bools(chains),
            .jsons(beside), .bools(proofs), .texts(transfers), .jsons(bonuses), .dates(judgedAt), .bools(yields),
            .bools(remembers), .texts(items),
        ]
    }
}
