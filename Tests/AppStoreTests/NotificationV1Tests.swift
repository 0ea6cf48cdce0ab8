import Foundation
import Testing

@testable import AppStore
@testable import Encoding

// Goal: version 1 is read as Apple writes it (S3-48), a retry has the same identity and another notification another
// one, and the password is kept nowhere. Method: bodies as AppleFacts 5.3 spells them, with one change each.

@Suite struct NotificationV1Tests {
    private static func body(
        type: String = "DID_RENEW", environment: String = "PROD", receipt: String = "QUJD",
        entries: String = entry(), more: String = ""
    ) -> String {
        #"{"notification_type":"\#(type)","password":"secret","environment":"\#(environment)","#
            + #""bid":"com.example.game","bvrs":"1","original_transaction_id":1000000000000001,"auto_renew_product_id":"s","#
            + #""auto_renew_status":"false","unified_receipt":{"environment":"Production","status":0,"#
            + #""latest_receipt":"\#(receipt)","latest_receipt_info":[\#(entries)]}\#(more)}"#
    }

    private static func entry(purchasedAt: Int = 1_779_000_000_000, more: String = "") -> String {
        #"{"product_id":"s","transaction_id":"2","original_transaction_id":"1","#
            + #""purchase_date_ms":"\#(purchasedAt)","expires_date_ms":"1790000000000"\#(more)}"#
    }

    private func read(_ body: String) throws -> NotificationV1 {
        try NotificationV1(try #require(try JSON(parsing: Array(body.utf8)).object))
    }

    @Test func `every documented field is read`() throws {
        let notification = try read(
            Self.body(
                entries: Self.entry(more: #","is_upgraded":"true","cancellation_date_ms":"1780000000000""#),
                more: #","expiration_intent":2,"auto_renew_status_change_date_ms":"1781000000000""#))
        #expect(notification.notificationType == "DID_RENEW")
        #expect(notification.environment == .production)
        #expect(notification.bundleId == "com.example.game")
        #expect(notification.originalTransactionId == "1000000000000001")
        #expect(notification.autoRenewProductId == "s" && notification.autoRenewStatus == false)
        #expect(notification.autoRenewStatusChangeDate == Date(timeIntervalSince1970: 1_781_000_000))
        #expect(notification.expirationIntent == 2)
        #expect(notification.latestReceipt == "QUJD")
        #expect(notification.entries.count == 1 && notification.entries.first?.isUpgraded == true)
        #expect(notification.entries.first?.cancellationDate == Date(timeIntervalSince1970: 1_780_000_000))
    }

    @Test func `what was sent before 2021 is read, and an entry that nobody can read is left out`() throws {
        let old = try read(
            #"{"notification_type":"CANCEL","environment":"Sandbox","latest_expired_receipt":"QUJE","#
                + #""latest_expired_receipt_info":\#(Self.entry())}"#)
        #expect(old.environment == .sandbox && old.latestReceipt == "QUJE" && old.entries.count == 1)
        let odd = try read(Self.body(entries: #"{"product_id":"s"},"# + Self.entry()))
        #expect(odd.entries.map(\.transactionId) == ["2"])
        let none = try read(#"{"notification_type":"NEW"}"#)
        #expect(none.latestReceipt == nil && none.entries.isEmpty && none.environment == nil)
        #expect(throws: FieldMismatch.self) { try read(#"{"bid":"com.example.game"}"#) }
    }

    @Test func `a retry has the same identity, and another notification another one`() throws {
        let identity = try read(Self.body()).identity
        #expect(try read(Self.body(more: #","bvrs2":"9""#)).identity == identity)
        for other in [
            Self.body(type: "DID_RECOVER"), Self.body(environment: "Sandbox"), Self.body(receipt: "QUJE"),
            Self.body(entries: Self.entry(purchasedAt: 1_779_500_000_000)),
            Self.body(more: #","auto_renew_status_change_date_ms":"1781000000000""#),
        ] {
            #expect(try read(other).identity != identity)
        }
    }

    @Test func `the password is taken out at any depth, and nothing else is changed`() throws {
        func kept(_ body: String) throws -> String {
            NotificationV1.withoutPassword(try JSONValue(parsing: Array(body.utf8))).text
        }
        #expect(
            try kept(#"{"a":1.50,"password":"x","b":{"password":["y"],"c":null}}"#) == #"{"a":1.50,"b":{"c":null}}"#)
        #expect(try kept(#"{"p":[{"password":1},2]}"#) == #"{"p":[{},2]}"#)
        let body = Self.body()
        let once = try kept(body)
        #expect(!once.contains("secret") && !once.contains("password"))
        #expect(try kept(once) == once)
        #expect(try kept(body) == once)
    }
}
