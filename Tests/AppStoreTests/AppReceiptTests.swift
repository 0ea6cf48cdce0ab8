import Foundation
import TestRandom
import Testing

@testable import AppStore

// Goal: every attribute that AppleFacts 6.3 names is read, whatever the receipt's order, and content that Apple would
// not write is an error and never a crash. Method: contents written attribute by attribute.

@Suite struct AppReceiptTests {
    private typealias A = ReceiptAttributes

    private static let purchase = A.set([
        A.number(1701, 3), A.text(1702, "com.example.game.pass"), A.text(1703, "1000000000000002"),
        A.date(1704, "2018-06-25T08:00:00Z"), A.text(1705, "1000000000000001"), A.date(1706, "2018-05-25T08:00:00Z"),
        A.number(1707, 3), A.date(1708, "2018-07-25T08:00:00+0100"), A.attribute(1709, [1, 2, 3]),
        A.number(1711, 1_000_000_000_000_000), A.date(1712, "2018-06-26T07:59:59.5Z"), A.number(1713, 1),
        A.number(1719, 0), A.text(1721, "summer"), A.attribute(1799, [0xFF]),
    ])

    private static let attributes = [
        A.text(0, "ProductionSandbox"), A.number(1, 1_234_567_890), A.text(2, "com.example.game"), A.text(3, "1.2"),
        A.attribute(4, [9, 8, 7]), A.attribute(5, [1, 2]), A.attribute(7, [0xFF, 0xFF]),
        A.date(8, "2018-06-26T08:00:01Z"), A.date(10, "4+"), A.date(12, "2018-06-26T08:00:00Z"),
        A.attribute(17, purchase), A.date(18, "2013-08-01T07:00:00Z"), A.text(19, "1.0"), A.date(21, ""),
        A.attribute(9999, []),
    ]

    @Test func `all attributes`() throws {
        let receipt = try AppReceipt(unverified: A.set(Self.attributes))
        #expect(receipt.receiptType == "ProductionSandbox")
        #expect(receipt.environment == .sandbox)
        #expect(receipt.appAppleId == 1_234_567_890)
        #expect(receipt.bundleId == "com.example.game")
        #expect(receipt.applicationVersion == "1.2")
        #expect(receipt.opaqueValue == [9, 8, 7])
        #expect(receipt.sha1Hash == [1, 2])
        #expect(receipt.transactionDate == Date(timeIntervalSince1970: 1_530_000_001))
        #expect(receipt.ageRating == "4+")
        #expect(receipt.creationDate == Date(timeIntervalSince1970: 1_530_000_000))
        #expect(receipt.originalPurchaseDate == Date(timeIntervalSince1970: 1_375_340_400))
        #expect(receipt.originalApplicationVersion == "1.0")
        #expect(receipt.expirationDate == nil)
        let entry = try #require(receipt.inApp.first)
        #expect(entry.quantity == 3)
        #expect(entry.productId == "com.example.game.pass")
        #expect(entry.transactionId == "1000000000000002")
        #expect(entry.purchaseDate == Date(timeIntervalSince1970: 1_529_913_600))
        #expect(entry.originalTransactionId == "1000000000000001")
        #expect(entry.originalPurchaseDate == Date(timeIntervalSince1970: 1_527_235_200))
        #expect(entry.productType == 3)
        #expect(entry.expiresDate == Date(timeIntervalSince1970: 1_532_502_000))
        #expect(entry.webOrderLineItemId == "1000000000000000")
        #expect(entry.cancellationDate == Date(timeIntervalSince1970: 1_529_999_999.5))
        #expect(entry.isTrialPeriod == true)
        #expect(entry.isInIntroOfferPeriod == false)
        #expect(entry.promotionalOfferId == "summer")
        #expect(entry.isAutoRenewable)
    }

    @Test func `the order means nothing (P21)`() throws {
        var random = SeededRandom(announcing: "shuffled receipt")
        let expected = try AppReceipt(unverified: A.set(Self.attributes))
        for _ in 0..<50 {
            let shuffled = A.set(Self.attributes.shuffled(using: &random))
            #expect(try AppReceipt(unverified: shuffled) == expected, "seed \(random.seed)")
        }
    }

