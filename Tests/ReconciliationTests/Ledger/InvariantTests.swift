import Foundation
import Postgres
import Purchases
import Testing

@testable import Reconciliation

/// Goal: `makegood check` sees every kind of damage, names it, and cries over nothing else. Method: a sound ledger with
/// a receipt in every state, one mutation by SQL, and exactly the violations it must cause.
@Suite(.timeLimit(.minutes(8))) struct InvariantTests {
    struct Damage: Sendable, CustomTestStringConvertible {
        let name: String
        let sql: String
        let violations: [String]
        var testDescription: String { name }
    }

    static let damages = [
        Damage(
            name: "a receipt disappeared",
            sql: "delete from receipts where state = 'received'", violations: ["conservation"]),
        Damage(
            name: "a receipt that nobody counted",
            sql: """
                insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, due_at)
                values (gen_random_uuid(), 'game', 'u', 'identifier', 'apple', false, '{}', '', now())
                """, violations: ["conservation"]),
        Damage(
            name: "the payload of an open receipt is gone",
            sql: "delete from payloads p using receipts r where r.id = p.receipt_id and r.due_at is not null",
            violations: ["payloads_of_open"]),
        Damage(
            name: "a whole app's tally is gone", sql: "delete from tallies", violations: ["conservation"]),
        Damage(
            name: "a grant disappeared, its event and outcome stand",
            sql: "delete from grants where transaction_id = 'mine'",
            violations: ["grants_told_by_outcomes", "events_of_grants"]),
        Damage(
            name: "a grant moved to another receipt",
            sql:
                "update grants set receipt_id = (select id from receipts where state = 'held') where transaction_id = 'mine'",
            violations: ["grants_told_by_outcomes", "events_of_grants"]),
        Damage(
            name: "a granted outcome was changed",
            sql: "update outcomes set state = 'rejected' where transaction_id = 'mine' and state = 'granted'",
            violations: ["outcomes_of_grants", "summary"]),
        Damage(
            name: "an outcome disappeared",
            sql: "delete from outcomes where transaction_id = 'mine' and state = 'granted'",
            violations: ["outcomes_of_grants", "summary"]),
        Damage(
            name: "a grant without a receipt",
            sql: "update grants set receipt_id = gen_random_uuid() where transaction_id = 'mine'",
            violations: ["grants_told_by_outcomes", "receipts_of_grants", "events_of_grants"]),
        Damage(
            name: "told granted, nothing given",
            sql: "update receipts set state = 'granted', due_at = null, settled_at = now() where state = 'received'",
            violations: ["summary"]),
        Damage(
            name: "told already granted, nothing given",
            sql: "update receipts set state = 'already_granted' where state = 'rejected'", violations: ["summary"]),
        Damage(
            name: "told rejected, though granted",
            sql: "update receipts set state = 'rejected' where state = 'granted'",
            violations: ["summary"]),
        Damage(
            name: "told rejected, though granted before",
            sql: "update receipts set state = 'rejected' where state = 'already_granted'", violations: ["summary"]),
        Damage(
            name: "ended with something open",
            sql: "update outcomes set state = 'open' where state = 'already_granted'",
            violations: ["summary"]),
        Damage(name: "a grant nobody was told of", sql: "delete from events", violations: ["events_of_grants"]),
        Damage(
            name: "a grant was told that never was",
            sql: """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                values (gen_random_uuid(), 'game', 'purchase.granted', 'u', 'never', gen_random_uuid(), '{}')
                """, violations: ["events_of_grants"]),
        Damage(
            name: "a grant was told twice",
            sql: """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                select gen_random_uuid(), app_id, type, user_id, transaction_id, receipt_id, body from events limit 1
                """, violations: ["events_of_grants"]),
        Damage(
            name: "nobody works",
            sql: "update receipts set due_at = now() - interval '3 hours' where state = 'received'",
            violations: ["due"]),
    ]

    /// One receipt in every state. Grants: `mine` (granted, and already granted to a second receipt).
    private func seed(_ lab: LedgerLab) async throws {
        try await lab.settle(try await lab.post(), .purchase("mine"))
        try await lab.settle(try await lab.post(), .purchase("mine"))
        try await lab.settle(try await lab.post(), .purchase("refunded", .rejected(.refunded)))
        try await lab.settle(try await lab.post(), .purchase("held", .held(.productUnknown)))
        _ = try await lab.post()
        #expect(try await Invariant.check(lab.database, span: .all) == [])
        #expect(try await Invariant.check(lab.database, span: .recent) == [])
    }

    @Test("B1, I6, I17: each damage is found, by its name, today and in the whole history", arguments: damages)
    func damage(_ damage: Damage) async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await seed(lab)
            try await lab.run(damage.sql)
            for span in [Invariant.Span.recent, .all] {
                let found = try await Invariant.check(lab.database, span: span)
                #expect(Set(found.map(\.invariant)) == Set(damage.violations))
                #expect(found.allSatisfy { $0.count > 0 && !$0.examples.isEmpty && $0.examples.count <= 10 })
            }
        }
    }

    @Test("old damage is found by the full check only")
    func spans() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await seed(lab)
            try await lab.run(
                """
                insert into tallies (app_id, day, source, shard, received)
                values ('game', (now() at time zone 'UTC')::date - 10, 'post', 1, 5)
                """)
            #expect(try await Invariant.check(lab.database, span: .recent) == [])
            let found = try await Invariant.check(lab.database, span: .all)
            #expect(found.map(\.invariant) == ["conservation"])
            #expect(found.first?.examples.first?.contains("received 5, rows 0") == true)
        }
    }

    @Test("examples name no user and no whole transaction id")
    func examples() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post("a-user-with-a-name")
            try await lab.settle(posted, .purchase("2000000123456789"))
            try await lab.run("delete from events")
            try await lab.run("update outcomes set state = 'rejected'")
            let found = try await Invariant.check(lab.database, span: .all)
            let text = found.flatMap(\.examples).joined()
            #expect(!found.isEmpty && text.contains("6789"))
            #expect(!text.contains("2000000123456789") && !text.contains("a-user-with-a-name"))
        }
    }

    @Test("many violations are counted, ten are shown")
    func many() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post()
            try await lab.settle(lab.verdict(posted, .transactions((0..<25).map { .purchase("t\($0)") })))
            try await lab.run("delete from events")
            let violation = try #require(try await Invariant.check(lab.database, span: .recent).first)
            #expect(
                violation.invariant == "events_of_grants" && violation.count == 25 && violation.examples.count == 10)
        }
    }
}
