import AppStore
import AppStoreSimulator
import Foundation
import Logging
import NIOHTTP1
import Testing
import X509

/// Goal: every purchase is well formed, its ids are unique for ever, and all of it is in the ledger.
/// Method: the control API over HTTP; proofs are checked by code that shares nothing with the simulator.
@Suite struct SellingTests {
    @Test func aPurchaseComesWithAGenuineSignedTransaction() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(
                """
                {"app":"com.example.game","productId":"coins6","quantity":3,
                 "appAccountToken":"A1B2C3D4-0000-4000-8000-00000000ABCD"}
                """)
            let token = try SignedTransaction(sale.string("signedTransaction"))
            #expect(try await token.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(token.string("transactionId") == sale.string("transactionId"))
            #expect(token.string("originalTransactionId") == sale.string("transactionId"))
            #expect(token.string("bundleId") == "com.example.game")
            #expect(token.string("productId") == "coins6")
            #expect(token.string("type") == "Consumable")
            #expect(token.string("environment") == "Production")
            #expect(token.string("appAccountToken") == "a1b2c3d4-0000-4000-8000-00000000abcd")
            #expect(token.string("inAppOwnershipType") == "PURCHASED")
            #expect(token.string("transactionReason") == "PURCHASE")
            #expect(token.string("storefront") == "USA")
            #expect(token.string("storefrontId") == "143441")
            #expect(token.string("currency") == "USD")
            #expect(token.int("price") == 2970)
            #expect(token.int("quantity") == 3)
            #expect(token.int("purchaseDate") == token.int("originalPurchaseDate"))
            #expect(abs(Double(try #require(token.int("signedDate"))) / 1000 - Date().timeIntervalSince1970) < 10)
            #expect(token.payload["webOrderLineItemId"] == nil)
            #expect(token.payload["revocationDate"] == nil)
            #expect(token.payload["expiresDate"] == nil)
            let id = sale.string("transactionId")
            #expect(id.count == 15 && id.first != "0" && UInt64(id) != nil)
            #expect(sale.string("receipt").hasPrefix("MII"))

