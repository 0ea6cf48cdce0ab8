package import Encoding
package import Ledger
import Purchases
import Settings

extension OrderView {
    /// The JSON that the routes of orders answer.
    ///
    /// - Parameters:
    ///   - isRepeated: the order was there already.
    ///   - priceDiffers: the app showed another price than was promised.
    ///   - openOrder: another order of the user for the product that waits for its purchase.
    package func json(
        isRepeated: Bool = false, priceDiffers: Bool = false, openOrder: OpenOrder? = nil, ignored: [String] = []
    ) -> JSONValue {
        var members: [JSONValue.Member] = [
            .init("id", .string(id.text)),
            .init("state", .string(state.rawValue)),
            .init("productId", .string(productID)),
        ]
        func add(_ name: String, _ text: String?) {
            if let text { members.append(.init(name, .string(text))) }
        }
        add("item", item)
        members.append(.init("quantity", .integer(quantity)))
        add("promotion", promotion)
        add("channel", channel)
        add("environment", environment)
        if let goods { members.append(.init("goods", .goods(goods))) }
        if !bonuses.isEmpty { members.append(.init("bonuses", .bonuses(bonuses))) }
        if let price {
            members.append(.init("priceMilliunits", .integer(price.milliunits)))
            add("currency", price.currency)
        }
        if priceDiffers { members.append(.init("priceDiffers", .bool(true))) }
        if !target.isSameText(as: "{}"), let value = try? JSONValue(parsing: Array(target.utf8)) {
            members.append(.init("target", value))
        }
        add("placedAt", placedAt.rfc3339)
        add("payBy", payBy.rfc3339)
        add("reservedFor", reservedFor)
        add("transactionId", transactionID)
        add("boundAt", boundAt?.rfc3339)
        if let granted { members.append(.init("granted", .goods(granted))) }
        add("endedAt", endedAt?.rfc3339)
        add("deliveredAt", deliveredAt?.rfc3339)
        if let openOrder { members.append(.init("openOrder", openOrder.json)) }
        if isRepeated { members.append(.init("repeated", .bool(true))) }
        if let submissions { members.append(.init("submissions", .array(submissions.map(\.json)))) }
        if !ignored.isEmpty { members.append(.init("ignored", .array(ignored.map(JSONValue.string)))) }
        return .object(members)
    }
}

extension OpenOrder {
    fileprivate var json: JSONValue {
        var members: [JSONValue.Member] = [.init("orderId", .string(id.text))]
        if let item { members.append(.init("item", .string(item))) }
        return .object(
            members + [
                .init("quantity", .integer(quantity)), .init("channel", .string(channel)),
                .init("placedAt", .string(placedAt.rfc3339)), .init("payBy", .string(payBy.rfc3339)),
            ])
    }
}

extension OrderView.NamingReceipt {
    fileprivate var json: JSONValue {
        var members: [JSONValue.Member] = [.init("id", .string(id)), .init("state", .string(state))]
        if let reason { members.append(.init("reason", .string(reason))) }
        members.append(.init("receivedAt", .string(receivedAt)))
        members.append(
            .init(
                "transactions",
                .array(
                    transactions.map { transaction in
                        var members: [JSONValue.Member] = [
                            .init("transactionId", .string(transaction.transactionId)),
                            .init("state", .string(transaction.state)),
                        ]
                        if let id = transaction.orderId { members.append(.init("orderId", .string(id))) }
                        return .object(members)
                    })))
        return .object(members)
    }
}
