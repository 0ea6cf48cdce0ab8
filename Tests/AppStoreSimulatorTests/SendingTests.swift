import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: notifications arrive over HTTP as Apple sends them: signed (version 2) or as JSON with a password (version 1),
/// again after a failure by Apple's schedule, and lost, failed, doubled, delayed or reordered where a test
/// wants that (B13).
/// Method: a real server beside the simulator; hours pass on the store's clock.
@Suite struct SendingTests {
    private static let hour: Int64 = 3_600_000
    private static let kind = #""type":"Auto-Renewable Subscription","period":"P30D""#

    private static func with(
        _ fields: String = "", _ body: (RunningSimulator, AppServer) async throws -> Void
    ) async throws {
        try await AppServer.with { server in
            try await RunningSimulator.with { store in
                let fields = fields.isEmpty ? "" : ",\(fields)"
                try await store.control(
                    .POST, "apps",
                    #"{"app":"com.example.game","notificationURL":"\#(server.url)","sharedSecret":"secret"\#(fields)}"#)
                try await body(store, server)
            }
        }
    }

    private func history(_ store: RunningSimulator, _ environment: String = "production") async throws -> [[String]] {
        let now = store.simulator.now
        let answer = try await store.api(
            .POST, "v1/notifications/history", environment,
            json: #"{"startDate":\#(now - 29 * 24 * Self.hour),"endDate":\#(now)}"#)
        return answer.objects("notificationHistory").map { record in
            (record["sendAttempts"] as? [[String: Any]] ?? []).compactMap { $0["sendAttemptResult"] as? String }
        }
    }

    private func attempts(_ store: RunningSimulator, _ index: Int = 0) -> [HeldNotification.Attempt] {
        store.simulator.notifications[index].sendAttempts
    }

    @Test func `each arrives signed, in its order, and stands in the history`() async throws {
        try await Self.with { store, server in
            let sale = try await store.sold(#"\#(Self.kind),"customer":"ann""#)
            let id = sale.string("transactionId")
            try await store.control(.POST, "clock", #"{"advance":"P61D"}"#)
            try await store.control(.POST, "purchases/\(id)/refund")
            let arrived = try await server.payloads(4)
            #expect(
                arrived.map { $0.string("notificationType") } == ["SUBSCRIBED", "DID_RENEW", "DID_RENEW", "REFUND"])
            #expect(Set(arrived.compactMap { $0.string("notificationUUID") }).count == 4)
            for payload in arrived {
                let then = Date(timeIntervalSince1970: Double(try #require(payload.int("signedDate"))) / 1000)
                let root = store.simulator.rootCertificateDER
                #expect(try await payload.defect(root: root, at: then) == nil)
                let data = try #require(payload.payload["data"] as? [String: Any])
                #expect(data["bundleId"] as? String == "com.example.game")
                let transaction = try SignedTransaction(data["signedTransactionInfo"] as? String ?? "")
                let renewal = try SignedTransaction(data["signedRenewalInfo"] as? String ?? "")
                #expect(try await transaction.defect(root: root, at: then) == nil)
                #expect(try await renewal.defect(root: root, at: then) == nil)
                #expect(transaction.string("originalTransactionId") == id)
                #expect(data["status"] as? Int == 1)
            }
            try await eventually { attempts(store, 3).count == 1 }
            // Those of the last 29 days.
            #expect(try await history(store) == [["SUCCESS"], ["SUCCESS"]])
            // Neither is told: a sale that says so, and an app without a URL.
            _ = try await store.sold(#"\#(Self.kind),"notify":false"#)
            _ = try await store.sell(#"{"app":"com.example.other","productId":"vip",\#(Self.kind)}"#)
            #expect(store.simulator.notifications.count == 4)
        }
    }

    @Test(arguments: [(2, [1, 12, 24, 48, 72]), (1, [6, 24, 48])])
    func `production tries again after hours`(version: Int, hours: [Int]) async throws {
        try await Self.with(#""notificationVersion":\#(version)"#) { store, server in
            // Every other status than 200 to 206 is a failure.
            server.answer(500, 404, 301, 401, 503, 502, 500, 500)
            _ = try await store.sold(Self.kind)
            for (index, wait) in hours.enumerated() {
                try await eventually { attempts(store).count == index + 1 }
                try await store.control(.POST, "clock", #"{"advance":\#(wait * 3600 - 60)}"#)
                let due = try #require(store.simulator.notifications[0].delivery?.due)
                #expect(due > store.simulator.now && due < store.simulator.now + 61_000)
                #expect(attempts(store).count == index + 1)
                try await store.control(.POST, "clock", #"{"advance":60}"#)
            }
            try await eventually { attempts(store).count == hours.count + 1 }
            try await store.control(.POST, "clock", #"{"advance":"P7D"}"#)
            #expect(store.simulator.notifications[0].delivery?.due == nil)
            #expect(attempts(store).allSatisfy { $0.sendAttemptResult == "UNSUCCESSFUL_HTTP_RESPONSE_CODE" })
            #expect(server.bodies.count == hours.count + 1)
            guard version == 2 else {
                // The notification history shows version 2.
                #expect(try await history(store).isEmpty)
                return
            }
            let arrived = try await server.payloads(hours.count + 1)
            #expect(Set(arrived.compactMap { $0.string("notificationUUID") }).count == 1)
            #expect(Set(arrived.compactMap { $0.int("signedDate") }).count == 1)
            #expect(try await history(store)[0].count == 6)
        }
    }

    @Test func `after a success nothing comes again, and the sandbox tries once`() async throws {
        try await Self.with { store, server in
            server.answer(503, 206, 503)
            _ = try await store.sold(Self.kind)
            try await eventually { attempts(store).count == 1 }
            try await store.control(.POST, "clock", #"{"advance":"PT1H"}"#)
            try await eventually { attempts(store).count == 2 }
            #expect(attempts(store).map(\.sendAttemptResult) == ["UNSUCCESSFUL_HTTP_RESPONSE_CODE", "SUCCESS"])
            #expect(store.simulator.notifications[0].delivery?.due == nil)
            _ = try await store.sold(#"\#(Self.kind),"environment":"Sandbox""#)
            try await eventually { attempts(store, 1).count == 1 }
            #expect(store.simulator.notifications[1].delivery?.due == nil)
            try await store.control(.POST, "clock", #"{"advance":"P7D"}"#)
            #expect(try await history(store, "sandbox") == [["UNSUCCESSFUL_HTTP_RESPONSE_CODE"]])
            #expect(server.bodies.count == 3)
        }
    }

    @Test func `a server that does not answer, or is not there`() async throws {
        try await RunningSimulator.with { store in
            let port = try #require(URL(string: store.base)?.port)
            // The simulator itself answers 404; a port that nobody listens on refuses.
            for (url, result) in [
                ("http://127.0.0.1:\(port)/nothing", "UNSUCCESSFUL_HTTP_RESPONSE_CODE"),
                ("http://127.0.0.1:1/", "SOCKET_ISSUE"), ("https://127.0.0.1:\(port)/", "TLS_ISSUE"),
            ] {
                let before = store.simulator.notifications.count
                try await store.control(.PUT, "settings", #"{"notificationURL":"\#(url)"}"#)
                _ = try await store.sold(Self.kind)
                try await eventually { !attempts(store, before).isEmpty }
                #expect(attempts(store, before).first?.sendAttemptResult == result, "\(url)")
            }
            try await store.control(.PUT, "settings", #"{"notificationURL":""}"#)
            _ = try await store.sold(Self.kind)
            #expect(store.simulator.notifications.count == 3)
        }
    }

    @Test func `notifications are lost, failed, doubled, delayed and reordered on demand`() async throws {
        try await Self.with { store, server in
            func sell(_ name: String) async throws {
                _ = try await store.sold(#"\#(Self.kind),"customer":"\#(name)""#)
            }
            func fault(_ json: String) async throws {
                try await store.control(.POST, "notifications/faults", json)
            }
            func customers() throws -> [String] {
                try server.bodies.map { body in
                    let uuid = try SignedTransaction(body["signedPayload"] as? String ?? "").string("notificationUUID")
                    return store.simulator.notifications.first { $0.notificationUUID == uuid }?.customer ?? ""
                }
            }
            try await fault(#"{"kind":"lose","count":1,"notificationType":"SUBSCRIBED"}"#)
            try await sell("lost")
            try await fault(#"{"kind":"double","count":1}"#)
            try await sell("twice")
            try await eventually { server.bodies.count == 2 }
            try await fault(#"{"kind":"delay","count":1,"delay":"PT2H"}"#)
            try await sell("late")
            try await fault(#"{"kind":"reorder","count":1}"#)
            try await sell("second")
            try await sell("first")
            try await eventually { server.bodies.count == 4 }
            #expect(try customers() == ["twice", "twice", "first", "second"])
            try await store.control(.POST, "clock", #"{"advance":"PT2H"}"#)
            try await eventually { server.bodies.count == 5 }
            #expect(try customers().last == "late")
            // Nothing waits for a later one for ever.
            try await fault(#"{"kind":"reorder","count":1}"#)
            try await sell("alone")
            try await store.control(.POST, "clock", #"{"advance":"PT1H"}"#)
            try await eventually { server.bodies.count == 6 }
            #expect(try customers().last == "alone")
            try await eventually { !attempts(store, 5).isEmpty }
            #expect(
                try await history(store) == [
                    [], ["SUCCESS", "SUCCESS"], ["SUCCESS"], ["SUCCESS"], ["SUCCESS"], ["SUCCESS"],
                ])
            // Nobody answers, at the first attempt and at the next one, and the server has seen nothing.
            try await fault(#"{"kind":"fail","count":1}"#)
            try await sell("unanswered")
            try await eventually { attempts(store, 6).count == 1 }
            try await store.control(.POST, "clock", #"{"advance":"PT1H"}"#)
            try await eventually { attempts(store, 6).count == 2 }
            #expect(server.bodies.count == 6)
            #expect(try await history(store).last == ["TIMED_OUT", "TIMED_OUT"])
            let rules = try await store.control(.GET, "notifications/faults").objects("faults")
            #expect(rules.map { $0["fired"] as? Int } == [1, 1, 1, 1, 1, 1])
            #expect(try await store.control(.DELETE, "notifications/faults").int("removed") == 6)
            for (body, field) in [
                (#"{"kind":"burn"}"#, "kind"), (#"{"kind":"delay"}"#, "delay"),
                (#"{"kind":"lose","delay":"PT1H"}"#, "delay"), (#"{"kind":"lose","count":0}"#, "count"),
                (#"{"kind":"lose","percent":101}"#, "percent"), ("{}", "kind"),
                (#"{"kind":"lose","notificationType":"RENEW"}"#, "notificationType"),
            ] {
                let answer = try await store.call(.POST, "/control/notifications/faults", json: body)
                #expect(answer.status == 400 && answer.string("field") == field, "\(body) \(answer.text)")
            }
        }
    }

    @Test func `version 1: JSON with the password and the receipt as it was`() async throws {
        try await Self.with(#""notificationVersion":1,"gracePeriod":"THREE_DAYS""#) { store, server in
            let sale = try await store.sold(#"\#(Self.kind),"customer":"ann","family":["bob"]"#)
            let id = sale.string("transactionId")
            func does(_ json: String) async throws {
                try await store.control(.POST, "subscriptions/\(id)", "{\(json)}")
            }
            func advance(_ days: Int) async throws {
                try await store.control(.POST, "clock", #"{"advance":"P\#(days)D"}"#)
            }
            try await advance(30)
            try await does(#""billing":"fails""#)
            try await advance(40)
            try await does(#""billing":"recovers""#)
            try await does(#""priceIncrease":"pending""#)
            try await does(#""priceIncrease":"accepted""#)
            try await does(#""nextProductId":"lite""#)
            try await does(#""nextProductId":"pro","change":"upgrade""#)
            try await does(#""autoRenew":false"#)
            // The upgrade began a second after the period of the same moment.
            try await advance(31)
            try await does(#""resubscribe":true"#)
            let coins = try await store.sold(#""customer":"ann","notify":true"#).string("transactionId")
            try await store.control(.POST, "purchases/\(coins)/consumption-request")
            try await store.control(.POST, "purchases/\(coins)/refund", #"{"revocationReason":1}"#)
            let last = try #require(store.simulator.ledger.last { $0.productId == "pro" && $0.account == "ann" })
            try await store.control(.POST, "purchases/\(last.transactionId)/refund")
            let expected = [
                "INITIAL_BUY", "DID_RENEW", "DID_FAIL_TO_RENEW", "DID_RECOVER", "PRICE_INCREASE_CONSENT",
                "DID_CHANGE_RENEWAL_PREF", "CANCEL", "INTERACTIVE_RENEWAL", "DID_CHANGE_RENEWAL_STATUS",
                "INTERACTIVE_RENEWAL", "CONSUMPTION_REQUEST", "REFUND", "CANCEL",
            ]
            let bodies = try await server.bodies(expected.count)
            #expect(bodies.map { $0["notification_type"] as? String } == expected)
            for body in bodies {
                #expect(body["password"] as? String == "secret" && body["environment"] as? String == "PROD")
                #expect(body["bid"] as? String == "com.example.game" && body["signedPayload"] == nil)
            }
            func receipt(_ index: Int) -> [String: Any] { bodies[index]["unified_receipt"] as? [String: Any] ?? [:] }
            func latest(_ index: Int) -> [[String: Any]] {
                receipt(index)["latest_receipt_info"] as? [[String: Any]] ?? []
            }
            #expect(bodies[0]["original_transaction_id"] as? Int64 == Int64(id))
            #expect(bodies[0]["auto_renew_status"] as? String == "true")
            #expect(receipt(0)["status"] as? Int == 0 && receipt(0)["environment"] as? String == "Production")
            #expect(latest(0).map { $0["transaction_id"] as? String } == [id])
            #expect(latest(1).count == 2 && latest(3).count == 3)
            let failing = (receipt(2)["pending_renewal_info"] as? [[String: Any]])?.first
            #expect(failing?["grace_period_expires_date_ms"] != nil)
            #expect(failing?["is_in_billing_retry_period"] as? String == "1")
            // The upgraded period is cancelled and marked; nothing of it was refunded.
            let upgraded = try #require(latest(6).first { $0["is_upgraded"] as? String == "true" })
            #expect(upgraded["cancellation_date_ms"] != nil)
            #expect(bodies[8]["auto_renew_status"] as? String == "false")
            let refunded = try #require(latest(12).first { $0["transaction_id"] as? String == last.transactionId })
            #expect(refunded["cancellation_date_ms"] != nil && refunded["is_upgraded"] == nil)
            #expect(
                latest(11).contains {
                    $0["transaction_id"] as? String == coins && $0["cancellation_reason"] as? String == "1"
                })
            // The receipt is one that verifyReceipt knows.
            let verified = try await store.verifyReceipt(
                receipt(9)["latest_receipt"] as? String ?? "", password: "secret")
            #expect(verified.int("status") == 0)
        }
    }

    @Test func `version 1 tells a sandbox less`() async throws {
        try await Self.with(#""sandboxNotificationVersion":1"#) { store, server in
            let sale = try await store.sold(#"\#(Self.kind),"environment":"Sandbox""#)
            let id = sale.string("transactionId")
            try await store.control(.POST, "subscriptions/\(id)", #"{"billing":"fails","priceIncrease":"accepted"}"#)
            try await store.control(.POST, "clock", #"{"advance":"P31D"}"#)
            try await store.control(.POST, "subscriptions/\(id)", #"{"billing":"recovers"}"#)
            try await store.control(.POST, "subscriptions/\(id)", #"{"autoRenew":false}"#)
            let bodies = try await server.bodies(2)
            #expect(bodies.map { $0["notification_type"] as? String } == ["INITIAL_BUY", "DID_CHANGE_RENEWAL_STATUS"])
            #expect(bodies.allSatisfy { $0["environment"] as? String == "Sandbox" })
            // The app's production has version 2.
            _ = try await store.sold(Self.kind)
            #expect(try await server.bodies(3).last?["signedPayload"] != nil)
        }
    }

    @Test func `a test notification is really sent, and any other by hand`() async throws {
        try await Self.with { store, server in
            let answer = try await store.api(.POST, "v1/notifications/test")
            let token = answer.string("testNotificationToken")
            let test = try #require(try await server.payloads(1).first)
            #expect(test.string("notificationType") == "TEST")
            #expect(token.hasPrefix(test.string("notificationUUID") ?? "-"))
            try await eventually {
                try await store.api(.GET, "v1/notifications/test/\(token)").objects("sendAttempts").count == 1
            }
            let id = try await store.sold().string("transactionId")
            try await store.control(
                .POST, "notifications",
                #"{"app":"com.example.game","notificationType":"METADATA_UPDATE","transactionId":"\#(id)","send":true}"#
            )
            #expect(try await server.payloads(2).last?.string("notificationType") == "METADATA_UPDATE")
            let other = #"{"app":"com.example.other","productId":"p"}"#
            let others = try await store.sell(other).string("transactionId")
            let refused = try await store.call(
                .POST, "/control/notifications",
                json:
                    #"{"app":"com.example.other","notificationType":"REFUND","transactionId":"\#(others)","send":true}"#
            )
            #expect(refused.status == 400 && refused.string("field") == "send")
            for (body, field) in [
                (#""notificationURL":"ftp://x/""#, "notificationURL"), (#""notificationURL":"x""#, "notificationURL"),
                (#""notificationVersion":3"#, "notificationVersion"),
            ] {
                for (method, path) in [(HTTPMethod.POST, "apps"), (.PUT, "settings")] {
                    let json = path == "apps" ? #"{"app":"a",\#(body)}"# : "{\(body)}"
                    let refused = try await store.call(method, "/control/\(path)", json: json)
                    #expect(refused.status == 400 && refused.string("field") == field, "\(path) \(body)")
                }
            }
        }
    }

    @Test func `what was not sent before a restart is sent after it`() async throws {
        try await AppServer.with { server in
            try await withFolder { folder in
                let configuration = SimulatorConfiguration(stateDirectory: folder, seed: 1, notificationURL: server.url)
                server.answer(503)
                var uuid: String?
                try await RunningSimulator.with(configuration) { store in
                    _ = try await store.sold(Self.kind)
                    try await eventually { attempts(store).count == 1 }
                    uuid = store.simulator.notifications[0].notificationUUID
                }
                try await RunningSimulator.with(configuration) { store in
                    #expect(attempts(store).count == 1)
                    try await store.control(.POST, "clock", #"{"advance":"PT1H"}"#)
                    #expect(try await server.payloads(2).last?.string("notificationUUID") == uuid)
                }
            }
        }
    }
}
