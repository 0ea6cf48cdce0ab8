import Foundation
import Purchases
import Testing

/// Goal: another user's mere claim never takes a purchase from an authenticated poster who shows Apple's own data.
/// Method: every way in which a purchase may name its owner, against everything that a thief can do beforehand, first,
/// second or at the same moment. A small model in memory answers as the database would. The oracle is the rule, not the
/// rows.
@Suite struct AdversaryTableTests {
    private static let bought = MatcherTableTests.bought
    private static let (victim, thief) = ("victim", "thief")

    /// The evidence for the victim.
    enum Means: CaseIterable {
        case nothing, openOrder, namedOrder, orderToken, registeredToken, unregisteredToken, knownUnregisteredToken
        case renewal, restore, resubscribed
        /// A support decision; or one that made a chain the victim's, whose renewals carry the thief's registered
        /// token.
        case decision, movedChain
        /// The victim ordered it on a device whose other user posts it (row 6).
        case orderOnDevice
        /// An order that the victim placed for it later (row 9).
        case lateOrder
        /// The victim is known for the Apple customer, and nobody posts it (row 11).
        case customer
        /// Bought before the cut-over: a purchase that lasts, and a renewal (row 0c).
        case beforeCutover, renewalBeforeCutover
        /// Shared by another customer: without other evidence, and in the victim's own chain (row 0d).
        case shared, sharedInChain

        /// Whether Apple's own data, or a person, names the victim, also where others have orders. A purchase bought anew in the
        /// victim's chain is not included: it belongs to a user who shows it and had ordered it (row 7 goes before row
        /// 8), and else to the victim.
        var namesOwner: Bool {
            switch self {
            case .orderToken, .registeredToken, .renewal, .restore, .decision, .movedChain, .renewalBeforeCutover,
                .sharedInChain:
                true
            default: false
            }
        }
        /// A shared purchase is nobody's own: another user's claim to it is told to both.
        var isProof: Bool { namesOwner && self != .sharedInChain }
        var isShared: Bool { self == .shared || self == .sharedInChain }
        var isBeforeCutover: Bool { self == .beforeCutover || self == .renewalBeforeCutover }
    }

    /// The thief's action. The thief has Apple's own data only with a captured proof.
    enum Attack: CaseIterable {
        case orderBefore, orderJustAfter, orderOnSameText, orderOnOwnInstallation
        case tokenFirstInSandbox, tokenFirstRefunded, tokenFirstStanding
        case bareID, bareIDWithOrder, bareIDNamingVictimsOrder
        case capturedProof, capturedProofWithOrderBefore, capturedProofWithOrderAfter, capturedProofNamingVictimsOrder
        case capturedProofAsRecordOfVictim, capturedProofAfterTokenFirst, capturedProofWithLateOrder
        /// The thief is known for the victim's Apple customer, by an earlier captured purchase.
        case knownForCustomer

        var isPost: Bool { isQuestion || hasProof }
        var isQuestion: Bool { [.bareID, .bareIDWithOrder, .bareIDNamingVictimsOrder].contains(self) }
        var hasProof: Bool { "\(self)".hasPrefix("capturedProof") }
        /// The minutes before the purchase at which the thief placed an own order.
        var orderBefore: Double? {
            switch self {
            case .orderBefore, .orderOnSameText, .orderOnOwnInstallation, .bareIDWithOrder,
                .capturedProofWithOrderBefore:
                1
            case .orderJustAfter, .capturedProofWithOrderAfter: -1
            case .capturedProofWithLateOrder: -10
            default: nil
            }
        }
        var usesTokenFirst: Bool {
            [.tokenFirstInSandbox, .tokenFirstRefunded, .tokenFirstStanding, .capturedProofAfterTokenFirst].contains(
                self)
        }
        var namesVictimsOrder: Bool { self == .bareIDNamingVictimsOrder || self == .capturedProofNamingVictimsOrder }
    }

    enum Time: CaseIterable { case thiefFirst, thiefSecond, atOnceThiefWins, atOnceVictimWins }

    private struct Trial {
        let means: Means
        let attack: Attack
        var transaction: Transaction
        var orders: [PlacedOrder] = []
        var owner: (user: String, source: BindingSource)?
        private let victimsOrder: PlacedOrder
        private let token = UUID()

