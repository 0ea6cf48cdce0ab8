import Encoding
import Foundation
import Testing

@testable import Purchases

/// Goal: a moment belongs to Apple's day in Pacific time, also on the two days of the year on which the clocks change,
/// and to Apple's fiscal month. Method: known moments, and every hour of twenty years against the system's time zone
/// data.
@Suite struct AppleDayTests {
    @Test(
        "moments around midnight and around both changes of the clocks",
        arguments: [
            ("2026-11-28T07:59:59Z", "2026-11-27"), ("2026-11-28T08:00:00Z", "2026-11-28"),
            ("2026-07-04T06:59:59Z", "2026-07-03"), ("2026-07-04T07:00:00Z", "2026-07-04"),
            // 2026-03-08 has 23 hours.
            ("2026-03-08T07:59:59Z", "2026-03-07"), ("2026-03-08T08:00:00Z", "2026-03-08"),
            ("2026-03-08T09:59:59Z", "2026-03-08"), ("2026-03-08T10:00:00Z", "2026-03-08"),
            ("2026-03-09T06:59:59Z", "2026-03-08"), ("2026-03-09T07:00:00Z", "2026-03-09"),
            // 2026-11-01 has 25 hours.
            ("2026-11-01T06:59:59Z", "2026-10-31"), ("2026-11-01T07:00:00Z", "2026-11-01"),
            ("2026-11-01T08:59:59Z", "2026-11-01"), ("2026-11-01T09:00:00Z", "2026-11-01"),
            ("2026-11-02T07:59:59Z", "2026-11-01"), ("2026-11-02T08:00:00Z", "2026-11-02"),
            ("2028-02-29T20:00:00Z", "2028-02-29"), ("2026-01-01T07:59:59Z", "2025-12-31"),
            ("1969-12-31T23:59:59Z", "1969-12-31"),
        ])
    func moments(moment: String, day: String) throws {
        #expect(AppleDay(of: try #require(Date(rfc3339: moment))).description == day)
    }

    @Test("every hour of twenty years is in the day of the system's time zone data, and each day begins there")
    func everyHour() throws {
        let zone = try #require(TimeZone(identifier: "America/Los_Angeles"))
        var calendar = Calendar(identifier: .gregorian)
        calendar.timeZone = zone
        let start = try #require(Date(rfc3339: "2010-01-01T00:30:00Z"))
        var wrong: [Date] = []
        var last = AppleDay(of: start)
        for hour in 0..<(20 * 366 * 24) {
            let date = start + Double(hour) * 3600
            let day = AppleDay(of: date)
            let seconds = Int(date.timeIntervalSince1970) + zone.secondsFromGMT(for: date)
            if day.number != seconds / 86_400 { wrong.append(date) }
            if day != last, calendar.startOfDay(for: date) != day.start { wrong.append(date) }
            last = day
        }
        #expect(wrong.prefix(3) == [])
        #expect(last.number > 21_900)
    }

    @Test("a day begins where the day before ends, with 23, 24 or 25 hours")
    func lengths() throws {
        let first = try #require(AppleDay(year: 2026, month: 1, day: 1))
        var hours: [Int: Int] = [:]
        for offset in 0..<365 {
            let day = AppleDay(number: first.number + offset)
            hours[Int(day.next.start.timeIntervalSince(day.start)) / 3600, default: 0] += 1
            #expect(AppleDay(of: day.start) == day)
            #expect(AppleDay(of: day.start - 0.001).next == day)
        }
        #expect(hours == [23: 1, 24: 363, 25: 1])
    }

    @Test(
        "both spellings of Apple's reports, and nothing else",
        arguments: [
            ("11/28/2026", "2026-11-28"), ("2026-11-28", "2026-11-28"), ("02/29/2028", "2028-02-29"),
            ("02/29/2026", nil), ("2026-13-01", nil), ("2026-00-10", nil), ("2026-1-01", nil), ("28/11/2026", nil),
            ("11/28/26", nil), ("11-28-2026", nil), ("2026/11/28", nil), ("", nil), ("２026-11-28", nil),
            ("2026-11-28T00:00:00Z", nil), ("-026-11-28", nil), ("+1/28/2026", nil),
        ] as [(String, String?)])
    func spellings(text: String, day: String?) {
        #expect(AppleDay(text)?.description == day)
    }

    @Test(
        "Apple's fiscal months, with the years of 53 weeks",
        arguments: [
            // A published report of September of fiscal 2014 has these days.
            (2014, 12, "2014-08-31 to 2014-09-27"),
            (2024, 1, "2023-10-01 to 2023-11-04"), (2024, 3, "2023-12-03 to 2023-12-30"),
            (2024, 4, "2023-12-31 to 2024-02-03"), (2024, 12, "2024-09-01 to 2024-09-28"),
            // 53 weeks: the fourteenth of the first quarter belongs to December.
            (2023, 1, "2022-09-25 to 2022-10-29"), (2023, 3, "2022-11-27 to 2022-12-31"),
            (2023, 4, "2023-01-01 to 2023-02-04"), (2023, 12, "2023-09-03 to 2023-09-30"),
            (2012, 3, "2011-11-27 to 2011-12-31"), (2017, 3, "2016-11-27 to 2016-12-31"),
            (2027, 2, "2026-11-01 to 2026-11-28"),
        ])
    func fiscalMonths(year: Int, month: Int, days: String) throws {
        let found = try #require(FiscalMonth(year: year, month: month))
        #expect(found.days.description == days)
        #expect(FiscalMonth(containing: found.days.first) == found)
        #expect(FiscalMonth(containing: found.days.last) == found)
    }

    @Test("the fiscal months of twenty years have no gap, and each day is in one")
    func everyFiscalMonth() throws {
        var last: FiscalMonth?
        for year in 2011...2031 {
            for month in 1...12 {
                let found = try #require(FiscalMonth(year: year, month: month))
                if let last { #expect(last.days.last.next == found.days.first) }
                #expect([28, 35].contains(found.days.last.number - found.days.first.number + 1))
                for number in found.days.first.number...found.days.last.number {
                    #expect(FiscalMonth(containing: AppleDay(number: number)) == found)
                }
                last = found
            }
        }
        #expect(FiscalMonth(year: 2007, month: 12) == nil && FiscalMonth(year: 2026, month: 13) == nil)
    }
}
