import Foundation
import Logging
import Postgres
import TestServers
import Testing

/// Goal: a person who found the owner of a held purchase records that by one command. Where the command has no effect,
/// its output and exit code say so (B4). Method: the built program on a real database of its own, with two held
/// purchases.
@Suite(.timeLimit(.minutes(5))) struct GiveTests {
    private static func configuration(_ more: String = "") -> String {
        """
        apps:
          - id: game
            bundleId: com.example.game
            environments: [Sandbox]
            products: [{id: coins, type: consumable, goods: [{item: coin, amount: 6}]}]
            \(more)
        """
    }

    private static let held = """
        with posted as (
          insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, due_at, state, reason,
            judged_at)
          select gen_random_uuid(), 'game', 'u1', 'identifier', 'apple', false, '{}', '\\x00', now() + interval '1 hour',
            'held', reason, now()
          from (values ('order_unknown'), ('possession_missing')) r(reason)
          returning id, reason)
        insert into outcomes (receipt_id, transaction_id, state, reason)
        select id, 'of_' || reason, 'held', reason from posted
        """

    @Test("give: written down and audited; refused with 1 where there is nothing to give, with 64 for nonsense")
    func give() async throws {
        let test = try await TestDatabase.make()
        let database = Database(
            PostgresConfiguration(url: test.url, applicationName: "makegood-tests"), connections: 1,
            logger: Logger(label: "tests"))
        let result: Result<Void, any Error>
        do {
            try await withFolder { folder in try await check(folder, test.url, database) }
            result = .success(())
        } catch {
            result = .failure(error)
        }
        await database.close()
        await test.drop()
        try result.get()
    }

    private func check(_ folder: String, _ url: String, _ database: Database) async throws {
        let live = try Self.configuration().written(to: folder, as: "live.yaml")
        let shadow = try Self.configuration("mode: shadow").written(to: folder, as: "shadow.yaml")
        func give(
            _ transaction: String, _ more: String..., app: String = "game", because: String = "ticket 7",
            in configuration: String = live
        ) async throws -> BuiltProgram.Outcome {
            let words = ["--app", app, "--transaction", transaction, "--user", "u2", "--because", because] + more
            return try await BuiltProgram(
                arguments: ["support", "give"] + words,
                environment: ["MAKEGOOD_POSTGRES_URL": url, "MAKEGOOD_CONFIG": configuration]
            ).run()
        }
        let migrated = try await BuiltProgram(arguments: ["migrate"], environment: ["MAKEGOOD_POSTGRES_URL": url]).run()
        #expect(migrated.status == 0, "\(migrated.complaint)")
        try await database.run(Statement<Void, Void>("test.held", Self.held))
        for (outcome, words) in [
            (try await give("of_possession_missing"), "has no serverApi credentials"),
            (try await give("never"), "nothing of this id is held in game"),
            (try await give("of_order_unknown", in: shadow), "game is in shadow"),
        ] {
            #expect(outcome.status == 1 && outcome.output.contains(words), "\(outcome.output) \(outcome.complaint)")
        }
        try await database.run(
            Statement<Void, Void>("test.receipt", "update receipts set kind = 'receipt' where reason = 'order_unknown'")
        )
        let gone = try await give("of_order_unknown")
        #expect(gone.status == 1 && gone.output.contains("its proof is not kept any more"), "\(gone.output)")
        try await database.run(
            Statement<Void, Void>(
                "test.kept",
                """
                insert into kept_payloads (receipt_id, body, reason, kept_until)
                select id, 'proof', 'open', now() + interval '1 day' from receipts where kind = 'receipt'
                """))
        let audited = Statement<Void, Int>(
            "test.audited", "select count(*) from audits", read: { row throws(PostgresError) in try row.int(0) })
        let dry = try await give("of_order_unknown", "--item", "coin", "--dry-run", "--json")
        #expect(dry.status == 0 && dry.json["outcome"] as? String == "decided", "\(dry.output) \(dry.complaint)")
        #expect(dry.json["dryRun"] as? Bool == true && dry.json["reason"] as? String == "order_unknown")
        #expect((dry.json["text"] as? String)?.contains("would be written down") == true)
        #expect(try await database.run(audited).first == 0, "a dry run writes nothing")
        let refused = try await give("never", "--json")
        #expect(refused.status == 1 && refused.json["outcome"] as? String == "unknown", "\(refused.output)")
        let given = try await give("of_order_unknown", "--item", "coin")
        #expect(given.status == 0 && given.output.contains("a worker gives it"), "\(given.output) \(given.complaint)")
        let audits = Statement<Void, String>(
            "test.audits", "select concat_ws(' ', action, details ->> 'because', details ->> 'item') from audits",
            read: { row throws(PostgresError) in try row.text(0) })
        #expect(try await database.run(audits) == ["support.give ticket 7 coin"])
        #expect(try await give("t", app: "nobody").complaint.contains("names no app"))
        for because in ["", String(repeating: "x", count: 501)] {
            let senseless = try await give("t", because: because)
            #expect(senseless.status == 64 && senseless.complaint.contains("--because"), "\(senseless.complaint)")
        }
    }
}
