import AppStore
import Encoding
import Foundation
import Intake
import Purchases
import TestRandom
import Testing

/// Goal: whatever wrapping or damage a proof arrives in, the reader finds the same proof as in the clean post, names
/// each repair, and takes nothing for a proof that is none (F2, F6, F7, F8, F18). Method: tables of the kinds of
/// wrappings; random damages of random receipts in any order; random garbage.
@Suite struct ProofReaderTests {
    static let jws = IntakeFixture.signedTransaction("2000000123456789")
    /// Octets that state their own length, with every letter of base64.
    static let receipt = sequence([UInt8](0...255) + [UInt8](0...255).reversed())
    static let old = Data("{\n\t\"signature\" = \"+/+/\";\n\t\"purchase-info\" = \"ewo=\";\n}".utf8)
        .base64EncodedString()

    private static func sequence(_ content: [UInt8]) -> String {
        Data([0x30, 0x82, UInt8(content.count >> 8), UInt8(content.count & 0xFF)] + content).base64EncodedString()
    }

    private static func signed(_ payload: String) -> String {
        "eyJhbGciOiJFUzI1NiJ9.\(Data(payload.utf8).base64URL).c2lnbmF0dXJl"
    }

    private static func json(_ members: [(String, JSONValue)]) -> String {
        JSONValue.object(members.map { .init($0.0, $0.1) }).text
    }

    private static func lines(_ text: String, _ separator: String) -> String {
        let bytes = Array(text.utf8)
        return stride(from: 0, to: bytes.count, by: 64).map {
            String(decoding: bytes[$0..<min($0 + 64, bytes.count)], as: UTF8.self)
        }.joined(separator: separator)
    }

    private static func percent(_ text: String) -> String {
        text.replacing("%", with: "%25").replacing("+", with: "%2B").replacing("/", with: "%2f")
            .replacing("=", with: "%3D")
    }

    private static func hexadecimal(_ base64: String) -> String { (Data(base64Encoded: base64) ?? Data()).hexadecimal }

    private static func base64(_ text: String) -> String { Data(text.utf8).base64EncodedString() }

    private static func found(_ text: String, _ field: ProofReader.Field) -> FoundProof? {
        if case .found(let found) = ProofReader.read(text, in: field) { found } else { nil }
    }

    // MARK: Damages

    @Test("Clean proofs need no repair")
    func clean() {
        for (text, field, proof) in [
            (Self.receipt, .receipt, .receipt(Self.receipt)), (Self.old, .receipt, .receipt(Self.old)),
            (Self.lines(Self.receipt, "\r\n"), .receipt, .receipt(Self.receipt)), ("QUJD", .receipt, .receipt("QUJD")),
            (Self.jws, .signedTransaction, .signedTransaction(Self.jws)),
        ] as [(String, ProofReader.Field, Proof)] {
            let found = Self.found(text, field)
            #expect(found?.proof == proof && found?.repairs == [] && found?.transactionID == nil)
        }
    }

