import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: a subscription passes to another user who shows it only by the app's policy, once, within limits, and both
/// users are told; goods are never given again and grants never change (P10, Ownership, row 1). Method: verdicts
/// through the statement itself, one by one, in one batch and many at once; then the events and answers.
@Suite(.timeLimit(.minutes(8))) struct MoveTests {
    private static func period(
        _ id: String, day: Double = 0, _ policy: AppPolicy.Transfer? = .transfer
    ) -> Verdict.Entry {
        let purchase = Verdict.Entry.purchase(id, of: "first", kind: .autoRenewable) {
            $0.webOrderLineItemID = id
            $0.purchasedAt += day * 86_400
            $0.signedAt = $0.purchasedAt
        }
        return Verdict.Entry(transaction: purchase.transaction, decision: purchase.decision, transfer: policy)
    }

    private static func owned(_ id: String, by user: String, day: Double = 0) -> Verdict.Entry {
        var match = Match(userID: user, source: .poster)
        match.takesChain = true
        let period = period(id, day: day, nil)
        return Verdict.Entry(transaction: period.transaction, decision: period.decision, match: match)
    }

    private static func told(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            """
            select concat_ws(' ', type, user_id, body ->> 'originalTransactionId') from events
            where type in ('ownership.lost', 'ownership.gained') order by 1
            """)
    }

    private static func owners(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            """
            select concat_ws(' ', transaction_id, move, user_id, binding_source) from ownerships
            order by purchased_at, transaction_id, move
            """)
    }

    @Test("P10: transfer: the user who shows it has it, without its goods; both are told, once")
    func moves() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            let shown = try await lab.post("u2")
            let verdict = lab.verdict(shown, .transactions([Self.period("p1")]))
            #expect(try await lab.settle(verdict) == [shown.id: .alreadyGranted])
            #expect(try await lab.settle(verdict) == [:])
            #expect(try await lab.outcomes(shown) == ["p1": "already_granted transferred"])
            #expect(try await lab.grants == ["p1 u1"], "grants never change")
            #expect(try await Self.owners(lab) == ["p1 0 u1 poster", "p1 1 u2 transfer"])
            #expect(try await Self.told(lab) == ["ownership.gained u2 first", "ownership.lost u1 first"])
            let ids = [EventType.ownershipGained, .ownershipLost].map {
                DerivedID.event(appID: "game", transactionID: "p1", type: $0, distinction: ".\(shown.id)").uuidString
            }
            let told = "select upper(event_id::text) from events where type like 'ownership.%' order by type"
            #expect(try await lab.texts(told) == ids)
            #expect(try await lab.number("select count(*) from events where type = 'purchase.granted'") == 1)
            let view = try #require(try await lab.ledger.view(shown.id))
            #expect(view.transactions.map(\.isOwn) == [true] && view.transactions.allSatisfy { $0.goods == nil })
            #expect(
                try await lab.texts("select array_to_string(reasons, ',') from outcomes where reasons is not null")
                    == ["transferred"])
            // After the move, whatever the policy, the purchase belongs to the new owner and not to the former one.
            for (user, words) in [
                ("u2", "already_granted transferred"), ("u1", "already_granted owned_by_another_user"),
            ] {
                let again = try await lab.post(user)
                try await lab.settle(again, Self.period("p1", nil))
                #expect(try await lab.outcomes(again) == ["p1": words])
            }
            // Its next period is found to belong to the new owner.
            let next = Self.period("p2", day: 30).transaction
            #expect(
                try await lab.evidence(lab.question(next, by: "u1"))[0].chain == .init(userID: "u2", isMoved: true))
        }
    }

    @Test("P10: two devices cannot pass it to and fro: once in 24 hours, three times in 30 days")
    func pingPong() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            var owner = "u1"
            for number in 1...5 {
                let claimant = owner == "u1" ? "u2" : "u1"
                let shown = try await lab.post(claimant)
                try await lab.settle(shown, Self.period("p1"))
                let isMoved = number <= AppPolicy.movesPerMonthMax
                #expect(
                    try await lab.outcomes(shown)
                        == ["p1": "already_granted " + (isMoved ? "transferred" : "owned_by_another_user")], "\(number)"
                )
                if isMoved { owner = claimant }
                // The chain does not move back on the same day.
                let back = try await lab.post(owner == "u1" ? "u2" : "u1")
                try await lab.settle(back, Self.period("p1"))
                #expect(try await lab.outcomes(back) == ["p1": "already_granted owned_by_another_user"], "\(number)")
                #expect(
                    try await lab.texts(
                        "select array_to_string(reasons, ',') from outcomes where receipt_id = '\(back.id)'")
                        == ["transfer_limit"])
                try await lab.run("update ownerships set decided_at = decided_at - interval '25 hours'")
            }
            #expect(try await Self.told(lab).count == 2 * AppPolicy.movesPerMonthMax)
            try await lab.run("update ownerships set decided_at = decided_at - interval '30 days'")
            let later = try await lab.post(owner == "u1" ? "u2" : "u1")
            try await lab.settle(later, Self.period("p1"))
            #expect(try await lab.outcomes(later) == ["p1": "already_granted transferred"])
            #expect(try await lab.grants == ["p1 u1"])
        }
    }

    @Test("P10: hold: a person decides, with the reason; keep: nothing moves")
    func holds() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            let kept = try await lab.post("u2")
            try await lab.settle(kept, Self.period("p1", nil))
            #expect(try await lab.outcomes(kept) == ["p1": "already_granted owned_by_another_user"])
            let held = try await lab.post("u2")
            #expect(try await lab.settle(held, Self.period("p1", .hold)) == .held)
            #expect(try await lab.state(held) == "held transfer_review")
            #expect(try await lab.outcomes(held) == ["p1": "held transfer_review"])
            // The receipt is judged again under another policy.
            #expect(try await lab.settle(held, Self.period("p1", .transfer)) == .alreadyGranted)
            #expect(try await lab.outcomes(held) == ["p1": "already_granted transferred"])
            #expect(try await Self.told(lab).count == 2)
        }
    }

    @Test("P10: what is held for a person is answered by that person's decision, for its owner and for any other user")
    func decision() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            let (claim, other) = (try await lab.post("u2"), try await lab.post("u3"))
            for held in [claim, other] { try await lab.settle(held, Self.period("p1", .hold)) }
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.decideOwner("u2", of: "p9", appID: "game") == nil)
            #expect(try await repairs.decideOwner("u2", of: "p1", appID: "other") == nil)
            #expect(try await lab.number("select count(*) from receipts where due_at > now()") == 2)
            #expect(try await repairs.decideOwner("u2", of: "p1", appID: "game") == "u1")
            #expect(try await lab.number("select count(*) from receipts where due_at <= now()") == 2)
            #expect(try await Self.told(lab) == ["ownership.gained u2 first", "ownership.lost u1 first"])
            for (held, words) in [(claim, "transferred"), (other, "owned_by_another_user")] {
                #expect(try await lab.settle(held, Self.period("p1", .hold)) == .alreadyGranted)
                #expect(try await lab.outcomes(held) == ["p1": "already_granted \(words)"])
            }
            // The chain stays with its owner: nobody is told.
            #expect(try await repairs.decideOwner("u2", of: "p1", appID: "game") == "u2")
            #expect(try await Self.told(lab).count == 2)
            #expect(try await Self.owners(lab) == ["p1 0 u1 poster", "p1 1 u2 support", "p1 2 u2 support"])
            #expect(try await lab.number("select count(*) from audits where action = 'support.own'") == 2)
            // Consumables cannot be moved.
            try await lab.settle(try await lab.post("u1"), .purchase("c1"))
            #expect(try await repairs.decideOwner("u2", of: "c1", appID: "game") == nil)
        }
    }

    @Test("P10: of two persons who decide at once each sees the other's decision, or decides nothing")
    func decisionsAtOnce() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            let repairs = Repairs(database: lab.ledger.database, actor: "ann")
            var (decisions, moves) = (0, 0)
            for round in 1...8 {
                let answers = try await withThrowingTaskGroup(of: (user: String, holder: String?).self) { group in
                    for user in ["u2", "u3"] {
                        group.addTask {
                            let holder = try await repairs.decideOwner(user, of: "p1", appID: "game")
                            return (user: user, holder: holder)
                        }
                    }
                    var answers: [(user: String, holder: String?)] = []
                    for try await answer in group { answers.append(answer) }
                    return answers
                }
                let decided = answers.filter { $0.holder != nil }
                #expect(!decided.isEmpty, "round \(round)")
                decisions += decided.count
                moves += decided.count { $0.holder != $0.user }
                #expect(try await lab.number("select count(*) from ownerships where move > 0") == decisions)
                #expect(try await lab.number("select max(move)::bigint from ownerships") == decisions)
                #expect(try await lab.number("select count(*) from audits where action = 'support.own'") == decisions)
                #expect(try await Self.told(lab).count == 2 * moves)
            }
        }
    }

    @Test("what is over, taken back or claimed before the last move moves nothing")
    func bounds() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            let early = try await lab.post("u3")
            try await lab.settle(try await lab.post("u1"), Self.owned("p2", by: "u1", day: 30))
            func claim(_ id: String, day: Double, by posted: Posted) async throws -> String? {
                try await lab.settle(posted, Self.period(id, day: day))
                return try await lab.outcomes(posted)[id]
            }
            let others = "already_granted owned_by_another_user"
            #expect(try await claim("p1", day: 0, by: try await lab.post("u2")) == others, "a period that is over")
            try await lab.run("update transactions set revoked_at = now() where transaction_id = 'p2'")
            let refunded = try await lab.post("u2")
            try await lab.settle(
                lab.verdict(refunded, .transactions([Self.period("p2", day: 30)])))
            #expect(try await Self.owners(lab).count == 2)
            try await lab.run("update transactions set revoked_at = null where transaction_id = 'p2'")
            #expect(try await claim("p2", day: 30, by: try await lab.post("u2")) == "already_granted transferred")
            try await lab.run("update ownerships set decided_at = now() where move > 0")
            try await lab.run("update receipts set received_at = now() - interval '1 minute' where id = '\(early.id)'")
            #expect(try await claim("p2", day: 30, by: early) == others, "it was answered by the move")
        }
    }

    @Test("a restore under another id moves what it restores")
    func restore() async throws {
        try await LedgerLab.with { lab in
            let sword = Verdict.Entry.purchase("s1", kind: .nonConsumable)
            try await lab.settle(try await lab.post("u1"), sword)
            let restored = Verdict.Entry.purchase("s2", of: "s1", kind: .nonConsumable) { $0.purchasedAt += 86_400 }
            let shown = try await lab.post("u2")
            try await lab.settle(
                shown,
                Verdict.Entry(transaction: restored.transaction, decision: restored.decision, transfer: .transfer))
            #expect(try await lab.outcomes(shown) == ["s2": "already_granted transferred"])
            #expect(try await Self.owners(lab) == ["s1 1 u2 transfer"])
            #expect(
                try await lab.evidence(lab.question(restored.transaction, by: "u1"))[0].chain?.userID == "u2")
        }
    }

    @Test("note 3: what its owner buys anew while another claims it is the owner's, and the chain from then on")
    func boughtMeanwhile() async throws {
        func chain(_ lab: LedgerLab, _ day: Double) async throws -> Evidence.Chain? {
            try await lab.evidence(lab.question(Self.period("next", day: day).transaction, by: nil))[0].chain
        }
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            // The purchase was matched while the chain was u1's, so that it takes nothing; the claim is written first.
            let claim = lab.verdict(try await lab.post("u2"), .transactions([Self.period("p1")]))
            let bought = lab.verdict(try await lab.post("u1"), .transactions([Self.period("p2", day: 30, nil)]))
            #expect(try await lab.settle(claim).count == 1)
            #expect(try await lab.settle(bought).count == 1)
            #expect(try await lab.grants == ["p1 u1", "p2 u1"])
            #expect(try await Self.owners(lab) == ["p1 0 u1 poster", "p1 1 u2 transfer"])
            #expect(try await chain(lab, 60) == .init(userID: "u1"))
        }
        // Written together, the purchase stands before the claim is looked at: what is over moves nothing that runs.
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            let claim = lab.verdict(try await lab.post("u2"), .transactions([Self.period("p1")]))
            let bought = lab.verdict(try await lab.post("u1"), .transactions([Self.period("p2", day: 30, nil)]))
            #expect(try await lab.settle(claim, bought).count == 2)
            #expect(try await Self.owners(lab) == ["p1 0 u1 poster"])
            #expect(try await chain(lab, 60) == .init(userID: "u1"))
        }
        // If it is renewed for the user to whom it was moved, under whatever id of that user, it stays moved.
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            try await lab.settle(try await lab.post("u2"), Self.period("p1"))
            try await lab.settle(try await lab.post("u2"), Self.period("p2", day: 30, nil))
            #expect(try await chain(lab, 60) == .init(userID: "u2", isMoved: true))
            #expect(try await lab.merge("u2", into: "u3") == .merged)
            try await lab.settle(try await lab.post("u3"), Self.period("p3", day: 60, nil))
            #expect(try await lab.grants == ["p1 u1", "p2 u2", "p3 u3"])
            #expect(try await chain(lab, 90) == .init(userID: "u3", isMoved: true))
        }
    }

    @Test("B7: many claim it at once: it moves once, all of one batch and of several writers")
    func race() async throws {
        try await LedgerLab.with(connections: 4, writers: 4) { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned("p1", by: "u1"))
            var verdicts: [Verdict] = []
            for user in ["u2", "u3", "u2"] {
                verdicts.append(lab.verdict(try await lab.post(user), .transactions([Self.period("p1")])))
            }
            let first = try await lab.ledger.settleTogether(verdicts)
            let rest = verdicts.filter { first[$0.receiptID] == nil }
            #expect(!first.isEmpty && !rest.isEmpty)
            #expect(try await lab.ledger.settleTogether(rest).count == rest.count)
            #expect(try await Self.owners(lab).count == 2)
            #expect(try await Self.told(lab).count == 2)

            try await lab.settle(try await lab.post("u1"), Self.owned("p2", by: "u1", day: 30))
            try await lab.run("update ownerships set decided_at = decided_at - interval '25 hours'")
            var posts: [Posted] = []
            for number in 0..<24 { posts.append(try await lab.post("v\(number)")) }
            await withTaskGroup(of: Void.self) { group in
                for posted in posts {
                    group.addTask {
                        let verdict = lab.verdict(posted, .transactions([Self.period("p2", day: 30)]))
                        for _ in 0..<20 {
                            if (try? await lab.ledger.settle(verdict)) != nil { break }
                        }
                    }
                }
            }
            #expect(
                try await lab.number(
                    "select count(*) from outcomes where reason = 'transferred' and transaction_id = 'p2'")
                    == 1)
            #expect(try await lab.number("select count(*) from receipts where settled_at is null") == 0)
            #expect(try await lab.number("select count(*) from ownerships where transaction_id = 'p2'") == 2)
        }
    }
}
