import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: each known customer of Apple's has one row, is asked when the row says so, and by one reader at a time
/// (B1). Method: the statements of the rota on the real database, with two readers in turn.
@Suite(.timeLimit(.minutes(8))) struct CustomerRotaTests {
    private static let place = Statements.SweptPlace(
        appID: "game", environment: "Production", customersEvery: .seconds(3600), refundsEvery: .seconds(60))

    @Test(
        "customers get rows behind the verdicts, once, and imported ones too; a row of an original id leaves the rota")
    func entered() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(
                try await lab.post(), .purchase("t1") { $0.customerID = "c1" }, .purchase("t2"),
                .purchase("t3") { $0.customerID = "c1" })
            func period(_ transaction: inout Transaction, _ number: Double, of customer: String?) {
                transaction.purchasedAt += number * 86_400
                transaction.expiresAt = transaction.purchasedAt + 86_400
                transaction.customerID = customer
            }
            try await lab.settle(
                try await lab.post("u2"), .purchase("p1", kind: .autoRenewable) { period(&$0, 0, of: nil) })
            try await lab.enter(until: ["c1 t1", "p1 p1", "t2 t2"])
            // Apple names the customer of the chain from the second period on.
            try await lab.settle(
                try await lab.post("u2"), .purchase("p2", of: "p1", kind: .autoRenewable) { period(&$0, 1, of: "c2") })
            try await lab.withSession { other in
                try await other.run(.begin)
                try await other.run(
                    Statement<Void, Void>("test.lock", "select from customer_progress for no key update"))
                #expect(try await lab.enter() == nil, "another worker enters them")
                try await other.run(.commit)
            }
            try await lab.enter(until: ["c1 t1", "c2 p2", "p1 p1 gone", "t2 t2"])

            let importing = { (id: String) in
                """
                insert into imported_grants
                  (transaction_id, app_id, environment, original_transaction_id, user_id, product_id, purchased_at)
                values ('\(id)', 'game', 'Production', '\(id)', 'u3', 'coins', now())
                """
            }
            try await lab.run("alter table imported_grants disable trigger imported_grants_enter_customers")
            try await lab.run(importing("i1"))
            try await lab.run("alter table imported_grants enable trigger imported_grants_enter_customers")
            try await lab.run(importing("i2"))
            #expect(try await lab.customers.filter { $0.hasPrefix("i") } == ["i2 i2"])
            #expect(try await lab.ledger.run(Statements.enterImported, ()) == [2])
            #expect(try await lab.ledger.run(Statements.enterImported, ()) == [], "all are entered")
            #expect(try await lab.customers.filter { $0.hasPrefix("i") } == ["i1 i1", "i2 i2"])

            #expect(try await lab.ledger.run(Statements.scheduleCustomers, [Self.place]) == [5])
            #expect(try await lab.ledger.run(Statements.scheduleCustomers, [Self.place]) == [0])
            #expect(
                try await lab.number(
                    """
                    select count(*) from history_walks
                    where due_at between now() - interval '1 minute' and now() + interval '1 hour'
                    """) == 5)
            #expect(
                try await lab.number(
                    """
                    select count(*) from history_walks where customer like 'i%'
                      and refunds_due_at between now() - interval '1 minute' and now() + interval '1 minute'
                    """) == 2)
        }
    }

    @Test("one reader at a time; whom somebody wants goes first; a reader that lost its claim moves nothing")
    func claims() async throws {
        try await LedgerLab.with { lab in
            for number in 1...6 { try await lab.customer("c\(number)", dueIn: "\(number - 10) minutes") }
            try await lab.run("update history_walks set wanted_by = 'support', wanted_at = now() where customer = 'c6'")
            let first = try await lab.claim()
            #expect(Set(first.map(\.walk.customer)) == ["c6", "c1", "c2", "c3"])
            #expect(first.allSatisfy { $0.askedID == "a" && $0.revision == nil && $0.reader == 1 })
            #expect(Set(try await lab.claim().map(\.walk.customer)) == ["c4", "c5"])
            #expect(try await lab.claim().isEmpty)
            // The rota of an app that wants none waits; what somebody wants does not.
            try await lab.run("update history_walks set swept_until = now()")
            var off = Self.place
            off.customersEvery = nil
            let wanted = try await lab.claim(off)
            #expect(wanted.map(\.walk.customer) == ["c6"] && wanted.map(\.reader) == [2])

            let lost = try #require(first.first { $0.walk.customer == "c6" })
            let purchase = Verdict.Entry.purchase("t1").transaction.signed(10)
            try await lab.move(lost, "lost", .end(dueIn: .seconds(600)), purchase)
            #expect(try await lab.position("c6") == "- 0 0 support", "another reader has the claim")
            #expect(try await lab.number("select count(*) from transactions") == 1, "the facts count all the same")
            let reader = try #require(wanted.first)
            try await lab.move(reader, "r1", .page(lease: .seconds(60)))
            #expect(try await lab.position("c6") == "r1 1 0 support")
            // It is wanted once more while it is read.
            try await lab.run("update history_walks set wanted_at = clock_timestamp() where customer = 'c6'")
            try await lab.move(reader, "r2", .end(dueIn: .seconds(600)), passedOver: 3)
            #expect(try await lab.position("c6") == "r2 2 3 support")
            #expect(try await lab.claim().contains { $0.walk.customer == "c6" }, "it is still due")
        }
    }

    @Test("a sweep goes on behind the last one, and begins anew after what did not verify, for the sample, and in time")
    func beginnings() async throws {
        try await LedgerLab.with { lab in
            try await lab.customer("c1", dueIn: "-1 minute")
            func sweep(_ revision: String?, passedOver: Int = 0) async throws -> String? {
                let claimed = try #require(try await lab.claim().first)
                try await lab.move(claimed, revision, .end(dueIn: .seconds(600)), passedOver: passedOver)
                try await lab.run("update history_walks set due_at = now()")
                return claimed.revision
            }
            #expect(try await sweep("r1") == nil)
            #expect(try await sweep("r2") == "r1")
            #expect(try await sweep(nil) == "r2", "Apple named no place")
            #expect(try await sweep("r3", passedOver: 1) == "r2")
            #expect(try await sweep("r4") == nil)
            #expect(try await sweep("r5") == "r4")
            try await lab.run("update history_walks set whole_at = now() - interval '183 days'")
            #expect(try await sweep("r6") == nil)
            try await lab.run("update history_walks set wanted_by = 'sample', wanted_at = now()")
            #expect(try await sweep("r7") == nil)
            #expect(try await lab.texts("select coalesce(wanted_by, '-') from history_walks") == ["-"])

            // A list that is under way goes on, whatever happened meanwhile.
            let claimed = try #require(try await lab.claim().first)
            try await lab.move(claimed, "r8", .rest(.zero), passedOver: 1)
            let next = try #require(try await lab.claim().first)
            #expect(next.revision == "r8" && next.pages == 1)
            let refused = Statements.PutOffCustomer(
                net: .customer, next, dueIn: .zero, problem: .appleAnswer, forgetsPlace: true)
            _ = try await lab.ledger.run(Statements.putOffCustomer, refused)
            let anew = try #require(try await lab.claim().first)
            #expect(anew.revision == nil && anew.failures == 1 && anew.pages == 0)
            let untold = Statements.PutOffCustomer(net: .customer, anew, dueIn: .seconds(60), problem: nil)
            _ = try await lab.ledger.run(Statements.putOffCustomer, untold)
            #expect(try await lab.claim().isEmpty)
            #expect(
                try await lab.number("select count(*) from history_walks where due_at <= now() and failures = 1") == 1)
            try await lab.run("update history_walks set swept_until = now()")
            let last = try #require(try await lab.claim().first)
            try await lab.move(last, "r9", .gone)
            #expect(try await lab.customers == ["c1 a gone"])
        }
    }

    @Test("a step of the rota has a limit over all apps, and a claim locks no more than it claims")
    func limits() async throws {
        try await LedgerLab.with { lab in
            var places: [Statements.SweptPlace] = []
            for environment in ["Production", "Sandbox"] {
                var place = Self.place
                place.environment = environment
                places.append(place)
                try await lab.run(
                    """
                    insert into history_walks (app_id, environment, customer, asked_id, busy_until)
                    select 'game', '\(environment)', 'c' || n, 'a', now() from generate_series(1, 200) n
                    """)
            }
            for number in [250, 150, 0] {
                #expect(try await lab.ledger.run(Statements.scheduleCustomers, places) == [number])
            }
            try await lab.run("update history_walks set due_at = now(), refunds_due_at = now()")
            let claim = Statements.CustomerClaim(places: places, lease: .seconds(60), wholeEvery: .zero)
            for statement in [Statements.claimCustomers, Statements.claimRefunds] {
                try await lab.withSession { session in
                    try await session.run(.begin)
                    #expect(try await session.run(statement, claim).count == Statements.customersClaimedMax)
                    #expect(
                        try await lab.number(
                            "select count(*) from (select from history_walks for no key update skip locked) w")
                            == 400 - Statements.customersClaimedMax)
                    try await session.run(.rollback)
                }
            }
        }
    }

    /// A kept plan that read the whole rota would touch a thousand blocks every few seconds, in each worker.
    @Test("looking at 50,000 customers costs what is due, by a plan that was kept from a day without customers")
    func plans() async throws {
        try await LedgerLab.with(connections: 1) { lab in
            try await lab.run("alter table history_walks set (autovacuum_enabled = false)")
            try await lab.run("analyze history_walks")
            let look = {
                _ = try await lab.claim()
                _ = try await lab.ledger.run(Statements.claimRefunds, lab.claimOfRefunds)
                _ = try await lab.ledger.run(Statements.scheduleCustomers, [Self.place])
                _ = try await lab.enter()
            }
            for _ in 0..<8 { try await look() }
            try await lab.run(
                """
                insert into history_walks (app_id, environment, customer, asked_id, busy_until, due_at, refunds_due_at)
                select 'game', 'Production', 'c' || n, 'a', now(), now() + (n - 100) * interval '1 minute',
                  now() + (n - 100) * interval '1 minute'
                from generate_series(1, 50000) n
                """)
            let blocks = try await lab.touched { try await look() }
            print("customers: a look touches \(blocks) blocks")
            #expect(blocks < 600)
        }
    }

    @Test("an unpaid order, a report and a look-up make the right customers due, and not again at once")
    func reasons() async throws {
        try await LedgerLab.with { lab in
            for (user, id) in [("u1", "t1"), ("u2", "t2"), ("u3", "t3"), ("u4", "t4")] {
                try await lab.settle(try await lab.post(user), .purchase(id) { $0.customerID = "c\(id.dropFirst())" })
            }
            try await lab.run(
                """
                insert into apps (app_id, configuration_sha256) values ('game', 'x') on conflict do nothing
                """)
            try await lab.run(
                """
                insert into orders (id, app_id, user_id, product_id, pay_by)
                values (gen_random_uuid(), 'game', 'u1', 'coins', now() - interval '1 minute'),
                  (gen_random_uuid(), 'game', 'u4', 'coins', now() + interval '1 minute')
                """)
            try await lab.run(
                """
                insert into client_reports (id, app_id, user_id, kind, details, reported_at)
                values (gen_random_uuid(), 'game', 'u2', 'paid_without_proof', '{}', now() - interval '1 minute'),
                  (gen_random_uuid(), 'game', 'u4', 'failed', '{}', now() - interval '1 minute')
                """)
            try await lab.run(
                """
                update customer_progress set orders_to = now() - interval '15 minutes',
                  reports_to = now() - interval '5 minutes'
                """
            )
            let look = Statements.ReasonsLook(apart: .seconds(60))
            var short = look
            short.span = .seconds(240)
            for span in [short, look] {
                #expect(try await lab.ledger.run(Statements.wantUnpaid, span) == [true], "more time is left")
            }
            #expect(try await lab.ledger.run(Statements.wantUnpaid, look) == [false])
            #expect(try await lab.ledger.run(Statements.wantReported, look) == [false])
            #expect(
                try await lab.ledger.run(Statements.wantLookedUp, (appID: "game", subject: .transaction("t3"))) == [1])
            #expect(
                try await lab.ledger.run(Statements.wantLookedUp, (appID: "other", subject: .transaction("t3"))) == [0])
            let wanted =
                "select concat_ws(' ', customer, wanted_by) from history_walks where due_at <= now() order by 1"
            #expect(try await lab.texts(wanted) == ["c1 unpaid_order", "c2 paid_without_proof", "c3 support"])
            try await lab.run("update history_walks set due_at = 'infinity', wanted_by = null, swept_at = now()")
            #expect(
                try await lab.ledger.run(
                    Statements.wantCustomer,
                    .init(
                        [(appID: "game", name: .purchase("t1")), (appID: "game", name: .user("u2"))],
                        reason: .missingPeriods)) == [2])
            #expect(try await lab.texts(wanted) == [], "the last sweep is not ten minutes old")
            #expect(
                try await lab.number(
                    "select count(*) from history_walks where due_at <= now() + interval '10 minutes'") == 2)
        }
    }

    @Test("v_sweeps counts what is due, and what each sweep caught, of each app and environment")
    func standings() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.run(
                "insert into apps (app_id, configuration_sha256) values ('game', 'x') on conflict do nothing")
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, expires_at, state, asks)
                select 'game', environment, environment || n, now() + (n - 3) * interval '1 hour', 'active', n % 2
                from generate_series(1, 4) n, (values ('Production'), ('Sandbox')) e(environment)
                where environment = 'Production' or n > 1
                """)
            try await lab.run(
                """
                insert into net_catches (transaction_id, kind, app_id, environment, net, caught_at)
                select 't' || n, 'purchase', 'game', 'Production', 'customer', now() - n * interval '20 hours'
                from generate_series(0, 2) n
                """)
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', sweep, environment, due, catches, lag_seconds > 7000) from v_sweeps
                    where due > 0 or catches > 0 order by 1
                    """)
                    == ["customer Production 0 2 f", "subscription Production 3 0 t", "subscription Sandbox 2 0 f"])
        }
    }

    @Test("v_sweeps names the last complete round: since then Apple was asked about each customer of before")
    func rounds() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.run(
                "insert into apps (app_id, configuration_sha256) values ('game', 'x') on conflict do nothing")
            func rounds() async throws -> [String] {
                try await lab.texts(
                    """
                    select concat_ws(' ', sweep,
                      coalesce((extract(epoch from now() - last_complete_at) / 3600)::int::text, '-'))
                    from v_sweeps where environment = 'Production' and sweep in ('customer', 'refund') order by 1
                    """)
            }
            #expect(try await rounds() == ["customer -", "refund -"])
            // Hours ago: the last sweep, the last look at refunds, the entry. `c2` is on no rota of refunds.
            try await lab.run(
                """
                insert into history_walks (app_id, environment, customer, asked_id, busy_until, due_at, refunds_due_at,
                  swept_at, refunds_at, entered_at)
                select 'game', 'Production', c, 'a', now(), due, case when c in ('c1', 'c3') then now() + '1 hour' end,
                  now() - swept * interval '1 hour', now() - refunds * interval '1 hour',
                  now() - entered * interval '1 hour'
                from (values ('c1', now() + '1 hour', 5, 2, 9), ('c2', now() + '1 hour', 3, 50, 9),
                  ('c3', now() + '1 hour', null, null, 4), ('gone', 'infinity', 100, 100, 100))
                  as v(c, due, swept, refunds, entered)
                """)
            #expect(try await rounds() == ["customer 5", "refund 4"])
            try await lab.run("update history_walks set swept_at = now(), refunds_at = now() where customer = 'c3'")
            #expect(try await rounds() == ["customer 5", "refund 2"])
            try await lab.run("update history_walks set swept_at = now() where customer = 'c1'")
            #expect(try await rounds() == ["customer 3", "refund 2"])
            // Who buys again is on the rota of refunds again, and was not late on it meanwhile.
            try await lab.settle(try await lab.post(), .purchase("t2") { $0.customerID = "c2" })
            try await lab.until("the customer is not on the rota") {
                _ = try await lab.enter()
                return try await lab.number(
                    "select count(*) from history_walks where customer = 'c2' and refunds_due_at is not null") == 1
            }
            #expect(try await rounds() == ["customer 3", "refund 2"])
        }
    }

    @Test("a difference is open until a look finds it gone, or a person closes it")
    func differences() async throws {
        try await LedgerLab.with { lab in
            let bought = Verdict.Entry.purchase("t1").transaction
            func hear(_ transaction: Transaction, opens: Bool = false) async throws {
                var hearing = Hearing(notification: nil, appID: "game", net: .customer)
                hearing.transactions = [transaction]
                if opens {
                    hearing.submissions = [
                        Submission(unposted: transaction, jws: "h.b.s", of: "game", source: .sweep)
                    ]
                }
                _ = try await lab.hear([hearing])
            }
            func heal() async throws -> Int? {
                let healed = try await lab.ledger.run(Statements.endHealedDifferences, .first)
                return healed.first?.ended
            }
            func open() async throws -> [String] {
                try await lab.texts(
                    "select category || ' ' || subject from differences where ended_at is null order by 1")
            }
            try await hear(bought.signed(10), opens: true)
            try await hear(Verdict.Entry.purchase("old").transaction.signed(10))
            #expect(try await open() == ["purchase_missing t1"], "nothing is missing of what the former system gave")
            #expect(try await heal() == 0)
            try await lab.settle(try await lab.post(), .purchase("t1", signedAt: LedgerLab.bought + 10))
            #expect(try await heal() == 1)
            try await hear(bought.refunded(60))
            #expect(try await open() == ["end_missing t1"])
            try await lab.followUp()
            #expect(try await heal() == 1)
            try await hear(bought.signed(90))
            #expect(try await open() == ["end_undone t1"])
            try await lab.followUp()
            #expect(try await heal() == 1)
            #expect(try await heal() == nil)
            try await hear(bought.signed(100) { $0.quantity = 2 })
            #expect(try await open() == ["goods_differ t1"])
            #expect(try await heal() == 0, "a person looks at it")
            let repairs = Repairs(database: lab.database, actor: "ann")
            func close(
                _ category: Difference.Category, _ subject: String, _ actor: String = "ann"
            ) async throws -> String? {
                try await Repairs(database: lab.database, actor: actor).closeDifference(category, subject, note: "why")
                    .map { "\($0.word) \($0.endedBy ?? "")" }
            }
            let listed = try await repairs.openDifferences(nil)
            #expect(listed.map { "\($0.category) \($0.subject) \($0.healsBy)" } == ["goods_differ t1 person"])
            #expect(try await repairs.openDifferences("chess") == [])
            #expect(try await close(.goodsDiffer, "t2") == nil, "there is none")
            #expect(try await close(.endUndone, "t1") == "healed ")
            #expect(try await close(.goodsDiffer, "t1") == "closed ann")
            #expect(try await close(.goodsDiffer, "t1", "bob") == "wasClosed ann")
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', actor, action, details ->> 'app', details ->> 'category',
                      details ->> 'subject', details ->> 'note') from audits
                    """) == ["ann differences.close game goods_differ t1 why"])
            try await hear(bought.signed(110) { $0.quantity = 2 })
            #expect(try await open() == [])
            #expect(try await lab.texts("select ended_by from differences where category = 'goods_differ'") == ["ann"])
            let state = Difference(
                .stateDiffers, "o1", appID: "game", environment: "Production", net: .subscription, details: #"{"a": 1}"#
            )
            for _ in 0..<2 { _ = try await lab.ledger.run(Statements.noteDifferences, [state, state]) }
            #expect(try await open() == ["state_differs o1"])
            _ = try await lab.ledger.run(
                Statements.endDifferences, [(category: .stateDiffers, subject: "o1"), (.endUndone, "o1")])
            #expect(try await open() == [])
            #expect(
                try await lab.texts("select kind || ' ' || transaction_id from net_catches order by 1")
                    == ["end t1", "purchase old", "purchase t1", "reversal t1"])
        }
    }
}

extension LedgerLab {
    func enter() async throws -> Int? { try await ledger.run(Statements.enterCustomers, .seconds(60)).first }

    /// Enters customers until the rows are these. A transaction of another database may hold the feed up for a moment.
    func enter(until expected: [String]) async throws {
        try await until("the customers are not entered") {
            _ = try await enter()
            return try await customers == expected
        }
        #expect(try await customers == expected)
    }

    /// `customer asked_id`, in order, with the word `gone` where the row has left the rota.
    var customers: [String] {
        get async throws {
            try await texts(
                """
                select concat_ws(' ', customer, coalesce(swept_asked_id, asked_id),
                  case when due_at = 'infinity' then 'gone' end)
                from history_walks order by 1
                """)
        }
    }

    func customer(_ id: String, dueIn: String) async throws {
        try await run(
            """
            insert into history_walks (app_id, environment, customer, asked_id, busy_until, due_at)
            values ('game', 'Production', '\(id)', 'a', now(), now() + interval '\(dueIn)')
            """)
    }

    func claim(_ place: Statements.SweptPlace? = nil) async throws -> [Statements.ClaimedCustomer] {
        let place =
            place
            ?? Statements.SweptPlace(
                appID: "game", environment: "Production", customersEvery: .seconds(3600), refundsEvery: nil)
        return try await ledger.run(
            Statements.claimCustomers,
            .init(places: [place], lease: .seconds(60), wholeEvery: .seconds(182 * 86_400)))
    }

    var claimOfRefunds: Statements.CustomerClaim {
        .init(
            places: [
                .init(
                    appID: "game", environment: "Production", customersEvery: nil, refundsEvery: .seconds(86_400))
            ], lease: .seconds(60), wholeEvery: .zero)
    }

    func move(
        _ claimed: Statements.ClaimedCustomer, _ revision: String?, _ next: Statements.CustomerPlace.Next,
        _ transactions: Transaction..., passedOver: Int = 0
    ) async throws {
        var hearing = Hearing(notification: nil, appID: "game", net: .customer)
        hearing.transactions = transactions
        hearing.customerPlace = .init(
            net: .customer, claimed, revision: revision, passedOver: passedOver, next: next)
        _ = try await hear([hearing])
    }

    /// `revision pages passed_over wanted_by`
    func position(_ customer: String) async throws -> String? {
        try await texts(
            """
            select concat_ws(' ', coalesce(swept_revision, '-'), swept_pages, passed_over, wanted_by) from history_walks
            where customer = '\(customer)'
            """
        ).first
    }
}
