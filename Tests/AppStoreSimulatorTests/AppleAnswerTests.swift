import AppStore
import AppStoreSimulator
import Crypto
import Foundation
import NIOHTTP1
import Testing

/// Goal: Apple's two endpoints answer as AppleFacts 3.3 and 5 say, field by field.
/// Method: real HTTP; receipts and tokens with one fault each.
@Suite struct AppleAnswerTests {
    @Test func aReceiptIsVerifiedFieldByField() async throws {
        try await RunningSimulator.with { store in
            // 2026-07-01 12:00:00 GMT is summer in Los Angeles, 2026-01-15 00:30:05 is not.
            let first = try await store.sell(
                #"{"app":"com.example.game","productId":"coins6","quantity":2,"purchaseDate":1782907200000}"#)
            let second = try await store.sell(
                #"{"app":"com.example.game","productId":"door","type":"Non-Consumable","purchaseDate":1768437005250,"#
                    + #""receiptOf":["\#(first.string("transactionId"))"]}"#)
            let answer = try await store.verifyReceipt(second.string("receipt"))
            #expect(answer.status == 200)
            #expect(answer.int("status") == 0)
            #expect(answer.string("environment") == "Production")
            #expect(answer.json["latest_receipt"] == nil)
            #expect(answer.json["latest_receipt_info"] == nil)
            let receipt = try #require(answer.json["receipt"] as? [String: Any])
            #expect(receipt["receipt_type"] as? String == "Production")
            #expect(receipt["bundle_id"] as? String == "com.example.game")
            #expect((receipt["adam_id"] as? Int ?? 0) > 0)
            #expect(receipt["adam_id"] as? Int == receipt["app_item_id"] as? Int)
            for name in ["receipt_creation_date", "request_date", "original_purchase_date"] {
                #expect((receipt[name] as? String)?.hasSuffix(" Etc/GMT") == true)
                #expect(Int64(receipt["\(name)_ms"] as? String ?? "") != nil)
                #expect((receipt["\(name)_pst"] as? String)?.hasSuffix(" America/Los_Angeles") == true)
            }
            let inApp = try #require(receipt["in_app"] as? [[String: String]])
            #expect(inApp.count == 2)
            #expect(
                inApp[0] == [
                    "quantity": "2", "product_id": "coins6", "transaction_id": first.string("transactionId"),
                    "original_transaction_id": first.string("transactionId"),
                    "purchase_date": "2026-07-01 12:00:00 Etc/GMT", "purchase_date_ms": "1782907200000",
                    "purchase_date_pst": "2026-07-01 05:00:00 America/Los_Angeles",
                    "original_purchase_date": "2026-07-01 12:00:00 Etc/GMT",
                    "original_purchase_date_ms": "1782907200000",
                    "original_purchase_date_pst": "2026-07-01 05:00:00 America/Los_Angeles",
                    "is_trial_period": "false", "in_app_ownership_type": "PURCHASED",
                ])
            #expect(inApp[1]["purchase_date"] == "2026-01-15 00:30:05 Etc/GMT")
            #expect(inApp[1]["purchase_date_pst"] == "2026-01-14 16:30:05 America/Los_Angeles")
        }
    }

    @Test func receiptsGoToTheirOwnEnvironment() async throws {
        try await RunningSimulator.with { store in
            let production = try await store.sell(#"{"app":"a","productId":"p"}"#).string("receipt")
            let sandbox = try await store.sell(#"{"app":"a","productId":"p","environment":"Sandbox"}"#)
            #expect(try await store.verifyReceipt(sandbox.string("receipt")).int("status") == 21007)
            #expect(try await store.verifyReceipt(production, "sandbox").int("status") == 21008)
            let answer = try await store.verifyReceipt(sandbox.string("receipt"), "sandbox")
            #expect(answer.int("status") == 0)
            #expect(answer.string("environment") == "Sandbox")
            let receipt = try #require(answer.json["receipt"] as? [String: Any])
            #expect(receipt["receipt_type"] as? String == "ProductionSandbox")
            #expect(receipt["adam_id"] as? Int == 0)
            #expect(receipt["original_purchase_date"] as? String == "2013-08-01 07:00:00 Etc/GMT")
            #expect(receipt["original_purchase_date_pst"] as? String == "2013-08-01 00:00:00 America/Los_Angeles")
        }
    }

    @Test func aMangledReceiptIsRefused() async throws {
        try await RunningSimulator.with { store in
            let receipt = try await store.sell(#"{"app":"a","productId":"p"}"#).string("receipt")
            var bytes = Array(try #require(Data(base64Encoded: receipt)))
            // The bundle id "a" stands in the signed content, behind its type (2) and version (1).
            let bundleId = try #require(
                bytes.firstRange(of: [0x02, 0x01, 0x02, 0x02, 0x01, 0x01, 0x04, 0x03, 0x0C, 0x01]))
            bytes[bundleId.upperBound] ^= 1
            #expect(try await store.verifyReceipt(Data(bytes).base64EncodedString()).int("status") == 21003)
            bytes[bundleId.upperBound] ^= 1
            #expect(try await store.verifyReceipt(Data(bytes).base64EncodedString()).int("status") == 0)
            #expect(try await store.verifyReceipt("AAAA" + receipt).int("status") == 21002)
            #expect(try await store.verifyReceipt(String(receipt.dropLast(8))).int("status") == 21002)
            #expect(try await store.verifyReceipt("not base64!").int("status") == 21002)
            #expect(try await store.verifyReceipt("").int("status") == 21002)
            for body in ["", "[]", "{}", #"{"receipt-data":5}"#, "{"] {
                let answer = try await store.call(.POST, "/production/verifyReceipt", json: body)
                #expect(answer.status == 200)
                #expect(answer.int("status") == 21002)
            }
            #expect(try await store.call(.GET, "/production/verifyReceipt").int("status") == 21000)
            let other = try await otherStoresReceipt()
            #expect(try await store.verifyReceipt(other).int("status") == 21003)
        }
    }

    private func otherStoresReceipt() async throws -> String {
        var receipt = ""
        try await RunningSimulator.with { store in
            receipt = try await store.sell(#"{"app":"a","productId":"p"}"#).string("receipt")
        }
        return receipt
    }

    @Test func aWrongSharedSecretIsToldOnlyWhereItMatters() async throws {
        try await RunningSimulator.with { store in
            let secret = store.simulator.credentials.sharedSecret
            let plain = try await store.sell(#"{"app":"a","productId":"p"}"#).string("receipt")
            #expect(try await store.verifyReceipt(plain).int("status") == 0)
            #expect(try await store.verifyReceipt(plain, password: secret).int("status") == 0)
            #expect(try await store.verifyReceipt(plain, password: "0").int("status") == 21004)
            let renewable = try await store.sell(
                #"{"app":"a","productId":"p","type":"Auto-Renewable Subscription"}"#
            ).string("receipt")
            #expect(try await store.verifyReceipt(renewable).int("status") == 21004)
            #expect(try await store.verifyReceipt(renewable, password: secret).int("status") == 0)
            _ = try await store.call(.POST, "/control/apps", json: #"{"app":"a","sharedSecret":"mine"}"#)
            #expect(try await store.verifyReceipt(plain, password: secret).int("status") == 21004)
            #expect(try await store.verifyReceipt(plain, password: "mine").int("status") == 0)
        }
    }

    @Test func subscriptionsStandInLatestReceiptInfo() async throws {
        try await RunningSimulator.with { store in
            let secret = store.simulator.credentials.sharedSecret
            let kind = #""app":"a","productId":"vip","type":"Auto-Renewable Subscription""#
            let first = try await store.sell(
                #"{\#(kind),"purchaseDate":1750000000000,"appAccountToken":"A1B2C3D4-0000-4000-8000-00000000ABCD"}"#)
            let original = first.string("transactionId")
            let second = try await store.sell(#"{\#(kind),"originalTransactionId":"\#(original)"}"#)
            let answer = try await store.verifyReceipt(first.string("receipt"), password: secret)
            let receipt = try #require(answer.json["receipt"] as? [String: Any])
            #expect((receipt["in_app"] as? [[String: String]])?.map { $0["transaction_id"] } == [original])
            let latest = answer.objects("latest_receipt_info")
            #expect(
                latest.map { $0["transaction_id"] as? String } == [original, second.string("transactionId")])
            #expect(latest[0]["app_account_token"] as? String == "a1b2c3d4-0000-4000-8000-00000000abcd")
            #expect(latest[0]["expires_date_ms"] as? String == String(1_750_000_000_000 + 30 * 86_400_000))
            #expect(latest[0]["web_order_line_item_id"] as? String != nil)
            let renewal = try #require(answer.objects("pending_renewal_info").first)
            #expect(renewal["auto_renew_status"] as? String == "1")
            #expect(renewal["original_transaction_id"] as? String == original)
            let newer = try await store.verifyReceipt(answer.string("latest_receipt"), password: secret)
            let newerReceipt = try #require(newer.json["receipt"] as? [String: Any])
            #expect((newerReceipt["in_app"] as? [Any])?.count == 2)
            let short = try await store.verifyReceipt(first.string("receipt"), password: secret, excludeOld: true)
            #expect(
                short.objects("latest_receipt_info").map { $0["transaction_id"] as? String }
                    == [second.string("transactionId")])
        }
    }

    @Test func receiptsCanBeComposed() async throws {
        try await RunningSimulator.with { store in
            let sold = try await store.sell(#"{"app":"a","productId":"p","count":3}"#)
            let ids = sold.objects("purchases").compactMap { $0["transactionId"] as? String }
            let mixed = try await store.call(
                .POST, "/control/receipts",
                json: #"{"app":"a","transactionIds":["\#(ids[2])","\#(ids[0])"],"bundleId":"b"}"#)
            let answer = try await store.verifyReceipt(mixed.string("receipt"))
            let receipt = try #require(answer.json["receipt"] as? [String: Any])
            #expect(receipt["bundle_id"] as? String == "b")
            #expect(
                (receipt["in_app"] as? [[String: String]])?.map { $0["transaction_id"] } == [ids[2], ids[0]])
            let empty = try await store.call(.POST, "/control/receipts", json: #"{"app":"a","transactionIds":[]}"#)
            let none = try await store.verifyReceipt(empty.string("receipt")).json["receipt"] as? [String: Any]
            #expect((none?["in_app"] as? [Any])?.count == 0)
            let missing = try await store.call(
                .POST, "/control/receipts", json: #"{"app":"a","transactionIds":[],"omitInApp":true}"#)
            let bare = try await store.verifyReceipt(missing.string("receipt")).json["receipt"] as? [String: Any]
            #expect(bare != nil && bare?["in_app"] == nil)
            let unknown = try await store.call(
                .POST, "/control/receipts", json: #"{"app":"a","transactionIds":["\#(ids[0])","9"]}"#)
            #expect(unknown.status == 404)
            #expect(unknown.string("field") == "transactionIds.1")
            let wrong = try await store.call(.POST, "/control/receipts", json: #"{"app":"a","transactionIds":"1"}"#)
            #expect(wrong.status == 400)
            #expect(wrong.string("field") == "transactionIds")
        }
    }

    @Test func aRefundShowsEverywhereAndCanBeTakenBack() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(#"{"app":"com.example.game","productId":"p"}"#)
            let id = sale.string("transactionId")
            let refund = try await store.call(
                .POST, "/control/purchases/\(id)/refund",
                json: #"{"revocationDate":1782907200000,"revocationReason":1,"revocationType":"REFUND_FULL"}"#)
            #expect(refund.status == 200)
            #expect(refund.json["revoked"] as? Bool == true)
            let info = try await store.transactionInfo(id)
            let token = try SignedTransaction(info.string("signedTransactionInfo"))
            #expect(token.int("revocationDate") == 1_782_907_200_000)
            #expect(token.int("revocationReason") == 1)
            #expect(token.string("revocationType") == "REFUND_FULL")
            let verified = try await store.verifyReceipt(sale.string("receipt"))
            let receipt = try #require(verified.json["receipt"] as? [String: Any])
            let entry = try #require((receipt["in_app"] as? [[String: String]])?.first)
            #expect(entry["cancellation_date"] == "2026-07-01 12:00:00 Etc/GMT")
            #expect(entry["cancellation_date_ms"] == "1782907200000")
            #expect(entry["cancellation_reason"] == "1")

            let reversed = try await store.call(.DELETE, "/control/purchases/\(id)/refund")
            #expect(reversed.json["revoked"] as? Bool == false)
            let again = try await store.transactionInfo(id)
            #expect(try SignedTransaction(again.string("signedTransactionInfo")).payload["revocationDate"] == nil)

            #expect(try await store.call(.POST, "/control/purchases/123/refund").status == 404)
            let wrong = try await store.call(
                .POST, "/control/purchases/\(id)/refund", json: #"{"revocationReason":7}"#)
            #expect(wrong.status == 400)
            #expect(wrong.string("field") == "revocationReason")
        }
    }

    @Test func transactionInfoKnowsAppAndEnvironment() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(#"{"app":"com.example.game","productId":"p"}"#)
            let id = sale.string("transactionId")
            let found = try await store.transactionInfo(id)
            #expect(found.status == 200)
            let token = try SignedTransaction(found.string("signedTransactionInfo"))
            #expect(try await token.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(token.string("transactionId") == id)
            for answer in [
                try await store.transactionInfo(id, "sandbox"),
                try await store.transactionInfo(id, bundleId: "com.example.other"),
                try await store.transactionInfo("4242"),
            ] {
                #expect(answer.status == 404)
                #expect(answer.int("errorCode") == 4_040_010)
                #expect(!answer.string("errorMessage").isEmpty)
            }
            let invalid = try await store.transactionInfo("abc")
            #expect(invalid.status == 400)
            #expect(invalid.int("errorCode") == 4_000_006)
        }
    }

    @Test func aBadTokenIsUnauthorized() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(#"{"app":"com.example.game","productId":"p"}"#)
            let id = sale.string("transactionId")
            let bundleId = "com.example.game"
            let now = Int(Date().timeIntervalSince1970)
            let good = try store.bearer(bundleId: bundleId, lifetime: 3600)
            #expect(try await store.transactionInfo(id, token: good).status == 200)
            let bad = [
                try store.bearer(bundleId: bundleId, issuer: "someone"),
                try store.bearer(bundleId: bundleId, keyId: "AAAAAAAAAA"),
                try store.bearer(bundleId: bundleId, audience: "other"),
                try store.bearer(bundleId: bundleId, lifetime: 3601),
                try store.bearer(bundleId: bundleId, issuedAt: now - 400, lifetime: 300),
                try store.bearer(bundleId: bundleId, key: P256.Signing.PrivateKey()),
                String(good.dropLast(4)), "a.b.c", "nonsense",
            ]
            for token in bad {
                #expect(try await store.transactionInfo(id, token: token).status == 401)
            }
            let none = try await store.call(.GET, "/production/inApps/v1/transactions/\(id)")
            #expect(none.status == 401)
        }
    }
}