        init(_ means: Means, _ attack: Attack, _ kind: MatcherTableTests.Kind) {
            self.means = means
            self.attack = attack
            transaction = MatcherTableTests.transaction(kind)
            if means.isShared { transaction.ownership = "FAMILY_SHARED" }
            victimsOrder = MatcherTableTests.order(victim, means == .lateOrder ? -10 : 2)
            if [.openOrder, .namedOrder, .orderToken, .orderOnDevice, .lateOrder].contains(means)
                || attack.namesVictimsOrder
            {
                orders.append(victimsOrder)
            }
            if means == .orderToken { transaction.appAccountToken = victimsOrder.id }
            if [.registeredToken, .unregisteredToken, .knownUnregisteredToken, .movedChain].contains(means) {
                transaction.appAccountToken = token
            }
            if let minutes = attack.orderBefore { orders.append(MatcherTableTests.order(thief, minutes)) }
        }

        /// The evidence that the database would return: orders that the token or the submission names, orders of
        /// everybody who may be the owner, and orders of the poster's installation, on which the thief's order never
        /// was placed.
        private func evidence(_ poster: String?, named: UUID?, record: String?) -> Evidence {
            var evidence = Evidence()
            evidence.namedOrderID = named
            evidence.recordUserID = record
            if means == .registeredToken { evidence.registeredUserID = victim }
            if means == .movedChain { evidence.registeredUserID = thief }
            if means == .decision { evidence.supportDecision = .init(userID: victim) }
            if means == .customer, poster == nil {
                evidence.customerUserIDs = [victim] + (attack == .knownForCustomer ? [thief] : [])
            }
            if transaction.appAccountToken == token, evidence.registeredUserID == nil {
                // Only purchases that stand, and in Production.
                let ofThief = [.tokenFirstStanding, .capturedProofAfterTokenFirst].contains(attack)
                evidence.rememberedUserIDs =
                    (means == .knownUnregisteredToken ? [victim] : []) + (ofThief ? [thief] : [])
            }
            if [.renewal, .restore, .resubscribed, .movedChain, .renewalBeforeCutover, .sharedInChain].contains(means) {
                evidence.chain = .init(userID: victim, isMoved: means == .movedChain)
            }
            let isOnDevice = means == .orderOnDevice && poster != thief
            let known: [String?] = [
                poster, record, evidence.registeredUserID, evidence.chain?.userID, evidence.rememberedUserIDs.first,
                evidence.customerUserIDs.first, isOnDevice ? victim : nil,
            ]
            evidence.orders = orders.filter {
                $0.id == named || $0.id == transaction.appAccountToken || known.contains($0.userID)
            }
            if isOnDevice {
                for index in evidence.orders.indices where evidence.orders[index].id == victimsOrder.id {
                    evidence.orders[index].isOnProvenInstallation = true
                }
            }
            return evidence
        }

        /// The judgement of the victim's purchase: posted by the victim, by the device's other user, or by nobody.
        func judgedForVictim(aDayLater: Bool = false) -> Matcher.Answer {
            let poster: String? =
                switch means {
                case .customer: nil
                case .orderOnDevice: "housemate"
                default: victim
                }
            return judged(poster, aDayLater: aDayLater)
        }

        /// The judgement of a post; nil: nobody posted it.
        func judged(_ poster: String?, aDayLater: Bool = false) -> Matcher.Answer {
            let isThiefs = poster == thief
            let named: UUID? =
                if isThiefs {
                    attack.namesVictimsOrder ? victimsOrder.id : orders.first { $0.userID == thief }?.id
                } else {
                    means == .namedOrder || means == .lateOrder ? victimsOrder.id : nil
                }
            let received = DecisionTests.received
            let claim = Claim(
                userID: poster, hasPossession: poster != nil && !(isThiefs && attack.isQuestion), receivedAt: received,
                judgedAt: received.addingTimeInterval(aDayLater ? 86_400 : 0), isPosted: poster != nil)
            let record = isThiefs && attack == .capturedProofAsRecordOfVictim ? victim : nil
            let matcher = Matcher(
                transaction, kind: nil, claim: claim, evidence: evidence(poster, named: named, record: record))
            return means.isShared
                ? matcher.answerOfShared : means.isBeforeCutover ? matcher.answerBeforeCutover : matcher.answer
        }

        /// Row 1: the first owner stays the owner.
        mutating func settle(_ answer: Matcher.Answer) {
            guard owner == nil, case .owner(let match) = answer else { return }
            owner = (match.userID, match.source)
        }
    }

