import Foundation
import Purchases
import Testing

/// Goal: a subscription's state follows from Apple's facts and the clock alone (HearingApple, "The state of a
/// subscription"). Method: every combination of an end, facts about the renewal, a policy and a moment, against an
/// oracle written from the page; then chains of several periods one by one.
@Suite struct SubscriptionRulesTests {
    private enum Next: CaseIterable {
        case unknown, stale, grace, graceIsOver, retry, cancelled, switchedOff
    }

    private static let minute: TimeInterval = 60
    /// Around each edge: the end at 30 days, the grace period's end at 36, and the end of Apple's tries at 90.
    private static let moments: [Date] = [10, 30, 36, 90, 200].flatMap { day in
        [-1, 0, 1, 5 * minute - 1, 5 * minute, 86_400].map { LifeCycle.day(day).addingTimeInterval($0) }
    }

    private static func renewal(_ next: Next) -> Renewal? {
        switch next {
        case .unknown: return nil
        case .stale:
            return LifeCycle.Heard.renewal(-1) {
                ($0.isInBillingRetry, $0.graceUntil, $0.expirationIntent) = (true, LifeCycle.day(36), 1)
            }.renewal
        case .grace:
            return LifeCycle.Heard.renewal(30) { ($0.isInBillingRetry, $0.graceUntil) = (true, LifeCycle.day(36)) }
                .renewal
        case .graceIsOver:
            return LifeCycle.Heard.renewal(36) { ($0.isInBillingRetry, $0.graceUntil) = (true, LifeCycle.day(36)) }
                .renewal
        case .retry: return LifeCycle.Heard.renewal(29) { $0.isInBillingRetry = true }.renewal
        case .cancelled: return LifeCycle.Heard.renewal(30) { $0.expirationIntent = 1 }.renewal
        case .switchedOff: return LifeCycle.Heard.renewal(3) { $0.renewsAutomatically = false }.renewal
        }
    }

    private static let endings: [Transaction.Ending?] = [nil] + Transaction.Ending.allCases

    private static func period(_ ending: Transaction.Ending?) -> Transaction? {
        LifeCycle.Heard.period("S", "gold", 0, 30) {
            guard let ending else { return }
            $0.revokedAt = LifeCycle.day(5)
            switch ending {
            case .refunded: $0.revocation = Revocation(reason: 0, type: "REFUND_FULL")
            case .refundedInPart: $0.revocation = Revocation(reason: 0, type: "REFUND_PRORATED", percentage: 50_000)
            case .withdrawn: $0.revocation = Revocation(reason: 0, type: "FAMILY_REVOKE")
            case .upgraded: $0.isUpgraded = true
            case .unknown: $0.revocation = Revocation(reason: 9)
            }
        }.transaction
    }

    private struct Expected: Equatable {
        var state: SubscriptionState
        var until: Double
        var isEntitled: Bool
    }

    private static func expected(
        _ ending: Transaction.Ending?, _ next: Next, isContinued: Bool, _ policy: SubscriptionPolicy, _ now: Date
    ) -> Expected {
        // "The newest period was refunded or withdrawn: revoked"; what another product took the place of is replaced.
        if let ending {
            return Expected(
                state: ending == .upgraded && !isContinued || ending == .upgraded ? .replaced : .revoked, until: 5,
                isEntitled: false)
        }
        let days = now.timeIntervalSince(LifeCycle.origin) / 86_400
        let fiveMinutes = 5.0 / 1440
        // "A period runs that Apple has not ended: active."
        if days < 30 { return Expected(state: .active, until: 30, isEntitled: true) }
        // "gracePeriodExpiresDate ahead: in_grace", and as long as nothing newer is known, five minutes more.
        if next == .grace && days < 36 + fiveMinutes || next == .graceIsOver && days < 36 {
            return Expected(state: .inGrace, until: policy.graceEntitles ? 36 : 30, isEntitled: policy.graceEntitles)
        }
        // "isInBillingRetryPeriod: in_retry", for at most 60 days.
        if [.grace, .graceIsOver, .retry].contains(next), days < 90 {
            return Expected(state: .inRetry, until: policy.retryEntitles ? 90 : 30, isEntitled: policy.retryEntitles)
        }
        if isContinued { return Expected(state: .replaced, until: 30, isEntitled: false) }
        // "An end that Apple states is believed at once"; one by the clock alone five minutes later.
        let runs = next != .cancelled && days < 30 + fiveMinutes
        return Expected(state: runs ? .active : .expired, until: 30, isEntitled: runs)
    }

