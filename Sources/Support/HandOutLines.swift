import Encoding
import Ledger
import Purchases

/// The timeline's entries about what the app's backend did with the goods of events (S0-23).
extension TimelineBuilder {
    func handOut(_ handOut: TimelineRows.HandOut) -> TimelineEntry {
        let of = "the goods of \(handOut.type) of \(handOut.transactionId)"
        let what: TimelineEntry.What
        let text: String
        switch HandOut.Outcome(rawValue: handOut.outcome) {
        case .handedOut?: (what, text) = (.delivered, "delivered: the app's backend handed out \(of)")
        case .takenBack?:
            let taken = handOut.goods.map(Self.text) ?? handOut.amount.map(String.init)
            (what, text) = (.goodsTaken, "the app's backend took back \(of)" + (taken.map { ": \($0)" } ?? ""))
        case .refused?:
            (what, text) = (
                .notDelivered, "not delivered: the app's backend refused \(of), because \(handOut.reason ?? "")"
            )
        case nil:
            (what, text) = (.deliveryVoid, "nobody has to hand out \(of) any more: Apple or an erasure came before")
        }
        return TimelineEntry(
            handOut.at, what, text,
            [
                ("eventId", .string(handOut.eventId.text)), ("type", .string(handOut.type)),
                ("transactionId", .string(handOut.transactionId)), ("outcome", .string(handOut.outcome)),
                ("amount", handOut.amount.map(JSONValue.integer)), ("goods", handOut.goods.map(JSONValue.goods)),
                ("reason", handOut.reason.map(JSONValue.string)),
            ])
    }
}
