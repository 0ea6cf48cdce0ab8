import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a bonus is given once per user and period, with the purchase that is granted first, and is stored with its
/// grant or not at all (B6). Method: verdicts through the statement itself, in one batch, against sessions that have
/// not committed, and many at once; every test ends with all invariants, which compare bonuses with goods.
@Suite(.timeLimit(.minutes(8))) struct BonusTests {
    private static func bonus(_ id: String = "first", _ once: Catalogue.Bonus.Once = .ever) -> Catalogue.Bonus {
        .init(id: id, once: once, goods: [.init(item: "gem", amount: 5)])
    }

    private static func entry(
        _ id: String, to user: String = "u1", _ bonuses: [Catalogue.Bonus] = [bonus()], later seconds: TimeInterval = 0,
        order: UUID? = nil, of original: String? = nil
    ) -> Verdict.Entry {
        var match = Match(userID: user, source: .poster)
        match.bonuses = bonuses
        match.order = order.map {
            PlacedOrder(id: $0, userID: user, productID: "coins", placedAt: LedgerLab.bought, payBy: .distantFuture)
        }
        let purchase = Verdict.Entry.purchase(id, of: original) { $0.purchasedAt += seconds }
        return Verdict.Entry(transaction: purchase.transaction, decision: purchase.decision, match: match)
    }

    private static func given(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            "select concat_ws(' ', transaction_id, user_id, bonus, nullif(period, '')) from given_bonuses order by 1")
    }

    /// `transaction: amounts and items`, as stored.
    private static func goods(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            """
            select transaction_id || ': ' || (
              select string_agg(concat_ws(' ', g ->> 'amount', g ->> 'item', g ->> 'bonus'), ', ' order by n)
              from jsonb_array_elements(goods) with ordinality as e(g, n))
            from grants order by 1
            """)
    }

    @Test("B6: the first purchase has the bonus, in its grant, its event and its answer; the second has its goods")
    func once() async throws {
        try await LedgerLab.with { lab in
            let first = try await lab.post()
            #expect(try await lab.settle(first, Self.entry("t1")) == .granted)
            #expect(try await lab.settle(try await lab.post(), Self.entry("t2", later: 60)) == .granted)
            #expect(try await lab.settle(try await lab.post("u2"), Self.entry("t3", to: "u2")) == .granted)
            #expect(
                try await Self.goods(lab) == ["t1: 60 coin, 5 gem first", "t2: 60 coin", "t3: 60 coin, 5 gem first"])
            #expect(try await Self.given(lab) == ["t1 u1 first", "t3 u2 first"])
            #expect(
                try await lab.number(
                    """
                    select count(*) from events e join grants g using (transaction_id)
                    where type = 'purchase.granted' and body -> 'goods' = goods
                    """) == 3)
            let view = try #require(try await lab.ledger.view(first.id))
            #expect(
                view.transactions[0].goods == [
                    .init(item: "coin", amount: 60), .init(item: "gem", amount: 5, bonus: "first"),
                ])
            // The same verdict again gives nothing more.
            #expect(try await lab.settle(try await lab.post(), Self.entry("t1")) == .alreadyGranted)
            #expect(try await Self.given(lab).count == 2)
        }
    }

    @Test("of two purchases of one batch the earlier has it; two bonuses, two users and no bonus do not compete")
    func oneBatch() async throws {
        try await LedgerLab.with { lab in
            let daily = Self.bonus("daily", .day)
            var verdicts: [Verdict] = []
            for (user, entry) in [
                ("u1", Self.entry("t1", [Self.bonus(), daily], later: 60)),
                ("u1", Self.entry("t2", [Self.bonus(), daily])),
                ("u2", Self.entry("t3", to: "u2", [daily], later: 5)), ("u1", Self.entry("t4", [])),
                ("u1", Self.entry("t5", [daily], later: 86_400)),
            ] {
                verdicts.append(lab.verdict(try await lab.post(user), .transactions([entry])))
            }
            #expect(try await lab.ledger.settleTogether(verdicts).count == 5)
            #expect(
                try await Self.goods(lab) == [
                    "t1: 60 coin", "t2: 60 coin, 5 gem daily, 5 gem first", "t3: 60 coin, 5 gem daily", "t4: 60 coin",
                    "t5: 60 coin, 5 gem daily",
                ])
            #expect(
                try await Self.given(lab) == [
                    "t2 u1 daily 2027-01-15", "t2 u1 first", "t3 u2 daily 2027-01-15", "t5 u1 daily 2027-01-16",
                ])
        }
    }

    @Test("one purchase that three receipts claim in one batch asks once, and not at all where it is no grant")
    func oneClaim() async throws {
        try await LedgerLab.with { lab in
            var verdicts: [Verdict] = []
            for user in ["u1", "u1", "u2"] {
                verdicts.append(
                    lab.verdict(try await lab.post(user), .transactions([Self.entry("t1", to: user)])))
            }
            let held = Self.entry("t2", [Self.bonus("other")]).with(.held(.review))
            verdicts.append(lab.verdict(try await lab.post(), .transactions([held])))
            _ = try await lab.ledger.settleTogether(verdicts)
            _ = try await lab.ledger.settleTogether(verdicts)
            #expect(try await Self.given(lab).count == 1)
            #expect(try await Self.goods(lab) == ["t1: 60 coin, 5 gem first"])
        }
    }

    @Test(
        "two workers: the second waits for the first, and has the bonus only where that one gave nothing",
        arguments: [true, false])
    func twoWorkers(commits: Bool) async throws {
        try await LedgerLab.with { lab in
            let (first, second) = (try await lab.post(), try await lab.post())
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(first, .transactions([Self.entry("t1")])), on: session)
                async let later = lab.ledger.settle(
                    lab.verdict(second, .transactions([Self.entry("t2", later: 60)])))
                try await lab.untilBlocked()
                try await session.run(commits ? .commit : .rollback)
                #expect(try await later?.state == .granted)
            }
            if !commits { try await lab.settle(first, Self.entry("t1")) }
            #expect(try await Self.given(lab) == [commits ? "t1 u1 first" : "t2 u1 first"])
            #expect(
                try await Self.goods(lab) == [
                    "t1: 60 coin\(commits ? ", 5 gem first" : "")", "t2: 60 coin\(commits ? "" : ", 5 gem first")",
                ])
        }
    }

    @Test("a verdict that loses the order to another worker keeps no bonus either, and no other verdict waits for it")
    func lostOrder() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            let (first, second, neighbour) = (try await lab.post(), try await lab.post(), try await lab.post("u3"))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(
                    lab.verdict(first, .transactions([Self.entry("t1", [], order: order)])), on: session)
                async let lost = lab.ledger.settle(lab.verdict(second, .transactions([Self.entry("t2", order: order)])))
                async let beside = lab.ledger.settle(
                    lab.verdict(neighbour, .transactions([Self.entry("t9", to: "u3")])))
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await lost == nil, "to be matched anew")
                #expect(try await beside?.state == .granted)
            }
            #expect(try await Self.given(lab) == ["t9 u3 first"])
            // Of two verdicts in one batch, the one with the order gets the bonus.
            let another = try await lab.place("u4")
            let verdicts = [
                lab.verdict(try await lab.post("u4"), .transactions([Self.entry("t4", to: "u4", order: another)])),
                lab.verdict(try await lab.post("u4"), .transactions([Self.entry("t5", to: "u4", order: another)])),
            ]
            #expect(try await lab.ledger.settleTogether(verdicts) == [verdicts[0].receiptID: .granted])
            #expect(try await Self.given(lab) == ["t4 u4 first", "t9 u3 first"])
        }
    }

    @Test("a verdict that loses the purchase itself to another worker keeps no bonus: it is refused and judged anew")
    func lostGrant() async throws {
        try await LedgerLab.with { lab in
            let (first, second, neighbour) = (try await lab.post(), try await lab.post(), try await lab.post("u3"))
            try await lab.withSession { session in
                try await session.run(.begin)
                // The verdict was made with a catalogue without the bonus.
                try await lab.settle(lab.verdict(first, .transactions([Self.entry("t1", [])])), on: session)
                // Each verdict may be in a batch with the other or alone; the group commit writes a refused verdict
                // again.
                async let lost = lab.ledger.settle(lab.verdict(second, .transactions([Self.entry("t1")])))
                async let beside = lab.ledger.settle(
                    lab.verdict(neighbour, .transactions([Self.entry("t9", to: "u3")])))
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await lost?.state == .alreadyGranted)
                #expect(try await beside?.state == .granted)
            }
            // Without the group commit, the commit itself reports the conflict and writes nothing. Apple lists the purchase
            // under two ids, so that only the key of its grant makes the second transaction wait.
            try await lab.withSession { session in
                let (third, fourth) = (try await lab.post("u4"), try await lab.post("u4"))
                try await session.run(.begin)
                try await lab.settle(lab.verdict(third, .transactions([Self.entry("t5", to: "u4", [])])), on: session)
                async let refused = #expect(throws: PostgresError.serialization) {
                    try await lab.ledger.database.settle(
                        SettleBatch(
                            verdicts: [lab.verdict(fourth, .transactions([Self.entry("t6", to: "u4", of: "t5")]))],
                            parking: lab.parking))
                }
                try await lab.untilBlocked()
                try await session.run(.commit)
                _ = await refused
                #expect(try await lab.state(fourth) == "received")
            }
            #expect(try await Self.given(lab) == ["t9 u3 first"])
            #expect(
                try await Self.goods(lab) == ["t1: 60 coin", "t5: 60 coin", "t9: 60 coin, 5 gem first"])
        }
    }

    @Test("what was given on trust has its bonus as well, and it stays when Apple confirms it")
    func onTrust() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            let entry = Self.entry("t1")
            try await lab.database.run(
                Statements.takePlaces,
                .init(
                    receiptID: posted.id, appID: "game", transactions: [entry.transaction],
                    limits: .init(perUserPerDay: 9, perAppPerDay: 9)))
            try await lab.settle(posted, entry.with(.provisional(goods: Verdict.Entry.coins, source: .poster)))
            #expect(try await Self.goods(lab) == ["t1: 60 coin, 5 gem first"])
            #expect(try await lab.settle(posted, entry) == .granted)
            #expect(try await Self.given(lab) == ["t1 u1 first"])
            #expect(
                try await lab.number(
                    "select count(*) from events where type = 'purchase.confirmed' and body -> 'goods' @> '[{\"bonus\": \"first\"}]'"
                ) == 1)
        }
    }

    @Test("B6: two hundred purchases of four users from four writers at once: each has one first bonus and one a day")
    func many() async throws {
        try await LedgerLab.with(connections: 4, writers: 2) { lab in
            let bonuses = [Self.bonus(), Self.bonus("daily", .day)]
            var work: [(Posted, Verdict.Entry)] = []
            for index in 0..<200 {
                let user = "u\(index % 4)"
                let entry = Self.entry(
                    "t\(index)", to: user, index % 5 == 0 ? [] : bonuses, later: Double(index % 3) * 86_400)
                work.append((try await lab.post(user), entry))
                if index % 7 == 0 { work.append((try await lab.post(user), entry)) }
            }
            let other = Ledger(
                database: Database(LedgerLab.configuration(lab.url), connections: 2, logger: .silent), writers: 2,
                schedule: RetrySchedule())
            try await withThrowingTaskGroup(of: Void.self) { group in
                for (index, (posted, entry)) in work.enumerated() {
                    let ledger = index % 2 == 0 ? lab.ledger : other
                    group.addTask {
                        for _ in 0..<100 {
                            let verdict = lab.verdict(posted, .transactions([entry]))
                            if try await ledger.settle(verdict) != nil { return }
                            guard let row = try await ledger.fetch(posted.id), !row.state.isEnded else { return }
                        }
                        Issue.record("receipt \(posted.id) never reached a verdict")
                    }
                }
                try await group.waitForAll()
            }
            await other.close()
            #expect(try await lab.grants.count == 200)
            #expect(
                try await lab.texts("select bonus || ' ' || count(*) from given_bonuses group by bonus order by 1")
                    == ["daily 12", "first 4"])
        }
    }

    @Test("erasing a user: the bonus has the erased user's id of its grant; what a post said goes with its details")
    func erased() async throws {
        try await LedgerLab.with { lab in
            let submission = Submission(
                appID: "game", userID: "u1", proof: .signedTransaction("a.b.c"), details: #"{"item": "x"}"#,
                declared: Declaration(item: "x"))
            #expect(try await lab.ledger.insert(submission))
            let posted = Posted(id: submission.receiptID, userID: "u1", appID: "game")
            try await lab.settle(posted, Self.entry("t1"))
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
            #expect(
                try await lab.number(
                    "select count(*) from given_bonuses b join grants g using (transaction_id, user_id)") == 1)
            #expect(try await lab.number("select count(*) from given_bonuses where user_id = 'u1'") == 0)
            #expect(try await lab.number("select count(*) from receipts where declared is not null") == 0)
        }
    }

    @Test("an account that is part of another has had its bonus for both")
    func merged() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("guest"), Self.entry("t1", to: "guest"))
            try await lab.run("insert into merges (app_id, user_id, into_user_id) values ('game', 'guest', 'u1')")
            try await lab.settle(try await lab.post(), Self.entry("t2", [Self.bonus(), Self.bonus("daily", .day)]))
            #expect(try await Self.goods(lab) == ["t1: 60 coin, 5 gem first", "t2: 60 coin, 5 gem daily"])
        }
    }

    @Test(
        "B10: a bonus that was given on trust and taken back is its user's to have again; what is confirmed stays used")
    func takenBack() async throws {
        try await LedgerLab.with { lab in
            func trusted(_ id: String, user: String) async throws -> Posted {
                let posted = try await lab.post(user, kind: .signedTransaction)
                let entry = Self.entry(id, to: user)
                let places = try await lab.ledger.run(
                    Statements.takePlaces,
                    .init(
                        receiptID: posted.id, appID: "game", transactions: [entry.transaction],
                        limits: .init(perUserPerDay: 9, perAppPerDay: 9)))
                #expect(places == [id])
                #expect(
                    try await lab.settle(
                        posted, entry.with(.provisional(goods: Verdict.Entry.coins, source: .poster))) == .received)
                return posted
            }
            let (denied, confirmed) = (try await trusted("t1", user: "u1"), try await trusted("t2", user: "u2"))
            let refunded = Verdict.Entry.purchase("t1", .rejected(.refunded)) { $0.revokedAt = $0.purchasedAt + 9 }
            #expect(try await lab.settle(denied, refunded) == .granted)
            #expect(try await lab.settle(confirmed, Self.entry("t2", to: "u2")) == .granted)
            try await lab.settle(try await lab.post("u1"), Self.entry("t3", later: 60))
            try await lab.settle(try await lab.post("u1"), Self.entry("t4", later: 90))
            try await lab.settle(try await lab.post("u2"), Self.entry("t5", to: "u2", later: 60))
            #expect(
                try await Self.goods(lab) == [
                    "t1: 60 coin, 5 gem first", "t2: 60 coin, 5 gem first", "t3: 60 coin, 5 gem first", "t4: 60 coin",
                    "t5: 60 coin",
                ])
            #expect(try await lab.texts("select transaction_id from v_bonuses where freed_at is not null") == ["t1"])
        }
    }

    @Test("B6: a bonus that a whole refund took back is its user's to have again, until Apple gives the purchase back")
    func refunded() async throws {
        try await LedgerLab.with { lab in
            func hear(_ transaction: Transaction) async throws {
                try await lab.hear(transaction)
                try await lab.followUp()
            }
            func freed() async throws -> [String] {
                try await lab.texts("select transaction_id from v_bonuses where freed_at is not null order by 1")
            }
            try await lab.settle(try await lab.post(), Self.entry("t1"))
            try await lab.settle(try await lab.post("u2"), Self.entry("t3", to: "u2"))
            let (first, second) = (Self.entry("t1").transaction, Self.entry("t3", to: "u2").transaction)
            try await hear(first.refunded(60, percentage: 50_000))
            #expect(try await freed() == [], "the rest of the purchase is the user's")
            try await hear(first.refunded(70))
            try await hear(second.refunded(70))
            #expect(try await freed() == ["t1", "t3"])
            #expect(
                try await lab.texts(
                    "select coalesce(body ->> 'freedBonuses', '') from events where type = 'purchase.revoked'"
                )
                .filter { $0 == #"["first"]"# }.count == 2)
            try await lab.settle(try await lab.post(), Self.entry("t2", later: 60))
            try await hear(first.signed(90))
            try await hear(second.signed(90))
            #expect(try await freed() == ["t1"], "u1 has the bonus by t2, and u2 has it by t3 again")
            try await lab.settle(try await lab.post("u2"), Self.entry("t4", to: "u2", later: 60))
            #expect(
                try await Self.goods(lab) == [
                    "t1: 60 coin, 5 gem first", "t2: 60 coin, 5 gem first", "t3: 60 coin, 5 gem first", "t4: 60 coin",
                ])
        }
    }

    @Test("two guests who are one person by now are erased together, though each had the same bonus")
    func erasedGuests() async throws {
        try await LedgerLab.with { lab in
            for (id, user) in [("t1", "guest1"), ("t2", "guest2"), ("t3", "account")] {
                try await lab.settle(try await lab.post(user), Self.entry(id, to: user))
            }
            try await lab.run(
                "insert into merges (app_id, user_id, into_user_id) select 'game', 'guest' || n, 'account' from generate_series(1, 2) n"
            )
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: "account", app: "game")))
            #expect(
                try await lab.number(
                    "select count(*) from given_bonuses b join grants g using (transaction_id, user_id) where user_id like 'erased%'"
                ) == 3)
        }
    }

    @Test("makegood check: a bonus without its goods, and goods without their bonus, are found")
    func broken() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post(), Self.entry("t1"))
            try await lab.settle(try await lab.post("u2"), Self.entry("t2", to: "u2"))
            #expect(try await Invariant.check(lab.database, scale: 0) == [])
            try await lab.run("update grants set goods = '[]' where transaction_id = 't1'")
            try await lab.run("delete from given_bonuses where transaction_id = 't2'")
            let violations = try await Invariant.check(lab.database, scale: 0).filter { $0.id == "B6" }
            #expect(violations.map(\.count) == [2] && violations[0].examples.count == 2)
        }
    }
}
