import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: rows from before the beginning of a span do not make the rows within it look broken, and the shortest span
/// judges new rows, however old their receipt is. Method: every way in which a receipt is written twice, with time in
/// between: everything stored is made older.
@Suite(.timeLimit(.minutes(4))) struct InvariantSpanTests {
    /// What a scheduler checks, and spans in between.
    static let spans: [Duration] = [Watch.newSpan, .seconds(1350), .seconds(10_800), Watch.daySpan]
    /// Each time is longer than one more of the spans.
    static let times: [Duration] = [30, 200, 1400, 11_000, 90_000].map { .seconds($0) }

    @Test("I1 to I17: sound in every span, whatever of it is older than the span", arguments: times)
    func sound(_ time: Duration) async throws {
        try await LedgerLab.with { lab in
            let (late, held, tried, several) = (
                try await lab.post(), try await lab.post(), try await lab.post(), try await lab.post()
            )
            let trusted = try await lab.post(kind: .signedTransaction)
            let order = try await lab.place("u1", minutesBefore: LedgerLab.bought.timeIntervalSinceNow / 60)
            try await lab.settle(held, .purchase("held", .held(.productUnknown)))
            try await lab.settle(lab.verdict(tried, .receipt(.open(.appleUnavailable))))
            try await lab.settle(several, .purchase("s1"), .purchase("s2", .held(.productUnknown)))
            try await lab.settle(try await lab.post(), .purchase("mine"))
            try await lab.settle(try await lab.post(), .purchase("refunded", .rejected(.refunded)))
            _ = try await lab.ledger.run(
                Statements.takePlaces,
                .init(
                    receiptID: trusted.id, appID: trusted.appID,
                    transactions: [Verdict.Entry.purchase("trusted").transaction],
                    limits: .init(perUserPerDay: 100, perAppPerDay: 100)))
            try await lab.settle(
                trusted, .purchase("trusted", .provisional(goods: Verdict.Entry.coins, source: .poster)))
            try await isSound(lab)

            try await lab.pass(time)
            try await isSound(lab)

            #expect(try await lab.settle(late, .purchase("late")) == .granted)
            #expect(try await lab.settle(held, .purchase("held")) == .granted)
            #expect(try await lab.settle(tried, attempt: 1, .purchase("tried")) == .granted)
            #expect(try await lab.settle(several, .purchase("s1"), .purchase("s2")) == .granted)
            #expect(try await lab.settle(trusted, .purchase("trusted")) == .granted)
            for id in ["mine", "late"] {
                #expect(try await lab.settle(try await lab.post("u2"), .purchase(id)) == .alreadyGranted)
            }
            try await lab.settle(try await lab.post(), .purchase("refunded", .rejected(.refunded)))
            let ordered = try await lab.matched("ordered", by: "u1", order: order)
            #expect(
                try await lab.settle(lab.verdict(try await lab.post(), .transactions([ordered]))).values.first
                    == .granted)
            #expect(try await lab.number("select count(*) from grants where order_id is not null") == 1)
            try await isSound(lab)

            try await lab.pass(time)
            try await isSound(lab)
        }
    }

    @Test("a late grant is judged by the shortest span, its receipt's state by those that reach to the receipt")
    func old() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post()
            try await lab.pass(.seconds(1400))
            try await lab.settle(posted, .purchase("late"))
            try await lab.run("update outcomes set state = 'rejected'")
            for span in Self.spans {
                let found = try await Invariant.check(lab.database, span: .last(span))
                #expect(
                    found.map(\.invariant)
                        == ["grants_and_outcomes"] + (span < .seconds(1400) ? [] : ["summary"]), "\(span)")
            }
        }
    }

    private func isSound(_ lab: LedgerLab) async throws {
        for span in Self.spans.map(Invariant.Span.last) + [.all] {
            #expect(try await Invariant.check(lab.database, span: span) == [], "\(span)")
        }
    }
}

extension LedgerLab {
    /// Makes everything stored older by `time`, except for the data from Apple. Open rows are due as before, as if a
    /// scheduler had postponed them.
    fileprivate func pass(_ time: Duration) async throws {
        try await run(
            """
            do $$ declare moment record; begin
              set local session_replication_role = replica;
              for moment in
                select attrelid::regclass as of, attname as name from pg_attribute join pg_class on pg_class.oid = attrelid
                where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p') and not relispartition
                  and atttypid = 'timestamptz'::regtype and attgenerated = '' and not attisdropped
                  and relname not in ('transactions', 'schema_migrations') and (relname, attname) <> ('receipts', 'due_at')
              loop
                execute format('update %s set %I = %2$I - interval ''\(time.inSeconds) seconds''', moment.of, moment.name);
              end loop;
              update stored_payloads p set received_on = (r.received_at at time zone 'UTC')::date from receipts r
                where r.id = p.receipt_id;
              delete from tallies;
              insert into tallies (app_id, day, source, shard, received)
                select app_id, (received_at at time zone 'UTC')::date, 'post', 1, count(*) from receipts group by 1, 2;
            end $$
            """)
    }
}
