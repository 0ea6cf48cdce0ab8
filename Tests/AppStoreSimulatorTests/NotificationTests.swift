import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: the notification history and test notifications answer as AppleFacts 3.3, 3.6 and 4.2 say.
/// Method: real HTTP; notifications are held through the control API.
@Suite struct NotificationTests {
    private static let day: Int64 = 86_400_000
    private var now: Int64 { Int64(Date().timeIntervalSince1970 * 1000) }

    private func history(
        _ store: RunningSimulator,
        _ more: String = "",
        from: Int64? = nil,
        token: String? = nil,
        environment: String = "production"
    ) async throws -> RunningSimulator.Answer {
        try await store.api(
            .POST, "v1/notifications/history" + (token.map { "?paginationToken=\($0)" } ?? ""), environment,
            json: #"{"startDate":\#(from ?? now - 20 * Self.day),"endDate":253402300799000\#(more)}"#)
    }

    private func uuids(_ answer: RunningSimulator.Answer) throws -> [String] {
        try answer.objects("notificationHistory").map {
            try SignedTransaction($0["signedPayload"] as? String ?? "").string("notificationUUID") ?? ""
        }
    }

    private func hold(_ store: RunningSimulator, _ fields: String) async throws -> String {
        try await store.control(.POST, "notifications", #"{"app":"com.example.game",\#(fields)}"#)
            .string("notificationUUID")
    }

    @Test func aNotificationShowsThePastAsItWas() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold(#""type":"Auto-Renewable Subscription""#)
            let id = sale.string("transactionId")
            let held = try await store.control(
                .POST, "notifications",
                #"{"app":"com.example.game","notificationType":"SUBSCRIBED","subtype":"INITIAL_BUY","#
                    + #""transactionId":"\#(id)"}"#)
            let direct = try SignedTransaction(held.string("signedPayload"))
            try await store.control(.POST, "purchases/\(id)/refund")
            let answer = try await history(store)
            #expect(answer.json["hasMore"] as? Bool == false)
            #expect(answer.json["paginationToken"] == nil)
            let record = try #require(answer.objects("notificationHistory").first)
            let payload = try SignedTransaction(try #require(record["signedPayload"] as? String))
            #expect(try await payload.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(payload.string("notificationUUID") == direct.string("notificationUUID"))
            #expect(payload.string("notificationType") == "SUBSCRIBED")
            #expect(payload.string("subtype") == "INITIAL_BUY")
            #expect(payload.string("version") == "2.0")
            let data = try #require(payload.payload["data"] as? [String: Any])
            #expect(data["bundleId"] as? String == "com.example.game")
            #expect(data["environment"] as? String == "Production")
            #expect(data["status"] as? Int == 1)
            let transaction = try SignedTransaction(data["signedTransactionInfo"] as? String ?? "")
            #expect(try await transaction.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(transaction.string("transactionId") == id)
            #expect(transaction.payload["revocationDate"] == nil)
            let renewal = try SignedTransaction(data["signedRenewalInfo"] as? String ?? "")
            #expect(renewal.int("autoRenewStatus") == 1)
        }
    }

    @Test func fortyFiveNotificationsAreThreePages() async throws {
        try await RunningSimulator.with { store in
            let id = try await store.sold().string("transactionId")
            let start = now
            var expected: [String] = []
            for index in 0..<45 {
                expected.append(
                    try await hold(
                        store,
                        #""notificationType":"ONE_TIME_CHARGE","transactionId":"\#(id)","#
                            + #""signedDate":\#(start - Int64(45 - index) * 1000)"#))
            }
            let from = start - Self.day
            var seen: [String] = []
            var token: String?
            for page in 1...3 {
                let answer = try await history(store, from: from, token: token)
                seen += try uuids(answer)
                token = answer.json["paginationToken"] as? String
                #expect((token != nil) == (page < 3))
            }
            #expect(seen == expected)
            let first = try await history(store, from: from).string("paginationToken")
            #expect(try await history(store, from: from, token: "x").refusal == "400 4000014")
            let other = try await history(store, #","onlyFailures":true"#, from: from, token: first)
            #expect(other.refusal == "400 4000014")
            try await store.control(.PUT, "settings", #"{"paginationTokenMilliseconds":0}"#)
            let old = try await history(store, from: from).string("paginationToken")
            #expect(try await history(store, from: from, token: old).refusal == "400 4000017")
        }
    }

    @Test func filtersAndTheirErrors() async throws {
        try await RunningSimulator.with { store in
            let ann = try await store.sold(#""customer":"ann""#).string("transactionId")
            let anns = try await store.sold(#""customer":"ann""#).string("transactionId")
            let bob = try await store.sold(#""customer":"bob""#).string("transactionId")
            let charge = try await hold(store, #""notificationType":"ONE_TIME_CHARGE","transactionId":"\#(ann)""#)
            let refund = try await hold(
                store,
                #""notificationType":"REFUND","transactionId":"\#(anns)","sendAttempts":["#
                    + #"{"attemptDate":1,"sendAttemptResult":"TIMED_OUT"}]"#)
            let asked = try await hold(
                store,
                #""notificationType":"CONSUMPTION_REQUEST","transactionId":"\#(bob)","#
                    + #""consumptionRequestReason":"LEGAL""#)
            #expect(try uuids(await history(store)) == [charge, refund, asked])
            #expect(try uuids(await history(store, #","transactionId":"\#(ann)""#)) == [charge, refund])
            #expect(try uuids(await history(store, #","notificationType":"REFUND""#)) == [refund])
            #expect(try uuids(await history(store, #","onlyFailures":true"#)) == [refund])
            #expect(try uuids(await history(store, environment: "sandbox")).isEmpty)
            try await store.control(
                .POST, "notifications/\(refund)/attempts", #"{"sendAttemptResult":"SUCCESS"}"#)
            #expect(try uuids(await history(store, #","onlyFailures":true"#)).isEmpty)
            let attempts =
                try await history(store, #","notificationType":"REFUND""#)
                .objects("notificationHistory").first?["sendAttempts"] as? [[String: Any]]
            #expect(attempts?.map { $0["sendAttemptResult"] as? String } == ["TIMED_OUT", "SUCCESS"])
            #expect(try await store.control(.GET, "notifications?skip=1").objects("notifications").count == 2)

            for (body, refusal) in [
                (#"{"endDate":1}"#, "400 4000015"), (#"{"startDate":"1","endDate":1}"#, "400 4000015"),
                (#"{"startDate":1}"#, "400 4000016"),
                (#"{"startDate":\#(now),"endDate":\#(now - 1000)}"#, "400 4000013"),
                (#"{"startDate":\#(now - 181 * Self.day),"endDate":\#(now)}"#, "400 4000012"), ("", "400 -"),
            ] {
                let answer = try await store.api(.POST, "v1/notifications/history", json: body)
                #expect(answer.refusal == refusal, "\(body)")
            }
            // The sandbox forgets after 30 days.
            #expect(try await history(store, from: now - 31 * Self.day).status == 200)
            let sandbox = try await history(store, from: now - 31 * Self.day, environment: "sandbox")
            #expect(sandbox.refusal == "400 4000012")
            for (more, refusal) in [
                (#","notificationType":"BIRTHDAY""#, "400 4000018"),
                (#","notificationSubtype":"UPGRADE""#, "400 4000018"),
                (#","notificationType":"REFUND","transactionId":"\#(ann)""#, "400 4000019"),
                (#","transactionId":"abc""#, "400 4000006"), (#","transactionId":"4242""#, "404 4040010"),
            ] {
                #expect(try await history(store, more).refusal == refusal, "\(more)")
            }
            try await store.control(
                .POST, "customers", #"{"app":"com.example.game","customer":"bob","account":false}"#)
            #expect(try await history(store, #","transactionId":"\#(bob)""#).refusal == "404 4040001")

            for (body, field) in [
                (#""notificationType":"BIRTHDAY","transactionId":"\#(ann)""#, "notificationType"),
                (#""notificationType":"REFUND""#, "transactionId"),
                (#""notificationType":"REFUND","transactionId":"1""#, "transactionId"),
                (#""notificationType":"RESCIND_CONSENT""#, "notificationType"),
                (#""notificationType":"REFUND","transactionId":"\#(ann)","subtype":"SUMMARY""#, "subtype"),
                (
                    #""notificationType":"REFUND","transactionId":"\#(ann)","consumptionRequestReason":"LEGAL""#,
                    "consumptionRequestReason"
                ),
            ] {
                let refused = try await store.call(
                    .POST, "/control/notifications", json: #"{"app":"com.example.game",\#(body)}"#)
                #expect(refused.string("field") == field, "\(body)")
            }
        }
    }

    @Test func aTestNotificationHasAStatus() async throws {
        try await RunningSimulator.with { store in
            func request(_ environment: String = "production") async throws -> RunningSimulator.Answer {
                try await store.api(.POST, "v1/notifications/test", environment)
            }
            #expect(try await request().refusal == "404 4040007")
            try await store.control(
                .POST, "apps", #"{"app":"com.example.game","notificationURL":"https://example.com/apple"}"#)
            try store.simulator.fault(NotificationFaultRequest(.lose))
            let token = try await request().string("testNotificationToken")
            let answer = try await store.api(.GET, "v1/notifications/test/\(token)")
            let payload = try SignedTransaction(answer.string("signedPayload"))
            #expect(payload.string("notificationType") == "TEST")
            #expect(try await payload.defect(root: store.simulator.rootCertificateDER) == nil)
            #expect(answer.objects("sendAttempts").isEmpty)
            try await store.control(
                .POST, "notifications/\(payload.string("notificationUUID") ?? "")/attempts",
                #"{"sendAttemptResult":"TLS_ISSUE"}"#)
            let later = try await store.api(.GET, "v1/notifications/test/\(token)")
            #expect(later.objects("sendAttempts").map { $0["sendAttemptResult"] as? String } == ["TLS_ISSUE"])
            // Without a URL of its own the sandbox uses the one of production.
            #expect(try await request("sandbox").status == 200)
            #expect(try await store.api(.GET, "v1/notifications/test/abc").refusal == "400 4000020")
            let unknown = "\(UUID().uuidString.lowercased())_1"
            #expect(try await store.api(.GET, "v1/notifications/test/\(unknown)").refusal == "404 4040008")
            #expect(try await store.api(.GET, "v1/notifications/test/\(token)", "sandbox").refusal == "404 4040008")
        }
    }
}
