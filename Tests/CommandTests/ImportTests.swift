import Foundation
import TestServers
import Testing

/// Goal: a person moves an app in and sees what was imported, what was not and why, by output and exit code.
/// Method: the built program on a real database of its own.
@Suite(.timeLimit(.minutes(5))) struct ImportTests {
    private static let configuration = """
        apps:
          - id: game
            bundleId: com.example.game
            environments: [Sandbox]
            mode: shadow
            products: [{id: coins, type: consumable, goods: [{item: coin, amount: 6}]}]
        """

    private static func with(_ body: (_ folder: String, _ run: Runner) async throws -> Void) async throws {
        let database = try await TestDatabase.make()
        do {
            try await withFolder { folder in
                let environment = [
                    "MAKEGOOD_POSTGRES_URL": database.url,
                    "MAKEGOOD_CONFIG": try Self.configuration.written(to: folder, as: "makegood.yaml"),
                ]
                let run = Runner(environment: environment)
                #expect(try await run("migrate").status == 0)
                try await body(folder, run)
            }
        } catch {
            await database.drop()
            throw error
        }
        await database.drop()
    }

    struct Runner {
        let environment: [String: String]

        func callAsFunction(_ arguments: String..., input: String = "") async throws -> BuiltProgram.Outcome {
            try await BuiltProgram(arguments: arguments, input: .init(input.utf8), environment: environment).run()
        }
    }

    @Test("import: dry run, import, the same again; refused and contradicting lines by number and field")
    func imports() async throws {
        try await Self.with { folder, run in
            let header = "Transaction ID,User ID,Product ID,Purchased At,goods\r\n"
            let clean = try (header + "1,u1,coins,2026-11-01T10:00:00Z,6\r\n2,u2,old,1793527200000,\r\n")
                .written(to: folder, as: "clean.csv")
            let dry = try await run("import", "grants", clean, "--app", "game", "--dry-run")
            #expect(dry.status == 0 && dry.output.contains("of 2 lines 2 would be imported"), "\(dry.complaint)")
            let done = try await run("import", "grants", clean, "--app", "game")
            #expect(
                done.status == 0
                    && done.output == """
                        2 lines: 2 imported, 0 already there, 0 conflicts, 0 refused
                        columns that nobody knows: goods
                        products that the app does not sell: old

                        """,
                "\(done.output) \(done.complaint)")
            let again = try await run("import", "grants", clean, "--app", "game")
            #expect(again.status == 0 && again.output.contains("2 already there"))
            #expect(again.output.contains("nothing has changed"))

            let odd =
                header + "1,u9,coins,2026-11-01T10:00:00Z,\n3,u3,coins,soon,\n4,\"u4,coins,2026-11-01T10:00:00Z,\n5,u5"
            let told = try await run("import", "grants", "-", "--app", "game", "--format", "csv", input: odd)
            #expect(
                told.status == 1
                    && told.output == """
                        line 3: refused: purchasedAt must be a time such as 2026-03-01T00:00:00Z, or milliseconds since 1970
                        line 4: refused: opens a quote that is not closed as it should be
                        line 5: refused: has 2 values for 5 columns
                        line 2: conflict: userId is another user here, who keeps it
                        4 lines: 0 imported, 0 already there, 1 conflict, 3 refused
                        columns that nobody knows: goods
                        the last line has no end: was the file cut off?

                        """,
                "\(told.output)")
            let json = try await run("import", "grants", "-", "--app", "game", "--format", "csv", "--json", input: odd)
            let lines = try json.output.split(separator: "\n").map {
                try #require(try JSONSerialization.jsonObject(with: Data($0.utf8)) as? [String: Any])
            }
            #expect(json.status == 1 && lines.count == 5)
            #expect(lines[0]["line"] as? Int == 3 && lines[0]["field"] as? String == "purchasedAt")
            #expect(lines[4]["refused"] as? Int == 3 && lines[4]["conflicts"] as? Int == 1)
            #expect((lines[4]["sha256"] as? String)?.count == 64)

            let owners = #"{"originalTransactionId": "10", "userId": "u1"}"# + "\n"
            #expect(
                try await run("import", "owners", "-", "--app", "game", "--format", "jsonl", input: owners).status == 0)
            let token = "token,userId\n\(UUID()),u1\n"
            #expect(
                try await run("import", "tokens", "-", "--app", "game", "--format", "csv", input: token).status == 0)
            let order = "orderId,userId,productId,placedAt\n\(UUID()),u1,coins,2026-11-01T10:00:00Z\n"
            #expect(
                try await run("import", "orders", "-", "--app", "game", "--format", "csv", input: order).status == 0)
            let check = try await run("check", "--full")
            #expect(check.status == 0)
            let said = try #require(check.output.split(separator: "\n").last)
            #expect(said.hasSuffix(" hold, for 0 receipts and 0 grants of all time"), "\(said)")
            let read = try await run("check", "--json").json["read"] as? [String: Any]
            #expect(read?["receipts"] as? Int == 0 && read?["full"] as? Bool == false)
            let seals = try await run("check", "--seals")
            #expect(seals.status == 0 && seals.output.contains("0 blocks with 0 rows are as they were sealed"))
            let head = "notice: seal.head 7 \(String(repeating: "ab", count: 32))\n"
            let lost = try await run("check", "--seals", "--heads", "-", input: head)
            #expect(lost.status == 1 && lost.output.contains("BROKEN block 7: the block is gone"))
            let findings = try await run("check", "--seals", "--heads", "-", "--json", input: head).json["findings"]
            #expect((findings as? [[String: Any]])?.first?["what"] as? String == "missing")
            #expect(try await run("check", "--heads", "-", input: head).status == 64)
            #expect(try await run("check", "--seals", "--heads", "-", input: "no head\n").status == 64)
        }
    }

    @Test("F21: another system's export: what was skipped, by reason; a zone for times without one")
    func exports() async throws {
        try await Self.with { folder, run in
            let rows = """
                rc_original_app_user_id;rc_last_seen_app_user_id_alias;product_identifier;start_time;store;is_sandbox;\
                store_transaction_id;original_store_transaction_id;refunded_at;ownership_type;price_in_usd
                $RCAnonymousID:1;u1;coins;2026-10-01 08:27:06;app_store;false;1;1;;PURCHASED;1.99
                $RCAnonymousID:2;$RCAnonymousID:2;coins;2026-10-01 08:27:06;app_store;false;2;2;;PURCHASED;1.99
                u3;u3;coins;2026-10-01 08:27:06;play_store;false;GPA.3;GPA.3;;PURCHASED;1.99
                u4;u4;coins;2026-10-01 08:27:06;app_store;false;4;4;2026-10-02 08:27:06;PURCHASED;0
                u5;undefined;coins;2026-10-01 08:27:06;app_store;false;5;5;;PURCHASED;1.99
                undefined;undefined;coins;2026-10-01 08:27:06;app_store;false;6;6;;PURCHASED;1.99

                """
            let file = try rows.written(to: folder, as: "transactions.csv")
            // `import` alone imports purchases.
            let dry = try await run("import", "--from", "revenuecat", file, "--app", "game", "--dry-run")
            #expect(
                dry.status == 1
                    && dry.output == """
                        line 7: refused: rc_last_seen_app_user_id_alias is a placeholder that stands for no user
                        dry run: of 6 lines 2 would be imported, 0 already there, 0 conflicts, 1 refused, 3 skipped
                        skipped: other_store 1, refunded 1, anonymous_user 1

                        """,
                "\(dry.output) \(dry.complaint)")
            let json = try await run("import", "grants", "--from", "revenuecat", file, "--app", "game", "--json")
            let counts = try #require(json.output.split(separator: "\n").last)
            #expect(counts.contains(#""skipped":{"other_store":1,"refunded":1,"anonymous_user":1}"#), "\(counts)")
            let differences = try await run("shadow", "diff", "--from", "revenuecat", file, "--app", "game")
            #expect(differences.output.contains("skipped: other_store 1"), "\(differences.output)")

            let local = "transactionId,userId,productId,purchasedAt\n9,u1,coins,2026-11-01 10:00:00\n"
            let refused = try await run("import", "grants", "-", "--app", "game", "--format", "csv", input: local)
            #expect(
                refused.status == 1 && refused.output.hasPrefix("line 2: refused: purchasedAt has no time zone: write"))
            let berlin = try await run(
                "import", "grants", "-", "--app", "game", "--format", "csv", "--time-zone", "Europe/Berlin",
                input: local)
            #expect(berlin.status == 0 && berlin.output.contains("1 imported"), "\(berlin.output)")
            let nowhere = try await run("import", "grants", file, "--app", "game", "--time-zone", "Atlantis")
            #expect(nowhere.status == 64 && nowhere.complaint.contains("--time-zone must be a zone such as"))
            let tokens = try await run("import", "tokens", "--from", "adapty", file, "--app", "game")
            #expect(tokens.status == 64, "\(tokens.complaint)")
        }
    }

    @Test("a file that is of no use ends with 2 and one line")
    func useless() async throws {
        try await Self.with { folder, run in
            let bad = try "userId\nu1\n".written(to: folder, as: "bad.csv")
            let theirs = try "rc_original_app_user_id;store\n".written(to: folder, as: "theirs.csv")
            for (arguments, words) in [
                (
                    ["grants", bad, "--app", "game"],
                    """
                    has no column transactionId, productId, purchasedAt; needed: transactionId, userId, productId, \
                    purchasedAt; found: userId
                    """
                ),
                (
                    ["grants", "--from", "revenuecat", theirs, "--app", "game"],
                    "is_sandbox, refunded_at; found: rc_original_app_user_id, store"
                ),
                (["grants", "--from", "adapty", "-", "--app", "game", "--format", "csv"], "reads the file twice"),
                (["grants", "\(folder)/none.csv", "--app", "game"], "cannot read"),
                (["grants", bad, "--app", "nobody"], "names no app"),
                (["tokens", "-", "--app", "game"], "does not say its format"),
            ] {
                let outcome = try await BuiltProgram(
                    arguments: ["import"] + arguments, environment: run.environment
                ).run()
                #expect(outcome.status == 2 && outcome.complaint.contains(words), "\(outcome.complaint)")
                #expect(outcome.complaint.split(separator: "\n").count == 1 && outcome.output.isEmpty)
            }
        }
    }

    @Test("without a configuration, or with one that is none, nothing is done: 2, and one line")
    func unconfigured() async throws {
        try await withFolder { folder in
            let file = try "transactionId,userId,productId,purchasedAt\n".written(to: folder, as: "theirs.csv")
            for configuration in [nil, "\(folder)/none.yaml", file] {
                var environment = ["MAKEGOOD_POSTGRES_URL": "postgresql://127.0.0.1:1/none"]
                environment["MAKEGOOD_CONFIG"] = configuration
                for words in [["import", "grants"], ["shadow", "diff"]] {
                    let outcome = try await BuiltProgram(
                        arguments: words + [file, "--app", "game"], environment: environment
                    ).run()
                    #expect(outcome.status == 2, "\(outcome.complaint)")
                    #expect(outcome.complaint.split(separator: "\n").count == 1 && outcome.output.isEmpty)
                }
            }
        }
    }

    @Test("what cannot be taken back is asked about; what the database knows is shown without the broker")
    func manners() async throws {
        try await Self.with { folder, run in
            let order = "orderId,userId,productId,placedAt\n\(UUID()),u1,coins,2026-11-01T10:00:00Z\n"
            #expect(
                try await run("import", "orders", "-", "--app", "game", "--format", "csv", input: order).status == 0)
            // Standard input is no terminal, so nobody can be asked.
            let unasked = try await run("users", "erase", "u1", "--app", "game", input: "yes\n")
            #expect(unasked.status == 2 && unasked.complaint.contains("say --yes"), "\(unasked.complaint)")
            #expect(try await run("users", "show", "u1", "--app", "game").output.contains("1 order, "))
            #expect(try await run("users", "erase", "u1", "--app", "game", "--dry-run").status == 0)
            let erased = try await run("users", "erase", "u1", "--app", "game", "--yes")
            #expect(erased.status == 0 && erased.output.contains("erased"), "\(erased.complaint)")

            var environment = run.environment
            environment["MAKEGOOD_AMQP_URL"] = "amqp://makegood:secret@127.0.0.1:1/%2f"
            let away = Runner(environment: environment)
            let status = try await away("queue", "status")
            #expect(status.status == 1 && status.output.hasPrefix("queues: unknown, "), "\(status.complaint)")
            #expect(status.output.contains("no receipt is open") && !status.output.contains("secret"))
            let json = try await away("queue", "status", "--json")
            #expect(json.status == 1 && (json.json["open"] as? [Any])?.isEmpty == true, "\(json.output)")
            #expect(json.json["broker"] as? String != "ok" && (json.json["queues"] as? [String: Int])?.isEmpty == true)
        }
    }

    @Test("shadow diff: 0 where nothing differs, 1 where something does, as text and JSON")
    func diff() async throws {
        try await Self.with { folder, run in
            let file = try "transactionId,userId,productId,purchasedAt\n1,u1,coins,2026-11-01T10:00:00Z\n"
                .written(to: folder, as: "theirs.csv")
            let apart = try await run("shadow", "diff", file, "--app", "game")
            #expect(apart.status == 1, "\(apart.complaint)")
            #expect(apart.output.hasPrefix("only_there line 2 transaction 1, there coins to u1: nobody posted it\n"))
            let json = try await run("shadow", "diff", file, "--app", "game", "--json")
            #expect(json.status == 1 && json.output.contains(#""only_there":1"#), "\(json.output)")
            #expect(try await run("import", "grants", file, "--app", "game").status == 0)
            let same = try await run("shadow", "diff", file, "--app", "game", "--since", "2026-01-01T00:00:00Z")
            #expect(same.status == 0 && same.output.hasPrefix("1 line: same 1, "), "\(same.output)")
            #expect(try await run("shadow", "diff", file, "--app", "game", "--since", "yesterday").status == 64)
            #expect(!same.complaint.contains("is live"))
            var environment = run.environment
            environment["MAKEGOOD_CONFIG"] = try Self.configuration.replacing("mode: shadow", with: "mode: live")
                .written(to: folder, as: "live.yaml")
            let live = try await Runner(environment: environment)("shadow", "diff", file, "--app", "game")
            #expect(live.status == 0 && live.complaint.hasPrefix("game is live, not in shadow: "), "\(live.complaint)")
        }
    }
}
