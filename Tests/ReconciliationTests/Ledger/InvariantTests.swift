import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: `makegood check` finds and names every kind of damage, and reports nothing else. Method: a sound ledger with a
/// receipt in every state, one mutation by SQL, and exactly the violations that the mutation must cause.
@Suite(.timeLimit(.minutes(8))) struct InvariantTests {
    struct Damage: Sendable, CustomTestStringConvertible {
        let name: String
        let sql: String
        /// The names of exactly the invariants that no longer hold.
        let violations: [String]
        var testDescription: String { name }

        init(_ name: String, _ sql: String, _ violations: String...) {
            self.init(name, sql, violations: violations)
        }

        init(_ name: String, _ sql: String, violations: [String]) {
            self.name = name
            self.sql = sql
            self.violations = violations
        }
    }

    static let damages = damagesOfPurchases + hearingDamages + deliveryDamages

    private static let damagesOfPurchases = [
        Damage("a receipt disappeared", "delete from receipts where state = 'received'", "conservation"),
        Damage(
            "a receipt that nobody counted",
            """
            insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, due_at)
            values (gen_random_uuid(), 'game', 'u', 'identifier', 'apple', false, '{}', '', now())
            """, "conservation"),
        Damage("a whole app's tally is gone", "delete from tallies", "conservation"),
        Damage(
            "the database would take a purchase twice", "alter table grants drop constraint grants_purchase_key",
            "single_grants"),
        Damage(
            "the database would take a transaction twice", "alter table grants drop constraint grants_pkey",
            "single_grants"),
        Damage("the database would take a period twice", "drop index grants_period_key", "single_grants"),
        Damage(
            "a purchase is granted twice",
            """
            do $$ begin
              alter table grants drop constraint grants_purchase_key;
              insert into grants select 'twin', purchase_key, app_id, environment, user_id, customer_id, receipt_id,
                product_id, quantity, goods, binding_source, granted_at from grants;
              insert into outcomes select receipt_id, 'twin', state, reason, binding_source, decided_at from outcomes
                where state = 'granted';
              insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                select gen_random_uuid(), app_id, type, user_id, 'twin', receipt_id, body from events;
            end $$
            """, "single_grants"),
        Damage(
            "a grant to somebody who posted nothing", "update grants set user_id = 'thief'", "owners_of_grants"),
        Damage(
            "a grant disappeared, its event and outcome stand", "delete from grants where transaction_id = 'mine'",
            "grants_and_outcomes", "events_of_grants", "grants_behind"),
        Damage(
            "told already granted, and nobody was given it",
            """
            with other as (
              update outcomes set transaction_id = 'other' where state = 'already_granted' returning transaction_id)
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
              purchased_at, facts)
            select other.transaction_id, app_id, environment, other.transaction_id, product_id, 1, purchased_at, '{}'
            from other, transactions where transactions.transaction_id = 'mine'
            """, "grants_behind"),
        Damage(
            "told already granted, of a period that nobody was given, in a chain with another one",
            """
            with other as (
              update outcomes set transaction_id = 'other' where state = 'already_granted' returning transaction_id)
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
              purchased_at, expires_at, facts)
            select other.transaction_id, app_id, environment, original_transaction_id, product_id, 1,
              purchased_at + interval '30 days', purchased_at + interval '60 days', '{}'
            from other, transactions where transactions.transaction_id = 'mine'
            """, "grants_behind"),
        Damage(
            "a grant moved to another receipt",
            """
            update grants set receipt_id = (select id from receipts where state = 'held') where transaction_id = 'mine'
            """, "grants_and_outcomes", "events_of_grants"),
        Damage(
            "a granted outcome was changed",
            "update outcomes set state = 'rejected' where transaction_id = 'mine' and state = 'granted'",
            "grants_and_outcomes", "summary"),
        Damage(
            "an outcome disappeared", "delete from outcomes where transaction_id = 'mine' and state = 'granted'",
            "grants_and_outcomes", "summary"),
        Damage(
            "a grant without a receipt",
            "update grants set receipt_id = gen_random_uuid() where transaction_id = 'mine'",
            "grants_and_outcomes", "events_of_grants"),
        Damage(
            "a grant names an order that nobody placed",
            "update grants set order_id = gen_random_uuid() where transaction_id = 'mine'", "orders_and_grants"),
        Damage(
            "a grant names an order of somebody else",
            """
            with placed as (
              insert into orders (id, app_id, user_id, product_id)
              select gen_random_uuid(), app_id, user_id || 'x', product_id from grants where transaction_id = 'mine'
              returning id)
            update grants set order_id = (select id from placed) where transaction_id = 'mine'
            """, "orders_and_grants"),
        Damage(
            "two grants have one order",
            """
            do $$ begin
            drop index grants_of_order;
            with placed as (
              insert into orders (id, app_id, user_id, product_id)
              select gen_random_uuid(), app_id, user_id, product_id from grants where transaction_id = 'mine' returning id),
            doubled as (
              insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                quantity, goods, binding_source, order_id)
              select 'mine2', 'mine2', app_id, environment, user_id, receipt_id, product_id, quantity, goods,
                binding_source, (select id from placed) from grants where transaction_id = 'mine')
            update grants set order_id = (select id from placed) where transaction_id = 'mine';
            end $$
            """, "orders_and_grants", "grants_and_outcomes", "events_of_grants"),
        Damage(
            "goods say that they are a bonus, and nobody was given one",
            """
            update grants set goods = '[{"item": "gem", "amount": 5, "bonus": "first"}]' where transaction_id = 'mine'
            """, "bonuses"),
        Damage(
            "a bonus was given, and its grant does not have it",
            """
            do $$ begin
              alter table given_bonuses disable trigger given_bonuses_have_grants;
              insert into given_bonuses (app_id, user_id, bonus, period, transaction_id, goods)
                select app_id, user_id, 'first', '', transaction_id, '[]' from grants;
            end $$
            """, "bonuses"),
        Damage(
            "told granted, nothing given",
            """
            update receipts set state = 'granted', due_at = null, settled_at = now(), judged_at = now()
            where state = 'received'
            """, "summary"),
        Damage(
            "told already granted, nothing given",
            "update receipts set state = 'already_granted' where state = 'rejected'", "summary"),
        Damage(
            "told rejected, though granted",
            "update receipts set state = 'rejected', reason = 'refunded' where state = 'granted'", "summary"),
        Damage(
            "told rejected, though granted before",
            "update receipts set state = 'rejected', reason = 'refunded' where state = 'already_granted'", "summary"),
        Damage(
            "ended with something open", "update outcomes set state = 'open' where state = 'already_granted'",
            "summary"),
        Damage("ended without a verdict", "update receipts set judged_at = null", "transitions"),
        Damage("held for no reason", "update receipts set reason = null where state = 'held'", "transitions"),
        Damage(
            "parked at once", "update receipts set state = 'parked', reason = 'halted' where state = 'received'",
            "transitions"),
        Damage(
            "received again after it was granted",
            """
            update receipts set state = 'received', settled_at = null, due_at = now() + interval '1 hour'
            where state = 'granted'
            """, "transitions"),
        Damage(
            "nobody works", "update receipts set due_at = now() - interval '3 hours' where state = 'received'", "due"),
        Damage(
            "a second worker wrote an attempt that was over",
            """
            with tried as (update receipts set attempt = 3 where state = 'received' returning id)
            insert into attempts (receipt_id, attempt, at)
            select id, n, now() - interval '1 minute' * n from tried, (values (1), (3)) v(n)
            """, "order_of_attempts"),
        Damage(
            "an attempt that the row never had",
            "insert into attempts (receipt_id, attempt) select id, 1 from receipts where state = 'received'",
            "stale_writes"),
        Damage(
            "an attempt after the end",
            """
            with ended as (update receipts set attempt = 1 where state = 'granted' returning id, settled_at)
            insert into attempts (receipt_id, attempt, at) select id, 1, settled_at + interval '2 seconds' from ended
            """, "stale_writes"),
        Damage(
            "an outcome after the end",
            "update outcomes set decided_at = decided_at + interval '2 seconds' where state = 'already_granted'",
            "stale_writes"),
        Damage(
            "Apple was asked again at once",
            """
            with tried as (update receipts set attempt = 2 where state = 'received' returning id)
            insert into attempts (receipt_id, attempt, at)
            select id, n, now() + interval '1 second' * n from tried, (values (1), (2)) v(n)
            """, "backoff"),
        Damage(
            "Apple was asked again after ten minutes, when a quarter of an hour was due",
            """
            with tried as (update receipts set attempt = 6 where state = 'received' returning id)
            insert into attempts (receipt_id, attempt, at)
            select id, n, now() + interval '10 minutes' * n from tried, (values (5), (6)) v(n)
            """, "backoff"),
        Damage(
            "the proof of an open receipt is gone",
            "delete from stored_payloads where receipt_id in (select id from receipts where state = 'received')",
            "payloads"),
        Damage("a proof was changed", "update stored_payloads set body = body || ' '", "payloads"),
        Damage(
            "granted although known to be refunded",
            """
            with known as (
              update transactions set revoked_at = now() - interval '1 day', signed_at = now() - interval '1 hour'
              where transaction_id = 'mine')
            insert into outcomes (receipt_id, transaction_id, state, reason, decided_at)
            select id, 'mine', 'rejected', 'refunded', now() - interval '1 minute' from receipts where state = 'rejected'
            """, "refunds"),
        Damage(
            "Apple was told that a refunded purchase is another user's", Self.appleUpdate("set_token", of: "refunded"),
            "apple_updates"),
        Damage(
            "Apple was told that it is finished before anybody looked at it", Self.appleUpdate("finish", of: "new"),
            "apple_updates"),
        Damage(
            "given on trust, its receipt ended without Apple's answer", Self.trust("null"), "provisional_grants"),
        Damage("confirmed, and nobody was told", Self.trust("now()"), "provisional_grants"),
        Damage(
            "given on trust, and no mark of it",
            "update outcomes set reason = 'unconfirmed' where state = 'granted'", "provisional_grants"),
        Damage(
            "given again, after it had been imported",
            """
            insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id, product_id,
              purchased_at, imported_at)
            select transaction_id, app_id, environment, transaction_id, user_id, product_id, now(),
              granted_at - interval '1 minute'
            from grants
            """, "imported_grants"),
        Damage("a grant nobody was told of", "delete from events", "events_of_grants"),
        Damage(
            "a grant was told that never was",
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            values (gen_random_uuid(), 'game', 'purchase.granted', 'u', 'never', gen_random_uuid(), '{}')
            """, "events_of_grants"),
        Damage(
            "a grant was told twice",
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select gen_random_uuid(), app_id, type, user_id, transaction_id, receipt_id, body from events limit 1
            """, "events_of_grants"),
    ]

    private static func appleUpdate(_ kind: String, of transaction: String) -> String {
        """
        insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
        values ('\(transaction)', '\(kind)', 'game', 'Production', '\(transaction)', now(),
          \(kind == "set_token" ? "gen_random_uuid()" : "null"))
        """
    }

    private static func trust(_ confirmedAt: String) -> String {
        """
        insert into provisional_grants (transaction_id, receipt_id, app_id, user_id, product_id, event_id, granted_at,
          confirmed_at)
        select transaction_id, receipt_id, app_id, user_id, product_id, gen_random_uuid(), now(), \(confirmedAt) from grants
        """
    }

    /// Stores one receipt in every state. One grant is `mine` (granted, and already granted to a second receipt).
    private func seed(_ lab: LedgerLab) async throws {
        try await lab.settle(try await lab.post(), .purchase("mine"))
        try await lab.settle(try await lab.post(), .purchase("mine"))
        try await lab.settle(try await lab.post(), .purchase("refunded", .rejected(.refunded)))
        try await lab.settle(try await lab.post(), .purchase("held", .held(.productUnknown)))
        _ = try await lab.post()
        #expect(try await Invariant.check(lab.database) == [])
        #expect(try await Invariant.check(lab.database, span: .recent) == [])
    }

    @Test("B1, B10, I3 to I17: each damage is found, by its name, in any span that it is in", arguments: damages)
    func damage(_ damage: Damage) async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await seed(lab)
            try await lab.run(damage.sql)
            for span in [.last(.seconds(10_800)), Invariant.Span.recent, .all] {
                let found = try await Invariant.check(lab.database, span: span)
                #expect(Set(found.map(\.invariant)) == Set(damage.violations))
                #expect(found.allSatisfy { $0.count > 0 && !$0.examples.isEmpty && $0.examples.count <= 10 })
            }
        }
    }

    @Test("no invariant goes untried, and each of I1 to I17 has one that only it finds")
    func everyInvariantIsTried() {
        let damages = Self.damages.map(\.violations) + WitnessTests.falseRows.map(\.violations)
        #expect(Set(damages.flatMap(\.self)) == Set(Invariant.all.map(\.name)))
        let idOfName = Dictionary(uniqueKeysWithValues: Invariant.all.map { ($0.name, $0.id) })
        let alone = damages.map { Set($0.compactMap { idOfName[$0] }) }.filter { $0.count == 1 }.flatMap(\.self)
        #expect(Set(alone) == Set((1...17).map { "I\($0)" } + ["B1", "B3", "B6", "B7", "B8", "B10"]))
    }

    @Test("the check writes nothing: it runs where nothing can be written")
    func readOnly() async throws {
        try await LedgerLab.with { lab in
            try await seed(lab)
            var configuration = LedgerLab.configuration(lab.url)
            configuration.isReadOnly = true
            let reader = Database(configuration, connections: 1, logger: .silent)
            let found: [Invariant.Violation]
            do {
                found = try await Invariant.check(reader)
                await #expect(throws: PostgresError.self) {
                    try await reader.run(Statement<Void, Void>("test.write", "delete from receipts"))
                }
            } catch {
                await reader.close()
                throw error
            }
            await reader.close()
            #expect(found == [])
            #expect(try await lab.number("select count(*) from receipts") == 5)
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

    @Test("of a long history the scheduler's check reads what is recent, by the one plan that services keep")
    func reads() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            try await lab.fillHistory()
            try await lab.run("vacuum (analyze)")
            try await lab.run("set plan_cache_mode = force_generic_plan")
            try await lab.run("set enable_seqscan = off")
            var blocks: [Int] = []
            for span in [Invariant.Span.recent, .all] {
                _ = try await Invariant.check(lab.database, span: span)
                blocks.append(try await lab.touched { _ = try await Invariant.check(lab.database, span: span) })
            }
            print("check: \(blocks[0]) blocks of what is recent, \(blocks[1]) of all")
            #expect(blocks[0] * 4 < blocks[1])
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
