import Encoding
import Service
import Settings

extension Caller {
    /// The poster of a receipt, and whether a placeholder stands in the poster's place. A placeholder names nobody: it
    /// is stored with the details, and an order, a token or a chain may name the owner (Ownership, rows 2 to 4, 6, 8).
    ///
    /// - Throws: 403 for another user than that of the caller's token.
    func poster(
        _ fields: inout IntakeFields, _ placeholders: PlaceholderUsers
    ) throws(Problem) -> (userID: String?, isOfPlaceholder: Bool) {
        if let order = fields.orderID, placeholders.contains(order) {
            fields.hideOrder(order)
            if userID == nil, fields.userID == nil { return (nil, true) }
        }
        guard let own = userID else {
            // An empty user beside an order is a column that an old client left empty.
            guard let member = fields.userMember,
                fields.userID == nil ? fields.orderID == nil : placeholders.contains(fields.userID)
            else { return (fields.userID, false) }
            fields.keep(member)
            return (nil, true)
        }
        guard placeholders.contains(own) else {
            guard let member = fields.userMember, placeholders.contains(fields.userID) else {
                return (try user(fields.userID), false)
            }
            fields.keep(member)
            fields.disregard(member.key)
            return (own, false)
        }
        // Whoever has a token of nobody could write anything into the body: neither the body's user nor the body's
        // order says whose the purchase is.
        if let given = fields.userID, !placeholders.contains(given) { fields.disregard("userId") }
        if let order = fields.orderID { fields.hideOrder(order) }
        fields.keep(.init("userId", .string(own)))
        return (nil, true)
    }
}

extension IntakeFields {
    /// Keeps the order with the details, where it names no order to the judge.
    fileprivate mutating func hideOrder(_ order: String) {
        keep(.init("orderId", .string(order)))
        disregard("orderId")
        orderID = nil
    }
}
