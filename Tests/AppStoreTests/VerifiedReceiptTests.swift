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
