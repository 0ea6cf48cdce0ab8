import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: the store has one clock, which goes ahead and never back, and a restart does not change that (B13).
/// Method: real HTTP; the machine's clock is the measure.
@Suite struct ClockTests {
    private static let day: Int64 = 86_400_000
    private var machine: Int64 { Int64(Date().timeIntervalSince1970 * 1000) }

    private func now(_ store: RunningSimulator) async throws -> Int64 {
        try #require(try await store.control(.GET, "clock").json["now"] as? Int64)
    }

    @Test func `everything is dated by it`() async throws {
        try await RunningSimulator.with { store in
            #expect(abs(try await now(store) - machine) < 10_000)
            let moved = try await store.control(.POST, "clock", #"{"advance":"P10D"}"#)
            #expect(moved.int("offsetMilliseconds") == 10 * Int(Self.day))
            try await store.control(.POST, "clock", #"{"advance":1.5}"#)
            #expect(try await store.control(.GET, "clock").int("offsetMilliseconds") == 10 * Int(Self.day) + 1500)
            let before = machine + 10 * Self.day
            let sale = try await store.sold()
            let id = sale.string("transactionId")
            let transaction = try SignedTransaction(sale.string("signedTransaction"))
            let info = try await store.transactionInfo(id)
            let told = try SignedTransaction(info.string("signedTransactionInfo"))
            let verified = try await store.verifyReceipt(sale.string("receipt"))
            let receipt = try #require(verified.json["receipt"] as? [String: Any])
            let held = try await store.control(
                .POST, "notifications",
                #"{"app":"com.example.game","notificationType":"REFUND","transactionId":"\#(id)"}"#)
            try await store.control(.POST, "purchases/\(id)/refund")
            let refunded = try await store.control(.GET, "purchases/\(id)")
            for date in [
                transaction.int("purchaseDate"), transaction.int("signedDate"), told.int("signedDate"),
                Int64(receipt["request_date_ms"] as? String ?? ""),
                try SignedTransaction(held.string("signedPayload")).int("signedDate"),
                refunded.json["revocationDate"] as? Int64, store.simulator.calls().last?.at,
            ] {
                #expect((before...before + 60_000).contains(try #require(date)))
            }
            // Signed in a time to come, by a certificate that is good then.
            let then = Date(timeIntervalSince1970: Double(before) / 1000)
            #expect(try await told.defect(root: store.simulator.rootCertificateDER, at: then) == nil)
        }
    }

    @Test func `a client whose clock stands still is not refused`() async throws {
        try await RunningSimulator.with { store in
            let id = try await store.sold().string("transactionId")
            let now = Int(Date().timeIntervalSince1970)
            try await store.control(.POST, "clock", #"{"advance":"P1Y"}"#)
            #expect(try await store.transactionInfo(id).status == 200)
            let follows = try store.bearer(bundleId: "com.example.game", issuedAt: now + 365 * 86_400)
            #expect(try await store.transactionInfo(id, token: follows).status == 200)
        }
    }

    @Test func `a token without iat is taken, as Apple's own Python library makes it`() async throws {
        try await RunningSimulator.with { store in
            let id = try await store.sold().string("transactionId")
            for (lifetime, status) in [(300, 200), (3590, 200), (3700, 401), (-1, 401)] {
                let token = try store.bearer(bundleId: "com.example.game", lifetime: lifetime, hasIssuedAt: false)
                #expect(try await store.transactionInfo(id, token: token).status == status, "\(lifetime)")
            }
        }
    }

    @Test func `it does not go back, not even by a restart`() async throws {
        try await withFolder { folder in
            let configuration = SimulatorConfiguration(stateDirectory: folder, seed: 1)
            var stood: Int64 = 0
            var subscription = ""
            try await RunningSimulator.with(configuration) { store in
                subscription = try await store.sold(
                    #""type":"Auto-Renewable Subscription","period":"P30D""#
                ).string("transactionId")
                try await store.control(.POST, "clock", #"{"advance":"P40D"}"#)
                stood = try await now(store)
                let to = stood + Self.day
                try await store.control(.POST, "clock", #"{"to":\#(to)}"#)
                #expect(try await now(store) >= to)
                for (body, field) in [
                    (#"{"to":\#(to - Self.day)}"#, "to"), (#"{"to":"2001-01-01T00:00:00Z"}"#, "to"),
                    (#"{"to":"soon"}"#, "to"), (#"{"advance":-1}"#, "advance"), (#"{"advance":"1D"}"#, "advance"),
                    (#"{"advance":"P3Y"}"#, "advance"), ("{}", "advance"), (#"{"advance":1,"to":1}"#, "to"),
                    (#"{"by":1}"#, "by"), (#"{"advance":{}}"#, "advance"),
                ] {
                    let answer = try await store.call(.POST, "/control/clock", json: body)
                    #expect(answer.status == 400 && answer.string("field") == field, "\(body) \(answer.text)")
                }
                stood = try await now(store)
            }
            try await RunningSimulator.with(configuration) { store in
                #expect(try await now(store) >= stood)
                // The life goes on too.
                try await store.control(.POST, "clock", #"{"advance":"P60D"}"#)
                let answer = try await store.control(.GET, "subscriptions/\(subscription)")
                #expect((answer.json["transactionIds"] as? [String])?.count == 4)
                #expect(answer.string("period") == "P30D")
            }
        }
    }

    @Test func `a month is a calendar month`() async throws {
        try await RunningSimulator.with { store in
            func end(_ start: String, _ period: String) async throws -> Int64? {
                let milliseconds = try #require(ISO8601DateFormatter().date(from: start)).timeIntervalSince1970 * 1000
                let sale = try await store.sold(
                    #""type":"Auto-Renewable Subscription","period":"\#(period)","purchaseDate":\#(Int64(milliseconds))"#
                )
                return try SignedTransaction(sale.string("signedTransaction")).int("expiresDate")
            }
            for (start, period, expected) in [
                ("2026-01-31T10:00:00Z", "P1M", "2026-02-28T10:00:00Z"),
                ("2024-01-31T10:00:00Z", "P1M", "2024-02-29T10:00:00Z"),
                ("2024-02-29T10:00:00Z", "P1Y", "2025-02-28T10:00:00Z"),
                ("2025-12-15T23:59:59Z", "P2M", "2026-02-15T23:59:59Z"),
                ("2026-03-01T00:00:00Z", "P1W", "2026-03-08T00:00:00Z"),
                ("2026-03-01T00:00:00Z", "P1Y2M3DT4H5M6S", "2027-05-04T04:05:06Z"),
            ] {
                let date = try #require(ISO8601DateFormatter().date(from: expected))
                #expect(try await end(start, period) == Int64(date.timeIntervalSince1970 * 1000), "\(start) \(period)")
            }
        }
    }
}
