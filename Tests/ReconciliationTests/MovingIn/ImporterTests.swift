import Encoding
import Foundation
import Purchases
import Testing

@testable import Ledger
@testable import MovingIn
@testable import Postgres
@testable import Settings

/// Goal: a grant of the former system is here after the import, once, and is answered like a grant of ours; existing
/// rows are not changed, and the invariants still hold. Method: files through the importer into a real database, then
/// verdicts on the same purchases.
@Suite(.timeLimit(.minutes(8))) struct ImporterTests {
    struct Outcome {
        var report: ImportReport
        /// Texts like `3 conflict userId`.
        var told: [String]
    }

    static func run(
        _ kind: ImportKind, _ content: String, in lab: LedgerLab, dryRun: Bool = false, keys: UserKeys? = nil,
        catalogue: Catalogue? = nil, now: Date = ImportRowTests.now, from origin: ImportOrigin? = nil,
        refunded: Set<String> = []
    ) async throws -> Outcome {
        var pieces = [Array(content.utf8)]
        var file = ImportFile(content.first == "{" ? .jsonl : .csv, from: origin) { pieces.popLast() ?? [] }
        let importer = Importer(
            database: lab.database,
            context: try ImportRowTests.context(
                keys: keys, catalogue: catalogue, now: now, from: origin, refunded: refunded),
            actor: "ann",
            isDryRun: dryRun)
        var told: [String] = []
        let report = try await importer.run(kind, &file) { problem in
            told.append(
                ["\(problem.line)", problem.kind.rawValue, problem.field].compactMap(\.self).joined(separator: " "))
        }
        let taken = report.imported + report.alreadyThere + report.conflicts + report.refused
        #expect(report.lines == taken + report.skipped.values.reduce(0, +))
        return Outcome(report: report, told: told)
    }

    /// One purchase a line: `id original user product`, in production, each a minute after the one before.
    static func grants(_ lines: String...) -> String {
        let rows = lines.enumerated().map { index, line in
            let words = line.split(separator: " ")
            return "\(words[0]),\(words[1]),\(words[2]),\(words[3]),2026-11-01T10:\(10 + index):00Z"
        }
        return (["transactionId,originalTransactionId,userId,productId,purchasedAt"] + rows).joined(separator: "\n")
            + "\n"
    }

    static let purchased = Date(rfc3339: "2026-11-01T10:10:00Z") ?? .distantPast

    private func imported(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts("select concat_ws(' ', transaction_id, user_id) from imported_grants order by 1")
    }

    @Test("an import is done once: the second run changes nothing and says so; a dry run says it before")
    func idempotent() async throws {
        try await LedgerLab.with { lab in
            let file = Self.grants("1 1 u1 coins", "2 2 u2 coins", "4 3 u1 pass", "x 1 u1 coins", "5 5 u1 relic")
            let dry = try await Self.run(.grants, file, in: lab, dryRun: true)
            #expect(dry.report.imported == 4 && dry.report.refused == 1 && dry.told == ["5 refused transactionId"])
            let rows = ["imported_grants", "audits", "ownerships"].map { "(select count(*) from \($0))" }
            #expect(try await lab.number("select \(rows.joined(separator: " + "))") == 0)

            let first = try await Self.run(.grants, file, in: lab)
            #expect(first.report.imported == 4 && first.report.refused == 1 && !first.report.isClean)
            #expect(first.report.unknownProducts == ["relic"] && first.told == dry.told)
            #expect(try await imported(lab) == ["1 u1", "2 u2", "4 u1", "5 u1"])
            let owners = try await lab.texts(
                "select concat_ws(' ', original_transaction_id, user_id, binding_source) from ownerships order by 1")
            // A consumable has no owner afterwards.
            #expect(owners == ["3 u1 imported", "5 u1 imported"])

            let rowsOf = { (table: String) in "select t::text from \(table) t" }
            let state = "\(rowsOf("imported_grants")) union all \(rowsOf("ownerships")) order by 1"
            let before = try await lab.texts(state)
            let second = try await Self.run(.grants, file, in: lab)
            #expect(second.report.imported == 0 && second.report.alreadyThere == 4)
            #expect(try await lab.texts(state) == before)
            #expect(
                try await lab.texts("select action || ' ' || (details ->> 'imported') from audits order by id")
                    == ["import.grants 4", "import.grants 0"])
        }
    }

    @Test("another user's is reported and stays: in the file, in an earlier import, and where it was granted here")
    func conflicts() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("9"))
            try await lab.settle(try await lab.post("u1"), .purchase("8"))
            let outcome = try await Self.run(
                .grants,
                Self.grants(
                    "1 1 u1 coins", "1 1 u1 coins", "1 1 u2 coins", "1 1 u1 pass", "1 2 u1 coins", "9 9 u2 coins",
                    "8 8 u1 coins", "2 2 u2 coins"), in: lab)
            #expect(
                outcome.told == [
                    "4 conflict userId", "5 conflict productId", "6 conflict originalTransactionId",
                    "7 conflict userId",
                ])
            #expect(outcome.report.imported == 2 && outcome.report.alreadyThere == 2 && outcome.report.conflicts == 4)
            #expect(try await imported(lab) == ["1 u1", "2 u2"])
            #expect(try await lab.grants == ["8 u1", "9 u1"])
        }
    }

    @Test(
        "rows 1, 0b: what was imported is already granted, to its user alone, under whatever id, and nothing is given")
    func alreadyGranted() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            _ = try await Self.run(
                .grants, Self.grants("1 1 u1 coins", "20 20 u1 sword", "31 30 u1 pass", "5 5 u2 coins"), in: lab)
            let at = Self.purchased
            let cases: [(String, Verdict.Entry, String)] = [
                ("u1", .purchase("1"), "already_granted imported"),
                ("u2", .purchase("1"), "already_granted owned_by_another_user"),
                // A restore is found by its original; a period on another device is found by its chain and time.
                ("u1", .purchase("21", of: "20", kind: .nonConsumable), "already_granted imported"),
                (
                    "u1",
                    .purchase("39", of: "30", kind: .autoRenewable) {
                        $0.purchasedAt = at.addingTimeInterval(120.75)
                        $0.webOrderLineItemID = "w"
                    }, "already_granted imported"
                ),
                // The next period is granted.
                (
                    "u1",
                    .purchase("32", of: "30", kind: .autoRenewable) { $0.purchasedAt = at.addingTimeInterval(86_520) },
                    "granted"
                ),
                // The import goes before the rules' decision.
                ("u1", .purchase("1", .held(.beforeCutover)), "already_granted imported"),
                ("u1", .purchase("1", .rejected(.historical)), "already_granted imported"),
                ("u1", .purchase("1", .open(.appleAnswer)), "open apple_answer"),
            ]
            for (user, entry, expected) in cases {
                let posted = try await lab.post(user)
                try await lab.settle(posted, entry)
                #expect(try await lab.outcomes(posted) == [entry.transaction.id: expected])
            }
            // The order stays open although a purchase that was imported was matched to it.
            let named = try await lab.matched("5", by: "u2", order: order)
            let late = try await lab.post("u2")
            try await lab.settle(late, named)
            #expect(try await lab.outcomes(late) == ["5": "already_granted imported"])
            #expect(try await lab.boundOrders() == [])
            #expect(try await lab.grants == ["32 u1"])
            #expect(try await lab.number("select count(*) from events") == 1)
            // A receipt of another app or environment gets no owner: a person has to decide.
            let foreign = try await lab.post("u1", app: "other")
            try await lab.settle(foreign, .purchase("1"))
            #expect(try await lab.outcomes(foreign) == ["1": "held id_collision"])
            let sandbox = try await lab.post("u1")
            try await lab.settle(sandbox, .purchase("1", in: "Sandbox"))
            #expect(try await lab.outcomes(sandbox) == ["1": "held id_collision"])
            // A poster who only knows the id learns nothing about another user's purchase.
            for (user, expected) in [("u1", "already_granted imported"), ("u2", "held possession_missing")] {
                let bare = try await lab.post(user, kind: .identifier, transactionID: "1")
                try await lab.settle(lab.verdict(bare, .identifier("1", .possessionMissing)))
                #expect(try await lab.outcomes(bare) == ["1": expected], "\(user)")
            }
        }
    }

    @Test("what was imported of a receipt is no question to Apple, and no order of it is chosen for")
    func isKnown() async throws {
        try await LedgerLab.with { lab in
            _ = try await Self.run(.grants, Self.grants("1 1 u1 coins"), in: lab)
            let (old, new) = (Verdict.Entry.purchase("1").transaction, Verdict.Entry.purchase("2").transaction)
            let question = Statements.ListedQuestion(receiptID: UUID(), appID: "game", transactions: [old, new])
            #expect(try await lab.database.run(Statements.knownPurchases, question).map(\.isGranted) == [true, false])
            let named = UUID()
            let found = try await lab.evidence(lab.question(old, named: named), lab.question(new, named: named))
            #expect(found.map(\.isGranted) == [true, false])
        }
    }

    @Test("a chain is the user's of its latest line, whatever the order of lines; what was decided here stays")
    func chains() async throws {
        try await LedgerLab.with { lab in
            let period = { (id: String, original: String) in
                Verdict.Entry.purchase(id, of: original, kind: .autoRenewable).transaction
            }
            let lines = ["11 10 u1 pass", "12 10 u1 pass", "13 10 u2 pass", "14 10 u2 pass"]
            _ = try await Self.run(.grants, Self.grants(lines[0], lines[1], lines[2], lines[3]), in: lab)
            #expect(try await lab.evidence(lab.question(period("19", "10"), by: "u9")).first?.chain?.userID == "u2")
            #expect(try await lab.number("select count(*) from ownerships") == 2, "each user's latest")
            // The file that comes later holds an earlier period of another user: it does not move the chain.
            _ = try await Self.run(
                .grants,
                "transactionId,originalTransactionId,userId,productId,purchasedAt\n15,10,u3,pass,2026-10-01T00:00:00Z\n",
                in: lab)
            #expect(try await lab.evidence(lab.question(period("19", "10"), by: "u9")).first?.chain?.userID == "u2")

            // Here u7 was given the purchase, in the former system u8: both purchases stay granted, and the chain stays
            // with the user whom we have named as its owner.
            let entry = Verdict.Entry.purchase("41", of: "40", kind: .autoRenewable)
            var match = Match(userID: "u7", source: .poster)
            match.takesChain = true
            try await lab.settle(
                try await lab.post("u7"),
                Verdict.Entry(transaction: entry.transaction, decision: entry.decision, match: match))
            let kept = try await Self.run(.grants, Self.grants("42 40 u8 pass", "43 40 u7 pass"), in: lab)
            #expect(kept.report.imported == 2 && kept.report.ownersKept == 1 && !kept.report.isClean)
            #expect(kept.told == ["2 owner_kept originalTransactionId"])
            #expect(try await lab.evidence(lab.question(period("49", "40"), by: "u9")).first?.chain?.userID == "u7")
        }
    }

    @Test("F21: RevenueCat's export is imported once; skipped lines are counted by reason and bring nothing")
    func revenuecat() async throws {
        try await LedgerLab.with { lab in
            func line(_ id: String, _ original: String, _ changes: [String: String] = [:]) -> [String: String] {
                ["store_transaction_id": id, "original_store_transaction_id": original].merging(changes) { $1 }
            }
            let alias = "rc_last_seen_app_user_id_alias"
            let file = ImportOriginTests.file(
                [
                    // A trial, its conversion, and a renewal after the account had another user.
                    line("11", "11", ["is_trial_period": "true", "start_time": "2026-09-01 08:00:00", alias: "u0"]),
                    line("12", "11", ["is_trial_conversion": "true", "start_time": "2026-09-08 08:00:00"]),
                    line("13", "11", ["start_time": "2026-10-08 08:00:00"]),
                    // The same line again, and with another user.
                    line("13", "11", ["start_time": "2026-10-08 08:00:00"]),
                    line("13", "11", ["start_time": "2026-10-08 08:00:00", alias: "u9"]),
                    line("20", "20", ["product_identifier": "coins"]),
                    line("21", "21", ["product_identifier": "coins", "refunded_at": "2026-10-20 05:47:55"]),
                    line("22", "22", ["ownership_type": "FAMILY_SHARED"]), line("23", "23", ["is_sandbox": "true"]),
                    line("24", "24", [alias: "$RCAnonymousID:2"]), line("25", "25", [alias: "(null)"]),
                    line("GPA.1", "GPA.1", ["store": "play_store"]), line("in_1", "in_1", ["store": "stripe"]),
                ], separator: ";")
            let skipped: [ImportSkip: Int] = [
                .refunded: 1, .familyShared: 1, .sandbox: 1, .anonymousUser: 1, .otherStore: 2,
            ]
            let refused = "12 refused rc_last_seen_app_user_id_alias"
            let dry = try await Self.run(.grants, file, in: lab, dryRun: true, from: .revenuecat)
            #expect(dry.report.skipped == skipped && dry.report.refused == 1 && dry.told.contains(refused))
            #expect(try await imported(lab) == [])
            for (imported, there) in [(4, 1), (0, 5)] {
                let outcome = try await Self.run(.grants, file, in: lab, from: .revenuecat)
                #expect(outcome.report.imported == imported && outcome.report.alreadyThere == there)
                #expect(outcome.report.skipped == skipped && outcome.report.conflicts == 1)
                #expect(Set(outcome.told) == [refused, "6 conflict rc_last_seen_app_user_id_alias"])
            }
            #expect(try await imported(lab) == ["11 u0", "12 u1", "13 u1", "20 u1"])
            let renewal = Verdict.Entry.purchase("14", of: "11", kind: .autoRenewable).transaction
            #expect(try await lab.evidence(lab.question(renewal, by: "u9")).first?.chain?.userID == "u1")
            #expect(
                try await lab.texts(
                    "select distinct details #>> '{skipped,other_store}' from audits where action = 'import.grants'")
                    == ["2"])
            // Who posts a purchase of which the export knew no user gets it: nothing stands in the way.
            let posted = try await lab.post("u7")
            try await lab.settle(posted, .purchase("24"))
            #expect(try await lab.outcomes(posted) == ["24": "granted"])
        }
    }

    @Test("owners, tokens and orders: imported once, conflicts stay, and the matcher finds them")
    func others() async throws {
        try await LedgerLab.with { lab in
            _ = try await Self.run(.grants, Self.grants("11 10 u1 pass"), in: lab)
            let owners = "originalTransactionId,userId,since\n10,u1,\n50,u5,\n10,u2,\n10,u3,2026-11-02T00:00:00Z\n"
            let first = try await Self.run(.owners, owners, in: lab)
            #expect(first.report.imported == 2 && first.report.alreadyThere == 1 && first.report.conflicts == 1)
            #expect(first.told == ["4 conflict userId"])
            let again = try await Self.run(.owners, "originalTransactionId,userId\n10,u3\n50,u5\n", in: lab)
            #expect(again.report.alreadyThere == 2 && again.report.imported == 0)
            let renewal = Verdict.Entry.purchase("51", of: "50", kind: .autoRenewable).transaction
            #expect(try await lab.evidence(lab.question(renewal, by: "u9")).first?.chain?.userID == "u5")

            let (token, taken) = (UUID(), UUID())
            let wish = Statements.TokenRequest(appID: "game", userID: "u1", token: taken)
            _ = try await lab.database.run(Statements.registerToken, wish)
            let tokens = "token,userId\n\(token),u6\n\(taken),u2\n\(taken),u1\n"
            for (imported, there) in [(1, 1), (0, 2)] {
                let outcome = try await Self.run(.tokens, tokens, in: lab)
                #expect(outcome.report.imported == imported && outcome.report.alreadyThere == there)
                #expect(outcome.told == ["3 conflict userId"])
            }
            // An account has the tokens of the users that became part of it.
            try await lab.run("insert into merges (app_id, user_id, into_user_id) values ('game', 'u1', 'account')")
            let merged = try await Self.run(.tokens, "token,userId\n\(taken),account\n", in: lab)
            #expect(merged.report.alreadyThere == 1 && merged.report.conflicts == 0)
            var bought = Verdict.Entry.purchase("60").transaction
            bought.appAccountToken = token
            #expect(try await lab.evidence(lab.question(bought, by: "u9")).first?.registeredUserID == "u6")

            let order = UUID()
            let orders = """
                {"orderId": "\(order)", "userId": "u7", "productId": "coins", "placedAt": "2026-11-01T10:00:00Z", "role": "r"}
                {"orderId": "\(order)", "userId": "u8", "productId": "coins", "placedAt": "2026-11-01T10:00:00Z"}
                """
            for imported in [1, 0] {
                let outcome = try await Self.run(.orders, orders, in: lab)
                #expect(outcome.report.imported == imported && outcome.told == ["2 conflict userId"])
            }
            bought.appAccountToken = order
            let found = try #require(try await lab.evidence(lab.question(bought, by: "u9")).first?.orders.first)
            #expect(found.id == order && found.userID == "u7" && found.goods == [.init(item: "coin", amount: 60)])
            #expect(found.target == #"{"role": "r"}"#, "\(found.target)")
            // S2-11: a number of another system can be an order's id.
            let numbered = """
                {"orderId": "20261101-coins-7", "userId": "u7", "productId": "coins", "placedAt": "2026-11-01T10:00:00Z", \
                "priceMilliunits": 6000, "currency": "CNY", "country": "CN"}
                """
            for imported in [1, 0] {
                #expect(try await Self.run(.orders, numbered, in: lab).report.imported == imported)
            }
            let named = OrderID.named("20261101-coins-7", of: "game")
            let view = try #require(try await lab.ledger.order(named))
            #expect(view.price == .init(milliunits: 6000, currency: "CNY") && view.target == #"{"country": "CN"}"#)
            #expect(
                try await lab.texts("select distinct action from audits order by 1") == [
                    "import.grants", "import.orders", "import.owners", "import.tokens",
                ])
        }
    }

    @Test("a bonus that the system before gave is not given again: for ever, or in the month that it was given in")
    func bonuses() async throws {
        try await LedgerLab.with { lab in
            let gems = [AppPolicy.Goods(item: "gem", amount: 5)]
            let (first, monthly) = (
                Catalogue.Bonus(id: "first", once: .ever, goods: gems),
                Catalogue.Bonus(id: "monthly", once: .month, goods: gems)
            )
            let version = Catalogue.Version(goods: Verdict.Entry.coins, bonuses: [first, monthly])
            let catalogue = Catalogue(products: [
                .init(
                    id: "coins", kind: .consumable, defaultItem: "coins",
                    items: [.init(id: "coins", versions: [version])]
                )
            ])
            // `LedgerLab.bought` is the time of the purchases in every test.
            let file = """
                userId,bonus,givenAt
                u1,first,
                u1,monthly,\(LedgerLab.bought.rfc3339)
                u2,monthly,2026-11-01T00:00:00Z
                u2,first,2026-11-01T00:00:00Z
                u2,other,
                u3,monthly,

                """
            for imported in [4, 0] {
                let outcome = try await Self.run(
                    .bonuses, file, in: lab, catalogue: catalogue, now: LedgerLab.bought.addingTimeInterval(86_400))
                #expect(outcome.report.imported == imported && outcome.report.alreadyThere == 4 - imported)
                #expect(outcome.told == ["6 refused bonus", "7 refused givenAt"])
            }
            for (id, user) in [("1", "u1"), ("2", "u2"), ("3", "u3")] {
                var match = Match(userID: user, source: .poster)
                match.bonuses = [first, monthly]
                let bought = Verdict.Entry.purchase(id)
                try await lab.settle(
                    try await lab.post(user),
                    Verdict.Entry(transaction: bought.transaction, decision: bought.decision, match: match))
            }
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', transaction_id, bonus) from given_bonuses
                    where transaction_id is not null order by 1
                    """) == ["2 monthly", "3 first", "3 monthly"])
            // After the erasure of the user, the table neither names nor describes the user.
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: "u2", app: "game")))
            #expect(try await lab.number("select count(*) from given_bonuses where user_id = 'u2'") == 0)
        }
    }

    @Test(
        "a grant of what was imported meanwhile is refused, under its own id and under another one: the batch goes again"
    )
    func importedMeanwhile() async throws {
        try await LedgerLab.with { lab in
            _ = try await Self.run(
                .grants, Self.grants("1 1 u1 coins", "20 20 u1 sword", "31 30 u1 pass"), in: lab)
            let period = Verdict.Entry.purchase("39", of: "30", kind: .autoRenewable) {
                $0.purchasedAt = Self.purchased.addingTimeInterval(120.75)
                $0.webOrderLineItemID = "w"
            }
            // As a transaction inserts grants whose gates were read before the import.
            for entry in [.purchase("1"), .purchase("21", of: "20", kind: .nonConsumable), period] {
                let posted = try await lab.post("u1")
                let rows = VerdictRow.rows(of: [lab.verdict(posted, .transactions([entry]))])
                await #expect(throws: PostgresError.serialization) {
                    try await lab.database.transact("test.late") { transaction throws(PostgresError) in
                        transaction.queue(Statements.storeFacts, rows)
                        transaction.queue(Statements.insertGrants, rows)
                        try transaction.exchange()
                    }
                }
                try await lab.settle(posted, entry)
                #expect(
                    try await lab.outcomes(posted) == [entry.transaction.id: "already_granted imported"])
            }
            #expect(try await lab.grants == [])
        }
    }

    @Test("S1-12: with users.protect the tables hold keys, and the app backend can read the id")
    func protected() async throws {
        try await LedgerLab.with { lab in
            let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
            let key = keys.key(of: "u1", app: "game")
            let file = Self.grants("1 1 u1 coins", "2 2 u1 coins")
            _ = try await Self.run(.grants, file, in: lab, dryRun: true, keys: keys)
            #expect(try await lab.number("select count(*) from users") == 0)
            _ = try await Self.run(.grants, file, in: lab, keys: keys)
            #expect(try await imported(lab) == ["1 \(key)", "2 \(key)"])
            let name = UserName(appID: "game", key: key)
            let rows = try await lab.database.run(Statements.registeredUsers, [name])
            #expect(UserRegister.reveal(rows, keys) == [name: .id("u1")])
            // The user was erased in the meantime: a second import does not bring the id back.
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "ann")
            #expect(try await erasure.erase(name))
            _ = try await Self.run(.grants, Self.grants("3 3 u1 coins"), in: lab, keys: keys)
            #expect(try await lab.database.run(Statements.registeredUsers, [name]).first?.sealed == nil)
        }
    }

    @Test("erasing a user whose purchases were imported leaves them without the id")
    func erased() async throws {
        try await LedgerLab.with { lab in
            _ = try await Self.run(.grants, Self.grants("1 1 u1 coins", "2 2 u2 coins"), in: lab)
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            let name = erasure.name(of: "u1", app: "game")
            let (standing, traces) = try await erasure.look(name)
            #expect(standing == .clear && traces.imported == 1)
            #expect(try await erasure.erase(name))
            #expect(
                try await lab.texts("select left(user_id, 7) from imported_grants order by transaction_id")
                    == ["erased_", "u2"])
        }
    }

    @Test("a user who became part of another account since counts as that account, for what was given there too")
    func merged() async throws {
        try await LedgerLab.with { lab in
            let file = Self.grants("1 1 guest coins", "31 30 guest pass")
            _ = try await Self.run(.grants, file, in: lab)
            try await lab.run("insert into merges (app_id, user_id, into_user_id) values ('game', 'guest', 'u1')")
            let posted = try await lab.post("u1")
            try await lab.settle(posted, .purchase("1"))
            #expect(try await lab.outcomes(posted) == ["1": "already_granted imported"])
            let renewal = Verdict.Entry.purchase("32", of: "30", kind: .autoRenewable).transaction
            #expect(try await lab.evidence(lab.question(renewal, by: "u9")).first?.chain?.userID == "u1")
            let again = try await Self.run(.grants, Self.grants("1 1 u1 coins", "31 30 guest pass"), in: lab)
            #expect(again.report.alreadyThere == 2 && again.report.isClean)
        }
    }

    @Test("more lines than a batch, and each of them once")
    func batches() async throws {
        try await LedgerLab.with { lab in
            let count = Importer.batchRows * 2 + 3
            var content = "transactionId,userId,productId,purchasedAt\n"
            for id in 1...count { content += "\(id),u\(id % 97),coins,2026-11-01T10:00:00Z\n" }
            content += "1,u1,coins,2026-11-01T10:00:00Z\n"
            for (imported, there) in [(count, 1), (0, count + 1)] {
                let outcome = try await Self.run(.grants, content, in: lab)
                #expect(outcome.report.imported == imported && outcome.report.alreadyThere == there)
            }
            #expect(try await lab.number("select count(*) from imported_grants") == count)
        }
    }
}
