package import Foundation

/// A day of Apple's sales: a day of the calendar in Pacific time (America/Los_Angeles).
///
/// The offset is computed and not looked up, so that a machine without time zone data finds the same days.
package struct AppleDay: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// Days since 1970-01-01.
    package let number: Int

    package init(number: Int) { self.number = number }

    /// The day in Pacific time at a moment.
    package init(of date: Date) {
        let seconds = Int(date.timeIntervalSince1970.rounded(.down))
        number = Self.floorDivide(seconds + Self.offset(seconds), 86_400)
    }

    /// Nil: the calendar has no such day, or the year is not of four digits.
    package init?(year: Int, month: Int, day: Int) {
        guard (1000...9999).contains(year), (1...12).contains(month), (1...31).contains(day) else { return nil }
        let number = Self.number(year: year, month: month, day: day)
        guard Self.civil(number) == (year, month, day) else { return nil }
        self.number = number
    }

    /// Reads the two spellings of Apple's reports, `11/28/2026` and `2026-11-28`. Nil: anything else.
    package init?(_ text: some StringProtocol) {
        let isAmerican = text.contains("/")
        let parts = text.split(separator: isAmerican ? "/" : "-", omittingEmptySubsequences: false)
        let lengths = isAmerican ? [2, 2, 4] : [4, 2, 2]
        guard parts.count == 3,
            zip(parts, lengths).allSatisfy({ $0.utf8.count == $1 && $0.utf8.allSatisfy(Self.isDigit) })
        else { return nil }
        let numbers = parts.compactMap { Int($0) }
        guard numbers.count == 3 else { return nil }
        if isAmerican {
            self.init(year: numbers[2], month: numbers[0], day: numbers[1])
        } else {
            self.init(year: numbers[0], month: numbers[1], day: numbers[2])
        }
    }

    /// The first moment of the day. No change of the clocks falls on a midnight, so each day has one.
    package var start: Date {
        let standard = number * 86_400 + 8 * 3600
        return Date(timeIntervalSince1970: Double(Self.offset(standard) == -8 * 3600 ? standard : standard - 3600))
    }

    package var next: AppleDay { AppleDay(number: number + 1) }

    /// `2026-11-28`
    package var description: String {
        let (year, month, day) = Self.civil(number)
        return "\(year)-\(Self.two(month))-\(Self.two(day))"
    }

    package static func < (one: AppleDay, other: AppleDay) -> Bool { one.number < other.number }

    /// 0 is Sunday. 1970-01-01 was a Thursday.
    var weekday: Int { ((number + 4) % 7 + 7) % 7 }

    var year: Int { Self.civil(number).year }

    /// Seconds east of Greenwich: -8 h, and -7 h from the second Sunday of March to the first Sunday of November, each
    /// at 2:00 local time (Energy Policy Act of 2005, in force since 2007). Apple has sold no purchase before.
    private static func offset(_ seconds: Int) -> Int {
        let year = civil(floorDivide(seconds, 86_400)).year
        let start = sunday(2, month: 3, year: year) * 86_400 + 10 * 3600
        let end = sunday(1, month: 11, year: year) * 86_400 + 9 * 3600
        return seconds >= start && seconds < end ? -7 * 3600 : -8 * 3600
    }

    /// The number of the nth Sunday of a month.
    private static func sunday(_ nth: Int, month: Int, year: Int) -> Int {
        let first = AppleDay(number: number(year: year, month: month, day: 1))
        return first.number + (7 - first.weekday) % 7 + (nth - 1) * 7
    }

    private static func isDigit(_ byte: UInt8) -> Bool { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) }

    private static func two(_ value: Int) -> String { value < 10 ? "0\(value)" : "\(value)" }

    private static func floorDivide(_ value: Int, _ by: Int) -> Int {
        let (quotient, rest) = value.quotientAndRemainder(dividingBy: by)
        return rest < 0 ? quotient - 1 : quotient
    }

    /// Proleptic Gregorian calendar, after Howard Hinnant, "chrono-compatible low-level date algorithms".
    private static func civil(_ number: Int) -> (year: Int, month: Int, day: Int) {
        let shifted = number + 719_468
        let era = floorDivide(shifted, 146_097)
        let dayOfEra = shifted - era * 146_097
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let monthFromMarch = (5 * dayOfYear + 2) / 153
        let month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
        return (yearOfEra + era * 400 + (month <= 2 ? 1 : 0), month, dayOfYear - (153 * monthFromMarch + 2) / 5 + 1)
    }

    private static func number(year: Int, month: Int, day: Int) -> Int {
        let shifted = month <= 2 ? year - 1 : year
        let era = floorDivide(shifted, 400)
        let yearOfEra = shifted - era * 400
        let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
        return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468
    }
}

/// Days of Apple's sales without a gap: the days of one report.
package struct AppleDays: Sendable, Hashable, Comparable, CustomStringConvertible {
    package let first: AppleDay
    package let last: AppleDay

    /// - Parameter last: not before `first`.
    package init(_ first: AppleDay, _ last: AppleDay) {
        self.first = first
        self.last = last
    }

    package var start: Date { first.start }
    /// The first moment that does not belong to the days.
    package var end: Date { last.next.start }

    package func contains(_ date: Date) -> Bool { start <= date && date < end }

    package func overlaps(_ other: AppleDays) -> Bool { first <= other.last && other.first <= last }

    /// `2026-11-28`, or `2026-11-23 to 2026-11-29`
    package var description: String { first == last ? "\(first)" : "\(first) to \(last)" }

    package static func < (one: AppleDays, other: AppleDays) -> Bool {
        (one.first, one.last) < (other.first, other.last)
    }
}

/// A month of Apple's fiscal calendar, by which Apple settles.
///
/// The fiscal year ends on the last Saturday of September. Each quarter has months of five, four and four weeks. In a
/// year of 53 weeks the additional week is the fifth one of December (fiscal 2012, 2017, 2023).
package struct FiscalMonth: Sendable, Hashable {
    /// The fiscal year, in which its September falls.
    package let year: Int
    /// From 1, which is October of the calendar year before.
    package let month: Int
    package let days: AppleDays

    /// Nil: there is no such month. Apple has settled by it since 2008.
    package init?(year: Int, month: Int) {
        guard (2008...9998).contains(year), (1...12).contains(month) else { return nil }
        self.year = year
        self.month = month
        let start = Self.end(of: year - 1).number + 1
        let weeks = Self.weeks(of: year)
        let before = weeks.prefix(month - 1).reduce(0, +)
        days = AppleDays(
            AppleDay(number: start + 7 * before), AppleDay(number: start + 7 * (before + weeks[month - 1]) - 1))
    }

    /// The month in which a day lies. Nil: a day before fiscal 2008.
    package init?(containing day: AppleDay) {
        let year = day > Self.end(of: day.year) ? day.year + 1 : day.year
        for month in 1...12 {
            guard let found = FiscalMonth(year: year, month: month) else { return nil }
            if found.days.last >= day {
                self = found
                return
            }
        }
        return nil
    }

    private static func weeks(of year: Int) -> [Int] {
        let isLong = end(of: year).number - end(of: year - 1).number == 53 * 7
        return [5, 4, isLong ? 5 : 4] + [5, 4, 4, 5, 4, 4, 5, 4, 4]
    }

    /// The last Saturday of September.
    private static func end(of year: Int) -> AppleDay {
        guard let last = AppleDay(year: year, month: 9, day: 30) else { preconditionFailure("a year of four digits") }
        return AppleDay(number: last.number - (last.weekday + 1) % 7)
    }
}
