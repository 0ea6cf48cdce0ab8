import Foundation
import TestRandom
import Testing

@testable import AppStore
@testable import Encoding

// Goal: every purchase that a receipt lists is returned once, whatever order and spelling Apple chose (requirements
// P19, P21). Method: answers as text, read by the same initializer that the client uses.

@Suite struct VerifiedReceiptTests {
    private func read(_ receipt: String, _ rest: String = "") throws -> VerifiedReceipt {
        let answer = #"{"status":0,"receipt":\#(receipt)\#(rest)}"#
        let fields = try #require(try JSON(parsing: Array(answer.utf8)).object)
        return try VerifiedReceipt(fields, askedIn: .production)
    }

    private static func entry(_ id: String, _ rest: String = "") -> String {
        #"{"transaction_id":"\#(id)","product_id":"p.\#(id)","quantity":"1","purchase_date_ms":"1000"\#(rest)}"#
    }

    private static func renewal(_ id: String, of original: String, _ rest: String = "") -> String {
        let period = #","web_order_line_item_id":"w\#(id)","expires_date_ms":"2000""#
        return entry(id, #","original_transaction_id":"\#(original)"\#(period)\#(rest)"#)
    }

    @Test func `every field is read, as string or as number`() throws {
        for quote in ["\"", ""] {
            let entry = """
                {"transaction_id":\(quote)1\(quote),"product_id":"p","quantity":\(quote)3\(quote),
                "original_transaction_id":\(quote)2\(quote),"purchase_date_ms":\(quote)1000\(quote),
                "original_purchase_date_ms":\(quote)2000\(quote),"expires_date_ms":\(quote)3000\(quote),
                "cancellation_date_ms":\(quote)4000\(quote),"cancellation_reason":\(quote)1\(quote),
                "web_order_line_item_id":\(quote)5\(quote),"is_upgraded":\(quote)true\(quote),
                "is_trial_period":\(quote)false\(quote),"is_in_intro_offer_period":\(quote)1\(quote),
                "app_account_token":"7E3FB204-6E3A-4C5E-9F0A-0123456789AB","in_app_ownership_type":"FAMILY_SHARED",
                "promotional_offer_id":"o","offer_code_ref_name":"c","subscription_group_identifier":\(quote)6\(quote),"new":[]}
                """
            let receipt = try read(
                """
                {"bundle_id":"b","request_date_ms":\(quote)5000\(quote),"receipt_creation_date_ms":"6000",
                "in_app":[\(entry)]}
                """, #","environment":"Sandbox","latest_receipt":"TUlJ""#)
            #expect(receipt.environment == .sandbox)
            #expect(receipt.bundleId == "b")
            #expect(receipt.requestDate == Date(timeIntervalSince1970: 5))
            #expect(receipt.creationDate == Date(timeIntervalSince1970: 6))
            #expect(receipt.latestReceipt == "TUlJ")
            let read = try #require(receipt.entries.first)
            #expect(read.transactionId == "1")
            #expect(read.quantity == 3)
            #expect(read.originalTransactionId == "2")
            #expect(read.purchaseDate == Date(timeIntervalSince1970: 1))
            #expect(read.originalPurchaseDate == Date(timeIntervalSince1970: 2))
            #expect(read.expiresDate == Date(timeIntervalSince1970: 3))
            #expect(read.cancellationDate == Date(timeIntervalSince1970: 4))
            #expect(read.cancellationReason == 1)
            #expect(read.webOrderLineItemId == "5")
            #expect(read.isUpgraded == true)
            #expect(read.isTrialPeriod == false)
            #expect(read.isInIntroOfferPeriod == true)
            #expect(read.appAccountToken == UUID(uuidString: "7e3fb204-6e3a-4c5e-9f0a-0123456789ab"))
            #expect(read.ownershipType == "FAMILY_SHARED")
            #expect(read.promotionalOfferId == "o")
            #expect(read.offerCodeRefName == "c")
            #expect(read.subscriptionGroupIdentifier == "6")
        }
    }

    @Test func `P19: an empty list and a missing one are genuine and hold nothing`() throws {
        let empty = try read(#"{"in_app":[]}"#)
        #expect(empty.inApp == [])
        #expect(empty.entries == [])
        let missing = try read("{}")
        #expect(missing.inApp == nil)
        #expect(missing.latestReceiptInfo == nil)
        #expect(missing.entries == [])
        #expect(missing.environment == .production, "an answer that does not say is from where we asked")
    }

    @Test func `auto-renewables come from latest_receipt_info, the rest from both`() throws {
        let latest = [
            Self.renewal("1", of: "s1", #","cancellation_date_ms":"1500""#), Self.renewal("2", of: "s1"),
            Self.entry("forever"),
        ]
        let receipt = try read(
            #"{"in_app":[\#(Self.entry("coins")),\#(Self.renewal("old", of: "s1")),\#(Self.renewal("1", of: "s1"))]}"#,
            #","latest_receipt_info":[\#(latest.joined(separator: ","))]"#
        )
        #expect(receipt.entries.map(\.transactionId) == ["1", "2", "coins", "forever"])
        #expect(receipt.entries[0].cancellationDate == Date(timeIntervalSince1970: 1.5))
    }

    @Test func `a subscription that latest_receipt_info does not know at all is not lost`() throws {
        for latest in ["", #","latest_receipt_info":[]"#, #","latest_receipt_info":[\#(Self.renewal("9", of: "s2"))]"#]
        {
            let entries = try read(#"{"in_app":[\#(Self.renewal("1", of: "s1"))]}"#, latest).entries
            #expect(entries.contains { $0.transactionId == "1" })
        }
    }

    @Test func `a refund in either list is not overlooked`() throws {
        let refunded = Self.entry("1", #","cancellation_date_ms":"1500""#)
        for (inApp, latest) in [(Self.entry("1"), refunded), (refunded, Self.entry("1"))] {
            let entries = try read(#"{"in_app":[\#(inApp)]}"#, #","latest_receipt_info":[\#(latest)]"#).entries
            #expect(entries.count == 1)
            #expect(entries[0].cancellationDate != nil)
        }
    }

    // MARK: Shapes of old answers

    /// Apple's answer for a receipt of iOS 6 style.
    private static let flat =
        #"{"bid":"com.example.game","bvrs":"20120427","item_id":"521129812","quantity":"1","product_id":"p","#
        + #""transaction_id":"1000000046178817","original_transaction_id":"1000000046178817","#
        + #""purchase_date":"2012-04-30 15:05:55 Etc/GMT","purchase_date_ms":"1335798355868","#
        + #""purchase_date_pst":"2012-04-30 08:05:55 America/Los_Angeles","#
        + #""original_purchase_date":"2012-04-30 15:05:55 Etc/GMT""#

    @Test func `F1: a flat receipt of iOS 6 is one purchase`() throws {
        let receipt = try read(Self.flat + "}")
        #expect(receipt.bundleId == "com.example.game" && receipt.environment == .production)
        let entry = try #require(receipt.entries.first)
        #expect(receipt.entries.count == 1 && receipt.inApp == nil)
        #expect(entry.transactionId == "1000000046178817" && entry.productId == "p" && entry.quantity == 1)
        #expect(entry.purchaseDate == Date(timeIntervalSince1970: 1_335_798_355.868))
        #expect(entry.originalPurchaseDate == Date(timeIntervalSince1970: 1_335_798_355))
        #expect(!entry.isAutoRenewable)

        let beside = try read(Self.flat + #","in_app":[\#(Self.entry("7"))]}"#)
        #expect(Set(beside.entries.map(\.transactionId)) == ["7", "1000000046178817"])
        let both = try read(Self.flat + #","bundle_id":"com.example.game","in_app":[]}"#)
        #expect(both.entries.count == 1 && both.bundleId == "com.example.game")
    }

    @Test func `F1: a period of a flat receipt is not lost beside the latest one, whatever the status`() throws {
        let period = Self.flat + #","expires_date":"1338390355868","web_order_line_item_id":"9"}"#
        for name in ["latest_receipt_info", "latest_expired_receipt_info"] {
            let later =
                #"{"bid":"com.example.game","product_id":"p","transaction_id":"1000000046178999","#
                + #""original_transaction_id":"1000000046178817","purchase_date_ms":"1338390355868","#
                + #""expires_date":"1341068755868","expires_date_formatted":"2012-06-30 15:05:55 Etc/GMT"}"#
            let entries = try read(period, #","\#(name)":\#(later)"#).entries
            #expect(entries.map(\.transactionId) == ["1000000046178817", "1000000046178999"], "\(name)")
            #expect(entries.map(\.isAutoRenewable) == [true, true])
            #expect(entries[1].expiresDate == Date(timeIntervalSince1970: 1_341_068_755.868))
        }
    }

    @Test(arguments: [
        (#""2012-04-30 15:05:55 Etc/GMT""#, 1_335_798_355.0), (#""2012-04-30 15:05:55 GMT""#, 1_335_798_355),
        (#""2012-04-30 08:05:55 America/Los_Angeles""#, 1_335_798_355),
        (#""2012-12-30 07:05:55 America/Los_Angeles""#, 1_356_879_955),
        // This hour was there twice.
        (#""2012-11-04 01:30:00 America/Los_Angeles""#, nil), (#""2012-04-30 15:05:55""#, nil),
        (#""2012-04-30 15:05:55 Nowhere""#, nil), (#""2012-04-31 15:05:55 Etc/GMT""#, nil),
        (#""1335798355868""#, 1_335_798_355.868), ("1335798355868", 1_335_798_355.868), ("{}", nil), ("true", nil),
    ])
    func `F15: a date is read from any spelling of Apple's`(_ value: String, _ seconds: Double?) throws {
        let entry = #"{"transaction_id":"1","product_id":"p","purchase_date":\#(value)}"#
        let read = try read(#"{"in_app":[\#(entry)]}"#).entries
        #expect(read.map(\.purchaseDate) == [seconds.map { Date(timeIntervalSince1970: $0) }])
    }

    @Test func `F14: a list may be one object, text, null or absent`() throws {
        let one = Self.entry("1")
        let text = String(decoding: JSON.string("[\(one)]").bytes, as: UTF8.self)
        let objectText = String(decoding: JSON.string(one).bytes, as: UTF8.self)
        for list in ["[\(one)]", one, text, objectText, #"{"0":\#(one)}"#, "[\(objectText)]", "[null,\(one)]"] {
            #expect(try read(#"{"in_app":\#(list)}"#).entries.map(\.transactionId) == ["1"], "\(list)")
            let latest = try read(
                #"{"in_app":[]}"#, #","latest_receipt_info":\#(list),"pending_renewal_info":\#(list)"#)
            #expect(latest.entries.map(\.transactionId) == ["1"], "\(list)")
        }
        for nothing in ["null", #""""#, "[]", "{}", #""null""#, #""[]""#] {
            #expect(try read(#"{"in_app":\#(nothing)}"#, #","latest_receipt_info":\#(nothing)"#).entries == [])
        }
        for unreadable in ["7", "true", #""x""#, "[7]", #"["x"]"#, #""[7]""#] {
            #expect(throws: FieldMismatch.self, "\(unreadable)") { try read(#"{"in_app":\#(unreadable)}"#) }
        }
        // One latest period says nothing of the others.
        let periods = [Self.renewal("1", of: "s"), Self.renewal("2", of: "s")].joined(separator: ",")
        let kept = try read(#"{"in_app":[\#(periods)]}"#, #","latest_receipt_info":\#(Self.renewal("3", of: "s"))"#)
        #expect(kept.entries.map(\.transactionId) == ["1", "2", "3"])
    }

    @Test func `F15: a field that cannot be read costs no purchase, and makes no other one`() throws {
        let fields = [
            "quantity", "original_transaction_id", "original_purchase_date_ms", "expires_date_ms",
            "cancellation_reason",
            "web_order_line_item_id", "app_account_token", "in_app_ownership_type", "is_upgraded", "is_trial_period",
            "is_in_intro_offer_period", "promotional_offer_id", "subscription_group_identifier", "purchase_date_ms",
        ]
        for field in fields {
            for value in ["{}", "[]", "true", "0.5", "99999999999999999999", #""x""#, "null"] {
                let entry = #"{"transaction_id":"1","product_id":"p","\#(field)":\#(value)}"#
                let read = try read(#"{"in_app":[\#(entry)]}"#).entries
                #expect(read.map(\.transactionId) == ["1"] && read.map(\.productId) == ["p"], "\(field) \(value)")
                #expect(read[0].originalTransactionId.map { $0 == "x" } ?? true, "no number is rounded into an id")
            }
        }
        for field in ["transaction_id", "product_id", "cancellation_date_ms"] {
            for value in ["{}", "true", "1.5e300"] {
                let rest = ["transaction_id", "product_id"].filter { $0 != field }.map { #","\#($0)":"1""# }.joined()
                let answer = #"{"in_app":[{"\#(field)":\#(value)\#(rest)}]}"#
                #expect(throws: FieldMismatch.self, "\(field) \(value)") { try read(answer) }
            }
        }
        // A period whose end cannot be read is a period all the same.
        let period = #"{"transaction_id":"1","product_id":"p","expires_date_ms":{}}"#
        #expect(try read(#"{"in_app":[\#(period)]}"#).entries.first?.isAutoRenewable == true)
    }

    @Test(arguments: [
        ("", "", StoreEnvironment.production), (#","environment":"Sandbox""#, "", .sandbox),
        (#","environment":"PROD""#, "", .production), (#","environment":7"#, "", .production),
        ("", #""receipt_type":"ProductionSandbox""#, .sandbox), ("", #""receipt_type":"Moon""#, .production),
    ])
    func `F23: the environment is the answer's, the receipt's or the host's`(
        _ answer: String, _ receipt: String, _ expected: StoreEnvironment
    ) throws {
        #expect(try read("{\(receipt)}", answer).environment == expected)
    }

    @Test func `P21: shuffled arrays give the same result`() throws {
        var random = SeededRandom(announcing: "shuffled arrays")
        let seed = random.seed
        let consumables = (0..<20).map { Self.entry("c\($0)") }
        let renewals = (0..<20).map { Self.renewal("r\($0)", of: "s\($0 % 3)") }
        let known = renewals + [Self.entry("c1", #","cancellation_date_ms":"1500""#), Self.entry("c2")]
        func entries(_ inApp: [String], _ latest: [String]) throws -> [ReceiptEntry] {
            try read(
                #"{"in_app":[\#(inApp.joined(separator: ","))]}"#,
                #","latest_receipt_info":[\#(latest.joined(separator: ","))]"#
            ).entries
        }
        let expected = try entries(consumables + renewals, known)
        #expect(expected.count == 40)
        for _ in 0..<50 {
            let shuffled = try entries(
                (consumables + renewals).shuffled(using: &random), known.shuffled(using: &random))
            #expect(shuffled == expected, "seed \(seed)")
        }
    }
}