            let root = try await store.call(.GET, "/control/root.der")
            #expect(Array(root.body) == store.simulator.rootCertificateDER)
            let credentials = try await store.call(.GET, "/control/credentials")
            #expect(credentials.string("keyId") == store.simulator.credentials.keyId)
            #expect(credentials.string("privateKeyPEM").hasPrefix("-----BEGIN PRIVATE KEY-----"))
            #expect(try await store.call(.GET, "/health").status == 200)
        }
    }

    @Test func aSubscriptionHasItsOwnFields() async throws {
        try await RunningSimulator.with { store in
            let first = try await store.sell(
                #"{"app":"com.example.game","productId":"vip","type":"Auto-Renewable Subscription"}"#)
            let original = first.string("transactionId")
            let second = try await store.sell(
                #"{"app":"com.example.game","productId":"vip","type":"Auto-Renewable Subscription","#
                    + #""originalTransactionId":"\#(original)"}"#)
            let token = try SignedTransaction(second.string("signedTransaction"))
            #expect(token.string("originalTransactionId") == original)
            #expect(token.string("transactionReason") == "RENEWAL")
            #expect(token.string("webOrderLineItemId") != nil)
            #expect(token.string("subscriptionGroupIdentifier") != nil)
            #expect(token.int("expiresDate") == token.int("purchaseDate")! + 30 * 86_400_000)
        }
    }

    @Test func datesCanBeChosen() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sell(
                #"{"app":"a","productId":"p","purchaseDate":1750000000000,"signedDate":1750000001000}"#)
            let token = try SignedTransaction(sale.string("signedTransaction"))
            #expect(token.int("purchaseDate") == 1_750_000_000_000)
            #expect(token.int("signedDate") == 1_750_000_001_000)
            let fresh = try await store.call(
                .POST, "/control/purchases/\(sale.string("transactionId"))/sign", json: #"{"signedDate":1760000000000}"#
            )
            #expect(try SignedTransaction(fresh.string("signedTransaction")).int("signedDate") == 1_760_000_000_000)
            let unknown = try await store.call(.POST, "/control/purchases/1/sign")
            #expect(unknown.status == 404)
        }
    }

    @Test func manyAreSoldInOneCallAndTheLedgerHasThemAll() async throws {
        try await RunningSimulator.with { store in
            let sold = try await store.sell(#"{"app":"com.example.game","productId":"coins6","count":1100}"#)
            let ids = sold.objects("purchases").compactMap { $0["transactionId"] as? String }
            #expect(Set(ids).count == 1100)
            let bare = try await store.sell(#"{"app":"a","productId":"p","count":1,"receipts":false}"#)
            #expect(bare.objects("purchases").first?["receipt"] as? String == "")
            let refunded = try await store.call(.POST, "/control/purchases/\(ids[7])/refund")
            #expect(refunded.status == 200)

            let ledger = try await store.call(.GET, "/control/ledger")
            let purchases = ledger.objects("purchases")
            #expect(purchases.count == 1101)
            #expect(purchases.prefix(1100).compactMap { $0["transactionId"] as? String } == ids)
            #expect(purchases.allSatisfy { $0["valid"] as? Bool == true })
            #expect(purchases.filter { $0["revoked"] as? Bool == true }.count == 1)
            #expect(purchases[0]["app"] as? String == "com.example.game")
            #expect(purchases[0]["productId"] as? String == "coins6")
            #expect(purchases[0]["quantity"] as? Int == 1)
            #expect(purchases[0]["environment"] as? String == "Production")
            #expect(purchases[0]["type"] as? String == "Consumable")
            let calls = ledger.json["calls"] as? [String: Int]
            #expect(calls?.values.map { $0 } == SimulatedService.allCases.map { _ in 0 })
            #expect(try await store.call(.GET, "/control/ledger?skip=1100").objects("purchases").count == 1)
            #expect(try await store.call(.GET, "/control/ledger?skip=5000").objects("purchases").count == 0)
        }
    }

    @Test func aFullLedgerRefusesToSell() async throws {
        try await RunningSimulator.with(.init(purchasesMax: 2)) { store in
            _ = try await store.sell(#"{"app":"a","productId":"p","count":2}"#)
            let refused = try await store.call(.POST, "/control/purchases", json: #"{"app":"a","productId":"p"}"#)
            #expect(refused.status == 503)
        }
    }

    @Test func aRestartIsTheSameStore() async throws {
        try await withFolder { folder in
            var root: [UInt8] = []
            var sold: [String] = []
            var receipt = ""
            var secret = ""
            let configuration = SimulatorConfiguration(stateDirectory: folder, seed: 1)
            try await RunningSimulator.with(configuration) { store in
                root = store.simulator.rootCertificateDER
                secret = store.simulator.credentials.sharedSecret
                let many = try await store.sell(#"{"app":"com.example.game","productId":"p","count":5}"#)
                sold = many.objects("purchases").compactMap { $0["transactionId"] as? String }
                receipt = many.objects("purchases")[0]["receipt"] as? String ?? ""
                _ = try await store.call(.POST, "/control/purchases/\(sold[1])/refund")
                let named = try await store.call(
                    .POST, "/control/apps", json: #"{"app":"game","bundleId":"com.example.game","appAppleId":77}"#)
                #expect(named.status == 201)
            }
            // A crash while writing leaves a torn line.
            let handle = try #require(FileHandle(forWritingAtPath: "\(folder)/ledger.jsonl"))
            try handle.seekToEnd()
            try handle.write(contentsOf: Data(#"{"sold":{"transac"#.utf8))
            try handle.close()

            try await RunningSimulator.with(configuration) { store in
                #expect(store.simulator.rootCertificateDER == root)
                #expect(store.simulator.credentials.sharedSecret == secret)
                #expect(store.simulator.ledger.map(\.transactionId) == sold)
                #expect(store.simulator.ledger.map(\.revoked) == [false, true, false, false, false])
                let verified = try await store.verifyReceipt(receipt)
                #expect(verified.int("status") == 0)
                #expect((verified.json["receipt"] as? [String: Any])?["adam_id"] as? Int == 77)
                let next = try await store.sell(#"{"app":"game","productId":"p"}"#)
                #expect(!sold.contains(next.string("transactionId")))
                #expect(next.string("transactionId").prefix(6) == sold[0].prefix(6))
                let token = try SignedTransaction(next.string("signedTransaction"))
                #expect(token.string("bundleId") == "com.example.game")
                #expect(try await token.defect(root: root) == nil)
            }
            try await RunningSimulator.with(configuration) { store in
                #expect(store.simulator.ledger.count == 6)
            }
            let files = FileManager.default
            for name in ["root.key.pem", "intermediate.key.pem", "leaf.key.pem", "key.p8", "credentials.json"] {
                let attributes = try files.attributesOfItem(atPath: "\(folder)/\(name)")
                #expect((attributes[.posixPermissions] as? NSNumber)?.intValue == 0o600, "\(name)")
            }
            #expect(files.contents(atPath: "\(folder)/root.der").map { Array($0) } == root)
        }
    }

    @Test func twoSimulatorsOfOneFolderNeverSellAnIdTwice() async throws {
        try await withFolder { folder in
            let logger = Logger(label: "test")
            let first = try AppStoreSimulator(.init(stateDirectory: folder), logger: logger)
            let second = try AppStoreSimulator(.init(stateDirectory: folder), logger: logger)
            #expect(first.rootCertificateDER == second.rootCertificateDER)
            var request = SaleRequest(app: "a", productId: "p")
            request.count = 700
            request.receipts = false
            var ids: [String] = []
            for _ in 0..<2 {
                for simulator in [first, second] {
                    ids += try await simulator.sell(request).map(\.purchase.transactionId)
                }
            }
            #expect(Set(ids).count == 2800)
            let third = try AppStoreSimulator(.init(stateDirectory: folder), logger: logger)
            #expect(third.ledger.count == 2800)
            let other = try AppStoreSimulator(.init(), logger: logger)
            let foreign = try await other.sell(request).map(\.purchase.transactionId)
            #expect(Set(foreign).isDisjoint(with: ids))
        }
    }

    @Test func eachForgeryHasExactlyItsDefect() async throws {
        try await RunningSimulator.with { store in
            let expected: [Forgery.Kind: String] = [
                .foreignRoot: "chain", .signature: "signature", .swappedPayload: "signature", .algorithmNone: "alg",
                .expiredLeaf: "expired", .missingLeafMarker: "leaf oid",
                .missingIntermediateMarker: "intermediate oid", .chainLength: "chain length",
                .longChain: "chain length", .plainIntermediate: "chain", .junkCertificate: "certificate",
                .algorithmHMAC: "alg", .algorithmRSA: "alg", .algorithmP384: "alg", .signatureInDER: "signature",
            ]
            for kind in Forgery.Kind.allCases {
                let forged = try await store.call(
                    .POST, "/control/forgeries", json: #"{"kind":"\#(kind.rawValue)","app":"com.example.game"}"#)
                #expect(forged.status == 201, "\(forged.text)")
                let token = try SignedTransaction(forged.string("signedTransaction"))
                #expect(
                    try await token.defect(root: store.simulator.rootCertificateDER) == expected[kind], "\(kind)")
                #expect(token.string("transactionId") == forged.string("transactionId"))
                let wrong = kind == .wrongBundle
                #expect(token.string("bundleId") == (wrong ? "com.example.game.counterfeit" : "com.example.game"))
                if kind == .expiredLeaf {
                    // It is good except for the date.
                    let date = token.chain[0].notValidAfter - 60
                    #expect(try await token.defect(root: store.simulator.rootCertificateDER, at: date) == nil)
                }
            }
            let ledger = try await store.call(.GET, "/control/ledger")
            #expect(ledger.objects("purchases").isEmpty)
            #expect(ledger.objects("forgeries").count == Forgery.Kind.allCases.count)
        }
    }

    @Test(arguments: [
        (#"{"productId":"p"}"#, "app"),
        (#"{"app":"a"}"#, "productId"),
        (#"{"app":"a","productId":5}"#, "productId"),
        (#"{"app":"a","productId":""}"#, "productId"),
        (#"{"app":"a\u0000","productId":"p"}"#, "app"),
        (#"{"app":"a","productId":"p","quantity":"2"}"#, "quantity"),
        (#"{"app":"a","productId":"p","quantity":11}"#, "quantity"),
        (#"{"app":"a","productId":"p","quantity":1.5}"#, "quantity"),
        (#"{"app":"a","productId":"p","qty":2}"#, "qty"),
        (#"{"app":"a","productId":"p","appAccountToken":"x"}"#, "appAccountToken"),
        (#"{"app":"a","productId":"p","environment":"Xcode"}"#, "environment"),
        (#"{"app":"a","productId":"p","environment":"production"}"#, "environment"),
        (#"{"app":"a","productId":"p","type":"Coin"}"#, "type"),
        (#"{"app":"a","productId":"p","count":10001}"#, "count"),
        (#"{"app":"a","productId":"p","count":0}"#, "count"),
        (#"{"app":"a","productId":"p","purchaseDate":-1}"#, "purchaseDate"),
        (#"{"app":"a","productId":"p","originalTransactionId":"abc"}"#, "originalTransactionId"),
        (#"{"app":"a","productId":"p","receiptOf":["1",2]}"#, "receiptOf.1"),
    ])
    func aWrongSaleNamesItsField(body: String, field: String) async throws {
        try await RunningSimulator.with { store in
            let refused = try await store.call(.POST, "/control/purchases", json: body)
            #expect(refused.status == 400)
            #expect(refused.string("field") == field)
            #expect(!refused.string("error").isEmpty)
            #expect(store.simulator.ledger.isEmpty)
        }
    }

    @Test(arguments: ["", "[]", "nonsense", "{", "null", "\"text\""])
    func aBodyThatIsNoObjectIsRefused(body: String) async throws {
        try await RunningSimulator.with { store in
            let refused = try await store.call(.POST, "/control/purchases", json: body)
            #expect(refused.status == 400)
            #expect(!refused.string("error").isEmpty)
        }
    }
}
