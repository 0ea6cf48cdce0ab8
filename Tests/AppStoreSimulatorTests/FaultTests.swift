import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import Logging
import NIOCore
import NIOHTTP1
import ServiceLifecycle
import Testing

/// Goal: each fault acts as its script says, as often as it says, and every call can be counted afterwards.
/// Method: real HTTP, one fault at a time; the client sees status, header, body, or a broken connection.
@Suite struct FaultTests {
    private func sold(_ store: RunningSimulator) async throws -> (id: String, receipt: String) {
        let sale = try await store.sell(#"{"app":"com.example.game","productId":"p"}"#)
        return (sale.string("transactionId"), sale.string("receipt"))
    }

    private func add(_ json: String, to store: RunningSimulator) async throws {
        let answer = try await store.call(.POST, "/control/faults", json: json)
        try #require(answer.status == 201, "\(answer.text)")
    }

    @Test func aStatusComesForTheNextCallsOnly() async throws {
        try await RunningSimulator.with { store in
            let (id, receipt) = try await sold(store)
            try await add(
                #"{"endpoint":"all","kind":"status","status":503,"body":"down","count":2}"#, to: store)
            let first = try await store.verifyReceipt(receipt)
            #expect(first.status == 503)
            #expect(first.text == "down")
            #expect(try await store.transactionInfo(id).status == 503)
            #expect(try await store.verifyReceipt(receipt).int("status") == 0)
            let listed = try await store.call(.GET, "/control/faults").objects("faults")
            #expect(listed.first?["fired"] as? Int == 2)
            #expect(listed.first?["remaining"] as? Int == 0)
        }
    }

    @Test func aRateLimitNamesTheMillisecond() async throws {
        try await RunningSimulator.with { store in
            let (id, _) = try await sold(store)
            let before = Int64(Date().timeIntervalSince1970 * 1000)
            try await add(
                #"{"endpoint":"transactionInfo","kind":"error","errorCode":4290000,"retryAfterMilliseconds":5000}"#,
                to: store)
            let answer = try await store.transactionInfo(id)
            #expect(answer.status == 429)
            #expect(answer.int("errorCode") == 4_290_000)
            let retryAfter = try #require(answer.headers.first(name: "Retry-After").flatMap { Int64($0) })
            #expect((before + 5000...before + 15_000).contains(retryAfter))
            let removed = try await store.call(.DELETE, "/control/faults")
            #expect(removed.int("removed") == 1)
            #expect(try await store.transactionInfo(id).status == 200)
        }
    }

    @Test func anErrorCodeTellsItsStatus() async throws {
        try await RunningSimulator.with { store in
            let (id, _) = try await sold(store)
            try await add(
                #"{"endpoint":"transactionInfo","kind":"error","errorCode":5000001,"errorMessage":"later","count":1}"#,
                to: store)
            let answer = try await store.transactionInfo(id)
            #expect(answer.status == 500)
            #expect(answer.int("errorCode") == 5_000_001)
            #expect(answer.string("errorMessage") == "later")
        }
    }

    @Test func receiptStatusesAreAnsweredWith200() async throws {
        try await RunningSimulator.with { store in
            let (_, receipt) = try await sold(store)
            try await add(
                #"{"endpoint":"verifyReceipt","kind":"receiptStatus","status":21105,"isRetryable":true,"count":1}"#,
                to: store)
            try await add(
                #"{"endpoint":"verifyReceipt","kind":"receiptStatus","status":21199,"isRetryable":false,"count":1,"#
                    + #""retryableKey":"is-retryable"}"#, to: store)
            let first = try await store.verifyReceipt(receipt)
            #expect(first.status == 200)
            #expect(first.int("status") == 21105)
            #expect(first.json["is_retryable"] as? Bool == true)
            let second = try await store.verifyReceipt(receipt)
            #expect(second.int("status") == 21199)
            #expect(second.json["is-retryable"] as? Bool == false)
        }
    }

    @Test func notFoundHidesATransactionForAWhile() async throws {
        try await RunningSimulator.with { store in
            let (id, _) = try await sold(store)
            try await add(#"{"endpoint":"transactionInfo","kind":"notFound","count":1}"#, to: store)
            let answer = try await store.transactionInfo(id)
            #expect(answer.status == 404)
            #expect(answer.int("errorCode") == 4_040_010)
            #expect(try await store.transactionInfo(id).status == 200)
        }
    }

    @Test func latencyDelaysAndLetsOtherFaultsThrough() async throws {
        try await RunningSimulator.with { store in
            let (_, receipt) = try await sold(store)
            try await add(#"{"endpoint":"all","kind":"latency","milliseconds":300,"count":1}"#, to: store)
            try await add(#"{"endpoint":"all","kind":"status","status":500,"count":1}"#, to: store)
            let start = ContinuousClock.now
            #expect(try await store.verifyReceipt(receipt).status == 500)
            #expect(ContinuousClock.now - start >= .milliseconds(300))
            let call = try #require(store.simulator.calls().first)
            #expect(call.faults == ["latency", "status"])
            #expect(call.milliseconds >= 299)
        }
    }

    @Test func latenciesAreDrawnFromTheirDistribution() async throws {
        try await RunningSimulator.with { store in
            let (_, receipt) = try await sold(store)
            try await add(
                #"{"endpoint":"all","kind":"latency","medianMilliseconds":20,"p99Milliseconds":60,"seed":7}"#,
                to: store)
            for _ in 0..<40 { _ = try await store.verifyReceipt(receipt) }
            let waits = store.simulator.calls().map(\.milliseconds).sorted()
            // Never shorter than drawn; how much longer depends on the machine.
            #expect(waits[20] >= 14)
            #expect(Set(waits).count > 5)
        }
    }

    @Test func aTimeoutNeverAnswers() async throws {
        try await RunningSimulator.with { store in
            let (_, receipt) = try await sold(store)
            try await add(#"{"endpoint":"all","kind":"timeout","seconds":0.4,"count":1}"#, to: store)
            let start = ContinuousClock.now
            await #expect(throws: (any Error).self) { try await store.verifyReceipt(receipt) }
            #expect(ContinuousClock.now - start >= .milliseconds(390))
            #expect(store.simulator.openCalls == (now: 0, most: 1))
            #expect(store.simulator.calls().first?.status == nil)
            #expect(try await store.verifyReceipt(receipt).int("status") == 0)
        }
    }

    @Test func aResetIsAReset() async throws {
        try await RunningSimulator.with { store in
            let (_, receipt) = try await sold(store)
            try await add(#"{"endpoint":"verifyReceipt","kind":"reset","count":1}"#, to: store)
            await #expect {
                _ = try await store.verifyReceipt(receipt)
            } throws: { error in
                // RST arrives as ECONNRESET; a client that notices the close first reports an error of its own.
                (error as? IOError)?.errnoCode == ECONNRESET || (error as? HTTPClientError) == .remoteConnectionClosed
            }
            #expect(try await store.verifyReceipt(receipt).int("status") == 0)
        }
    }

    @Test(arguments: ["bytes", "truncated", "html", "empty", "json"])
    func garbageIsNoAnswer(form: String) async throws {
        try await RunningSimulator.with { store in
            let (id, receipt) = try await sold(store)
            try await add(#"{"endpoint":"all","kind":"garbage","form":"\#(form)"}"#, to: store)
            for answer in [try await store.verifyReceipt(receipt), try await store.transactionInfo(id)] {
                #expect(answer.status == 200)
                #expect(answer.json.isEmpty)
                #expect(answer.body.isEmpty == (form == "empty"))
            }
        }
    }

    @Test func aPercentageIsDrawnFromTheSeed() async throws {
        var runs: [[Bool]] = []
        for _ in 0..<2 {
            try await RunningSimulator.with { store in
                let (_, receipt) = try await sold(store)
                try await add(
                    #"{"endpoint":"all","kind":"status","status":500,"percent":50,"seed":42}"#, to: store)
                var failed: [Bool] = []
                for _ in 0..<40 { failed.append(try await store.verifyReceipt(receipt).status == 500) }
                runs.append(failed)
            }
        }
        #expect(runs[0] == runs[1])
        #expect((8...32).contains(runs[0].count { $0 }))
    }

    @Test func aFaultStaysInItsEnvironmentAndEndpoint() async throws {
        try await RunningSimulator.with { store in
            let (id, receipt) = try await sold(store)
            try await add(
                #"{"endpoint":"verifyReceipt","environment":"Sandbox","kind":"status","status":500}"#, to: store)
            #expect(try await store.verifyReceipt(receipt).status == 200)
            #expect(try await store.verifyReceipt(receipt, "sandbox").status == 500)
            #expect(try await store.transactionInfo(id).status == 200)
        }
    }

    @Test func oneFaultCanBeDeleted() async throws {
        try await RunningSimulator.with { store in
            let first = try store.simulator.fault(FaultRequest(.reset, on: .all))
            try store.simulator.fault(FaultRequest(.reset, on: .verifyReceipt, percent: 10))
            #expect(try await store.call(.DELETE, "/control/faults/\(first)").status == 200)
            #expect(try await store.call(.DELETE, "/control/faults/\(first)").status == 404)
            #expect(try await store.call(.GET, "/control/faults").objects("faults").count == 1)
            store.simulator.clearFaults()
            #expect(try await store.call(.GET, "/control/faults").objects("faults").isEmpty)
        }
    }

    @Test func everyCallIsLogged() async throws {
        try await RunningSimulator.with { store in
            let (id, receipt) = try await sold(store)
            _ = try await store.verifyReceipt(receipt)
            _ = try await store.verifyReceipt("junk", "sandbox")
            _ = try await store.transactionInfo(id)
            _ = try await store.transactionInfo(id, "sandbox")
            let calls = try await store.call(.GET, "/control/calls").objects("calls")
            #expect(
                calls.map { $0["service"] as? String }
                    == ["verifyReceipt", "verifyReceipt", "transactionInfo", "transactionInfo"])
            #expect(calls.map { $0["environment"] as? String } == ["Production", "Sandbox", "Production", "Sandbox"])
            #expect(calls.map { $0["status"] as? Int } == [200, 200, 200, 404])
            #expect(calls.map { $0["code"] as? Int } == [0, 21002, nil, 4_040_010])
            #expect(calls[0]["transactionIds"] as? [String] == [id])
            #expect((calls[0]["receiptHash"] as? String)?.count == 16)
            #expect(calls[2]["transactionIds"] as? [String] == [id])
            let rest = try await store.call(.GET, "/control/calls?after=1&limit=2").objects("calls")
            #expect(rest.map { $0["number"] as? Int } == [2, 3])
            let ledger = try await store.call(.GET, "/control/ledger")
            let counts = ledger.json["calls"] as? [String: Int]
            #expect(counts?.filter { $0.value > 0 } == ["verifyReceipt": 2, "transactionInfo": 2])
            let all = try await store.call(.GET, "/control/calls?limit=9223372036854775807")
            #expect(all.objects("calls").count == 4)
            #expect(all.int("open") == 0)
            let wrong = try await store.call(.GET, "/control/calls?after=x")
            #expect(wrong.status == 400)
            #expect(wrong.string("field") == "after")
        }
    }

    @Test(arguments: [
        (#"{"kind":"reset"}"#, "endpoint"),
        (#"{"endpoint":"all"}"#, "kind"),
        (#"{"endpoint":"receipts","kind":"reset"}"#, "endpoint"),
        (#"{"endpoint":"all","kind":"explode"}"#, "kind"),
        (#"{"endpoint":"all","kind":"reset","count":"two"}"#, "count"),
        (#"{"endpoint":"all","kind":"reset","count":0}"#, "count"),
        (#"{"endpoint":"all","kind":"reset","percent":101}"#, "percent"),
        (#"{"endpoint":"all","kind":"reset","percent":1.5,"count":1e99}"#, "count"),
        (#"{"endpoint":"all","kind":"reset","percentage":5}"#, "percentage"),
        (#"{"endpoint":"all","kind":"reset","seconds":5}"#, "seconds"),
        (#"{"endpoint":"all","kind":"latency"}"#, "milliseconds"),
        (#"{"endpoint":"all","kind":"latency","medianMilliseconds":5}"#, "p99Milliseconds"),
        (#"{"endpoint":"all","kind":"latency","medianMilliseconds":5,"p99Milliseconds":1}"#, "p99Milliseconds"),
        (#"{"endpoint":"all","kind":"timeout","seconds":-1}"#, "seconds"),
        (#"{"endpoint":"all","kind":"status"}"#, "status"),
        (#"{"endpoint":"all","kind":"status","status":99}"#, "status"),
        (#"{"endpoint":"all","kind":"error"}"#, "errorCode"),
        (#"{"endpoint":"all","kind":"receiptStatus","status":21005}"#, "endpoint"),
        (#"{"endpoint":"verifyReceipt","kind":"notFound"}"#, "endpoint"),
        (#"{"endpoint":"orderLookup","kind":"notFound"}"#, "endpoint"),
        (#"{"endpoint":"finish","kind":"foreignRoot"}"#, "endpoint"),
        (#"{"endpoint":"all","kind":"garbage","form":"poem"}"#, "form"),
        (#"{"endpoint":"all","kind":"reset","environment":"Xcode"}"#, "environment"),
    ])
    func aWrongFaultNamesItsField(body: String, field: String) async throws {
        try await RunningSimulator.with { store in
            let refused = try await store.call(.POST, "/control/faults", json: body)
            #expect(refused.status == 400)
            #expect(refused.string("field") == field)
        }
    }

    @Test func shutdownDoesNotWaitForATimeout() async throws {
        let logger = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        let simulator = try AppStoreSimulator(logger: logger)
        try simulator.fault(FaultRequest(.timeout, on: .all))
        let group = ServiceGroup(services: [simulator], logger: logger)
        try await withThrowingTaskGroup(of: Void.self) { tasks in
            tasks.addTask { try await group.run() }
            let store = RunningSimulator(
                simulator: simulator, base: "http://127.0.0.1:\(try await simulator.boundPort)")
            tasks.addTask {
                await #expect(throws: (any Error).self) { try await store.verifyReceipt("x") }
            }
            try await Task.sleep(for: .milliseconds(300))
            let start = ContinuousClock.now
            await group.triggerGracefulShutdown()
            try await tasks.waitForAll()
            #expect(ContinuousClock.now - start < .seconds(10))
        }
        await #expect(throws: SimulatorError.notListening) { try await simulator.boundPort }
    }
}
