@testable import PurchaseClient

/// What the server does with orders and posts, as far as owners are concerned: an order as token, a named order of the
/// poster, an order on the same installation, the poster.
struct ServerModel {
    struct Order {
        let id: String
        let user: UserID
        let product: String
        let time: Int64
        let installation: String?
        /// The purchase that it was asked for afterwards.
        let reservedFor: String?
        var boundBy: String?
    }

    private(set) var orders: [String: Order] = [:]
    /// Each purchase's owner. Written once.
    private(set) var grants: [String: UserID] = [:]
    /// What was granted once more.
    private(set) var doubled: [String] = []
    /// The purchases that a client was told to finish.
    private(set) var saidSafe: Set<String> = []
    /// Which posts named which purchase, by receipt.
    private var receipts: [String: Post] = [:]
    private var keys: [String: String] = [:]

    struct Post {
        let user: UserID
        let sale: AppleModel.Sale
        let order: String?
        let installation: String?
    }

    mutating func place(
        _ key: RecordKey, _ user: UserID, _ product: String, at time: Int64, installation: String?, for sale: String?
    ) -> String {
        let name = "\(user)/\(key)/\(sale ?? "")"
        if let known = keys[name] { return known }
        let digits = String(orders.count + 1)
        let id = "00000000-0000-4000-8000-" + String(repeating: "0", count: 12 - digits.count) + digits
        orders[id] = Order(
            id: id, user: user, product: product, time: time, installation: installation, reservedFor: sale)
        keys[name] = id
        return id
    }

    /// Stores a post, and answers with the receipt's id.
    mutating func store(_ post: Post) -> String {
        let id = "\(post.user)/\(post.sale.id)"
        receipts[id] = post
        return id
    }

    /// Grants what a stored post shows.
    mutating func judge(_ receipt: String) {
        guard let post = receipts[receipt] else { return }
        grant(post.sale, post)
    }

    /// Apple's notification of a sale that nobody has posted: only an order as token says whose it is.
    mutating func hear(_ sale: AppleModel.Sale) {
        if let order = sale.token.flatMap({ orders[$0.text] }), grants[sale.id] == nil {
            give(sale, order.user, order.id)
        }
    }

    mutating func say(_ sale: String) -> Bool {
        guard grants[sale] != nil else { return false }
        saidSafe.insert(sale)
        return true
    }

    private mutating func grant(_ sale: AppleModel.Sale, _ post: Post) {
        guard grants[sale.id] == nil else { return }
        if let order = sale.token.flatMap({ orders[$0.text] }) { return give(sale, order.user, order.id) }
        let open = orders.values.filter { order in
            order.boundBy == nil && order.product == sale.product && order.time <= sale.time
                && (order.reservedFor == nil || order.reservedFor == sale.id)
        }
        let own = open.filter { $0.user == post.user }.map(\.time).max() ?? .min
        if let named = open.first(where: { $0.id == post.order && $0.user == post.user }) {
            return give(sale, post.user, named.id)
        }
        let neighbour = open.filter {
            $0.user != post.user && $0.installation != nil && $0.installation == post.installation
                && $0.time >= sale.time - 900_000 && $0.time > own
        }.max { $0.time < $1.time }
        give(sale, neighbour?.user ?? post.user, neighbour?.id)
    }

    private mutating func give(_ sale: AppleModel.Sale, _ user: UserID, _ order: String?) {
        if grants[sale.id] != nil { doubled.append(sale.id) }
        grants[sale.id] = user
        if let order, orders[order]?.boundBy == nil { orders[order]?.boundBy = sale.id }
    }
}
