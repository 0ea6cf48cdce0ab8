import Foundation

/// A time as receipts spell it: `2026-05-01T12:00:00Z`, in Xcode's also with an offset like `+0100`.
///
/// Read by hand: a receipt of years has thousands, and Foundation's parser takes microseconds for each.
/// Source: RFC 3339 section 5.6, AppleFacts 6.3.
enum ReceiptDate {
    static func parse(_ text: String) -> Date? {
        var scanner = Scanner(bytes: Array(text.utf8))
        guard let local = time(&scanner, after: "T"), let fraction = scanner.fraction(),
            let offset = scanner.offset(), scanner.isAtEnd
        else { return nil }
        return Date(timeIntervalSince1970: Double(local - offset) + fraction)
    }

    /// A time as an answer of verifyReceipt spells it: `2012-04-30 15:05:55 Etc/GMT`, or the same with
    /// `America/Los_Angeles`. Nil for an hour that the zone has twice in a year. Source: AppleFacts 5.1.
    static func parse(inAnswer text: String) -> Date? {
        var scanner = Scanner(bytes: Array(text.utf8))
        guard let local = time(&scanner, after: " "), scanner.takes(" ") else { return nil }
        let offsets: [Int]
        switch scanner.rest {
        case "Etc/GMT", "GMT", "Etc/UTC", "UTC": offsets = [0]
        case pacific.identifier: offsets = [-8 * 3600, -7 * 3600]
        default: return nil
        }
        let dates = offsets.compactMap { offset in
            let date = Date(timeIntervalSince1970: Double(local - offset))
            return offset == 0 || pacific.secondsFromGMT(for: date) == offset ? date : nil
        }
        return dates.count == 1 ? dates[0] : nil
    }

    private static let pacific = TimeZone(identifier: "America/Los_Angeles") ?? .gmt

    /// Seconds since 1970 of a date and a time of day, as if at Greenwich.
    private static func time(_ scanner: inout Scanner, after separator: Unicode.Scalar) -> Int? {
        guard let year = scanner.number(4), scanner.takes("-"), let month = scanner.number(2), scanner.takes("-"),
            let day = scanner.number(2), scanner.takes(separator), let hour = scanner.number(2), scanner.takes(":"),
            let minute = scanner.number(2), scanner.takes(":"), let second = scanner.number(2),
            (1...12).contains(month), (1...days(in: month, of: year)).contains(day), hour < 24, minute < 60,
            second <= 60
        else { return nil }
        return daysSince1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
    }

    private static func days(in month: Int, of year: Int) -> Int {
        switch month {
        case 2: year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28
        case 4, 6, 9, 11: 30
        default: 31
        }
    }

    /// Proleptic Gregorian calendar, after Howard Hinnant, "chrono-compatible low-level date algorithms".
    private static func daysSince1970(_ year: Int, _ month: Int, _ day: Int) -> Int {
        let shifted = month <= 2 ? year - 1 : year
        let era = (shifted >= 0 ? shifted : shifted - 399) / 400
        let yearOfEra = shifted - era * 400
        let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
        return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468
    }

    private struct Scanner {
        let bytes: [UInt8]
        var position = 0

        init(bytes: [UInt8]) { self.bytes = bytes }

        var isAtEnd: Bool { position == bytes.count }
        var rest: String { String(decoding: bytes[position...], as: UTF8.self) }

        mutating func takes(_ character: Unicode.Scalar) -> Bool {
            guard position < bytes.count, bytes[position] == UInt8(ascii: character) else { return false }
            position += 1
            return true
        }

        mutating func number(_ digits: Int) -> Int? {
            guard position + digits <= bytes.count else { return nil }
            var value = 0
            for byte in bytes[position..<position + digits] {
                let digit = byte &- UInt8(ascii: "0")
                guard digit < 10 else { return nil }
                value = value * 10 + Int(digit)
            }
            position += digits
            return value
        }

        /// Up to nine digits behind a point; 0 where there is none.
        mutating func fraction() -> Double? {
            guard takes(".") else { return 0 }
            let start = position
            var (value, unit) = (0.0, 1.0)
            while position - start < 9, let digit = number(1) {
                unit /= 10
                value += Double(digit) * unit
            }
            return position > start ? value : nil
        }

        /// Seconds east of Greenwich.
        mutating func offset() -> Int? {
            if takes("Z") { return 0 }
            let sign = takes("+") ? 1 : takes("-") ? -1 : 0
            guard sign != 0, let hours = number(2) else { return nil }
            _ = takes(":")
            guard let minutes = number(2), hours < 24, minutes < 60 else { return nil }
            return sign * (hours * 3600 + minutes * 60)
        }
    }
}
