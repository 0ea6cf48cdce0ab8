import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: each chain whose time has come is asked about by one worker, those first that nobody asked about since their
/// period began, and only that worker moves the chain's position (S3-54). Method: the statements of the subscription
/// sweep on the real database, with rows of each kind and a second session.
@Suite(.timeLimit(.minutes(8))) struct ChainAskTests {
    private static let lease = Duration.seconds(60)

    private static func claim(_ limit: Int = 64, _ apps: [String] = ["game"]) -> Statements.ChainClaim {
        .init(appIDs: apps, limit: limit, lease: lease)
    }

    /// Stores a chain. Times are SQL.
    private static func chain(
        _ id: String, _ state: String?, until: String = "now()", askAt: String? = nil, asks: Int = 0,
        app: String = "game", in lab: LedgerLab
    ) async throws {
        try await lab.run(
            """
            insert into chains (app_id, environment, original_transaction_id, state, expires_at, ask_at, asks)
            values ('\(app)', 'Production', '\(id)', \(state.map { "'\($0)'" } ?? "null"), \(until),
              \(askAt ?? "null"), \(asks))
            """)
    }

    private static func row(_ id: String, _ columns: String, in lab: LedgerLab) async throws -> String? {
        try await lab.texts(
            "select concat_ws(' ', \(columns)) from chains where original_transaction_id = '\(id)'"
        ).first
    }

    @Test("due chains come one after the other: first those never asked about, also those of before this version")
    func order() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let past = { (minutes: Int) in "now() - interval '\(minutes) minutes'" }
            try await Self.chain("told-active", "active", until: past(1), in: lab)
            try await Self.chain("told-retry", "in_retry", until: past(3), in: lab)
            try await Self.chain("told-grace", "in_grace", until: past(2), in: lab)
            try await Self.chain("first-look", nil, until: "null", askAt: past(4), in: lab)
            try await Self.chain("asked", "active", until: past(90), askAt: past(80), asks: 1, in: lab)
            try await Self.chain("asked-often", "expired", until: past(90), askAt: past(70), asks: 9, in: lab)
            // Not their turn.
            try await Self.chain("ended", "expired", until: past(9), in: lab)
            try await Self.chain("replaced", "replaced", until: past(9), in: lab)
            try await Self.chain("nobody", nil, until: "null", in: lab)
            try await Self.chain("never", "active", until: past(9), askAt: "'infinity'", in: lab)
            try await Self.chain("runs", "active", until: "now() + interval '1 minute'", in: lab)
            try await Self.chain("later", "active", until: past(9), askAt: "now() + interval '1 minute'", in: lab)
            try await Self.chain("other", "active", until: past(99), app: "other", in: lab)
            var turns: [String] = []
            while let chain = try await lab.ledger.run(Statements.claimChains, Self.claim(1)).first {
                turns.append(chain.originalID)
                try #require(turns.count < 20)
            }
            #expect(turns == ["first-look", "told-retry", "told-grace", "told-active", "asked", "asked-often"])
            // Of several apps as well, and each app has its own places.
            try await lab.run(
                "update chains set ask_at = null, ask_until = null where original_transaction_id like 'told-%'")
            let both = try await lab.ledger.run(Statements.claimChains, Self.claim(2, ["game", "other"]))
            #expect(Set(both.map(\.originalID)) == ["other", "told-retry"])
            #expect(both.allSatisfy { $0.asked == nil && $0.failures == 0 && $0.newest == nil })
        }
    }

    @Test("two workers at one moment claim different chains, and neither waits; a dead worker's chains come again")
    func twoClaimers() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            for number in 0..<6 {
                try await Self.chain("c\(number)", "active", until: "now() - interval '\(9 - number) minutes'", in: lab)
            }
            try await lab.withSession { session in
                try await session.run(.begin)
                let first = try await session.run(Statements.claimChains, Self.claim(3))
                let second = try await lab.ledger.run(Statements.claimChains, Self.claim(64))
                #expect(first.map(\.originalID).sorted() == ["c0", "c1", "c2"])
                #expect(second.map(\.originalID).sorted() == ["c3", "c4", "c5"])
                try await session.run(.commit)
            }
            #expect(try await lab.ledger.run(Statements.claimChains, Self.claim()).isEmpty)
            // The leases end.
            try await lab.run(
                "update chains set ask_at = now(), ask_until = now() where original_transaction_id < 'c3'")
            let again = try await lab.ledger.run(Statements.claimChains, Self.claim())
            #expect(again.map(\.reader) == [2, 2, 2])
        }
    }

    @Test("only the reader of the last claim moves the position; answers are counted for each period")
    func position() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.chain("c", "active", in: lab)
            let stale = try #require(try await lab.ledger.run(Statements.claimChains, Self.claim()).first)
            try await lab.run("update chains set ask_at = now()")
            let claimed = try #require(try await lab.ledger.run(Statements.claimChains, Self.claim()).first)
            var asked = AskedChain(stale)
            (asked.isAnswered, asked.askAt, asked.endsAt) = (true, LedgerLab.bought, LedgerLab.bought)
            _ = try await lab.ledger.run(Statements.reportChains, [asked])
            #expect(try await Self.row("c", "asks, ask_until > now()", in: lab) == "0 t")

            // A question without an answer.
            var failed = AskedChain(claimed)
            failed.dueIn = .seconds(30)
            _ = try await lab.ledger.run(Statements.reportChains, [failed])
            let columns = "asks, ask_failures, ask_until is null, asked_at is null, ask_at > now() + interval '20 s'"
            #expect(try await Self.row("c", columns, in: lab) == "0 1 t t t")

            // Two answers about one period, and one about the next, which differs from the row by a fraction.
            for (end, asks) in [(0.0, 1), (0.0004, 2), (3600, 1)] {
                try await lab.run("update chains set ask_at = now()")
                let claimed = try #require(try await lab.ledger.run(Statements.claimChains, Self.claim()).first)
                #expect(claimed.failures == (asks == 1 && end == 0 ? 1 : 0))
                var asked = AskedChain(claimed)
                (asked.isAnswered, asked.endsAt) = (true, LedgerLab.bought + end)
                _ = try await lab.ledger.run(Statements.reportChains, [asked])
                #expect(
                    try await Self.row("c", "asks, ask_failures, asked_at = now(), ask_at", in: lab)?.hasSuffix(
                        "infinity")
                        == true)
                #expect(try await lab.number("select asks from chains") == asks)
            }
            try await lab.run("update chains set ask_at = now()")
            let last = try #require(try await lab.ledger.run(Statements.claimChains, Self.claim()).first)
            #expect(last.asked?.count == 1 && last.asked?.end.isSame(as: LedgerLab.bought + 3600) == true)
        }
    }

    @Test("facts, receipts and the position of an answer are one transaction")
    func oneTransaction() async throws {
        try await LedgerLab.with { lab in
            let first = Verdict.Entry.period("p1")
            try await lab.settle(try await lab.post(), first)
            try await lab.followUp()
            try await lab.run("update chains set ask_at = now()")
            let claimed = try #require(try await lab.ledger.run(Statements.claimChains, Self.claim()).first)
            #expect(claimed.originalID == "o" && claimed.newest?.id == "p1")
            let next = Verdict.Entry.period("p2", month: 2).transaction
            var hearing = Hearing(notification: nil, appID: "game", net: .subscription)
            hearing.transactions = [next]
            hearing.submissions = [Submission(unposted: next, jws: "p2", of: "game", source: .sweep)]
            var asked = AskedChain(claimed)
            (asked.isAnswered, asked.endsAt, asked.askAt) = (true, next.expiresAt, next.expiresAt)
            hearing.askedChain = asked
            #expect(try await lab.ledger.hear(hearing).count == 1)
            #expect(
                try await lab.texts("select concat_ws(' ', source, lane, state) from receipts where source <> 'post'")
                    == ["sweep unposted received"])
            #expect(try await Self.row("o", "asks, ask_until is null", in: lab) == "1 t")
            #expect(
                try await lab.texts("select concat_ws(' ', transaction_id, kind, net) from net_catches")
                    == ["p2 purchase subscription"])
            // The same answer again: nothing is new.
            #expect(try await lab.ledger.hear(hearing) == [])
        }
    }

    @Test("the follow-up sets the time, makes no question under way come earlier, and begins to count at a new period")
    func followUp() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), .period("p1"))
            try await lab.followUp()
            let end = try #require(Verdict.Entry.period("p1").transaction.expiresAt).timeIntervalSince1970
            let wait = "extract(epoch from ask_at) - \(end) between 30 and 150"
            #expect(try await Self.row("o", wait, in: lab) == "t")
            try await lab.run(
                """
                update chains set asks = 4, asked_at = now(), asked_end = to_timestamp(\(end)),
                  ask_until = '2200-01-01T00:00:00Z'
                """)
            // Facts about the same period.
            try await lab.hear(Verdict.Entry.period("p1").transaction.signed(99) { $0.quantity = 1 })
            try await lab.run(
                "insert into chain_marks (app_id, environment, original_transaction_id) values ('game', 'Production', 'o')"
            )
            try await lab.followUp()
            #expect(try await Self.row("o", "asks, ask_at = ask_until", in: lab) == "4 t")
            try await lab.run("update chains set ask_until = null")
            try await lab.settle(try await lab.post(), .period("p2", month: 2))
            try await lab.followUp()
            #expect(
                try await Self.row(
                    "o", "asks, extract(epoch from ask_at) - \(end + 30 * 86_400) between 30 and 150", in: lab)
                    == "0 t")
        }
    }

    @Test("L6: a state that still differs after the follow-up's time is a difference, and ends when it is gone")
    func comparison() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            for id in ["late", "same", "closed", "replaced", "untold", "newer"] {
                let state = ["replaced": "replaced", "same": "expired", "untold": nil][id] ?? "active"
                try await Self.chain(id, state, askAt: "now()", in: lab)
            }
            for chain in try await lab.ledger.run(Statements.claimChains, Self.claim()) {
                var asked = AskedChain(chain)
                (asked.isAnswered, asked.appleState, asked.comparedIn) = (true, .expired, .seconds(600))
                _ = try await lab.ledger.run(Statements.reportChains, [asked])
            }
            #expect(
                try await lab.texts(
                    "select original_transaction_id from chains where compare_at is not null order by 1")
                    == ["closed", "late", "newer"])
            #expect(
                try await lab.ledger.run(Statements.compareChains, .init(appIDs: ["game"], again: .seconds(3600))) == [
                    0
                ])
            let pass = "update chains set compare_at = now() where compare_at is not null"
            try await lab.run(
                """
                insert into differences (category, subject, app_id, environment, net, ended_at, ended_by)
                values ('state_differs', 'closed', 'game', 'Production', 'subscription', now(), 'ann')
                """)
            try await lab.run(
                """
                update chains set renewal = '{}', renewal_signed_at = now() + interval '2 minutes'
                where original_transaction_id = 'newer'
                """)
            let open =
                "select subject || ' ' || (details ->> 'apple') || ' ' || (details ->> 'told') from differences "
                + "where ended_at is null"
            try await lab.run(pass)
            #expect(
                try await lab.ledger.run(Statements.compareChains, .init(appIDs: ["game"], again: .seconds(3600))) == [
                    3
                ])
            #expect(try await lab.texts(open) == ["late expired active"])
            // It is looked at again, and the follow-up has told the state since.
            try await lab.run(pass)
            #expect(
                try await lab.ledger.run(Statements.compareChains, .init(appIDs: ["game"], again: .seconds(3600))) == [
                    2
                ])
            #expect(try await lab.texts(open) == ["late expired active"])
            try await lab.run("update chains set state = 'expired' where original_transaction_id = 'late'")
            try await lab.run(pass)
            #expect(
                try await lab.ledger.run(Statements.compareChains, .init(appIDs: ["game"], again: .seconds(3600))) == [
                    2
                ])
            #expect(try await lab.texts(open) == [])
            #expect(
                try await lab.texts("select original_transaction_id from chains where compare_at is not null") == [
                    "closed"
                ])
        }
    }

    @Test("verifyReceipt is asked with the newest receipt of the chain whose payload is stored, in its day or kept")
    func receipt() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let question = Statements.ChainQuestion(appID: "game", environment: "Production", originalID: "o")
            #expect(try await lab.ledger.run(Statements.receiptOfChain, question).isEmpty)
            let old = try await lab.post()
            try await lab.settle(old, .period("p1"))
            try await lab.run("update receipts set received_at = received_at - interval '1 minute'")
            let signed = try await lab.post(kind: .signedTransaction)
            try await lab.settle(signed, .period("p2", month: 2))
            #expect(try await lab.ledger.run(Statements.receiptOfChain, question).map(\.receiptID) == [old.id])
            let new = try await lab.post()
            try await lab.settle(new, .period("p2", month: 2))
            #expect(try await lab.outcomes(new)["p2"]?.hasPrefix("already_granted") == true)
            let found = try #require(try await lab.ledger.run(Statements.receiptOfChain, question).first)
            #expect(found.receiptID == new.id)
            #expect(try await lab.ledger.run(Statements.fetchReceipts, [new.id]).first?.proof.payload == found.payload)
            // Retention has moved it.
            try await lab.run(
                """
                with gone as (delete from stored_payloads where receipt_id = '\(new.id)')
                insert into kept_payloads (receipt_id, body, reason, kept_until)
                values ('\(new.id)', 'kept', 'chain', now() + interval '1 day')
                """)
            #expect(try await lab.ledger.run(Statements.receiptOfChain, question).map(\.payload) == ["kept"])
            #expect(try await lab.ledger.run(Statements.unjudged, ["p1", "p2", "p3"]) == ["p3"])
        }
    }
}

