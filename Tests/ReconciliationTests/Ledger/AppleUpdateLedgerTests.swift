import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings
@testable import Support

/// Goal: an Apple update is written with the verdict that decides it, for that verdict's effects and nothing else; one
/// process at a time claims it, and it ends once (B3, B5). Method: verdicts and claims on real PostgreSQL.
@Suite(.timeLimit(.minutes(8))) struct AppleUpdateLedgerTests {
    fileprivate static let policy = {
        var policy = AppPolicy(
            id: "game", grantFrom: .distantPast, makeUpMaxAge: .zero,
            products: [.init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)])
        policy.writesBackTokens = true
        policy.finishAtApple = .afterReceipt
        return policy
    }()

    private static func line(_ kind: AppleUpdate.Kind, app: String = "game") -> AppleUpdateLine {
        AppleUpdateLine(appID: app, environment: Transaction.production, kind: kind)
    }

    private static func transaction(_ id: String, _ change: (inout Transaction) -> Void = { _ in }) -> Transaction {
        Verdict.Entry.purchase(id) {
            $0.showsToken = true
            change(&$0)
        }.transaction
    }

    @Test("B3, B5: written by the statement that grants or holds it, once, and not for what is somebody else's already")
    func written() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            let (first, second) = (try await lab.post("u1"), try await lab.post("u2"))
            #expect(try await lab.settle(first, Self.transaction("t1"), named: order) == .granted)
            // Another poster shows the same purchase and names an order of that poster: Apple is not told that order.
            let another = try await lab.place("u2")
            #expect(try await lab.settle(second, Self.transaction("t1"), named: another) == .alreadyGranted)
            let unknown = try await lab.post("u1")
            #expect(try await lab.settle(unknown, Self.transaction("t2") { $0.productID = "gems" }) == .held)
            #expect(
                try await lab.appleUpdates() == [
                    "t1 finish open", "t1 set_token \(order.uuidString.lowercased()) open", "t2 finish open",
                ])
            // The purchase was held before and is granted now: Apple is told once to finish it.
            let again = try await lab.post("u1")
            #expect(try await lab.settle(again, Self.transaction("t2")) == .granted)
            #expect(try await lab.appleUpdates().filter { $0.hasPrefix("t2") } == ["t2 finish open"])
            // An id that belongs to another app is held for a person, and this app does not finish it.
            let elsewhere = try await lab.post("u1", app: "other")
            #expect(try await lab.settle(elsewhere, Self.transaction("t1")) == .held)
            #expect(try await lab.number("select count(*) from apple_updates where app_id = 'other'") == 0)
            // A proof that arrives twice, or whose statement is repeated after a lost answer, changes nothing.
            let count = try await lab.number("select count(*) from apple_updates")
            try await lab.settle(first, Self.transaction("t1"), named: order)
            #expect(try await lab.number("select count(*) from apple_updates") == count)
        }
    }

    @Test("an order that another purchase took at the same time writes nothing: its caller matches anew")
    func contested() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            let posts = [try await lab.post("u1"), try await lab.post("u1")]
            var verdicts: [Verdict] = []
            for (index, posted) in posts.enumerated() {
                verdicts.append(try await lab.judged(posted, Self.transaction("t\(index)"), named: order))
            }
            let settled = try await lab.settle(verdicts[0], verdicts[1])
            #expect(settled.count == 1)
            #expect(try await lab.texts("select kind from apple_updates order by 1") == ["finish", "set_token"])
            #expect(
                try await lab.number(
                    "select count(*) from apple_updates e join grants g using (transaction_id) where g.order_id = '\(order)'"
                )
                    == 2)
        }
    }

    @Test(
        "one process has an Apple update at a time; if the process ends, the next one has it; what ended stays ended"
    )
    func claimed() async throws {
        try await LedgerLab.with { lab in
            for index in 0..<3 {
                try await lab.settle(try await lab.post("u1"), Self.transaction("t\(index)"))
            }
            func claim(_ lines: [AppleUpdateLine] = [Self.line(.finish), Self.line(.setToken)], limit: Int = 2)
                async throws
                -> [ClaimedAppleUpdate]
            {
                try await lab.database.run(
                    Statements.claimAppleUpdates, .init(lines: lines, limit: limit, lease: .seconds(60)))
            }
            #expect(try await claim([Self.line(.setToken), Self.line(.finish, app: "other")]) == [])
            let first = try await claim()
            let second = try await claim()
            #expect(Set(first.map(\.transactionID)).union(second.map(\.transactionID)).count == 3)
            #expect(first.count == 2 && second.count == 1 && first.allSatisfy { $0.attempt == 0 && $0.token == nil })
            #expect(try await claim() == [])
            try await lab.report(first[0], .done, nil)
            try await lab.report(first[1], .open, .appleUnavailable, dueIn: .seconds(-1))
            try await lab.report(second[0], nil, .appleBudget, counts: false, dueIn: .seconds(-1))
            let again = try await claim()
            #expect(Set(again.map(\.transactionID)) == [first[1].transactionID, second[0].transactionID])
            #expect(
                Dictionary(uniqueKeysWithValues: again.map { ($0.transactionID, $0.attempt) })
                    == [first[1].transactionID: 1, second[0].transactionID: 0])
            // The lease of a process that sleeps has run out: another process has made the Apple update in the
            // meantime.
            try await lab.report(again[0], .refused, .appleRefused)
            try await lab.report(again[0], .open, .appleUnavailable)
            #expect(
                try await lab.texts(
                    "select state from apple_updates where transaction_id = '\(again[0].transactionID)'")
                    == ["refused"])
            try await lab.report(again[1], .parked, .appleAnswer, dueIn: .seconds(-1))
            #expect(try await claim().map(\.transactionID) == [again[1].transactionID], "parked is tried on, rarely")
        }
    }

    @Test("B5: of a chain the latest purchase's token counts; one that it replaced is not told any more")
    func superseded() async throws {
        try await LedgerLab.with { lab in
            let tokens = [UUID(), UUID()]
            for (index, token) in tokens.enumerated() {
                try await lab.settle(try await lab.post(), .purchase("p\(index)"))
                try await lab.run(
                    """
                    insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
                    values ('p\(index)', 'set_token', 'game', 'Production', 'p0', now() + interval '\(index) days', '\(token)')
                    """)
            }
            let claimed = try await lab.database.run(
                Statements.claimAppleUpdates, .init(lines: [Self.line(.setToken)], limit: 9, lease: .seconds(60)))
            #expect(claimed.map(\.token) == [tokens[1]] && claimed[0].originalTransactionID == "p0")
            #expect(
                try await lab.texts("select state from v_apple_updates order by transaction_id") == [
                    "superseded", "open",
                ])
        }
    }

    @Test("B5: a later purchase that came with a token of its own keeps it; one that carries ours changes nothing")
    func supersededByApp() async throws {
        try await LedgerLab.with { lab in
            let ours = UUID()
            for (chain, token) in [("a", nil), ("b", ours), ("c", UUID())] {
                for (id, day, token) in [(chain + "0", 0.0, UUID()), (chain + "1", 30, token)] {
                    try await lab.settle(
                        try await lab.post(),
                        .purchase(id, of: chain + "0", kind: .autoRenewable) {
                            $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                            $0.appAccountToken = token
                        })
                }
                try await lab.run(
                    """
                    insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
                    select transaction_id, 'set_token', app_id, environment, original_transaction_id, purchased_at, '\(ours)'
                    from transactions where transaction_id = '\(chain)0'
                    """)
            }
            let claimed = try await lab.database.run(
                Statements.claimAppleUpdates, .init(lines: [Self.line(.setToken)], limit: 9, lease: .seconds(60)))
            #expect(Set(claimed.map(\.transactionID)) == ["a0", "b0"])
            #expect(
                try await lab.texts("select state from v_apple_updates order by transaction_id") == [
                    "open", "open", "superseded",
                ])
        }
    }

    @Test("B5, B10: what was given on trust is written back once Apple has confirmed it, by the order it was given by")
    func confirmed() async throws {
        try await LedgerLab.with { lab in
            for (id, isSame) in [("t1", true), ("t2", false)] {
                let order = try await lab.place("u1")
                let posted = try await lab.post("u1", kind: .signedTransaction)
                let transaction = Self.transaction(id)
                let match = try await lab.matched(id, by: "u1", order: order).match
                let places = Statements.PlaceQuestion(
                    receiptID: posted.id, appID: "game", transactions: [transaction],
                    limits: .init(perUserPerDay: 9, perAppPerDay: 9))
                #expect(try await lab.ledger.run(Statements.takePlaces, places) == [id])
                let given = Decision.provisional(goods: Verdict.Entry.coins, source: .namedOrder)
                let entry = Verdict.Entry(transaction: transaction, decision: given, match: match)
                #expect(try await lab.settle(posted, entry) == .received)
                #expect(try await lab.appleUpdates().filter { $0.hasPrefix(id) } == [])
                // An order that was placed later is not the order by which the goods were given.
                let named = isSame ? order : try await lab.place("u1", minutesBefore: 1)
                #expect(try await lab.settle(posted, transaction, named: named) == .granted)
                #expect(
                    try await lab.appleUpdates().filter { $0.hasPrefix(id) }
                        == ["\(id) finish open"]
                        + (isSame ? ["\(id) set_token \(order.uuidString.lowercased()) open"] : []))
            }
        }
    }

    @Test(
        "B5, B10: row 7 on trust: the order it was given by is found again, although it is bound and a later one is not"
    )
    func confirmedByRow7() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1")
            let posted = try await lab.post("u1", kind: .signedTransaction)
            let transaction = Self.transaction("t1")
            let places = Statements.PlaceQuestion(
                receiptID: posted.id, appID: "game", transactions: [transaction],
                limits: .init(perUserPerDay: 9, perAppPerDay: 9))
            #expect(try await lab.ledger.run(Statements.takePlaces, places) == ["t1"])
            guard case .transactions(let found) = try await lab.judged(posted, transaction).decisions,
                case .grant(let goods, .openOrder) = found[0].decision
            else {
                Issue.record("not by row 7")
                return
            }
            let given = found[0].with(.provisional(goods: goods, source: .openOrder))
            #expect(try await lab.settle(posted, given) == .received)
            #expect(try await lab.appleUpdates() == [])
            try await lab.place("u1", minutesBefore: -1)
            let confirmed = try await lab.judged(posted, transaction, isOnTrust: true)
            #expect(try await lab.settle(confirmed) == [posted.id: .granted])
            #expect(
                try await lab.appleUpdates() == [
                    "t1 finish open", "t1 set_token \(order.uuidString.lowercased()) open",
                ])
        }
    }

    @Test(
        "B5: support's decision is sent to Apple as a token of the new owner; what we wrote before stays ours")
    func decided() async throws {
        try await LedgerLab.with { lab in
            var policy = Self.policy
            policy.products["pass"] = .init(id: "pass", kind: .autoRenewable, goods: Verdict.Entry.coins)
            policy.finishAtApple = .never
            let order = try await lab.place("u1", product: "pass")
            let period = { (id: String, day: Double, token: UUID?) in
                Self.transaction(id) {
                    $0.productID = "pass"
                    $0.originalID = "p1"
                    $0.kind = .autoRenewable
                    $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                    $0.appAccountToken = token
                    $0.reason = day == 0 ? "PURCHASE" : Transaction.renewal
                }
            }
            try await lab.settle(try await lab.post("u1"), period("p1", 0, nil), named: order, policy)
            let first = order.uuidString.lowercased()
            #expect(try await lab.appleUpdates() == ["p1 set_token \(first) open"])
            let lease = Statements.AppleUpdateClaim(lines: [Self.line(.setToken)], limit: 9, lease: .seconds(60))
            let told = try #require(try await lab.database.run(Statements.claimAppleUpdates, lease).first)

            // The new owner had no token: one is issued. The process that told Apple the old token no longer holds the
            // Apple update.
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.decideOwner("u2", of: "p1", appID: "game", isWrittenBack: true) == "u1")
            let issued = try await lab.texts("select token::text from user_tokens where user_id = 'u2'")
            #expect(issued.count == 1)
            try await lab.report(told, .done, nil)
            #expect(try await lab.appleUpdates() == ["p1 set_token \(issued[0]) open"])
            // A renewal that Apple sends with the old token belongs to the new owner all the same, and so does one with
            // the new token.
            let second = try #require(UUID(uuidString: issued[0]))
            for (id, day, token) in [("p2", 30.0, order), ("p3", 60, second)] {
                let renewal = period(id, day, token)
                #expect(try await lab.evidence(lab.question(renewal, by: "u1"))[0].isTokenWritten)
                #expect(try await lab.settle(try await lab.post("u1"), renewal, policy) == .granted)
            }
            #expect(try await lab.grants == ["p1 u1", "p2 u2", "p3 u2"])
            // Apple is not told if the owner stays the same, if an earlier period is named, or if the app writes
            // nothing back.
            let before = try await lab.appleUpdates()
            #expect(try await repairs.decideOwner("u2", of: "p3", appID: "game", isWrittenBack: true) == "u2")
            #expect(try await repairs.decideOwner("u4", of: "p1", appID: "game", isWrittenBack: true) == "u2")
            #expect(try await repairs.decideOwner("u1", of: "p3", appID: "game", isWrittenBack: false) == "u2")
            #expect(try await lab.appleUpdates() == before)
            // The chain goes to a user who has a token of the app's own, which goes before the user's orders.
            let own = UUID()
            try await lab.run("insert into user_tokens values ('game', '\(own)', 'u5', 'registered')")
            try await lab.place("u5", product: "pass")
            #expect(try await repairs.decideOwner("u5", of: "p3", appID: "game", isWrittenBack: true) == "u1")
            #expect(
                try await lab.appleUpdates().sorted()
                    == (before + ["p3 set_token \(own.uuidString.lowercased()) open"]).sorted())
        }
    }

    @Test("5.1: the matcher knows which tokens of a chain are ours, and whose they seem to be is written down nowhere")
    func known() async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1", product: "pass")
            let period = { (id: String, day: Double, token: UUID?) in
                Self.transaction(id) {
                    $0.productID = "pass"
                    $0.originalID = "p1"
                    $0.kind = .autoRenewable
                    $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                    $0.appAccountToken = token
                    $0.reason = day == 0 ? "PURCHASE" : Transaction.renewal
                }
            }
            var policy = Self.policy
            policy.products["pass"] = .init(id: "pass", kind: .autoRenewable, goods: Verdict.Entry.coins)
            let first = try await lab.post("u1")
            try await lab.settle(first, period("p1", 0, nil), named: order, policy)
            #expect(try await lab.texts("select token::text from apple_updates where kind = 'set_token'").count == 1)
            let (renewal, stranger) = (period("p2", 30, order), period("p2", 30, UUID()))
            let elsewhere = Self.transaction("x2") {
                $0.originalID = "x1"
                $0.kind = .autoRenewable
                $0.appAccountToken = order
            }
            let evidence = try await lab.evidence(
                lab.question(renewal, by: "u2"), lab.question(stranger, by: "u2"), lab.question(elsewhere, by: "u2"),
                lab.question(renewal, by: "u2", app: "other"))
            #expect(evidence.map(\.isTokenWritten) == [true, false, false, false])
            let posted = try await lab.post("u2")
            #expect(try await lab.settle(posted, renewal, policy) == .granted)
            #expect(try await lab.grants == ["p1 u1", "p2 u1"])
            #expect(
                try await lab.texts("select binding_source from grants where transaction_id = 'p2'") == ["chain"])
            #expect(try await lab.number("select count(*) from granted_tokens") == 0)
            #expect(
                try await lab.number("select count(*) from apple_updates where transaction_id = 'p2'") == 1, "finish")
        }
    }

    @Test("renewals of a chain whose owner was erased belong to the payer who posts them, not to the erased user")
    func erased() async throws {
        try await LedgerLab.with { lab in
            var policy = Self.policy
            policy.products["pass"] = .init(id: "pass", kind: .autoRenewable, goods: Verdict.Entry.coins)
            let order = try await lab.place("u1", product: "pass")
            let period = { (id: String, day: Double) in
                Self.transaction(id) {
                    $0.productID = "pass"
                    $0.originalID = "p1"
                    $0.kind = .autoRenewable
                    $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                    $0.appAccountToken = order
                    $0.reason = day == 0 ? "PURCHASE" : Transaction.renewal
                }
            }
            try await lab.settle(try await lab.post("u1"), period("p1", 0), policy)
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "test")
            #expect(try await erasure.erase(UserName(appID: "game", key: "u1")))
            #expect(try await lab.settle(try await lab.post("u1"), period("p2", 30), policy) == .granted)
            #expect(try await lab.settle(try await lab.post("u2"), period("p3", 60), policy) == .granted)
            let owners = try await lab.grants
            #expect(owners[0].hasPrefix("p1 erased_") && owners.dropFirst() == ["p2 u1", "p3 u1"])
        }
    }

    @Test(
        "where ids are protected too: an erased owner's renewals, token or not, belong to their poster, the owner too"
    )
    func erasedProtected() async throws {
        try await LedgerLab.with { lab in
            var policy = Self.policy
            policy.products["pass"] = .init(id: "pass", kind: .autoRenewable, goods: Verdict.Entry.coins)
            let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
            let (old, new) = (keys.key(of: "u1", app: "game"), keys.key(of: "u2", app: "game"))
            for (id, key) in [("u1", old), ("u2", new)] {
                let sealed = keys.seal(id, key: key, app: "game")
                try await lab.database.run(
                    Statements.enterUsers, [EnteredUser(appID: "game", key: key, sealed: sealed)])
            }
            let order = try await lab.place(old, product: "pass")
            let registered = UUID()
            try await lab.run("insert into user_tokens values ('game', '\(registered)', '\(old)', 'registered')")
            let period = { (id: String, day: Double, token: UUID?) in
                Self.transaction(id) {
                    $0.productID = "pass"
                    $0.originalID = "p1"
                    $0.kind = .autoRenewable
                    $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                    $0.appAccountToken = token
                    $0.reason = day == 0 ? "PURCHASE" : Transaction.renewal
                }
            }
            try await lab.settle(try await lab.post(old), period("p1", 0, order), policy)
            try await lab.settle(try await lab.post(new), period("p2", 30, order), policy)
            // The purchases of these tests lie in the future.
            try await lab.run("update orders set placed_at = now() - interval '1 hour'")
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "test")
            #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
            for (id, day, token) in [("p3", 60.0, order), ("p4", 90, registered), ("p5", 120, nil)] {
                #expect(try await lab.settle(try await lab.post(new), period(id, day, token), policy) == .granted)
            }
            #expect(
                try await lab.grants == ["p1 \(old)", "p2 \(old)", "p3 \(new)", "p4 \(new)", "p5 \(new)"])
            // The orders and purchases that the user makes after coming back belong to the user.
            #expect(try await erasure.readmit("u1", app: "game"))
            let again = try await lab.place(old, product: "pass")
            let bought = Self.transaction("q1") {
                $0.productID = "pass"
                $0.kind = .autoRenewable
                $0.appAccountToken = again
                $0.reason = "PURCHASE"
            }
            #expect(try await lab.settle(try await lab.post(new), bought, policy) == .granted)
            #expect(try await lab.grants.last == "q1 \(old)")
        }
    }
}

