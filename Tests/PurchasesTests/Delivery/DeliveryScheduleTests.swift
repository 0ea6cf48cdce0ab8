import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: an event that was not taken comes again with growing gaps for 30 days, and not before the receiver allows it.
@Suite struct DeliveryScheduleTests {
    private static let now = Date(timeIntervalSince1970: 1_800_000_000)

    private static func wait(
        _ attempts: Int, since seconds: Double? = nil, retryAfter: Duration? = nil, random: Double = 0.5,
        scale: Double = 1
    ) -> Double? {
        DeliverySchedule(scale: scale).retryIn(
            afterAttempts: attempts, failingSince: seconds.map { now.addingTimeInterval(-$0) }, now: now,
            retryAfter: retryAfter, random: random)?.inSeconds
    }

    @Test(
        "The gaps grow to 8 h, a fifth more or less",
        arguments: [
            (0, 5), (1, 30), (2, 120), (3, 600), (4, 1800), (5, 3600), (6, 7200), (7, 14_400), (8, 28_800),
            (9, 28_800), (1000, 28_800),
        ])
    func gaps(attempts: Int, seconds: Double) throws {
        for (random, factor) in [(0.0, 0.8), (0.5, 1), (0.999_999, 1.2)] {
            let wait = try #require(Self.wait(attempts, since: 60, random: random))
            #expect(abs(wait - seconds * factor) < 0.1)
            let scaled = try #require(Self.wait(attempts, random: random, scale: 0.01))
            #expect(abs(scaled * 100 - wait) < 0.1)
        }
    }

    @Test(
        "A delivery is parked after 30 days and eight attempts, not after one of them",
        arguments: [
            (6, 31.0, false), (7, 29.9, false), (7, 30.0, true), (8, 30.0, true), (1000, 29.99, false),
            (1000, 400, true), (0, 400, false),
        ])
    func parking(attempts: Int, days: Double, isParked: Bool) {
        #expect((Self.wait(attempts, since: days * 86_400) == nil) == isParked)
        #expect((Self.wait(attempts, since: days * 864, scale: 0.01) == nil) == isParked, "the scale holds for it")
        #expect(Self.wait(attempts) != nil, "a first failure parks nothing")
    }

    @Test("Retry-After lengthens a gap, never shortens it, and no scale changes it")
    func retryAfter() {
        #expect(Self.wait(0, retryAfter: .seconds(60)) == 60)
        #expect(Self.wait(0, retryAfter: .seconds(60), scale: 0.001) == 60)
        #expect(Self.wait(3, retryAfter: .seconds(60)) == 600)
        #expect(Self.wait(8, retryAfter: .seconds(86_400)) == 86_400)
    }

    /// Method: the attempts of 1,000 random months, each at the longest or shortest gap that chance gives.
    @Test("In 30 days an event is sent about 90 times, and every gap is within its bounds")
    func month() throws {
        var random = SeededRandom(announcing: "delivery schedule")
        let seed = random.seed
        for _ in 0..<1000 {
            var (attempts, seconds) = (0, 0.0)
            while let wait = Self.wait(
                attempts, since: attempts == 0 ? nil : seconds, random: Double.random(in: 0..<1, using: &random))
            {
                let gap = DeliverySchedule.gaps[min(attempts, DeliverySchedule.gaps.count - 1)].inSeconds
                #expect((gap * 0.799...gap * 1.201).contains(wait), "attempt \(attempts), seed \(seed)")
                attempts += 1
                seconds += wait
            }
            #expect((75...120).contains(attempts), "seed \(seed)")
            #expect(seconds >= 30 * 86_400 && seconds < 31 * 86_400, "seed \(seed)")
        }
    }
}