/// Goal: the claim of the sweep reads an index, whatever was planned while the table was empty, beside a million chains
/// of which all are due. Method: as `KeptPlanTests`.
@Suite(.serialized, .timeLimit(.minutes(8))) struct ChainAskPlanTests {
    @Test("what was planned on an empty table claims, reports and compares with few blocks beside a million chains")
    func plans() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            try await lab.run("alter table chains set (autovacuum_enabled = false)")
            let claim = Statements.ChainClaim(appIDs: ["game", "other"], limit: 4, lease: .seconds(60))
            let work = { () async throws -> (Int, Int) in
                let claimed = try await lab.ledger.run(Statements.claimChains, claim)
                var answers = claimed.map(AskedChain.init)
                for place in answers.indices {
                    (answers[place].isAnswered, answers[place].appleState) = (true, .expired)
                }
                _ = try await lab.ledger.run(Statements.reportChains, answers)
                return (
                    claimed.count,
                    try await lab.ledger.run(Statements.compareChains, .init(appIDs: ["game"], again: .seconds(60)))
                        .first ?? 0
                )
            }
            for _ in 0..<6 { _ = try await work() }
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, state, expires_at, ask_at, asks)
                select 'game', 'Production', 'c' || n, case when n % 4 = 0 then 'expired' else 'active' end,
                  now() - n * interval '3 ms',
                  case n % 4 when 0 then 'infinity' when 1 then now() - n * interval '3 ms' end, n % 3
                from generate_series(1, 1000000) n
                """)
            for _ in 0..<2 { _ = try await work() }
            var done = (0, 0)
            let blocks = try await lab.touched { done = try await work() }
            print("chains: a claim, its report and a comparison touch \(blocks) blocks")
            #expect(done.0 == 4 && done.1 > 0)
            #expect(blocks < 2000)
        }
    }
}
