import Encoding
import Foundation
import Ledger
import Purchases
import Support

/// One page of a player's purchases and posts, newest first.
///
/// The page is merged from three lists: grants to the player, purchases that the former system gave the player, and the
/// player's posts. Each list is read in its own order and no further than the page needs, so a page costs the same
/// however many rows follow.
struct PurchaseList {
    let topUps: [ListedTopUp]
    /// Where the next page begins; nil after the last.
    let next: PurchaseCursor?

    /// - Parameters:
    ///   - lists: each newest first, read for `limit` places.
    ///   - limit: the places of a page. The purchases of one receipt stay together, so there may be more purchases.
    init(_ lists: [[PurchasePlace]], limit: Int) {
        // If a list has more places, nothing is known beyond its last one.
        let known = lists.filter { $0.count >= limit }.compactMap(\.last?.cursor).max()
        let places = lists.joined().filter { place in known.map { place.cursor >= $0 } ?? true }
            .sorted { $0.cursor > $1.cursor }
        let page = places.prefix(limit)
        topUps = page.flatMap(\.topUps)
        next = page.count < places.count || known != nil ? page.last?.cursor : nil
    }
}

extension ListedTopUp {
    /// - Parameter appID: the app of the list.
    func json(of appID: String) -> JSONValue {
        var members: [JSONValue.Member] = []
        func add(_ name: String, _ value: JSONValue?) {
            if let value { members.append(.init(name, value)) }
        }
        add("transactionId", transactionId.map(JSONValue.string))
        add("receiptId", receiptId.map { .string($0.text) })
        add("productId", productId.map(JSONValue.string))
        add("quantity", quantity.map(JSONValue.integer))
        add("environment", environment.map(JSONValue.string))
        add("purchasedAt", purchasedAt.map { .string($0.rfc3339) })
        add("priceMilliunits", priceMilliunits.map(JSONValue.integer))
        add("currency", currency.map(JSONValue.string))
        add("state", .string(state.rawValue))
        add("reason", reason.map(JSONValue.string))
        add("refundedAt", refundedAt.map { .string($0.rfc3339) })
        add(
            "goods",
            goods.map { goods in
                .array(
                    goods.map { .object([.init("item", .string($0.item)), .init("amount", .integer($0.amount))]) })
            })
        if state == .granted, let transactionId {
            add("orderNumber", .string((orderId ?? OrderID.ofPurchase(transactionId, of: appID)).text))
        }
        add("repeats", repeats.map(JSONValue.integer))
        add("repeatedAt", repeatedAt.map { .string($0.rfc3339) })
        add("sentence", PlayerSentence(state, reason.flatMap(Reason.init(rawValue:))).json)
        return .object(members)
    }
}

/// A calendar month in UTC.
struct Month: Equatable {
    let text: String
    let start: Date
    let end: Date

    /// Nil for anything but `YYYY-MM`, from 2008 (the App Store's first year) to 9998.
    init?(_ text: String) {
        let digits = text.utf8.map { Int($0) - 48 }
        guard digits.count == 7, digits[4] == Int(UInt8(ascii: "-")) - 48,
            (digits[0...3] + digits[5...6]).allSatisfy((0...9).contains)
        else { return nil }
        let (year, month) = (digits[0...3].reduce(0) { $0 * 10 + $1 }, digits[5] * 10 + digits[6])
        guard (2008...9998).contains(year), (1...12).contains(month) else { return nil }
        func first(_ year: Int, _ month: Int) -> Date? {
            try? Date.ISO8601FormatStyle().year().month().day()
                .parse("\(year)-\(month < 10 ? "0" : "")\(month)-01")
        }
        guard let start = first(year, month),
            let end = month == 12 ? first(year + 1, 1) : first(year, month + 1)
        else { return nil }
        self.text = text
        self.start = start
        self.end = end
    }
}
