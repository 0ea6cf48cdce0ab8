import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Apple's questions about refunds, from the notification to the answer.
    @Suite struct RefundRequests {
        /// Goal: with consent a worker tells Apple before hour 11 what the ledger and the app's backend know. Without
        /// consent, and with a consent that was withdrawn since Apple asked, the worker does not call Apple. The worker
        /// does not try again what Apple refuses for good. Support changes an answer until it is sent (B11, P33, P41).
        /// Method: six players buy; Apple asks about each purchase, ten and a half hours ago about five of them. The
        /// store's record says what the store was told, and the database says what became of each question.
        @Test func askedAndAnswered() async throws {
            try await System.run { system in
                try await system.startAll()
                let store = system.appStore.store
                var sales: [String: Sale] = [:]
                for user in ["agreed", "silent", "withdrew", "refused", "edited", "twice"] {
                    let sale = try await system.appStore.sell()
                    sales[user] = sale
                    system.owe(sale, to: user)
                    try await system.submit(sale, user: user, wait: 20)
                    if user != "silent" { #expect(try await system.client.consent(of: user, true).status == 200) }
                }
                func id(_ user: String) throws -> String {
                    try #require(sales[user]).purchase.transactionId
                }
                let used = try await system.client.consumption(of: id("agreed"), units: 1500)
                #expect(used.status == 200 && used.json["percentage"] as? Int == 25, "\(used.text)")
                #expect(try await system.client.consent(of: "withdrew", false).status == 200)

                func ask(_ user: String, hoursAgo: Double) async throws {
                    var request = NotificationRequest(
                        app: "game", notificationType: "CONSUMPTION_REQUEST", transactionId: try id(user))
                    request.signedDate = Int64((Date.now.timeIntervalSince1970 - hoursAgo * 3600) * 1000)
                    request.consumptionRequestReason = "UNINTENDED_PURCHASE"
                    let payload = try store.hold(request).signedPayload
                    let answer = try await system.client.notification(payload)
                    #expect(answer.status == 200, "\(answer.text)")
                }
                func ending(_ user: String) async throws -> [String] {
                    try await system.texts(
                        """
                        select concat_ws(' ', state, reason, code) from refund_requests
                        where transaction_id = '\(id(user))' order by asked_at
                        """)
                }
                var fault = FaultRequest(.error, on: .consumption, count: 1)
                fault.errorCode = 4_000_047
                try store.fault(fault)
                try await ask("refused", hoursAgo: 10.5)
                try await system.wait("Apple to refuse") {
                    try await ending("refused") == ["unanswered refused 4000047"]
                }
                // The answer is due in an hour of the scaled clock, and support does not wait for it.
                try await ask("edited", hoursAgo: 0)
                try await system.wait("the request to be stored") { try await ending("edited") == ["open"] }
                try await system.command(
                    "support", "refund-request", "edit", try id("edited"), "--percentage", "80", "--preference",
                    "DECLINE")
                try await system.command("support", "refund-request", "send-now", try id("edited"))
                try await ask("twice", hoursAgo: 10.6)
                try await system.wait("the first request to be answered") { try await ending("twice") == ["answered"] }
                for user in ["agreed", "silent", "withdrew"] { try await ask(user, hoursAgo: 10.5) }
                try await ask("twice", hoursAgo: 10.5)
                for (user, endings) in [
                    ("agreed", ["answered"]), ("silent", ["unanswered no_consent"]),
                    ("withdrew", ["unanswered no_consent"]), ("edited", ["answered"]),
                    ("twice", ["answered", "answered"]),
                ] {
                    try await system.wait("the question about \(user)") { try await ending(user) == endings }
                }
                let answers = Dictionary(grouping: store.filings, by: \.transactionId).mapValues {
                    $0.map(\.consumption)
                }
                let expected: [String?: [String?]] = [
                    try id("agreed"): [Self.body(25_000)], try id("edited"): [Self.body(80_000, "DECLINE")],
                    try id("twice"): [Self.body(nil), Self.body(nil)],
                ]
                #expect(answers == expected)
                #expect(
                    try await system.count(
                        "select count(*) from refund_requests where ended_at > asked_at + interval '11 hours'") == 0)
                #expect(
                    try await system.count(
                        """
                        select count(distinct case_id) from refund_requests where transaction_id = '\(id("twice"))'
                        """) == 1)
                let shown = try await system.command("support", "refund-request", "list", "--state", "all")
                let agreed = try id("agreed")
                #expect(shown.contains(agreed) && shown.contains("no_consent"))
                await #expect(throws: System.Failure.self, "what was sent cannot be changed") {
                    try await system.command(
                        "support", "refund-request", "edit", id("edited"), "--percentage", "1")
                }
                #expect(
                    try await system.count("select count(*) from grants") == sales.count, "a request grants nothing")
            }
        }

        private static func body(_ percentage: Int?, _ preference: String? = nil) -> String {
            let used = percentage.map { #""consumptionPercentage":\#($0),"# } ?? ""
            let wish = preference.map { #""refundPreference":"\#($0)","# } ?? ""
            return "{\(used)\"customerConsented\":true,\"deliveryStatus\":\"DELIVERED\",\(wish)"
                + "\"sampleContentProvided\":false}"
        }
    }
}