    private static func kinds(_ means: Means) -> [MatcherTableTests.Kind] {
        switch means {
        case .renewal, .movedChain, .renewalBeforeCutover, .sharedInChain: [.renewal]
        case .decision: [.consumable, .firstPeriod, .renewal]
        // Of purchases from before the cut-over, only those that last have an owner.
        case .beforeCutover: [.firstPeriod, .restore]
        case .restore: [.restore]
        // A purchase that a legacy receipt does not call a renewal goes to the user who had ordered it.
        case .resubscribed: [.resubscribed, .legacyPeriod]
        default: [.consumable, .firstPeriod]
        }
    }

    @Test(
        "S1, S2, S4, S14: whatever a thief does, before, first, second or at once, a claim takes nothing",
        arguments: Means.allCases)
    func thieves(means: Means) {
        var cases = 0
        for attack in Attack.allCases {
            for time in Time.allCases where attack.isPost || time == .thiefFirst {
                for kind in Self.kinds(means) {
                    cases += 1
                    play(Trial(means, attack, kind), time, "\(means) \(attack) \(time) \(kind)")
                }
            }
        }
        #expect(cases >= 43)
    }

    private func play(_ start: Trial, _ time: Time, _ about: Comment) {
        var trial = start
        let (means, attack) = (start.means, start.attack)
        switch time {
        case .thiefFirst:
            if attack.isPost { trial.settle(trial.judged(Self.thief)) }
            trial.settle(trial.judgedForVictim())
        case .thiefSecond:
            trial.settle(trial.judgedForVictim())
            trial.settle(trial.judged(Self.thief))
        case .atOnceThiefWins, .atOnceVictimWins:
            let (byThief, byVictim) = (trial.judged(Self.thief), trial.judgedForVictim())
            trial.settle(time == .atOnceThiefWins ? byThief : byVictim)
            trial.settle(time == .atOnceThiefWins ? byVictim : byThief)
        }
        // A day later no purchase waits any more that only a claim held back.
        let isHeldBack = trial.owner == nil
        if isHeldBack { trial.settle(trial.judgedForVictim(aDayLater: true)) }
        if means == .customer, attack == .knownForCustomer {
            // If two users are known for the customer, neither is the owner until one of them shows the purchase.
            #expect(trial.owner == nil, about)
            trial.settle(trial.judged(Self.victim))
        }

        guard let owner = trial.owner else {
            Issue.record("\(about): nobody has it")
            return
        }
        #expect([Self.victim, Self.thief].contains(owner.user), about)
        // A purchase that nobody posted waits for a post in any case.
        if isHeldBack, means != .customer {
            // The victim waits only if the thief really paid with the victim's token, and only if no other evidence
            // speaks.
            #expect(attack == .tokenFirstStanding || attack == .capturedProofAfterTokenFirst, about)
            #expect(means == .unregisteredToken || means == .knownUnregisteredToken, about)
        }
        // Without Apple's data a thief gets nothing, whatever the thief claimed before; nor where Apple's data names
        // the victim.
        if !attack.hasProof || means.namesOwner { #expect(owner.user == Self.victim, about) }
        // A thief who came first has the purchase by less than proof: so the victim is told to keep the copy, and both
        // are told.
        if owner.user == Self.thief { #expect(!owner.source.isProof, about) }
        // Where Apple's data names the victim, the thief may finish, and nobody is told anything.
        if means.isProof { #expect(owner.source.isProof, about) }
        // A thief does not get a purchase by naming it as another user's. For shared purchases orders and records do
        // not count.
        let namesAnother = [.capturedProofNamingVictimsOrder, .capturedProofAsRecordOfVictim].contains(attack)
        if namesAnother, !means.isShared { #expect(owner.user == Self.victim, about) }
        // A thief who takes a purchase was first, with a proof that does not name its owner. This is the whole list.
        let isFirst = time == .thiefFirst || time == .atOnceThiefWins
        let isTaken =
            switch (means, attack) {
            case (_, _) where !attack.hasProof || means.namesOwner: false
            case (_, _) where namesAnother && !means.isShared: false
            // Nobody else shows the purchase.
            case (.customer, _): true
            // The thief really paid with the victim's token before, and nobody registered it: the victim's purchase
            // waits, and the thief's does not.
            case (.unregisteredToken, .capturedProofAfterTokenFirst): true
            case (.knownUnregisteredToken, .capturedProofAfterTokenFirst): isFirst
            case (.knownUnregisteredToken, _), (.resubscribed, _): isFirst && attack == .capturedProofWithOrderBefore
            default: isFirst
            }
        #expect((owner.user == Self.thief) == isTaken, "\(about): \(owner)")
    }
}
