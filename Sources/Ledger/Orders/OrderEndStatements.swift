import Encoding
import Foundation
package import Postgres
import Purchases
import Settings

extension Statements {
    /// The end of an order of another way of payment, and the event that tells of it.
    package struct OrderEnd: Sendable {
        package let order: OrderView
        package let ending: OrderEnding
        package let reference: String?

        /// - Parameter reference: the number of the payment at its own service.
        package init(_ order: OrderView, _ ending: OrderEnding, reference: String?) {
            self.order = order
            self.ending = ending
            self.reference = reference
        }

        fileprivate var eventID: UUID {
            DerivedID.event(appID: order.appID, transactionID: order.id.text, type: ending.eventType)
        }

        /// The body of the event. The goods are those of all units; bonuses come with Apple's purchases alone.
        fileprivate var body: String {
            var members: [JSONValue.Member] = [
                .init("orderId", .string(order.id.text)), .init("productId", .string(order.productID)),
                .init("quantity", .integer(order.quantity)), .init("channel", .string(order.channel)),
            ]
            if let item = order.item { members.append(.init("item", .string(item))) }
            if let reference { members.append(.init("reference", .string(reference))) }
            if let goods = order.goods {
                let all = goods.map {
                    // An amount that overflows is as much as can be written.
                    let (amount, isTooMuch) = $0.amount.multipliedReportingOverflow(by: order.quantity)
                    return AppPolicy.Goods(item: $0.item, amount: isTooMuch ? .max : amount)
                }
                members.append(.init("goods", .goods(all)))
            }
            if let price = order.price {
                members += [
                    .init("priceMilliunits", .integer(price.milliunits)), .init("currency", .string(price.currency)),
                ]
            }
            if !order.target.isSameText(as: "{}"), let target = try? JSONValue(parsing: Array(order.target.utf8)) {
                members.append(.init("target", target))
            }
            return JSONValue.object(members).text
        }
    }

    /// Ends an order of another way of payment. The word is one of the answers of `end_order` (0016_other_ways.sql).
    package static let endOrder = Statement<OrderEnd, String>(
        "orders.end", "select end_order($1, $2, $3, $4, $5)",
        bind: {
            [.uuid($0.order.id), .text($0.ending.rawValue), .text($0.reference), .uuid($0.eventID), .json($0.body)]
        },
        read: { row throws(PostgresError) in try row.text(0) })
}
