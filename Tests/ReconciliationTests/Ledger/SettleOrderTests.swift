import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: one purchase binds an order once, decided in the database (B7). Method: verdicts with orders through the
/// statement itself, one by one, in one batch, and against sessions that hold the rows that the verdicts need; then
/// many at once. Every test ends with all invariants, which compare orders with grants.
@Suite(.timeLimit(.minutes(8))) struct SettleOrderTests {
    @Test("S3-13: the grant names its order, the order its purchase, the event both, the outcome why")
    func bound() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1", goods: #"[{"item": "coin", "amount": 60}]"#)
            try await lab.run(#"update orders set target = '{"server": "s7"}'"#)
            let posted = try await lab.post("u1")
            let entry = try await lab.matched("t1", by: "u1", order: order)
            #expect(try await lab.settle(posted, entry) == .granted)
            #expect(try await lab.boundOrders() == ["\(order.lowercased) t1 u1 coins"])
            #expect(
                try await lab.texts("select order_id || ' ' || binding_source from grants")
                    == ["\(order.lowercased) named_order"])
            #expect(
                try await lab.texts("select body ->> 'orderId' || ' ' || (body -> 'target' ->> 'server') from events")
                    == ["\(order.lowercased) s7"])
            #expect(
                try await lab.texts("select binding_source || ' ' || array_to_string(reasons, ',') from outcomes")
                    == ["named_order order_named"])
            // The same verdict again, or another receipt of the purchase, changes nothing.
            #expect(try await lab.settle(posted, entry) == nil)
            let later = try await lab.post("u1")
            #expect(try await lab.settle(later, entry) == .alreadyGranted)
            #expect(try await lab.number("select count(*) from events") == 1)
        }
    }

    @Test("S0-9: without an order the goods go where the poster says, unless they are another user's")
    func target() async throws {
        try await LedgerLab.with { lab in
            for (user, expected) in [("u1", #"{"role": "r1"}"#), ("u2", "-")] {
                let submission = Submission(
                    appID: "game", userID: "u1", proof: Proof(kind: .receipt, payload: user), transactionID: user,
                    details: #"{"installationId": "device", "target": {"role": "r1"}}"#,
                    target: #"{"role": "r1"}"#)
                #expect(try await lab.ledger.insert(submission))
                let row = try #require(try await lab.ledger.fetch(submission.receiptID))
                #expect(row.installationID == nil && row.target == #"{"role": "r1"}"#)
                let claim = Claim(userID: "u1", hasPossession: true, receivedAt: .now, target: row.target)
                let entry = Verdict.Entry.purchase("t-\(user)")
                let match = Match(userID: user, source: user == "u1" ? .poster : .userToken)
                let verdict = Verdict(
                    receiptID: row.id, attempt: 0, appID: "game", claim: claim,
                    decisions: .transactions([
                        .init(
                            transaction: entry.transaction,
                            decision: .grant(goods: Verdict.Entry.coins, source: match.source), match: match)
                    ]), dueIn: .zero)
                #expect(try await lab.settle(verdict) == [row.id: .granted])
                #expect(
                    try await lab.texts(
                        "select coalesce((body -> 'target')::text, '-') from events where user_id = '\(user)'")
                        == [expected])
            }
        }
    }

    @Test("P7: a purchase that was granted before binds no further order; the new one stays open")
    func replayed() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            let order = try await lab.place("u1")
            let posted = try await lab.post("u1")
            #expect(
                try await lab.settle(posted, try await lab.matched("t1", by: "u1", order: order)) == .alreadyGranted)
            #expect(try await lab.boundOrders() == [])
        }
    }

    @Test(
        "row 6: what another user's order names is that user's; the poster reads no more than of any other's purchase")
    func ofAnother() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u2", installation: "device")
            let posted = try await lab.post("u1")
            var entry = try await lab.matched("t1", by: "u2", order: order)
            var match = try #require(entry.match)
            match.source = .orderOfAnother
            entry = Verdict.Entry(
                transaction: entry.transaction, decision: .grant(goods: Verdict.Entry.coins, source: .orderOfAnother),
                match: match)
            #expect(try await lab.settle(posted, entry) == .granted)
            #expect(try await lab.grants == ["t1 u2"])
            #expect(try await lab.texts("select user_id from events") == ["u2"])
            let view = try #require(try await lab.ledger.view(posted.id))
            #expect(view.state == .alreadyGranted && view.reason == "owned_by_another_user")
            #expect(view.transactions.map(\.state) == ["already_granted"])
            #expect(view.transactions.map(\.isOwn) == [false] && view.transactions.allSatisfy { $0.goods == nil })
            // The owner's own post is told that the purchase is the owner's.
            let own = try await lab.post("u2")
            #expect(try await lab.settle(own, .purchase("t1")) == .alreadyGranted)
            #expect(try await lab.ledger.view(own.id)?.transactions.map(\.isOwn) == [true])
        }
    }

    @Test("S3-42: an order that the token names becomes one of Apple's product")
    func corrected() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1", product: "gems")
            try await lab.settle(try await lab.post("u1"), try await lab.matched("t1", by: "u1", order: order))
            #expect(try await lab.boundOrders() == ["\(order.lowercased) t1 u1 coins"])
            #expect(try await lab.ledger.order(order)?.productID == "coins")
            let known = try await lab.evidence(lab.question(Verdict.Entry.purchase("t2").transaction, named: order))
            #expect(known[0].orders.map(\.productID) == ["coins"])
        }
    }

    @Test("B7: three purchases that want one order in one batch: one has it, the others are read again")
    func oneBatch() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            var verdicts: [Verdict] = []
            for id in ["t1", "t2", "t3"] {
                let entry = try await lab.matched(id, by: "u1", order: order)
                verdicts.append(lab.verdict(try await lab.post("u1"), .transactions([entry])))
            }
            let first = try await lab.ledger.settleTogether(verdicts)
            #expect(first.count == 1 && first.values.first == .granted)
            #expect(try await lab.grants.count == 1)
            #expect(try await lab.ledger.settleTogether(verdicts) == [:], "still the same order: no verdict")
            let rest = verdicts.filter { first[$0.receiptID] == nil }.map { verdict in
                guard case .transactions(let entries) = verdict.decisions else { return verdict }
                return Verdict(
                    receiptID: verdict.receiptID, attempt: 0, appID: "game", claim: verdict.claim,
                    decisions: .transactions([.purchase(entries[0].transaction.id)]), dueIn: .zero)
            }
            #expect(try await lab.ledger.settleTogether(rest).values.allSatisfy { $0 == .granted })
            #expect(try await lab.boundOrders().count == 1)
        }
    }

    @Test(
        "B7: a verdict for an order that another session binds waits, as for a purchase: it binds it or gives nothing",
        arguments: [true, false])
    func heldOrder(isCommitted: Bool) async throws {
        try await LedgerLab.with { lab in
            let (contested, free) = (try await lab.place("u1"), try await lab.place("u2"))
            let winner = try await lab.post("u1")
            let (loser, neighbour) = (try await lab.post("u1"), try await lab.post("u2"))
            let entry = try await lab.matched("t1", by: "u1", order: contested)
            let losing = lab.verdict(
                loser, .transactions([try await lab.matched("t2", by: "u1", order: contested)]))
            let other = lab.verdict(
                neighbour, .transactions([try await lab.matched("t3", by: "u2", order: free)]))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(winner, .transactions([entry])), on: session)
                async let settled = lab.ledger.settleTogether([losing, other])
                try await lab.untilBlocked()
                try await session.run(isCommitted ? .commit : .rollback)
                #expect(
                    try await settled
                        == (isCommitted
                            ? [neighbour.id: .granted] : [neighbour.id: .granted, loser.id: .granted]))
            }
            #expect(try await lab.settle(losing) == [:], "the order is bound")
            #expect(try await lab.grants == (isCommitted ? ["t1 u1", "t3 u2"] : ["t2 u1", "t3 u2"]))
            let fresh = try await lab.evidence(lab.question(Verdict.Entry.purchase("t4").transaction, named: contested))
            #expect(fresh[0].orders.map(\.transactionID) == [isCommitted ? "t1" : "t2"])
        }
    }

    @Test("B7: of two statements that want each other's orders one is refused, and written again")
    func crossing() async throws {
        try await LedgerLab.with { lab in
            let orders = [try await lab.place("u1"), try await lab.place("u2")]
            func verdict(_ id: String, _ user: Int) async throws -> Verdict {
                let name = "u\(user + 1)"
                return lab.verdict(
                    try await lab.post(name), .transactions([try await lab.matched(id, by: name, order: orders[user])]))
            }
            @Sendable func error(of verdict: Verdict, on session: Database) async -> PostgresError? {
                do {
                    try await lab.settle(verdict, on: session)
                    return nil
                } catch {
                    return error as? PostgresError
                }
            }
            let (first, second) = (try await verdict("a1", 0), try await verdict("b1", 1))
            let (firstThen, secondThen) = (try await verdict("a2", 1), try await verdict("b2", 0))
            try await lab.withSession { one in
                try await lab.withSession { other in
                    try await one.run(.begin)
                    try await other.run(.begin)
                    try await lab.settle(first, on: one)
                    try await lab.settle(second, on: other)
                    async let waiting = error(of: firstThen, on: one)
                    try await lab.untilBlocked()
                    let crossed = await error(of: secondThen, on: other)
                    #expect([await waiting, crossed].compactMap(\.self) == [.serialization])
                    // The refused statement has rolled back its transaction.
                    try await one.run(.commit)
                    try await other.run(.commit)
                }
            }
            // The group commit would do this: write the same verdicts again, whatever became of them.
            try await lab.settle(first)
            try await lab.settle(second)
            #expect(try await lab.boundOrders().count == 2)
        }
    }

    @Test(
        "B7: one purchase claimed by two users, each with an own order: one order is bound, the other stays open"
    )
    func twoUsers() async throws {
        try await LedgerLab.with { lab in
            var verdicts: [Verdict] = []
            for user in ["u1", "u2"] {
                let order = try await lab.place(user)
                let entry = try await lab.matched("t1", by: user, order: order)
                verdicts.append(lab.verdict(try await lab.post(user), .transactions([entry])))
            }
            let settled = try await lab.ledger.settleTogether(verdicts)
            #expect(settled.values.map(\.rawValue).sorted() == ["already_granted", "granted"])
            #expect(try await lab.ledger.settleTogether(verdicts) == [:])
            #expect(try await lab.boundOrders().count == 1)
            #expect(try await lab.grants.count == 1)
        }
    }

    @Test("S4-11: what is held, open or rejected binds nothing")
    func notGiven() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            let entry = try await lab.matched("t1", by: "u1", order: order)
            for decision in [Decision.held(.review), .open(.appleAnswer), .rejected(.refunded)] {
                try await lab.settle(try await lab.post("u1"), entry.with(decision))
            }
            #expect(try await lab.boundOrders() == [])
            #expect(try await lab.grants == [])
        }
    }

    @Test("note 5: a bare id whose owner an order names is given; its answer shows nothing of what others were given")
    func bareID() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            let question = try await lab.post("u1", kind: .identifier, transactionID: "t1")
            #expect(
                try await lab.settle(question, try await lab.matched("t1", by: "u1", order: order)) == .granted)
            let other = try await lab.place("u2")
            let stranger = try await lab.post("u2", kind: .identifier, transactionID: "t1")
            #expect(try await lab.settle(stranger, try await lab.matched("t1", by: "u2", order: other)) == .held)
            #expect(try await lab.outcomes(stranger) == ["t1": "held possession_missing"])
            #expect(try await lab.boundOrders().count == 1)
        }
    }

    @Test("note 3: a chain that moves is written down and told to both users, once")
    func chainMoves() async throws {
        try await LedgerLab.with { lab in
            func grant(_ id: String, to user: String, from before: String?) async throws {
                var match = Match(userID: user, source: .poster, reasons: before == nil ? [] : [.chainMoved])
                match.takesChain = true
                match.chainWasOf = before
                let purchase = Verdict.Entry.purchase(id, of: "o", kind: .autoRenewable) {
                    $0.webOrderLineItemID = id
                    $0.purchasedAt += before == nil ? 0 : 60
                }
                let posted = try await lab.post(user)
                let verdict = lab.verdict(
                    posted,
                    .transactions([
                        .init(
                            transaction: purchase.transaction,
                            decision: .grant(goods: Verdict.Entry.coins, source: .poster), match: match)
                    ]))
                #expect(try await lab.settle(verdict) == [posted.id: .granted])
                #expect(try await lab.settle(verdict) == [:])
            }
            try await grant("p1", to: "u1", from: nil)
            try await grant("p2", to: "u2", from: "u1")
            #expect(
                try await lab.texts("select transaction_id || ' ' || user_id from ownerships order by 1")
                    == ["p1 u1", "p2 u2"])
            #expect(
                try await lab.texts(
                    "select type || ' ' || user_id from events where type like 'ownership.%' order by 1")
                    == ["ownership.gained u2", "ownership.lost u1"])
            #expect(try await lab.grants == ["p1 u1", "p2 u2"], "grants never change")
        }
    }

    @Test("note 2: a token's proof for another than whom it was given to is told to both, once; nothing moves")
    func disputed() async throws {
        try await LedgerLab.with { lab in
            // The grant has a proof, so that showing the purchase is no dispute yet.
            var given = Verdict.Entry.purchase("t1")
            given = Verdict.Entry(
                transaction: given.transaction, decision: .grant(goods: Verdict.Entry.coins, source: .support),
                match: Match(userID: "u1", source: .support))
            try await lab.settle(try await lab.post("u1"), given)
            let order = try await lab.place("u2")
            var entry = try await lab.matched("t1", by: "u2", order: order)
            for source in [BindingSource.namedOrder, .orderToken, .orderToken] {
                var match = try #require(entry.match)
                match.source = source
                entry = Verdict.Entry(
                    transaction: entry.transaction, decision: .grant(goods: Verdict.Entry.coins, source: source),
                    match: match)
                #expect(try await lab.settle(try await lab.post("u2"), entry) == .alreadyGranted)
                let told = try await lab.texts(
                    "select user_id || ' ' || (body ->> 'isOwner') from events where type = 'ownership.disputed' order by 1"
                )
                #expect(told == (source == .namedOrder ? [] : ["u1 true", "u2 false"]))
            }
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.boundOrders() == [])
            let ids = ["claimant", "holder"].map {
                DerivedID.event(
                    appID: "game", transactionID: "t1", type: .ownershipDisputed, distinction: ".\($0)"
                ).lowercased
            }
            let told = "select event_id::text from events where type = 'ownership.disputed' order by body ->> 'isOwner'"
            #expect(try await lab.texts(told) == ids)
        }
    }

    @Test("row 5a: what a third user's record gave away is disputed by its buyer, and not by who posted the record")
    func disputedRecord() async throws {
        try await LedgerLab.with { lab in
            let bought = Verdict.Entry.purchase("t1").transaction
            let ofRecord = Verdict.Entry(
                transaction: bought, decision: .grant(goods: Verdict.Entry.coins, source: .record),
                match: Match(userID: "accomplice", source: .record))
            try await lab.settle(try await lab.post("thief"), ofRecord)
            try await lab.settle(try await lab.post("thief"), ofRecord)
            let told =
                "select user_id || ' ' || (body ->> 'isOwner') from events where type = 'ownership.disputed' order by 1"
            #expect(try await lab.texts(told) == [])
            let own = Verdict.Entry(
                transaction: bought, decision: .grant(goods: Verdict.Entry.coins, source: .poster),
                match: Match(userID: "buyer", source: .poster))
            try await lab.settle(try await lab.post("buyer"), own)
            #expect(try await lab.texts(told) == ["accomplice true", "buyer false"])
            #expect(
                try await lab.number("select count(*) from v_disputes where claimant = 'buyer' and safe_at > now()")
                    == 1)
        }
    }

    @Test("P6: a second consumable on one order is flagged and told; so are two shortly after each other, once")
    func doubleCharges() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            try await lab.settle(try await lab.post("u1"), try await lab.matched("t1", by: "u1", order: order))
            var match = Match(userID: "u1", source: .orderToken, secondChargeOf: order, reasons: [.secondCharge])
            match.order = nil
            let second = Verdict.Entry.purchase("t2") { $0.purchasedAt += 3600 }
            let posted = try await lab.post("u1")
            try await lab.settle(
                posted,
                Verdict.Entry(
                    transaction: second.transaction, decision: .grant(goods: Verdict.Entry.coins, source: .orderToken),
                    match: match))
            #expect(
                try await lab.texts("select transaction_id || ' ' || order_id from double_charges") == [
                    "t2 \(order.lowercased)"
                ])
            #expect(
                try await lab.texts("select concat_ws(' ', transaction_id, first_transaction_id) from v_double_charges")
                    == ["t2 t1"])

            // All are given long after they were bought: ten minutes are close, whichever came first; a second more is
            // not.
            let start = Date(timeIntervalSince1970: Date.now.timeIntervalSince1970.rounded() - 3600)
            for (id, user, seconds) in [
                ("a2", "u2", 600.0), ("a1", "u2", 0), ("b1", "u3", 0), ("b2", "u3", 601), ("c", "u4", 0),
            ] {
                try await lab.settle(
                    try await lab.post(user), .purchase(id) { $0.purchasedAt = start.addingTimeInterval(seconds) })
            }
            try await lab.settle(try await lab.post("u4"), .purchase("d") { $0.productID = "gems" })
            let sweep = DoubleChargeSweep(ledger: lab.ledger, logger: .silent)
            var batch = DoubleChargeSweep.batchMax
            for _ in 0..<2 { await sweep.sweep(&batch, unlessWithin: .zero) }
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', transaction_id, first_transaction_id) from v_double_charges order by 1")
                    == ["a2 a1", "t2 t1"])
            #expect(
                try await lab.texts(
                    "select transaction_id || ' ' || user_id from events where type = 'purchase.possible_double_charge' order by 1"
                )
                    == ["a2 u2", "t2 u1"])
        }
    }

    @Test(
        "B7: sixty purchases of six users and twenty orders, from eight writers at once: each order once, each purchase once"
    )
    func many() async throws {
        try await LedgerLab.with(connections: 4, writers: 2) { lab in
            var random = SeededRandom(announcing: "SettleOrder")
            for index in 0..<20 { try await lab.place("u\(index % 6)", minutesBefore: Double(index) / 10) }
            var work: [(Posted, Transaction)] = []
            for index in 0..<60 {
                let transaction = Verdict.Entry.purchase("t\(index)").transaction
                // Two users claim one purchase in four.
                work.append((try await lab.post("u\(index % 6)"), transaction))
                if index % 4 == 0 { work.append((try await lab.post("u\((index + 1) % 6)"), transaction)) }
            }
            work.shuffle(using: &random)
            let policy = AppPolicy(
                id: "game", grantFrom: .distantPast, makeUpMaxAge: .zero,
                products: [.init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)])
            try await withThrowingTaskGroup(of: Void.self) { group in
                for (posted, transaction) in work {
                    group.addTask { try await Self.settle(posted, transaction, policy, lab) }
                }
                try await group.waitForAll()
            }
            #expect(try await lab.grants.count == 60)
            #expect(try await lab.boundOrders().count == 20, "every order has a purchase: there are enough for all")
            #expect(try await lab.number("select count(*) from receipts where settled_at is null") == 0)
            #expect(
                try await lab.number("select count(*) from grants where binding_source not in ('open_order', 'poster')")
                    == 0)
        }
    }

    /// As a worker does it: matches, writes, and matches again the verdicts that were not written.
    private static func settle(
        _ posted: Posted, _ transaction: Transaction, _ policy: AppPolicy, _ lab: LedgerLab
    ) async throws {
        for _ in 0..<100 {
            let evidence = try await lab.ledger.evidence(lab.question(transaction, by: posted.userID))
            let entry = policy.judge(
                transaction,
                claim: Claim(userID: posted.userID, hasPossession: true, receivedAt: LedgerLab.bought),
                evidence: evidence)
            if try await lab.ledger.settle(lab.verdict(posted, .transactions([entry]))) != nil { return }
            guard let row = try await lab.ledger.fetch(posted.id), !row.state.isEnded else { return }
        }
        Issue.record("receipt \(posted.id) never reached a verdict")
    }
}

extension UUID {
    fileprivate var lowercased: String { uuidString.lowercased() }
}
