import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// More examples of what real clients send (WhatIsAccepted), and the nearest ones that nobody can read.
    @Suite struct ClientExamples {
        private struct Example: Sendable {
            let name: String
            /// The repairs that the answer names, without their field.
            var repairs: [String] = []
            /// Whether the proof is the app receipt.
            var isReceipt = false
            var headers: [String: String] = [:]
            let body: @Sendable (Sale, String) throws -> Data
        }

        // MARK: Texts

        private static func json(_ value: Any) throws -> String {
            String(
                decoding: try JSONSerialization.data(withJSONObject: value, options: [.fragmentsAllowed]), as: UTF8.self
            )
        }

        /// The body of a post with these members.
        private static func post(_ members: [String: Any], _ user: Any) throws -> String {
            try json(members.merging(["appId": "game", "userId": user]) { $1 })
        }

        private static func plain(_ sale: Sale, _ user: String) throws -> String {
            try post(["signedTransaction": sale.signedTransaction], user)
        }

        private static func octets(_ receipt: String) -> [UInt8] { Array(Data(base64Encoded: receipt) ?? Data()) }

        private static func hexadecimal(_ octets: some Sequence<UInt8>) -> String {
            octets.map { String(format: "%02x", $0) }.joined()
        }

        /// As `NSData` describes itself.
        private static func described(_ octets: [UInt8]) -> String {
            let words = stride(from: 0, to: octets.count, by: 4).map {
                hexadecimal(octets[$0..<min($0 + 4, octets.count)])
            }
            return "<\(words.joined(separator: " "))>"
        }

        private static func references(_ text: String, and: String = "&") -> String {
            text.replacing("+", with: "\(and)#43;").replacing("/", with: "\(and)#x2F;")
                .replacing("=", with: "\(and)equals;")
        }

        private static func lines(_ text: String, _ separator: String) -> String {
            let bytes = Array(text.utf8)
            return stride(from: 0, to: bytes.count, by: 64).map {
                String(decoding: bytes[$0..<min($0 + 64, bytes.count)], as: UTF8.self)
            }.joined(separator: separator)
        }

        /// The payload of a signed transaction, as StoreKit's `jsonRepresentation` is.
        private static func payload(_ jws: String) throws -> String {
            let part = jws.split(separator: ".")[1].replacing("-", with: "+").replacing("_", with: "/")
            let padded = String(part) + String(repeating: "=", count: (4 - part.count % 4) % 4)
            return String(decoding: try #require(Data(base64Encoded: padded)), as: UTF8.self)
        }

        /// A gzip member whose blocks are stored as they are (RFC 1952; RFC 1951, 3.2.4).
        private static func gzip(_ bytes: [UInt8]) -> Data {
            func little(_ value: Int, _ count: Int) -> [UInt8] { (0..<count).map { UInt8(value >> (8 * $0) & 0xFF) } }
            var member: [UInt8] = [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255]
            for start in stride(from: 0, to: bytes.count, by: 65_535) {
                let block = bytes[start..<min(start + 65_535, bytes.count)]
                member.append(block.endIndex == bytes.count ? 1 : 0)
                member += little(block.count, 2) + little(~block.count & 0xFFFF, 2) + block
            }
            var sum: UInt32 = .max
            for byte in bytes {
                sum ^= UInt32(byte)
                for _ in 0..<8 { sum = sum & 1 == 1 ? sum >> 1 ^ 0xEDB8_8320 : sum >> 1 }
            }
            return Data(member + little(Int(~sum), 4) + little(bytes.count, 4))
        }

        // MARK: The table

        private static let bodies: [Example] = [
            Example(name: "JSON in a JSON string") { Data(try json(plain($0, $1)).utf8) },
            Example(name: "JSON in a JSON string in a JSON string") { Data(try json(json(plain($0, $1))).utf8) },
            Example(name: "a list of one") { Data("[\(try plain($0, $1))]".utf8) },
            Example(name: "a zero byte behind it") { Data("\(try plain($0, $1))\n\0".utf8) },
            Example(name: "two byte order marks") { Data("\u{FEFF}\u{FEFF}\(try plain($0, $1))".utf8) },
            Example(name: "UTF-16 with its zero") {
                Data("\(try plain($0, $1))\0".utf16.flatMap { [UInt8($0 & 0xFF), UInt8($0 >> 8)] })
            },
            Example(name: "hand-made JSON around lines", isReceipt: true) {
                Data(#"{"appId":"game","userId":"\#($1)","receipt":"\#(lines($0.receipt, "\r\n"))"}"#.utf8)
            },
            Example(name: "ISO 8859-1", headers: ["Content-Type": "application/json; charset=iso-8859-1"]) {
                var body = Data(try plain($0, $1).dropLast().utf8)
                body.append(contentsOf: #","device":"M"#.utf8)
                body.append(0xFC)
                body.append(contentsOf: #"ller"}"#.utf8)
                return body
            },
            Example(
                name: "gzip of a marked text", headers: ["Content-Encoding": "gzip", "Content-Type": "text/plain"]
            ) { gzip(Array("\u{FEFF}\(try plain($0, $1))".utf8)) },
            Example(name: "gzip without a head, and padded", headers: ["Content-Type": "application/octet-stream"]) {
                var body = gzip(Array(try plain($0, $1).utf8))
                body.append(Data(count: 16))
                return body
            },
            Example(name: "a batch of one at the address of a post", repairs: ["wrapper"]) {
                Data(try post(["receipts": [["signedTransaction": $0.signedTransaction]]], $1).utf8)
            },
        ]

        private static let texts: [Example] = [
            Example(name: "references of HTML", repairs: ["character_references"], isReceipt: true) {
                Data(try post(["receipt": references($0.receipt)], $1).utf8)
            },
            Example(name: "references, escaped twice", repairs: ["character_references"], isReceipt: true) {
                Data(try post(["receipt": references($0.receipt, and: "&amp;")], $1).utf8)
            },
            Example(name: "bytes as Python prints them", repairs: ["quotes"], isReceipt: true) {
                Data(try post(["receipt": "b'\($0.receipt)'"], $1).utf8)
            },
            Example(name: "the same of a signed transaction", repairs: ["quotes"]) {
                Data(try post(["signedTransaction": "b\"\($0.signedTransaction)\""], $1).utf8)
            },
            Example(name: "NSData's description", repairs: ["hexadecimal"], isReceipt: true) {
                Data(try post(["receipt": described(octets($0.receipt))], $1).utf8)
            },
            Example(name: "hexadecimal digits", repairs: ["hexadecimal"], isReceipt: true) {
                Data(try post(["receipt": hexadecimal(octets($0.receipt)).uppercased()], $1).utf8)
            },
            Example(name: "percent-encoded lines", repairs: ["percent_encoding"], isReceipt: true) {
                let text = lines($0.receipt, "%0D%0A").replacing("+", with: "%2b").replacing("=", with: "%3d")
                return Data(try post(["receipt": text], $1).utf8)
            },
            Example(name: "base64url without padding", isReceipt: true) {
                let text = $0.receipt.replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
                return Data(try post(["receipt": text], $1).utf8)
            },
            Example(name: "a word as in a header", repairs: ["prefix"]) {
                Data(try post(["signedTransaction": "bearer  \($0.signedTransaction)"], $1).utf8)
            },
            Example(name: "base64 of a purchase object", repairs: ["nested_base64", "wrapper", "other_field"]) {
                let object = Data(try json(["signedTransaction": $0.signedTransaction]).utf8)
                return Data(try post(["receipt": object.base64EncodedString()], $1).utf8)
            },
        ]

        private static let wrappers: [Example] = [
            Example(name: "Unreal Engine", repairs: ["wrapper"], isReceipt: true) {
                let item = ["UniqueId": $0.purchase.transactionId, "ValidationInfo": $0.receipt]
                let offers = [["OfferId": "coins", "LineItems": [item]] as [String: Any]]
                return Data(
                    try post(
                        ["receipt": ["TransactionId": $0.purchase.transactionId, "ReceiptOffers": offers]], $1
                    ).utf8)
            },
            Example(name: "SDKBox", repairs: ["wrapper"], isReceipt: true) {
                let product = [
                    "name": "coins", "transactionID": $0.purchase.transactionId, "receipt": "",
                    "receiptCipheredPayload": $0.receipt,
                ]
                return Data(try post(["receipt": json(product)], $1).utf8)
            },
            Example(name: "Unity's product", repairs: ["wrapper"], isReceipt: true) {
                let unified = try unity($0)
                let product: [String: Any] = [
                    "definition": ["id": "coins"], "transactionID": $0.purchase.transactionId, "receipt": unified,
                ]
                return Data(try post(["receipt": product], $1).utf8)
            },
            Example(name: "Unity's receipt by its own name", repairs: ["wrapper"], isReceipt: true) {
                Data(try post(["unifiedReceipt": unity($0)], $1).utf8)
            },
            Example(name: "cordova-plugin-purchase", repairs: ["wrapper", "other_field"], isReceipt: true) {
                let purchase: [String: Any] = [
                    "className": "Purchase", "platform": "ios-appstore", "transactionId": $0.purchase.transactionId,
                    "nativePurchase": ["appStoreReceipt": $0.receipt],
                ]
                return Data(try post(["signedTransaction": purchase], $1).utf8)
            },
            Example(name: "Xamarin", repairs: ["wrapper"], isReceipt: true) {
                let purchase = [
                    "Id": $0.purchase.transactionId, "ProductId": "coins", "State": "Purchased",
                    "PurchaseToken": $0.receipt,
                ]
                return Data(try post(["receipt": json(purchase)], $1).utf8)
            },
            Example(name: "Solar2D", repairs: ["wrapper", "hexadecimal"], isReceipt: true) {
                let event = [
                    "transaction": [
                        "identifier": $0.purchase.transactionId, "receipt": described(octets($0.receipt)),
                    ]
                ]
                return Data(try post(["receipt": event], $1).utf8)
            },
            Example(name: "a list of one inside", repairs: ["wrapper", "other_field"]) {
                Data(
                    try post(
                        ["receipt": ["transactions": [["jwsRepresentation": $0.signedTransaction]]]], $1
                    ).utf8)
            },
        ]

        private static func unity(_ sale: Sale) throws -> String {
            try json([
                "Store": "AppleAppStore", "TransactionID": sale.purchase.transactionId, "Payload": sale.receipt,
            ])
        }

        /// Goal: what a client may send in good faith is granted, whatever its form (F2, F6, F7, F8, F16, F17), and is
        /// the same receipt as the clean post. Method: a purchase of its own in each form, then the clean post.
        @Test func eachIsGranted() async throws {
            try await System.run { system in
                try await system.startAll()
                for (index, example) in (Self.bodies + Self.texts + Self.wrappers).enumerated() {
                    let user = "example-\(index)"
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: user)
                    let answer = try await system.client.postBody(
                        example.body(sale, user), wait: 20, headers: example.headers)
                    #expect(
                        answer.state == "granted" && answer.safeToFinish == true, "\(example.name): \(answer.text)")
                    let repairs = (answer.json["repaired"] as? [[String: String]] ?? []).compactMap { $0["repair"] }
                    #expect(repairs == example.repairs, "\(example.name)")
                    let clean = Client.Post(
                        userId: user, signedTransaction: example.isReceipt ? nil : sale.signedTransaction,
                        receipt: example.isReceipt ? sale.receipt : nil)
                    let again = try await system.submit(clean)
                    #expect(again.id == answer.id && again.json["repaired"] == nil, "\(example.name)")
                }
            }
        }

        /// Goal: an app that has lost its user, or posts what is no proof, loses no purchase and takes none (F9): the
        /// post is stored and held, and the real user's post of the proof is granted. What nobody can read is refused
        /// with its field, stores nothing, and is never safe to finish.
        /// Method: one purchase under each thing that names nobody, which is one receipt; one purchase as StoreKit's
        /// JSON without a signature, in three forms, which is one question; the neighbours of every repair.
        @Test func theNearestOnes() async throws {
            try await System.run { system in
                try await system.startAll()
                let client = try system.client
                let lost = try await system.appStore.sell()
                let nobody: [Any] = [
                    "{{userId}}", " %@", "Optional(\"u1\")", "<user_id>", "${userId}", false, [String: Any](), [Any](),
                ]
                var ids: Set<String> = []
                for user in nobody {
                    let body = try Self.post(["signedTransaction": lost.signedTransaction], user)
                    let answer = try await client.postBody(Data(body.utf8), wait: 20)
                    #expect(answer.state == "held" && answer.reason == "user_placeholder", "\(user): \(answer.text)")
                    #expect(answer.safeToFinish == false)
                    ids.insert(answer.id)
                }
                #expect(ids.count == 1)
                system.owe(lost, to: "real")
                #expect(try await system.submit(lost, user: "real", wait: 20).state == "granted")

                let unsigned = try await system.appStore.sell()
                let payload = try Self.payload(unsigned.signedTransaction)
                let object = try JSONSerialization.jsonObject(with: Data(payload.utf8))
                ids = []
                for form in [payload, Data(payload.utf8).base64EncodedString(), object] as [Any] {
                    let body = try Self.post(["signedTransaction": form], "real")
                    let answer = try await client.postBody(Data(body.utf8), wait: 20)
                    #expect(answer.state == "held" && answer.reason == "possession_missing", "\(answer.text)")
                    #expect(answer.safeToFinish == false)
                    #expect(answer.json["disregarded"] as? [String] == ["signedTransaction"])
                    ids.insert(answer.id)
                }
                #expect(ids.count == 1)
                system.owe(unsigned, to: "real")
                #expect(try await system.submit(unsigned, user: "real", wait: 20).state == "granted")

                let sale = try await system.appStore.sell()
                let plain = try Self.plain(sale, "u1")
                let receipt = Self.octets(sale.receipt)
                let offers = [["LineItems": [["ValidationInfo": sale.receipt], ["ValidationInfo": sale.receipt]]]]
                let google: [String: Any] = ["store": "google", "transactionId": sale.purchase.transactionId]
                let form = "userId=u1&receipt=\(sale.receipt)"
                let wrong: [(String, Data, [String: String], Int, String, String?)] = [
                    ("a text in a JSON string", Data(#""userId""#.utf8), [:], 400, "not_json", nil),
                    ("three layers", Data(try Self.json(Self.json(Self.json(plain))).utf8), [:], 400, "not_json", nil),
                    ("two posts in a list", Data("[\(plain),\(plain)]".utf8), [:], 400, "not_json", nil),
                    ("two posts", Data("\(plain)\(plain)".utf8), [:], 400, "not_json", nil),
                    ("another byte behind it", Data("\(plain)\u{1}".utf8), [:], 400, "not_json", nil),
                    ("half of a string", Data(plain.dropLast(2).utf8), [:], 400, "not_json", nil),
                    (
                        "a form", Data(form.utf8), ["Content-Type": "application/x-www-form-urlencoded"], 415,
                        "unsupported_media_type", "Content-Type"
                    ),
                    (
                        "half of gzip", Data(Self.gzip(Array(plain.utf8)).dropLast(12)),
                        ["Content-Encoding": "gzip"], 400, "body_cut", nil
                    ),
                    (
                        "another coding", Self.gzip(Array(plain.utf8)), ["Content-Encoding": "br"], 415,
                        "unsupported_encoding", "Content-Encoding"
                    ),
                    (
                        "a cut description", try Self.receiptPost(Self.described(Array(receipt.dropLast()))), [:], 400,
                        "not_base64", "receipt"
                    ),
                    (
                        "a reference beyond ASCII", try Self.receiptPost(sale.receipt + "&#x2B00;"), [:], 400,
                        "not_base64", "receipt"
                    ),
                    (
                        "quotes that do not fit", try Self.receiptPost("b'\(sale.receipt)\""), [:], 400, "not_base64",
                        "receipt"
                    ),
                    (
                        "two items", try Self.receiptPost(["ReceiptOffers": offers]), [:], 400, "wrong_type", "receipt"
                    ),
                    ("another store", try Self.receiptPost(google), [:], 422, "other_store", "receipt"),
                    (
                        "a short id", try Self.receiptPost(["transactionId": "200000012"]), [:], 400, "wrong_type",
                        "receipt"
                    ),
                    (
                        "a user as an object",
                        Data(try Self.post(["receipt": sale.receipt], ["id": "u1"]).utf8), [:], 400, "wrong_type",
                        "userId"
                    ),
                    (
                        "a flag for a user", Data(try Self.post(["receipt": sale.receipt], true).utf8), [:], 400,
                        "wrong_type", "userId"
                    ),
                ]
                let rows = try await system.count("select count(*) from receipts")
                for (name, body, headers, status, code, field) in wrong {
                    let answer = try await client.postBody(body, headers: headers)
                    #expect(
                        answer.status == status && answer.code == code
                            && (answer.field == field || code == "not_json"), "\(name): \(answer.text)")
                    #expect(answer.safeToFinish == false, "\(name)")
                }
                #expect(try await system.count("select count(*) from receipts") == rows)
            }
        }

        private static func receiptPost(_ receipt: Any) throws -> Data {
            Data(try post(["receipt": receipt], "u1").utf8)
        }
    }
}
