import Foundation
import TestRandom
import Testing

@testable import Purchases

/// Goal: arrivals that stop raise the alarm, and a quiet app, a holiday or a change of the clocks never does (L4).
/// Method: a table of the decision, and simulated years at several rates, looked at each hour as the scheduler looks.
@Suite struct TimelinessTests {
    private static let now = Date(timeIntervalSince1970: 1_800_000_000)

    private static func isLate(_ arrivals: Int, of weeks: Int..., behind: TimeInterval = 1200) -> Bool {
        Timeliness(.init(now: now, until: now - behind, arrivals: arrivals, weeks: weeks)).isLate
    }

    @Test("L4: busy and quiet apps, holidays, promotions, outages, new apps, and sums that are behind")
    func table() {
        // A busy app: less than a tenth of the usual arrivals.
        #expect(Self.isLate(0, of: 1000, 1000, 1000, 1000))
        #expect(Self.isLate(99, of: 1000, 1000, 1000, 1000))
        #expect(!Self.isLate(100, of: 1000, 1000, 1000, 1000))
        // A quiet app: chance explains a span without an arrival.
        #expect(!Self.isLate(0, of: 99, 99, 99, 99))
        #expect(Self.isLate(0, of: 100, 100, 100, 100))
        #expect(Self.isLate(9, of: 100, 100, 100, 100))
        #expect(!Self.isLate(10, of: 100, 100, 100, 100))
        #expect(!Self.isLate(0, of: 0, 0, 0, 0))
        // A holiday today, and one in a week before.
        #expect(!Self.isLate(300, of: 1000, 1000, 1000, 1000))
        #expect(Self.isLate(20, of: 300, 1000, 1000, 1000))
        #expect(!Self.isLate(50, of: 300, 300, 1000, 1000))
        // An outage in one week, and in two: three weeks must agree.
        #expect(Self.isLate(0, of: 1000, 0, 1000, 1000))
        #expect(!Self.isLate(0, of: 1000, 0, 0, 1000))
        // A promotion in one week.
        #expect(!Self.isLate(150, of: 50_000, 1000, 1000, 1000))
        #expect(!Self.isLate(150, of: 50_000, 50_000, 1000, 1000))
        // A new app: three weeks.
        #expect(!Self.isLate(0, of: 1000, 0, 0, 0))
        #expect(!Self.isLate(0, of: 1000, 1000, 0, 0))
        #expect(Self.isLate(0, of: 1000, 1000, 1000, 0))
        #expect(!Timeliness(.init(now: Self.now, until: Self.now, arrivals: 0, weeks: [])).isLate)
        // Hours that are not summed say nothing.
        #expect(Self.isLate(0, of: 1000, 1000, 1000, 1000, behind: 3 * 3600))
        #expect(!Self.isLate(0, of: 1000, 1000, 1000, 1000, behind: 3 * 3600 + 1))
    }

    /// The arrivals of each hour of 33 days and a year: fewer at night, at weekends and on holidays, and the habits an
    /// hour earlier in summer.
    private static func hours(perDay: Double, _ random: inout SeededRandom) -> [Int] {
        let days = 33 + 365
        let holidays = Set((0..<12).map { _ in Int.random(in: 33..<days, using: &random) })
        return (0..<days * 24).map { hour in
            let day = hour / 24
            let local = (hour % 24 + ((60..<270).contains(day) ? 1 : 0)) % 24
            let share = (local < 6 ? 0.1 : 1) * (day % 7 < 2 ? 0.5 : 1) * (holidays.contains(day) ? 0.3 : 1)
            return poisson(perDay / 24 * share, &random)
        }
    }

    private static func poisson(_ rate: Double, _ random: inout SeededRandom) -> Int {
        guard rate < 50 else {
            // The sum of twelve: nearly normal.
            let normal = (0..<12).reduce(-6.0) { sum, _ in sum + Double.random(in: 0..<1, using: &random) }
            return max(0, Int((rate + normal * rate.squareRoot()).rounded()))
        }
        var (count, product) = (0, Double.random(in: 0..<1, using: &random))
        while product > exp(-rate) {
            count += 1
            product *= Double.random(in: 0..<1, using: &random)
        }
        return count
    }

    /// The hours of the year, from its start, at whose end something was late.
    private static func alarms(_ hours: [Int]) -> [Int] {
        var before = [0]
        for arrivals in hours { before.append(before[before.count - 1] + arrivals) }
        /// The arrivals of a span that ends with an hour.
        func arrivals(until end: Int, hours: Int) -> Int { before[end] - before[end - hours] }
        return (33 * 24..<hours.count).filter { end in
            [1, 6, 24, 72].contains { span in
                let weeks = (1...4).map { week in
                    (-1...1).map { arrivals(until: end - 168 * week + $0, hours: span) }.min() ?? 0
                }
                let facts = Timeliness.Facts(
                    now: now, until: now, arrivals: arrivals(until: end, hours: span), weeks: weeks)
                return Timeliness(facts).isLate
            }
        }.map { $0 - 33 * 24 }
    }

    @Test(
        "L4: no alarm in a quiet year; what stops is late within a day in a busy app, within three in a quiet one",
        arguments: [(1.0, nil), (20.0, nil), (100.0, 75), (500.0, 26), (5000.0, 26), (50_000.0, 8)] as [(Double, Int?)])
    func years(perDay: Double, lateWithin: Int?) {
        for seed in 1...2 {
            var random = SeededRandom(seed: UInt64(seed))
            var hours = Self.hours(perDay: perDay, &random)
            #expect(Self.alarms(hours) == [], "\(perDay) a day, seed \(seed)")
            // At noon of a working day.
            let stop = 33 * 24 + 200 * 24 + 12
            for hour in stop..<hours.count { hours[hour] = 0 }
            let first = Self.alarms(hours).first
            if let lateWithin {
                let late = first.map { $0 - (stop - 33 * 24) } ?? .max
                #expect((1...lateWithin).contains(late), "\(perDay) a day, seed \(seed): \(late)")
            } else {
                #expect(first == nil, "\(perDay) a day, seed \(seed)")
            }
        }
    }
}
