import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: a command of a person finds exactly the receipts that the person named, may be repeated, and is audited; a
/// halt stops the right calls, and its end frees them (RetriesAndRescue).
@Suite(.timeLimit(.minutes(8))) struct RepairTests {
    private func reject(_ reason: Reason, app: String = "game", in lab: LedgerLab) async throws -> Posted {
        let posted = try await lab.post(app: app)
        try await lab.settle(lab.verdict(posted, .receipt(.rejected(reason))))
        return posted
    }

    @Test("a typo in bundleId, mended, and rejudge: everything is granted")
    func rejudge() async throws {
        try await LedgerLab.with { lab in
            let repairs = Repairs(database: lab.database, actor: "ann")
            let wrong = try await reject(.wrongApp, in: lab)
            let forged = try await reject(.signature, in: lab)
            let other = try await reject(.wrongApp, app: "other", in: lab)
            let mixed = try await lab.post()
            try await lab.settle(
                mixed, .purchase("t5", .rejected(.wrongApp)), .purchase("t6", .rejected(.wrongApp)))
            #expect(
                try await repairs.countRejected("game", reason: nil, since: nil).map { "\($0.reason) \($0.count)" }
                    == ["signature 1", "wrong_app 2"])
            #expect(try await repairs.rejudge("game", reason: "wrong_app", since: nil) == 2)
            #expect(try await repairs.rejudge("game", reason: "wrong_app", since: nil) == 0)
            #expect(try await lab.state(wrong) == "received")
            #expect(try await lab.state(forged) == "rejected signature")
            #expect(try await lab.state(other) == "rejected wrong_app")
            #expect(try await lab.outcomes(mixed) == ["t5": "open", "t6": "open"])
            #expect(try await lab.number("select count(*) from receipts where due_at <= now()") == 2)
            let row = try #require(try await lab.ledger.fetch(wrong.id))
            #expect(try await lab.settle(wrong, attempt: row.attempt, .purchase("t1")) == .granted)
            let attempt = try #require(try await lab.ledger.fetch(mixed.id)?.attempt)
            #expect(try await lab.settle(mixed, attempt: attempt, .purchase("t5"), .purchase("t6")) == .granted)
            #expect(try await lab.outcomes(mixed) == ["t5": "granted", "t6": "granted"])
            let audits = try await lab.texts(
                "select actor || ' ' || action || ' ' || (details ->> 'receipts') from audits order by id")
            #expect(audits == ["ann support.rejudge 2", "ann support.rejudge 0"])
        }
    }

    @Test("a verdict from before the rejudging cannot reject again")
    func staleAfterRejudging() async throws {
        try await LedgerLab.with { lab in
            let posted = try await reject(.untrustedRoot, in: lab)
            _ = try await Repairs(database: lab.database, actor: "ann").rejudge("game", reason: nil, since: nil)
            // A slow worker judges with the old roots.
            try await lab.settle(lab.verdict(posted, attempt: 0, .receipt(.rejected(.untrustedRoot))))
            #expect(try await lab.state(posted) == "received")
        }
    }

    @Test("rejudge takes what was rejected since a time, in any number of batches")
    func rejudgeMany() async throws {
        try await LedgerLab.with { lab in
            let count = Repairs.batchRows + 7
            for number in 0..<count {
                _ = try await lab.ledger.insert(
                    Submission(appID: "game", userID: "u", proof: .receipt("many \(number)")))
            }
            try await lab.run(
                """
                update receipts set state = 'rejected', reason = 'untrusted_root', due_at = null,
                  settled_at = now() - interval '2 hours'
                """)
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.rejudge("game", reason: nil, since: .now - 3600) == 0)
            #expect(try await repairs.rejudge("game", reason: nil, since: .now - 3 * 3600) == count)
            #expect(try await lab.number("select count(*) from receipts where state = 'received'") == count)
        }
    }

    @Test("what cannot be judged any more is counted and delays no other receipt: dropped, or its header is missing")
    func rejudgeWithoutPayload() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let header = String(repeating: "h", count: 3000) + "."
            let count = Repairs.batchRows + 20
            for number in 0..<count {
                _ = try await lab.ledger.insert(
                    Submission(appID: "game", userID: "u", proof: .signedTransaction(header + "\(number).s")))
            }
            let last = try await lab.post()
            let dropped = try await lab.post()
            let question = try await lab.post(kind: .identifier)
            // The command takes the oldest first.
            try await lab.run(
                """
                update receipts set state = 'rejected', reason = 'untrusted_root', due_at = null,
                  settled_at = case when id in ('\(last.id)', '\(question.id)') then now()
                    else now() - interval '2 hours' end
                """)
            try await lab.run("delete from stored_payloads where receipt_id = '\(dropped.id)'")
            let shared = try await lab.number("select count(*) from stored_payloads where header_sha256 is not null")
            #expect(shared > Repairs.batchRows)
            try await lab.run("delete from proof_headers")
            let repairs = Repairs(database: lab.database, actor: "ann")
            let counts = try await repairs.countRejected("game", reason: nil, since: nil)
            #expect(counts == [.init(reason: "untrusted_root", count: count + 3, withoutPayload: shared + 1)])
            let judged = try await repairs.rejudge("game", reason: "untrusted_root", since: nil)
            #expect(judged == count + 2 - shared)
            for posted in [last, question] { #expect(try await lab.state(posted) == "received") }
            #expect(try await lab.state(dropped) == "rejected untrusted_root")
            // The header comes back with the next purchase, and the rest can be judged.
            _ = try await lab.ledger.insert(
                Submission(appID: "game", userID: "u", proof: .signedTransaction(header + "next.s")))
            #expect(try await repairs.rejudge("game", reason: nil, since: nil) == shared)
        }
    }

    @Test("redrive makes due what is held or parked, by app and reason")
    func redrive() async throws {
        try await LedgerLab.with { lab in
            let held = try await lab.post()
            try await lab.settle(held, .purchase("t1", .held(.productUnknown)))
            let sandbox = try await lab.post()
            try await lab.settle(sandbox, .purchase("t2", .held(.sandbox)))
            let other = try await lab.post(app: "other")
            try await lab.settle(other, .purchase("t3", .held(.productUnknown)))
            let parked = try await lab.post()
            try await lab.run("update receipts set state = 'parked', reason = 'never_worked' where id = '\(parked.id)'")
            _ = try await lab.post()
            let repairs = Repairs(database: lab.database, actor: "bob")
            let due = {
                try await lab.texts("select id::text from receipts where due_at <= now() order by 1")
            }
            let names = { (posted: [Posted]) in posted.map { $0.id.uuidString.lowercased() }.sorted() }
            #expect(try await repairs.redrive([.held], appID: "game", reason: "product_unknown") == 1)
            #expect(try await due() == names([held]))
            #expect(try await repairs.redrive([.held, .parked], appID: nil, reason: nil) == 3)
            #expect(try await due() == names([held, sandbox, other, parked]))
            #expect(try await repairs.redrive([.held, .parked], appID: nil, reason: nil) == 0)
            try await lab.run("update receipts set due_at = now() + interval '1 hour'")
            let open = try await lab.post()
            #expect(try await repairs.redrive([sandbox.id, parked.id, open.id, UUID()]).count == 2)
            #expect(try await due() == names([sandbox, parked]))
        }
    }

    @Test("a halt is raised once, probed once a minute, and its end frees exactly what waited for it")
    func halts() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let halt = Halt(
                appID: "game", service: "verifyReceipt", environment: "Production", credential: "abc", reason: "refused"
            )
            let raised = try await Self.eight { try await lab.ledger.run(Statements.halt, halt).count }
            #expect(raised == 1)
            #expect(try await lab.ledger.run(Statements.listHalts, ()) == [halt])
            #expect(try await lab.ledger.run(Statements.takeProbe, halt) == [], "the first probe is a minute away")
            for _ in 0..<2 {
                try await lab.run("update halts set probe_at = now()")
                let taken = try await Self.eight { try await lab.ledger.run(Statements.takeProbe, halt).count }
                #expect(taken == 1, "one process a minute")
            }
            let waiting = try await lab.post()
            let other = try await lab.post(app: "other")
            let busy = try await lab.post()
            for posted in [waiting, other] {
                _ = try await lab.ledger.postpone(
                    Postponement(receiptID: posted.id, attempt: 0, dueIn: .seconds(60), reason: .halted))
            }
            _ = try await lab.ledger.postpone(
                Postponement(receiptID: busy.id, attempt: 0, dueIn: .seconds(60), reason: .appleUnavailable))
            #expect(try await lab.ledger.run(Statements.endHalt, halt) == [1])
            #expect(
                try await lab.texts("select id::text from receipts where due_at <= now()") == [
                    waiting.id.uuidString.lowercased()
                ])
            #expect(try await lab.ledger.run(Statements.listHalts, ()) == [])
            #expect(try await lab.ledger.run(Statements.endHalt, halt) == [0])
        }
    }

    @Test("a pause is a halt by hand, and resume frees what waited")
    func pause() async throws {
        try await LedgerLab.with { lab in
            let repairs = Repairs(database: lab.database, actor: "bob")
            try await repairs.pause("game")
            try await repairs.pause("game")
            #expect(try await lab.ledger.run(Statements.listHalts, ()) == [Halt.pause("game")])
            let posted = try await lab.post()
            _ = try await lab.ledger.postpone(
                Postponement(receiptID: posted.id, attempt: 0, dueIn: .seconds(60), reason: .halted))
            #expect(try await repairs.resume("game") == 1)
            #expect(try await repairs.resume("game") == 0)
        }
    }

    @Test("S1-11: a changed configuration makes the app's held rows due; the first start is stored once")
    func configurationChange() async throws {
        try await LedgerLab.with { lab in
            let start = { (app: String, hash: UInt8) in
                let start = Statements.AppStart(appID: app, configurationHash: [hash])
                let first = try await lab.ledger.run(Statements.rememberApp, start).first
                _ = try await lab.ledger.run(Statements.takeConfiguration, start)
                return first
            }
            let first = try #require(try await start("game", 1))
            let held = try await lab.post()
            try await lab.settle(held, .purchase("t1", .held(.productUnknown)))
            let other = try await lab.post(app: "other")
            try await lab.settle(other, .purchase("t2", .held(.productUnknown)))
            _ = try await start("other", 1)
            let due = { try await lab.texts("select app_id from receipts where due_at <= now()") }
            #expect(try await start("game", 1) == first)
            #expect(try await due() == [])
            #expect(try await start("game", 2) == first)
            #expect(try await due() == ["game"])
            // A process that has not loaded the new configuration judges the receipt again; the process wakes the row
            // when it loads it.
            try await lab.settle(held, .purchase("t1", .held(.productUnknown)))
            #expect(try await due() == [])
            let late = Statements.AppStart(appID: "game", configurationHash: [2], isChanged: true)
            #expect(try await lab.ledger.run(Statements.takeConfiguration, late) == [1])
            #expect(try await due() == ["game"])
        }
    }

    /// The sum of eight concurrent calls.
    private static func eight(_ call: @escaping @Sendable () async throws -> Int) async throws -> Int {
        try await withThrowingTaskGroup(of: Int.self) { group in
            for _ in 0..<8 { group.addTask { try await call() } }
            return try await group.reduce(0, +)
        }
    }
}