    static let damages: [(String, @Sendable (String) -> String, [FieldRepair.Kind])] = [
        ("spaces for plus", { $0.replacing("+", with: " ") }, [.spacesForPlus]),
        ("the same in lines", { lines($0.replacing("+", with: " "), "\n") }, [.spacesForPlus]),
        ("spaces for line breaks", { lines($0, " ") }, [.whiteSpace]),
        ("indented lines", { lines($0, "\r\n    ") }, [.whiteSpace]),
        ("tabs", { lines($0, "\t") }, [.whiteSpace]),
        ("white space around", { " \t\r\n\($0)\n " }, [.whiteSpace]),
        ("a byte order mark", { "\u{FEFF}\($0)" }, [.whiteSpace]),
        ("characters without width", { lines($0, "\u{200B}") }, [.whiteSpace]),
        ("no-break spaces", { "\u{A0}\($0)\u{3000}" }, [.whiteSpace]),
        (#"\n as characters"#, { lines($0, #"\n"#) }, [.backslashes]),
        (#"\r\n as characters"#, { lines($0, #"\r\n"#) }, [.backslashes]),
        (#"\\n, escaped twice"#, { lines($0, #"\\n"#) }, [.backslashes]),
        (#"\/ as characters"#, { $0.replacing("/", with: #"\/"#) }, [.backslashes]),
        (#"\u002b as characters"#, { $0.replacing("+", with: #"\u002b"#) }, [.backslashes]),
        ("percent-encoding", { percent($0) }, [.percentEncoding]),
        ("percent-encoding, twice", { percent(percent($0)) }, [.percentEncoding]),
        (
            "references of HTML", { $0.replacing("+", with: "&#43;").replacing("/", with: "&amp;#x2f;") },
            [.characterReferences]
        ),
        ("hexadecimal digits", { hexadecimal($0) }, [.hexadecimal]),
        ("the same as NSData describes itself", { "<\(lines(hexadecimal($0), " "))>" }, [.hexadecimal]),
        ("Python's bytes", { "b'\($0)'" }, [.quotes]),
        ("double quotes", { "\"\($0)\"" }, [.quotes]),
        ("single quotes", { "'\($0)'" }, [.quotes]),
        ("escaped quotes", { "\\\"\($0)\\\"" }, [.quotes]),
        ("typographic quotes", { "\u{201C}\($0)\u{201D}" }, [.quotes]),
        ("one quote", { "\"\($0)" }, [.quotes]),
        ("a data URL", { "data:application/octet-stream;base64,\($0)" }, [.dataURL]),
        ("a short data URL", { "DATA:;base64,\($0)" }, [.dataURL]),
        ("base64, a further time", { base64($0) }, [.nestedBase64]),
        ("base64 of base64 of base64", { base64(base64($0)) }, [.nestedBase64]),
        ("base64 of lines", { base64(lines($0, "\n")) }, [.nestedBase64]),
        (
            "all at once", { "\"data:;base64,\(percent(lines($0, #"\n"#)))\" " },
            [.quotes, .dataURL, .percentEncoding]
        ),
    ]

    @Test("F6, F7: each damage of a receipt is repaired and named", arguments: damages.indices)
    func damage(_ index: Int) {
        let (name, damage, repairs) = Self.damages[index]
        let damaged = damage(Self.receipt)
        #expect(damaged != Self.receipt, "\(name) damages nothing")
        let (own, other) = (Self.found(damaged, .receipt), Self.found(damaged, .signedTransaction))
        #expect(own?.proof == .receipt(Self.receipt) && own?.repairs == repairs, "\(name)")
        #expect(other?.proof == .receipt(Self.receipt) && other?.repairs == repairs + [.otherField], "F2: \(name)")
        #expect(Self.found(damage(Self.old), .receipt)?.proof == .receipt(Self.old), "\(name), iOS 6")
    }

    @Test("Letters of both alphabets and wrong padding count where the octets are a receipt, and nowhere else")
    func spelling() {
        let half = Self.receipt.utf8.count / 2
        let mixed = Self.receipt.prefix(half).replacing("+", with: "-") + Self.receipt.dropFirst(half)
        #expect(Self.found(String(mixed), .receipt)?.proof == .receipt(Self.receipt))
        #expect(Self.found(String(mixed), .receipt)?.repairs == [.mixedAlphabet])
        let padded = Self.receipt + "=="
        #expect(Self.found(padded, .receipt)?.proof == .receipt(Self.receipt))
        #expect(Self.found(padded, .receipt)?.repairs == [.padding])
        for text in ["Q+J_", "QUJD=", "QU D", "QUI===", String(Self.receipt.dropLast(5)) + "=="] {
            #expect(ProofReader.read(text, in: .receipt) == .unreadable, "\(text.prefix(20))")
        }
    }

    @Test(
        "F6: a signed transaction is repaired and named",
        arguments: [
            (" \(jws)\n", [.whiteSpace]), (lines(jws, "\r\n"), [.whiteSpace]), (lines(jws, " "), [.whiteSpace]),
            ("\u{FEFF}\(jws)", [.whiteSpace]), ("\"\(jws)\"", [.quotes]), ("'\(jws)'", [.quotes]),
            (jws.replacing(".", with: "%2E"), [.percentEncoding]), (lines(jws, #"\n"#), [.backslashes]),
            ("Bearer \(jws)", [.prefix]), ("jws: \(jws)", [.prefix]), (base64(jws), [.nestedBase64]),
            (base64("\"\(jws)\""), [.nestedBase64, .quotes]),
        ] as [(String, [FieldRepair.Kind])])
    func signedTransaction(_ text: String, _ repairs: [FieldRepair.Kind]) {
        for field in [ProofReader.Field.signedTransaction, .receipt] {
            let found = Self.found(text, field)
            #expect(found?.proof == .signedTransaction(Self.jws))
            #expect(found?.repairs == repairs + (field == .receipt ? [.otherField] : []))
        }
    }

    @Test("Random damages, in any order: what is found is the clean proof")
    func anyDamages() {
        var random = SeededRandom(announcing: "ProofReaderTests.anyDamages")
        // Each of these leaves the others their work.
        let damages: [(String) -> String] = [
            { $0.replacing("+", with: " ") }, { $0.replacing("/", with: #"\/"#) }, { "\"\($0)\"" }, { "'\($0)'" },
            { " \($0)\r\n" }, { "\u{FEFF}\($0)" }, { "data:;base64,\($0)" },
        ]
        let last: [(String) -> String] = [
            { $0 }, { Self.percent($0) }, { Self.base64($0) }, { Self.json([("Payload", .string($0))]) },
            { Self.base64(Self.json([("receipt-data", .string($0))])) },
        ]
        for _ in 0..<500 {
            let content = (0..<Int.random(in: 124...700, using: &random)).map { _ in
                UInt8.random(in: 0...255, using: &random)
            }
            // The last letter is no `+`: white space around would hide what became of it.
            let clean = Self.sequence(content + [0])
            var text = clean
            for _ in 0..<Int.random(in: 0...3, using: &random) {
                text = damages[Int.random(in: damages.indices, using: &random)](text)
            }
            text = last[Int.random(in: last.indices, using: &random)](text)
            #expect(Self.found(text, .receipt)?.proof == .receipt(clean), "seed \(random.seed): \(text.prefix(200))")
        }
    }

    @Test("Random garbage is no proof of anything else: what is found is the text itself, or what stands in it")
    func garbage() {
        var random = SeededRandom(announcing: "ProofReaderTests.garbage")
        for _ in 0..<2000 {
            let text = random.text(0...60)
            for field in [ProofReader.Field.receipt, .signedTransaction] {
                guard let found = Self.found(text, field) else { continue }
                let again = Self.found(
                    found.proof.payload, found.proof.kind == .receipt ? .receipt : .signedTransaction)
                #expect(again?.proof == found.proof && again?.repairs == [], "seed \(random.seed)")
            }
        }
    }

    // MARK: Wrappers

    static let id = "2000000123456789"

    static let wrappers: [(String, String, Proof)] = [
        (
            "Unity",
            json([("Store", .string("AppleAppStore")), ("TransactionID", .string(id)), ("Payload", .string(receipt))]),
            .receipt(receipt)
        ),
        (
            "Unity on a Mac, with a short receipt",
            json([("Store", .string("MacAppStore")), ("TransactionID", .string(id)), ("Payload", .string("QUJD"))]),
            .receipt("QUJD")
        ),
        (
            "Unity, StoreKit 2",
            json([
                ("Store", .string("AppleAppStore")), ("TransactionID", .string(id)),
                ("Payload", .string(json([("signedTransaction", .string(jws))]))),
            ]), .signedTransaction(jws)
        ),
        (
            "Unity, with an object",
            json([
                ("Store", .string("AppleAppStore")), ("TransactionID", .string(id)),
                ("Payload", .object([.init("jwsRepresentation", .string(jws))])),
            ]), .signedTransaction(jws)
        ),
        (
            "react-native-iap",
            json([
                ("productId", .string("coins")), ("transactionId", .string(id)),
                ("transactionReceipt", .string(receipt)),
                ("purchaseToken", .null),
            ]), .receipt(receipt)
        ),
        (
            "react-native-iap with both: the transaction itself",
            json([
                ("transactionId", .string(id)), ("transactionReceipt", .string(receipt)),
                ("jwsRepresentationIos", .string(jws)),
            ]), .signedTransaction(jws)
        ),
        (
            "expo-iap",
            json([
                ("id", .string(id)), ("platform", .string("ios")), ("store", .string("apple")),
                ("purchaseToken", .string(jws)),
                ("packageNameAndroid", .string("")),
            ]), .signedTransaction(jws)
        ),
        (
            "cordova-plugin-purchase",
            json([
                ("id", .string("coins")), ("type", .string("consumable")),
                (
                    "transaction",
                    .object([
                        .init("type", .string("ios-appstore")), .init("id", .string(id)),
                        .init("appStoreReceipt", .string(receipt)),
                    ])
                ),
            ]), .receipt(receipt)
        ),
        (
            "Flutter, StoreKit 2",
            json([
                ("purchaseID", .string(id)), ("productID", .string("coins")),
                (
                    "verificationData",
                    .object([
                        .init("localVerificationData", .string(#"{"transactionId":"1"}"#)),
                        .init("serverVerificationData", .string(jws)), .init("source", .string("app_store")),
                    ])
                ),
            ]), .signedTransaction(jws)
        ),
        (
            "Flutter, StoreKit 1",
            json([
                ("purchaseID", .string(id)),
                (
                    "verificationData",
                    .object([
                        .init("localVerificationData", .string(receipt)),
                        .init("serverVerificationData", .string(receipt)),
                    ])
                ),
            ]), .receipt(receipt)
        ),
        (
            "an answer of the App Store Server API",
            json([
                ("transaction_id", .number(id)), ("signedTransactionInfo", .string(jws)),
                ("signedRenewalInfo", .string("a")),
            ]),
            .signedTransaction(jws)
        ),
        (
            "a list of one", "[\(json([("transactionId", .string(id)), ("transactionReceipt", .string(receipt))]))]",
            .receipt(receipt)
        ),
        (
            "damaged inside",
            json([("transactionId", .string(id)), ("receipt-data", .string(receipt.replacing("+", with: " ")))]),
            .receipt(receipt)
        ),
    ]

    @Test("F8: a purchase object is unwrapped, as text, as object, quoted, or in base64", arguments: wrappers.indices)
    func wrapper(_ index: Int) throws {
        let (name, text, proof) = Self.wrappers[index]
        let own: ProofReader.Field = proof.kind == .receipt ? .receipt : .signedTransaction
        let value = try JSONValue(parsing: Array(text.utf8))
        var outcomes = [ProofReader.read(value, in: own)]
        for form in [
            text, " \(text)\n", JSONValue.string(text).text,
            text.replacing("\"", with: "\\\"").replacing("/", with: "\\/"),
        ] where form == text || !text.contains("\\") {
            outcomes.append(ProofReader.read(form, in: own))
        }
        outcomes.append(ProofReader.read(JSONValue.string(text).text, in: own))
        for outcome in outcomes {
            guard case .found(let found) = outcome else {
                Issue.record("\(name): \(outcome)")
                continue
            }
            #expect(found.proof == proof && found.repairs.contains(.wrapper), "\(name)")
            #expect(found.transactionID == Self.id, "\(name)")
        }
        // In the field of the other proof, and in base64, the proof must look like one.
        guard proof != .receipt("QUJD") else { return }
        let other: ProofReader.Field = own == .receipt ? .signedTransaction : .receipt
        #expect(Self.found(text, other)?.proof == proof && Self.found(text, other)?.repairs.last == .otherField)
        #expect(Self.found(Self.base64(text), own)?.proof == proof, "\(name)")
        #expect(Self.found(Self.base64(text), own)?.repairs.prefix(2) == [.nestedBase64, .wrapper], "\(name)")
    }

    @Test(
        "F8: another store's purchase is refused as that",
        arguments: [
            #"{"Store":"GooglePlay","TransactionID":"GPA.1","Payload":"{\"json\":\"{}\",\"signature\":\"QUJD\"}"}"#,
            #"{"Store":"AmazonAppStore","TransactionID":"t","Payload":"QUJD"}"#,
            #"{"orderId":"GPA.3345-1","productId":"coins","purchaseState":0}"#,
            #"{"packageName":"com.example","productId":"coins","purchaseToken":"abc.AO-J1Oz"}"#,
            #"{"verificationData":{"serverVerificationData":"a:b","source":"google_play"}}"#,
            #"{"purchaseTokenAndroid":"abc","dataAndroid":"{}"}"#, #"{"inAppPurchaseData":"{}"}"#,
            #"{"transaction":{"type":"android-playstore","purchaseToken":"x"}}"#,
        ])
    func otherStore(_ text: String) throws {
        for field in [ProofReader.Field.receipt, .signedTransaction] {
            #expect(ProofReader.read(text, in: field) == .refused(.otherStore))
            #expect(ProofReader.read(Self.base64(text), in: field) == .refused(.otherStore))
            #expect(try ProofReader.read(JSONValue(parsing: Array(text.utf8)), in: field) == .refused(.otherStore))
        }
    }

    @Test("Wrappers are taken off twice at most, objects without a proof are no proof, several are several")
    func bounds() throws {
        func wrap(_ text: String) -> String { Self.json([("Payload", .string(text))]) }
        #expect(Self.found(wrap(wrap(Self.receipt)), .receipt)?.proof == .receipt(Self.receipt))
        #expect(ProofReader.read(wrap(wrap(wrap(Self.receipt))), in: .receipt) == .unreadable)
        for text in ["{}", "[]", "[[]]", "{\"a\":1}", wrap(""), wrap("Ä"), "{\"Payload\":{\"Payload\":[]}}"] {
            #expect(ProofReader.read(text, in: .receipt) == .unreadable, "\(text)")
        }
        let purchase = Self.json([("transactionReceipt", .string(Self.receipt))])
        #expect(ProofReader.read("[\(purchase),\(purchase)]", in: .receipt) == .refused(.several))
        // Each layer costs its length, and there are few layers.
        var deep = Self.receipt
        for _ in 0..<12 { deep = Self.base64(wrap(deep)) }
        _ = ProofReader.read(deep, in: .receipt)
        let large = "{\"" + String(repeating: "\u{301}\u{316}", count: 100_000) + "\":1}"
        let time = ContinuousClock().measure { _ = ProofReader.read(large, in: .receipt) }
        #expect(time < .seconds(20))
    }

    // MARK: Other kinds

    @Test("F18: a notification's transaction is taken out; other signed data is refused by its kind")
    func kinds() {
        let renewal = Self.signed(#"{"originalTransactionId":"1","autoRenewStatus":1,"environment":"Sandbox"}"#)
        let app = Self.signed(#"{"receiptType":"Production","bundleId":"b","appTransactionId":"7"}"#)
        let test = Self.signed(#"{"notificationType":"TEST","data":{"bundleId":"b"}}"#)
        let renewed = Self.signed(
            #"{"notificationType":"DID_RENEW","data":{"signedTransactionInfo":"\#(Self.jws)","#
                + #""signedRenewalInfo":"\#(renewal)"}}"#
        )
        let wrong = Self.signed(#"{"notificationType":"X","data":{"signedTransactionInfo":"\#(app)"}}"#)
        for field in [ProofReader.Field.signedTransaction, .receipt] {
            for text in [renewed, Self.json([("signedPayload", .string(renewed))])] {
                #expect(Self.found(text, field)?.proof == .signedTransaction(Self.jws))
                #expect(Self.found(text, field)?.repairs.contains(.notification) == true)
            }
            #expect(ProofReader.read(renewal, in: field) == .refused(.otherKind(.renewalInfo)))
            #expect(ProofReader.read(app, in: field) == .refused(.otherKind(.appTransaction)))
            #expect(ProofReader.read(test, in: field) == .refused(.otherKind(.notification)))
            #expect(ProofReader.read(wrong, in: field) == .refused(.otherKind(.appTransaction)))
            let body = Self.json([("signedRenewalInfo", .string(renewal))])
            #expect(ProofReader.read(body, in: field) == .refused(.otherKind(.renewalInfo)))
        }
        // What tells nothing of its kind is a worker's business.
        for payload in ["{}", #"{"transactionId":"1","receiptType":"x"}"#, "no json"] {
            #expect(Self.found(Self.signed(payload), .signedTransaction)?.repairs == [])
        }
    }
}
