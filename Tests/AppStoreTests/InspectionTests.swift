import Foundation
import Testing

@testable import AppStore
@testable import Encoding

// Goal: `makegood inspect` names the kind, the verdict and the reason of any file. Method: its JSON, read back.

@Suite struct InspectionTests {
    let authority: TestAuthority
    let verifier: SignedDataVerifier

    init() throws {
        authority = try TestAuthority()
        verifier = try authority.verifier()
    }

    private func inspect(
        _ text: String, kind: Inspection.Kind? = nil, at date: Date? = nil
    ) async throws -> [String: JSON] {
        let inspection = await Inspection.inspect(Array(text.utf8), with: verifier, kind: kind, at: date)
        let output = try #require(try JSON(parsing: inspection.json).object)
        #expect(output["valid"] == .bool(inspection.isValid))
        return output
    }

    @Test func `each kind is found from its payload`() async throws {
        let notification = Payload.notification(
            data: Payload.notificationData(transaction: try authority.sign(Payload.transaction())))
        for (payload, kind) in [
            (Payload.transaction(), "transaction"), (Payload.renewalInfo(), "renewalInfo"),
            (Payload.appTransaction(), "appTransaction"), (notification, "notification"),
        ] {
            let output = try await inspect(" \n\(try authority.sign(payload))\r\n")
            #expect(output["kind"] == .string(kind))
            #expect(output["valid"] == .bool(true))
            #expect(output["reason"] == .null)
            #expect(output["payload"] == (try JSON(parsing: Array(payload.utf8))))
        }
        let nested = try await inspect(try authority.sign(notification))["nested"]?.object
        #expect(nested?["signedTransactionInfo"] == (try JSON(parsing: Array(Payload.transaction().utf8))))
    }

    @Test func `what is not believed still shows its payload and says why`() async throws {
        let foreign = try await inspect(try TestAuthority().sign(Payload.transaction()))
        #expect(foreign["valid"] == .bool(false))
        #expect(foreign["reason"] == .string("untrusted_root"))
        #expect(foreign["payload"]?.object?["transactionId"] == .string("2000000000000001"))

        let padded = try await inspect(try authority.sign(Payload.transaction()) + "=")
        #expect(padded["reason"] == .string("malformed"))
        #expect(padded["kind"] == .string("transaction"))
    }

    @Test(arguments: ["", " ", "hello", "a.b.c", "{}", "\u{0}"])
    func `what is nothing is unknown and malformed`(_ text: String) async throws {
        let output = try await inspect(text)
        #expect(output["kind"] == .string("unknown"))
        #expect(output["reason"] == .string("malformed"))
        #expect(output["payload"] == nil)
    }

    @Test func `a payload of no kind is unknown unless the caller says what it is`() async throws {
        let jws = try authority.sign(#"{"originalTransactionId":"1","environment":"Sandbox"}"#)
        #expect(try await inspect(jws)["kind"] == .string("unknown"))
        #expect(try await inspect(jws)["valid"] == .bool(false))
        #expect(try await inspect(jws, kind: .renewalInfo)["valid"] == .bool(true))
        #expect(try await inspect(jws, kind: .transaction)["reason"] == .string("wrong_app"))
    }

    @Test func `signed data inside a notification is judged too`() async throws {
        let foreign = try TestAuthority()
        let transaction = try authority.sign(Payload.transaction())
        for (data, expected) in [
            (Payload.notificationData(transaction: try foreign.sign(Payload.transaction())), "untrusted_root"),
            (
                Payload.notificationData(
                    transaction: transaction, renewalInfo: try authority.sign(Payload.renewalInfo(environment: "X"))),
                "wrong_environment"
            ),
        ] {
            let output = try await inspect(try authority.sign(Payload.notification(data: data)))
            #expect(output["reason"] == .string(expected))
            #expect(output["nested"]?.object?["signedTransactionInfo"] != nil)
        }
    }

    @Test func `certificates are judged at the date given`() async throws {
        let jws = try authority.sign(Payload.transaction())
        let late = TestAuthority.leafValidity.upperBound.addingTimeInterval(86_400)
        #expect(try await inspect(jws, at: late)["reason"] == .string("expired"))
        let old = try authority.sign(Payload.transaction(signedDate: late))
        #expect(try await inspect(old)["reason"] == .string("expired"))
        #expect(try await inspect(old, at: TestAuthority.signedDate)["valid"] == .bool(true))
    }

    @Test func `a PKCS#7 receipt is recognized, as base64, DER or BER`() async throws {
        let oid: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x02]
        for length in [[0x20], [0x82, 0x10, 0x00], [0x80]] as [[UInt8]] {
            let receipt = [0x30] + length + oid + [UInt8](repeating: 0xA0, count: 40)
            let base64 = Data(receipt).base64EncodedData(options: [.lineLength64Characters])
            for bytes in [receipt, Array(base64), [0x0A] + Array(base64) + [0x0A]] {
                let inspection = await Inspection.inspect(bytes, with: verifier)
                #expect(inspection.kind == .receipt)
                #expect(inspection.reason == .malformed)
                #expect(inspection.note != nil)
            }
        }
        #expect(try await inspect("x", kind: .receipt)["kind"] == .string("receipt"))
    }

