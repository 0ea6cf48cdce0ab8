import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

// Goal: the simulator's receipts are PKCS#7 that a verifier with nothing but root.der believes, in every style, and
// verifyReceipt reads each of them. Method: the verifier of `AppStore`, the control API and verifyReceipt over HTTP.

@Suite struct ReceiptTests {
    private func verifier(_ store: RunningSimulator, app: String = "com.example.game") throws -> AppReceiptVerifier {
        AppReceiptVerifier(
            app: try AppIdentity(bundleId: app, environments: [.production, .sandbox]),
            anchors: try TrustAnchors(
                rootCertificates: [store.simulator.rootCertificateDER], acceptAppleRoots: false))
    }

    @Test(arguments: ["sha256", "sha1", "ber"]) func `each style is believed`(_ style: String) async throws {
        try await RunningSimulator.with { store in
            let first = try await store.sell(#"{"app":"com.example.game","productId":"coins","quantity":3}"#)
                .string("transactionId")
            let sale = try await store.sell(
                #"{"app":"com.example.game","productId":"pass","type":"Auto-Renewable Subscription","#
                    + #""purchaseDate":1700000000000,"webOrderLineItemId":"77","receiptOf":["\#(first)"],"#
                    + #""receiptStyle":"\#(style)"}"#)
            let receipt = try await verifier(store).receipt(sale.string("receipt"))
            #expect(receipt.environment == .production)
            #expect(abs(try #require(receipt.creationDate).timeIntervalSinceNow) < 60)
            #expect(try receipt.transactionIds() == [first, sale.string("transactionId")])
            #expect(receipt.inApp[0].quantity == 3 && receipt.inApp[0].productType == 1)
            #expect(!receipt.inApp[0].isAutoRenewable)
            let pass = receipt.inApp[1]
            #expect(pass.purchaseDate == Date(timeIntervalSince1970: 1_700_000_000))
            #expect(pass.expiresDate == Date(timeIntervalSince1970: 1_702_592_000))
            #expect(pass.webOrderLineItemId == "77" && pass.productType == 3 && pass.cancellationDate == nil)
            let secret = store.simulator.credentials.sharedSecret
            let answer = try await store.verifyReceipt(sale.string("receipt"), password: secret)
            #expect(answer.int("status") == 0)
            let latest = try await verifier(store).receipt(answer.string("latest_receipt"))
            #expect(try latest.transactionIds() == [first, sale.string("transactionId")])
        }
    }

    @Test func `what Xcode makes proves nothing`() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(#"{"app":"com.example.game","productId":"p","receiptStyle":"xcode"}"#)
            let receipt = sale.string("receipt")
            await #expect(throws: ReceiptFailure.notBelieved(.unsigned)) { try await verifier(store).receipt(receipt) }
            #expect(try await store.verifyReceipt(receipt).int("status") == 21003)
            #expect(try AppReceipt(unverified: receipt).transactionIds() == ["0"])
            let unknown = try await store.call(
                .POST, "/control/purchases", json: #"{"app":"a","productId":"p","receiptStyle":"md5"}"#)
            #expect(unknown.status == 400 && unknown.string("field") == "receiptStyle")
        }
    }

    @Test func `a receipt is a snapshot, verifyReceipt is today`() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(#"{"app":"com.example.game","productId":"p","environment":"Sandbox"}"#)
            let id = sale.string("transactionId")
            _ = try await store.call(.POST, "/control/purchases/\(id)/refund", json: "{}")
            let before = try await verifier(store).receipt(sale.string("receipt"))
            #expect(before.environment == .sandbox && before.inApp[0].cancellationDate == nil)
            let body = #"{"app":"com.example.game","environment":"Sandbox","transactionIds":["\#(id)"]"#
            let made = try await store.call(.POST, "/control/receipts", json: body + "}").string("receipt")
            #expect(try await verifier(store).receipt(made).inApp[0].cancellationDate != nil)
            let answer = try await store.verifyReceipt(sale.string("receipt"), "sandbox")
            let inApp = (answer.json["receipt"] as? [String: Any])?["in_app"] as? [[String: Any]]
            #expect(inApp?.first?["cancellation_date_ms"] != nil)
            let omitting = try await store.call(
                .POST, "/control/receipts", json: body + #","omitInApp":true,"receiptStyle":"sha1"}"#)
            #expect(try await verifier(store).receipt(omitting.string("receipt")).inApp.isEmpty)
            let omitted = try await store.verifyReceipt(omitting.string("receipt"), "sandbox")
            #expect((omitted.json["receipt"] as? [String: Any])?["in_app"] == nil)
            #expect(omitted.int("status") == 0)
        }
    }

    @Test func `other stores' receipts are refused, the same store's are not, after a restart either`() async throws {
        try await withFolder { folder in
            var receipts: [String] = []
            for _ in 0..<2 {
                try await RunningSimulator.with(SimulatorConfiguration(stateDirectory: folder, seed: 1)) { store in
                    receipts.append(
                        try await store.sell(#"{"app":"com.example.game","productId":"p"}"#).string("receipt"))
                    for receipt in receipts {
                        #expect(try await verifier(store).receipt(receipt).inApp.count == 1)
                        #expect(try await store.verifyReceipt(receipt).int("status") == 0)
                    }
                }
            }
            let receipt = receipts[0]
            try await RunningSimulator.with { other in
                let status = try await other.verifyReceipt(receipt).int("status")
                #expect(status == 21003)
                let verifier = try verifier(other)
                await #expect(throws: ReceiptFailure.notBelieved(.untrustedRoot)) {
                    try await verifier.receipt(receipt)
                }
            }
        }
    }
}
