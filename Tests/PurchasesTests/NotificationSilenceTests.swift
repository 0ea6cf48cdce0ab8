import Foundation
import TestRandom
import Testing

@testable import Purchases

/// Goal: an address that is broken raises the alarm, and a quiet app never does (P38). Method: a table of the decision,
/// and simulated years of notifications at several rates, looked at as the scheduler looks.
@Suite struct NotificationSilenceTests {
    private static let now = Date(timeIntervalSince1970: 1_800_000_000)
    private static let (minute, hour, day) = (60.0, 3600.0, 86_400.0)

    /// - Parameters: all in seconds before now.
    private static func decide(
        heard: Double?, usual: Double? = 3600, days: Int = 30, asked: Double? = nil, canAsk: Bool = true,
        isExpected: Bool = false
    ) -> String {
        let silence = NotificationSilence(
            .init(
                now: now, heardAt: heard.map { now - $0 }, usualGap: usual, days: days, askedAt: asked.map { now - $0 },
                canAsk: canAsk, isExpected: isExpected))
        return [silence.asks ? "asks" : nil, silence.isSilent ? "silent" : nil].compactMap(\.self)
            .joined(separator: " ")
    }

    @Test("P38: after an hour beyond the usual silence Apple is asked; what does not come within ten minutes alarms")
    func table() {
        let (minute, hour, day) = (Self.minute, Self.hour, Self.day)
        // An hour is usual.
        #expect(Self.decide(heard: 2 * hour) == "")
        #expect(Self.decide(heard: 2 * hour + 1) == "asks")
        #expect(Self.decide(heard: 3 * hour, asked: 5 * minute) == "")
        #expect(Self.decide(heard: 3 * hour, asked: 10 * minute) == "silent")
        #expect(Self.decide(heard: 3 * hour, asked: hour) == "asks silent")
        #expect(Self.decide(heard: 3 * hour, asked: hour, canAsk: false) == "silent")
        // The test came, or anything else.
        #expect(Self.decide(heard: 59 * minute, asked: hour) == "")
        // One test a day, unless the silence is ten times as long as usual.
        #expect(Self.decide(heard: 9 * hour, asked: 10 * hour) == "")
        #expect(Self.decide(heard: 9 * hour, asked: day) == "asks")
        #expect(Self.decide(heard: 10 * hour + 1, asked: 11 * hour) == "asks")
        // Apple could not be asked for an hour.
        #expect(Self.decide(heard: 11 * hour + 1) == "asks silent")
        // Without credentials.
        #expect(Self.decide(heard: 10 * hour, canAsk: false) == "")
        #expect(Self.decide(heard: 10 * hour + 1, canAsk: false) == "silent")
        #expect(Self.decide(heard: hour, usual: 1, canAsk: false) == "")
        // Too few days to know what is usual.
        #expect(Self.decide(heard: 7 * day, usual: 1, days: 4) == "")
        #expect(Self.decide(heard: 7 * day + hour + 1, usual: 1, days: 4) == "asks")
        #expect(Self.decide(heard: 365 * day, usual: nil, days: 0, canAsk: false) == "")
        // Nothing ever came.
        #expect(Self.decide(heard: nil, usual: nil, days: 0) == "")
        #expect(Self.decide(heard: nil, usual: nil, days: 0, isExpected: true) == "asks")
        #expect(Self.decide(heard: nil, usual: nil, days: 0, asked: 11 * minute, isExpected: true) == "silent")
        #expect(Self.decide(heard: nil, usual: nil, days: 0, canAsk: false, isExpected: true) == "")
    }

    /// Notifications at random times, fewer at night and at weekends, from a month before the year on.
    private static func arrivals(perDay: Double, _ random: inout SeededRandom) -> [TimeInterval] {
        var (time, arrivals): (TimeInterval, [TimeInterval]) = (-30 * day, [])
        while time < 365 * day {
            time += -log(Double.random(in: Double.leastNonzeroMagnitude..<1, using: &random)) * day / perDay
            let (hourOfDay, weekday) = (Int(time / hour + 24 * 70) % 24, Int(time / day + 70) % 7)
            let share = (hourOfDay < 6 ? 0.1 : 1) * (weekday < 2 ? 0.5 : 1)
            if Double.random(in: 0..<1, using: &random) < share { arrivals.append(time) }
        }
        return arrivals
    }

