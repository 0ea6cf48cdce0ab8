import Encoding
import Foundation

/// One purchase of a chain with all transactions by which Apple lists it, in the order of their purchase.
struct ChainPurchase {
    private(set) var listed: [ChainFacts.Purchase]
    /// Apple's present statement about the purchase: the newest one about any of its transactions, with the id of that
    /// transaction.
    private(set) var facts: Transaction

    /// The transaction under which the purchase was granted. Nil: nobody was granted it.
    var granted: ChainFacts.Purchase? { listed.first { $0.grant != nil } }
    /// The id by which events name the purchase: of its grant, else of its earliest transaction.
    var id: String { (granted ?? listed[0]).transaction.id }
    var purchasedAt: Date { listed[0].transaction.purchasedAt }
    /// Whether it was given on trust, and Apple has refused it under each id by which it is known.
    var isDenied: Bool { listed.allSatisfy { $0.grant?.isDenied == true } }
    /// Whether no statement of Apple's forbids to give the purchase, or a part of it.
    var stands: Bool { !facts.isTakenBack && facts.ending != .unknown }
    /// Seats that are paid for in a period, and that Apple has not taken back.
    var seats: Int {
        let added = listed.map(\.transaction).filter { $0.addsSeats && $0.ending == nil }
        return (added.isEmpty ? [facts] : added).reduce(0) { $0 + max(0, $1.quantity - $1.revokedSeats) }
    }

    /// The purchases of a chain, in their order.
    ///
    /// A transaction that was bought after Apple ended its purchase is a purchase of its own: the same product bought
    /// again. So is a transaction with a grant beside one with a grant. A period is never bought again.
    static func all(_ purchases: [ChainFacts.Purchase], isContinued: Bool) -> [ChainPurchase] {
        var found: [ChainPurchase] = []
        var places: [String: [Int]] = [:]
        let inOrder = purchases.sorted {
            ($0.transaction.purchasedAt, $0.transaction.id) < ($1.transaction.purchasedAt, $1.transaction.id)
        }
        for purchase in inOrder {
            let transaction = purchase.transaction
            let keys = [transaction.id, transaction.keyOfItsIDs, transaction.periodKey].compactMap(\.self)
            let place = keys.flatMap { places[$0] ?? [] }.sorted().last { found[$0].mayHold(purchase) }
            if let place {
                found[place].listed.append(purchase)
            } else {
                found.append(ChainPurchase(listed: [purchase], facts: transaction))
            }
            for key in keys { places[key, default: []].append(place ?? found.count - 1) }
        }
        let transactions = purchases.map(\.transaction)
        for index in found.indices { found[index].read(among: transactions, isContinued: isContinued) }
        return found
    }

    private func mayHold(_ purchase: ChainFacts.Purchase) -> Bool {
        let transaction = purchase.transaction
        guard listed.contains(where: { $0.transaction.isSamePurchase(as: transaction) }) else { return false }
        if purchase.grant != nil, granted != nil { return false }
        return transaction.isPeriod
            || !listed.contains { $0.transaction.revokedAt.map { $0 < transaction.purchasedAt } ?? false }
    }

    /// Finds the statement that counts. Of statements that Apple signed at one moment an end counts. A purchase of
    /// added seats has ended only if each of its transactions has.
    private mutating func read(among transactions: [Transaction], isContinued: Bool) {
        let statements = listed.map { purchase in
            var transaction = purchase.transaction
            transaction.hasSuccessor = transaction.isReplaced(among: transactions, isContinued: isContinued)
            return transaction
        }
        func isOlder(_ one: Transaction, _ other: Transaction) -> Bool {
            let (left, right) = (one.signedAt ?? .distantPast, other.signedAt ?? .distantPast)
            return left == right ? one.ending == nil && other.ending != nil : left < right
        }
        let isOfSeats = statements.contains { $0.addsSeats }
        let standing = isOfSeats ? statements.filter { $0.ending == nil } : []
        facts = (standing.isEmpty ? statements : standing).max(by: isOlder) ?? facts
    }
}

extension Transaction {
    /// The latest moment at which Apple can have charged it. Apple may charge a period before it begins, and
    /// `purchasedAt` is its beginning.
    var chargedAt: Date { min(purchasedAt, signedAt ?? purchasedAt) }

    /// Whether seats were added to its period, so that several transactions are one period: Apple's
    /// `additionalTransactionReason`, which each of them has.
    fileprivate var addsSeats: Bool { fact("additionalTransactionReason") == .string("SEAT_ADDITION") }

    /// The end of the commitment that its period belongs to. Nil: there is no commitment.
    var commitmentEnd: Date? {
        guard case .number(let text)? = fact("commitmentExpiresDate"), let milliseconds = Double(text) else {
            return nil
        }
        return Date(timeIntervalSince1970: milliseconds / 1000)
    }

    /// Seats of it that Apple refunded without ending it.
    fileprivate var revokedSeats: Int {
        if case .number(let text)? = fact("revokedSeatQuantity") { Int(text) ?? 0 } else { 0 }
    }

    private func fact(_ name: String) -> JSONValue? {
        // Hardly any transaction has such a fact, and a text is searched faster than read.
        facts.contains(name) ? (try? JSONValue(parsing: Array(facts.utf8)))?[name] : nil
    }

    /// Whether another product explains the purchase's end: one of its chain, or, where Apple gives a reason that is
    /// newer than this program, a chain that continues this one, such as a bundle.
    fileprivate func isReplaced(among transactions: [Transaction], isContinued: Bool) -> Bool {
        guard mayHaveSuccessor else { return false }
        return transactions.contains { $0.follows(self) } || isContinued && revocation.isUnknown
    }
}
