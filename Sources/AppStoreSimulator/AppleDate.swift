/// A moment in UNIX milliseconds, the three ways verifyReceipt spells it, and the one of receipts.
///
/// Source: Apple, "responseBody.Receipt": `X` like `2013-08-01 07:00:00 Etc/GMT`, `X_ms` as a string, `X_pst` like
/// `2013-08-01 00:00:00 America/Los_Angeles`. Computed here, so that a machine without time zone data answers the same.
struct AppleDate {
    let milliseconds: Int64

    var gmt: String { Self.text(seconds) + " Etc/GMT" }
    var pacific: String { Self.text(seconds + Self.pacificOffset(seconds)) + " America/Los_Angeles" }

    /// `2013-08-01T07:00:00Z`, for years of four digits.
    var rfc3339: String { Self.text(seconds).replacing(" ", with: "T") + "Z" }

    init(milliseconds: Int64) { self.milliseconds = milliseconds }

    /// Reads ``rfc3339``; nil for any other text.
    init?(rfc3339: String) {
        let numbers = rfc3339.split { !$0.isNumber }.compactMap { Int64($0) }
        guard numbers.count == 6 else { return nil }
        let seconds =
            Self.days(year: numbers[0], month: numbers[1], day: numbers[2]) * 86_400 + numbers[3] * 3600
            + numbers[4] * 60 + numbers[5]
        guard AppleDate(milliseconds: seconds * 1000).rfc3339 == rfc3339 else { return nil }
        milliseconds = seconds * 1000
    }

    /// The same time of day so many calendar months later, on the month's last day where the month is shorter.
    static func adding(months: Int64, to milliseconds: Int64) -> Int64 {
        let day = floorDivide(milliseconds, 86_400_000)
        let date = civil(day)
        let month = date.year * 12 + date.month - 1 + months
        let first = firstDay(month: month)
        let target = first + min(date.day, firstDay(month: month + 1) - first) - 1
        return target * 86_400_000 + milliseconds - day * 86_400_000
    }

    /// The day number of the first day of a month that is counted from January of the year 0.
    private static func firstDay(month: Int64) -> Int64 {
        let year = floorDivide(month, 12)
        return days(year: year, month: month - year * 12 + 1, day: 1)
    }

    /// The day in Los Angeles: days since 1970-01-01.
    var pacificDay: Int64 { Self.floorDivide(seconds + Self.pacificOffset(seconds), 86_400) }

    /// A day as reports write it: `11/28/2026`.
    static func reportDay(_ day: Int64) -> String {
        let date = civil(day)
        return "\(two(date.month))/\(two(date.day))/\(date.year)"
    }

    /// Reads `2026-11-28`; nil: there is no such day.
    static func day(_ text: String) -> Int64? {
        AppleDate(rfc3339: text + "T00:00:00Z").map { floorDivide($0.milliseconds, 86_400_000) }
    }

    /// The days of a month of Apple's fiscal year; month 1 is October of the calendar year before. The year ends on the
    /// last Saturday of September; its quarters have months of 5, 4 and 4 weeks, and the December of a year of 53 weeks
    /// has 5.
    static func fiscalMonth(_ month: Int, of year: Int64) -> ClosedRange<Int64> {
        let end = { (year: Int64) -> Int64 in sunday(1, month: 10, year: year) - 1 }
        let lastSaturday = { (year: Int64) -> Int64 in
            let saturday = end(year)
            return civil(saturday).month == 10 ? saturday - 7 : saturday
        }
        let start = lastSaturday(year - 1) + 1
        let isLong = lastSaturday(year) - start + 1 == 53 * 7
        let weeks: [Int64] = [5, 4, isLong ? 5 : 4, 5, 4, 4, 5, 4, 4, 5, 4, 4]
        let first = start + 7 * weeks.prefix(month - 1).reduce(0, +)
        return first...(first + 7 * weeks[month - 1] - 1)
    }

    private var seconds: Int64 { Self.floorDivide(milliseconds, 1000) }

    /// Seconds east of Greenwich in Los Angeles: -8 h, in summer -7 h.
    /// Summer is from the second Sunday of March to the first Sunday of November, 2:00 local (law since 2007;
    /// earlier purchases do not exist).
    private static func pacificOffset(_ seconds: Int64) -> Int64 {
        let year = civil(floorDivide(seconds, 86_400)).year
        let start = sunday(2, month: 3, year: year) * 86_400 + 10 * 3600
        let end = sunday(1, month: 11, year: year) * 86_400 + 9 * 3600
        return seconds >= start && seconds < end ? -7 * 3600 : -8 * 3600
    }

    /// The day number (days since 1970-01-01) of the nth Sunday of a month. 1970-01-01 was a Thursday.
    private static func sunday(_ nth: Int64, month: Int64, year: Int64) -> Int64 {
        let first = days(year: year, month: month, day: 1)
        let weekday = ((first + 4) % 7 + 7) % 7
        return first + (7 - weekday) % 7 + (nth - 1) * 7
    }

    private static func text(_ seconds: Int64) -> String {
        let date = civil(floorDivide(seconds, 86_400))
        let rest = seconds - floorDivide(seconds, 86_400) * 86_400
        return "\(date.year)-\(two(date.month))-\(two(date.day)) "
            + "\(two(rest / 3600)):\(two(rest / 60 % 60)):\(two(rest % 60))"
    }

    private static func two(_ value: Int64) -> String { value < 10 ? "0\(value)" : "\(value)" }

    private static func floorDivide(_ value: Int64, _ by: Int64) -> Int64 {
        value >= 0 ? value / by : -((-value + by - 1) / by)
    }

    /// Proleptic Gregorian calendar, after Howard Hinnant, "chrono-compatible low-level date algorithms".
    private static func civil(_ days: Int64) -> (year: Int64, month: Int64, day: Int64) {
        let shifted = days + 719_468
        let era = floorDivide(shifted, 146_097)
        let dayOfEra = shifted - era * 146_097
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let monthFromMarch = (5 * dayOfYear + 2) / 153
        let month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
        return (yearOfEra + era * 400 + (month <= 2 ? 1 : 0), month, dayOfYear - (153 * monthFromMarch + 2) / 5 + 1)
    }

    private static func days(year: Int64, month: Int64, day: Int64) -> Int64 {
        let shifted = month <= 2 ? year - 1 : year
        let era = floorDivide(shifted, 400)
        let yearOfEra = shifted - era * 400
        let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
        return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468
    }
}
