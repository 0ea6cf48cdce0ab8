import Encoding
import Foundation
package import Postgres
package import Purchases

/// The purchases at one place of a list. A receipt without purchases is a place all the same.
package struct PurchasePlace: Sendable {
    package let cursor: ListCursor
    package fileprivate(set) var topUps: [ListedTopUp]
}

/// A page of the three lists that a user's purchases stand in, each newest first, all of one moment.
package struct PurchaseLists: Sendable {
    package let granted: [PurchasePlace]
    package let imported: [PurchasePlace]
    package let posted: [PurchasePlace]

    /// Reads the lists in a first exchange, and Apple's facts of the listed purchases in a second one.
    ///
    /// - Throws: the database's error, retryable as it says.
    package static func read(
        _ page: Statements.PurchasePage, in database: Database
    ) async throws(PostgresError) -> PurchaseLists {
        try await database.transact("purchases.lists", isSnapshot: true) { transaction throws(PostgresError) in
            let granted = transaction.queue(Statements.grantedPurchases, page)
            let imported = transaction.queue(Statements.importedPurchases, page)
            let posted = transaction.queue(Statements.postedPurchases, page)
            try transaction.exchange()
            let asked = (granted.rows + imported.rows + posted.rows).compactMap { $0.topUp?.factsID }
            let answers = transaction.queue(
                forAny: asked.map { (appID: page.appID, transactionID: $0) }, Statements.purchaseFacts)
            try transaction.commit()
            var facts = [PurchaseFacts?](repeating: nil, count: asked.count)
            for answer in answers?.rows ?? [] { facts[answer.index] = answer.facts }
            var rest = facts[...]
            return PurchaseLists(
                granted: places(of: granted.rows, &rest), imported: places(of: imported.rows, &rest),
                posted: places(of: posted.rows, &rest))
        }
    }

    /// The rows of one list by their places. The purchases of a place are ordered by Apple's dates, the newest first;
    /// those without facts come before.
    ///
    /// - Parameter facts: of the listed purchases that have a ``ListedTopUp/factsID``, in their order; those of this
    ///   list are taken away.
    private static func places(
        of rows: [Statements.ListedRow], _ facts: inout ArraySlice<PurchaseFacts?>
    ) -> [PurchasePlace] {
        var places: [PurchasePlace] = []
        for row in rows {
            if places.last.map({ $0.cursor.isSame(as: row.cursor) }) != true {
                places.append(PurchasePlace(cursor: row.cursor, topUps: []))
            }
            guard var topUp = row.topUp else { continue }
            if topUp.factsID != nil, let facts = facts.removeFirst() { topUp.show(facts) }
            places[places.count - 1].topUps.append(topUp)
        }
        for place in places.indices {
            // Stable: what was bought at the same moment keeps the order of the rows, by transaction.
            places[place].topUps.sort { $0.purchasedAt ?? .distantFuture > $1.purchasedAt ?? .distantFuture }
        }
        return places
    }
}

extension ListCursor {
    fileprivate func isSame(as other: ListCursor) -> Bool { at == other.at && key.isSameText(as: other.key) }
}
