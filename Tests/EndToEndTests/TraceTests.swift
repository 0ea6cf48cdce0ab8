import Adversary
import AppStoreSimulator
import Foundation
import Purchases
import Service
import Testing

extension EndToEnd {
    /// Follows one trace id through every process.
    @Suite struct Traces {
        private typealias Line = [String: String]

        /// The lines of a JSON log; every line must be JSON. The last line is left out while it has no end.
        private static func lines(of process: RunningProcess) throws -> [Line] {
            let log = process.log
            return try log[..<(log.lastIndex(of: "\n") ?? log.startIndex)].split(separator: "\n").map { line in
                try #require(
                    try JSONSerialization.jsonObject(with: Data(line.utf8)) as? Line, "no JSON of strings: \(line)")
            }
        }

        private static func traceparent(_ number: Int, flags: String = "01") -> String {
            "00-4bf92f3577b34da6a3ce929d0e0e\(4000 + number)-00f067aa0ba902b7-\(flags)"
        }

        /// Goal: a post's trace appears in the log of ingest, of the worker and at each call to Apple, beside the
        /// receipt's id in the database. This also holds for a try after a wait at the broker, and for pointers that
        /// share a message.
        /// Method: a legacy receipt whose first call breaks, so that it comes again by a retry queue; then,
        /// while no worker runs, ten signed transactions, each with a trace of its own. Every process logs JSON; no
        /// scheduler runs, so that only the published message can have carried the trace.
        @Test func oneIDIsFollowedThroughEveryPart() async throws {
            try await System.run { system in
                let json = ["MAKEGOOD_LOG_FORMAT": "json"]
                let ingest = try await system.start(.ingest, json)
                let first = try await system.start(.worker, json)
                var client = try system.client
                try system.appStore.store.fault(FaultRequest(.reset, on: .verifyReceipt, count: 1))
                let legacy = try await system.appStore.sell()
                system.owe(legacy, to: "u1")
                client.traceparent = Self.traceparent(0)
                let post = Client.Post(userId: "u1", receipt: legacy.receipt)
                let answer = try await system.submit(post, to: client, wait: 20)
                #expect(answer.header("traceparent") == Self.traceparent(0))
                try await system.settleDebts()
                try await system.wait("the second verdict's line") {
                    try Self.lines(of: first).count { $0["message"] == "receipt judged" } == 2
                }
                let steps = try (Self.lines(of: ingest) + Self.lines(of: first)).filter { $0["trace_id"] != nil }
                #expect(steps.allSatisfy { $0["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4000" })
                #expect(steps.allSatisfy { $0["receipt.id"] == answer.id && $0["level"] == "info" })
                #expect(
                    steps.map { $0["message"] } == [
                        "receipt stored", "Apple was asked", "receipt judged", "Apple was asked", "receipt judged",
                    ])
                #expect(steps.map { $0["http.status"] } == [nil, "", nil, "200", nil])
                #expect(steps.map { $0["receipt.state"] } == [nil, nil, "received", nil, "granted"])
                #expect(try await system.count("select count(*) from receipts where id = '\(answer.id)'") == 1)
                await first.killHard()

                var traces: [String: String] = [:]
                for (number, sale) in try await system.appStore.sell(10).enumerated() {
                    system.owe(sale, to: "u1")
                    client.traceparent = Self.traceparent(number + 1)
                    let post = Client.Post(userId: "u1", signedTransaction: sale.signedTransaction)
                    traces[try await system.submit(post, to: client).id] =
                        "4bf92f3577b34da6a3ce929d0e0e\(4001 + number)"
                }
                let second = try await system.start(.worker, json)
                try await system.settleDebts()
                try await system.wait("ten verdicts' lines") {
                    try Self.lines(of: second).count { $0["message"] == "receipt judged" } == 10
                }
                let judged = try Self.lines(of: second).filter { $0["message"] == "receipt judged" }
                #expect(
                    Dictionary(uniqueKeysWithValues: judged.map { ($0["receipt.id"] ?? "", $0["trace_id"] ?? "") })
                        == traces)
            }
        }

        /// Goal: a trace that the caller does not record costs no line, a malformed one begins a new trace, and a post
        /// without one has none.
        /// Method: three posts that are granted, and the log of both processes at the usual level.
        @Test func whoDoesNotRecordIsNotTold() async throws {
            try await System.run { system in
                let json = ["MAKEGOOD_LOG_FORMAT": "json"]
                let processes = [try await system.start(.ingest, json), try await system.start(.worker, json)]
                var returned: [String?] = []
                for traceparent in [Self.traceparent(1, flags: "00"), "00-nonsense", nil] {
                    var client = try system.client
                    client.traceparent = traceparent
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "u1")
                    let post = Client.Post(userId: "u1", signedTransaction: sale.signedTransaction)
                    returned.append(try await system.submit(post, to: client, wait: 20).header("traceparent"))
                }
                #expect(returned[0] == Self.traceparent(1, flags: "00"))
                #expect(returned[1].flatMap { TraceContext($0) }?.isSampled == false)
                #expect(returned[2] == nil)
                for process in processes {
                    #expect(try Self.lines(of: process).allSatisfy { $0["trace_id"] == nil })
                }
            }
        }
    }
}
