import Foundation
import Postgres
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: the races of WritingVerdicts, one by one, on real PostgreSQL. Method: the rival is the same batch in a
/// transaction of another session, which stays open until the server reports that the tested transaction waits for it.
@Suite(.timeLimit(.minutes(8))) struct SettleRaceTests {
    @Test("P4: the winner commits while we wait: the answer names the owner")
    func winnerCommits() async throws {
        try await LedgerLab.with { lab in
            let rival = try await lab.post("u2")
            let ours = try await lab.post("u1")
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(rival, .transactions([.purchase("t1")])), on: session)
                async let blocked = lab.ledger.settle(lab.verdict(ours, .transactions([.purchase("t1")])))
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await blocked?.state == .alreadyGranted)
            }
            #expect(try await lab.outcomes(ours) == ["t1": "already_granted owned_by_another_user"])
            #expect(try await lab.grants == ["t1 u2"])
        }
    }

    @Test("the winner rolls back: we win in the same transaction")
    func winnerRollsBack() async throws {
        try await LedgerLab.with { lab in
            let rival = try await lab.post("u2")
            let ours = try await lab.post("u1")
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(rival, .transactions([.purchase("t1")])), on: session)
                async let blocked = lab.ledger.settle(lab.verdict(ours, .transactions([.purchase("t1")])))
                try await lab.untilBlocked()
                try await session.run(.rollback)
                #expect(try await blocked?.state == .granted)
            }
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.settle(rival, .purchase("t1")) == .alreadyGranted)
        }
    }

    @Test("B9: a verdict about many purchases does not hold up those about few, also where there is one writer")
    func manyPurchases() async throws {
        try await LedgerLab.with(writers: 1) { lab in
            let rival = try await lab.post("u2")
            let heavy = try await lab.post("u1")
            let light = try await lab.post("u3")
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(rival, .transactions([.purchase("t1")])), on: session)
                let many = (1...300).map { Verdict.Entry.purchase("t\($0)") }
                async let blocked = lab.ledger.settle(lab.verdict(heavy, .transactions(many)))
                try await lab.untilBlocked()
                let settled = try await lab.ledger.settle(lab.verdict(light, .transactions([.purchase("fresh")])))
                #expect(settled?.state == .granted)
                #expect(try await lab.state(heavy) == "received", "it still waits")
                try await session.run(.rollback)
                #expect(try await blocked?.state == .granted)
            }
        }
    }

    @Test("F12: two ids of a period, of which one names its billing event, are one purchase to wait for")
    func periodUnderTwoIDs() async throws {
        try await LedgerLab.with { lab in
            for (month, isCommitted) in [true, false].enumerated() {
                let rival = try await lab.post("u2")
                let ours = try await lab.post("u1")
                let bare = Verdict.Entry.period("bare\(month)", month: month + 1)
                let named = Verdict.Entry.period("named\(month)", month: month + 1, lineItem: "\(month)")
                try await lab.withSession { session in
                    try await session.run(.begin)
                    try await lab.settle(lab.verdict(rival, .transactions([bare])), on: session)
                    async let blocked = lab.ledger.settle(lab.verdict(ours, .transactions([named])))
                    try await lab.untilBlocked()
                    try await session.run(isCommitted ? .commit : .rollback)
                    #expect(try await blocked?.state == (isCommitted ? .alreadyGranted : .granted))
                }
            }
            #expect(try await lab.grants == ["bare0 u2", "named1 u1"])
        }
    }

    @Test("F12: workers that bring forty periods at once, each under two ids, grant each once")
    func periodsAtOnce() async throws {
        try await LedgerLab.with { lab in
            var verdicts: [Verdict] = []
            for number in 0..<40 {
                for lineItem in [nil, "w\(number)"] {
                    let entry = Verdict.Entry.period(
                        lineItem ?? "t\(number)", of: "o\(number % 5)", month: number, lineItem: lineItem)
                    verdicts.append(
                        lab.verdict(try await lab.post("u\(number % 3)"), .transactions([entry])))
                }
            }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for verdict in verdicts {
                    group.addTask { while try await lab.ledger.settle(verdict) == nil {} }
                }
                try await group.waitForAll()
            }
            #expect(try await lab.number("select count(*) from grants") == 40)
            #expect(try await lab.number("select count(*) from events where type = 'purchase.granted'") == 40)
            #expect(
                try await lab.texts("select state || ' ' || count(*) from outcomes group by state order by 1")
                    == ["already_granted 40", "granted 40"])
        }
    }

    @Test("a locked receipt does not stop the others of its batch")
    func lockedNeighbour() async throws {
        try await LedgerLab.with { lab in
            let locked = try await lab.post()
            let neighbour = try await lab.post()
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(
                    Statement<Void, Void>("test.lock", "select from receipts where id = '\(locked.id)' for update"))
                // If this transaction waited for the lock, it would end in a time-out, not in an answer.
                let settled = try await lab.settle(
                    lab.verdict(locked, .transactions([.purchase("t1")])),
                    lab.verdict(neighbour, .transactions([.purchase("t2")])))
                #expect(settled == [neighbour.id: .granted])
                try await session.run(.rollback)
            }
            #expect(try await lab.grants == ["t2 u1"], "no stray grant of the receipt that was not ours to judge")
            #expect(try await lab.settle(locked, .purchase("t1")) == .granted)
        }
    }

    @Test("idempotent: the same batch after a lost COMMIT changes nothing")
    func sameStatementTwice() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            let verdict = lab.verdict(posted, .transactions([.purchase("t1"), .purchase("t2")]))
            #expect(try await lab.settle(verdict) == [posted.id: .granted])
            let before = try await lab.texts("select md5(string_agg(r::text, ',')) from receipts r")
            #expect(try await lab.settle(verdict) == [:])
            #expect(try await lab.number("select count(*) from events") == 2)
            #expect(try await lab.texts("select md5(string_agg(r::text, ',')) from receipts r") == before)
        }
    }

    @Test("idempotent: a try that counted is counted once")
    func sameTryTwice() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            let call = Verdict.Call(
                service: "verifyReceipt", environment: "Production", httpStatus: 503, code: nil, milliseconds: 12)
            let verdict = lab.verdict(posted, .receipt(.open(.appleAnswer)), call: call)
            #expect(try await lab.settle(verdict) == [posted.id: .received])
            #expect(try await lab.settle(verdict) == [:])
            let attempts = try await lab.texts(
                "select concat_ws(' ', attempt, reason, service, environment, http_status, code, duration_ms) from attempts"
            )
            #expect(attempts == ["1 apple_answer verifyReceipt Production 503 12"])
            #expect(try await lab.number("select attempt from receipts") == 1)
        }
    }

    @Test("I11: a stale attempt writes nothing")
    func staleAttempt() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            try await lab.settle(lab.verdict(posted, .receipt(.open(.appleUnavailable))))
            #expect(try await lab.settle(posted, attempt: 0, .purchase("t1")) == nil)
            #expect(try await lab.grants == [])
            #expect(try await lab.number("select count(*) from transactions") == 0)
            #expect(try await lab.settle(posted, attempt: 2, .purchase("t1")) == nil, "nor does one from the future")
            #expect(try await lab.settle(posted, attempt: 1, .purchase("t1")) == .granted)
        }
    }

    @Test("P4: three claims on one transaction in one batch, two of them by one user")
    func threeClaims() async throws {
        try await LedgerLab.with { lab in
            var claims: [Posted] = []
            for user in ["u1", "u2", "u1", "u3"] { claims.append(try await lab.post(user)) }
            let settled = try await lab.ledger.settleTogether(
                claims.map { lab.verdict($0, .transactions([.purchase("t1")])) })
            let winner = try #require(settled.first { $0.value == .granted }?.key)
            #expect(settled.values.count { $0 == .granted } == 1, "only the receipt whose insert it was")
            #expect(settled.values.count { $0 == .alreadyGranted } == 3)
            let owner = try #require(claims.first { $0.id == winner }?.userID)
            for claim in claims where claim.id != winner {
                let expected = claim.userID == owner ? "already_granted" : "already_granted owned_by_another_user"
                #expect(try await lab.outcomes(claim) == ["t1": expected])
            }
            #expect(try await lab.grants == ["t1 \(owner)"])
            #expect(try await lab.number("select count(*) from events where type = 'purchase.granted'") == 1)
        }
    }

    @Test("two batches that share purchases in opposite order of their ids do not deadlock")
    func noDeadlock() async throws {
        try await LedgerLab.with { lab in
            let entry = { (id: String, original: String) in
                Verdict.Entry.purchase(id, of: original, kind: .nonConsumable)
            }
            let holder = try await lab.post("u3")
            let first = lab.verdict(
                try await lab.post("u1"), .transactions([entry("a1", "x"), entry("b1", "m"), entry("c1", "y")]))
            let second = lab.verdict(
                try await lab.post("u2"), .transactions([entry("a2", "y"), entry("b2", "x")]))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(holder, .transactions([entry("z", "m")])), on: session)
                // By their ids the first would take x and wait for m, the second take y and wait for x.
                async let one = lab.ledger.settleTogether([first])
                try await lab.untilBlocked()
                async let other = lab.ledger.settleTogether([second])
                try await lab.until("the second neither waits nor ends") {
                    try await lab.number(
                        """
                        select (select count(*) from pg_stat_activity
                          where datname = current_database() and wait_event_type = 'Lock')
                          + (select count(*) from grants)
                        """) >= 2
                }
                try await session.run(.rollback)
                // A deadlock would be thrown here as a serialization failure of one of them.
                _ = try await (one, other)
            }
            try await lab.settle(first)
            try await lab.settle(second)
            #expect(try await lab.number("select count(*) from grants") == 3)
        }
    }
}

extension Statement where Parameters == Void, Row == Void {
    static var begin: Self { Statement("test.begin", "begin") }
    static var commit: Self { Statement("test.commit", "commit") }
    static var rollback: Self { Statement("test.rollback", "rollback") }
}

extension Ledger {
    /// Runs one settle transaction with all of these verdicts.
    func settleTogether(_ verdicts: [Verdict]) async throws -> [UUID: ReceiptState] {
        let rows = try await database.settle(SettleBatch(verdicts: verdicts, parking: .init()))
        return Dictionary(uniqueKeysWithValues: rows.map { ($0.receiptID, $0.state) })
    }
}
