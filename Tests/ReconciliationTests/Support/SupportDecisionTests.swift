import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings
@testable import Support

/// Goal: a support decision gives a held purchase to the named user by the transaction that gives everything, once, and
/// is refused with its reason if no purchase is held that a decision could help (B4). Method: verdicts on real
/// PostgreSQL, judged by the evidence in the database as a worker judges them.
@Suite(.timeLimit(.minutes(8))) struct SupportDecisionTests {
    private static func supportDecision(
        _ id: String, to user: String = "u9", app: String = "game", item: String? = nil, canAsk: Bool = true
    ) -> Statements.SupportDecision {
        .init(
            appID: app, transactionID: id, userID: user, item: item, because: "ticket 7", canAsk: canAsk,
            isWrittenBack: false)
    }

    private static func held(_ id: String, _ reason: Reason = .orderUnknown) -> Verdict.Entry {
        .purchase(id, .held(reason)) { $0.showsToken = true }
    }

    @Test("B4: every reason that a decision helps is decided, every other one is refused by its name")
    func reasons() async throws {
        // The purchases are held for every reason, also for that of a purchase on trust, although none is on trust: an
        // invariant does not hold.
        try await LedgerLab.with(endsSound: false) { lab in
            let repairs = Repairs(database: lab.database, actor: "ann")
            for reason in Reason.allCases {
                let posted = try await lab.post("u1", kind: .signedTransaction)
                try await lab.settle(posted, Self.held(reason.rawValue, reason))
                let answer = try await repairs.give(Self.supportDecision(reason.rawValue, item: "sword"))
                let isGiven = Reason.givenByPerson.contains(reason)
                #expect(answer == .init(outcome: isGiven ? .decided : .waits, reason: reason))
                #expect(
                    try await lab.number("select count(*) from receipts where id = '\(posted.id)' and due_at <= now()")
                        == (isGiven ? 1 : 0))
            }
            #expect(
                try await lab.number("select count(*) from support_decisions") == Reason.givenByPerson.count)
            #expect(
                try await lab.texts("select details::text from audits where details ->> 'transaction' = 'unclaimed'")
                    == [
                        #"{"app": "game", "item": "sword", "because": "ticket 7", "receiver": "u9", "transaction": "unclaimed"}"#
                    ])
        }
    }

    @Test("B4: granted, imported, refunded, shared, another app's, ended, open, unknown: each is refused by its name")
    func refusals() async throws {
        // The test deletes one proof.
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("granted"))
            try await lab.run(
                """
                insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id, product_id,
                  purchased_at) values ('imported', 'game', 'Production', 'imported', 'u1', 'coins', now())
                """)
            let refunded = try await lab.post("u1")
            try await lab.settle(refunded, Self.held("refunded"))
            try await lab.run("update transactions set revoked_at = now() where transaction_id = 'refunded'")
            try await lab.settle(
                try await lab.post("u1"), .purchase("shared", .held(.orderUnknown)) { $0.ownership = "FAMILY_SHARED" })
            try await lab.settle(try await lab.post("u1", app: "other"), Self.held("granted"))
            try await lab.settle(try await lab.post("u1"), .purchase("ended", .rejected(.historical)))
            try await lab.settle(try await lab.post("u1"), .purchase("open", .open(.appleUnavailable)))
            try await lab.settle(try await lab.post("u1"), Self.held("gone"))
            try await lab.settle(
                try await lab.post("u1", kind: .identifier, transactionID: "bare"),
                Self.held("bare", .possessionMissing))
            try await lab.settle(try await lab.post("u1"), Self.held("items", .itemUnknown))
            try await lab.settle(try await lab.post("u1"), Self.held("elsewhere"))
            try await lab.run(
                """
                delete from stored_payloads where receipt_id in (select receipt_id from outcomes where transaction_id = 'gone')
                """)
            let repairs = Repairs(database: lab.database, actor: "ann")
            func answer(_ supportDecision: Statements.SupportDecision) async throws -> SupportDecisionAnswer.Outcome {
                let answer = try await repairs.give(supportDecision)
                #expect(!answer.text(supportDecision).isEmpty && answer.isDecided == (answer.outcome == .decided))
                return answer.outcome
            }
            for (id, outcome) in [
                ("granted", .granted), ("imported", .imported), ("refunded", .refunded), ("shared", .shared),
                ("ended", .ended), ("open", .open), ("gone", .gone), ("items", .itemless), ("never", .unknown),
                ("", .unknown),
            ] as [(String, SupportDecisionAnswer.Outcome)] {
                #expect(try await answer(Self.supportDecision(id)) == outcome, "\(id)")
            }
            #expect(try await answer(Self.supportDecision("granted", app: "other")) == .collision)
            #expect(try await answer(Self.supportDecision("elsewhere", app: "other")) == .unknown)
            #expect(try await answer(Self.supportDecision("bare", canAsk: false)) == .unasked)
            #expect(try await lab.number("select count(*) from support_decisions") == 0)
            #expect(try await lab.number("select count(*) from audits where action = 'support.give'") == 0)
            #expect(try await lab.number("select count(*) from ordering_apps") == 0)
            #expect(try await answer(Self.supportDecision("bare")) == .decided)
            #expect(try await answer(Self.supportDecision("items", item: "sword")) == .decided)
            #expect(try await lab.texts("select app_id from ordering_apps") == ["game"], "others are asked about now")
        }
    }

    @Test("F13: a consumable under another purchase's key is given by its own id, once, when a person says so")
    func keyInUse() async throws {
        try await LedgerLab.with { lab in
            let sold = AppPolicy.Product(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)
            let policy = AppPolicy(id: "game", grantFrom: .distantPast, products: [sold])
            func judged(_ id: String, days: Double) async throws -> Verdict.Entry {
                let transaction = Verdict.Entry.purchase(id, of: "o") { $0.purchasedAt += days * 86_400 }.transaction
                return policy.judge(
                    transaction,
                    claim: Claim(userID: "u1", hasPossession: true, receivedAt: transaction.purchasedAt),
                    evidence: try await lab.evidence(lab.question(transaction))[0])
            }
            try await lab.settle(try await lab.post("u1"), try await judged("t1", days: 0))
            let posted = try await lab.post("u1")
            #expect(try await lab.settle(posted, try await judged("t2", days: 1)) == .held)
            #expect(try await lab.outcomes(posted) == ["t2": "held review"])
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.give(Self.supportDecision("t2", to: "u1")).isDecided)
            let given = try await judged("t2", days: 1)
            #expect(given.transaction.purchaseKey == "Production/transaction/t2")
            #expect(try await lab.settle(posted, attempt: 1, given) == .granted)
            #expect(try await lab.settle(try await lab.post("u1"), given) == .alreadyGranted)
            #expect(try await lab.grants == ["t1 u1", "t2 u1"])
        }
    }

    @Test("the latest decision counts while nothing is granted; a verdict that was matched before it is refused")
    func again() async throws {
        try await LedgerLab.with { lab in
            let repairs = Repairs(database: lab.database, actor: "ann")
            let posted = try await lab.post("u1")
            try await lab.settle(posted, Self.held("t1", .foreignOrder))
            let early = lab.verdict(posted, .transactions([Self.held("t1", .foreignOrder)]))
            for user in ["u2", "u3", "u3"] {
                #expect(try await repairs.give(Self.supportDecision("t1", to: user)).isDecided)
            }
            #expect(try await lab.settle(early) == [:], "it would be held for another while")
            #expect(try await lab.number("select count(*) from receipts where due_at <= now()") == 1)
            #expect(try await lab.judge(posted, "t1", attempt: 3) == .granted)
            #expect(try await lab.grants == ["t1 u3"])
            #expect(try await lab.outcomes(posted) == ["t1": "granted owned_by_another_user"])
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', g.user_id, g.binding_source, o.reasons[1]) from grants g, outcomes o")
                    == ["u3 support support_decided"])
            #expect(try await lab.texts("select type || ' ' || user_id from events") == ["purchase.granted u3"])
            #expect(try await repairs.give(Self.supportDecision("t1", to: "u4")).outcome == .granted)
            #expect(try await lab.number("select count(*) from audits where action = 'support.give'") == 3)
            // The next poster of the purchase is answered by the grant.
            let own = try await lab.post("u3")
            #expect(try await lab.judge(own, "t1", userID: "u3") == .alreadyGranted)
        }
    }

    @Test("many decisions and many workers at once: one grant, to a user who was named, and every receipt ends")
    func race() async throws {
        try await LedgerLab.with(connections: 4, writers: 4) { lab in
            for round in 0..<8 {
                let id = "r\(round)"
                var posts: [Posted] = []
                for _ in 0..<3 {
                    let posted = try await lab.post("u1")
                    try await lab.settle(posted, Self.held(id))
                    posts.append(posted)
                }
                let held = posts
                await withTaskGroup(of: Void.self) { group in
                    for user in ["a", "b"] {
                        group.addTask {
                            let repairs = Repairs(database: lab.ledger.database, actor: user)
                            _ = try? await repairs.give(Self.supportDecision(id, to: user))
                        }
                    }
                    for posted in held { group.addTask { await lab.work(posted, id) } }
                }
                // The receipts are judged as the scheduler would have them judged, until they have ended.
                for posted in held { await lab.work(posted, id) }
            }
            #expect(try await lab.number("select count(*) from receipts where settled_at is null") == 0)
            #expect(try await lab.number("select count(*) from grants where user_id in ('a', 'b')") == 8)
            #expect(try await lab.number("select count(*) from grants") == 8)
            #expect(try await lab.number("select count(*) from events") == 8)
        }
    }

    @Test("a guest who was named is the account that the guest became part of; an erased one is refused")
    func persons() async throws {
        try await LedgerLab.with { lab in
            let repairs = Repairs(database: lab.database, actor: "ann")
            for id in ["t1", "t2", "t3"] { try await lab.settle(try await lab.post("u1"), Self.held(id)) }
            #expect(try await repairs.give(Self.supportDecision("t1", to: "guest")).isDecided)
            #expect(try await lab.merge("guest", into: "account") == .merged)
            #expect(try await repairs.give(Self.supportDecision("t2", to: "guest")).isDecided)
            #expect(try await repairs.give(Self.supportDecision("t3", to: "u3")).isDecided)
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "bob")
            #expect(try await erasure.erase(erasure.name(of: "u3", app: "game")), "known by the word alone")
            for id in ["t1", "t2", "t3"] {
                let posted = try await lab.post("u2", kind: .signedTransaction)
                let expected: ReceiptState = id == "t3" ? .held : .granted
                #expect(try await lab.judge(posted, id, userID: nil) == expected)
            }
            #expect(try await lab.grants == ["t1 account", "t2 account"])
            #expect(try await lab.number("select count(*) from audits where details::text like '%u3%'") == 0)
            #expect(try await lab.number("select count(*) from support_decisions") == 2)
        }
    }

    @Test("where users are protected a decision names a known user; of one who is erased later nothing is left")
    func protected() async throws {
        try await LedgerLab.with { lab in
            let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
            let agreed = try await lab.database.run(Statements.agreeOnUserProtection, keys.fingerprint)
            #expect(agreed == [keys.fingerprint])
            let key = keys.key(of: "u3", app: "game")
            let posted = try await lab.post(key)
            try await lab.settle(posted, Self.held("t1"))
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.give(Self.supportDecision("t1", to: key)).outcome == .stranger)
            let entered = EnteredUser(appID: "game", key: key, sealed: keys.seal("u3", key: key, app: "game"))
            try await lab.database.run(Statements.enterUsers, [entered])
            #expect(try await repairs.give(Self.supportDecision("t1", to: key)).isDecided)
            let timeline = try #require(
                try await Explainer(database: lab.database, keys: keys).timeline(of: .transaction("t1"), for: .people))
            #expect(timeline.text.contains("ann ran support.give") && timeline.text.contains(", to u3"))
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "bob")
            #expect(try await erasure.erase(UserName(appID: "game", key: key)))
            #expect(try await lab.judge(posted, "t1", attempt: 1, userID: nil) == .held)
            #expect(try await repairs.give(Self.supportDecision("t1", to: key)).outcome == .stranger, "erased")
            #expect(try await erasure.readmit("u3", app: "game"))
            #expect(try await repairs.give(Self.supportDecision("t1", to: key)).isDecided)
            #expect(try await lab.judge(posted, "t1", attempt: 2, userID: nil) == .granted)
        }
    }

    @Test("B14: the decision is in its purchase's timeline, also after it has ended, and in no other one's")
    func timeline() async throws {
        try await LedgerLab.with { lab in
            let repairs = Repairs(database: lab.database, actor: "ann")
            let (posted, other) = (try await lab.post("u1"), try await lab.post("u1"))
            try await lab.settle(posted, Self.held("t1"))
            try await lab.settle(other, Self.held("t2"))
            let explainer = Explainer(database: lab.database, keys: nil)
            let before = try #require(try await explainer.timeline(of: .transaction("t1"), for: .people))
            #expect(before.next.text.contains("makegood support give"))
            #expect(try await repairs.give(Self.supportDecision("t1", to: "u1")).isDecided)
            #expect(try await lab.judge(posted, "t1", attempt: 1) == .granted)
            try await lab.run("update audits set at = now()")
            let told = try #require(try await explainer.timeline(of: .transaction("t1"), for: .people))
            #expect(told.lines.contains { $0.what == .command })
            #expect(told.text.contains("ticket 7") && told.text.contains(", to u1"))
            #expect(told.text.contains("a person of support decided it (support_decided)"))
            let neighbour = try #require(try await explainer.timeline(of: .transaction("t2"), for: .people))
            #expect(!neighbour.lines.contains { $0.what == .command })
            let own = try #require(try await explainer.timeline(of: .transaction("t1"), for: .player(["game": "u1"])))
            #expect(!own.text.contains("ann ran") && !own.json.text.contains("ticket"))
        }
    }
}

