import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: receipts whose messages were lost are found: the scheduler takes apps in turn, oldest first, and any number of
/// schedulers claim no row twice and no row for ever (RetriesAndRescue). Method: due times made by SQL, claims as the
/// scheduler makes them.
@Suite(.timeLimit(.minutes(8))) struct ClaimTests {
    private static func claim(_ apps: [String] = ["game"], _ limit: Int = 1000, lane: Lane = .apple) -> Statements.Claim
    {
        .init(
            lane: lane, apps: apps, limit: limit, rescueDelay: lane.rescueDelay, rescueDelayMax: .seconds(3600))
    }

    /// Stores `count` rows of an app, due since `start`, `start` - 1 … seconds.
    private func postDue(_ count: Int, app: String = "game", since start: Int = 1000, in lab: LedgerLab) async throws
        -> [UUID]
    {
        var ids: [UUID] = []
        for number in 0..<count {
            let posted = try await lab.post(app: app)
            try await lab.run(
                "update receipts set due_at = now() - interval '\(start - number) seconds' where id = '\(posted.id)'")
            ids.append(posted.id)
        }
        return ids
    }

    @Test("apps in turn, oldest first; another lane and what is not due stay")
    func order() async throws {
        try await LedgerLab.with { lab in
            let flood = try await postDue(6, app: "flood", since: 5000, in: lab)
            let small = try await postDue(2, app: "small", since: 20, in: lab)
            let local = try await lab.post(kind: .signedTransaction)
            _ = try await lab.post()
            let first = try await lab.ledger.run(Statements.claim, Self.claim(["flood", "small"], 4))
            #expect(Set(first.map(\.id)) == [flood[0], flood[1], small[0], small[1]])
            let rest = try await lab.ledger.run(Statements.claim, Self.claim(["flood", "small"], 4))
            #expect(Set(rest.map(\.id)) == Set(flood[2...]))
            #expect(try await lab.ledger.run(Statements.claim, Self.claim(["flood", "small", "game"])) == [])
            try await lab.run("update receipts set due_at = now() where id = '\(local.id)'")
            #expect(try await lab.ledger.run(Statements.claim, Self.claim(lane: .apple)) == [])
            #expect(try await lab.ledger.run(Statements.claim, Self.claim(lane: .local)).map(\.id) == [local.id])
        }
    }

    @Test("P27, P28: schedulers side by side never claim one row twice", arguments: [21, 22] as [UInt64])
    func concurrent(seed: UInt64) async throws {
        try await LedgerLab.with(connections: 4) { lab in
            for number in 0..<600 {
                _ = try await lab.ledger.insert(
                    Submission(appID: "game", userID: "u", proof: .receipt("\(seed) \(number)")))
            }
            try await lab.run("update receipts set due_at = now() - interval '1 second' * random() * 100")
            let claimed = try await withThrowingTaskGroup(of: [UUID].self) { group in
                for scheduler in 0..<4 {
                    group.addTask {
                        var random = SeededRandom(seed: seed + UInt64(scheduler))
                        var mine: [UUID] = []
                        while true {
                            let limit = Int.random(in: 1...50, using: &random)
                            let rows = try await lab.ledger.run(Statements.claim, Self.claim(["game"], limit))
                            if rows.isEmpty, try await lab.unclaimed == 0 { return mine }
                            mine += rows.map(\.id)
                        }
                    }
                }
                return try await group.reduce(into: [UUID]()) { $0 += $1 }
            }
            #expect(claimed.count == 600, "seed \(seed)")
            #expect(Set(claimed).count == 600)
            #expect(try await lab.number("select max(rescues) from receipts") == 1)
        }
    }

    @Test("a claim is a lease that doubles; the rescue after the eighth parks as never_worked and moves the attempt on")
    func lease() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            var leases: [Int] = []
            for rescue in 1...Statements.rescuesMax {
                try await lab.run("update receipts set due_at = now()")
                let row = try #require(try await lab.ledger.run(Statements.claim, Self.claim()).first)
                #expect(row == ClaimedReceipt(id: posted.id, attempt: 0, isNewlyParked: false), "rescue \(rescue)")
                leases.append(try await lab.leaseSeconds)
                #expect(try await lab.ledger.run(Statements.claim, Self.claim()) == [], "it is leased")
            }
            // Jitter adds up to half of the lease, and takes up to a quarter off the longest lease.
            for (lease, least) in zip(leases, [60, 120, 240, 480, 960, 1920, 2700, 2700]) {
                #expect((least...min(least * 3 / 2, 3600)).contains(lease), "\(leases)")
            }
            try await lab.run("update receipts set due_at = now()")
            let parked = try #require(try await lab.ledger.run(Statements.claim, Self.claim()).first)
            #expect(parked == ClaimedReceipt(id: posted.id, attempt: 1, isNewlyParked: true))
            #expect(try await lab.state(posted) == "parked never_worked")
            #expect(try await lab.settle(posted, attempt: 0, .purchase("t1")) == nil, "old messages are stale")
            try await lab.run("update receipts set due_at = now()")
            let again = try #require(try await lab.ledger.run(Statements.claim, Self.claim()).first)
            #expect(again == ClaimedReceipt(id: posted.id, attempt: 1, isNewlyParked: false), "parked is tried again")
            #expect(try await lab.settle(posted, attempt: 1, .purchase("t1")) == .granted)
        }
    }

    @Test("every verdict and every postponement sets rescues to 0")
    func rescuesEnd() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            try await lab.run("update receipts set due_at = now()")
            _ = try await lab.ledger.run(Statements.claim, Self.claim())
            try await lab.settle(lab.verdict(posted, .receipt(.open(.appleUnavailable))))
            #expect(try await lab.number("select rescues from receipts") == 0)
            try await lab.run("update receipts set due_at = now()")
            _ = try await lab.ledger.run(Statements.claim, Self.claim())
            #expect((60...90).contains(try await lab.leaseSeconds), "the lease starts anew")
            _ = try await lab.ledger.postpone(
                Postponement(receiptID: posted.id, attempt: 1, dueIn: .seconds(1), reason: .appleUnavailable))
            #expect(try await lab.number("select rescues from receipts") == 0)
        }
    }

    @Test("held and parked rows are claimed for ever and keep their state")
    func heldForEver() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            try await lab.settle(posted, .purchase("t1", .held(.productUnknown)))
            for _ in 0..<12 {
                try await lab.run("update receipts set due_at = now()")
                let row = try #require(try await lab.ledger.run(Statements.claim, Self.claim()).first)
                #expect(!row.isNewlyParked)
            }
            #expect(try await lab.state(posted) == "held product_unknown")
            #expect((2700...3600).contains(try await lab.leaseSeconds))
        }
    }

    @Test("who postpones or reroutes waits for nobody: a row that somebody holds is passed over")
    func heldRowsArePassedOver() async throws {
        try await LedgerLab.with { lab in
            let held = try await lab.post(kind: .signedTransaction)
            let neighbour = try await lab.post(kind: .signedTransaction)
            let later = [held, neighbour].map {
                Postponement(receiptID: $0.id, attempt: 0, dueIn: .seconds(900), reason: .appleUnavailable)
            }
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(
                    Statement<Void, Void>("test.lock", "select from receipts where id = '\(held.id)' for update"))
                // If these statements waited for the lock, they would end in a time-out, not in an answer.
                for statement in [Statements.postpone, Statements.reroute] {
                    #expect(try await lab.ledger.run(statement, later) == [neighbour.id])
                }
                let rows = try await lab.texts(
                    "select concat_ws(' ', id = '\(neighbour.id)', lane, reason, due_at > now() + interval '10 minutes') "
                        + "from receipts order by 1")
                #expect(rows == ["f local f", "t apple apple_unavailable t"])
                try await session.run(.rollback)
            }
            #expect(Set(try await lab.ledger.run(Statements.postpone, later)) == [held.id, neighbour.id])
        }
    }

    @Test("many who postpone the same rows in any order: none waits, and none ends for a deadlock")
    func postponedByMany() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            var later: [Postponement] = []
            for _ in 0..<40 {
                later.append(
                    Postponement(
                        receiptID: try await lab.post().id, attempt: 0, dueIn: .seconds(900),
                        reason: .appleUnavailable))
            }
            var random = SeededRandom(announcing: "postponedByMany")
            let orders = (0..<4).map { _ in (0..<25).map { _ in later.shuffled(using: &random) } }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for batches in orders {
                    group.addTask {
                        for batch in batches { _ = try await lab.ledger.run(Statements.postpone, batch) }
                    }
                }
                try await group.waitForAll()
            }
            #expect(
                try await lab.number(
                    "select count(*) from receipts where due_at > now() + interval '10 minutes' and reason is not null")
                    == 40)
        }
    }

    @Test("a lane changes once, guarded like a verdict")
    func reroute() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            let move = { (attempt: Int) in
                [Postponement(receiptID: posted.id, attempt: attempt, dueIn: .seconds(60), reason: .appleUnavailable)]
            }
            #expect(try await lab.ledger.run(Statements.reroute, move(1)) == [])
            #expect(try await lab.ledger.run(Statements.reroute, move(0)) == [posted.id])
            #expect(try await lab.ledger.fetch(posted.id)?.lane == .apple)
            try await lab.settle(posted, .purchase("t1"))
            #expect(try await lab.ledger.run(Statements.reroute, move(0)) == [])
        }
    }
}

extension LedgerLab {
    fileprivate var unclaimed: Int {
        get async throws { try await number("select count(*) from receipts where due_at <= now()") }
    }

    /// The lease of the only receipt.
    fileprivate var leaseSeconds: Int {
        get async throws { try await number("select round(extract(epoch from due_at - now()))::int from receipts") }
    }
}