    /// A scheduler's year: what it asked and when it alarmed, in seconds since the year began.
    ///
    /// - Parameter brokenAt: from then on nothing comes, tests neither.
    private static func year(
        _ arrivals: [TimeInterval], canAsk: Bool, brokenAt: TimeInterval = .infinity
    ) -> (asked: [TimeInterval], alarms: [TimeInterval]) {
        var (asked, alarms): ([TimeInterval], [TimeInterval]) = ([], [])
        var (next, heard, last): (Int, TimeInterval?, TimeInterval?) = (0, nil, nil)
        // The longest gap that ended on each day.
        var gaps: [Int: TimeInterval] = [:]
        var (known, days): ([TimeInterval], [Int]) = ([], [])
        for time in stride(from: -30 * day, to: 365 * day, by: 10 * minute) {
            while next < arrivals.count, arrivals[next] <= min(time, brokenAt) {
                if let last {
                    gaps[Int((arrivals[next] / day).rounded(.down)), default: 0].formMax(arrivals[next] - last)
                }
                (last, heard) = (arrivals[next], max(heard ?? arrivals[next], arrivals[next]))
                next += 1
            }
            guard time >= 0, let heardAt = heard else { continue }
            let span = [Int(heardAt / day) - 30, Int(time / day)]
            if span != days { (days, known) = (span, (span[0]..<span[1]).compactMap { gaps[$0] }.sorted()) }
            let place = 0.9 * Double(max(0, known.count - 1))
            let (low, high) = (Int(place.rounded(.down)), Int(place.rounded(.up)))
            let usual = known.isEmpty ? nil : known[low] + (known[high] - known[low]) * (place - Double(low))
            let silence = NotificationSilence(
                .init(
                    now: now + time, heardAt: now + heardAt, usualGap: usual, days: known.count,
                    askedAt: asked.last.map { now + $0 }, canAsk: canAsk))
            if silence.isSilent { alarms.append(time) }
            if silence.asks {
                asked.append(time)
                // Apple brings the test a second later.
                if time < brokenAt { heard = max(heardAt, time + 1) }
            }
        }
        return (asked, alarms)
    }

    @Test(
        "P38: no alarm in a quiet year, at most one test a day; a broken address alarms",
        arguments: [1 / 7.0, 0.5, 1, 5, 50, 1000])
    func years(perDay: Double) {
        for seed in 1...2 {
            var random = SeededRandom(seed: UInt64(seed))
            let arrivals = Self.arrivals(perDay: perDay, &random)
            for canAsk in [true, false] {
                let quiet = Self.year(arrivals, canAsk: canAsk)
                #expect(quiet.alarms == [], "\(perDay) a day, seed \(seed), asks: \(canAsk)")
                #expect(zip(quiet.asked, quiet.asked.dropFirst()).allSatisfy { $1 - $0 >= Self.day })
                #expect(canAsk || quiet.asked.isEmpty)
            }
            let brokenAt = 200 * Self.day
            let broken = Self.year(arrivals, canAsk: true, brokenAt: brokenAt)
            let first = broken.alarms.first ?? .infinity
            #expect(first > brokenAt && first < brokenAt + 30 * Self.day, "\(perDay) a day, seed \(seed)")
            if perDay >= 5 {
                #expect(first < brokenAt + 3 * Self.day)
                let mute = Self.year(arrivals, canAsk: false, brokenAt: brokenAt)
                #expect((mute.alarms.first ?? .infinity) < brokenAt + 20 * Self.day)
            }
            // The alarm stays as long as nothing comes, and Apple is asked each hour meanwhile.
            #expect(broken.alarms.last ?? 0 > 364 * Self.day)
        }
    }
}

extension TimeInterval {
    fileprivate mutating func formMax(_ other: TimeInterval) { self = Swift.max(self, other) }
}
