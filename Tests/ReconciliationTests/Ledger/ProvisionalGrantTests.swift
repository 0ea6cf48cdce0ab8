import Foundation
import Postgres
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Intake
@testable import Ledger

/// Goal: a purchase on trust is given once, within its limits, and only Apple's answer ends it: confirmed, or taken
/// back with one event (B10). Method: histories of verdicts on real PostgreSQL, each ending with every invariant
/// checked.
@Suite(.timeLimit(.minutes(8))) struct ProvisionalGrantTests {
    private static let given = Decision.provisional(goods: Verdict.Entry.coins, source: .poster)
    private static let refundedAt = Date(timeIntervalSince1970: 1_800_000_100)
    private static let refunded = Verdict.Entry.purchase("t1", .rejected(.refunded)) { $0.revokedAt = refundedAt }

    @Test("B10: given on trust, then confirmed: one grant, the receipt open in between, no attempt counted")
    func confirmed() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            #expect(try await lab.place(posted, "t1") == ["t1"])
            #expect(try await lab.settle(posted, .purchase("t1", Self.given)) == .received)
            #expect(try await lab.state(posted) == "received unconfirmed")
            #expect(try await lab.outcomes(posted) == ["t1": "granted unconfirmed"])
            #expect(try await lab.number("select attempt from receipts") == 0)
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.number("select count(*) from attempts") == 0)
            // Apple stays away: the tries are counted, and the receipt keeps the reason for which it waits.
            let away = Verdict.Decisions.receipt(.open(.appleUnavailable))
            try await lab.settle(lab.verdict(posted, away))
            #expect(try await lab.state(posted) == "received unconfirmed")
            #expect(try await lab.number("select attempt from receipts") == 1)
            #expect(try await lab.texts("select reason from attempts") == ["apple_unavailable"])
            #expect(try await lab.outcomes(posted) == ["t1": "granted unconfirmed"])
            #expect(try await lab.texts("select state from v_provisional") == ["unconfirmed"])
            let postponed = try await lab.ledger.postpone(
                Postponement(receiptID: posted.id, attempt: 1, dueIn: .seconds(1), reason: .appleUnavailable))
            #expect(postponed)
            #expect(try await lab.state(posted) == "received unconfirmed")

            #expect(try await lab.settle(posted, attempt: 1, .purchase("t1")) == .granted)
            #expect(try await lab.state(posted) == "granted")
            #expect(try await lab.outcomes(posted) == ["t1": "granted"])
            #expect(try await lab.texts("select state from v_provisional") == ["confirmed"])
            #expect(try await lab.texts("select binding_source from outcomes") == ["poster"])
            #expect(try await lab.told == ["purchase.granted true", "purchase.confirmed -"])
            let ids = try await lab.texts("select event_id::text from events order by id")
            #expect(
                ids.compactMap(UUID.init(uuidString:))
                    == [EventType.purchaseGranted, .purchaseConfirmed].map {
                        DerivedID.event(appID: "game", transactionID: "t1", type: $0)
                    })
        }
    }

    @Test("B10: refunded meanwhile: the grant stays, one event takes it back, the outcome says why")
    func revoked() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(posted, "t1")
            try await lab.settle(posted, .purchase("t1", Self.given))
            #expect(try await lab.settle(posted, Self.refunded) == .granted)
            #expect(try await lab.state(posted) == "granted refunded")
            #expect(try await lab.outcomes(posted) == ["t1": "granted refunded"])
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.texts("select state from v_provisional") == ["revoked"])
            #expect(try await lab.told == ["purchase.granted true", "purchase.revoked -"])
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', user_id, body ->> 'reason', body -> 'goods' -> 0 ->> 'amount') from events where type = 'purchase.revoked'"
                ) == ["u1 refunded 60"])
            // Whatever date Apple gives the refund, the user is told once.
            let id = DerivedID.event(appID: "game", transactionID: "t1", type: .purchaseRevoked)
            #expect(
                try await lab.number(
                    "select count(*) from events where event_id = '\(id)' and type = 'purchase.revoked'")
                    == 1)
            #expect(try await lab.history("u1").hasRefund, "no trust any more")
        }
    }

    @Test("the same verdict twice, or that of a slower worker, changes nothing")
    func twice() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            for _ in 0..<2 {
                #expect(try await lab.place(posted, "t1") == ["t1"])
                #expect(try await lab.settle(posted, .purchase("t1", Self.given)) == .received)
            }
            #expect(try await lab.settle(posted, .purchase("t1")) == .granted)
            #expect(try await lab.settle(posted, .purchase("t1", Self.given)) == nil)
            #expect(try await lab.settle(posted, Self.refunded) == nil)
            #expect(try await lab.told == ["purchase.granted true", "purchase.confirmed -"])
        }
    }

    @Test(
        "nothing is given on trust without its place, by a taken one of another receipt, or against a refund on record")
    func noPlace() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            #expect(try await lab.settle(posted, .purchase("t1", Self.given)) == .received)
            #expect(try await lab.state(posted) == "received apple_unavailable")
            #expect(try await lab.outcomes(posted) == ["t1": "open apple_unavailable"])
            #expect(try await lab.number("select attempt from receipts") == 0)
            let other = try await lab.post("u2", kind: .signedTransaction)
            #expect(try await lab.place(other, "t1") == ["t1"])
            #expect(try await lab.place(posted, "t1") == [])
            #expect(try await lab.settle(posted, .purchase("t1", Self.given)) == .received)
            #expect(try await lab.grants == [])
            // Apple is back before the place was used: an ordinary grant is written, and the place is only counted.
            #expect(try await lab.settle(other, .purchase("t1")) == .granted)
            #expect(try await lab.settle(posted, .purchase("t1")) == .alreadyGranted)
            #expect(try await lab.texts("select state from v_provisional") == [])

            let first = try await lab.post(kind: .signedTransaction)
            let word = { (decision: Decision, seconds: Double, isRefunded: Bool) in
                Verdict.Entry.purchase("t2", signedAt: Self.refundedAt + seconds, decision) {
                    $0.revokedAt = isRefunded ? Self.refundedAt : nil
                }
            }
            try await lab.settle(first, word(.rejected(.refunded), 10, true))
            let late = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(late, "t2")
            // A purchase in a receipt has no date of signing: any stored refund answers it.
            let undated = Verdict.Entry.purchase("t2", Self.given)
            for entry in [word(Self.given, -10, false), undated] {
                #expect(try await lab.settle(late, entry) == .received)
                #expect(try await lab.outcomes(late) == ["t2": "rejected refunded"])
            }
            #expect(try await lab.grants == ["t1 u2"])
            #expect(try await lab.settle(late, word(Verdict.Entry.purchase("t2").decision, -10, false)) == .rejected)
        }
    }

    @Test("only Apple's answer ends it: a proof that fails as a whole, or a policy that changed, holds the receipt")
    func whatDoesNotEndIt() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(posted, "t1")
            try await lab.settle(posted, .purchase("t1", Self.given))
            let whole = try await lab.settle(lab.verdict(posted, .receipt(.rejected(.untrustedRoot))))
            #expect(whole == [posted.id: .held])
            for decision in [Decision.held(.productUnknown), .rejected(.historical), .held(.review)] {
                #expect(try await lab.settle(posted, .purchase("t1", decision)) == .held)
                #expect(try await lab.outcomes(posted) == ["t1": "granted unconfirmed"])
            }
            try await lab.settle(lab.verdict(posted, .receipt(.held(.credentialsMissing))))
            #expect(try await lab.outcomes(posted) == ["t1": "granted unconfirmed"])
            try await lab.settle(posted, .purchase("t1", .open(.appleAnswer)))
            #expect(try await lab.outcomes(posted) == ["t1": "granted unconfirmed"])
            #expect(try await lab.told == ["purchase.granted true"])
            #expect(try await lab.settle(posted, attempt: 1, .purchase("t1")) == .granted)
            #expect(try await lab.told == ["purchase.granted true", "purchase.confirmed -"])
        }
    }

    @Test("several purchases of one receipt: those not trusted stay open, Apple's answer ends each for itself")
    func neighbours() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .receipt)
            _ = try await lab.place(posted, "t1", "t2")
            let open = Decision.open(.appleUnavailable)
            #expect(
                try await lab.settle(
                    posted, .purchase("t1", Self.given), .purchase("t2", Self.given), .purchase("t3", open))
                    == .received)
            #expect(try await lab.state(posted) == "received unconfirmed")
            #expect(try await lab.number("select attempt from receipts") == 0, "no try: that is the next verdict's")
            #expect(
                try await lab.settle(
                    posted, Self.refunded, .purchase("t2"), .purchase("t3", .held(.productUnknown))) == .held)
            #expect(
                try await lab.outcomes(posted) == [
                    "t1": "granted refunded", "t2": "granted", "t3": "held product_unknown",
                ])
            #expect(
                try await lab.settle(posted, Self.refunded, .purchase("t2"), .purchase("t3")) == .granted)
            #expect(try await lab.number("select count(*) from events") == 5)
        }
    }

    @Test("B10: a verdict that does not name what was given on trust ends nothing, whatever else it says")
    func unnamed() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .receipt)
            _ = try await lab.place(posted, "t1")
            try await lab.settle(posted, .purchase("t1", Self.given))
            for entry in [
                Verdict.Entry.purchase("t2"), .purchase("t2", .rejected(.refunded)), .purchase("t1b", of: "t1"),
            ] {
                #expect(try await lab.settle(posted, entry) == .held)
                #expect(try await lab.state(posted) == "held unconfirmed")
            }
            #expect(
                try await lab.outcomes(posted) == [
                    "t1": "granted unconfirmed", "t1b": "already_granted", "t2": "granted",
                ])
            #expect(try await lab.settle(posted, .purchase("t2", .held(.review)), .purchase("t1")) == .granted)
            #expect(try await lab.texts("select state from v_provisional") == ["confirmed"])
        }
    }

    @Test("B10: what was held or refunded is not given on trust, and what is not given changes nothing")
    func heldBefore() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .receipt)
            let told = [
                "t1": "held review", "t2": "rejected refunded", "t3": "granted unconfirmed", "t4": "open apple_answer",
            ]
            try await lab.settle(
                posted, .purchase("t1", .held(.review)), .purchase("t2", .rejected(.refunded)),
                .purchase("t3", .open(.appleAnswer)), .purchase("t4", .open(.appleAnswer)))
            _ = try await lab.place(posted, "t1", "t2", "t3")
            #expect(
                try await lab.settle(
                    posted, attempt: 1, .purchase("t1", Self.given), .purchase("t2", .open(.appleUnavailable)),
                    .purchase("t2b", Self.given), .purchase("t3", Self.given), .purchase("t4", .held(.review)),
                    .purchase("t5", .open(.appleUnavailable)), .purchase("t6", .held(.productUnknown))) == .received)
            // Beside the purchase on trust, the verdict writes only the outcomes that had none before: a receipt is not
            // safe to finish because of the purchase on trust alone.
            #expect(
                try await lab.outcomes(posted)
                    == told.merging([
                        "t2b": "open apple_unavailable", "t5": "open apple_unavailable", "t6": "held product_unknown",
                    ]) { old, _ in old })
            let view = try #require(try await lab.ledger.view(posted.id))
            #expect(!ReceiptAnswer(view, finishing: .held).safeToFinish)
            #expect(try await lab.grants == ["t3 u1"])
            #expect(try await lab.state(posted) == "received unconfirmed")
        }
    }

    @Test(
        "B10: given beside a purchase that another user gets at that moment: both are written, and nothing is amiss")
    func givenAgain() async throws {
        try await LedgerLab.with { lab in
            let ours = try await lab.post("u1", kind: .receipt)
            let rival = try await lab.post("u2", kind: .signedTransaction)
            _ = try await lab.place(ours, "t1", "t2")
            let given = Verdict.Decisions.transactions([.purchase("t1", Self.given), .purchase("t2", Self.given)])
            try await lab.settle(ours, .purchase("t1", .open(.historyPending)), .purchase("t2", .open(.historyPending)))
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(rival, .transactions([.purchase("t2")])), on: session)
                async let blocked = lab.ledger.settle(lab.verdict(ours, given))
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await blocked?.state == .received)
            }
            #expect(try await lab.grants == ["t1 u1", "t2 u2"])
            #expect(try await Invariant.check(lab.database, span: .all, scale: 0) == [])
            #expect(try await lab.ledger.fetch(ours.id)?.isOnTrust == true)
            // Even now only Apple's answer ends it.
            #expect(try await lab.settle(ours, .purchase("t2")) == .held)
            #expect(try await lab.settle(lab.verdict(ours, given)) == [ours.id: .received])
            #expect(try await lab.outcomes(ours)["t1"] == "granted unconfirmed")
            #expect(try await lab.settle(ours, .purchase("t1"), .purchase("t2")) == .granted)
        }
    }

    @Test("another user's claim is answered by the grant, whatever Apple will say of it")
    func rival() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(posted, "t1")
            try await lab.settle(posted, .purchase("t1", Self.given))
            for (user, expected) in [("u1", "already_granted"), ("u2", "already_granted owned_by_another_user")] {
                let other = try await lab.post(user, kind: .signedTransaction)
                #expect(try await lab.settle(other, .purchase("t1")) == .alreadyGranted)
                #expect(try await lab.outcomes(other) == ["t1": expected])
            }
            #expect(try await lab.outcomes(posted) == ["t1": "granted unconfirmed"], "their word is not its own")
            try await lab.settle(posted, .purchase("t1"))
        }
    }

    @Test("P4: the owner's transaction is open while ours runs: nothing is given twice, and no event written twice")
    func race() async throws {
        try await LedgerLab.with { lab in
            let ours = try await lab.post("u1", kind: .signedTransaction)
            let rival = try await lab.post("u2", kind: .signedTransaction)
            _ = try await lab.place(ours, "t1")
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(rival, .transactions([.purchase("t1")])), on: session)
                async let blocked = lab.ledger.settle(
                    lab.verdict(ours, .transactions([.purchase("t1", Self.given)])))
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await blocked?.state == .received)
            }
            #expect(try await lab.settle(ours, .purchase("t1", Self.given)) == .received)
            #expect(try await lab.settle(ours, .purchase("t1")) == .alreadyGranted)
            #expect(try await lab.grants == ["t1 u2"])
            #expect(try await lab.texts("select state from v_provisional") == [])
        }
    }

    @Test("parked after a day of tries, still unconfirmed and still confirmed later")
    func parked() async throws {
        try await LedgerLab.with(parking: .init(scale: 0)) { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(posted, "t1")
            try await lab.settle(posted, .purchase("t1", Self.given))
            try await lab.run("update receipts set received_at = now() - interval '1 minute', attempt = 7")
            let settled = try await lab.settle(
                lab.verdict(posted, attempt: 7, .receipt(.open(.appleUnavailable))))
            #expect(settled == [posted.id: .parked])
            #expect(try await lab.state(posted) == "parked unconfirmed")
            #expect(try await lab.settle(posted, attempt: 8, .purchase("t1")) == .granted)
        }
    }

    // MARK: Limits

    @Test("the limits of a user and of an app hold exactly, however many ask at once; yesterday's do not count")
    func limits() async throws {
        try await LedgerLab.with(connections: 6) { lab in
            let limits = AppPolicy.Provisional(perUserPerDay: 3, perAppPerDay: 10)
            var posts: [Posted] = []
            for number in 0..<40 { posts.append(try await lab.post("u\(number % 8)", kind: .signedTransaction)) }
            let taken = try await withThrowingTaskGroup(of: (String, Int).self) { group in
                for (number, posted) in posts.enumerated() {
                    group.addTask {
                        ("u\(number % 8)", try await lab.place(posted, "t\(number)", limits: limits).count)
                    }
                }
                return try await group.reduce(into: [String: Int]()) { $0[$1.0, default: 0] += $1.1 }
            }
            #expect(taken.values.reduce(0, +) == 10, "\(taken)")
            #expect(taken.values.allSatisfy { $0 <= 3 }, "\(taken)")
            #expect(try await lab.number("select count(*) from provisional_grants") == 10)
            let elsewhere = try await lab.post("u0", app: "other", kind: .signedTransaction)
            #expect(try await lab.place(elsewhere, "x1", limits: limits) == ["x1"], "another app's day")
            try await lab.run("update provisional_grants set taken_at = taken_at - interval '1 day'")
            let many = try await lab.post("u9", kind: .signedTransaction)
            #expect(
                try await lab.place(many, "a", "b", "c", "d", limits: limits) == ["a", "b", "c"], "within a receipt")
        }
    }

    @Test("B10: what is granted already, under this id or another one of the purchase, takes no place")
    func noPlaceForTheGranted() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u2"), .purchase("t1"))
            let posted = try await lab.post(kind: .receipt)
            let restored = Verdict.Entry.purchase("t1b", of: "t1").transaction
            let places = Statements.PlaceQuestion(
                receiptID: posted.id, appID: "game",
                transactions: [Verdict.Entry.purchase("t1").transaction, restored],
                limits: .init(perUserPerDay: 9, perAppPerDay: 9))
            #expect(try await lab.ledger.run(Statements.takePlaces, places) == [])
            #expect(try await lab.number("select count(*) from provisional_grants") == 0)
        }
    }

    @Test("trust counts what was confirmed and paid for, of this user in this app, and any refund")
    func history() async throws {
        try await LedgerLab.with { lab in
            #expect(
                try await lab.history("u1") == UserHistory(purchases: 0, firstReceivedAt: nil, hasRefund: false))
            let first = try await lab.post(kind: .signedTransaction)
            try await lab.settle(first, .purchase("t1"))
            try await lab.settle(try await lab.post(), .purchase("t2", in: Transaction.sandbox))
            try await lab.settle(try await lab.post(), .purchase("t3", .grant(goods: [], source: .shared)))
            try await lab.settle(try await lab.post(app: "other"), .purchase("t4"))
            try await lab.settle(try await lab.post("u2"), .purchase("t5"))
            let trusted = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(trusted, "t6")
            try await lab.settle(trusted, .purchase("t6", Self.given))
            let history = try await lab.history("u1")
            #expect(history.purchases == 1 && !history.hasRefund)
            #expect(abs(history.firstReceivedAt?.timeIntervalSinceNow ?? -99) < 60)
            try await lab.settle(trusted, .purchase("t6"))
            #expect(try await lab.history("u1").purchases == 2, "confirmed")
            #expect(try await lab.history("u1", purchasesMax: 1).purchases == 1)
            // Apple says of a granted purchase, in whatever way, that it was refunded.
            try await lab.run("update transactions set revoked_at = now() where transaction_id = 't1'")
            #expect(try await lab.history("u1").hasRefund)
            #expect(try await !lab.history("u2").hasRefund)
            try await lab.settle(try await lab.post("u2"), .purchase("t7", .rejected(.refunded)))
            #expect(try await lab.history("u2").hasRefund, "never granted, and tried all the same")
            let forged = try await lab.post("u3", kind: .receipt)
            _ = try await lab.place(forged, "t8")
            try await lab.settle(forged, .purchase("t8", Self.given))
            try await lab.settle(forged, .purchase("t8", .rejected(.notAuthenticated)))
            #expect(try await lab.history("u3").hasRefund, "Apple does not know his receipt")
        }
    }

    // MARK: What others see

    @Test("the poster sees the goods, that they are provisional, and safeToFinish; a long poll ends")
    func answer() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            let json = { () async throws -> JSONValue in
                let view = try #require(try await lab.ledger.view(posted.id))
                return ReceiptAnswer(view, finishing: .held).json
            }
            _ = try await lab.place(posted, "t1")
            #expect(try await lab.ledger.run(Statements.finishedReceipts, [posted.id]) == [])
            try await lab.settle(posted, .purchase("t1", Self.given))
            #expect(try await lab.ledger.run(Statements.finishedReceipts, [posted.id]) == [posted.id])
            var text = try await json().text
            for part in [
                #""state":"received","reason":"unconfirmed","safeToFinish":true"#,
                #""state":"granted","reason":"unconfirmed","provisional":true,"safeToFinish":true,"owner":"you","goods":["#,
            ] {
                #expect(text.contains(part), "\(text)")
            }
            try await lab.settle(posted, .purchase("t1"))
            text = try await json().text
            #expect(
                !text.contains("provisional") && text.contains(#""state":"granted","safeToFinish":true"#), "\(text)")
        }
    }

    @Test(
        "a place is taken while its user is erased, and the other way round: the id stands nowhere",
        arguments: [true, false])
    func erasedMeanwhile(erasesFirst: Bool) async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .receipt)
            let erasure = Statements.Erasure(appID: "game", user: "u1", tombstone: "erased-1", actor: "test")
            let places = Statements.PlaceQuestion(
                receiptID: posted.id, appID: "game", transactions: [Verdict.Entry.purchase("t1").transaction],
                limits: .init(perUserPerDay: 9, perAppPerDay: 9))
            try await lab.withSession { session in
                try await session.run(.begin)
                if erasesFirst {
                    _ = try await session.run(Statements.eraseClearUser, erasure)
                    async let blocked = lab.ledger.run(Statements.takePlaces, places)
                    try await lab.untilBlocked()
                    try await session.run(.commit)
                    #expect(try await blocked == ["t1"])
                } else {
                    _ = try await session.run(Statements.takePlaces, places)
                    async let blocked = lab.ledger.run(Statements.eraseClearUser, erasure)
                    try await lab.untilBlocked()
                    try await session.run(.commit)
                    #expect(try await blocked == [1])
                }
            }
            #expect(try await lab.texts("select user_id from provisional_grants") == ["erased-1"])
        }
    }

    @Test("an erased user is nowhere, not among what was given on trust either")
    func erased() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            _ = try await lab.place(posted, "t1")
            try await lab.settle(posted, .purchase("t1", Self.given))
            try await lab.settle(posted, .purchase("t1"))
            _ = try await lab.ledger.run(
                Statements.eraseClearUser, .init(appID: "game", user: "u1", tombstone: "erased-1", actor: "test"))
            #expect(try await lab.texts("select user_id from provisional_grants") == ["erased-1"])
            #expect(try await lab.texts("select distinct user_id from events") == ["erased-1"])
        }
    }
}

extension LedgerLab {
    /// Takes places for purchases of this receipt. Returns the ids of the purchases that have one.
    fileprivate func place(
        _ posted: Posted, _ ids: String..., limits: AppPolicy.Provisional = .init(perUserPerDay: 100, perAppPerDay: 100)
    ) async throws -> [String] {
        try await ledger.run(
            Statements.takePlaces,
            .init(
                receiptID: posted.id, appID: posted.appID,
                transactions: ids.map { Verdict.Entry.purchase($0).transaction }, limits: limits))
    }

    fileprivate func history(_ userID: String, purchasesMax: Int = 9) async throws -> UserHistory {
        try #require(
            try await ledger.run(
                Statements.userHistory, .init(appID: "game", userID: userID, purchasesMax: purchasesMax)
            ).first)
    }

    /// `type provisional` of each event, in order.
    fileprivate var told: [String] {
        get async throws {
            try await texts("select type || ' ' || coalesce(body ->> 'provisional', '-') from events order by id")
        }
    }
}
