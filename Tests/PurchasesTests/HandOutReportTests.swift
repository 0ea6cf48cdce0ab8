import Encoding
import Foundation
import Purchases
import Testing

/// Goal: a backend's report says exactly what it means, or names the field that is wrong; an answer of a webhook's
/// receiver never does harm (S0-23). Method: reports of every kind, and answers that are none.
@Suite struct HandOutReportTests {
    private static let now = Date(timeIntervalSince1970: 1_800_000_000)

    private static func read(_ json: String) throws -> HandOut {
        try HandOut(try JSONValue(parsing: Array(json.utf8)), now: now)
    }

    private static func field(_ json: String) throws -> String? {
        let value = try JSONValue(parsing: Array(json.utf8))
        do throws(HandOut.Invalid) {
            _ = try HandOut(value, now: now)
            return nil
        } catch {
            return error.field
        }
    }

    @Test("S0-23: what a report says; members that nobody knows are passed over")
    func reports() throws {
        let plain = try Self.read(#"{"outcome":"handed_out","why":7,"amount":null}"#)
        #expect(plain.outcome == .handedOut && plain.amount == nil && plain.goods == nil && plain.reason == nil)
        #expect(plain.at == nil)
        let refused = try Self.read(#"{"outcome":"refused","reason":"bag full","at":"2027-01-15T08:00:00Z"}"#)
        #expect(refused.outcome == .refused && refused.at == Self.now)
        #expect(refused.reason?.utf8.elementsEqual("bag full".utf8) == true)
        let part = try Self.read(#"{"outcome":"taken_back","goods":[{"item":"coins","amount":0,"x":1}]}"#)
        #expect(part.goods == [AppPolicy.Goods(item: "coins", amount: 0)])
        #expect(try Self.read(#"{"outcome":"taken_back","amount":0}"#).amount == 0)
        #expect(try Self.read(#"{"outcome":"taken_back","goods":[]}"#).goods == [])
        // The backend's clock may be a little ahead.
        #expect(try Self.field(#"{"outcome":"handed_out","at":"2027-01-15T08:05:00Z"}"#) == nil)
    }

    @Test("a wrong report is refused by its field")
    func wrongReports() throws {
        let long = String(repeating: "x", count: HandOut.reasonBytesMax + 1)
        let many = Array(repeating: #"{"item":"a","amount":1}"#, count: HandOut.goodsMax + 1).joined(separator: ",")
        for (json, field) in [
            ("{}", "outcome"), (#"{"outcome":null}"#, "outcome"), (#"{"outcome":7}"#, "outcome"),
            (#"{"outcome":"HANDED_OUT"}"#, "outcome"), (#"{"outcome":"void"}"#, "outcome"),
            (#"{"outcome":"handed_out","amount":1}"#, "amount"), (#"{"outcome":"handed_out","goods":[]}"#, "goods"),
            (#"{"outcome":"refused","reason":"r","amount":1}"#, "amount"),
            (#"{"outcome":"taken_back","amount":-1}"#, "amount"), (#"{"outcome":"taken_back","amount":1.5}"#, "amount"),
            (#"{"outcome":"taken_back","amount":"1"}"#, "amount"),
            (#"{"outcome":"taken_back","amount":9223372036854775808}"#, "amount"),
            (#"{"outcome":"taken_back","amount":1,"goods":[]}"#, "amount"),
            (#"{"outcome":"taken_back","goods":{}}"#, "goods"),
            (#"{"outcome":"taken_back","goods":[\#(many)]}"#, "goods"),
            (#"{"outcome":"taken_back","goods":[7]}"#, "goods[0].item"),
            (#"{"outcome":"taken_back","goods":[{"item":"","amount":1}]}"#, "goods[0].item"),
            (#"{"outcome":"taken_back","goods":[{"item":"a","amount":1},{"item":"b"}]}"#, "goods[1].amount"),
            (#"{"outcome":"taken_back","goods":[{"item":"a","amount":-1}]}"#, "goods[0].amount"),
            (#"{"outcome":"refused"}"#, "reason"), (#"{"outcome":"refused","reason":""}"#, "reason"),
            (#"{"outcome":"refused","reason":"\#(long)"}"#, "reason"), (#"{"outcome":"refused","reason":1}"#, "reason"),
            (#"{"outcome":"handed_out","reason":"r"}"#, "reason"), (#"{"outcome":"handed_out","at":7}"#, "at"),
            (#"{"outcome":"handed_out","at":"yesterday"}"#, "at"),
            (#"{"outcome":"handed_out","at":"2027-01-15T08:05:01Z"}"#, "at"), ("[]", "outcome"), ("7", "outcome"),
        ] {
            #expect(try Self.field(json) == field, "\(json.prefix(80))")
        }
    }

    @Test("an answer of a webhook's receiver reports, says nothing, or is passed over")
    func webhookAnswers() throws {
        let event = try #require(UUID(uuidString: "0F8B1D1E-6C1B-8A57-9A2E-3F5C1C1F0A11"))
        func read(_ text: String) -> HandOut.WebhookReport {
            HandOut.read(webhookAnswer: Array(text.utf8), to: event, now: Self.now)
        }
        let handedOut = try Self.read(#"{"outcome":"handed_out"}"#)
        #expect(read(#"{"handled":{"outcome":"handed_out"}}"#) == .report(handedOut))
        #expect(read(#"{"ok":1,"handled":{"outcome":"handed_out","eventId":"\#(event.text)"}}"#) == .report(handedOut))
        for text in ["", "OK", "<html></html>", "{}", "[]", "7", #"{"handled":null}"#, #"{"handled":{"outc"#, "\u{0}"] {
            #expect(read(text) == .none, "\(text)")
        }
        #expect(HandOut.read(webhookAnswer: [0xFF, 0xFE], to: event) == .none)
        for text in [
            #"{"handled":true}"#, #"{"handled":{}}"#, #"{"handled":{"outcome":"given"}}"#, #"{"handled":[]}"#,
            #"{"handled":{"outcome":"refused"}}"#, #"{"handled":{"outcome":"handed_out","eventId":7}}"#,
            #"{"handled":{"outcome":"handed_out","eventId":"0f8b1d1e-6c1b-8a57-9a2e-3f5c1c1f0a12"}}"#,
        ] {
            #expect(read(text) == .ignored, "\(text)")
        }
    }
}