    @Test func `absent dates are empty strings, and line item 0 is none`() throws {
        let entry = A.attribute(
            17, A.set([A.text(1702, "p"), A.text(1703, "7"), A.date(1708, ""), A.date(1712, ""), A.number(1711, 0)]))
        let receipt = try AppReceipt(unverified: A.set([entry, A.attribute(21, []), A.text(3, "")]))
        let purchase = try #require(receipt.inApp.first)
        #expect(purchase.expiresDate == nil && purchase.cancellationDate == nil && purchase.webOrderLineItemId == nil)
        #expect(!purchase.isAutoRenewable)
        #expect(receipt.expirationDate == nil && receipt.applicationVersion == nil)
    }

    @Test func `what decides must be readable, what nobody documented need not be`() throws {
        for attribute in [
            A.text(0, String(repeating: "\u{301}\u{316}", count: 16)),
            A.date(12, "yesterday"), A.date(12, "2018-06-26"), A.attribute(2, [0xFF]), A.number(2, 1),
            A.attribute(0, [0x0C, 2, 0xC3, 0x28]), A.attribute(2, [0x0C, 1, 0x61, 0x05, 0]), A.attribute(17, []),
            A.attribute(17, A.set([])), A.attribute(17, A.set([A.text(1703, "7")])),
            A.attribute(17, A.set([A.text(1702, "p"), A.text(1703, "")])),
            A.attribute(17, A.set([A.text(1702, "p"), A.text(1703, "7"), A.date(1712, "never")])),
            A.attribute(
                17,
                A.set([
                    A.text(1702, "p"), A.text(1703, "7"), A.attribute(1701, [2, 9] + [UInt8](repeating: 1, count: 9)),
                ])),
            [0x30, 0], [0x30, 3, 2, 1, 2], [0x30, 6, 2, 1, 2, 2, 1, 1], [0x30, 9, 2, 1, 2, 2, 1, 1, 0x0C, 1, 0x61],
        ] {
            #expect(throws: ReceiptFailure.self, "\(attribute)") { try AppReceipt(unverified: A.set([attribute])) }
        }
        for attribute in [
            A.date(8, "yesterday"), A.attribute(10, [0xFF]), A.date(18, "x"), A.attribute(1, [0x05, 0]),
            A.attribute(6, [0x30, 0x80]), A.attribute(999_999, [0xFF]),
            A.attribute(17, A.set([A.text(1702, "p"), A.text(1703, "7"), A.text(1707, "x"), A.attribute(1713, [9])])),
        ] {
            _ = try AppReceipt(unverified: A.set([attribute]))
        }
    }

    @Test func `what was bought since, unverified`() throws {
        let entry = { (id: String, more: [[UInt8]]) in
            A.attribute(17, A.set([A.text(1702, "p"), A.text(1703, id)] + more))
        }
        let (old, new) = ("2018-06-25T08:00:00Z", "2018-06-26T08:00:00Z")
        let entries = [
            entry("old", [A.date(1704, old), A.date(1706, old)]), entry("new", [A.date(1704, new), A.date(1706, new)]),
            entry("restored", [A.date(1704, new), A.date(1706, old)]), entry("bare", [A.date(1704, new)]),
            entry("renewed", [A.date(1704, new), A.date(1706, old), A.date(1708, new)]),
            entry("no\0id", [A.date(1704, new)]), entry("nö", [A.date(1704, new)]),
            entry(String(repeating: "7", count: 65), [A.date(1704, new)]),
            entry("ended", [A.date(1704, old), A.date(1706, old), A.date(1708, new)]), entry("undated", []),
        ]
        let since = Date(timeIntervalSince1970: 1_530_000_000)
        let ids = { (attributes: [[UInt8]], max: Int) in
            AppReceipt.transactionIds(unverified: A.set(attributes), since: since, max: max)
        }
        #expect(ids(entries, 100) == ["new", "bare", "renewed"])
        #expect(ids(entries, 2) == ["new", "bare"])
        #expect(ids(Array(entries.prefix(2)) + [A.attribute(17, A.set([])), entries[3]], 100) == ["new"])
        #expect(AppReceipt.transactionIds(unverified: [0x30, 0x80], since: since, max: 1).isEmpty)
        for text in ["", "%%%", "QUJD"] {
            #expect(AppReceipt.transactionIds(unverified: text, since: since, max: 1).isEmpty)
        }
    }

