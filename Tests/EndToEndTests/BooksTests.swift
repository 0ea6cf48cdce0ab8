import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// The books of a day, over the whole way: real processes, and the command as a person runs it.
    @Suite struct BooksTests {
        /// Goal: the report of a day says what came in by each way and what became of it, a refund too; every account
        /// comes to zero; and a scheduler keeps the reports of past days (L1). Method: two purchases that their users
        /// post, one of them refunded; one that Apple tells of and nobody has posted yet.
        @Test func theReportOfTheDayIsWhatHappened() async throws {
            try await System.run { system in
                try await system.startAll()
                let day = try #require(
                    try await system.texts("select to_char(now() at time zone 'UTC', 'YYYY-MM-DD')").first)
                let kept = try await system.appStore.sell()
                let refunded = try await system.appStore.sell()
                system.owe(kept, to: "ann")
                system.owe(refunded, to: "bob")
                #expect(try await system.submit(kept, user: "ann", wait: 20).state == "granted")
                #expect(try await system.submit(refunded, user: "bob", wait: 20).state == "granted")
                try system.appStore.store.refund(refunded.purchase.transactionId, RefundRequest())
                try await system.notify("REFUND", about: refunded)
                try await system.wait("the refund to be told") {
                    try await system.count("select count(*) from revocations") == 1
                }
                let strangers = try await system.appStore.sell { $0.customer = "stranger" }
                try await system.notify("ONE_TIME_CHARGE", about: strangers)
                try await system.wait(unposted: strangers, toBe: "received unclaimed_yet")
                system.owe(strangers, to: "carol")
                #expect(try await system.submit(strangers, user: "carol", wait: 20).state == "granted")
                try await system.wait(unposted: strangers, toBe: "already_granted")
                try await system.hearAll()

                let text = try await system.command("report", "--day", day, "--app", "game")
                for line in [
                    "game receipts notification: 1 (already_granted 1)", "game receipts post: 3 (granted 3)",
                    "game Production notifications notification: 2 (ended 2)",
                    "game Production ends refunded: 1 (revoked 1)",
                ] { #expect(text.contains("  \(line)\n"), "\(text)") }
                #expect(text.contains("\nlonger than the limit\n  nothing\n"), "\(text)")
                let json = try await system.command("report", "--day", day, "--json")
                let report = try #require(
                    try JSONSerialization.jsonObject(with: Data(json.utf8)) as? [String: Any], "\(json)")
                let received = try #require(report["received"] as? [[String: Any]])
                let open = received.filter { $0["balance"] as? Int != 0 }
                #expect(open.isEmpty || open.allSatisfy { $0["account"] as? String == "Apple updates" }, "\(open)")
                #expect(!json.contains("bob") && !json.contains(refunded.purchase.transactionId))

                // The deployment is two days old now, so a report is due at any hour.
                try await system.execute("update apps set first_started_at = now() - interval '2 days'")
                try await system.wait("the report of a past day") {
                    try await system.count("select count(*) from daily_reports where report ->> 'day' = day::text") >= 1
                }
            }
        }
    }
}