    private static func row(_ label: String, _ value: String) -> String {
        label.padding(toLength: 34, withPad: " ", startingAt: 0) + value
    }

    @Test func `a receipt is verified and shown, believed or not`() async throws {
        let authority = try ReceiptAuthority()
        let verifier = SignedDataVerifier(
            app: try AppIdentity(bundleId: Payload.bundleId, environments: [.production]),
            anchors: try TrustAnchors(rootCertificates: [authority.chain[2]], acceptAppleRoots: false))
        let bytes = try ReceiptBytes(ReceiptAttributes.content(), authority)
        for data in [bytes.encoded, Array(" \n\(bytes.base64)\r\n".utf8)] {
            let inspection = await Inspection.inspect(data, with: verifier)
            #expect(inspection.kind == .receipt)
            #expect(inspection.reason == nil)
            let payload = try #require(JSON(parsing: inspection.json).object?["payload"]?.object)
            #expect(payload["bundleId"] == .string(Payload.bundleId))
            #expect(payload["creationDate"] == .integer(1_530_000_000_000))
            #expect(payload["inApp"]?.array?.first?.object?["transactionId"] == .string("1000000000000001"))
            #expect(inspection.text.hasPrefix("App receipt: valid, but not Apple's word: it was signed below a root"))
            #expect(try JSON(parsing: inspection.json).object?["root"] == .string("given"))
            #expect(inspection.text.contains(Self.row("made", "2018-06-26T08:00:00Z")))
            #expect(inspection.text.contains(Self.row("product", "com.example.game.coins6")))
        }
        let foreign = await Inspection.inspect(bytes.encoded, with: self.verifier)
        #expect(foreign.reason == .untrustedRoot)
        #expect(foreign.payload?["bundleId"] == .string(Payload.bundleId))
        let late = await Inspection.inspect(bytes.encoded, with: verifier, at: .now)
        #expect(late.reason == .expired)
    }

    @Test func `a receipt of iOS 6 style is recognized, and is Apple's to verify`() async throws {
        func base64(_ text: String) -> String { Data(text.utf8).base64EncodedString() }
        let info = base64("{ \"transaction-id\" = \"33993399\"; \"bid\" = \"com.example.game\"; }")
        let inspection = await Inspection.inspect(
            Array(base64("{ \"purchase-info\" = \"\(info)\"; }").utf8), with: verifier)
        #expect(inspection.kind == .transactionReceipt)
        #expect(!inspection.isValid)
        #expect(inspection.note?.contains("33993399") == true)
        #expect(inspection.payload?["transactionId"] == .string("33993399"))
        #expect(inspection.text.contains(Self.row("transaction", "33993399")))
        let broken = await Inspection.inspect(Array("e30=".utf8), with: verifier, kind: .transactionReceipt)
        #expect(broken.reason == .malformed)
    }

