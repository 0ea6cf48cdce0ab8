import Foundation
import Testing

@testable import Purchases

/// Goal: what a settle transaction makes of each purchase, over all combinations of what was asked, what stands in the
/// database and what comes of claims. Method: properties that hold for every combination, and the lines of a table for
/// the gates.
@Suite struct PurchaseOutcomeTests {
    private static let receipt = UUID()
    private static let other = UUID()
    private static let now = Date(timeIntervalSince1970: 1_800_100_000)
    private static let goods = [AppPolicy.Goods(item: "coin", amount: 60)]

    private static let asked: [Decision] = [
        .grant(goods: goods, source: .poster), .grant(goods: goods, source: .orderToken),
        .grant(goods: goods, source: .record), .provisional(goods: goods, source: .poster), .rejected(.refunded),
        .rejected(.historical), .held(.review), .held(.productUnknown), .held(.tokenDisputed), .open(.historyPending),
    ]

    private static func row(
        _ decision: Decision, poster: String?, owner: String?, possession: Bool, consumable: Bool = false,
        isPosted: Bool = true
    ) -> VerdictRow {
        let transaction = Transaction(
            id: "t1", originalID: "t1", productID: "coins", kind: consumable ? .consumable : .nonConsumable,
            environment: Transaction.production, purchasedAt: Date(timeIntervalSince1970: 1_800_000_000.25))
        let source = decision.source ?? .poster
        let verdict = Verdict(
            receiptID: receipt, attempt: 0, appID: "game",
            claim: Claim(userID: poster, hasPossession: possession, receivedAt: now, isPosted: isPosted),
            decisions: .transactions([
                Verdict.Entry(
                    transaction: transaction, decision: decision,
                    match: owner.map { Match(userID: $0, source: source, reasons: [.orderOpen]) },
                    heldBy: .init(.poster, owner: owner), rival: "u3")
            ]), dueIn: .seconds(60))
        return VerdictRow.rows(of: [verdict])[0]
    }

    private static func standing(
        receipt: UUID?, transaction: String = "t1", user: String, app: String = "game",
        source: BindingSource? = .poster,
        _ change: (inout Standing) -> Void = { _ in }
    ) -> Standing {
        var standing = Standing()
        standing.holding = Standing.Holding(
            receiptID: receipt, transactionID: transaction, userID: user, appID: app,
            environment: Transaction.production, source: source,
            purchasedAt: Date(timeIntervalSince1970: 1_800_000_060))
        change(&standing)
        return standing
    }

    private static let standings: [Standing] =
        [Standing()]
        + [BindingSource.poster, .orderToken, .record, .shared].flatMap { source in
            ["u1", "u2"].flatMap { user in
                [
                    standing(receipt: receipt, user: user, source: source),
                    standing(receipt: other, user: user, source: source),
                    standing(receipt: other, transaction: "t9", user: user, source: source),
                    standing(receipt: other, user: user, app: "another", source: source),
                    standing(receipt: other, user: user, source: source) { $0.moved = ("u1", .transfer) },
                    standing(receipt: receipt, user: user, source: source) { $0.isOnTrust = true },
                    standing(receipt: other, user: user, source: source) { $0.isOutdated = true },
                ]
            }
        } + ["u1", "u2"].map { standing(receipt: nil, user: $0, source: nil) }

    private struct Case {
        let row: VerdictRow
        let decision: Decision
        let standing: Standing
        let transfer: TransferOutcome?
        let outcome: PurchaseOutcome
    }

    /// Every combination in which the grant was not inserted by this transaction.
    private static func cases() -> [Case] {
        var all: [Case] = []
        for decision in asked {
            for poster in ["u1", nil] {
                for owner in ["u1", "u2", nil] {
                    for possession in [true, false] {
                        for consumable in [true, false] {
                            let row = row(
                                decision, poster: poster, owner: owner, possession: possession, consumable: consumable)
                            for standing in standings {
                                for transfer in [nil, TransferOutcome.moves, .losesToAnother, .held, .limited] {
                                    all.append(
                                        Case(
                                            row: row, decision: decision, standing: standing, transfer: transfer,
                                            outcome: row.outcome(
                                                decision, behind: Gate(), isWon: false, standing: standing,
                                                transfer: transfer,
                                                now: now, disputedFor: 86_400)))
                                }
                            }
                        }
                    }
                }
            }
        }
        return all
    }