    @Test("S3-62: the state by every end, every fact about the renewal, each policy, at each edge of the clock")
    func table() throws {
        for ending in Self.endings {
            let transaction = try #require(Self.period(ending))
            // A reason that this program does not know is explained by a chain that continues this one.
            for isContinued in ending == .unknown ? [false] : [false, true] {
                for next in Next.allCases {
                    for flags in 0..<4 {
                        var policy = SubscriptionPolicy()
                        policy.graceEntitles = flags & 1 > 0
                        policy.retryEntitles = flags & 2 > 0
                        for now in Self.moments {
                            let status = ChainFacts.status(
                                of: [.init(transaction: transaction)], renewal: Self.renewal(next),
                                isContinued: isContinued, by: policy, at: now)
                            let expected = Self.expected(ending, next, isContinued: isContinued, policy, now)
                            let seen = status.map {
                                Expected(
                                    state: $0.state,
                                    until: $0.accessUntil.timeIntervalSince(LifeCycle.origin) / 86_400,
                                    isEntitled: $0.isEntitled)
                            }
                            if seen != expected {
                                Issue.record("\(ending as Any) \(next) \(isContinued) \(flags) \(now): \(seen as Any)")
                            }
                        }
                    }
                }
            }
        }
    }

    private static func status(
        at day: Double, isContinued: Bool = false, _ periods: LifeCycle.Heard...
    ) -> SubscriptionStatus? {
        ChainFacts.status(
            of: periods.compactMap { $0.transaction.map { .init(transaction: $0) } }, renewal: nil,
            isContinued: isContinued, by: SubscriptionPolicy(), at: LifeCycle.day(day))
    }

    @Test("P42, P22: of several periods the one that runs counts, whatever is known of the others")
    func severalPeriods() {
        let first = LifeCycle.Heard.period("S", "gold", 0, 30)
        let second = LifeCycle.Heard.period("S2", "gold", 30, 60)
        let third = LifeCycle.Heard.period("S3", "gold", 60, 90)
        func expect(
            _ status: SubscriptionStatus?, _ state: SubscriptionState, _ id: String, _ until: Double,
            _ location: SourceLocation = #_sourceLocation
        ) {
            #expect(status?.state == state, sourceLocation: location)
            #expect(status?.transactionID == id, sourceLocation: location)
            #expect(status?.accessUntil == LifeCycle.day(until), sourceLocation: location)
        }
        // A refund of an earlier period ends nothing.
        expect(Self.status(at: 70, first, second.ended(65), third), .active, "S3", 90)
        expect(Self.status(at: 70, first.ended(65), second.ended(65), third), .active, "S3", 90)
        expect(Self.status(at: 70, first, second, third.ended(65)), .revoked, "S3", 65)
        // Charged ahead: the former period runs until its end, and access goes on.
        expect(Self.status(at: 29.5, first, second), .active, "S", 60)
        expect(Self.status(at: 29.5, first, second.ended(29.2)), .active, "S", 30)
        expect(Self.status(at: 29.5, second), .active, "S2", 60)
        // A lapse between two periods.
        let later = LifeCycle.Heard.period("S9", "gold", 50, 80)
        expect(Self.status(at: 40, first), .expired, "S", 30)
        expect(Self.status(at: 55, first, later), .active, "S9", 80)
        // Another product was bought: what is known of the former one is too old to say that it ended.
        let year = LifeCycle.Heard.period("S", "silver", 0, 365)
        let upgrade = LifeCycle.Heard.period("S2", "gold", 10, 40)
        expect(Self.status(at: 20, year, upgrade), .active, "S2", 40)
        expect(Self.status(at: 50, year, upgrade), .expired, "S2", 40)
        expect(Self.status(at: 20, year, upgrade.ended(15)), .revoked, "S2", 15)
        // Apple moved the end.
        expect(Self.status(at: 32, first.changed(20) { $0.expiresAt = LifeCycle.day(35) }), .active, "S", 35)
        // No subscription.
        #expect(Self.status(at: 1, .purchase("C", "coins", .consumable, 0)) == nil)
    }

