import Foundation
import Purchases
import Testing

/// Goal: a worker asks Apple about a subscription shortly after its end, then ever more seldom, until Apple says that it
/// was charged or has ended (S3-54). Method: the rule for each state, each answer so far and many chains, against the
/// table of ``Asking``; then a chain that Apple never says anything about, question by question.
@Suite struct AskingTests {
    private static let end = LifeCycle.day(30)
    private static let ids = (0..<500).map { "20000001234\(56_000 + $0)" }
    private static let day: TimeInterval = 86_400

    private static func status(_ state: SubscriptionState, until: Date = end, isStated: Bool = false)
        -> SubscriptionStatus
    {
        SubscriptionStatus(
            state: state, transactionID: "S", productID: "gold", accessUntil: until, isEntitled: false,
            isEndStated: isStated)
    }

    private static func next(
        _ status: SubscriptionStatus, lastWord: Date? = nil, _ asked: Asked? = nil, of id: String = ids[0],
        endedEvery: Duration? = nil, scale: Double = 1
    ) -> Date? {
        Asking.next(
            status, end: end, lastWord: lastWord, asked: asked, of: id,
            by: AskPolicy(endedEvery: endedEvery, scale: scale))
    }

    private static func asked(_ at: Date, _ count: Int, end: Date = end) -> Asked {
        Asked(at: at, end: end, count: count)
    }

    @Test(
        "a subscription is first asked about 30 to 150 s after its end, each at its own time, however often it is looked at"
    )
    func first() throws {
        var waits: [TimeInterval] = []
        for id in Self.ids {
            // Running, over by the clock and not believed, believed; asked before the end, or about another period.
            let answers = [
                nil, Self.asked(Self.end - 1, 3), Self.asked(Self.end - Self.day, 1, end: LifeCycle.day(29)),
                Self.asked(Self.end + 1, 9, end: LifeCycle.day(0)),
            ]
            let times = [SubscriptionState.active, .expired].flatMap { state in
                answers.map { Self.next(Self.status(state), $0, of: id) }
            }
            #expect(Set(times).count == 1, "\(id)")
            waits.append(try #require(times[0]).timeIntervalSince(Self.end))
        }
        #expect(waits.allSatisfy(Asking.first.contains))
        // The second look of the clock comes after the first question.
        #expect(Asking.first.upperBound < SubscriptionStatus.believedAfter)
        for tenth in 0..<10 {
            let low = 30 + 12 * Double(tenth)
            let count = waits.count { $0 >= low && $0 < low + 12 }
            #expect((20...90).contains(count), "\(count) of 500 from \(low) s on")
        }
        // Every process and version computes the same.
        let known = try #require(Self.next(Self.status(.active), of: "2000000123456789"))
        #expect(abs(known.timeIntervalSince(Self.end) - 110.982615) < 0.001)
    }

    @Test("while nothing but the clock says that it is over, the intervals grow from minutes to a day")
    func growing() throws {
        for id in Self.ids.prefix(50) {
            var before: TimeInterval = 0
            for count in 1...8 {
                for state in [SubscriptionState.active, .expired] {
                    let at = Self.end + Self.day
                    let next = try #require(Self.next(Self.status(state), Self.asked(at, count), of: id))
                    let (wait, nominal) = (next.timeIntervalSince(at), Asking.intervals[min(count, 5) - 1])
                    #expect(abs(wait / nominal - 1) <= Asking.jitter + 1e-6, "\(id) \(count)")
                    #expect(wait >= before - 1e-3)
                    before = wait
                }
            }
        }
        #expect(Asking.intervals == Asking.intervals.sorted() && Asking.intervals.last == Self.day)
    }

    @Test("in grace and in billing retry the next question is a day after Apple's last answer")
    func retry() throws {
        for state in [SubscriptionState.inGrace, .inRetry] {
            for (word, answer, base) in [
                (Self.end + 60, nil, Self.end + 60), (nil, nil, Self.end),
                (Self.end + 60, Self.end + 3 * Self.day, Self.end + 3 * Self.day),
                (Self.end + 5 * Self.day, Self.end + 3 * Self.day, Self.end + 5 * Self.day),
            ] as [(Date?, Date?, Date)] {
                for count in [1, 7] {
                    let asked = answer.map { Self.asked($0, count) }
                    let next = try #require(
                        Self.next(
                            Self.status(state, until: Self.end + 16 * Self.day, isStated: true), lastWord: word, asked))
                    #expect(abs(next.timeIntervalSince(base) / Self.day - 1) <= Asking.jitter + 1e-6)
                }
            }
        }
    }

