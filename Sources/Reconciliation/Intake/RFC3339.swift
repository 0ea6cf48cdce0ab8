package import Foundation

extension Date {
    /// UTC with milliseconds, rounded down (RFC 3339, 5.6), of the years 1 to 9999: every time that PostgreSQL gives us.
    ///
    /// By hand, because every answer holds two of them and `ISO8601FormatStyle` asks a calendar for each.
    package var rfc3339: String {
        // What no clock of ours says: infinity, or a year of another length.
        guard (-62_135_596_800..<253_402_300_800).contains(timeIntervalSince1970) else {
            return formatted(Date.ISO8601FormatStyle(includingFractionalSeconds: true))
        }
        let milliseconds = Int(((timeIntervalSince1970 * 1_000_000).rounded() / 1000).rounded(.down))
        let (days, time) = milliseconds.quotientAndRemainder(flooring: 86_400_000)
        let (year, month, day) = Self.civil(days)
        return String(unsafeUninitializedCapacity: 24) { bytes in
            var count = 0
            func put(_ value: Int, digits: Int, then separator: Character) {
                var value = value
                for index in stride(from: count + digits - 1, through: count, by: -1) {
                    bytes[index] = UInt8(ascii: "0") + UInt8(value % 10)
                    value /= 10
                }
                bytes[count + digits] = separator.asciiValue!
                count += digits + 1
            }
            put(year, digits: 4, then: "-")
            put(month, digits: 2, then: "-")
            put(day, digits: 2, then: "T")
            put(time / 3_600_000, digits: 2, then: ":")
            put(time / 60_000 % 60, digits: 2, then: ":")
            put(time / 1000 % 60, digits: 2, then: ".")
            put(time % 1000, digits: 3, then: "Z")
            return count
        }
    }

    /// The day of the proleptic Gregorian calendar, so many days after 1970-01-01. Years are counted from March, in eras
    /// of 400 years, so that leap days come last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    private static func civil(_ days: Int) -> (year: Int, month: Int, day: Int) {
        let (era, dayOfEra) = (days + 719_468).quotientAndRemainder(flooring: 146_097)
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let fifth = (5 * dayOfYear + 2) / 153
        let month = fifth < 10 ? fifth + 3 : fifth - 9
        return (yearOfEra + era * 400 + (month <= 2 ? 1 : 0), month, dayOfYear - (153 * fifth + 2) / 5 + 1)
    }
}

extension Int {
    /// The remainder is never negative.
    fileprivate func quotientAndRemainder(flooring divisor: Int) -> (quotient: Int, remainder: Int) {
        let (quotient, remainder) = quotientAndRemainder(dividingBy: divisor)
        return remainder < 0 ? (quotient - 1, remainder + divisor) : (quotient, remainder)
    }
}
