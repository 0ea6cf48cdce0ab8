import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: an endpoint that fails is left alone and tried again, by one rule; only a person ends a suspension.
/// Method: the whole table of states and results, the gaps of the probes, and long random runs.
@Suite struct EndpointHealthTests {
    private static let now = Date(timeIntervalSince1970: 1_800_000_000)
    private static let before = now.addingTimeInterval(-3600)
    private static let longAgo = now.addingTimeInterval(-30 * 86_400)

    private static let working = EndpointHealth()
    private static let almostFailing = EndpointHealth(failures: 7)
    private static let failing = EndpointHealth(state: .failing, failures: 8, failingSince: before, probes: 3)
    private static let exhausted = EndpointHealth(state: .failing, failures: 99, failingSince: longAgo, probes: 91)
    private static let suspended = EndpointHealth(
        state: .suspended, failures: 9, failingSince: before, probes: 3, suspension: .gone)

    private struct Row {
        var from: EndpointHealth
        var result: EndpointHealth.Result
        var isProbe = false
        var to: EndpointHealth
    }

    private static let rows: [Row] = [
        Row(from: working, result: .taken, to: working),
        Row(from: working, result: .failed, to: EndpointHealth(failures: 1)),
        Row(
            from: working, result: .gone,
            to: EndpointHealth(state: .suspended, failures: 1, failingSince: now, suspension: .gone)),
        Row(from: almostFailing, result: .taken, to: working),
        Row(
            from: almostFailing, result: .failed,
            to: EndpointHealth(state: .failing, failures: 8, failingSince: now)),
        Row(
            from: almostFailing, result: .gone,
            to: EndpointHealth(state: .suspended, failures: 7, failingSince: now, suspension: .gone)),
        Row(from: failing, result: .taken, to: working),
        Row(from: failing, result: .taken, isProbe: true, to: working),
        Row(
            from: failing, result: .failed,
            to: EndpointHealth(state: .failing, failures: 9, failingSince: before, probes: 3)),
        Row(
            from: failing, result: .failed, isProbe: true,
            to: EndpointHealth(state: .failing, failures: 9, failingSince: before, probes: 4)),
        Row(
            from: failing, result: .gone, isProbe: true,
            to: EndpointHealth(
                state: .suspended, failures: 8, failingSince: before, probes: 3, suspension: .gone)),
        Row(
            from: exhausted, result: .failed,
            to: EndpointHealth(state: .failing, failures: 100, failingSince: longAgo, probes: 91)),
        Row(
            from: exhausted, result: .failed, isProbe: true,
            to: EndpointHealth(
                state: .suspended, failures: 100, failingSince: longAgo, probes: 92, suspension: .exhausted)),
        Row(from: exhausted, result: .taken, isProbe: true, to: working),
        Row(from: suspended, result: .taken, to: suspended),
        Row(from: suspended, result: .failed, isProbe: true, to: suspended),
        Row(from: suspended, result: .gone, to: suspended),
    ]

    @Test("Each state and each result lead to one state", arguments: 0..<rows.count)
    func leadsTo(index: Int) {
        let row = Self.rows[index]
        #expect(row.from.after(row.result, isProbe: row.isProbe, at: Self.now, scale: 1) == row.to)
    }

    @Test("The table names each state with each result")
    func isWhole() {
        for state in EndpointState.allCases {
            for result in EndpointHealth.Result.allCases {
                #expect(Self.rows.contains { $0.from.state == state && $0.result == result }, "\(state) \(result)")
            }
        }
    }

    @Test(
        "Probes come after 5 s, then each gap is twice the one before, up to 5 min",
        arguments: [(0, 5), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (1_000_000, 300)])
    func gaps(probes: Int, seconds: Int) throws {
        let health = EndpointHealth(state: .failing, failures: 8, failingSince: Self.now, probes: probes)
        for (random, factor) in [(0.0, 0.8), (0.5, 1), (0.999_999, 1.2)] {
            let gap = try #require(health.probeIn(random: random, scale: 1))
            #expect(abs(gap.inSeconds - Double(seconds) * factor) < 0.01)
            let scaled = try #require(health.probeIn(random: random, scale: 0.01))
            #expect(abs(scaled.inSeconds * 100 - gap.inSeconds) < 0.01)
        }
    }

    @Test("An endpoint that works or is suspended is not probed")
    func noProbe() {
        #expect(Self.working.probeIn(random: 0.5, scale: 1) == nil)
        #expect(Self.suspended.probeIn(random: 0.5, scale: 1) == nil)
    }

    @Test("72 hours without an answer suspend nothing; 30 days do, and the scale holds for them")
    func downtime() {
        var health = Self.failing
        health.failingSince = Self.now.addingTimeInterval(-72 * 3600)
        #expect(health.after(.failed, isProbe: true, at: Self.now, scale: 1).state == .failing)
        #expect(health.after(.failed, isProbe: true, at: Self.now, scale: 0.1).suspension == .exhausted)
    }

    /// Method: 2,000 random runs of 60 results; each is compared with what the last results say.
    @Test("A failing endpoint has had eight failures in a row, and one event that is taken ends that")
    func runs() {
        var random = SeededRandom(announcing: "endpoint health")
        let seed = random.seed
        var states: Set<EndpointState> = []
        for _ in 0..<2000 {
            var health = EndpointHealth()
            var inRow = 0
            for step in 0..<60 {
                let result: EndpointHealth.Result = Int.random(in: 0..<12, using: &random) == 0 ? .taken : .failed
                let isProbe = health.state == .failing && Bool.random(using: &random)
                let now = Self.now.addingTimeInterval(Double(step))
                health = health.after(result, isProbe: isProbe, at: now, scale: 1)
                inRow = result == .taken ? 0 : inRow + 1
                states.insert(health.state)
                #expect(health.failures == inRow, "seed \(seed)")
                #expect((health.state == .failing) == (inRow >= EndpointHealth.failuresMax), "seed \(seed)")
                #expect((health.failingSince != nil) == (health.state == .failing), "seed \(seed)")
            }
        }
        #expect(states == [.working, .failing], "seed \(seed)")
    }
}
