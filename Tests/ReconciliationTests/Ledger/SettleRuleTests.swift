import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: a verdict has the right effect on its receipt, its transactions and earlier grants (RetriesAndRescue;
/// Ownership, rows 1 and 0b). Method: small histories of verdicts, each ending with every invariant checked.
@Suite(.timeLimit(.minutes(8))) struct SettleRuleTests {
    @Test("S1-31: what can be granted is granted at once; the rest once its product is configured")
    func grantedAndHeld() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            #expect(try await lab.settle(posted, .purchase("t1"), .purchase("t2", .held(.productUnknown))) == .held)
            #expect(try await lab.state(posted) == "held product_unknown")
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "held product_unknown"])
            #expect(try await lab.settle(posted, .purchase("t1"), .purchase("t2")) == .granted)
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "granted"])
            #expect(try await lab.number("select count(*) from events") == 2)
        }
    }

    @Test("granted beside open is received; the open one later rejected leaves it granted")
    func grantedAndOpen() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            let open = Verdict.Entry.purchase("t2", .open(.appleAnswer))
            #expect(try await lab.settle(posted, .purchase("t1"), open) == .received)
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "open apple_answer"])
            #expect(try await lab.number("select attempt from receipts") == 1)
            #expect(
                try await lab.settle(posted, attempt: 1, .purchase("t1"), .purchase("t2", .rejected(.refunded)))
                    == .granted)
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "rejected refunded"])
        }
    }

    @Test("a proof that fails as a whole takes back nothing that it has granted")
    func grantedThenRejectedWhole() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            try await lab.settle(posted, .purchase("t1"), .purchase("t2", .held(.productUnknown)))
            // Ten minutes later, Apple answers about the same receipt that its account is gone (21010).
            let settled = try await lab.settle(lab.verdict(posted, .receipt(.rejected(.accountNotFound))))
            #expect(settled == [posted.id: .granted])
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "rejected account_not_found"])

            let other = try await lab.post()
            try await lab.settle(other, .purchase("t1"), .purchase("t3", .held(.productUnknown)))
            let again = try await lab.settle(lab.verdict(other, .receipt(.rejected(.accountNotFound))))
            #expect(again == [other.id: .alreadyGranted])
        }
    }

    @Test("a held receipt that fails as a whole is rejected with its transactions")
    func heldThenRejectedWhole() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            try await lab.settle(posted, .purchase("t1", .held(.review)), .purchase("t2", .rejected(.refunded)))
            let settled = try await lab.settle(lab.verdict(posted, .receipt(.rejected(.accountNotFound))))
            #expect(settled == [posted.id: .rejected])
            #expect(
                try await lab.outcomes(posted) == ["t1": "rejected account_not_found", "t2": "rejected refunded"])
        }
    }

    @Test("P32: a refund that is reversed while another purchase of the receipt waits is granted and told")
    func rejectedThenGranted() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            let held = Verdict.Entry.purchase("t2", .held(.productUnknown))
            try await lab.settle(posted, .purchase("t1", .rejected(.refunded)), held)
            #expect(try await lab.settle(posted, .purchase("t1"), held) == .held)
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "held product_unknown"])
            #expect(try await lab.settle(posted, .purchase("t1"), .purchase("t2")) == .granted)
        }
    }

    @Test(
        "the same number in another app or environment is a collision, not a grant",
        arguments: [("other", Transaction.production), ("game", Transaction.sandbox)])
    func collision(app: String, environment: String) async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            let other = try await lab.post("u1", app: app)
            #expect(try await lab.settle(other, .purchase("t1", in: environment)) == .held)
            #expect(try await lab.outcomes(other) == ["t1": "held id_collision"])
            // The id under which a person may give it.
            #expect(
                try await lab.texts("select coalesce(granted_as, '-') from outcomes where receipt_id = '\(other.id)'")
                    == [environment == Transaction.production ? "-" : "Sandbox/t1"])
            #expect(try await lab.texts("select app_id || ' ' || environment from transactions") == ["game Production"])
            #expect(try await lab.grants == ["t1 u1"])
        }
    }

    @Test("P35, row 0b: the same purchase under another id is granted once: same receipt, other receipt, other user")
    func purchaseKey() async throws {
        try await LedgerLab.with { lab in
            let sword = { (id: String) in Verdict.Entry.purchase(id, of: "o", kind: .nonConsumable) }
            let posted = try await lab.post("u1")
            #expect(try await lab.settle(posted, sword("t1"), sword("t2")) == .granted)
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "already_granted"])
            let again = try await lab.post("u1")
            #expect(try await lab.settle(again, sword("t3")) == .alreadyGranted)
            #expect(try await lab.outcomes(again) == ["t3": "already_granted"])
            let stranger = try await lab.post("u2")
            #expect(try await lab.settle(stranger, sword("t4"), sword("t1")) == .alreadyGranted)
            #expect(
                try await lab.outcomes(stranger) == [
                    "t1": "already_granted owned_by_another_user", "t4": "already_granted owned_by_another_user",
                ])
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.number("select count(*) from events where type = 'purchase.granted'") == 1)
        }
    }

    @Test("F12: a period under two ids, of which only one names its billing event, is granted once, in whatever order")
    func periodKey() async throws {
        try await LedgerLab.with { lab in
            let shown: [(String?, String?)] = [("1", nil), (nil, "2"), ("3", "4")]
            for (month, lineItems) in shown.enumerated() {
                let entry = { (id: String, lineItem: String?) in
                    Verdict.Entry.period("\(id)\(month)", month: month + 1, lineItem: lineItem)
                }
                #expect(try await lab.settle(try await lab.post("u1"), entry("a", lineItems.0)) == .granted)
                let again = try await lab.post("u1")
                #expect(try await lab.settle(again, entry("b", lineItems.1)) == .alreadyGranted)
                #expect(try await lab.outcomes(again) == ["b\(month)": "already_granted"])
                let stranger = try await lab.post("u2")
                #expect(try await lab.settle(stranger, entry("c", nil)) == .alreadyGranted)
                #expect(try await lab.outcomes(stranger) == ["c\(month)": "already_granted owned_by_another_user"])
            }
            #expect(try await lab.grants == ["a0 u1", "a1 u1", "a2 u1"])
            #expect(
                try await lab.texts("select distinct granted_as from outcomes where granted_as is not null order by 1")
                    == ["a0", "a1", "a2"])
            // Both purchases are in one receipt, and in one batch.
            let posted = try await lab.post("u1")
            let (named, bare) = (
                Verdict.Entry.period("x", month: 9, lineItem: "9"), Verdict.Entry.period("y", month: 9)
            )
            #expect(try await lab.settle(posted, named, bare) == .granted)
            #expect(try await lab.outcomes(posted) == ["x": "granted", "y": "already_granted"])
            #expect(try await lab.number("select count(*) from events where type = 'purchase.granted'") == 4)
        }
    }

    @Test("F13: where neither Apple nor the catalogue says the kind of a purchase, the kind of the granted one counts")
    func keyInUseByUnknownKind() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            try await lab.settle(try await lab.post("u1"), .purchase("s1", kind: .nonConsumable))
            for (id, original, seconds, expected) in [
                ("t2", "t1", 60.0, "held product_unknown"), ("t3", "t1", 0.5, "already_granted"),
                ("s2", "s1", 60, "already_granted"),
            ] {
                let untold = try await lab.post("u1")
                try await lab.settle(
                    untold,
                    .purchase(id, of: original, .held(.productUnknown)) {
                        $0.purchasedAt += seconds
                        $0.kind = nil
                    })
                #expect(try await lab.outcomes(untold) == [id: expected])
            }
            #expect(try await lab.grants == ["s1 u1", "t1 u1"])
        }
    }

    @Test("F13: a consumable that meets another one's key is held for a person; one of the same second is the same one")
    func keyInUse() async throws {
        try await LedgerLab.with { lab in
            let coins = { (id: String, seconds: Double) in
                Verdict.Entry.purchase(id, of: "o") { $0.purchasedAt += seconds }
            }
            try await lab.settle(try await lab.post("u1"), coins("t1", 0))
            for user in ["u1", "u2"] {
                let posted = try await lab.post(user)
                #expect(try await lab.settle(posted, coins("t2", 60)) == .held)
                #expect(try await lab.outcomes(posted) == ["t2": "held review"])
                // A worker that knows of the grant decides so itself; any other reason to hold the purchase stays.
                #expect(try await lab.settle(posted, coins("t2", 60).with(.held(.review))) == .held)
                #expect(try await lab.outcomes(posted) == ["t2": "held review"])
            }
            #expect(
                try await lab.texts("select distinct array_to_string(reasons, ' ') from outcomes where state = 'held'")
                    == ["key_in_use"])
            #expect(try await lab.number("select count(*) from transactions where transaction_id = 't2'") == 1)
            let unsold = try await lab.post("u1")
            #expect(try await lab.settle(unsold, coins("t3", 60).with(.held(.productUnknown))) == .held)
            #expect(try await lab.outcomes(unsold) == ["t3": "held product_unknown"])
            let refunded = try await lab.post("u1")
            #expect(try await lab.settle(refunded, coins("t4", 60).with(.rejected(.refunded))) == .rejected)
            let same = try await lab.post("u1")
            #expect(try await lab.settle(same, coins("t5", 0.5)) == .alreadyGranted)
            // Both in one receipt.
            let both = try await lab.post("u3")
            let first = Verdict.Entry.purchase("a", of: "p")
            let second = Verdict.Entry.purchase("b", of: "p") { $0.purchasedAt += 60 }
            #expect(try await lab.settle(both, first, second) == .held)
            #expect(try await lab.outcomes(both) == ["a": "granted", "b": "held review"])
            #expect(try await lab.grants == ["a u3", "t1 u1"])
        }
    }

    @Test("note 5: a bare id is answered only to the user it was granted to; nobody else gets a hint")
    func bareID() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            let decisions = Verdict.Decisions.identifier("t1", .possessionMissing)
            for (user, app, expected) in [
                ("u1", "game", "already_granted"), ("u2", "game", "held possession_missing"),
                ("u1", "other", "held possession_missing"),
            ] {
                let question = try await lab.post(user, app: app, kind: .identifier, transactionID: "t1")
                try await lab.settle(lab.verdict(question, decisions))
                #expect(try await lab.outcomes(question) == ["t1": expected], "\(user) of \(app)")
                #expect(try await lab.state(question) == expected)
            }
            let unknown = try await lab.post("u1", kind: .identifier, transactionID: "t9")
            try await lab.settle(lab.verdict(unknown, .identifier("t9", .possessionMissing)))
            #expect(try await lab.outcomes(unknown) == ["t9": "held possession_missing"])
            #expect(try await lab.number("select count(*) from transactions where transaction_id = 't9'") == 0)
        }
    }

    @Test("row 1 first: refunded after it was granted is still this user's grant, or another's")
    func refundedAfterGrant() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            let refunded = Verdict.Entry.purchase("t1", .rejected(.refunded)) { $0.revokedAt = .now }
            for (user, expected) in [("u1", "already_granted"), ("u2", "already_granted owned_by_another_user")] {
                let posted = try await lab.post(user)
                #expect(try await lab.settle(posted, refunded) == .alreadyGranted)
                #expect(try await lab.outcomes(posted) == ["t1": expected])
            }
            for decision in [Decision.held(.productUnknown), .held(.review), .rejected(.historical)] {
                let posted = try await lab.post("u1")
                #expect(try await lab.settle(posted, .purchase("t1", decision)) == .alreadyGranted)
            }
        }
    }

    @Test("P22: Apple's newest facts about a transaction count, whatever comes last")
    func facts() async throws {
        try await LedgerLab.with { lab in
            let date = Date(timeIntervalSince1970: 1_800_000_000)
            let word = { (offset: TimeInterval?, revoked: Bool) in
                Verdict.Entry.purchase("t1", signedAt: offset.map { date + $0 }) {
                    $0.revokedAt = revoked ? date : nil
                    $0.facts = #"{"price": \#(Int(offset ?? 0))}"#
                }
            }
            for (offset, revoked, expected) in [
                (10.0 as TimeInterval?, false, "false 10"), (5, true, "false 10"), (nil, true, "false 10"),
                (20, true, "true 20"), (15, false, "true 20"), (30, false, "false 30"),
            ] {
                try await lab.settle(try await lab.post(), word(offset, revoked))
                let stored = try await lab.texts(
                    "select (revoked_at is not null)::text || ' ' || (facts ->> 'price') from transactions")
                #expect(stored == [expected], "after \(String(describing: offset))")
            }
        }
    }

    @Test("a genuine receipt without transactions is held, and any later receipt of its user takes it over (P19)")
    func takenOver() async throws {
        try await LedgerLab.with { lab in
            let empty = try await lab.post("u1")
            let settled = try await lab.settle(lab.verdict(empty, .receipt(.held(.noTransactionYet))))
            #expect(settled == [empty.id: .held])
            #expect(try await lab.ledger.fetch(empty.id)?.isTakenOver == false)
            try await lab.settle(try await lab.post("u2"), .purchase("t1"))
            #expect(try await lab.ledger.fetch(empty.id)?.isTakenOver == false, "another user's")
            try await lab.settle(try await lab.post("u1"), .purchase("t2", .held(.review)))
            #expect(try await lab.ledger.fetch(empty.id)?.isTakenOver == false, "nothing was given yet")
            try await lab.settle(try await lab.post("u1"), .purchase("t3"))
            #expect(try await lab.ledger.fetch(empty.id)?.isTakenOver == true)
        }
    }

    @Test("a receipt's state is the first that applies, over every pair of its transactions")
    func summary() async throws {
        // By rank: open, held, granted, already_granted, rejected.
        let kinds: [(Decision, ReceiptState)] = [
            (.open(.appleAnswer), .received), (.held(.review), .held), (.grant(goods: [], source: .poster), .granted),
            (.grant(goods: [], source: .poster), .alreadyGranted), (.rejected(.refunded), .rejected),
        ]
        try await LedgerLab.with { lab in
            for (first, one) in kinds.enumerated() {
                for (second, other) in kinds.enumerated() {
                    let ids = ["a\(first)\(second)", "b\(first)\(second)"]
                    for (id, kind) in zip(ids, [one, other]) where kind.1 == .alreadyGranted {
                        try await lab.settle(try await lab.post(), .purchase(id))
                    }
                    let posted = try await lab.post()
                    let state = try await lab.settle(posted, .purchase(ids[0], one.0), .purchase(ids[1], other.0))
                    #expect(state == kinds[min(first, second)].1, "\(one.1) beside \(other.1)")
                }
            }
        }
    }

    @Test("I16, row 0a: a refund on record answers an older proof; a newer one says that it was taken back")
    func refundOnRecord() async throws {
        try await LedgerLab.with { lab in
            let refund = Date(timeIntervalSince1970: 1_800_000_100)
            let entry = { (signedSeconds: Double, isRefunded: Bool) in
                Verdict.Entry.purchase(
                    "t1", signedAt: Date(timeIntervalSince1970: 1_800_000_000 + signedSeconds),
                    isRefunded ? .rejected(.refunded) : .grant(goods: Verdict.Entry.coins, source: .poster)
                ) { $0.revokedAt = isRefunded ? refund : nil }
            }
            #expect(try await lab.settle(try await lab.post(), entry(200, true)) == .rejected)
            let old = try await lab.post("u2")
            #expect(try await lab.settle(old, entry(100, false)) == .rejected)
            #expect(try await lab.outcomes(old) == ["t1": "rejected refunded"])
            #expect(try await lab.settle(try await lab.post("u3"), entry(300, false)) == .granted)
            #expect(try await lab.grants == ["t1 u3"])
        }
    }
}