    @Test("B8: the owner is told of a hold for the reasons of the table alone, and nobody where no owner is known")
    func heldOwners() {
        var told: Set<String> = []
        for entry in Self.cases() {
            let reason = entry.outcome.reason ?? ""
            let isTold = entry.outcome.state == .held && Reason.toldToOwner.map(\.rawValue).contains(reason)
            if entry.outcome.heldOwner != (isTold ? entry.row.match?.userID : nil) {
                Issue.record("told to \(entry.outcome.heldOwner ?? "nobody"): \(entry.outcome)")
            }
            if entry.outcome.heldOwner != nil { told.insert(reason) }
        }
        #expect(told == ["review", "product_unknown"])
        // Beyond a limit the purchase would be given, and is held.
        let row = Self.row(Self.asked[0], poster: "u1", owner: "u2", possession: true)
        for (limit, reason) in [(LimitPlace.Limit.makeUpUser, "review"), (.sandboxApp, "sandbox")] {
            var gate = Gate()
            gate.lacking = [limit]
            let outcome = row.outcome(
                row.decision(behind: gate), behind: gate, isWon: false, standing: Standing(), transfer: nil,
                now: Self.now, disputedFor: 86_400)
            #expect(outcome.reason == reason && outcome.heldOwner == "u2")
        }
    }

    @Test("granted is only what this very receipt has a grant of")
    func granted() {
        for entry in Self.cases() where entry.outcome.state == .granted {
            let holding = entry.standing.holding
            #expect(holding?.receiptID == Self.receipt && holding?.transactionID == "t1" && holding?.appID == "game")
        }
    }

    @Test("note 5: without possession nobody hears of a grant that is not the poster's")
    func noHint() {
        for entry in Self.cases() where !entry.row.hasPossession {
            let holder = entry.standing.moved?.userID ?? entry.standing.holding?.userID
            let isOwnGrant = entry.standing.holding?.receiptID == Self.receipt
            guard let holder, holder != entry.row.poster, !isOwnGrant, entry.transfer == nil else { continue }
            #expect(entry.outcome.state != .alreadyGranted && entry.outcome.state != .granted)
            #expect(entry.outcome.reason != "owned_by_another_user" && entry.outcome.reason != "id_collision")
        }
    }

    @Test("a copy is kept only by a poster who showed the purchase, where another user has it by less than proof")
    func copies() {
        for entry in Self.cases() where entry.outcome.keepsCopyUntil != nil {
            #expect(entry.row.hasPossession && entry.row.poster != nil && entry.transfer != .moves)
            #expect(entry.outcome.state == .granted || entry.outcome.state == .alreadyGranted)
            let holder = entry.standing.moved?.userID ?? entry.standing.holding?.userID ?? entry.row.owner
            #expect(holder != entry.row.poster)
        }
    }

