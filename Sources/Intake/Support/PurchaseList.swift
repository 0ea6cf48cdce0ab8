import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Support

/// One page of a player's purchases and posts, newest first.
///
/// The page is merged from three lists: grants to the player, purchases that the former system gave the player, and the
/// player's posts. Each list is read in its own order. A post whose purchases are all listed elsewhere lists nothing,
/// so the page reads on until it is full or the lists end, for `readsMax` reads at most: then it is short and has a
/// `next`.
struct PurchaseList {
    let topUps: [ListedTopUp]
    /// Where the next page begins; nil where nothing follows.
    let next: ListCursor?

    /// How many places of each list are read at a time: at first, and at most.
    private static let (readFirst, readMax) = (50, 1600)
    /// Some six thousand posts that list nothing: more than a person's restores, fewer than a flood's.
    private static let readsMax = 8

    /// - Parameter page: its limit is the places of the page. The purchases of one receipt stay together, so there may
    ///   be more purchases.
    init(of page: Statements.PurchasePage, in database: Database) async throws(PostgresError) {
        var (places, read, isMore): ([PurchasePlace], Statements.PurchasePage, Bool) = ([], page, true)
        read.limit = max(page.limit + 1, Self.readFirst)
        for _ in 0..<Self.readsMax where isMore && places.count <= page.limit {
            let found = try await PurchaseLists.read(read, in: database)
            let lists = [found.granted, found.imported, found.posted]
            // If a list has more places, nothing is known beyond its last one.
            let known = lists.filter { $0.count >= read.limit }.compactMap(\.last?.cursor).max()
            places += lists.joined().filter { place in known.map { place.cursor >= $0 } ?? true }
                .filter { !$0.topUps.isEmpty }.sorted { $0.cursor > $1.cursor }
            isMore = known != nil
            read.before = known ?? read.before
            read.limit = min(2 * read.limit, Self.readMax)
        }
        topUps = places.prefix(page.limit).flatMap(\.topUps)
        next = places.count > page.limit ? places[page.limit - 1].cursor : isMore ? read.before : nil
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
        add("unverified", unverified.map(JSONValue.bool))
        add("quantity", quantity.map(JSONValue.integer))
        add("environment", environment.map(JSONValue.string))
        add("purchasedAt", purchasedAt.map { .string($0.rfc3339) })
        members += terms?.members ?? []
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
        add(
            "sentence",
            PlayerSentence(
                state, reason.flatMap(Reason.init(rawValue:)), isShared: terms?.isShared ?? false
            ).json)
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