    @Test("S3-62: a fact about the renewal counts from the early charge of the newest period on, not from its start")
    func chargedAhead() {
        let charged = LifeCycle.Heard.period("S2", "gold", 30, 60, signed: 29)
        let periods = [LifeCycle.Heard.period("S", "gold", 0, 30), charged].compactMap(\.transaction)
        for (signed, counts) in [(28.9, false), (29, true), (29.5, true), (30, true), (60, true)] {
            let status = ChainFacts.status(
                of: periods.map { .init(transaction: $0) },
                renewal: LifeCycle.Heard.renewal(signed) { $0.expirationIntent = 1 }.renewal, isContinued: false,
                by: SubscriptionPolicy(), at: LifeCycle.day(60))
            #expect(status?.state == (counts ? .expired : .active) && status?.isEndStated == counts, "\(signed)")
        }
    }

    private static func chain(
        _ next: Next, at now: Date, told: ToldState? = nil, lapseSeenAt: Date? = nil, steps: Int = 0
    ) -> ChainFacts {
        let purchases = [period(nil)].compactMap(\.self).map {
            ChainFacts.Purchase(
                transaction: $0,
                grant: .init(receiptID: FollowedChains.receiptID, userID: "u1", goods: [], grantedAt: LifeCycle.day(0)))
        }
        return ChainFacts(
            appID: "game", environment: Transaction.production, originalID: "S", purchases: purchases,
            renewal: renewal(next), told: told, lapseSeenAt: lapseSeenAt, steps: steps, now: now)
    }

    @Test("a look at each moment that is due tells every change, at its time and once")
    func due() throws {
        for next in Next.allCases {
            var now = LifeCycle.day(10)
            var result = Self.chain(next, at: now).followUp(by: SubscriptionPolicy())
            var told = [result.told?.state]
            var looks = 0
            while let dueAt = result.dueAt {
                #expect(dueAt > now, "\(next)")
                looks += 1
                try #require(looks < 10, "\(next)")
                // Just before, a look tells nothing.
                let before = Self.chain(
                    next, at: dueAt.addingTimeInterval(-1), told: result.told, lapseSeenAt: result.lapseSeenAt,
                    steps: result.steps
                ).followUp(by: SubscriptionPolicy())
                #expect(before.events.isEmpty && before.dueAt == dueAt, "\(next) before \(dueAt)")
                now = dueAt
                result = Self.chain(
                    next, at: now, told: result.told, lapseSeenAt: result.lapseSeenAt, steps: result.steps
                ).followUp(by: SubscriptionPolicy())
                if told.last != result.told?.state { told.append(result.told?.state) }
            }
            let expected: [SubscriptionState?] =
                switch next {
                case .unknown, .stale, .cancelled, .switchedOff: [.active, .expired]
                case .grace, .graceIsOver: [.active, .inGrace, .inRetry, .expired]
                case .retry: [.active, .inRetry, .expired]
                }
            #expect(told == expected, "\(next)")
        }
    }

    @Test("a lapse by the clock alone is told at the second look; a look from before the end is no first one")
    func secondLook() {
        let end = LifeCycle.day(30)
        let policy = SubscriptionPolicy()
        let told = Self.chain(.unknown, at: LifeCycle.day(1)).followUp(by: policy).told
        for firstLook in [nil, LifeCycle.day(29), end.addingTimeInterval(-1)] {
            let first = Self.chain(.unknown, at: end + 3600, told: told, lapseSeenAt: firstLook).followUp(by: policy)
            #expect(first.events.isEmpty && first.told == told && first.lapseSeenAt == end + 3600)
            #expect(first.dueAt == end + 3900)
        }
        let early = Self.chain(.unknown, at: end + 299, told: told, lapseSeenAt: end).followUp(by: policy)
        #expect(early.events.isEmpty && early.lapseSeenAt == end && early.dueAt == end + 300)
        let second = Self.chain(.unknown, at: end + 300, told: told, lapseSeenAt: end).followUp(by: policy)
        #expect(
            second.events.map(\.type.rawValue) == ["subscription.expired", "entitlement.changed"] && second.dueAt == nil
        )
        // A purchase from long ago that comes to light is never told to be active.
        let old = Self.chain(.unknown, at: LifeCycle.day(99)).followUp(by: policy)
        #expect(old.events.isEmpty && old.told == nil && old.dueAt == LifeCycle.day(99) + 300)
        // What Apple states is told at once.
        let stated = Self.chain(.cancelled, at: end, told: told).followUp(by: policy)
        #expect(stated.events.map(\.type.rawValue) == ["subscription.expired", "entitlement.changed"])
    }
}
