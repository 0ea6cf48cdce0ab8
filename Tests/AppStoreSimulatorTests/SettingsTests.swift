import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: rate limits and propagation delay are enforced as set, and everything that happened survives a restart.
/// Method: real HTTP; limits of a few calls, delays of half a second.
@Suite struct SettingsTests {
    private var now: Int64 { Int64(Date().timeIntervalSince1970 * 1000) }

    @Test func everyEndpointHasAFaultOfItsName() {
        for service in SimulatedService.allCases {
            #expect(FaultRequest.Endpoint(rawValue: service.rawValue) != nil, "\(service)")
        }
        #expect(FaultRequest.Endpoint.allCases.count == SimulatedService.allCases.count + 1)
    }

    @Test func aRateLimitNamesTheMillisecondFromWhichItEnds() async throws {
        try await RunningSimulator.with { store in
            let id = try await store.sold().string("transactionId")
            #expect(try await store.control(.GET, "settings").string("rateLimits") == "off")
            try await store.control(.PUT, "settings", #"{"rateLimits":{"perSecond":1000,"orderLookup":1}}"#)
            // One token for both calls: the window is a second, and a debug build takes time for a signature.
            let token = try store.bearer(bundleId: "com.example.game")
            var refused: RunningSimulator.Answer?
            for _ in 0..<20 where refused == nil {
                let answer = try await store.call(.GET, "/production/inApps/v1/lookup/MX", token: token)
                if answer.status == 429 { refused = answer }
            }
            let answer = try #require(refused)
            #expect(answer.refusal == "429 4290000")
            let next = try #require(answer.headers.first(name: "Retry-After").flatMap { Int64($0) })
            #expect((now - 5000...now + 1000).contains(next))
            while now < next { try await Task.sleep(for: .milliseconds(20)) }
            #expect(try await store.call(.GET, "/production/inApps/v1/lookup/MX", token: token).status == 200)
            // Another endpoint, and another app, have their own.
            #expect(try await store.transactionInfo(id).status == 200)
            #expect(try await store.api(.GET, "v1/lookup/MX", bundleId: "com.example.other").status == 200)
            let bare = try await store.call(.GET, "/production/inApps/v1/lookup/MX")
            #expect(bare.status == 401)
        }
    }

    @Test func applesLimitsAreATenthInTheSandbox() async throws {
        try await RunningSimulator.with { store in
            try await store.control(
                .POST, "apps", #"{"app":"com.example.game","notificationURL":"http://127.0.0.1:9"}"#)
            try await store.control(.PUT, "settings", #"{"rateLimits":"apple"}"#)
            // One a second, in the sandbox one in ten seconds.
            #expect(try await store.api(.POST, "v1/notifications/test", "sandbox").status == 200)
            let before = now
            let refused = try await store.api(.POST, "v1/notifications/test", "sandbox")
            #expect(refused.status == 429)
            let next = try #require(refused.headers.first(name: "Retry-After").flatMap { Int64($0) })
            #expect(next > before && next <= before + 10_000)
            #expect(try await store.control(.PUT, "settings", "{}").string("rateLimits") == "apple")
            for wrong in [
                #"{"rateLimits":"on"}"#, #"{"rateLimits":{"verifyReceipt":5}}"#, #"{"rateLimits":{"perSecond":0}}"#,
            ] {
                let answer = try await store.call(.PUT, "/control/settings", json: wrong)
                #expect(answer.status == 400 && answer.string("field") == "rateLimits", "\(wrong)")
            }
            let wrong = try await store.call(.PUT, "/control/settings", json: #"{"propagationMilliseconds":-1}"#)
            #expect(wrong.string("field") == "propagationMilliseconds")
        }
    }

    /// P14: 4040010 for a purchase that was just made.
    @Test func aPurchaseIsUnknownForAWhile() async throws {
        try await RunningSimulator.with { store in
            let known = try await store.sold(#""customer":"ann""#).string("transactionId")
            let slow = try await store.sold(#""customer":"ann","visibleAfterMilliseconds":86400000"#)
            let id = slow.string("transactionId")
            for (method, path, body) in [
                (HTTPMethod.GET, "v1/transactions/\(id)", nil as String?), (.GET, "v2/history/\(id)", nil),
                (.GET, "v1/subscriptions/\(id)", nil), (.GET, "v2/refund/lookup/\(id)", nil),
                (.POST, "v1/transactions/\(id)/finish", nil), (.PUT, "v2/transactions/consumption/\(id)", "{}"),
            ] {
                #expect(try await store.api(method, path, json: body).refusal == "404 4040010", "\(path)")
            }
            #expect(try await store.api(.GET, "v2/history/\(known)").payloads().count == 1)
            #expect(try await store.api(.GET, "v1/lookup/\(slow.string("orderId"))").int("status") == 1)
            // The device has its proof nevertheless.
            #expect(try SignedTransaction(slow.string("signedTransaction")).string("transactionId") == id)

            try await store.control(.PUT, "settings", #"{"propagationMilliseconds":3000}"#)
            let sale = try await store.sold().string("transactionId")
            let visibleAt = try #require(try await store.control(.GET, "purchases/\(sale)").json["visibleAt"] as? Int64)
            // Checked only if the question surely comes in time.
            if now < visibleAt - 2000 { #expect(try await store.transactionInfo(sale).refusal == "404 4040010") }
            while now < visibleAt { try await Task.sleep(for: .milliseconds(20)) }
            #expect(try await store.transactionInfo(sale).status == 200)
            let asked = try await store.sold(#""visibleAfterMilliseconds":0"#).string("transactionId")
            #expect(try await store.transactionInfo(asked).status == 200)
        }
    }

    @Test func aRestartKeepsEverything() async throws {
        try await withFolder { folder in
            let configuration = SimulatorConfiguration(stateDirectory: folder, seed: 1)
            var before: [String: String] = [:]
            var ids: [String] = []
            var appTransactionId = ""
            var revision = ""
            /// Everything that the control API and Apple's side show, except for data that is signed anew.
            func snapshot(_ store: RunningSimulator) async throws -> [String: String] {
                var shown: [String: String] = [:]
                for path in [
                    "ledger", "filings", "notifications", "settings", "subscriptions/\(ids[1])",
                    "customers?app=com.example.game&customer=zoe", "customers?app=com.example.game&customer=ann",
                ] {
                    let answer = try await store.control(.GET, path)
                    // The calls follow the purchases; a restart forgets them.
                    shown[path] = answer.text.components(separatedBy: #","calls":"#)[0]
                }
                let history = try await store.api(.GET, "v2/history/\(ids[0])")
                revision = history.string("revision")
                shown["history"] = "\(try history.payloads().map { $0.string("transactionId") }) \(revision)"
                return shown
            }
            try await RunningSimulator.with(configuration) { store in
                let sub = #""type":"Auto-Renewable Subscription","customer":"ann""#
                ids.append(try await store.sold(#""customer":"ann","orderId":"MCART""#).string("transactionId"))
                ids.append(try await store.sold(#"\#(sub),"family":["bob"],"offerType":1"#).string("transactionId"))
                ids.append(try await store.sold(#"\#(sub),"visibleAfterMilliseconds":1000000"#).string("transactionId"))
                let zoe = try await store.control(.POST, "customers", #"{"app":"com.example.game","customer":"zoe"}"#)
                appTransactionId = zoe.string("appTransactionId")
                let token = #"{"appAccountToken":"a1b2c3d4-0000-4000-8000-00000000abcd"}"#
                #expect(
                    try await store.api(.PUT, "v1/transactions/\(ids[1])/appAccountToken", json: token).status == 200)
                let wish = #"{"extendByDays":1,"extendReasonCode":0,"requestIdentifier":"r","productId":"coins6"}"#
                #expect(try await store.api(.PUT, "v1/subscriptions/extend/\(ids[1])", json: wish).status == 200)
                #expect(try await store.api(.POST, "v1/subscriptions/extend/mass", json: wish).status == 200)
                // This shows nothing new to Apple: it does not move the purchase to the end, now or at the restart.
                #expect(try await store.api(.POST, "v1/transactions/\(ids[0])/finish").status == 200)
                try await store.control(.PUT, "subscriptions/\(ids[1])/renewal", #"{"autoRenewStatus":0}"#)
                let held = try await store.control(
                    .POST, "notifications",
                    #"{"app":"com.example.game","notificationType":"REFUND","transactionId":"\#(ids[0])"}"#)
                try await store.control(
                    .POST, "notifications/\(held.string("notificationUUID"))/attempts",
                    #"{"sendAttemptResult":"OTHER"}"#)
                try await store.control(
                    .PUT, "settings", #"{"rateLimits":{"perSecond":1000},"propagationMilliseconds":7}"#)
                before = try await snapshot(store)
                #expect(before["history"]?.contains("[Optional(\"\(ids[0])\"), Optional(\"\(ids[1])\")]") == true)
            }
            try await RunningSimulator.with(configuration) { store in
                let after = try await snapshot(store)
                for (path, text) in before { #expect(after[path] == text, "\(path)") }
                let wish = #"{"extendByDays":1,"extendReasonCode":0,"requestIdentifier":"s"}"#
                // Extended once by itself and once with all the others: that was twice.
                let third = try await store.api(.PUT, "v1/subscriptions/extend/\(ids[1])", json: wish)
                #expect(third.refusal == "403 4030005")
                let renewal = try await store.sold(
                    #""type":"Auto-Renewable Subscription","originalTransactionId":"\#(ids[1])""#)
                let token = try SignedTransaction(renewal.string("signedTransaction"))
                #expect(token.string("appAccountToken") == "a1b2c3d4-0000-4000-8000-00000000abcd")
                #expect(renewal.string("customer") == "ann")
                #expect(try await store.api(.GET, "v1/lookup/MCART").int("status") == 0)
                let zoe = try await store.sold(#""customer":"zoe","visibleAfterMilliseconds":0"#)
                #expect(zoe.string("appTransactionId") == appTransactionId)
            }
        }
    }

    /// The code that writes purchases is written by hand: no field may be lost between the writer and the reader.
    @Test func everyFieldOfAPurchaseComesBack() async throws {
        try await withFolder { folder in
            let configuration = SimulatorConfiguration(stateDirectory: folder, seed: 1)
            var before: [Purchase] = []
            try await RunningSimulator.with(configuration) { store in
                let sale = try await store.sold(
                    #""type":"Auto-Renewable Subscription","quantity":2,"environment":"Sandbox","customer":"a\"b\\c é","#
                        + #""appAccountToken":"a1b2c3d4-0000-4000-8000-00000000abcd","purchaseDate":1,"#
                        + #""originalPurchaseDate":2,"expiresDate":3,"webOrderLineItemId":"4","#
                        + #""previousOriginalTransactionId":"1","#
                        + #""subscriptionGroupIdentifier":"5","transactionReason":"RENEWAL","storefront":"DEU","#
                        + #""storefrontId":"6","currency":"EUR","price":7,"isUpgraded":true,"orderId":"M8","#
                        + #""offerType":3,"offerIdentifier":"o","offerDiscountType":"ONE_TIME","offerPeriod":"P1M","#
                        + #""visibleAfterMilliseconds":0,"family":["bob"]"#)
                let id = sale.string("transactionId")
                #expect(try await store.api(.POST, "v1/transactions/\(id)/finish", "sandbox").status == 200)
                try await store.control(
                    .POST, "purchases/\(id)/refund",
                    #"{"revocationReason":1,"revocationType":"REFUND_PRORATED","revocationPercentage":50000}"#)
                _ = try await store.sold(#""visibleAfterMilliseconds":1000"#)
                let seats = try await store.sold(#""type":"Auto-Renewable Subscription","period":"P1M","seats":2"#)
                for change in [#"{"seats":3,"revokedSeats":1}"#, #"{"nextProductId":"pro","change":"upgrade"}"#] {
                    try await store.control(.POST, "subscriptions/\(seats.string("transactionId"))", change)
                }
                before = store.simulator.ledger
                // Each field has a value in at least one of them.
                for field in Mirror(reflecting: before[0]).children {
                    let values = before.compactMap { purchase in
                        Mirror(reflecting: purchase).children.first { $0.label == field.label }.map { "\($0.value)" }
                    }
                    #expect(values.contains { $0 != "nil" }, "\(field.label ?? "")")
                }
            }
            try await RunningSimulator.with(configuration) { store in #expect(store.simulator.ledger == before) }
        }
    }
}
