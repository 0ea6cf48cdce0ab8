import Crypto
import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

extension Statements.RetentionStep {
    static func test(
        batch: Int = 100, asking: [String] = ["asking"]
    ) -> Statements.RetentionStep { .init(days: 90, appsAskingByID: asking, batch: batch) }
}

extension Verdict.Entry {
    /// A renewal of the chain `original`; if that is nil, a consumable.
    static func subscription(
        _ id: String, of original: String? = nil, expiresInDays: Int?
    ) -> Verdict.Entry {
        purchase(id, of: original ?? id, kind: expiresInDays == nil ? .consumable : .autoRenewable) {
            $0.expiresAt = expiresInDays.map { Date.now.addingTimeInterval(TimeInterval($0) * 86_400) }
            $0.webOrderLineItemID = id
        }
    }
}

extension LedgerLab {
    /// Moves a receipt into the past, with its payload, which lies in that day's partition unless the partition is
    /// missing.
    func age(_ posted: Posted, days: Int, inPartition: Bool = true) async throws {
        if inPartition { try await makePartition(daysAgo: days) }
        try await run(
            """
            update receipts set received_at = received_at - interval '\(days) days',
              settled_at = settled_at - interval '\(days) days' where id = '\(posted.id)'
            """)
        try await run(
            "update stored_payloads set received_on = received_on - \(days) where receipt_id = '\(posted.id)'")
    }

    /// Makes a partition as `create_payload_partitions` made it on that day.
    private func makePartition(daysAgo days: Int) async throws {
        try await run(
            """
            do $$ declare
              day date := (now() at time zone 'UTC')::date - \(days);
              name text := 'payloads_' || to_char(day, 'YYYYMMDD');
            begin
              if to_regclass(name) is null then
                execute format('create table %I (like stored_payloads including all)', name);
                execute format('alter table stored_payloads attach partition %I for values from (%L) to (%L)',
                  name, day, day + 1);
              end if;
            end $$
            """)
    }

    /// Stores many receipts of one day in one statement, without the ledger.
    func fill(_ count: Int, ended state: String?, daysAgo days: Int) async throws {
        try await makePartition(daysAgo: days)
        let settled = state == nil ? "null" : "now() - interval '\(days) days'"
        let due = state == nil ? "now() + interval '1 hour'" : "null"
        try await run(
            """
            with new as (
              insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state,
                received_at, settled_at, due_at)
              select gen_random_uuid(), 'game', 'u' || n, 'signed_transaction', 'local', false, '{}', '',
                '\(state ?? "received")', now() - interval '\(days) days', \(settled), \(due)
              from generate_series(1, \(count)) n
              returning id, received_at)
            insert into stored_payloads select id, (received_at at time zone 'UTC')::date,
              (select string_agg(md5(id::text || n), '') from generate_series(1, 60) n) from new
            """)
    }

    /// Runs retention until there is nothing more to do at once and no day is due. A drop gives up if autovacuum or a
    /// slow commit holds the day for 100 ms; the service tries again a minute later, this function at once.
    func retain(asking: [String] = ["asking"]) async throws {
        for _ in 0..<1000 {
            let step = try await ledger.run(Statements.retainPayloads, .test(asking: asking)).first
            if step?.isMore == true { continue }
            if try await oldestDay() ?? 0 <= PayloadRetentionTests.days { return }
            try await Task.sleep(for: .milliseconds(10))
        }
        Issue.record("retention does not come to an end")
    }

    /// Runs `body` and, beside it, commits of one row that wait for no lock. Returns the duration that `body` measured
    /// and the longest of these commits: for so long the machine itself made everybody wait.
    func besideStalls(
        _ body: () async throws -> Duration
    ) async throws -> (measured: Duration, stall: Duration) {
        try await run("create table test_pulse as select 0 as n")
        let pulse = Task { () async throws -> Duration in
            let pause: Duration = .milliseconds(20)
            var longest: Duration = .zero
            try await withSession { session in
                while !Task.isCancelled {
                    let start = ContinuousClock.now
                    try? await Task.sleep(for: pause)
                    try await session.run(Statement<Void, Void>("test.pulse", "update test_pulse set n = n + 1"))
                    longest = max(longest, ContinuousClock.now - start - pause)
                }
            }
            return longest
        }
        defer { pulse.cancel() }
        let measured = try await body()
        pulse.cancel()
        return (measured, try await pulse.value)
    }

    /// Makes every kept payload due for another look.
    func lookAgain(asking: [String] = ["asking"]) async throws {
        try await run("update kept_payloads set kept_until = now()")
        try await retain(asking: asking)
    }

    /// The place of a payload: `day`, the reason for which it is kept, or `gone`.
    func place(_ id: UUID) async throws -> String {
        try await texts(
            """
            select coalesce((select reason from kept_payloads where receipt_id = '\(id)'),
              (select 'day' from payloads where receipt_id = '\(id)'), 'gone')
            """
        ).first ?? ""
    }

    /// The days since the oldest day that has a partition.
    func oldestDay() async throws -> Int? {
        let days = try await ledger.run(
            Statement<Void, Int>(
                "test.oldest", "select (now() at time zone 'UTC')::date - day from payload_days order by day limit 1",
                read: { row throws(PostgresError) in try row.int(0) }), ())
        return days.first
    }

    /// All facts that stay when a payload goes.
    var records: [String] {
        get async throws {
            try await texts(
                ["receipt", "transaction", "outcome", "grant", "event", "attempt"]
                    .map { "select '\($0) ' || r::text from \($0)s r" }.joined(separator: " union all ") + " order by 1"
            )
        }
    }

    /// The invariants that do not hold, and how often: states and dates that the tests set by SQL break some.
    var broken: [String] {
        get async throws { try await Invariant.check(database, span: .all).map { "\($0.id) \($0.count)" } }
    }

    /// Whether the receipt holds this payload, by its hash, which outlives the payload.
    func isPosted(_ payload: String, as id: UUID) async throws -> Bool {
        let hash = try await texts("select encode(payload_sha256, 'hex') from receipts where id = '\(id)'").first
        return SHA256.hash(data: Data(payload.utf8)).map { String(format: "%02x", $0) }.joined() == hash
    }

    /// Checks that no open receipt has lost its proof. Other invariants do not hold where tests set states and dates by
    /// SQL.
    func expectSound() async throws {
        let violations = try await Invariant.check(database, span: .all)
        #expect(violations.filter { $0.id == "I15" } == [])
    }
}
