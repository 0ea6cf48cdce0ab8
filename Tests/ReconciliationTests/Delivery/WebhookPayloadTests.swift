import Encoding
import Foundation
import Testing

@testable import Delivery
@testable import Ledger

/// Goal: a webhook tells the event with the members that the feed tells, and its place in the delivery. Method: events of
/// each kind of user and subject, compared as texts.
@Suite struct WebhookPayloadTests {
    private static let (first, second) = (
        UUID(uuidString: "11111111-0000-4000-8000-000000000001")!,
        UUID(uuidString: "11111111-0000-4000-8000-000000000002")!
    )

    private static func event(_ type: String, user: String = "u1") -> Event {
        Event(
            cursor: EventCursor(place: 7, id: 8), id: first, appID: "game", type: type, userID: user,
            transactionID: "2000", receiptID: second, body: #"{"goods":[{"amount":6e1}]}"#,
            at: Date(timeIntervalSince1970: 1_780_000_000))
    }

    private static func text(
        _ event: Event, user: RevealedUser? = nil, previous: UUID? = nil, attempt: Int = 1, replay: UUID? = nil
    ) throws -> String {
        String(
            decoding: try WebhookPayload(
                event, user: user, endpoint: "hooks", sequence: replay == nil ? 3 : nil, previousID: previous,
                cursor: EventCursor(place: 5, id: 6), attempt: attempt, replay: replay
            ).bytes(), as: UTF8.self)
    }

    @Test("the event, and the delivery with what it has")
    func members() throws {
        let begin = #"{"id":"11111111-0000-4000-8000-000000000001","type":"purchase.granted","appId":"game","#
        let end =
            #""transactionId":"2000","receiptId":"11111111-0000-4000-8000-000000000002","at":"2026-05-28T20:26:40.000Z","#
            + #""data":{"goods":[{"amount":6e1}]},"delivery":{"endpoint":"hooks","#
        let third = #""sequence":3,"#
        let event = Self.event("purchase.granted")
        let plain = try Self.text(event)
        #expect(plain == begin + #""userId":"u1","# + end + third + #""cursor":"5-6","attempt":1}}"#)
        let full = try Self.text(event, user: .id("Ann"), previous: Self.second, attempt: 4)
        let delivery =
            #""previousId":"11111111-0000-4000-8000-000000000002","cursor":"5-6","attempt":4}}"#
        #expect(full == begin + #""userId":"Ann","# + end + third + delivery)
        let again = try Self.text(event, replay: Self.second)
        let replay = #""cursor":"5-6","attempt":1,"replay":"11111111-0000-4000-8000-000000000002"}}"#
        #expect(again == begin + #""userId":"u1","# + end + replay)
        let erased = try Self.text(event, user: .erased)
        #expect(erased == begin + #""userId":"u1","erased":true,"# + end + third + #""cursor":"5-6","attempt":1}}"#)
    }

    @Test("an order has no receipt, a receipt no transaction, the app itself no user; a type of later names all")
    func subjects() throws {
        for (type, user, missing) in [
            ("order.paid", "u1", ["transactionId", "receiptId"]), ("receipt.parked", "u1", ["transactionId"]),
            ("endpoint.failing", "", ["userId", "transactionId", "receiptId"]), ("purchase.sold", "u1", []),
        ] as [(String, String, [String])] {
            let parsed = try JSONValue(parsing: Array(try Self.text(Self.event(type, user: user)).utf8))
            for member in ["userId", "transactionId", "receiptId"] {
                #expect((parsed[member] == nil) == missing.contains(member), "\(type) \(member)")
            }
        }
    }
}