extension LedgerLab {
    private static let policy = AppPolicy(
        id: "game", grantFrom: .distantPast, makeUpMaxAge: .zero,
        products: [.init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)])

    /// Judges the purchase as a worker does, by the evidence in the database now.
    ///
    /// - Parameter userID: the poster that the verdict sees; if nil, only a support decision names a user.
    fileprivate func judge(
        _ posted: Posted, _ id: String, attempt: Int = 0, userID: String? = "u1"
    ) async throws -> ReceiptState? {
        let transaction = Verdict.Entry.purchase(id) { $0.showsToken = true }.transaction
        let evidence = try await evidence(question(transaction, by: userID))[0]
        let claim = Claim(userID: userID, hasPossession: true, receivedAt: LedgerLab.bought)
        let entry = Self.policy.judge(transaction, claim: claim, evidence: evidence)
        let judged = Posted(id: posted.id, userID: userID, appID: posted.appID)
        return try await settle(judged, attempt: attempt, entry)
    }

    /// Acts as a worker with a message: judges the row as it is, until a verdict is written.
    fileprivate func work(_ posted: Posted, _ id: String) async {
        for _ in 0..<20 {
            guard let row = try? await ledger.fetch(posted.id), !row.state.isEnded else { return }
            let state = try? await judge(posted, id, attempt: row.attempt, userID: nil)
            if state == .held { return }
        }
    }
}
