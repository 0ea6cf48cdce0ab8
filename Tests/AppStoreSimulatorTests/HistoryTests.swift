import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: the histories of purchases and refunds answer as AppleFacts 3.3 and 3.4 say: pages, filters, errors.
/// Method: real HTTP; signed data is checked by code that shares nothing with the simulator.
@Suite struct HistoryTests {
    /// Reads all pages of a history; returns their purchases and the number of pages.
    private func walk(
        _ store: RunningSimulator,
        _ path: String,
        query: String = "",
        betweenPages: (Int) async throws -> Void = { _ in }
    ) async throws -> (tokens: [SignedTransaction], pages: Int, revision: String) {
        var tokens: [SignedTransaction] = []
        var pages = 0
        var revision = ""
        while true {
            let parts = [query, revision.isEmpty ? "" : "revision=\(revision)"].filter { !$0.isEmpty }
            let answer = try await store.api(
                .GET, path + (parts.isEmpty ? "" : "?" + parts.joined(separator: "&")))
            try #require(answer.status == 200, "\(answer.text)")
            let page = try answer.payloads()
            #expect(page.count <= 20)
            tokens += page
            pages += 1
            revision = answer.string("revision")
            #expect(!revision.isEmpty)
            guard answer.json["hasMore"] as? Bool == true else { return (tokens, pages, revision) }
            #expect(page.count == 20)
            try await betweenPages(pages)
        }
    }

