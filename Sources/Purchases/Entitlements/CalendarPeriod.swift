package import Foundation

/// A period of the calendar, in years, months and days of UTC: `P30D`, `P2W`, `P1M`, `P1Y6M` (ISO 8601, without hours).
package struct CalendarPeriod: Sendable, Equatable, CustomStringConvertible {
    /// The most years, months, weeks or days that one period names.
    private static let countMax = 9999
    private static let calendar: Calendar = {
        var calendar = Calendar(identifier: .gregorian)
        calendar.timeZone = .gmt
        return calendar
    }()

    package let years: Int
    package let months: Int
    package let days: Int

    /// Nil for anything but a period as above that is longer than nothing. Weeks are seven days each.
    package init?(_ text: String) {
        guard
            let match = text.wholeMatch(
                of: /P(?:(\d{1,4})Y)?(?:(\d{1,4})M)?(?:(\d{1,4})W)?(?:(\d{1,4})D)?/.asciiOnlyDigits())
        else { return nil }
        let count = { (digits: Substring?) in digits.flatMap { Int($0) } ?? 0 }
        years = count(match.1)
        months = count(match.2)
        days = 7 * count(match.3) + count(match.4)
        guard years + months + days > 0 else { return nil }
    }

    /// As ISO 8601 writes it, weeks as days.
    package var description: String {
        "P" + [(years, "Y"), (months, "M"), (days, "D")].filter { $0.0 > 0 }.map { "\($0.0)\($0.1)" }.joined()
    }

    /// When so many of these periods end that begin at a date. A month that is too short for the day ends on its last
    /// day.
    ///
    /// - Parameter count: from 1; a number beyond reason counts as ten thousand.
    package func end(from date: Date, count: Int = 1) -> Date {
        let count = min(max(count, 1), 10_000)
        let parts = DateComponents(year: years * count, month: months * count, day: days * count)
        return Self.calendar.date(byAdding: parts, to: date) ?? .distantFuture
    }
}
