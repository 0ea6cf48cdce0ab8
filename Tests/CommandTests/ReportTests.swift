import Foundation
import Logging
import Postgres
import TestServers
import Testing

/// Goal: an operator reads the books of a day by one command, for people and for programs, and a day that is none is
/// refused by the name of its option. Method: the built program on a real database of its own.
@Suite(.timeLimit(.minutes(5))) struct ReportTests {
    @Test("report: an empty day, a day with a receipt, one app; refused with 2, by the option's name")
    func report() async throws {
        let test = try await TestDatabase.make()
        let database = Database(
            PostgresConfiguration(url: test.url, applicationName: "makegood-tests"), connections: 1,
            logger: Logger(label: "tests"))
        let result: Result<Void, any Error>
        do {
            try await check(test.url, database)
            result = .success(())
        } catch {
            result = .failure(error)
        }
        await database.close()
        await test.drop()
        try result.get()
    }

    private func check(_ url: String, _ database: Database) async throws {
        func report(_ words: String...) async throws -> BuiltProgram.Outcome {
            try await BuiltProgram(arguments: ["report"] + words, environment: ["MAKEGOOD_POSTGRES_URL": url]).run()
        }
        func run(_ sql: String) async throws { try await database.run(Statement<Void, Void>("test.run", sql)) }
        let migrated = try await BuiltProgram(arguments: ["migrate"], environment: ["MAKEGOOD_POSTGRES_URL": url]).run()
        #expect(migrated.status == 0, "\(migrated.complaint)")
        let days = Statement<Void, String>(
            "test.days",
            "select to_char((now() at time zone 'UTC')::date - n, 'YYYY-MM-DD') from generate_series(0, 1) n",
            read: { row throws(PostgresError) in try row.text(0) })
        let (today, yesterday) = (try await database.run(days)[0], try await database.run(days)[1])

        let empty = try await report("--day", yesterday)
        #expect(empty.status == 0, "\(empty.complaint)")
        #expect(empty.output.hasPrefix("report of \(yesterday) (UTC), all apps, read at "), "\(empty.output)")
        #expect(empty.output.contains("\n\nreceived\n  nothing\n"), "\(empty.output)")

        for (words, complaint) in [
            (["--day", "2100-01-01"], "--day has not begun: today is \(today)"),
            (["--day", "2001-01-01"], "--day is too long ago"),
            (["--day", "yesterday"], "--day must be a day such as"),
            (["--day", "2026-02-30"], "--day must be a day such as"),
            (["--day", today, "--app", "nobody"], "--app names no app"),
        ] {
            let refused = try await BuiltProgram(
                arguments: ["report"] + words, environment: ["MAKEGOOD_POSTGRES_URL": url]
            ).run()
            #expect(refused.status == 2 && refused.complaint.contains(complaint), "\(refused.complaint)")
            #expect(refused.output.isEmpty)
        }
        #expect(try await report().status == 64, "a day must be named")

        try await run("insert into apps (app_id, configuration_sha256) values ('game', ''), ('chess', '')")
        try await run(
            """
            insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state, reason,
              due_at, judged_at, received_at)
            select gen_random_uuid(), 'game', 'u-secret', 'receipt', 'local', false, '{}', '', 'held',
              'product_unknown', now(), now(), ((now() at time zone 'UTC')::date - 1)::timestamp at time zone 'UTC' + interval '23 hours'
            """)
        let full = try await report("--day", yesterday, "--app", "game")
        #expect(full.output.contains("\n  game receipts post: 1 (held 1)\n"), "\(full.output) \(full.complaint)")
        #expect(full.output.contains("\n  game receipts held product_unknown: 1, the oldest of \(yesterday)T23:00:00"))
        let json = try await report("--day", yesterday, "--json")
        let received = try #require(json.json["received"] as? [[String: Any]])
        #expect(received.count == 1 && received[0]["state"] as? String == "held" && received[0]["items"] as? Int == 1)
        #expect(json.json["isOver"] as? Bool == true && json.json["app"] == nil)
        #expect(!json.output.contains("u-secret") && !full.output.contains("u-secret"))
        let other = try await report("--day", yesterday, "--app", "chess", "--json")
        #expect((other.json["received"] as? [Any])?.isEmpty == true, "\(other.output)")
        let now = try await report("--day", today)
        #expect(now.output.contains("; the day is not over\n"))
        try await checkDifferences(url, run)
    }

    /// `makegood differences`, on the same database.
    private func checkDifferences(_ url: String, _ run: (String) async throws -> Void) async throws {
        func differences(_ words: String...) async throws -> BuiltProgram.Outcome {
            try await BuiltProgram(
                arguments: ["differences"] + words, environment: ["MAKEGOOD_POSTGRES_URL": url, "USER": "ann"]
            ).run()
        }
        let none = try await differences()
        #expect(none.status == 0 && none.output == "no difference is open\n", "\(none.output) \(none.complaint)")
        try await run(
            """
            insert into differences (category, subject, app_id, environment, net, details)
            values ('goods_differ', 't1', 'game', 'Production', 'customer', '{"apple": 2}'),
              ('grant_unlisted', 't2', 'chess', 'Production', 'customer', '{}')
            """)
        let listed = try await differences("--app", "game")
        #expect(listed.output.contains(#"goods_differ  t1  game  Production  customer  person  {"apple": 2}"#))
        #expect(!listed.output.contains("grant_unlisted"), "\(listed.output)")
        let closed = try await differences("close", "goods_differ", "t1", "--note", "a pack of two")
        #expect(closed.status == 0 && closed.output == "closed\n", "\(closed.output) \(closed.complaint)")
        let again = try await differences("close", "goods_differ", "t1", "--note", "again")
        #expect(again.status == 0 && again.output.hasPrefix("closed already, by "), "\(again.output)")
        let unknown = try await differences("close", "goods_differ", "t2", "--note", "why")
        #expect(unknown.status == 1 && unknown.complaint.contains("there is no difference goods_differ of t2"))
        for words in [
            ["goods", "t1", "--note", "why"], ["goods_differ", "t1", "--note", " "], ["goods_differ", "t1"],
        ] {
            let senseless = try await BuiltProgram(
                arguments: ["differences", "close"] + words, environment: ["MAKEGOOD_POSTGRES_URL": url]
            ).run()
            #expect(senseless.status == 64, "\(words): \(senseless.output) \(senseless.complaint)")
        }
    }
}
