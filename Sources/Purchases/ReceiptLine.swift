/// What an earlier post says of one of several purchases of its receipt.
///
/// An app posts its queue of unfinished purchases one after the other, all with one app receipt. Each post is about
/// another purchase, and its statements count until a newer post is about the same purchase.
package struct ReceiptLine: Sendable, Equatable, Decodable {
    /// The id of the purchase that the post is about, as the post names it.
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
