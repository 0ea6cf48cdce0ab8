import Encoding
import Foundation
import Postgres
import Purchases

/// The batch by columns, as `unnest` takes it: one row per receipt and transaction.
struct SettleColumns {
    private var receipts: [UUID] = []
    private var attempts: [Int?] = []
    private var dueIn: [Double?] = []
    private var apps: [String?] = []
    private var users: [String?] = []
    private var possessions: [Bool?] = []
    private var transactions: [String?] = []
    private var decisions: [String?] = []
    private var reasons: [String?] = []
    private var bindings: [String?] = []
    private var environments: [String?] = []
    private var products: [String?] = []
    private var quantities: [Int?] = []
    private var goods: [String?] = []
    private var purchaseKeys: [String?] = []
    private var originals: [String?] = []
    private var kinds: [String?] = []
    private var purchasedAt: [Date?] = []
    private var expiresAt: [Date?] = []
    private var revokedAt: [Date?] = []
    private var tokens: [String?] = []
    private var ownerships: [String?] = []
    private var signedAt: [Date?] = []
    private var facts: [String?] = []
    private var eventIDs: [String?] = []
    private var callServices: [String?] = []
    private var callEnvironments: [String?] = []
    private var callStatuses: [Int?] = []
    private var callCodes: [Int?] = []
    private var callMilliseconds: [Int?] = []
    private(set) var customers: [String?] = []
    private(set) var rivals: [String?] = []
    private(set) var lines: [Int?] = []
    private(set) var periodKeys: [String?] = []
    private(set) var consumables: [Bool?] = []
    private(set) var matches = MatchColumns()

    init(_ verdicts: [Verdict]) {
        for verdict in verdicts {
            switch verdict.finding {
            case .transactions(let entries):
                for entry in entries {
                    append(
                        verdict, entry.transaction.id, entry.transaction, entry.decision, entry.match, entry.transfer,
                        entry.heldBy, entry.rival, target: entry.target, isConsumable: entry.isConsumable)
                }
            case .identifier(let id, let reason): append(verdict, id, nil, .held(reason))
            case .receipt(let decision): append(verdict, nil, nil, decision)
            }
        }
    }

    private mutating func append(
        _ verdict: Verdict, _ transactionID: String?, _ transaction: Transaction?, _ decision: Decision,
        _ match: Match? = nil, _ transfer: AppPolicy.Transfer? = nil, _ heldBy: Verdict.Entry.HoldingRow? = nil,
        _ rival: String? = nil, target: String? = nil, isConsumable: Bool = false
    ) {
        receipts.append(verdict.receiptID)
        rivals.append(rival)
        periodKeys.append(transaction?.periodKey)
        consumables.append(isConsumable)
        attempts.append(verdict.attempt)
        lines.append(verdict.lines)
        dueIn.append(verdict.dueIn.inSeconds)
        apps.append(verdict.appID)
        users.append(verdict.claim.userID)
        possessions.append(verdict.claim.hasPossession)
        transactions.append(transactionID)
        let source = appendDecision(decision, heldBy?.source)
        appendFacts(transaction)
        matches.append(
            match, of: transaction, transfer, in: verdict, givenBy: source, heldBy,
            target: target ?? verdict.claim.target)
        eventIDs.append(transaction.map { Self.eventID(verdict.appID, $0, decision).text })
        callServices.append(verdict.call?.service)
        callEnvironments.append(verdict.call?.environment)
        callStatuses.append(verdict.call?.httpStatus)
        callCodes.append(verdict.call?.code)
        callMilliseconds.append(verdict.call?.milliseconds)
    }

    /// Of what this decision tells if it is carried out: of the grant, or that Apple took it back.
    private static func eventID(_ appID: String, _ transaction: Transaction, _ decision: Decision) -> UUID {
        let type = if case .rejected = decision { "purchase.revoked" } else { "purchase.granted" }
        return DerivedID.event(appID: appID, transactionID: transaction.id, type: type)
    }

    /// - Returns: what gives it, where it is given.
    private mutating func appendDecision(_ decision: Decision, _ holder: BindingSource?) -> BindingSource? {
        let (word, reason, given, source): (String, Reason?, [AppPolicy.Goods]?, BindingSource?) =
            switch decision {
            case .grant(let goods, let source): ("grant", nil, goods, source)
            case .provisional(let goods, let source): ("provisional", .appleUnavailable, goods, source)
            case .rejected(let reason): ("rejected", reason, nil, nil)
            case .held(let reason): ("held", reason, nil, nil)
            case .open(let reason): ("open", reason, nil, nil)
            }
        decisions.append(word)
        reasons.append(reason?.rawValue)
        goods.append(given.map(GoodsJSON.encode))
        bindings.append((source ?? holder)?.rawValue)
        return source
    }

    private mutating func appendFacts(_ transaction: Transaction?) {
        environments.append(transaction?.environment)
        products.append(transaction?.productID)
        quantities.append(transaction?.quantity)
        purchaseKeys.append(transaction?.purchaseKey)
        originals.append(transaction?.originalID)
        kinds.append(transaction?.kind?.rawValue)
        purchasedAt.append(transaction?.purchasedAt)
        expiresAt.append(transaction?.expiresAt)
        revokedAt.append(transaction?.revokedAt)
        tokens.append(transaction?.appAccountToken?.text)
        ownerships.append(transaction?.ownership)
        customers.append(transaction?.customerID)
        signedAt.append(transaction?.signedAt)
        facts.append(transaction?.facts)
    }

    var values: [Value] {
        [
            .uuids(receipts), .int32s(attempts), .doubles(dueIn), .texts(apps), .texts(users), .bools(possessions),
            .texts(transactions), .texts(decisions), .texts(reasons), .texts(bindings), .texts(environments),
            .texts(products), .int32s(quantities), .jsons(goods), .texts(purchaseKeys), .texts(originals),
            .texts(kinds), .dates(purchasedAt), .dates(expiresAt), .dates(revokedAt), .texts(tokens),
            .texts(ownerships), .dates(signedAt), .jsons(facts), .texts(eventIDs), .texts(callServices),
            .texts(callEnvironments), .int32s(callStatuses), .ints(callCodes), .int32s(callMilliseconds),
        ]
    }
}
