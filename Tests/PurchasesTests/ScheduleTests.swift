import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: retries come when RetriesAndRescue says, through the queue that it names, and every delay follows one scale.
@Suite struct ScheduleTests {
    @Test(
        "the retry queues, then the row alone",
        arguments: [(0, 5), (1, 30), (2, 120), (3, 600)])
    func retryQueues(attempts: Int, seconds: Int) {
        let schedule = RetrySchedule()
        #expect(schedule.wait(afterAttempts: attempts, random: 0.9) == .retryQueue(attempts))
        #expect(schedule.delay(ofRetryQueue: attempts) == .seconds(seconds))
        #expect(
            schedule.dueIn(.retryQueue(attempts), lane: .apple) == .seconds(seconds + 60),
            "the rescue comes after the retry")
        #expect(schedule.dueIn(.retryQueue(attempts), lane: .local) == .seconds(seconds + 10))
    }

    @Test("after the retry queues 15 min ± 20 %, for ever", arguments: [4, 5, 8, 100, 10_000])
    func afterRetryQueues(attempts: Int) {
        let schedule = RetrySchedule()
        for (random, seconds) in [(0.0, 720.0), (0.5, 900), (0.999_999, 1080)] {
            guard case .row(let wait) = schedule.wait(afterAttempts: attempts, random: random) else {
                Issue.record("waits in the row")
                return
            }
            #expect(abs(wait.inSeconds - seconds) < 0.01)
            #expect(schedule.dueIn(.row(wait), lane: .apple) == wait)
        }
    }

    @Test("eight attempts of the schedule take less than a day: parking needs both")
    func parking() {
        let schedule = RetrySchedule()
        let total = (0..<8).map { schedule.dueIn(schedule.wait(afterAttempts: $0, random: 1), lane: .apple) }
            .reduce(Duration.zero, +)
        #expect(total < .seconds(86_400))
    }

    @Test(
        "held receipts are judged after 10 min, doubling to an hour",
        arguments: [(0, 600), (1, 600), (600, 600), (1200, 1200), (2400, 2400), (3600, 3600), (1_000_000, 3600)])
    func held(age: Int, seconds: Int) {
        #expect(RetrySchedule().heldDelay(age: .seconds(age)) == .seconds(seconds))
    }

    @Test("What waits for the configuration or a person is judged each week, a fifth more or less")
    func net() {
        let days = [0, 0.5, 1].map { RetrySchedule().fallbackDelay(random: $0) / .seconds(86_400) }
        #expect(days.map { ($0 * 10).rounded() } == [56, 70, 84])
    }

    @Test("Only what is wholly held for a configuration waits for it")
    func waitsForConfiguration() {
        func decided(_ decisions: Decision...) -> Verdict.Decisions {
            .transactions(
                decisions.enumerated().map { number, decision in
                    Verdict.Entry(
                        transaction: Transaction(
                            id: "\(number)", originalID: nil, productID: "coins", kind: .consumable,
                            environment: Transaction.production, purchasedAt: Date(timeIntervalSince1970: 1_800_000_000)
                        ),
                        decision: decision)
                })
        }
        #expect(decided(.held(.productUnknown), .rejected(.refunded)).waitsForConfiguration)
        #expect(decided(.held(.sandbox), .held(.transferReview)).waitsForConfiguration)
        #expect(Verdict.Decisions.receipt(.held(.credentialsMissing)).waitsForConfiguration)
        #expect(!decided(.held(.productUnknown), .open(.appleUnavailable)).waitsForConfiguration)
        #expect(!decided(.held(.productUnknown), .held(.orderUnknown)).waitsForConfiguration)
        #expect(!decided(.rejected(.refunded)).waitsForConfiguration)
        #expect(!Verdict.Decisions.receipt(.rejected(.signature)).waitsForConfiguration)
        #expect(!Verdict.Decisions.identifier("1", .possessionMissing).waitsForConfiguration)
        #expect(decided(.held(.shadow)).isOfShadow && !decided(.held(.sandbox)).isOfShadow)
        // A receipt that an order, a token, a merge or the chain of a later purchase may settle comes back by time.
        for reason in [Reason.foreignToken, .tokenDisputed, .foreignOrder, .review, .beforeCutover, .unclaimed] {
            #expect(!reason.waitsForConfiguration)
        }
    }

    @Test("a clock that went back makes no negative wait")
    func heldInThePast() {
        #expect(RetrySchedule().heldDelay(age: .seconds(-5)) == .seconds(600))
        #expect(RetrySchedule().confirmDelay(age: .seconds(-5)) == .seconds(5))
    }

    @Test(
        "B10: what was given on trust is asked about as by the retry queues: after seconds first, then every 15 min",
        arguments: [(0, 5), (20, 5), (120, 30), (480, 120), (3600, 900), (1_000_000, 900)])
    func confirm(age: Int, seconds: Int) {
        #expect(RetrySchedule().confirmDelay(age: .seconds(age)) == .seconds(seconds))
        #expect(RetrySchedule(scale: 0.5).confirmDelay(age: .seconds(age) / 2) == .seconds(seconds) / 2)
    }

    /// Goal: the bounds hold for every attempt, random value and scale, not only for those of the tables.
    /// Method: 5,000 random questions; and the mean wait of 1,000 answers for each attempt, which never gets shorter.
    @Test("every wait is within its bounds, and in the mean no wait is shorter than the one before")
    func bounds() {
        var random = SeededRandom(announcing: "retry schedule")
        let seed = random.seed
        for _ in 0..<5000 {
            let schedule = RetrySchedule(scale: Double.random(in: 0.001...2, using: &random))
            let attempts = Int.random(in: 0...40, using: &random)
            let lane = Bool.random(using: &random) ? Lane.local : .apple
            let wait = schedule.wait(afterAttempts: attempts, random: Double.random(in: 0..<1, using: &random))
            let seconds = schedule.dueIn(wait, lane: lane).inSeconds / schedule.scale
            switch wait {
            case .retryQueue(let index):
                #expect(index == attempts, "seed \(seed)")
                #expect(
                    seconds > RetrySchedule.retryDelays[index].inSeconds,
                    "the rescue comes after the retry, seed \(seed)")
                #expect(seconds <= RetrySchedule.retryDelays[index].inSeconds + 60.001, "seed \(seed)")
            case .row:
                #expect(attempts >= RetrySchedule.retryDelays.count, "seed \(seed)")
                #expect((719.999...1080.001).contains(seconds), "seed \(seed)")
            }
        }
        var before = 0.0
        for attempts in 0..<8 {
            let schedule = RetrySchedule()
            let total = (0..<1000).reduce(0.0) { total, _ in
                let wait = schedule.wait(afterAttempts: attempts, random: Double.random(in: 0..<1, using: &random))
                if case .retryQueue(let index) = wait { return total + schedule.delay(ofRetryQueue: index).inSeconds }
                return total + schedule.dueIn(wait, lane: .apple).inSeconds
            }
            // After the retry queues the mean stays the same: 1,000 answers of ± 20 % are within 3 % of it.
            #expect(total / 1000 > before * 0.94, "attempt \(attempts), seed \(seed)")
            before = total / 1000
        }
        #expect((873...927).contains(before), "seed \(seed)")
    }

    @Test("one factor scales every delay", arguments: [1.0, 0.1, 0.001])
    func scale(factor: Double) {
        let scaled = RetrySchedule(scale: factor)
        let plain = RetrySchedule()
        func near(_ one: Duration, _ other: Duration) -> Bool { abs((one - other).inSeconds) < 1e-6 }
        for index in RetrySchedule.retryDelays.indices {
            #expect(near(scaled.delay(ofRetryQueue: index), plain.delay(ofRetryQueue: index) * factor))
            for lane in Lane.allCases {
                #expect(
                    near(
                        scaled.dueIn(.retryQueue(index), lane: lane),
                        plain.dueIn(.retryQueue(index), lane: lane) * factor))
            }
        }
        #expect(scaled.wait(afterAttempts: 4, random: 0.5) == .row(.seconds(900) * factor))
        #expect(near(scaled.heldDelay(age: .zero), .seconds(600) * factor))
        #expect(near(scaled.heldDelay(age: .seconds(1_000_000)), .seconds(3600) * factor))
        for lane in Lane.allCases { #expect(near(scaled.rescueDelay(lane), lane.rescueDelay * factor)) }
    }

    @Test("a proof that needs no call is rescued after 10 s, one that needs Apple after 60 s")
    func lanes() {
        #expect(Lane(.signedTransaction) == .local)
        #expect(Lane(.receipt) == .apple)
        #expect(Lane(.identifier) == .apple)
        #expect(Lane.local.rescueDelay == .seconds(10))
        #expect(Lane.apple.rescueDelay == .seconds(60))
        #expect(Lane.bulk.rescueDelay == .seconds(60))
        #expect(Lane.unposted.rescueDelay == .seconds(60))
        #expect(Lane.allCases.filter(\.asksApple) == [.apple, .unposted])
    }

    @Test("a duration is its seconds")
    func seconds() {
        #expect(Duration.milliseconds(1500).inSeconds == 1.5)
        #expect(Duration.zero.inSeconds == 0)
        #expect(Duration.seconds(-2).inSeconds == -2)
    }
}
