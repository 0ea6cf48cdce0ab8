import FaultProxy
import Foundation
import Glibc
import Reconciliation

/// kill -9 at random moments: only kills that interrupted something count.
package struct KillRun: Sendable {
    private let plan: Matrix.Plan
    private let count: Int
    private let tell: @Sendable (String) -> Void

    /// - Parameter count: kills that must count, of all kinds together; a fifth of them of each kind.
    package init(_ plan: Matrix.Plan, count: Int, tell: @escaping @Sendable (String) -> Void) {
        self.plan = plan
        self.count = count
        self.tell = tell
    }

    package func run() async throws -> Matrix.Row {
        tell("seed \(plan.seed), scale \(plan.scale), \(plan.rate) purchases/s, \(count) kills that count")
        let start = ContinuousClock.now
        return try await PrivateServers.run(script: plan.script) { servers in
            let shape = World.Shape(
                executable: plan.executable, scale: plan.scale, rate: plan.rate, seed: plan.seed)
            var row = try await World.run(shape, on: servers, name: "kills") { world in
                try await Scene(world: world).play(drill)
            }
            row.seconds = ((ContinuousClock.now - start) / .seconds(1)).rounded()
            return row
        }
    }

    private struct Tally {
        var kills = 0
        var counted = 0
    }

    private var drill: Drill {
        Drill("kills", "kill -9 at random moments", expected: "\(count) kills that interrupted something; zero loss") {
            stage in
            var tallies: [Member.Role: Tally] = [:]
            // One ingest in two rings no bell, so that the schedulers always have something to do.
            stage.ingests.last?.broker.set(.cut)
            let least = (count + 4) / 5
            func counted(_ role: Member.Role) -> Int { tallies[role]?.counted ?? 0 }
            try await withThrowingTaskGroup(of: Void.self) { group in
                while Member.Role.allCases.contains(where: { counted($0) < least })
                    || tallies.values.map(\.counted).reduce(0, +) < count
                {
                    try await stage.sleep(.milliseconds(stage.random(200)))
                    // Of a kind that lacks kills, if one does; another of the kind stays up.
                    let lacking = Member.Role.allCases.filter { counted($0) < least }
                    let roles = lacking.isEmpty ? Member.Role.allCases : lacking
                    let members = stage.world.members(roles[stage.random(roles.count)]).filter(\.isUp)
                    guard members.count > 1 else { continue }
                    let member = members[stage.random(members.count)]
                    let isCounted = await stage.strike(member)
                    tallies[member.role, default: Tally()].kills += 1
                    if isCounted { tallies[member.role, default: Tally()].counted += 1 }
                    let total = tallies.values.map(\.counted).reduce(0, +)
                    if total.isMultiple(of: 50), isCounted { tell("\(total) kills that count") }
                    group.addTask { try await member.start() }
                }
                try await group.waitForAll()
            }
            for role in Member.Role.allCases {
                let tally = tallies[role] ?? Tally()
                stage.expect(
                    "kills of \(role.rawValue)", tally.counted >= least,
                    "\(tally.kills), of which \(tally.counted) interrupted something")
            }
            stage.expectAnswers([0, 503])
        }
    }
}

extension Stage {
    /// kill -9; whether it interrupted something. Stopped first, so that what the proxies saw last is what it did last.
    func strike(_ member: Member) async -> Bool {
        let address = member.address
        // It works most of the time, or in short bursts: the moment of one is waited for.
        let end = ContinuousClock.now + .milliseconds(500)
        while !member.work.counts.isWorking, ContinuousClock.now < end {
            try? await Task.sleep(for: .microseconds(500), tolerance: .zero)
        }
        member.process?.send(SIGSTOP)
        try? await Task.sleep(for: .milliseconds(20))
        let waiting = address.map { world.traffic.openRequests(at: $0) } ?? 0
        let isWorking = member.work.counts.isWorking || waiting > 0
        interrupt()
        await member.kill()
        return isWorking
    }
}