    @Test(
        "an ended one is asked about only without credentials, on the rota, for 60 days; an end by the clock alone too")
    func ended() throws {
        let rota = Duration.seconds(30 * Self.day)
        for status in [
            Self.status(.expired, isStated: true), Self.status(.revoked, isStated: true),
            Self.status(.replaced, isStated: true),
        ] {
            for asked in [nil, Self.asked(Self.end + 100, 1)] {
                #expect(Self.next(status, asked) == nil)
                let next = try #require(Self.next(status, asked, endedEvery: rota))
                let base = asked?.at ?? Self.end
                #expect(abs(next.timeIntervalSince(base) / (30 * Self.day) - 1) <= Asking.jitter + 1e-6)
            }
            #expect(Self.next(status, Self.asked(Self.end + 40 * Self.day, 2), endedEvery: rota) == nil)
        }
        // Nobody said anything for as long as Apple tries to charge.
        let late = Self.asked(Self.end + SubscriptionStatus.retriedWithin - 60, 40)
        #expect(Self.next(Self.status(.expired), late) == nil)
        #expect(Self.next(Self.status(.expired), late, endedEvery: rota) == nil)
    }

    @Test("a subscription of which Apple says nothing new is asked about some seventy times, and then never again")
    func silent() throws {
        for id in Self.ids.prefix(20) {
            for scale in [1, 0.02] {
                var (asked, questions): (Asked?, [Date]) = (nil, [])
                while let next = Self.next(Self.status(.expired), asked, of: id, scale: scale) {
                    #expect(next > questions.last ?? Self.end)
                    questions.append(next)
                    asked = Self.asked(next + 0.2, questions.count)
                    try #require(questions.count < 5000)
                }
                if scale == 1 { #expect((55...75).contains(questions.count), "\(questions.count)") }
                // Four within the first two hours.
                #expect(questions.count { $0 < Self.end + 7200 * scale } == 4, "\(id)")
            }
        }
    }

    @Test("every delay but the 60 days follows the scale")
    func scaled() throws {
        let status = [
            Self.status(.active), Self.status(.inRetry, isStated: true), Self.status(.expired, isStated: true),
        ]
        for status in status {
            for asked in [nil, Self.asked(Self.end, 3)] {
                let whole = try #require(Self.next(status, asked, endedEvery: .seconds(20 * Self.day)))
                let part = try #require(Self.next(status, asked, endedEvery: .seconds(20 * Self.day), scale: 0.5))
                #expect(
                    abs(part.timeIntervalSince(Self.end) * 2 - whole.timeIntervalSince(Self.end)) < 1e-3,
                    "\(status.state)")
            }
        }
    }