    @Test func `plain words: what it is, why not, dates, money, no control characters`() async throws {
        let extra =
            #","price":1990,"currency":"USD","appAccountToken":"A\u001b[31m","extra":{"list":[1,{"x":true}],"none":[]}"#
        let valid = await Inspection.inspect(
            Array(try authority.sign(Payload.transaction(extra: extra)).utf8), with: verifier)
        let lines = valid.text.split(separator: "\n").map(String.init)
        #expect(
            lines[0].hasPrefix(
                "Signed transaction: valid, but not Apple's word: it was signed below a root that was given (CN="))
        #expect(lines[1] == "  " + Self.row("transaction", "2000000000000001"))
        #expect(lines.contains("  " + Self.row("bought", "2026-05-28T20:10:00Z")))
        #expect(lines.contains("  " + Self.row("price", "1.99 USD")))
        #expect(lines.contains("  " + Self.row("account token", "A\u{FFFD}[31m")))
        #expect(lines.contains("      " + Self.row("x", "yes")))
        #expect(!valid.text.contains("\u{1B}"))
        let foreign = await Inspection.inspect(
            Array(try TestAuthority().sign(Payload.renewalInfo()).utf8), with: verifier)
        #expect(foreign.text.hasPrefix("Signed renewal info: not valid (untrusted_root). Its certificates do not lead"))
        #expect(foreign.text.contains(Self.row("renews by itself", "yes")))
        let notification = Payload.notification(
            data: Payload.notificationData(transaction: try authority.sign(Payload.transaction())))
        let nested = await Inspection.inspect(Array(try authority.sign(notification).utf8), with: verifier)
        #expect(nested.text.contains("\nInside, signed transaction info:\n  transaction "))
        let plan =
            #","currency":"USD","offerType":4,"revocationPercentage":67932,"commitmentInfo":{"commitmentPrice":119880}"#
        let monthly = await Inspection.inspect(
            Array(try authority.sign(Payload.transaction(extra: plan)).utf8), with: verifier)
        for (label, value) in [
            ("offer type", "win-back"), ("revocation percentage", "67.932 %"), ("commitment price", "119.88 USD"),
        ] { #expect(monthly.text.contains(Self.row(label, value)), "\(label)") }
        let unknown = await Inspection.inspect(Array("hello".utf8), with: verifier)
        #expect(unknown.text.hasPrefix("Unknown data: not valid (malformed)."))
        let extreme = #","expiresDate":1e300,"revocationDate":-1e300,"signedDate":1780000000000.5"#
        let odd = try authority.sign(Payload.transaction(signedDate: nil, extra: extreme))
        #expect(await Inspection.inspect(Array(odd.utf8), with: verifier).text.contains("1e+300"))
    }

    @Test func `a JWS that was cut off is called that, a forged one is not`() async throws {
        let jws = try authority.sign(Payload.transaction())
        let parts = jws.split(separator: ".")
        for (text, note) in [
            (String(parts[0].dropLast(9)), "a JWS that was cut off: 1 of its 3 parts are there"),
            ("\(parts[0]).\(parts[1].dropLast())", "a JWS that was cut off: 2 of its 3 parts are there"),
            (
                "\(parts[0]).\(parts[1]).",
                "a JWS that was cut off: 0 of the 86 characters of its signature are there"
            ),
            (
                String(jws.dropLast(43)),
                "a JWS that was cut off: 43 of the 86 characters of its signature are there"
            ),
            (jws + ".", nil), ("a.b.c", nil), ("hello", nil),
        ] as [(String, String?)] {
            let inspection = await Inspection.inspect(Array(text.utf8), with: verifier)
            #expect(!inspection.isValid && inspection.note == note, "\(text.suffix(20))")
        }
    }

    @Test func `output is the same for the same input`() async throws {
        let jws = try authority.sign(Payload.transaction())
        let first = await Inspection.inspect(Array(jws.utf8), with: verifier).json
        let second = await Inspection.inspect(Array(jws.utf8), with: verifier).json
        #expect(first == second)
        #expect(String(decoding: first, as: UTF8.self).hasPrefix(#"{"kind":"transaction","payload":{"bundleId":"#))
    }
}
