import Foundation
import Testing

@testable import Delivery
@testable import Settings

/// Goal: a receiver with any library of Standard Webhooks takes our webhooks, and the check of ours takes no other ones.
/// Method: the example of the specification's own libraries, and one webhook with one defect each.
@Suite struct WebhookSignatureTests {
    private static let id = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    private static let timestamp = 1_614_265_330
    private static let body = Array(#"{"test": 2432232314}"#.utf8)
    private static let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    private static let now = Date(timeIntervalSince1970: 1_614_265_330)

    private static func secret(_ text: String = EndpointSamples.secret) throws -> WebhookSecret {
        try #require(WebhookSecret(text))
    }

    @Test("the example of the specification: secret, id, time and body give this signature")
    func example() throws {
        let signed = WebhookSignature.sign(
            id: Self.id, timestamp: Self.timestamp, body: Self.body, secrets: [try Self.secret()])
        #expect(signed == Self.signature)
    }

    @Test("while secrets change, a receiver with either one takes the webhook")
    func rotation() throws {
        let (old, new) = (try Self.secret(), try Self.secret(EndpointSamples.newSecret))
        let signed = WebhookSignature.sign(
            id: Self.id, timestamp: Self.timestamp, body: Self.body, secrets: [old, new])
        #expect(signed.split(separator: " ").count == 2 && signed.hasPrefix(Self.signature + " v1,"))
        for known in [[old], [new], [new, old]] {
            #expect(throws: Never.self) { try Self.verify(signature: signed, secrets: known) }
        }
        let other = try Self.secret("whsec_" + Data(repeating: 7, count: 32).base64EncodedString())
        #expect(throws: WebhookSignature.Refusal.signature) {
            try Self.verify(signature: signed, secrets: [other])
        }
    }

    private static func verify(
        id: String? = id, timestamp: String? = "\(timestamp)", signature: String? = signature, body: [UInt8] = body,
        secrets: [WebhookSecret]? = nil, now: Date = now
    ) throws {
        let headers = ["webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature]
        try WebhookSignature.verify(
            body: body, secrets: try secrets ?? [secret()], now: now, header: { headers[$0] ?? nil })
    }

    @Test("the signature among others, of other versions too, and up to five minutes of another clock")
    func taken() throws {
        for signature in [
            Self.signature, "v1,AAAA \(Self.signature)", "v1a,x \(Self.signature) v2,y", "v1, \(Self.signature)",
        ] {
            #expect(throws: Never.self, "\(signature)") { try Self.verify(signature: signature) }
        }
        for seconds in [-300.0, 300] {
            #expect(throws: Never.self) { try Self.verify(now: Self.now.addingTimeInterval(seconds)) }
        }
    }

    @Test("what is missing, late, changed or signed by another is refused for that")
    func refused() throws {
        let cases: [(String, WebhookSignature.Refusal, () throws -> Void)] = [
            ("no id", .header("webhook-id"), { try Self.verify(id: nil) }),
            ("empty id", .header("webhook-id"), { try Self.verify(id: "") }),
            ("no time", .header("webhook-timestamp"), { try Self.verify(timestamp: nil) }),
            ("no number", .header("webhook-timestamp"), { try Self.verify(timestamp: "now") }),
            ("another spelling", .header("webhook-timestamp"), { try Self.verify(timestamp: "+1614265330") }),
            ("no signature", .header("webhook-signature"), { try Self.verify(signature: nil) }),
            ("late", .timestamp, { try Self.verify(now: Self.now.addingTimeInterval(301)) }),
            ("early", .timestamp, { try Self.verify(now: Self.now.addingTimeInterval(-301)) }),
            ("another id", .signature, { try Self.verify(id: "msg_1") }),
            ("another time", .signature, { try Self.verify(timestamp: "1614265331") }),
            ("another body", .signature, { try Self.verify(body: Self.body + [0x20]) }),
            ("no body", .signature, { try Self.verify(body: []) }),
            ("an empty signature", .signature, { try Self.verify(signature: "") }),
            ("no version", .signature, { try Self.verify(signature: String(Self.signature.dropFirst(3))) }),
            ("another version", .signature, { try Self.verify(signature: "v2" + Self.signature.dropFirst(2)) }),
            ("a part of it", .signature, { try Self.verify(signature: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3") }),
            ("another base64", .signature, { try Self.verify(signature: Self.signature + "=") }),
            ("no secrets", .signature, { try Self.verify(secrets: []) }),
        ]
        for (name, refusal, verify) in cases {
            #expect(throws: refusal, "\(name)") { try verify() }
        }
    }

    @Test("a secret has its prefix, one spelling and 24 to 64 bytes, and is never shown")
    func secrets() throws {
        func text(_ count: Int) -> String { "whsec_" + Data(repeating: 0x5A, count: count).base64EncodedString() }
        for count in [24, 25, 32, 63, 64] { #expect(WebhookSecret(text(count))?.bytes.count == count) }
        for wrong in [
            "", "whsec_", text(23), text(65), text(18), String(text(32).dropFirst(6)), text(32) + "\n", " " + text(32),
            text(32).replacing("=", with: ""), "WHSEC_" + text(32).dropFirst(6),
            "whsec_\u{301}" + text(32).dropFirst(6),
            "whsec_" + String(repeating: "-", count: 44), "whsk_" + text(32).dropFirst(6),
        ] {
            #expect(WebhookSecret(wrong) == nil, "\(wrong)")
        }
        let secret = try Self.secret()
        var dumped = ""
        dump(secret, to: &dumped)
        for shown in ["\(secret)", String(reflecting: secret), dumped, "\([secret])"] {
            #expect(!shown.contains("MfKQ9r8") && !shown.contains("\(secret.bytes[0]), \(secret.bytes[1])"))
        }
    }
}