    @Test func fortyFivePurchasesAreThreePagesAndARefundBetweenThemComesAgain() async throws {
        try await RunningSimulator.with { store in
            let sold = try await store.sold(#""customer":"ann","count":45,"receipts":false"#)
            let ids = sold.objects("purchases").compactMap { $0["transactionId"] as? String }
            _ = try await store.sold(#""customer":"bob""#)
            let (tokens, pages, revision) = try await walk(store, "v2/history/\(ids[7])") { page in
                if page == 1 { try await store.control(.POST, "purchases/\(ids[3])/refund") }
            }
            #expect(pages == 3)
            // The refund moved the fourth purchase to the end: it arrives again, now revoked.
            #expect(tokens.map { $0.string("transactionId") } == ids + [ids[3]])
            #expect(tokens.map { $0.payload["revocationDate"] != nil } == Array(repeating: false, count: 45) + [true])
            #expect(try await tokens[45].defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(tokens.allSatisfy { $0.string("appTransactionId") == tokens[0].string("appTransactionId") })

            // A caller can use the last revision again, for later changes.
            let nothing = try await store.api(.GET, "v2/history/\(ids[0])?revision=\(revision)")
            #expect(try nothing.payloads().isEmpty)
            #expect(nothing.string("revision") == revision)
            let later = try await store.sold(#""customer":"ann""#)
            let news = try await store.api(.GET, "v2/history/\(ids[0])?revision=\(revision)")
            #expect(try news.payloads().map { $0.string("transactionId") } == [later.string("transactionId")])
            #expect(news.string("bundleId") == "com.example.game")
            #expect(news.string("environment") == "Production")
            #expect((news.int("appAppleId") ?? 0) > 0)
        }
    }

    @Test func theNewestComesFirstOnDemandAndFinishedConsumablesLeaveVersion1() async throws {
        try await RunningSimulator.with { store in
            let sold = try await store.sold(#""customer":"ann","count":21"#)
            let ids = sold.objects("purchases").compactMap { $0["transactionId"] as? String }
            let (tokens, pages, _) = try await walk(store, "v2/history/\(ids[0])", query: "sort=DESCENDING")
            #expect(pages == 2)
            #expect(tokens.map { $0.string("transactionId") } == ids.reversed())
            #expect(try await store.api(.POST, "v1/transactions/\(ids[5])/finish").status == 200)
            let old = try await walk(store, "v1/history/\(ids[0])").tokens.map { $0.string("transactionId") }
            #expect(old == ids.filter { $0 != ids[5] })
            #expect(try await walk(store, "v2/history/\(ids[0])").tokens.count == 21)
        }
    }

    @Test func filtersAreOrWithinAndAndBetween() async throws {
        try await RunningSimulator.with { store in
            let ann = #""customer":"ann""#
            func sell(_ product: String, _ type: String, _ date: Int, _ more: String = "") async throws -> String {
                try await store.sell(
                    #"{"app":"com.example.game","productId":"\#(product)","type":"\#(type)","purchaseDate":\#(date),"#
                        + "\(ann)\(more)}"
                ).string("transactionId")
            }
            let coin = try await sell("coin", "Consumable", 1000)
            let door = try await sell("door", "Non-Consumable", 2000)
            let vip = try await sell(
                "vip", "Auto-Renewable Subscription", 3000, #","subscriptionGroupIdentifier":"77""#)
            let pass = try await sell("pass", "Non-Renewing Subscription", 4000)
            let shared = try await sell(
                "support_decision", "Non-Consumable", 5000, #","inAppOwnershipType":"FAMILY_SHARED""#)
            try await store.control(.POST, "purchases/\(pass)/refund")
            // The refund moved `pass` to the end.
            let expected: [(String, [String])] = [
                ("", [coin, door, vip, shared, pass]),
                ("productId=coin&productId=vip", [coin, vip]),
                ("productType=CONSUMABLE&productType=AUTO_RENEWABLE", [coin, vip]),
                ("productType=NON_CONSUMABLE", [door, shared]), ("productType=NON_RENEWABLE", [pass]),
                ("subscriptionGroupIdentifier=77", [vip]),
                ("startDate=2000&endDate=4000", [door, vip]),
                ("startDate=2000&productId=coin", []),
                ("inAppOwnershipType=FAMILY_SHARED", [shared]), ("inAppOwnershipType=ASSIGNED", []),
                ("revoked=true", [pass]), ("revoked=false", [coin, door, vip, shared]),
                ("excludeRevoked=true", [coin, door, vip, shared]),
                ("endDate=99999999999999", [coin, door, vip, shared, pass]),
            ]
            for (query, ids) in expected {
                let answer = try await store.api(.GET, "v2/history/\(coin)?\(query)")
                #expect(try answer.payloads().map { $0.string("transactionId") } == ids, "\(query)")
            }
            let revision = try await store.api(.GET, "v2/history/\(coin)?revoked=true").string("revision")
            let refused: [(String, String)] = [
                ("startDate=x", "400 4000015"), ("startDate=-1", "400 4000015"), ("endDate=x", "400 4000016"),
                ("sort=UP", "400 4000021"), ("productType=Consumable", "400 4000022"), ("productId=", "400 4000023"),
                ("subscriptionGroupIdentifier=", "400 4000024"), ("excludeRevoked=1", "400 4000025"),
                ("inAppOwnershipType=MINE", "400 4000026"), ("revoked=maybe", "400 4000030"),
                ("revision=1", "400 4000005"), ("revision=\(revision)", "400 4000005"),
            ]
            for (query, refusal) in refused {
                #expect(try await store.api(.GET, "v2/history/\(coin)?\(query)").refusal == refusal, "\(query)")
            }
            #expect(try await store.api(.GET, "v2/history/\(coin)?revoked=true&revision=\(revision)").status == 200)
        }
    }

    @Test func anyIdOfTheCustomerWillDoAndNobodyElses() async throws {
        try await RunningSimulator.with { store in
            let kind = #""type":"Auto-Renewable Subscription""#
            let first = try await store.sold("\(kind)")
            let original = first.string("transactionId")
            let renewal = try await store.sold(#"\#(kind),"originalTransactionId":"\#(original)""#)
            let appTransaction = first.string("appTransactionId")
            #expect(appTransaction.count == 18 && appTransaction == renewal.string("appTransactionId"))
            for path in ["v2/history", "v2/refund/lookup", "v1/subscriptions", "v1/transactions/appTransactions"] {
                for id in [original, renewal.string("transactionId"), appTransaction] {
                    #expect(try await store.api(.GET, "\(path)/\(id)").status == 200, "\(path) \(id)")
                }
                #expect(try await store.api(.GET, "\(path)/abc").refusal == "400 4000006")
                #expect(try await store.api(.GET, "\(path)/4242").refusal == "404 4040010")
                #expect(try await store.api(.GET, "\(path)/700\(renewal.string("transactionId"))").status == 404)
                #expect(try await store.api(.GET, "\(path)/\(original)", "sandbox").refusal == "404 4040010")
                let bare = try await store.call(.GET, "/production/inApps/\(path)/\(original)")
                #expect(bare.status == 401)
            }
            for path in ["v2/history", "v1/subscriptions"] {
                let unknown = try await store.api(.GET, "\(path)/\(original)", bundleId: "com.example.nothing")
                #expect(unknown.refusal == "404 4040003")
                let invalid = try await store.api(.GET, "\(path)/\(original)", bundleId: "not an app")
                #expect(invalid.refusal == "400 4000002")
            }
            _ = try await store.sell(#"{"app":"com.example.other","productId":"p"}"#)
            let foreign = try await store.api(.GET, "v2/history/\(original)", bundleId: "com.example.other")
            #expect(foreign.refusal == "404 4040010")
            #expect(try await store.transactionInfo(appTransaction).refusal == "400 4000048")

            // An account that is gone, and an app transaction that does not exist.
            _ = try await store.sold(#""customer":"ann""#)
            let ann = try await store.control(.GET, "customers?app=com.example.game&customer=ann")
            let id = try #require((ann.json["transactionIds"] as? [String])?.first)
            try await store.control(
                .POST, "customers",
                #"{"app":"com.example.game","customer":"ann","account":false,"appTransaction":false}"#)
            #expect(try await store.api(.GET, "v2/history/\(id)").refusal == "404 4040001")
            #expect(try await store.api(.GET, "v1/subscriptions/\(id)").refusal == "404 4040001")
            let none = try await store.api(.GET, "v1/transactions/appTransactions/\(id)")
            #expect(none.refusal == "404 4040019")
        }
    }

    @Test func refundsArePagedByTheirDateAndAReversalTakesOneOut() async throws {
        try await RunningSimulator.with { store in
            let sold = try await store.sold(#""customer":"ann","count":45"#)
            let ids = sold.objects("purchases").compactMap { $0["transactionId"] as? String }
            let empty = try await store.api(.GET, "v2/refund/lookup/\(ids[0])")
            #expect(empty.json["hasMore"] as? Bool == false)
            #expect((empty.json["signedTransactions"] as? [Any])?.count == 0)
            // Refunded in reverse order: the last purchase has the earliest date.
            for (index, id) in ids.enumerated() {
                try await store.control(
                    .POST, "purchases/\(id)/refund", #"{"revocationDate":\#(1_800_000_000_000 - index)}"#)
            }
            let all = try await walk(store, "v2/refund/lookup/\(ids[0])")
            #expect(all.pages == 3)
            #expect(all.tokens.map { $0.string("transactionId") } == ids.reversed())
            try await store.control(.DELETE, "purchases/\(ids[44])/refund")
            let rest = try await walk(store, "v2/refund/lookup/\(ids[0])").tokens
            #expect(rest.map { $0.string("transactionId") } == ids.dropLast().reversed())
            let history = try await walk(store, "v2/history/\(ids[0])").tokens
            #expect(history.last?.string("transactionId") == ids[44])
            #expect(history.last?.payload["revocationDate"] == nil)
            #expect(try await store.api(.GET, "v2/refund/lookup/\(ids[0])?revision=x").refusal == "400 4000005")
            let old = try await store.api(.GET, "v1/refund/lookup/\(ids[0])")
            #expect(try old.payloads().count == 44)
            #expect(try await store.api(.GET, "v1/refund/lookup/abc").refusal == "400 4000008")
            #expect(try await store.api(.GET, "v1/refund/lookup/4242").refusal == "404 4040005")
        }
    }

    @Test func anOrderIsLookedUpByItsId() async throws {
        try await RunningSimulator.with { store in
            let single = try await store.sold()
            let order = single.string("orderId")
            #expect(order.hasPrefix("M") && order.count == 11)
            let found = try await store.api(.GET, "v1/lookup/\(order)")
            #expect(found.int("status") == 0)
            #expect(try found.payloads().map { $0.string("transactionId") } == [single.string("transactionId")])
            let cart = try await store.sold(#""orderId":"MCART1","count":2"#)
            let both = try await store.api(.GET, "v1/lookup/MCART1").payloads().map { $0.string("transactionId") }
            #expect(both == cart.objects("purchases").map { $0["transactionId"] as? String })
            for unknown in ["MNOTHING", "M0", order + "A"] {
                let answer = try await store.api(.GET, "v1/lookup/\(unknown)")
                #expect(answer.status == 200 && answer.int("status") == 1)
                #expect(answer.json["signedTransactions"] == nil)
            }
            let foreign = try await store.api(.GET, "v1/lookup/\(order)", bundleId: "com.example.other")
            #expect(foreign.int("status") == 1)
            #expect(try await store.api(.GET, "v1/lookup/a-b").refusal == "400 4000000")
            #expect(try await store.api(.GET, "v1/lookup/\(order)", "sandbox").status == 404)
        }
    }

    @Test func theAppTransactionBelongsToTheCustomer() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold(#""customer":"ann","purchaseDate":1750000000000"#)
            let answer = try await store.api(
                .GET, "v1/transactions/appTransactions/\(sale.string("transactionId"))")
            let token = try SignedTransaction(answer.string("signedAppTransactionInfo"))
            #expect(try await token.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(token.string("appTransactionId") == sale.string("appTransactionId"))
            #expect(token.string("receiptType") == "Production")
            #expect(token.string("bundleId") == "com.example.game")
            #expect(token.int("originalPurchaseDate") == 1_750_000_000_000)
            #expect(token.string("originalPlatform") == "iOS")

            // A customer who bought nothing yet; the first purchase keeps the id.
            let zoe = try await store.control(
                .POST, "customers", #"{"app":"com.example.game","customer":"zoe","originalPlatform":"macOS"}"#)
            let id = zoe.string("appTransactionId")
            let download = try await store.api(.GET, "v1/transactions/appTransactions/\(id)")
            let platform = try SignedTransaction(download.string("signedAppTransactionInfo")).string("originalPlatform")
            #expect(platform == "macOS")
            #expect(try await store.api(.GET, "v2/history/\(id)").payloads().isEmpty)
            #expect(try await store.sold(#""customer":"zoe""#).string("appTransactionId") == id)
            #expect(try await store.api(.GET, "v2/history/\(id)").payloads().count == 1)
            #expect(try await store.call(.GET, "/control/customers?app=com.example.game&customer=x").status == 404)
        }
    }
}
