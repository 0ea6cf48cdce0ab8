import Foundation
import Postgres
import Purchases
import Synchronization
import Testing

@testable import Reconciliation

/// Goal: all processes together keep to what Apple allows (B9, P26), whoever comes first is served first, nobody waits
/// for long, and there is a statement per slice, not per call. Method: several governors, as several workers have them,
/// on one real database.
@Suite(.timeLimit(.minutes(4))) struct GovernorTests {
    private static let budget = CallBudget(appID: "game", environment: "Production", endpoint: "transactionInfo")

    private static func governor(_ lab: LedgerLab) -> Governor {
        Governor(ledger: lab.ledger, waitersMax: 100, logger: .silent)
    }

    /// Calls that were let through, by lane, with their times.
    private final class Calls: Sendable {
        private let times = Mutex<[(CallLane, ContinuousClock.Instant)]>([])
        private let refusals = Mutex<[CallLane: Int]>([:])

        func note(_ lane: CallLane, _ permit: Governor.Permit) {
            switch permit {
            case .granted: times.withLock { $0.append((lane, .now)) }
            case .refused: refusals.withLock { $0[lane, default: 0] += 1 }
            }
        }

        func granted(_ lane: CallLane? = nil) -> Int {
            times.withLock { $0.filter { lane == nil || $0.0 == lane }.count }
        }

        func refused(_ lane: CallLane) -> Int { refusals.withLock { $0[lane] ?? 0 } }

        /// The most calls in any second.
        var peak: Int {
            let times = times.withLock { $0.map(\.1).sorted() }
            return times.indices.map { first in
                times[first...].prefix { $0 < times[first] + .seconds(1) }.count
            }.max() ?? 0
        }
    }

    /// Asks `perSecond` times a second, for `seconds`, spread over the governors.
    private static func load(
        _ governors: [Governor], _ lane: CallLane, perSecond: Int, seconds: Int, callsPerSecond: Double, _ calls: Calls
    ) async {
        await withDiscardingTaskGroup { group in
            let start = ContinuousClock.now
            for number in 0..<perSecond * seconds {
                try? await Task.sleep(
                    until: start + .seconds(1) * number / perSecond, tolerance: .milliseconds(1), clock: .continuous)
                group.addTask {
                    let governor = governors[number % governors.count]
                    calls.note(lane, await governor.permit(Self.budget, callsPerSecond: callsPerSecond, lane: lane))
                }
            }
        }
    }

    @Test("P26: eight workers, 200 a second asked, 50 allowed: never more in any second, and nearly all of them used")
    func sharedBudget() async throws {
        try await LedgerLab.with(connections: 8) { lab in
            let governors = (0..<8).map { _ in Self.governor(lab) }
            let calls = Calls()
            await Self.load(governors, .fresh, perSecond: 200, seconds: 6, callsPerSecond: 50, calls)
            #expect(calls.peak <= 55, "40 a second in slices of a quarter, of which a second may touch five")
            #expect(calls.granted() >= 6 * 32, "\(calls.granted()) of 240")
            #expect(calls.granted() + calls.refused(.fresh) == 1200)
            let leases = try await lab.number(
                "select fresh_asked from call_budgets where endpoint = 'transactionInfo' and fresh_leased > 0")
            #expect(leases > 0)
        }
    }

    @Test("B9: fresh purchases first, then repairs, then sweeps; each takes what those before it leave")
    func lanes() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let governors = (0..<3).map { _ in Self.governor(lab) }
            let calls = Calls()
            await withDiscardingTaskGroup { group in
                // 40 a second may be called: 20 fresh, so 20 are left for 60 repairs, and none for sweeps.
                for (governor, lane, perSecond) in [
                    (governors[0], CallLane.fresh, 20), (governors[1], .repair, 60), (governors[2], .sweep, 60),
                ] {
                    group.addTask {
                        await Self.load([governor], lane, perSecond: perSecond, seconds: 5, callsPerSecond: 50, calls)
                    }
                }
            }
            #expect(calls.granted(.fresh) >= 95, "\(calls.granted(.fresh)) of 100")
            #expect(calls.granted(.repair) >= 60, "\(calls.granted(.repair))")
            #expect(calls.granted(.sweep) <= 30, "\(calls.granted(.sweep))")
            let alone = Calls()
            await Self.load([governors[2]], .sweep, perSecond: 60, seconds: 3, callsPerSecond: 50, alone)
            #expect(alone.granted(.sweep) >= 3 * 30, "a lane borrows what others leave: \(alone.granted(.sweep))")
        }
    }

    @Test("what is put off ends under a load of fresh purchases that never lets up: a tenth is kept for it")
    func noStarving() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let governors = (0..<2).map { _ in Self.governor(lab) }
            let calls = Calls()
            await withDiscardingTaskGroup { group in
                for (governor, lane) in [(governors[0], CallLane.fresh), (governors[1], .repair)] {
                    group.addTask {
                        await Self.load([governor], lane, perSecond: 100, seconds: 4, callsPerSecond: 50, calls)
                    }
                }
            }
            #expect(calls.granted(.repair) >= 8, "\(calls.granted(.repair))")
            #expect(calls.granted(.fresh) >= 3 * calls.granted(.repair))
        }
    }

    @Test("a small budget: repairs do not take the only call of every slice from fresh purchases")
    func smallBudget() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let governors = (0..<2).map { _ in Self.governor(lab) }
            let calls = Calls()
            await withDiscardingTaskGroup { group in
                for (governor, lane) in [(governors[0], CallLane.fresh), (governors[1], .repair)] {
                    group.addTask {
                        await Self.load([governor], lane, perSecond: 20, seconds: 6, callsPerSecond: 5, calls)
                    }
                }
            }
            #expect(calls.granted(.fresh) >= 3 * max(1, calls.granted(.repair)), "of 24 calls")
            #expect(calls.granted() <= 36, "four a second, for six seconds and the last one's patience")
        }
    }

    @Test("after a burst little is leased again: what is not used is not asked for")
    func burstEnds() async throws {
        let wanted = Mutex<[Int]>([])
        let governor = Governor(
            lease: { question in
                wanted.withLock { $0.append(question.wanted) }
                return .init(calls: question.wanted, endsIn: .milliseconds(100), stoppedFor: .zero)
            }, stop: { _, _ in }, logger: .silent)
        let calls = Calls()
        await Self.load([governor], .fresh, perSecond: 400, seconds: 1, callsPerSecond: 5000, calls)
        try await Task.sleep(for: .milliseconds(500))
        wanted.withLock { $0 = [] }
        await Self.load([governor], .fresh, perSecond: 10, seconds: 2, callsPerSecond: 5000, calls)
        #expect(wanted.withLock { $0 }.allSatisfy { $0 <= 3 }, "\(wanted.withLock { $0 })")
    }

    @Test("workers of an old and a new configuration, with slices of different lengths, keep to one budget")
    func differentSlices() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let governors = (0..<2).map { _ in Self.governor(lab) }
            let calls = Calls()
            await withDiscardingTaskGroup { group in
                for (governor, limit) in [(governors[0], 4.0), (governors[1], 5.0)] {
                    group.addTask {
                        await Self.load([governor], .fresh, perSecond: 20, seconds: 5, callsPerSecond: limit, calls)
                    }
                }
            }
            #expect(calls.granted() <= 7 * 5, "\(calls.granted())")
        }
    }

    @Test("429 stops an endpoint for every worker until Apple's time, and no other endpoint")
    func stops() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let (first, second) = (Self.governor(lab), Self.governor(lab))
            let until = Date().addingTimeInterval(3)
            #expect(await second.permit(Self.budget, callsPerSecond: 50, lane: .fresh) == .granted)
            await first.stop(Self.budget, until: until)
            // What the other had leased ends with its slice.
            try await Task.sleep(for: .milliseconds(300))
            for governor in [first, second] {
                guard case .refused(let named?) = await governor.permit(Self.budget, callsPerSecond: 50, lane: .fresh)
                else {
                    Issue.record("a call was let through")
                    continue
                }
                #expect(abs(named.timeIntervalSince(until)) < 1)
            }
            let other = CallBudget(appID: "game", environment: "Sandbox", endpoint: "transactionInfo")
            #expect(await second.permit(other, callsPerSecond: 5, lane: .fresh) == .granted)
            #expect(try await lab.number("select count(*) from v_call_budgets where stopped_until is not null") == 1)
            try await Task.sleep(for: .seconds(3))
            #expect(await first.permit(Self.budget, callsPerSecond: 50, lane: .fresh) == .granted)
            #expect(await second.permit(Self.budget, callsPerSecond: 50, lane: .fresh) == .granted)
        }
    }

    @Test("leased by slices: 40 calls of a second cost a few statements, not 40")
    func statementsPerSlice() async throws {
        let asked = Mutex(0)
        let governor = Governor(
            lease: { question in
                asked.withLock { $0 += 1 }
                return .init(calls: question.wanted, endsIn: .milliseconds(250), stoppedFor: .zero)
            }, stop: { _, _ in }, logger: .silent)
        let calls = Calls()
        await Self.load([governor], .fresh, perSecond: 200, seconds: 3, callsPerSecond: 5000, calls)
        #expect(calls.granted() == 600)
        #expect(asked.withLock { $0 } <= 100, "\(asked.withLock { $0 }) statements")
    }

    @Test("nobody waits for long: without the database at once, behind a full queue at once, else two seconds at most")
    func bounds() async throws {
        struct Away: Error {}
        let away = Governor(lease: { _ in throw Away() }, stop: { _, _ in }, logger: .silent)
        #expect(await away.permit(Self.budget, callsPerSecond: 50, lane: .fresh) == .refused(until: nil))
        let none = Governor(
            lease: { _ in .init(calls: 0, endsIn: .milliseconds(250), stoppedFor: .zero) }, stop: { _, _ in },
            logger: .silent)
        let start = ContinuousClock.now
        let calls = Calls()
        await withDiscardingTaskGroup { group in
            for _ in 0..<500 {
                group.addTask {
                    calls.note(.fresh, await none.permit(Self.budget, callsPerSecond: 50, lane: .fresh))
                }
            }
        }
        #expect(calls.refused(.fresh) == 500)
        #expect(ContinuousClock.now - start < .seconds(4))
    }

    @Test(
        "slices: the shortest in which a call is allowed, below Apple's limit",
        arguments: [
            (50.0, 10, 0.25), (5, 1, 0.25), (20, 4, 0.25), (2, 1, 1), (1, 3, 4), (0.1, 1, 16), (0.02, 1, 64),
            (0.002, 1, 64), (-1, 1, 64),
        ])
    func slices(perSecond: Double, calls: Int, seconds: Double) throws {
        let slice = CallSlice(callsPerSecond: perSecond)
        #expect(slice.calls == calls && slice.length == .seconds(seconds))
        if perSecond > 0.02 { #expect(Double(slice.calls) / seconds <= perSecond) }
    }
}