    @Test("P11: what nobody posted ends at once where somebody has it, and says nothing of anybody")
    func unposted() {
        var ended = 0
        for decision in Self.asked + [.open(.unclaimedYet), .held(.unclaimed)] {
            for owner in ["u1", nil] {
                for consumable in [true, false] {
                    for standing in Self.standings where !standing.isOutdated {
                        let row = Self.row(
                            decision, poster: nil, owner: owner, possession: true, consumable: consumable,
                            isPosted: false)
                        func outcome(isWon: Bool) -> PurchaseOutcome {
                            row.outcome(
                                decision, behind: Gate(), isWon: isWon, standing: standing, transfer: nil,
                                now: Self.now,
                                disputedFor: 86_400)
                        }
                        let found = outcome(isWon: false)
                        #expect(found.keepsCopyUntil == nil)
                        #expect(found.reason != "owned_by_another_user" && found.reason != "transferred")
                        #expect(found.rival == nil || decision == .held(.tokenDisputed))
                        if decision.gives {
                            let won = outcome(isWon: true)
                            #expect(
                                won.state == .granted && won.reason == (decision.isProvisional ? "unconfirmed" : nil))
                        }
                        guard let holding = standing.holding, holding.receiptID != Self.receipt,
                            holding.appID == "game", !(consumable && holding.transactionID != "t1")
                        else { continue }
                        ended += 1
                        #expect(found.state == .alreadyGranted && found.rival == nil)
                        #expect(found.reason == (holding.receiptID == nil ? "imported" : nil))
                    }
                }
            }
        }
        #expect(ended > 0)
    }

    @Test("nothing is decided of a purchase whose users changed meanwhile, nor given without a grant")
    func again() {
        for entry in Self.cases() {
            if case .open = entry.decision { continue }
            if entry.standing.isOutdated { #expect(entry.outcome.state == .again) }
            if entry.standing.holding == nil, entry.decision.gives { #expect(entry.outcome.state == .again) }
            if entry.outcome.state == .again {
                #expect(
                    entry.standing.isOutdated || entry.standing.holding == nil || entry.transfer == .losesToAnother)
            }
        }
    }

    @Test("the same verdict once more, after its commit was lost, comes to the same outcome")
    func idempotent() {
        for decision in Self.asked where decision.gives {
            for (poster, owner) in [("u1", "u1"), ("u1", "u2"), (nil, "u2")] as [(String?, String?)] {
                for possession in [true, false] {
                    let row = Self.row(decision, poster: poster, owner: owner, possession: possession)
                    let first = row.outcome(
                        decision, behind: Gate(), isWon: true, standing: Standing(), transfer: nil, now: Self.now,
                        disputedFor: 86_400)
                    #expect(first.state == .granted)
                    let standing = Self.standing(
                        receipt: Self.receipt, user: row.owner ?? "", source: decision.source
                    ) {
                        $0.isOnTrust = decision.isProvisional
                        $0.granteeReceiptPoster = poster
                    }
                    var second = row.outcome(
                        decision, behind: Gate(), isWon: false, standing: standing, transfer: nil, now: Self.now,
                        disputedFor: 86_400)
                    // What was given on trust is given once.
                    if first.mark == .given, second.mark == nil { second.mark = .given }
                    #expect(second == first)
                }
            }
        }
    }

    @Test("what is rejected for its end is judged anew if newer facts say that it stands, and is given then")
    func standsAgain() {
        for asked in Self.asked {
            let isForEnd = [.rejected(.refunded), .rejected(.withdrawn)].contains(asked)
            #expect(asked.isForEnd == isForEnd)
            #expect(
                Self.row(asked, poster: "u1", owner: nil, possession: true).hasGate == (asked.gives || isForEnd))
        }
        let row = Self.row(.rejected(.refunded), poster: "u1", owner: nil, possession: true)
        var gate = Gate()
        for (standsAgain, expected) in [(false, PurchaseOutcome.State.rejected), (true, .again)] {
            gate.standsAgain = standsAgain
            let outcome = row.outcome(
                row.decision(behind: gate), behind: gate, isWon: false, standing: Standing(), transfer: nil,
                now: Self.now,
                disputedFor: 86_400)
            #expect(outcome.state == expected)
        }
        for ownership in ["PURCHASED", "FAMILY_SHARED"] {
            var ended = DecisionTests.transaction()
            (ended.revokedAt, ended.ownership) = (ended.purchasedAt, ownership)
            ended.revocation = Revocation(reason: 0, type: Revocation.full)
            var evidence = Evidence()
            let policy = DecisionTests.policy { $0.shared = .goods }
            let judge = { policy.judge(ended, claim: DecisionTests.claim, evidence: evidence) }
            #expect(judge().decision.isForEnd)
            evidence.standsAgain = true
            #expect(judge().decision.gives && judge().transaction.ending == nil, "\(ownership)")
        }
    }

    @Test("the gate: Apple's facts first, then the former system, then limits; what asks for nothing passes")
    func gates() {
        let (grant, trust) = (Self.asked[0], Self.asked[3])
        func gate(_ change: (inout Gate) -> Void) -> Gate {
            var gate = Gate()
            change(&gate)
            return gate
        }
        let imported = Self.standing(receipt: nil, user: "u2").holding
        let table: [(Decision, Gate, Decision)] = [
            (grant, Gate(), grant),
            (trust, Gate(), .open(.appleUnavailable)),
            (trust, gate { $0.hasTrustPlace = true }, trust),
            (grant, gate { $0.takenBack = .refunded }, .rejected(.refunded)),
            (trust, gate { $0.takenBack = .withdrawn }, .rejected(.withdrawn)),
            (grant, gate { $0.takenBack = .review }, .held(.review)),
            (
                .grant(goods: Self.goods, source: .support), gate { $0.takenBack = .review },
                .grant(goods: Self.goods, source: .support)
            ),
            (.grant(goods: Self.goods, source: .support), gate { $0.takenBack = .refunded }, .rejected(.refunded)),
            (grant, gate { $0.imported = imported }, .held(.possessionMissing)),
            (grant, gate { ($0.imported, $0.takenBack) = (imported, .refunded) }, .rejected(.refunded)),
            (grant, gate { $0.lacking = [.sandboxApp] }, .held(.sandbox)),
            (grant, gate { $0.lacking = [.makeUpCustomer, .makeUpUser] }, .held(.review)),
            (grant, gate { $0.lacking = [.itemDay, .itemEver] }, grant),
            (trust, gate { ($0.hasTrustPlace, $0.lacking) = (true, [.sandboxUser]) }, .open(.appleUnavailable)),
            (trust, gate { ($0.hasTrustPlace, $0.lacking) = (true, [.itemDay]) }, trust),
        ]
        for (asked, gate, expected) in table {
            #expect(Self.row(asked, poster: "u1", owner: nil, possession: true).decision(behind: gate) == expected)
        }
        for asked in Self.asked where !asked.gives {
            let all = gate { ($0.takenBack, $0.imported, $0.lacking) = (.refunded, imported, [.sandboxUser]) }
            #expect(Self.row(asked, poster: "u1", owner: nil, possession: true).decision(behind: all) == asked)
        }
    }

    @Test("a receipt is what the most pressing of its purchases is, in whatever order they stand")
    func summaries() {
        let all = Self.cases().filter { $0.row.poster == "u1" && $0.row.owner == "u1" && $0.transfer == nil }
        var generator = SystemRandomNumberGenerator()
        for _ in 0..<2_000 {
            let chosen = (0..<Int.random(in: 1...4)).map { _ in all.randomElement(using: &generator)! }
            let outcomes = chosen.map { (row: $0.row, decision: $0.decision, outcome: $0.outcome) }
            func summary(_ outcomes: [(row: VerdictRow, decision: Decision, outcome: PurchaseOutcome)])
                -> ReceiptSummary
            {
                ReceiptSummary(outcomes, record: .init(), age: .seconds(1), parking: Parking())
            }
            let summary = summary(outcomes)
            #expect(
                ReceiptSummary(outcomes.shuffled(), record: .init(), age: .seconds(1), parking: Parking()) == summary)
            let states = Set(chosen.map(\.outcome.state))
            if states.contains(.again) { #expect(summary.state == nil) }
            if summary.state == .granted { #expect(states.contains(.granted)) }
            if summary.state == .rejected { #expect(states == [.rejected]) }
            if summary.state == .received { #expect(summary.dueIn != nil) }
        }
    }

    @Test("a receipt is parked after eight tries and a day, not before nor by wakes, and judged again ever more rarely")
    func parking() {
        let parking = Parking()
        for (attempt, wakes, age, isParked) in [
            (7, 0, 86_401.0, true), (6, 0, 86_401, false), (7, 0, 86_400, false), (20, 0, 90_000, true),
            (8, 8, 90_000, false), (14, 8, 90_000, false), (15, 8, 90_000, true),
        ] {
            let verdict = Verdict(
                receiptID: Self.receipt, attempt: attempt, appID: "game",
                claim: Claim(userID: "u1", hasPossession: true, receivedAt: Self.now),
                decisions: .receipt(.open(.appleUnavailable)), dueIn: .seconds(60))
            let row = VerdictRow.rows(of: [verdict])[0]
            let outcome = row.outcome(
                row.asked, behind: Gate(), isWon: false, standing: Standing(), transfer: nil, now: Self.now,
                disputedFor: 86_400)
            var record = ReceiptSummary.Record()
            record.wakes = wakes
            let summary = ReceiptSummary(
                [(row: row, decision: row.asked, outcome: outcome)], record: record, age: .seconds(age),
                parking: parking)
            #expect(summary.isTry && summary.state == (isParked ? .parked : .received))
            #expect(summary.dueIn == (isParked ? max(.seconds(age) - parking.after, parking.againMin) : .seconds(60)))
        }
    }

    @Test("a failed proof takes back nothing that its receipt gave, and ends what was open")
    func failedProof() {
        let verdict = Verdict(
            receiptID: Self.receipt, attempt: 0, appID: "game",
            claim: Claim(userID: "u1", hasPossession: true, receivedAt: Self.now),
            decisions: .receipt(.rejected(.notAuthenticated)), dueIn: .seconds(60))
        let row = VerdictRow.rows(of: [verdict])[0]
        let outcome = row.outcome(
            row.asked, behind: Gate(), isWon: false, standing: Standing(), transfer: nil, now: Self.now,
            disputedFor: 86_400
        )
        let outcomes = [(row: row, decision: row.asked, outcome: outcome)]
        func summary(_ change: (inout ReceiptSummary.Record) -> Void) -> ReceiptSummary {
            var record = ReceiptSummary.Record()
            change(&record)
            return ReceiptSummary(outcomes, record: record, age: .seconds(1), parking: Parking())
        }
        let none = summary { _ in }
        #expect(none.state == .rejected && none.closingReason == "not_authenticated")
        let given = summary { $0.given = [(.alreadyGranted, "transferred"), (.granted, nil)] }
        #expect(given.state == .granted && given.reason == nil && given.closingReason == "not_authenticated")
        let trusted = summary { $0.onTrust = ["t1"] }
        #expect(trusted.state == .held && trusted.reason == "unconfirmed" && trusted.closingReason == nil)
    }
}
