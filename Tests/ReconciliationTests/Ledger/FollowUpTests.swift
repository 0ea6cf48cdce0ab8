import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings

/// Goal: whichever is first, the refund or the grant, and whichever worker dies between them, a refunded purchase ends
/// revoked exactly once (S3-46, P32). Method: the follow-up transaction on the real database, beside sessions that hold
/// what another worker would hold.
@Suite(.timeLimit(.minutes(8))) struct FollowUpTests {
    private static let bought = Verdict.Entry.purchase("t1").transaction
    private static let granted = Verdict.Entry.purchase("t1", signedAt: LedgerLab.bought + 10)

    @Test("S3-46: a refund after the grant is told once, and a larger share as the difference")
    func refundAfterGrant() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), Self.granted)
            #expect(try await lab.followUp().chains == 0, "a purchase that stands has nothing to follow up")
            try await lab.hear(Self.bought.refunded(60, percentage: 30_000))
            let first = try await lab.followUp()
            #expect(first.chains == 1 && first.revocations == 1 && first.events == 1 && !first.isMore)
            #expect(try await lab.followUp().chains == 0)
            try await lab.hear(Self.bought.refunded(70, percentage: 50_000))
            // The same again, later: nothing is new.
            try await lab.hear(Self.bought.refunded(80, percentage: 50_000))
            try await lab.followUp()
            #expect(
                try await lab.revocations == ["t1 1 revoked refunded 30000 18", "t1 2 revoked refunded 50000 12"])
            #expect(try await lab.told("purchase.revoked") == ["purchase.revoked u1 t1", "purchase.revoked u1 t1"])
            #expect(try await lab.number("select count(*) from chain_marks") == 0)
        }
    }

    @Test("a reversal is told once, and makes what was rejected for the refund due")
    func reversal() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), Self.granted)
            try await lab.hear(Self.bought.refunded(60))
            try await lab.followUp()
            try await lab.hear(Self.bought.signed(90))
            try await lab.followUp()
            #expect(
                try await lab.revocations == ["t1 1 revoked refunded 100000 60", "t1 2 reinstated refunded 0 60"])
            #expect(try await lab.told("purchase.re%") == ["purchase.revoked u1 t1", "purchase.reinstated u1 t1"])
            #expect(try await lab.followUp().chains == 0)
        }
    }

    @Test("a refund that was heard before the grant leaves nothing to give and nothing to take back")
    func refundBeforeGrant() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            try await lab.hear(Self.bought.refunded(60))
            #expect(try await lab.followUp().revocations == 0)
            try await lab.settle(posted, Self.granted)
            try await lab.followUp()
            #expect(try await lab.outcomes(posted) == ["t1": "rejected refunded"])
            #expect(try await lab.revocations == [])
        }
    }

    @Test("a refund and a grant that wait for each other follow one another, in both orders")
    func refundBesideGrant() async throws {
        try await LedgerLab.with { lab in
            for isGrantFirst in [true, false] {
                let id = "\(isGrantFirst)"
                let entry = Verdict.Entry.purchase(id, signedAt: LedgerLab.bought + 10)
                let verdict = lab.verdict(try await lab.post(), .transactions([entry]))
                let refund = Hearing.of(entry.transaction.refunded(60))
                try await lab.withSession { session in
                    try await session.run(.begin)
                    if isGrantFirst {
                        try await lab.settle(verdict, on: session)
                        async let blocked = lab.ledger.hear(refund)
                        try await lab.untilBlocked()
                        try await session.run(.commit)
                        _ = try await blocked
                    } else {
                        _ = try await lab.hear([refund], on: session)
                        async let blocked = lab.ledger.settle(verdict)
                        try await lab.untilBlocked()
                        try await session.run(.commit)
                        #expect(try await blocked?.state == .rejected)
                    }
                }
                try await lab.followUp()
                #expect(
                    try await lab.revocations.filter { $0.hasPrefix(id) }
                        == (isGrantFirst ? ["true 1 revoked refunded 100000 60"] : []))
            }
        }
    }

    @Test("P32: a refund and a grant at the same moment: fifty times, revoked exactly once or never given")
    func atOnce() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            for number in 0..<50 {
                let entry = Verdict.Entry.purchase("t\(number)", signedAt: LedgerLab.bought + 10)
                let verdict = lab.verdict(try await lab.post(), .transactions([entry]))
                let refund = Hearing.of(entry.transaction.refunded(60))
                async let heard = lab.ledger.hear(refund)
                async let settled = lab.ledger.settle(verdict)
                async let followed = lab.ledger.followUpChains(policies: [:], limit: 64)
                _ = try await (heard, settled, followed)
            }
            while try await lab.followUp().chains > 0 {}
            #expect(
                try await lab.number(
                    """
                    select count(*) from grants g full join revocations r using (transaction_id)
                    where g.receipt_id is null or r.ordinal is distinct from 1
                    """) == 0)
            #expect(
                try await lab.number("select count(*) from grants")
                    == lab.number("select count(*) from events where type = 'purchase.revoked'"))
            #expect(
                try await lab.number("select count(*) from grants")
                    + lab.number("select count(*) from receipts where reason = 'refunded'") == 50)
        }
    }

    @Test("two follow-ups of one chain do not run at once, and one whose worker dies is repeated")
    func oneAtATime() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), Self.granted)
            try await lab.hear(Self.bought.refunded(60))
            try await lab.run("insert into chains values ('game', 'Production', 't1')")
            for ends in [Statement<Void, Void>.rollback, .commit] {
                try await lab.withSession { session in
                    try await session.run(.begin)
                    #expect(try await lab.followUp(on: session).revocations == 1)
                    #expect(try await lab.followUp().chains == 0, "the other one has the chain")
                    try await session.run(ends)
                }
            }
            #expect(try await lab.followUp().chains == 0)
            #expect(try await lab.revocations == ["t1 1 revoked refunded 100000 60"])
        }
    }

    @Test("what is committed while a follow-up runs is followed up after it")
    func markedMeanwhile() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), Self.granted)
            try await lab.hear(Self.bought.refunded(60, percentage: 30_000))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.followUp(on: session)
                try await lab.hear(Self.bought.refunded(70))
                try await session.run(.commit)
            }
            #expect(try await lab.followUp().revocations == 1)
            #expect(
                try await lab.revocations == ["t1 1 revoked refunded 30000 18", "t1 2 revoked refunded 100000 42"])
        }
    }

    @Test("the renewal that a lapse waits for: told at the second look, by what was read again")
    func subscription() async throws {
        try await LedgerLab.with { lab in
            let start = Date(timeIntervalSinceNow: -3600.5)
            let period = Verdict.Entry.purchase("p1", of: "p1", kind: .autoRenewable, signedAt: start) {
                ($0.purchasedAt, $0.expiresAt) = (start, Date(timeIntervalSinceNow: 3600))
            }
            try await lab.settle(try await lab.post(), period)
            try await lab.followUp()
            #expect(
                try await lab.told("%")
                    == [
                        "purchase.granted u1 p1", "subscription.started u1 p1", "entitlement.changed u1 p1",
                    ])
            #expect(
                try await lab.texts("select concat_ws(' ', state, told_user_id, steps, told ->> 'userID') from chains")
                    == ["active u1 2 "])
            // A second look finds nothing new in what was stored of the first: every date is read as it was written.
            try await lab.run("update chains set due_at = now()")
            #expect(try await lab.followUp().events == 0)
            try await lab.hear(
                renewals: [
                    Renewal(
                        originalID: "p1", environment: Transaction.production, signedAt: start + 60,
                        renewsAutomatically: false)
                ])
            #expect(try await lab.followUp().events == 1)
            #expect(try await lab.told("subscription.changed") == ["subscription.changed u1 p1"])
        }
    }

    @Test("a chain that cannot be followed up keeps no other waiting: one of a user who is being erased, or locked")
    func busy() async throws {
        try await LedgerLab.with { lab in
            for id in ["t1", "t2"] {
                try await lab.settle(
                    try await lab.post("of \(id)"), .purchase(id, signedAt: LedgerLab.bought + 10))
            }
            func refund(_ id: String) async throws {
                try await lab.hear(Verdict.Entry.purchase(id).transaction.refunded(60))
            }
            func followOne() async throws -> FollowedChains {
                try await lab.database.followUpChains(policies: [:], limit: 1)
            }
            try await refund("t1")
            try await refund("t2")
            try await lab.run("select begin_erasure('game', 'of t1')")
            #expect(try await followOne().chains == 0)
            #expect(try await followOne().revocations == 1)
            #expect(try await lab.revocations == ["t2 1 revoked refunded 100000 60"])
            // The same where the clock made them due.
            try await lab.run("delete from chain_marks")
            try await lab.run("update chains set due_at = now() where original_transaction_id = 't2'")
            try await lab.run(
                "update chains set due_at = now() - interval '1 hour' where original_transaction_id = 't1'")
            #expect(try await followOne().chains == 0)
            #expect(try await followOne().chains == 1)
            try await lab.run("select end_erasure('game', 'of t1')")
            try await lab.run("update chains set due_at = now() where original_transaction_id = 't1'")
            #expect(try await lab.followUp().revocations == 1)

            // Another follow-up has locked a chain that has hundreds of marks, the oldest ones.
            try await lab.run(
                """
                insert into chain_marks (app_id, environment, original_transaction_id)
                select 'game', 'Production', 't1' from generate_series(1, 600)
                """)
            try await lab.hear(Verdict.Entry.purchase("t2").transaction.signed(90))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(
                    Statement<Void, Void>(
                        "test.lock", "select from chains where original_transaction_id = 't1' for update"))
                #expect(try await lab.followUp().revocations == 1)
                try await session.run(.rollback)
            }
            #expect(try await lab.followUp().chains == 1)
            #expect(try await lab.number("select count(*) from chain_marks") == 0)
        }
    }

    @Test("S3-46: a purchase that was refunded under another of its ids is given back by whichever id stands again")
    func underAnotherID() async throws {
        try await LedgerLab.with { lab in
            for isNew in [false, true] {
                let id = "\(isNew)"
                func listed(as other: String) -> Transaction {
                    Verdict.Entry.purchase(other, of: id, kind: .nonConsumable).transaction
                }
                try await lab.settle(
                    try await lab.post(), .purchase(id, kind: .nonConsumable, signedAt: LedgerLab.bought + 10))
                try await lab.hear(listed(as: id + "r").refunded(60))
                #expect(try await lab.followUp().revocations == 1)
                try await lab.hear(listed(as: isNew ? id + "s" : id).signed(90))
                #expect(try await lab.followUp().revocations == 1, "\(isNew)")
                #expect(
                    try await lab.revocations.filter { $0.hasPrefix(id) } == [
                        "\(id) 1 revoked refunded 100000 60", "\(id) 2 reinstated refunded 0 60",
                    ])
            }
        }
    }

    /// A period that runs now, of a chain of its own.
    private static func running(_ id: String) -> Verdict.Entry {
        let start = Date(timeIntervalSinceNow: -3600.5)
        return .purchase(id, of: id, kind: .autoRenewable, signedAt: start) {
            ($0.purchasedAt, $0.expiresAt) = (start, Date(timeIntervalSinceNow: 3600))
        }
    }

    @Test("a merge tells nobody anything: what the guest's id was told, the account was told")
    func merged() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("guest"), Self.running("p1"))
            #expect(try await lab.followUp().events == 2)
            #expect(try await lab.merge("guest", into: "account") == .merged)
            try await lab.run("update chains set due_at = now()")
            let followed = try await lab.followUp()
            #expect(followed.chains == 1 && followed.events == 0)
            #expect(try await lab.texts("select told_user_id from chains") == ["account"])
        }
    }

    @Test("where users are protected, too, an erased user is told nothing, until the user comes back")
    func erasedProtected() async throws {
        try await LedgerLab.with { lab in
            let keys = try #require(UserKeys(file: String(repeating: "k", count: UserKeys.secretBytesMin)))
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "ann")
            let name = erasure.name(of: "u1", app: "game")
            try await UserRegister(ledger: lab.ledger).enter("u1", key: name.key, app: "game", keys)
            try await lab.settle(try await lab.post(name.key), Self.granted)
            try await lab.settle(try await lab.post(name.key), Self.running("p1"))
            try await lab.followUp()
            #expect(try await erasure.erase(name))
            try await lab.hear(Self.bought.refunded(60))
            try await lab.run("update chains set due_at = now()")
            let followed = try await lab.followUp()
            #expect(followed.chains == 2 && followed.revocations == 1 && followed.events == 0)
            #expect(try await lab.texts("select user_id from revocations") == [name.key])
            #expect(try await erasure.readmit("u1", app: "game"))
            try await lab.hear(Self.bought.signed(90))
            #expect(try await lab.followUp().events == 3, "the reinstatement, and what the subscription is")
            // When something is heard of the subscription, or its row is due, its end is looked for again.
            try await lab.run("update chains set due_at = now() where state is not null")
            #expect(try await lab.followUp().events == 0)
        }
    }

    @Test(
        "B10: a period that was given on trust and that Apple denied: its user is told at once that it may not be used")
    func denied() async throws {
        try await LedgerLab.with { lab in
            let (start, end) = (Date(timeIntervalSinceNow: -3600.5), Date(timeIntervalSinceNow: 3600))
            func period(_ decision: Decision) -> Verdict.Entry {
                .purchase("p1", of: "p1", kind: .autoRenewable, signedAt: start, decision) {
                    ($0.purchasedAt, $0.expiresAt) = (start, end)
                }
            }
            let given = period(.provisional(goods: Verdict.Entry.coins, source: .poster))
            let posted = try await lab.post()
            _ = try await lab.ledger.run(
                Statements.takePlaces,
                .init(
                    receiptID: posted.id, appID: posted.appID, transactions: [given.transaction],
                    limits: .init(perUserPerDay: 9, perAppPerDay: 9)))
            try await lab.settle(posted, given)
            try await lab.followUp()
            #expect(try await lab.told("subscription%") == ["subscription.started u1 p1"])
            try await lab.settle(posted, period(.rejected(.notAuthenticated)))
            #expect(try await lab.followUp().events == 1)
            #expect(
                try await lab.texts(
                    "select body ->> 'entitled' from events where type = 'entitlement.changed' order by xid")
                    == ["true", "false"])
            #expect(try await lab.followUp().chains == 0)
            #expect(try await lab.texts("select state from chains") == ["revoked"])
        }
    }

    @Test("a chain that another one continues is looked at again once that is known")
    func continued() async throws {
        try await LedgerLab.with { lab in
            func period(_ id: String, after previous: String?) -> Verdict.Entry {
                .purchase(id, of: id, kind: .autoRenewable, signedAt: LedgerLab.bought + 10) {
                    $0.expiresAt = $0.purchasedAt + 86_400
                    $0.previousOriginalID = previous
                    if let previous { $0.facts = #"{"previousOriginalTransactionId": "\#(previous)"}"# }
                }
            }
            try await lab.settle(try await lab.post(), period("a", after: nil))
            try await lab.settle(try await lab.post(), period("b", after: "a"))
            try await lab.followUp()
            #expect(
                try await lab.texts("select original_transaction_id from chain_marks") == ["a"],
                "b's row says since now that it continues a")
            try await lab.followUp()
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', original_transaction_id, previous_original_transaction_id) from chains order by 1"
                )
                    == ["a", "b a"])
            #expect(try await lab.number("select count(*) from chain_marks") == 0)
        }
    }

    @Test(
        "reopened in the order of their posts, a second apart, with their payloads; not what a worker has, nor an erased user's"
    )
    func reopened() async throws {
        try await LedgerLab.with { lab in
            try await lab.hear(Self.bought.refunded(60))
            var posts: [Posted] = []
            for user in ["u1", "u2", "u3"] {
                posts.append(try await lab.post(user))
                try await lab.settle(posts[posts.count - 1], Self.granted)
            }
            try await lab.run(
                """
                update receipts set user_id = 'erased_00000000-0000-0000-0000-000000000000' where id = '\(posts[2].id)'
                """)
            try await lab.hear(Self.bought.signed(90))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(
                    Statement<Void, Void>("test.lock", "select from receipts where id = '\(posts[1].id)' for update"))
                let passed = try await lab.followUp()
                #expect(passed.chains == 0 && passed.woken == [])
                try await session.run(.rollback)
            }
            #expect(try await lab.number("select count(*) from receipts where state = 'received'") == 0)
            let followed = try await lab.followUp()
            #expect(followed.woken.map(\.pointer) == [Pointer(receiptID: posts[0].id, attempt: 1)])
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', user_id, r.state, attempt, k.reason, o.state, o.reason)
                    from receipts r join outcomes o on o.receipt_id = r.id left join kept_payloads k on k.receipt_id = r.id
                    where user_id in ('u1', 'u2') order by due_at
                    """) == ["u1 received 1 open open", "u2 received 1 open open"])
            #expect(
                try await lab.number(
                    """
                    select extract(epoch from max(due_at) - min(due_at))::int from receipts where state = 'received'
                    """) == 1)
            #expect(try await lab.state(posts[2]) == "rejected refunded")
            // The earlier one gets it.
            #expect(try await lab.settle(posts[0], attempt: 1, Self.granted) == .granted)
            #expect(try await lab.settle(posts[1], attempt: 1, Self.granted) == .alreadyGranted)
        }
    }

    @Test("a grant makes due at once what nobody posted of the same chain or customer, and of no other app")
    func woken() async throws {
        try await LedgerLab.with { lab in
            func unposted(_ id: String, of original: String, customer: String?, app: String = "game") async throws {
                let transaction = Verdict.Entry.purchase(id, of: original) { $0.customerID = customer }.transaction
                var hearing = Hearing(notification: nil, appID: app)
                hearing.submissions = [Submission(unposted: transaction, jws: id, of: app, source: .notification)]
                _ = try await lab.hear([hearing])
            }
            try await unposted("n1", of: "o1", customer: nil)
            try await unposted("n2", of: "n2", customer: "c1")
            try await unposted("n3", of: "n3", customer: "c2")
            try await unposted("n4", of: "o1", customer: "c1", app: "other")
            // Of version 1: nothing but the receipt is proof, and the chain is a hint.
            try await lab.hear(submissions: [
                Submission(unposted: "r1", hintedID: "o1", of: "game", source: .notification),
                Submission(unposted: "r2", hintedID: "o2", of: "game", source: .notification),
            ])
            try await lab.run("update receipts set due_at = now() + interval '1 day'")
            try await lab.settle(
                try await lab.post(),
                .purchase("t1", of: "o1", signedAt: LedgerLab.bought + 10) { $0.customerID = "c1" })
            #expect(
                try await lab.texts(
                    """
                    select coalesce(transaction_id, original_transaction_id) from receipts
                    where due_at <= now() and source <> 'post' order by 1
                    """) == ["n1", "n2", "o1"])
            // A worker that had read before the grant who owns the chain writes now.
            let n1 = Verdict.Entry.purchase("n1", of: "o1").transaction
            let late = Verdict(
                receiptID: Submission(unposted: n1, jws: "n1", of: "game", source: .notification).receiptID, attempt: 0,
                appID: "game", claim: Claim(userID: nil, hasPossession: true, receivedAt: .now, isPosted: false),
                decisions: .receipt(.open(.unclaimedYet)), dueIn: .seconds(86_400))
            #expect(try await lab.settle(late).isEmpty)
            #expect(try await lab.number("select sum(attempt) from receipts") == 3)
            try await lab.run("update receipts set due_at = now() + interval '1 day' where due_at is not null")
            try await lab.hear(
                Verdict.Entry.purchase("t1", of: "o1").transaction.refunded(60) { $0.customerID = "c1" })
            #expect(try await lab.followUp().woken.map(\.lane) == [.unposted, .unposted, .unposted])
        }
    }

    @Test("what an erased user was told is told to nobody any more")
    func erased() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), Self.granted)
            try await lab.hear(Self.bought.refunded(60))
            try await lab.followUp()
            let (ended, held, open) = (
                try await lab.notification(), try await lab.notification(), try await lab.notification()
            )
            try await lab.run("update notifications set transaction_id = 't1', forward_due_at = now()")
            try await lab.run(
                "update notifications set state = 'ended', settled_at = now(), due_at = null where id = '\(ended.id)'")
            try await lab.run("update notifications set state = 'held', reason = 'x' where id = '\(held.id)'")
            try await lab.run("insert into consents (app_id, user_id, is_given) values ('game', 'u1', true)")
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
            #expect(
                try await lab.number(
                    """
                    select (select count(*) from revocations where user_id = 'u1')
                      + (select count(*) from consents)
                      + (select count(*) from notifications where payload is not null or forward_due_at is not null)
                    """) == 0)
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', state, reason) from notifications where id <> '\(ended.id)'")
                    == ["ended erased", "ended erased"])
            // A worker that has read one of them writes nothing of it.
            var late = Hearing.of(Self.bought.refunded(70))
            late.notification = open
            #expect(try await lab.hear([late]) == [[]])
            // Apple's reversal is recorded, and has no user to be told to.
            try await lab.hear(Self.bought.signed(90))
            let followed = try await lab.followUp()
            #expect(followed.revocations == 1 && followed.events == 0)
            // While an erasure runs, nothing is written of what the user holds.
            try await lab.settle(try await lab.post("u2"), .purchase("t2", signedAt: LedgerLab.bought + 10))
            try await lab.hear(Verdict.Entry.purchase("t2").transaction.refunded(60))
            try await lab.run("select begin_erasure('game', 'u2')")
            #expect(try await lab.followUp().chains == 0)
            try await lab.run("select end_erasure('game', 'u2')")
            #expect(try await lab.followUp().revocations == 1)
        }
    }
}
