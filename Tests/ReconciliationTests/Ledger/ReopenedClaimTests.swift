import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: a purchase that was refused because it belongs to another user is judged anew by the next post of the same
/// bytes, once a person, a merge or another policy may have made it the poster's, and only then (P10, Ownership, row
/// 1). Method: verdicts through the statement itself, and ingest over real HTTP.
@Suite(.timeLimit(.minutes(8))) struct ReopenedClaimTests {
    private static func period(_ policy: AppPolicy.Transfer? = nil, of owner: String? = nil) -> Verdict.Entry {
        let purchase = Verdict.Entry.purchase("p1", of: "first", kind: .autoRenewable)
        var match = owner.map { Match(userID: $0, source: .poster) }
        match?.takesChain = true
        return Verdict.Entry(
            transaction: purchase.transaction, decision: purchase.decision, match: match, transfer: policy)
    }

    private static let others = "already_granted owned_by_another_user"

    /// A subscription of u1 that u2 has claimed in vain.
    private static func withRefused(
        _ body: (LedgerLab, Posted) async throws -> Void
    ) async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), period(of: "u1"))
            let claim = try await lab.post("u2")
            #expect(try await lab.settle(claim, period()) == .alreadyGranted)
            #expect(try await lab.outcomes(claim) == ["p1": others])
            try await body(lab, claim)
        }
    }

    @Test("P10: support's decision: the same bytes are answered by it, and once it is answered it stays so")
    func decided() async throws {
        try await Self.withRefused { lab, claim in
            #expect(try await !lab.reopen(claim), "nothing has changed")
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.decideOwner("u2", of: "p1", appID: "game") == "u1")
            #expect(try await lab.reopen(claim))
            #expect(try await lab.state(claim) == "received")
            #expect(try await lab.outcomes(claim) == ["p1": "open"])
            #expect(try await lab.settle(claim, attempt: 0, Self.period()) == nil, "a verdict from before is stale")
            #expect(try await lab.settle(claim, attempt: 1, Self.period()) == .alreadyGranted)
            #expect(try await lab.outcomes(claim) == ["p1": "already_granted transferred"])
            #expect(try await !lab.reopen(claim))
            // The former owner may post it as well, and is told that it belongs to another user; the grant stays with
            // the former owner's receipt.
            let second = try await lab.post("u1")
            try await lab.settle(second, Self.period())
            #expect(try await lab.outcomes(second) == ["p1": Self.others])
            #expect(try await lab.grants == ["p1 u1"])
        }
    }

    @Test("a merge: what the guest had is the account's, also by the bytes that were refused before, used up or not")
    func merged() async throws {
        try await Self.withRefused { lab, claim in
            try await lab.settle(try await lab.post("u1"), .purchase("c1"))
            let coins = try await lab.post("u2")
            try await lab.settle(coins, .purchase("c1"))
            // This post gave a purchase to the other user, by that user's token.
            var match = Match(userID: "u1", source: .userToken, reasons: [.tokenRegistered])
            match.takesChain = false
            let purchase = Verdict.Entry.purchase("c2")
            let brought = try await lab.post("u2")
            try await lab.settle(
                brought, Verdict.Entry(transaction: purchase.transaction, decision: purchase.decision, match: match))
            #expect(try await lab.outcomes(brought) == ["c2": "granted owned_by_another_user"])

            #expect(try await lab.merge("u1", into: "u2") == .merged)
            for posted in [claim, coins] { #expect(try await lab.reopen(posted)) }
            #expect(try await !lab.reopen(brought), "nothing of it is to be judged")
            #expect(try await lab.outcomes(brought) == ["c2": "granted"])
            #expect(try await lab.state(brought) == "granted")
            #expect(try await lab.ledger.view(brought.id)?.transactions.map(\.isOwn) == [true])
            #expect(try await lab.settle(claim, attempt: 1, Self.period()) == .alreadyGranted)
            #expect(try await lab.settle(coins, attempt: 1, .purchase("c1")) == .alreadyGranted)
            #expect(try await lab.outcomes(claim) == ["p1": "already_granted"])
            #expect(try await lab.outcomes(coins) == ["c1": "already_granted"])
        }
    }

    @Test("P10: another policy, and the limit of moves that time has lifted: at most once a minute, of what runs on")
    func policy() async throws {
        try await Self.withRefused { lab, claim in
            #expect(try await !lab.reopen(claim, moves: true), "within the minute")
            try await lab.run(
                "update receipts set judged_at = judged_at - interval '2 minutes' where id = '\(claim.id)'")
            #expect(try await !lab.reopen(claim, moves: false), "keep")
            #expect(try await lab.reopen(claim, moves: true))
            #expect(try await lab.settle(claim, attempt: 1, Self.period(.transfer)) == .alreadyGranted)
            #expect(try await lab.outcomes(claim) == ["p1": "already_granted transferred"])
            // Consumables move by no policy.
            try await lab.settle(try await lab.post("u1"), .purchase("c1"))
            let coins = try await lab.post("u2")
            try await lab.settle(coins, .purchase("c1"))
            try await lab.run(
                "update receipts set judged_at = judged_at - interval '2 minutes' where id = '\(coins.id)'")
            #expect(try await !lab.reopen(coins, moves: true))
            try await lab.run("update receipts set judged_at = settled_at where id = '\(coins.id)'")
        }
    }

    @Test("P10: posted again after a move it is a claim of that moment, not of its first post")
    func claimedAgain() async throws {
        // The test moves the receipt back in time, past the day that has counted it.
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post("u1"), Self.period(of: "u1"))
            let submission = Submission(appID: "game", userID: "u2", proof: .receipt("QUJD"), transactionID: "p1")
            #expect(try await lab.ledger.insert(submission))
            let claim = Posted(id: submission.receiptID, userID: "u2", appID: "game")
            try await lab.settle(claim, Self.period())
            try await lab.settle(try await lab.post("u3"), Self.period(.transfer))
            try await lab.run("update ownerships set decided_at = decided_at - interval '25 hours'")
            try await lab.run(
                """
                update receipts set received_at = received_at - interval '30 hours',
                  judged_at = judged_at - interval '20 hours' where id = '\(claim.id)'
                """)
            #expect(try await lab.reopen(claim, moves: true, payload: "QUJD"))
            try await lab.settle(claim, attempt: 1, Self.period(.transfer))
            #expect(try await lab.outcomes(claim) == ["p1": "already_granted transferred"])
            #expect(
                try await lab.texts("select user_id from ownerships order by move") == ["u1", "u3", "u2"])
        }
    }

    @Test("the claim of an erased user takes nothing from its owner, also when another posts its bytes again")
    func erased() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            try await lab.settle(try await lab.post("u1"), Self.period(of: "u1"))
            let submission = Submission(appID: "game", userID: "u2", proof: .receipt("QUJD"), transactionID: "p1")
            #expect(try await lab.ledger.insert(submission))
            let claim = Posted(id: submission.receiptID, userID: "u2", appID: "game")
            try await lab.settle(claim, Self.period())
            try await lab.run(
                "update receipts set judged_at = judged_at - interval '2 minutes' where id = '\(claim.id)'")
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(UserName(appID: "game", key: "u2")))
            #expect(try await !lab.reopen(claim, moves: true, payload: "QUJD"))
            #expect(try await lab.texts("select user_id from ownerships order by move") == ["u1"])
            try await lab.run("update receipts set judged_at = settled_at where id = '\(claim.id)'")
        }
    }

    @Test("the bytes of the post are taken where those of the row are gone, if they are the same")
    func payloadGone() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.period(of: "u1"))
            let submission = Submission(
                appID: "game", userID: "u2", orderID: nil, proof: .receipt("QUJD"), transactionID: "p1")
            #expect(try await lab.ledger.insert(submission))
            let claim = Posted(id: submission.receiptID, userID: "u2", appID: "game")
            try await lab.settle(claim, Self.period())
            try await lab.run("delete from stored_payloads where receipt_id = '\(claim.id)'")
            _ = try await Repairs(database: lab.database, actor: "ann").decideOwner("u2", of: "p1", appID: "game")
            #expect(try await !lab.reopen(claim, payload: "REVG"))
            #expect(try await lab.state(claim) == "already_granted owned_by_another_user")
            #expect(try await lab.reopen(claim, payload: "QUJD"))
            #expect(try await lab.ledger.fetch(claim.id)?.proof == .receipt("QUJD"))
            try await lab.settle(claim, attempt: 1, Self.period())
            #expect(try await lab.outcomes(claim) == ["p1": "already_granted transferred"])
        }
    }

    @Test("over HTTP: the same post is answered anew after support's decision, and waits like any other")
    func posted() async throws {
        try await LedgerLab.with { lab in
            try await RunningIntake.run(url: lab.url) { intake in
                try await lab.settle(try await lab.post("u1"), Self.period(of: "u1"))
                let body = #"{"userId":"u2","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
                guard case .string(let text)? = try await intake.post(body)["id"] else {
                    Issue.record("not taken")
                    return
                }
                let claim = Posted(id: try #require(UUID(uuidString: text)), userID: "u2", appID: "game")
                try await lab.settle(claim, Self.period())
                func owner() async throws -> (Int, JSONValue?) {
                    let answer = try await intake.post(body)
                    guard case .array(let list)? = answer["transactions"] else { return (answer.status, nil) }
                    return (answer.status, list.first?["owner"])
                }
                #expect(try await owner() == (200, .string("another")))
                _ = try await Repairs(database: lab.database, actor: "ann").decideOwner(
                    "u2", of: "p1", appID: "game")
                #expect(try await owner() == (202, nil))
                try await lab.settle(claim, attempt: 1, Self.period())
                #expect(try await owner() == (200, .string("you")))
            }
        }
    }
}

extension LedgerLab {
    /// The same post again.
    func reopen(_ posted: Posted, moves: Bool = false, payload: String = "") async throws -> Bool {
        try await database.run(
            Statements.reopenClaim, .init(receiptID: posted.id, payload: payload, moves: moves)
        ).first ?? false
    }
}