    @Test func `content of chance never crashes`() {
        var random = SeededRandom(announcing: "damaged receipt contents")
        let content = A.set(Self.attributes)
        for _ in 0..<20_000 {
            _ = try? AppReceipt(unverified: random.damage(content))
            _ = AppReceipt.transactionIds(unverified: random.damage(content), since: .distantPast, max: 100)
            _ = try? SignedReceipt(random.damage(content))
        }
        for _ in 0..<20_000 {
            let bytes: [UInt8] = (0..<Int.random(in: 0...64, using: &random)).map { _ in
                [0x00, 0x02, 0x04, 0x24, 0x30, 0x31, 0x80, 0x84, 0xA0, 0xFF].randomElement(using: &random)!
            }
            _ = try? AppReceipt(unverified: bytes)
            _ = try? SignedReceipt(bytes)
        }
    }

    @Test(
        arguments: [
            ("2018-06-26T08:00:00Z", 1_530_000_000), ("2018-06-26T08:00:00.250Z", 1_530_000_000.25),
            ("2018-06-26T09:00:00+0100", 1_530_000_000), ("2018-06-26T01:30:00-06:30", 1_530_000_000),
            ("1970-01-01T00:00:00Z", 0), ("2000-02-29T23:59:60Z", 951_868_800),
            ("4001-01-01T00:00:00Z", 64_092_211_200),
            ("0000-01-01T00:00:00Z", -62_167_219_200),
            ("", nil), ("2018-06-26", nil), ("2018-06-26T08:00:00", nil), ("2018-06-26 08:00:00Z", nil),
            ("2018-02-29T08:00:00Z", nil), ("1900-02-29T08:00:00Z", nil), ("2018-13-01T08:00:00Z", nil),
            ("2018-06-31T08:00:00Z", nil), ("2018-06-00T08:00:00Z", nil), ("2018-06-26T24:00:00Z", nil),
            ("2018-06-26T08:60:00Z", nil), ("2018-06-26T08:00:61Z", nil), ("2018-06-26T08:00:00.Z", nil),
            ("2018-06-26T08:00:00+1", nil), ("2018-06-26T08:00:00ZZ", nil), ("-018-06-26T08:00:00Z", nil),
            ("2018-06-26T08:00:00.0000000001Z", nil), ("２018-06-26T08:00:00Z", nil),
        ] as [(String, Double?)])
    func date(_ text: String, _ expected: Double?) {
        #expect(ReceiptDate.parse(text)?.timeIntervalSince1970 == expected)
    }

    @Test func `integers are read to the last bit`() throws {
        for value in [0, 1, -1, 127, 128, 255, 256, -128, -129, .max, .min] as [Int] {
            var reader = BERReader(A.integer(value))
            #expect(try reader.next()?.int64() == Int64(value))
        }
        for bytes in [[2, 0], [2, 9, 0, 255, 255, 255, 255, 255, 255, 255, 255], [4, 1, 0]] as [[UInt8]] {
            var reader = BERReader(bytes)
            let element = try #require(try reader.next())
            #expect(throws: BERReader.Failure.structure) { try element.int64() }
        }
    }

    @Test func `an element ends where it says, or it is none`() {
        for bytes in [
            [0x04], [0x04, 0x01], [0x04, 0x81], [0x04, 0x82, 0x01], [0x04, 0x80], [0x00, 0x00], [0x1F, 0x01, 0x00],
            [0x04, 0x88, 0x7F, 255, 255, 255, 255, 255, 255, 255], [0x04, 0x89, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            [0x30, 0x80], [0x30, 0x80, 0x00], [0x30, 0x80, 0x00, 0x01, 0x00], [0x30, 0x80, 0x00, 0x81, 0x00],
            [0x30, 0x80, 0x00, 0x80, 0x00, 0x00], [0x30, 0x80, 0x04, 0x05, 0x00, 0x00],
            [0x30, 0x80, 0x30, 0x80, 0x00, 0x00], [0x04, 0xFF] + [UInt8](repeating: 0, count: 200),
        ] as [[UInt8]] {
            var reader = BERReader(bytes)
            #expect(throws: BERReader.Failure.encoding, "\(bytes)") { try reader.next() }
        }
    }
}

@Suite struct TransactionReceiptTests {
    private static func base64(_ text: String) -> String { Data(text.utf8).base64EncodedString() }

