import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a limit is exact, however many purchases come at once, in one batch or in many (S3). Method: real statements
/// on a real database, from one session and from eight, some of which are ended while they write.
@Suite(.timeLimit(.minutes(4))) struct LimitPlaceTests {
    private static func policy(_ change: (inout AppPolicy) -> Void) -> AppPolicy {
        var policy = AppPolicy(id: "game", grantFrom: .distantPast, makeUpUsersPerCustomer: 0, products: [])
        change(&policy)
        return policy
    }

    private static func verdict(
        _ lab: LedgerLab, _ posted: Posted, _ entries: [Verdict.Entry], by policy: AppPolicy
    ) -> Verdict {
        var verdict = lab.verdict(posted, .transactions(entries))
        verdict.places = policy.places(for: verdict.decisions, posterID: posted.userID)
        return verdict
    }

    private static let sandbox = policy {
        $0.sandboxPerUserPerDay = 2
        $0.sandboxPerAppPerDay = 3
    }

    @Test(
        "two hundred sandbox purchases of one receipt, and two hundred receipts of one batch: two are given, the rest held"
    )
    func withinABatch() async throws {
        for isOneReceipt in [true, false] {
            try await LedgerLab.with { lab in
                let entries = (0..<200).map { Verdict.Entry.purchase("t\($0)", in: Transaction.sandbox) }
                var verdicts: [Verdict] = []
                if isOneReceipt {
                    verdicts = [Self.verdict(lab, try await lab.post("u1"), entries, by: Self.sandbox)]
                } else {
                    for entry in entries {
                        verdicts.append(Self.verdict(lab, try await lab.post("u1"), [entry], by: Self.sandbox))
                    }
                }
                let settled = try await lab.database.settle(SettleBatch(verdicts: verdicts, parking: lab.parking))
                #expect(
                    settled.map(\.lackingLimit).filter { $0 == .sandboxUser }.count == (isOneReceipt ? 1 : 198))
                #expect(settled.count == (isOneReceipt ? 1 : 200))
                #expect(try await lab.grants.count == 2)
                #expect(
                    try await lab.texts(
                        "select distinct state || ' ' || reason || ' ' || array_to_string(reasons, ',') from outcomes where state <> 'granted'"
                    )
                        == ["held sandbox limit_sandbox_user"])
                // One place of the app is left, for another user; a third user gets none.
                for (user, state) in [("u2", ReceiptState.granted), ("u3", .held)] {
                    let posted = try await lab.post(user)
                    let entry = Verdict.Entry.purchase("t-\(user)", in: Transaction.sandbox)
                    #expect(
                        try await lab.settle(Self.verdict(lab, posted, [entry], by: Self.sandbox)) == [posted.id: state]
                    )
                }
                #expect(
                    try await lab.texts(
                        "select array_to_string(reasons, ',') from outcomes where transaction_id = 't-u3'") == [
                            "limit_sandbox_app"
                        ])
                // The next day these purchases get their places.
                try await lab.run("update limit_places set day = day - 1")
                let waiting = try await lab.post("u3")
                let entry = Verdict.Entry.purchase("t-u3", in: Transaction.sandbox)
                #expect(
                    try await lab.settle(Self.verdict(lab, waiting, [entry], by: Self.sandbox)) == [
                        waiting.id: .granted
                    ])
                try await lab.run("update limit_places set day = day - 3")
                #expect(try await lab.ledger.run(Statements.dropLimitPlaces, ()).first ?? 0 > 0)
                #expect(try await lab.number("select count(*) from limit_places") == 0)
            }
        }
    }

    @Test(
        "Apple's answers about a bare id are deleted together, thirty days after the last; users of customers never are"
    )
    func answers() async throws {
        try await LedgerLab.with { lab in
            func question(_ id: UUID) -> Statements.BareID {
                .init(receiptID: id, appID: "game", transactionID: "t1", isOld: false)
            }
            func mayBeAsked(_ id: UUID) async throws -> Bool? {
                try await lab.ledger.run(Statements.knownBareID, question(id)).first?.mayBeAsked
            }
            let (old, recent) = (UUID(), UUID())
            for id in [old, recent] {
                for _ in 0..<Statements.bareIDAnswersMax {
                    #expect(try await mayBeAsked(id) == true)
                    _ = try await lab.ledger.run(Statements.noteAnswer, question(id))
                }
                #expect(try await mayBeAsked(id) == false)
            }
            try await lab.run(
                "insert into limit_places values ('game', 'make_up_customer', 'c1', '-infinity', 1, 'u1')")
            let forget = { try await lab.ledger.run(Statements.dropLimitPlaces, ()).first }
            #expect(try await forget() == 0)
            try await lab.run("update limit_places set taken_at = now() - interval '31 days'")
            try await lab.run(
                """
                update limit_places set taken_at = now() - interval '29 days'
                where holder = '\(recent.text)' and n = \(Statements.bareIDAnswersMax)
                """)
            #expect(try await forget() == Statements.bareIDAnswersMax)
            #expect(try await forget() == 0)
            #expect(try await mayBeAsked(old) == true)
            #expect(try await mayBeAsked(recent) == false)
            #expect(
                try await lab.number("select count(*) from limit_places where limit_name = 'make_up_customer'") == 1)
        }
    }

    @Test("what has nothing left to give takes no place, and the same again takes none twice")
    func noneTwice() async throws {
        try await LedgerLab.with { lab in
            let policy = Self.policy { $0.makeUpPerUserPerDay = 3 }
            let (given, refunded) = (try await lab.post("u1"), try await lab.post("u1"))
            for _ in 0..<2 {
                _ = try await lab.settle(Self.verdict(lab, given, [.purchase("t1")], by: policy))
            }
            for user in ["u1", "u2"] {
                let again = try await lab.post(user)
                #expect(
                    try await lab.settle(Self.verdict(lab, again, [.purchase("t1")], by: policy)) == [
                        again.id: .alreadyGranted
                    ])
            }
            try await lab.settle(
                refunded, .purchase("t2", signedAt: .now, .rejected(.refunded)) { $0.revokedAt = .now })
            let old = try await lab.post("u1")
            _ = try await lab.settle(Self.verdict(lab, old, [.purchase("t2", signedAt: .distantPast)], by: policy))
            #expect(try await lab.texts("select limit_name || ' ' || n from limit_places") == ["make_up_user 1"])
        }
    }

    @Test(
        "usersPerCustomer: the users of purchases before there were places count, and a known user has a place"
    )
    func customers() async throws {
        try await LedgerLab.with { lab in
            let policy = Self.policy { $0.makeUpUsersPerCustomer = 3 }
            let steps: [(id: String, user: String, isOfBefore: Bool, state: ReceiptState)] = [
                ("old-1", "u1", true, .granted), ("old-2", "u2", true, .granted), ("a", "u3", false, .granted),
                ("b", "u4", false, .held), ("again-1", "u1", false, .granted), ("again-2", "u2", false, .granted),
                ("again-3", "u3", false, .granted),
            ]
            for step in steps {
                let posted = try await lab.post(step.user)
                var verdict = Self.verdict(lab, posted, [.purchase(step.id) { $0.customerID = "c" }], by: policy)
                if step.isOfBefore { verdict.places = [] }
                let states = try await lab.settle(verdict)
                #expect(states == [posted.id: step.state], "\(step.id)")
            }
            #expect(
                try await lab.texts("select distinct holder || ' ' || day || ' ' || n from limit_places order by 1")
                    == ["c -infinity 1", "c -infinity 2", "c -infinity 3"])
            #expect(try await lab.texts("select reason from outcomes where transaction_id = 'b'") == ["review"])
        }
    }

    /// Two units of `coins` a day, three a month, four for ever.
    private static let limited = policy {
        $0.sold = Catalogue(products: [
            .init(
                id: "coins", kind: .consumable, defaultItem: "coins",
                items: [.init(id: "coins", limits: .init(day: 2, month: 3, ever: 4), versions: [])])
        ])
    }

    /// `transaction limit,limit` for each purchase that exceeded a limit of the catalogue.
    private static func flagged(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            "select transaction_id || ' ' || array_to_string(reasons, ',') from outcomes where reasons is not null order by 1"
        )
    }

    @Test("R2: what is paid is given beyond the catalogue's limits, and its grant says which it passed")
    func items() async throws {
        // The test moves grants to the day before.
        try await LedgerLab.with(endsSound: false) { lab in
            func buy(
                _ id: String, by user: String = "u1", quantity: Int = 1, _ state: ReceiptState = .granted
            ) async throws -> LimitPlace.Limit? {
                let entry = Verdict.Entry.purchase(id) { $0.quantity = quantity }
                let posted = try await lab.post(user)
                let settled = try await lab.database.settle(
                    SettleBatch(verdicts: [Self.verdict(lab, posted, [entry], by: Self.limited)], parking: lab.parking))
                #expect(settled.map(\.state) == [state], "\(id)")
                return settled.first?.lackingLimit
            }
            // The purchase was given before the item had limits, to a guest who became part of the account.
            try await lab.settle(try await lab.post("guest"), .purchase("old"))
            #expect(try await lab.merge("guest", into: "u1") == .merged)
            #expect(try await buy("a") == nil)
            #expect(try await buy("b") == .itemDay)
            #expect(try await buy("b", by: "u2", .alreadyGranted) == nil, "nothing was left to give")
            // The next day.
            try await lab.run("update limit_places set day = day - 1 where limit_name = 'item_day'")
            try await lab.run("update grants set granted_at = granted_at - interval '1 day'")
            #expect(try await buy("c", quantity: 2) == .itemEver)
            #expect(try await buy("d", by: "u3", quantity: 2) == nil, "another user has other places")
            #expect(try await Self.flagged(lab) == ["b limit_item_day", "c limit_item_ever,limit_item_month"])
        }
    }

    @Test("R2: a batch of one user's purchases, and eight writers: all are given, and all beyond the limit say so")
    func itemsAtOnce() async throws {
        try await LedgerLab.with(connections: 9) { lab in
            let policy = Self.policy {
                $0.sold = Catalogue(products: [
                    .init(
                        id: "coins", kind: .consumable, defaultItem: "coins",
                        items: [.init(id: "coins", limits: .init(day: 5), versions: [])])
                ])
            }
            var verdicts: [Verdict] = []
            for number in 0..<96 {
                let posted = try await lab.post("u\(number % 3)")
                verdicts.append(Self.verdict(lab, posted, [.purchase("t\(number)")], by: policy))
            }
            let shares = (0..<8).map { writer in verdicts.indices.filter { $0 % 8 == writer }.map { verdicts[$0] } }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for share in shares {
                    group.addTask {
                        for start in stride(from: 0, to: share.count, by: 4) {
                            let batch = Array(share[start..<min(start + 4, share.count)])
                            let rows = try await lab.database.settle(SettleBatch(verdicts: batch, parking: lab.parking))
                            #expect(rows.count == batch.count)
                        }
                    }
                }
                try await group.waitForAll()
            }
            #expect(try await lab.grants.count == 96)
            #expect(
                try await lab.number(
                    "select count(*) from outcomes where reasons = array['limit_item_day']") == 96 - 3 * 5)
            #expect(
                try await lab.texts(
                    "select max(n) || ' ' || count(*) from limit_places group by holder") == ["5 5", "5 5", "5 5"])
        }
    }

    @Test(
        "S15: of bare ids those without a purchase count; one more is refused, the same again and what others ask are not"
    )
    func questions() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let most = Statements.questionsPerUserMax
            func ask(_ ids: [String], by user: String = "u1", isVouched: Bool = false) async throws
                -> [StoredSubmission]
            {
                try await lab.ledger.store(
                    ids.map {
                        Submission(
                            appID: "game", userID: user, proof: .identifier, transactionID: $0, isVouched: isVouched)
                    })
            }
            func count(_ stored: [StoredSubmission]) -> Int {
                stored.filter { if case .new = $0 { true } else { false } }.count
            }
            let ids = (0..<30).map { "q\($0)" }
            let first = try await ask(ids)
            #expect(count(first) == most && first.count { $0 == .refused } == 30 - most)
            let taken = zip(ids, first).filter { $1 != .refused }.map(\.0)
            #expect(try await ask(taken).allSatisfy { $0 == .known })
            #expect(try await ask(["more"]) == [.refused])
            #expect(count(try await ask(["more"], by: "u2")) == 1)
            #expect(count(try await ask(["more"], isVouched: true)) == 1)
            // A receipt that led to a grant makes room for one more.
            try await lab.run(
                "update receipts set state = 'granted', settled_at = now(), due_at = null where transaction_id = '\(taken[0])'"
            )
            #expect(count(try await ask(["more", "still"])) == 1)
            #expect(
                try await lab.number("select max(n) - count(*) from limit_places where limit_name = 'questions'") <= 0)
        }
    }

    @Test("S15, S3-43: eight processes at once: twenty bare ids, fifty orders and one tap")
    func processes() async throws {
        try await LedgerLab.with(connections: 9) { lab in
            let most = Statements.questionsPerUserMax
            let submissions = (0..<400).map {
                Submission(appID: "game", userID: "u1", proof: .identifier, transactionID: "q\($0)")
            }
            let room = Statements.ordersPerUserMax - 50
            try await lab.run(
                """
                insert into orders (id, app_id, user_id, product_id, placed_on, place)
                select gen_random_uuid(), 'game', 'u1', 'p', (now() at time zone 'UTC')::date, n from generate_series(1, \(room)) n
                """)
            let orders = (0..<400).map { NewOrder.example($0) }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for writer in 0..<8 {
                    group.addTask {
                        for start in stride(from: writer * 50, to: writer * 50 + 50, by: 10) {
                            _ = try await lab.database.run(
                                Statements.insertReceipts,
                                .init(submissions: Array(submissions[start..<start + 10]), schedule: RetrySchedule()))
                            _ = try await OrderBatch.place(Array(orders[start..<start + 10]), in: lab.database)
                        }
                    }
                }
                try await group.waitForAll()
            }
            #expect(try await lab.number("select count(*) from receipts") == most)
            #expect(try await lab.number("select count(*) from orders") == Statements.ordersPerUserMax)
            for round in 0..<20 {
                let taps = (0..<8).map { _ in
                    var order = NewOrder.example(1000 + round)
                    order.userID = "tapper"
                    return order
                }
                let placed = try await withThrowingTaskGroup(of: (UUID?, Bool).self) { group in
                    for tap in taps {
                        group.addTask {
                            // Another order of the same user stands before it in the same batch.
                            var other = NewOrder.example(Int.random(in: 2000..<1_000_000))
                            other.userID = "tapper"
                            let both = try await OrderBatch.place([other, tap], in: lab.database)
                            return (both[1]?.view.id, both[1]?.isNew ?? false)
                        }
                    }
                    return try await group.reduce(into: []) { $0.append($1) }
                }
                #expect(Set(placed.map(\.0)).count == 1 && placed.count { $0.1 } == 1, "one tap is one order")
            }
        }
    }

    @Test("S3: eight writers race for each limit, and it is exact", arguments: [1, 2, 3])
    func raced(seed: UInt64) async throws {
        try await LedgerLab.with(connections: 9) { lab in
            let policy = Self.policy {
                $0.sandboxPerUserPerDay = 5
                $0.sandboxPerAppPerDay = 12
                $0.makeUpPerUserPerDay = 4
                $0.makeUpUsersPerCustomer = 2
            }
            var random = SeededRandom(seed: seed)
            var verdicts: [Verdict] = []
            for number in 0..<240 {
                let user = "u\(Int.random(in: 0..<4, using: &random))"
                let isSandbox = Bool.random(using: &random)
                let customer = "c\(Int.random(in: 0..<3, using: &random))"
                let entry = Verdict.Entry.purchase(
                    "t\(number)", in: isSandbox ? Transaction.sandbox : Transaction.production
                ) { $0.customerID = customer }
                verdicts.append(Self.verdict(lab, try await lab.post(user), [entry], by: policy))
            }
            let shares = (0..<8).map { writer in verdicts.indices.filter { $0 % 8 == writer }.map { verdicts[$0] } }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for share in shares {
                    group.addTask {
                        var left = share[...]
                        while !left.isEmpty {
                            let batch = Array(left.prefix(7))
                            let rows = try await lab.database.settle(SettleBatch(verdicts: batch, parking: lab.parking))
                            let done = Set(rows.map(\.receiptID))
                            left = left.dropFirst(batch.count) + batch.filter { !done.contains($0.receiptID) }
                        }
                    }
                }
                try await group.waitForAll()
            }
            #expect(try await lab.number("select count(*) from grants where environment = 'Sandbox'") == 12)
            #expect(
                try await lab.number(
                    "select max(c) from (select count(*) c from grants where environment = 'Sandbox' group by user_id) u"
                ) <= 5)
            #expect(
                try await lab.number(
                    "select max(c) from (select count(*) c from grants where environment = 'Production' group by user_id) u"
                ) <= 4)
            #expect(
                try await lab.number(
                    "select max(c) from (select count(distinct user_id) c from grants where environment = 'Production' group by customer_id) u"
                )
                    <= 2)
            // Places have no gaps, so that a number is the count; and no purchase waits for another one that has no
            // place itself.
            #expect(
                try await lab.number(
                    "select count(*) from (select max(n) m, count(*) c from limit_places group by app_id, limit_name, holder, day) p where m <> c"
                )
                    == 0)
            #expect(try await lab.number("select count(*) from receipts where state not in ('granted', 'held')") == 0)
        }
    }
}