extension LedgerLab {
    /// `transaction kind state`, with the token if there is one, in order.
    fileprivate func appleUpdates() async throws -> [String] {
        try await texts("select concat_ws(' ', transaction_id, kind, token, state) from v_apple_updates order by 1")
    }

    @discardableResult
    fileprivate func settle(
        _ posted: Posted, _ transaction: Transaction, named: UUID? = nil,
        _ policy: AppPolicy = AppleUpdateLedgerTests.policy
    ) async throws -> ReceiptState? {
        try await settle(try await judged(posted, transaction, named: named, policy))[posted.id]
    }

    /// A verdict as a worker makes it, from the database's evidence and the policy.
    fileprivate func judged(
        _ posted: Posted, _ transaction: Transaction, named: UUID? = nil,
        _ policy: AppPolicy = AppleUpdateLedgerTests.policy, isOnTrust: Bool = false
    ) async throws -> Verdict {
        var evidence = try await ledger.evidence(
            question(transaction, by: posted.userID, named: named, app: posted.appID, isOnTrust: isOnTrust))
        evidence.namedOrderID = named
        var claim = Claim(userID: posted.userID, hasPossession: true, receivedAt: transaction.purchasedAt)
        claim.judgedAt = transaction.purchasedAt
        let entry = policy.judge(transaction, claim: claim, evidence: evidence)
        var verdict = verdict(posted, .transactions([entry]))
        verdict.appleUpdates = policy.appleUpdates(of: verdict.decisions, claim: verdict.claim)
        return verdict
    }

    fileprivate func report(
        _ appleUpdate: ClaimedAppleUpdate, _ state: AppleUpdateResult.State?, _ reason: Reason?, counts: Bool = true,
        dueIn: Duration = .seconds(60)
    ) async throws {
        try await database.run(
            Statements.reportAppleUpdates,
            [
                AppleUpdateResult(
                    appleUpdate: appleUpdate, state: state, reason: reason, counts: counts, dueIn: dueIn,
                    httpStatus: counts ? 200 : nil, code: nil)
            ])
    }
}