    private static func receipt(_ info: String) -> String {
        base64(
            "{\n\t\"signature\" = \"AlZ+/=\";\n\t\"purchase-info\" = \"\(base64(info))\";\n\t\"environment\" = \"Sandbox\";\n\t"
                + "\"pod\" = \"100\";\n\t\"signing-status\" = \"0\";\n}")
    }

    @Test func `the transaction id and what stands beside it`() throws {
        let receipt = try TransactionReceipt(
            base64: Self.receipt(
                "{\n\t\"original-transaction-id\" = \"1000000000000001\";\n\t\"transaction-id\" = \"1000000000000002\";\n\t"
                    + "\"product-id\" = \"com.example.game.coins6\";\n\t\"bid\" = \"com.example.game\";\n}"))
        #expect(receipt.transactionId == "1000000000000002")
        #expect(receipt.originalTransactionId == "1000000000000001")
        #expect(receipt.productId == "com.example.game.coins6")
        #expect(receipt.bundleId == "com.example.game")
        #expect(receipt.environment == "Sandbox")
    }

    @Test func `spaces, quotes and the trailing newline are free`() throws {
        for info in [
            "{\"transaction-id\"=\"7\";}", "{ \"transaction-id\"\t=\r\n\"7\" ; }\n",
            "{transaction-id = 7; a = \"\\\"}\";}",
        ] {
            #expect(try TransactionReceipt(base64: Self.receipt(info)).transactionId == "7", "\(info)")
        }
    }

    @Test(
        arguments: [
            ("", ReceiptFailure.notBase64), ("!", .notBase64), (base64("hello"), .notReceipt),
            (base64("{}"), .notReceipt),
            (base64("{\"purchase-info\" = \"?\";}"), .notBase64), (base64("{\"purchase-info\" = \"\";}"), .notBase64),
            (receipt("{"), .notReceipt), (receipt("{}"), .noPurchase),
            (receipt("{\"transaction-id\" = \"\";}"), .noPurchase),
            (receipt("{\"transaction-id\" = \"7\";"), .notReceipt),
            (receipt("{\"transaction-id\" = \"7\"}"), .notReceipt),
            (receipt("{\"transaction-id\" = \"../7\";}"), .notReceipt),
            (receipt("{\"transaction-id\" = \"7 8\";}"), .notReceipt),
            (receipt("{\"transaction-id\" = \"٧\";}"), .notReceipt),
            (receipt("{\"transaction-id\" = \"\\"), .notReceipt),
            (receipt("{\"transaction-id\" = \"7\"; \"transaction-id\" = \"8\";}"), .notReceipt),
            (
                receipt("{\"transaction-id\" = \"7\"; \"\(String(repeating: "\u{301}\u{316}", count: 16))\" = \"8\";}"),
                .notReceipt
            ),
            (receipt("{\"transaction-id\" = \"\(String(repeating: "7", count: 33))\";}"), .notReceipt),
            (receipt("{\"transaction-id\" = \"7\";} x"), .notReceipt),
            (String(repeating: "A", count: TransactionReceipt.base64BytesMax + 4), .tooLarge),
        ] as [(String, ReceiptFailure)])
    func `anything else is refused for what it is`(_ text: String, _ expected: ReceiptFailure) {
        #expect(throws: expected) { try TransactionReceipt(base64: text) }
    }

    @Test func `damage of chance never crashes`() {
        var random = SeededRandom(announcing: "damaged transaction receipts")
        let text = Array("{\"transaction-id\" = \"1000000000000002\"; \"a\" = b;}".utf8)
        for _ in 0..<5000 {
            let info = Data(random.damage(text)).base64EncodedString()
            let outer = random.damage(Array("{\"purchase-info\" = \"\(info)\";}".utf8))
            _ = try? TransactionReceipt(base64: Data(outer).base64EncodedString())
        }
    }
}
