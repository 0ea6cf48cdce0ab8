public import Foundation

extension Date {
    /// UTC with milliseconds, rounded down (RFC 3339, 5.6), of the years 1 to 9999: every time that PostgreSQL gives
    /// us.
    ///
    /// Written by hand, because every answer holds two of them and `ISO8601FormatStyle` asks a calendar for each.
    public var rfc3339: String {
        // A time that no clock of ours gives: infinity, or a year of another length.
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

    /// The date of the proleptic Gregorian calendar that is `days` days after 1970-01-01. Years are counted from March,
    /// in eras of 400 years, so that leap days come last (Howard Hinnant, "chrono-Compatible Low-Level Date
    /// Algorithms").
    private static func civil(_ days: Int) -> (year: Int, month: Int, day: Int) {
        let (era, dayOfEra) = (days + 719_468).quotientAndRemainder(flooring: 146_097)
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let fifth = (5 * dayOfYear + 2) / 153
        let month = fifth < 10 ? fifth + 3 : fifth - 9
        return (yearOfEra + era * 400 + (month <= 2 ? 1 : 0), month, dayOfYear - (153 * fifth + 2) / 5 + 1)
    }
}

extension Date {
    /// Reads a time by RFC 3339, 5.6, with its zone; a space may stand for the T. Nil for anything else, also for a day
    /// that no calendar has. More than nine digits of a second are refused; a leap second is the second after it.
    ///
    /// Written by hand, because imported files hold millions of them.
    public init?(rfc3339 text: String) {
        let bytes = Array(text.utf8)
        guard bytes.count >= 20, bytes.count <= 35 else { return nil }
        func number(_ range: Range<Int>) -> Int? {
            var value = 0
            for byte in bytes[range] {
                guard (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) else { return nil }
                value = value * 10 + Int(byte - UInt8(ascii: "0"))
            }
            return value
        }
        func has(_ character: Character, at index: Int) -> Bool { bytes[index] == character.asciiValue }
        guard let year = number(0..<4), has("-", at: 4), let month = number(5..<7), has("-", at: 7),
            let day = number(8..<10), has("T", at: 10) || has("t", at: 10) || has(" ", at: 10),
            let hour = number(11..<13), has(":", at: 13), let minute = number(14..<16), has(":", at: 16),
            let second = number(17..<19), year > 0, (1...12).contains(month), day > 0, hour < 24, minute < 60,
            second <= 60
        else { return nil }
        var rest = 19
        var fraction = 0.0
        if has(".", at: rest) {
            let digits = bytes[(rest + 1)...].prefix { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }
            guard (1...9).contains(digits.count), let value = number(digits.startIndex..<digits.endIndex) else {
                return nil
            }
            fraction = Double(value) / pow(10, Double(digits.count))
            rest = digits.endIndex
        }
        guard rest < bytes.count else { return nil }
        var offset = 0
        if has("Z", at: rest) || has("z", at: rest) {
            guard rest + 1 == bytes.count else { return nil }
        } else {
            guard has("+", at: rest) || has("-", at: rest), rest + 6 == bytes.count, has(":", at: rest + 3),
                let hours = number(rest + 1..<rest + 3), let minutes = number(rest + 4..<rest + 6), hours < 24,
                minutes < 60
            else { return nil }
            offset = (has("-", at: rest) ? -60 : 60) * (hours * 60 + minutes)
        }
        let days = Self.days(year, month, day)
        guard Self.civil(days) == (year, month, day) else { return nil }
        self.init(
            timeIntervalSince1970: Double(days * 86_400 + hour * 3600 + minute * 60 + second - offset) + fraction)
    }

    /// The inverse of `civil`.
    private static func days(_ year: Int, _ month: Int, _ day: Int) -> Int {
        let year = month <= 2 ? year - 1 : year
        let (era, yearOfEra) = year.quotientAndRemainder(flooring: 400)
        let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
        return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468
    }
}

extension Int {
    /// The remainder is never negative.
    fileprivate func quotientAndRemainder(flooring divisor: Int) -> (quotient: Int, remainder: Int) {
        let (quotient, remainder) = quotientAndRemainder(dividingBy: divisor)
        return remainder < 0 ? (quotient - 1, remainder + divisor) : (quotient, remainder)
    }
}
