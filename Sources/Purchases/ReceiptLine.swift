/// What an earlier post says of one of several purchases of its receipt.
///
/// A queue of unfinished purchases is posted one after the other with one app receipt: each post means another purchase,
/// and what a post says of its purchase counts until a newer post means the same one.
package struct ReceiptLine: Sendable, Equatable, Decodable {
    /// The purchase that it means, as the post named it.
    package var transactionID: String
    package var orderID: String?
    /// Where in the game the goods go if no order says it, one JSON object.
    package var target: String?
    package var declared: Declaration?

    package init(
        transactionID: String, orderID: String? = nil, target: String? = nil, declared: Declaration? = nil
    ) {
        self.transactionID = transactionID
        self.orderID = orderID
        self.target = target
        self.declared = declared
    }
}