    @Test("after questions without an answer the delays grow as for receipts, and then to a day")
    func failures() {
        let delays = (1...14).map { Asking.delay(afterFailures: $0, of: "S") }
        #expect(Array(delays.prefix(4)) == RetrySchedule.retryDelays)
        for (one, other) in zip(delays, delays.dropFirst()) { #expect(one <= other) }
        let quarter = RetrySchedule.afterRetryQueues
        #expect(delays[4] >= quarter * 0.9 && delays[4] <= quarter * 1.1)
        #expect(delays[13] >= .seconds(0.9 * Self.day) && delays[13] <= .seconds(1.1 * Self.day))
        #expect(Asking.delay(afterFailures: .max, of: "S") == delays[13])
    }

    @Test("the follow-up sets the time with the told state, also while an end by the clock alone is not believed yet")
    func followUp() throws {
        let period = try #require(LifeCycle.Heard.period("S", "gold", 0, 30).transaction)
        func chain(at now: Date, user: String? = "u1", _ change: (inout ChainFacts) -> Void = { _ in }) -> FollowUp {
            let grant = user.map {
                ChainFacts.Grant(receiptID: UUID(), userID: $0, goods: [], grantedAt: LifeCycle.day(0))
            }
            var facts = ChainFacts(
                appID: "game", environment: Transaction.production, originalID: "S",
                purchases: [.init(transaction: period, grant: grant)], now: now)
            change(&facts)
            return facts.followUp(by: SubscriptionPolicy())
        }
        let first = try #require(chain(at: LifeCycle.day(1)).askAt)
        #expect(Asking.first.contains(first.timeIntervalSince(Self.end)))
        #expect(chain(at: LifeCycle.day(1)).periodEndsAt == Self.end)
        // At the first look after the end nothing is told, and Apple is asked all the same.
        let late = chain(at: Self.end + 3600)
        #expect(late.told == nil && late.askAt == first)
        let again = chain(at: Self.end + 3600) { $0.asked = Self.asked(Self.end + 3500, 1) }
        let later = try #require(again.askAt)
        #expect(later > Self.end + 3600)
        let stated = chain(at: Self.end + 60) {
            $0.renewal = LifeCycle.Heard.renewal(30) { $0.expirationIntent = 1 }.renewal
        }
        #expect(stated.told?.state == .expired && stated.askAt == nil && stated.periodEndsAt == Self.end)
        let nobodys = chain(at: LifeCycle.day(1), user: nil)
        #expect(nobodys.askAt == nil && nobodys.periodEndsAt == nil)
    }

    @Test("an answer counts as one more about its period, and says when the next question is")
    func answers() throws {
        let (old, new) = (LifeCycle.Heard.period("S", "gold", 0, 30), LifeCycle.Heard.period("S2", "gold", 30, 60))
        func question(
            _ periods: [LifeCycle.Heard], _ renewal: LifeCycle.Heard? = nil, _ asked: Asked? = nil, at now: Date
        ) -> (at: Date?, end: Date)? {
            ChainFacts.nextQuestion(
                of: "S", after: periods.compactMap { $0.transaction.map { .init(transaction: $0) } },
                renewal: renewal?.renewal, asked: asked, by: SubscriptionPolicy(), at: now)
        }
        let now = Self.end + 100
        func wait(_ question: (at: Date?, end: Date), from date: Date) throws -> TimeInterval {
            try #require(question.at).timeIntervalSince(date)
        }
        let first = try #require(question([old], at: now))
        #expect(first.end == Self.end)
        #expect(abs(try wait(first, from: now) - 180) <= 18.001)
        let second = try #require(question([old], nil, Self.asked(now - 180, 1), at: now))
        #expect(abs(try wait(second, from: now) - 600) <= 60.001)
        let renewed = try #require(question([old, new], nil, Self.asked(now - 180, 1), at: now))
        #expect(renewed.end == LifeCycle.day(60))
        #expect(Asking.first.contains(try wait(renewed, from: renewed.end)))
        let ended = try #require(question([old], .renewal(30) { $0.expirationIntent = 1 }, at: now))
        #expect(ended.at == nil && ended.end == Self.end)
        #expect(question([.purchase("C", "coins", .consumable, 0)], at: now) == nil)
    }

    @Test("periods are missing where the answered one neither is nor follows the last known one")
    func missing() throws {
        let known = try #require(LifeCycle.Heard.period("S", "gold", 0, 30).transaction)
        func isNext(_ id: String, _ product: String, _ from: Double, _ until: Double) throws -> Bool {
            try #require(LifeCycle.Heard.period(id, product, from, until).transaction).isNextPeriod(after: known)
        }
        #expect(try isNext("S", "gold", 0, 30))
        // The same period under the id of a restore, and moved by Apple.
        #expect(try isNext("R", "gold", 0, 30))
        #expect(try isNext("S", "gold", 0, 40))
        #expect(try isNext("S2", "gold", 30, 60))
        #expect(try isNext("S2", "gold", 30.04, 60))
        // A later period, a lapse, an upgrade in the middle, another product.
        #expect(try !isNext("S3", "gold", 60, 90))
        #expect(try !isNext("S3", "gold", 31, 61))
        #expect(try !isNext("S3", "silver", 10, 40))
        #expect(try !isNext("S3", "silver", 30, 60))
        #expect(!known.isNextPeriod(after: nil))
    }
}
