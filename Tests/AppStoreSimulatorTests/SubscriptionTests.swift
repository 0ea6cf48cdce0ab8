import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: subscriptions, family sharing and offers answer as AppleFacts 2 and 3.3 say, and renewal dates can be moved as
/// often as Apple allows.
/// Method: real HTTP, every state made through the control API.
@Suite struct SubscriptionTests {
    private static let kind = #""type":"Auto-Renewable Subscription""#
    private static let day: Int64 = 86_400_000

    private func statuses(_ answer: RunningSimulator.Answer) -> [Int] {
        answer.objects("data").flatMap { $0["lastTransactions"] as? [[String: Any]] ?? [] }
            .compactMap { $0["status"] as? Int }
    }

    @Test func everyStateIsReached() async throws {
        try await RunningSimulator.with { store in
            let ended = #"\#(Self.kind),"customer":"ann","purchaseDate":1750000000000"#
            let active = try await store.sold(#"\#(Self.kind),"customer":"ann","subscriptionGroupIdentifier":"1""#)
            var ids = [active.string("transactionId")]
            for group in 2...5 {
                let sale = try await store.sold(#"\#(ended),"subscriptionGroupIdentifier":"\#(group)""#)
                ids.append(sale.string("transactionId"))
            }
            try await store.control(
                .PUT, "subscriptions/\(ids[2])/renewal", #"{"isInBillingRetryPeriod":true,"expirationIntent":2}"#)
            try await store.control(
                .PUT, "subscriptions/\(ids[3])/renewal",
                #"{"isInBillingRetryPeriod":true,"gracePeriodExpiresDate":253402300799000}"#)
            try await store.control(.POST, "purchases/\(ids[4])/refund")
            let answer = try await store.api(.GET, "v1/subscriptions/\(ids[0])")
            #expect(statuses(answer) == [1, 2, 3, 4, 5])
            #expect(
                answer.objects("data").map { $0["subscriptionGroupIdentifier"] as? String } == [
                    "1", "2", "3", "4", "5",
                ])
            #expect(answer.string("bundleId") == "com.example.game")
            let filtered = try await store.api(.GET, "v1/subscriptions/\(ids[0])?status=3&status=1")
            #expect(statuses(filtered) == [1, 3])
            for wrong in ["6", "0", "x"] {
                let refused = try await store.api(.GET, "v1/subscriptions/\(ids[0])?status=\(wrong)")
                #expect(refused.refusal == "400 4000031")
            }
            #expect(try await store.control(.GET, "subscriptions/\(ids[3])").int("status") == 4)
            let retry = try #require(
                (answer.objects("data")[2]["lastTransactions"] as? [[String: Any]])?.first)
            let renewal = try SignedTransaction(try #require(retry["signedRenewalInfo"] as? String))
            #expect(try await renewal.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(renewal.int("expirationIntent") == 2)
            #expect(renewal.payload["isInBillingRetryPeriod"] as? Bool == true)
            #expect(renewal.string("originalTransactionId") == ids[2])
            #expect(renewal.int("renewalDate") == 1_750_000_000_000 + 30 * Self.day)
            let coin = try await store.sold()
            let none = try await store.api(.GET, "v1/subscriptions/\(coin.string("transactionId"))")
            #expect(none.status == 200 && none.objects("data").isEmpty)
            let unknown = try await store.call(.PUT, "/control/subscriptions/1/renewal", json: "{}")
            #expect(unknown.status == 404)
            let wrong = try await store.call(
                .PUT, "/control/subscriptions/\(ids[0])/renewal", json: #"{"autoRenewStatus":2}"#)
            #expect(wrong.string("field") == "autoRenewStatus")
        }
    }

    @Test func aStreakEndsAfterSixtyDays() async throws {
        try await RunningSimulator.with { store in
            let start: Int64 = 1_750_000_000_000
            let first = try await store.sold(#"\#(Self.kind),"purchaseDate":\#(start)"#)
            let original = first.string("transactionId")
            // 59 days after the end of the first period, then 60 after the end of the second.
            let second = start + 89 * Self.day
            let third = second + 90 * Self.day
            func streak() async throws -> Int64? {
                let answer = try await store.api(.GET, "v1/subscriptions/\(original)")
                let item = (answer.objects("data").first?["lastTransactions"] as? [[String: Any]])?.first
                return try SignedTransaction(item?["signedRenewalInfo"] as? String ?? "")
                    .int("recentSubscriptionStartDate")
            }
            _ = try await store.sold(#"\#(Self.kind),"originalTransactionId":"\#(original)","purchaseDate":\#(second)"#)
            #expect(try await streak() == start)
            let last = try await store.sold(
                #"\#(Self.kind),"originalTransactionId":"\#(original)","purchaseDate":\#(third)"#)
            #expect(try await streak() == third)
            let token = try SignedTransaction(last.string("signedTransaction"))
            #expect(token.int("originalPurchaseDate") == start)
        }
    }

    @Test func offersStandInTheTransaction() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold(
                #"\#(Self.kind),"offerType":2,"offerIdentifier":"spring","offerDiscountType":"PAY_UP_FRONT","#
                    + #""offerPeriod":"P2M""#)
            let info = try await store.transactionInfo(sale.string("transactionId"))
            let token = try SignedTransaction(info.string("signedTransactionInfo"))
            #expect(token.int("offerType") == 2)
            #expect(token.string("offerIdentifier") == "spring")
            #expect(token.string("offerDiscountType") == "PAY_UP_FRONT")
            #expect(token.string("offerPeriod") == "P2M")
            for (body, field) in [
                (#""offerType":5"#, "offerType"), (#""offerDiscountType":"FREE""#, "offerDiscountType"),
                (#""orderId":"m-1""#, "orderId"), (#""family":["b"]"#, "family"),
                (#""type":"Non-Consumable","family":["b","b"]"#, "family"),
                (#""visibleAfterMilliseconds":-1"#, "visibleAfterMilliseconds"), (#""customer":"""#, "customer"),
            ] {
                let refused = try await store.call(
                    .POST, "/control/purchases", json: #"{"app":"a","productId":"p",\#(body)}"#)
                #expect(refused.status == 400 && refused.string("field") == field, "\(body)")
            }
        }
    }

    @Test func aFamilyGetsTheSameAndLosesItTogether() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold(#"\#(Self.kind),"customer":"ann","family":["bob","cid"]"#)
            let id = sale.string("transactionId")
            let family = sale.objects("family").compactMap { $0["transactionId"] as? String }
            #expect(family.count == 2)
            let info = try await store.transactionInfo(family[0])
            let share = try SignedTransaction(info.string("signedTransactionInfo"))
            #expect(share.string("inAppOwnershipType") == "FAMILY_SHARED")
            #expect(share.string("originalTransactionId") == family[0])
            #expect(share.string("appTransactionId") != sale.string("appTransactionId"))
            let bobs = try await store.api(.GET, "v2/history/\(family[0])").payloads()
            #expect(bobs.map { $0.string("transactionId") } == [family[0]])

            // A renewal reaches the chains that the members have.
            let renewal = try await store.sold(
                #"\#(Self.kind),"originalTransactionId":"\#(id)","family":["bob"]"#)
            #expect(renewal.string("customer") == "ann")
            let bobsRenewal = try #require(renewal.objects("family").first)
            #expect(bobsRenewal["originalTransactionId"] as? String == family[0])

            // The purchases are refunded together, with the purchaser's reason, and the refunds are reversed together.
            // Apple lists no refund of the member's own.
            try await store.control(
                .POST, "purchases/\(id)/refund", #"{"revocationReason":1,"revocationType":"REFUND_FULL"}"#)
            let lost = try await store.transactionInfo(family[1])
            let revoked = try SignedTransaction(lost.string("signedTransactionInfo"))
            #expect(revoked.int("revocationReason") == 1)
            #expect(revoked.string("revocationType") == "FAMILY_REVOKE")
            #expect(try await store.api(.GET, "v2/refund/lookup/\(family[1])").payloads().isEmpty)
            #expect(try await store.api(.GET, "v2/refund/lookup/\(id)").payloads().count == 1)
            try await store.control(.DELETE, "purchases/\(id)/refund")
            let back = try await store.transactionInfo(family[1])
            #expect(try SignedTransaction(back.string("signedTransactionInfo")).payload["revocationDate"] == nil)

            // One member alone leaves.
            try await store.control(
                .POST, "purchases/\(family[1])/refund", #"{"revocationType":"FAMILY_REVOKE"}"#)
            #expect(try await store.control(.GET, "purchases/\(id)").json["revoked"] as? Bool == false)

            // Apple accepts no data about a purchase that another customer paid for.
            let token = #"{"appAccountToken":"A1B2C3D4-0000-4000-8000-00000000ABCD"}"#
            let account = try await store.api(.PUT, "v1/transactions/\(family[0])/appAccountToken", json: token)
            #expect(account.refusal == "400 4000185")
            let consumption = try await store.api(.PUT, "v2/transactions/consumption/\(family[0])", json: "{}")
            #expect(consumption.refusal == "400 4000185")
            let wish = #"{"extendByDays":1,"extendReasonCode":0,"requestIdentifier":"r"}"#
            let extended = try await store.api(.PUT, "v1/subscriptions/extend/\(family[0])", json: wish)
            #expect(extended.refusal == "403 4030007")
            #expect(try await store.api(.PUT, "v1/subscriptions/extend/\(id)", json: wish).status == 200)
            let moved = try await store.transactionInfo(try #require(bobsRenewal["transactionId"] as? String))
            let owner = try await store.transactionInfo(renewal.string("transactionId"))
            #expect(
                try SignedTransaction(moved.string("signedTransactionInfo")).int("expiresDate")
                    == SignedTransaction(owner.string("signedTransactionInfo")).int("expiresDate"))
        }
    }

    @Test func aRenewalDateMovesTwiceAYear() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold(Self.kind)
            let id = sale.string("transactionId")
            let before = try #require(SignedTransaction(sale.string("signedTransaction")).int("expiresDate"))
            func extend(_ id: String, _ body: String) async throws -> RunningSimulator.Answer {
                try await store.api(.PUT, "v1/subscriptions/extend/\(id)", json: body)
            }
            func wish(_ name: String, days: Int = 7) -> String {
                #"{"extendByDays":\#(days),"extendReasonCode":3,"requestIdentifier":"\#(name)"}"#
            }
            let first = try await extend(id, wish("one"))
            #expect(first.string("originalTransactionId") == id)
            #expect(first.json["success"] as? Bool == true)
            #expect(first.json["effectiveDate"] as? Int64 == before + 7 * Self.day)
            #expect(!first.string("webOrderLineItemId").isEmpty)
            // The same request again is the same extension.
            #expect(try await extend(id, wish("one")).body == first.body)
            #expect(try await extend(id, wish("two")).json["effectiveDate"] as? Int64 == before + 14 * Self.day)
            #expect(try await extend(id, wish("three")).refusal == "403 4030005")
            let info = try await store.transactionInfo(id)
            let expires = try SignedTransaction(info.string("signedTransactionInfo")).int("expiresDate")
            #expect(expires == before + 14 * Self.day)

            let coin = try await store.sold().string("transactionId")
            let over = try await store.sold(#"\#(Self.kind),"purchaseDate":1750000000000"#).string("transactionId")
            let free = try await store.sold(#"\#(Self.kind),"offerType":1,"offerDiscountType":"FREE_TRIAL""#)
            for ineligible in [coin, over, free.string("transactionId")] {
                #expect(try await extend(ineligible, wish("x")).refusal == "403 4030004")
            }
            let renewal = try await store.sold(#"\#(Self.kind),"originalTransactionId":"\#(id)""#)
            for unknown in ["4242", renewal.string("transactionId")] {
                #expect(try await extend(unknown, wish("x")).refusal == "404 4040005")
            }
            #expect(try await extend("abc", wish("x")).refusal == "400 4000008")
            for (body, refusal) in [
                (wish("x", days: 91), "400 4000009"), (wish("x", days: 0), "400 4000009"), ("{}", "400 4000009"),
                (#"{"extendByDays":true,"extendReasonCode":0,"requestIdentifier":"x"}"#, "400 4000009"),
                (#"{"extendByDays":1,"extendReasonCode":4,"requestIdentifier":"x"}"#, "400 4000010"),
                (#"{"extendByDays":1,"extendReasonCode":1,"requestIdentifier":""}"#, "400 4000011"),
                ("[]", "400 -"), ("{", "400 -"),
            ] {
                #expect(try await extend(id, body).refusal == refusal, "\(body)")
            }
            #expect(store.simulator.filings.map(\.kind) == [.extendSubscription, .extendSubscription])
        }
    }

    @Test func allSubscribersAreExtendedAtOnce() async throws {
        try await RunningSimulator.with { store in
            var ids: [String] = []
            for country in ["USA", "USA", "DEU"] {
                ids.append(try await store.sold(#"\#(Self.kind),"storefront":"\#(country)""#).string("transactionId"))
            }
            let free = try await store.sold(#"\#(Self.kind),"offerType":1,"offerDiscountType":"FREE_TRIAL""#)
            _ = try await store.sold(#"\#(Self.kind),"purchaseDate":1750000000000"#)
            func wish(_ name: String, _ more: String = #","storefrontCountryCodes":["USA"]"#) -> String {
                #"{"extendByDays":5,"extendReasonCode":1,"requestIdentifier":"\#(name)","productId":"coins6"\#(more)}"#
            }
            func mass(_ body: String) async throws -> RunningSimulator.Answer {
                try await store.api(.POST, "v1/subscriptions/extend/mass", json: body)
            }
            try await store.control(.PUT, "settings", #"{"massExtensionMilliseconds":86400000}"#)
            #expect(try await mass(wish("m1")).string("requestIdentifier") == "m1")
            let running = try await store.api(.GET, "v1/subscriptions/extend/mass/coins6/m1")
            #expect(running.json["complete"] as? Bool == false)
            #expect(running.json["succeededCount"] == nil)
            try await store.control(.PUT, "settings", #"{"massExtensionMilliseconds":0}"#)
            // The same name again: 200, and nothing moves.
            #expect(try await mass(wish("m1")).status == 200)
            #expect(try await mass(wish("m2", "")).status == 200)
            let done = try await store.api(.GET, "v1/subscriptions/extend/mass/coins6/m2")
            #expect(done.json["complete"] as? Bool == true)
            #expect(done.int("succeededCount") == 3)
            #expect(done.int("failedCount") == 1)
            #expect(done.int("completeDate") != nil)
            let ledger = store.simulator.ledger
            let moved = ids.map { id in
                let purchase = ledger.first { $0.transactionId == id }
                return ((purchase?.expiresDate ?? 0) - (purchase?.purchaseDate ?? 0)) / Self.day
            }
            #expect(moved == [40, 40, 35])
            // Apple tells the app's server the result, where Apple knows an address.
            try store.simulator.fault(NotificationFaultRequest(.lose))
            try await store.control(.PUT, "settings", #"{"notificationURL":"http://127.0.0.1:9/"}"#)
            #expect(try await mass(wish("m3", "")).status == 200)
            let now = Int64(Date().timeIntervalSince1970 * 1000)
            let history = try await store.api(
                .POST, "v1/notifications/history",
                json: #"{"startDate":\#(now - 3_600_000),"endDate":\#(now + 3_600_000)}"#)
            let told = try history.objects("notificationHistory").map {
                try SignedTransaction($0["signedPayload"] as? String ?? "").payload
            }
            #expect(
                told.map { "\($0["notificationType"] ?? "") \($0["subtype"] ?? "")" } == ["RENEWAL_EXTENSION SUMMARY"])
            let summary = try #require(told.first?["summary"] as? [String: Any])
            #expect(told.first?["data"] == nil)
            #expect(summary["requestIdentifier"] as? String == "m3" && summary["productId"] as? String == "coins6")
            #expect(summary["succeededCount"] as? Int == 1 && summary["failedCount"] as? Int == 3)
            #expect(ledger.first { $0.transactionId == free.string("transactionId") }.map { $0.revoked } == false)
            for (body, refusal) in [
                (wish("x", #","storefrontCountryCodes":[]"#), "400 4000027"),
                (wish("x", #","storefrontCountryCodes":["us"]"#), "400 4000028"),
                (#"{"extendByDays":5,"extendReasonCode":1,"requestIdentifier":"x"}"#, "400 4000023"),
                (#"{"extendByDays":"5"}"#, "400 4000009"), (#"{"extendByDays":5}"#, "400 4000010"),
                (#"{"extendByDays":5,"extendReasonCode":1}"#, "400 4000011"),
            ] {
                #expect(try await mass(body).refusal == refusal, "\(body)")
            }
            for (path, refusal) in [
                ("coins6/nothing", "404 4040009"), ("other/m1", "404 4040009"),
                ("coins6/\(String(repeating: "x", count: 129))", "400 4000011"),
                ("\(String(repeating: "x", count: 256))/m1", "400 4000023"),
            ] {
                #expect(try await store.api(.GET, "v1/subscriptions/extend/mass/\(path)").refusal == refusal)
            }
        }
    }
}
