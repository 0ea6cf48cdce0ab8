import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import MovingIn

/// Goal: the evidence for a match is what the tables contain, whichever statements of a batch read it. Method: rows of
/// every kind beside rows of other apps, users and products.
@Suite(.timeLimit(.minutes(8))) struct EvidenceTests {
    private static func transaction(
        _ id: String = "t1", _ change: (inout Transaction) -> Void = { _ in }
    ) -> Transaction {
        var transaction = Verdict.Entry.purchase(id).transaction
        change(&transaction)
        return transaction
    }

    @Test("B7: orders by token, by name, of the poster, of the installation; each once, nobody else's")
    func orders() async throws {
        try await LedgerLab.with { lab in
            let token = try await lab.place("u2", product: "gems")
            let named = try await lab.place("u3")
            let own = try await lab.place("u1", goods: #"[{"item": "coin", "amount": 7}]"#)
            let near = try await lab.place("u4", installation: "device")
            // Orders that must not be found: of another app, product or user; too late, too early, bound.
            try await lab.place("u1", app: "other")
            try await lab.place("u1", product: "gems")
            try await lab.place("u9")
            try await lab.place("u1", minutesBefore: -6)
            try await lab.place("u4", minutesBefore: 16, installation: "device")
            let bound = try await lab.place("u1")
            try await lab.settle(try await lab.post(), try await lab.matched("t0", by: "u1", order: bound))
            let transaction = Self.transaction {
                $0.appAccountToken = token
                // A later transaction of its chain: the token alone does not decide.
                $0.originalID = "t0"
            }
            let evidence = try await lab.evidence(
                lab.question(transaction, named: named, installation: "device"),
                lab.question(Self.transaction("t2"), by: "u7"), lab.question(Self.transaction("t3"), named: own),
                lab.question(Self.transaction("t4"), by: "u1", app: "other"))
            #expect(Set(evidence[0].orders.map(\.id)) == [token, named, own, near] && evidence[0].orders.count == 4)
            #expect(evidence[0].orders.filter(\.isOnProvenInstallation).map(\.id) == [near])
            #expect(evidence[0].orders.first { $0.id == own }?.goods == [.init(item: "coin", amount: 7)])
            // An unbound order that the token names decides: no other order is looked for.
            let decided = try await lab.evidence(
                lab.question(Self.transaction { $0.appAccountToken = own }, installation: "device"))
            #expect(decided[0].orders.map(\.id) == [own])
            #expect(evidence[1] == .none)
            #expect(evidence[2].orders.map(\.id) == [own], "named and open is one order")
            #expect(evidence[3].orders.map(\.userID) == ["u1"] && evidence[3].orders[0].id != own)
        }
    }

    @Test("S3-21: an order of another way of payment is found by a post that names it, and never inferred")
    func channels() async throws {
        try await LedgerLab.with { lab in
            let wechat = try await lab.place("u1", installation: "device")
            try await lab.run("update orders set channel = 'wechat'")
            // What apps call Apple's.
            let apples = try await lab.place("u3")
            try await lab.run("update orders set channel = 'App_Store' where id = '\(apples)'")
            #expect(
                try await lab.evidence(lab.question(Self.transaction("t9"), by: "u3"))[0].orders.map(\.id) == [apples])
            let evidence = try await lab.evidence(
                lab.question(Self.transaction(), installation: "device"),
                lab.question(Self.transaction("t2"), by: "u2", installation: "device"),
                lab.question(Self.transaction("t3"), named: wechat),
                lab.question(Self.transaction("t4") { $0.appAccountToken = wechat }, by: "u2"))
            #expect(evidence.map { $0.orders.map(\.id) } == [[], [], [wechat], [wechat]])
        }
    }

    @Test("S3-23: where the token's order was asked for by another purchase, everything else is asked too")
    func reservedTokens() async throws {
        try await LedgerLab.with { lab in
            let reserved = try await lab.place("u1", reservedFor: "another")
            let open = try await lab.place("u1")
            let question = lab.question(Self.transaction { $0.appAccountToken = reserved }, isOneOfSeveral: false)
            #expect(try await lab.database.run(Statements.orderOfToken, [question]).isEmpty)
            #expect(Set(try await lab.evidence(question)[0].orders.map(\.id)) == [reserved, open])
            let own = lab.question(Self.transaction("another") { $0.appAccountToken = reserved }, isOneOfSeveral: false)
            #expect(try await lab.evidence(own)[0].orders.map(\.id) == [reserved])
        }
    }

    @Test("what the token alone answers is what everything would answer; where it does not, everything is asked")
    func shortAnswers() async throws {
        try await LedgerLab.with { lab in
            let open = try await lab.place("u1", goods: #"[{"item": "coin", "amount": 7}]"#)
            let others = try await lab.place("u2", product: "gems", installation: "device")
            let merged = try await lab.place("guest")
            let otherApps = try await lab.place("u1", app: "other")
            let bound = try await lab.place("u1")
            try await lab.settle(try await lab.post(), try await lab.matched("t0", by: "u1", order: bound))
            #expect(try await lab.merge("guest", into: "u5") == .merged)
            var questions: [EvidenceQuestion] = []
            for token in [open, others, merged, otherApps, bound, UUID(), nil] {
                for named in [nil, token, others] {
                    for originalID in ["t1", "t0"] {
                        for flags in 0..<8 {
                            let transaction = Self.transaction {
                                $0.appAccountToken = token
                                $0.originalID = originalID
                                $0.customerID = "c"
                            }
                            questions.append(
                                lab.question(
                                    transaction, named: named, installation: "device", isOnTrust: flags & 1 > 0,
                                    isPosted: flags & 2 == 0, isOneOfSeveral: flags & 4 > 0))
                        }
                    }
                }
            }
            let whole = try await EvidenceQuestion.fullAnswers(to: questions, in: lab.database)
            let answers = try await EvidenceQuestion.answers(to: questions, in: lab.database)
            for (index, question) in questions.enumerated() {
                let (answer, expected) = (answers[index], whole[index])
                #expect(
                    answer.orders.sorted { $0.id.uuidString < $1.id.uuidString }
                        == expected.orders.sorted { $0.id.uuidString < $1.id.uuidString }, "\(question)")
                var (rest, expectedRest) = (answer, expected)
                (rest.orders, expectedRest.orders) = ([], [])
                #expect(rest == expectedRest, "\(question)")
            }
            // All questions of this batch are answered by their tokens alone.
            let simple = try await lab.database.run(Statements.orderOfToken, Array(questions.prefix(4)))
            #expect(simple.map { $0.evidence.orders.map(\.id) } == Array(repeating: [open], count: 4))
            // The token does not decide where a person has decided.
            try await lab.run(
                "insert into support_decisions (app_id, transaction_id, user_id, item) values ('game', 't1', 'guest', 'a')"
            )
            #expect(try await lab.database.run(Statements.orderOfToken, Array(questions.prefix(4))).isEmpty)
            let decided = try await EvidenceQuestion.answers(to: Array(questions.prefix(4)), in: lab.database)
            #expect(decided.allSatisfy { $0.supportDecision == .init(userID: "u5", item: "a") })
            #expect(decided.allSatisfy { Set($0.orders.map(\.id)).isSuperset(of: [open, merged]) })
        }
    }

    @Test("one query finds that there is no evidence of a purchase, and finds any that there is")
    func nothingKnown() async throws {
        try await LedgerLab.with { lab in
            try await lab.place("u1", minutesBefore: 10, installation: "device")
            try await lab.place("u2", product: "gems", installation: "gems")
            try await lab.place("guest")
            try await lab.place("u1", app: "other")
            try await lab.place("u6", minutesBefore: -6)
            try await lab.place("u7", minutesBefore: 16, installation: "early")
            let bound = try await lab.place("u3")
            try await lab.settle(try await lab.post("u3"), try await lab.matched("t0", by: "u3", order: bound))
            let wechat = try await lab.place("u8", installation: "wechat")
            try await lab.run("update orders set channel = 'wechat' where id = '\(wechat)'")
            #expect(try await lab.merge("guest", into: "u5") == .merged)
            try await lab.run(
                "insert into support_decisions (app_id, transaction_id, user_id) values ('game', 'decided', 'u4')")
            let users: [String?] = ["u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8", "u9", nil]
            var questions: [EvidenceQuestion] = []
            for user in users {
                for installation in [nil, "device", "gems", "early", "wechat", "none"] {
                    for id in ["t1", "decided"] {
                        for app in ["game", "other"] {
                            questions.append(
                                lab.question(
                                    Self.transaction(id) { $0.customerID = "c" }, by: user, installation: installation,
                                    app: app))
                        }
                    }
                }
            }
            let whole = try await EvidenceQuestion.fullAnswers(to: questions, in: lab.database)
            #expect(try await EvidenceQuestion.answers(to: questions, in: lab.database) == whole)
            let known = Set(try await lab.database.run(Statements.hasEvidence, questions))
            for (index, evidence) in whole.enumerated() where evidence != .none {
                #expect(known.contains(index), "\(questions[index])")
            }
            // Full questions are asked about users that others became part of, and about no other user in vain.
            let inVain = known.filter { whole[$0] == .none }.map { questions[$0].userID }
            #expect(inVain.allSatisfy { $0 == "u5" } && known.count < questions.count / 2 + questions.count / 4)
        }
    }

    @Test("row 11: the users of the Apple customer and their orders, where nobody posted it; merged ones once")
    func customers() async throws {
        try await LedgerLab.with { lab in
            for (id, user) in [("a1", "u1"), ("a2", "guest"), ("a3", "u1"), ("b1", "u2"), ("b2", "u3"), ("c1", "u4")] {
                let purchase = Verdict.Entry.purchase(id) { $0.customerID = String(id.prefix(1)) }
                try await lab.settle(try await lab.post(user), purchase)
            }
            #expect(try await lab.merge("guest", into: "u1") == .merged)
            try await lab.run(
                "update grants set user_id = 'erased_\(UUID().uuidString.lowercased())' where transaction_id = 'c1'")
            let own = try await lab.place("u1")
            let guests = try await lab.place("guest", minutesBefore: 7)
            try await lab.place("u2", product: "gems")
            func ask(_ customer: String, isPosted: Bool = false) async throws -> Evidence {
                try await lab.evidence(
                    lab.question(Self.transaction { $0.customerID = customer }, by: nil, isPosted: isPosted))[0]
            }
            let known = try await ask("a")
            #expect(known.customerUserIDs == ["u1"] && Set(known.orders.map(\.id)) == [own, guests])
            #expect(Set(try await ask("b").customerUserIDs) == ["u2", "u3"])
            #expect(try await ask("b").orders == [])
            #expect(try await ask("c") == .none, "nobody is known by a tombstone")
            #expect(try await ask("a", isPosted: true) == .none)
            #expect(try await ask("x") == .none)
            // Row 11 of the table, a day later.
            let bought = Self.transaction {
                $0.customerID = "a"
                $0.showsToken = true
            }
            var claim = Claim(userID: nil, hasPossession: true, receivedAt: LedgerLab.bought, isPosted: false)
            claim.judgedAt += Matcher.unpostedFor
            guard case .owner(let match) = Matcher(bought, kind: nil, claim: claim, evidence: known).answer else {
                Issue.record("nobody's")
                return
            }
            #expect(match.userID == "u1" && match.source == .customer && match.order?.id == own)
            try await lab.run("update grants set user_id = 'u4' where transaction_id = 'c1'")
        }
    }

    @Test("row 3: whom a token is registered for, or was granted to; orders of that user come with it")
    func tokens() async throws {
        try await LedgerLab.with { lab in
            let (registered, granted, shared) = (UUID(), UUID(), UUID())
            try await lab.run(
                """
                insert into user_tokens (app_id, token, user_id, source)
                values ('game', '\(registered)', 'u2', 'registered'), ('other', '\(granted)', 'u3', 'registered')
                """)
            for (user, token, id) in [
                ("u4", granted, "a"), ("u5", shared, "b"), ("u6", shared, "c"), ("u4", granted, "d"),
            ] {
                try await lab.settle(try await lab.post(user), .purchase(id) { $0.appAccountToken = token })
            }
            let order = try await lab.place("u2")
            let ofGranted = try await lab.place("u4")
            func ask(_ token: UUID, by user: String = "u1") async throws -> Evidence {
                try await lab.evidence(lab.question(Self.transaction { $0.appAccountToken = token }, by: user))[0]
            }
            let one = try await ask(registered)
            #expect(one.registeredUserID == "u2" && one.orders.map(\.id) == [order] && !one.posterHasToken)
            let other = try await ask(granted, by: "u2")
            #expect(other.rememberedUserIDs == ["u4"] && other.posterHasToken)
            #expect(Set(other.orders.map(\.id)) == [ofGranted, order])
            #expect(try await Set(ask(shared).rememberedUserIDs) == ["u5", "u6"])
            #expect(try await ask(UUID(), by: "u9") == .none)
            #expect(try await lab.number("select count(*) from granted_tokens") == 3)
        }
    }

    @Test("rows 4, 8: the chain's owner, by what was written down or granted before it was; its refund")
    func chains() async throws {
        try await LedgerLab.with { lab in
            let period = { (id: String, day: Double) in
                Self.transaction(id) {
                    $0.originalID = "first"
                    $0.kind = .autoRenewable
                    $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                    $0.expiresAt = $0.purchasedAt.addingTimeInterval(86_400)
                    $0.signedAt = $0.purchasedAt
                }
            }
            func grant(_ transaction: Transaction, to user: String, takes: Bool) async throws {
                var match = Match(userID: user, source: .poster)
                match.takesChain = takes
                try await lab.settle(
                    try await lab.post(user),
                    Verdict.Entry(
                        transaction: transaction, decision: .grant(goods: Verdict.Entry.coins, source: .poster),
                        match: match))
            }
            func owner() async throws -> String? {
                try await lab.evidence(lab.question(period("new", 9)))[0].chain?.userID
            }
            #expect(try await owner() == nil)
            try await grant(period("p2", 2), to: "u2", takes: false)
            try await grant(period("p1", 1), to: "u1", takes: false)
            #expect(try await owner() == "u2", "the latest, whatever came last")
            try await grant(period("p3", 3), to: "u3", takes: true)
            try await grant(period("p4", 4), to: "u4", takes: false)
            #expect(try await owner() == "u3")
            try await grant(period("p0", 0), to: "u5", takes: true)
            #expect(try await owner() == "u3", "an older purchase takes nothing from a later one")

            let sword = Self.transaction("s1") { $0.kind = .nonConsumable }
            try await grant(sword, to: "u1", takes: true)
            let restore = Self.transaction("s2") {
                $0.originalID = "s1"
                $0.kind = .nonConsumable
                $0.purchasedAt += 60
            }
            for (seconds, isBefore) in [(nil, false), (59.0, true), (60, false)] as [(Double?, Bool)] {
                if let seconds {
                    try await lab.run(
                        "update transactions set revoked_at = purchased_at + interval '\(seconds) s' where transaction_id = 's1'"
                    )
                }
                let evidence = try await lab.evidence(lab.question(restore))[0]
                #expect(evidence.chain == .init(userID: "u1"))
                #expect(evidence.revocations == (isBefore ? 1 : 0))
            }
        }
    }

    @Test("row 0a: bought anew after the refund of what another system gave, it is given")
    func repurchaseOfImported() async throws {
        try await LedgerLab.with { lab in
            _ = try await ImporterTests.run(
                .grants, "transactionId,userId,productId,purchasedAt\n1,u1,coins,\(LedgerLab.bought.rfc3339)\n",
                in: lab,
                now: LedgerLab.bought.addingTimeInterval(86_400))
            let refunded = try await lab.post("u1")
            try await lab.settle(
                refunded,
                .purchase("1", kind: .nonConsumable, .rejected(.refunded)) { $0.revokedAt = $0.purchasedAt + 3600 })
            let anew = Self.transaction("2") {
                $0.originalID = "1"
                $0.kind = .nonConsumable
                $0.purchasedAt += 86_400
            }
            let question = lab.question(anew, by: "u1")
            let evidence = try #require(try await lab.evidence(question).first)
            #expect(evidence.revocations == 1)
            let sold = AppPolicy.Product(id: "coins", kind: .nonConsumable, goods: Verdict.Entry.coins)
            let entry = AppPolicy(id: "game", grantFrom: .distantPast, products: [sold]).judge(
                anew, claim: Claim(userID: "u1", hasPossession: true, receivedAt: anew.purchasedAt), evidence: evidence)
            let posted = try await lab.post("u1")
            try await lab.settle(posted, entry)
            #expect(try await lab.outcomes(posted) == ["2": "granted"])
        }
    }

    @Test(
        "row 0a: bought anew after a refund it is given once under all its ids, also where its first owner was erased",
        arguments: [false, true])
    func repurchase(isErased: Bool) async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("s1", kind: .nonConsumable))
            try await lab.run(
                "update transactions set revoked_at = purchased_at + interval '1 h' where transaction_id = 's1'")
            if isErased {
                let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
                #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
            }
            let user = isErased ? "u2" : "u1"
            let sold = AppPolicy.Product(id: "coins", kind: .nonConsumable, goods: Verdict.Entry.coins)
            let policy = AppPolicy(id: "game", grantFrom: .distantPast, products: [sold])
            func copy(_ id: String) -> EvidenceQuestion {
                let anew = Self.transaction(id) {
                    $0.originalID = "s1"
                    $0.kind = .nonConsumable
                    $0.purchasedAt += 86_400
                }
                return lab.question(anew, by: user)
            }
            func verdict(_ question: EvidenceQuestion, _ evidence: Evidence) async throws -> Verdict {
                let claim = Claim(
                    userID: user, hasPossession: true, receivedAt: question.transaction.purchasedAt)
                return lab.verdict(
                    try await lab.post(user),
                    .transactions([policy.judge(question.transaction, claim: claim, evidence: evidence)]))
            }
            // Two devices post at once; the later verdict's evidence is as old as the first one's.
            let (one, other) = (copy("s2"), copy("s3"))
            let evidence = try await lab.evidence(one, other)
            let (first, second) = (try await verdict(one, evidence[0]), try await verdict(other, evidence[1]))
            try await lab.settle(first, second)
            try await lab.settle(second)
            // A third device posts after the grant.
            let late = copy("s4")
            try await lab.settle(try await verdict(late, try await lab.evidence(late)[0]))
            #expect(
                try await lab.texts("select transaction_id || ' ' || user_id from grants where transaction_id <> 's1'")
                    == ["s2 \(user)"])
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', transaction_id, state, reason) from outcomes where transaction_id <> 's1' order by 1"
                )
                    == ["s2 granted", "s3 already_granted", "s4 already_granted"])
        }
    }

    @Test("F12, P45: what was granted under another key is found by Apple's facts, and not given again")
    func grantedKeys() async throws {
        try await LedgerLab.with { lab in
            func key(_ entry: Verdict.Entry) async throws -> String? {
                try await lab.evidence(lab.question(entry.transaction))[0].grantedKey
            }
            func give(_ entry: Verdict.Entry) async throws -> ReceiptState? {
                var transaction = entry.transaction
                transaction.identity = try await key(entry).map { .granted(key: $0) } ?? .ofItsIDs
                return try await lab.settle(
                    try await lab.post("u1"), Verdict.Entry(transaction: transaction, decision: entry.decision))
            }
            let bare = Verdict.Entry.period("p2", month: 2)
            for entry in [.period("p1", lineItem: "77"), bare] { #expect(try await give(entry) == .granted) }
            try await lab.run("update grants set period_key = null")
            for (entry, expected) in [
                (.period("p1", lineItem: "77"), "Production/period/77"), (.period("r1"), "Production/period/77"),
                (.period("r2", month: 2, lineItem: "78"), bare.transaction.purchaseKey),
                (.period("p3", month: 3), nil), (.period("r1", of: "x"), nil),
            ] as [(Verdict.Entry, String?)] {
                #expect(try await key(entry) == expected)
            }
            #expect(try await give(.period("r1")) == .alreadyGranted)
            #expect(try await give(.period("r2", month: 2, lineItem: "78")) == .alreadyGranted)

            // The item is bought again, from a time when the key was made of the date of the refund, which Apple
            // corrects.
            let sword = { (id: String, days: Double) in
                Verdict.Entry.purchase(id, of: "s1", kind: .nonConsumable) { $0.purchasedAt += days * 86_400 }
            }
            try await lab.settle(try await lab.post("u1"), sword("s1", 0))
            var anew = sword("s2", 2).transaction
            anew.identity = .granted(key: "Production/purchase/s1/1800086400000")
            try await lab.settle(
                try await lab.post("u1"), Verdict.Entry(transaction: anew, decision: sword("s2", 2).decision))
            for hours in [24, 25] {
                try await lab.run(
                    "update transactions set revoked_at = purchased_at + interval '\(hours) h' where transaction_id = 's1'"
                )
                #expect(try await key(sword("s3", 3)) == "Production/purchase/s1/1800086400000")
                #expect(try await key(sword("s4", 0)) == nil, "not bought after it")
                #expect(try await give(sword("s3", 3)) == .alreadyGranted)
            }
            #expect(try await lab.grants == ["p1 u1", "p2 u1", "s1 u1", "s2 u1"])
        }
    }

    @Test("note 1: evidence for a named order says whether something is granted")
    func granted() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            for (named, expected) in [(UUID?.none, false), (UUID(), true)] {
                #expect(
                    try await lab.evidence(lab.question(Self.transaction("t1"), named: named))[0].isGranted == expected)
            }
            let again = Self.transaction("t2") { $0.originalID = "t1" }
            #expect(try await lab.evidence(lab.question(again, named: UUID()))[0].isGranted, "the same purchase")
        }
    }

    @Test("an app without orders and tokens is known to have none, until the very moment of its first")
    func appsWithOrders() async throws {
        try await LedgerLab.with { lab in
            func mayHave(_ app: String) async throws -> Bool? {
                try await lab.ledger.fetch(try await lab.post(app: app).id)?.appHasOrders
            }
            #expect(try await mayHave("game") == false)
            try await lab.place("u1")
            #expect(try await mayHave("game") == true)
            try await lab.run(
                "insert into user_tokens (app_id, token, user_id, source) values ('tokens', '\(UUID())', 'u', 'issued')"
            )
            #expect(try await mayHave("tokens") == true)
            #expect(try await mayHave("none") == false)
            // Several rows at once, and again: each is stored once.
            for _ in 0..<2 {
                try await lab.run(
                    """
                    insert into orders (id, app_id, user_id, product_id)
                    select gen_random_uuid(), 'app' || n % 2, 'u', 'coins' from generate_series(1, 10) n
                    """)
            }
            #expect(
                try await lab.texts("select app_id from ordering_apps order by 1") == [
                    "app0", "app1", "game", "tokens",
                ])
        }
    }
}
