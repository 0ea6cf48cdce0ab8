import Foundation
import Synchronization

/// The clock of the store: the machine's time and an offset that only grows. Everything that the store dates reads it.
///
/// The ledger keeps the offset, so that a restart does not take the clock back.
final class StoreClock: Sendable {
    private let offset = Mutex<Int64>(0)

    /// The machine's time, UNIX milliseconds.
    static var machine: Int64 { Int64((Date().timeIntervalSince1970 * 1000).rounded(.down)) }

    /// The store's time, UNIX milliseconds.
    var now: Int64 { Self.machine + offsetMilliseconds }

    var offsetMilliseconds: Int64 { offset.withLock { $0 } }

    /// Takes a larger offset; a smaller one changes nothing.
    func set(offsetMilliseconds: Int64) { offset.withLock { $0 = max($0, offsetMilliseconds) } }
}

/// How far the clock moves: the body of `POST /control/clock`. Exactly one field is set.
package struct ClockRequest: ControlBody, Sendable {
    /// An ISO 8601 duration (`P1D`, `P1M`, `PT90S`), or a number of seconds, which may have a fraction.
    package enum Advance: Decodable, Sendable {
        case period(String)
        case seconds(Double)

        package init(from decoder: any Decoder) throws {
            let container = try decoder.singleValueContainer()
            if let seconds = try? container.decode(Double.self) {
                self = .seconds(seconds)
            } else {
                self = .period(try container.decode(String.self))
            }
        }
    }

    /// A moment: UNIX milliseconds, or a text such as `2026-12-24T18:00:00Z`.
    package enum Moment: Decodable, Sendable {
        case milliseconds(Int64)
        case text(String)

        package init(from decoder: any Decoder) throws {
            let container = try decoder.singleValueContainer()
            if let milliseconds = try? container.decode(Int64.self) {
                self = .milliseconds(milliseconds)
            } else {
                self = .text(try container.decode(String.self))
            }
        }
    }

    package var advance: Advance?
    package var to: Moment?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case advance, to
    }

    package static let fractions: Set<String> = ["advance"]

    package init(advance: String) { self.advance = .period(advance) }

    package init(to milliseconds: Int64) { to = .milliseconds(milliseconds) }

    /// Where the clock shall stand.
    ///
    /// - Throws: 400 for a moment before `now` or after `end`: the certificates are not valid there.
    func target(now: Int64, end: Int64) throws(ControlError) -> Int64 {
        let (field, target): (String, Int64)
        switch (advance, to) {
        case (.period(let text)?, nil):
            guard let period = Period(text) else {
                throw ControlError(field: "advance", "must be a duration such as P1D or PT90S, or a number of seconds")
            }
            (field, target) = ("advance", period.after(now))
        case (.seconds(let seconds)?, nil):
            guard (0...1e9).contains(seconds) else {
                throw ControlError(field: "advance", "must be 0 to 1000000000 seconds")
            }
            (field, target) = ("advance", now + Int64((seconds * 1000).rounded()))
        case (nil, .milliseconds(let moment)?): (field, target) = ("to", moment)
        case (nil, .text(let text)?):
            guard let date = AppleDate(rfc3339: text) else {
                throw ControlError(field: "to", "must be UNIX milliseconds, or a time such as 2026-12-24T18:00:00Z")
            }
            (field, target) = ("to", date.milliseconds)
        case (nil, nil): throw ControlError(field: "advance", "is missing, and so is to")
        case (.some, .some): throw ControlError(field: "to", "must not stand beside advance")
        }
        guard target >= now else { throw ControlError(field: field, "the clock does not go back") }
        guard target <= end else {
            let last = AppleDate(milliseconds: end).rfc3339
            throw ControlError(field: field, "the certificates of this store end at \(last)")
        }
        return target
    }
}

/// A length of time in calendar months and milliseconds, read from an ISO 8601 duration: `P1W`, `P1M`, `P1Y`, `PT5M`.
struct Period: Equatable {
    let months: Int64
    let milliseconds: Int64

    /// Nil for any other text, for no length at all, and for a number of more than six digits.
    init?(_ text: String) {
        guard text.utf8.first == UInt8(ascii: "P") else { return nil }
        var months: Int64 = 0
        var milliseconds: Int64 = 0
        var digits = ""
        var isTime = false
        var parts = 0
        for character in text.dropFirst() {
            if character.isASCII, character.isNumber {
                digits.append(character)
                guard digits.utf8.count <= 6 else { return nil }
                continue
            }
            if character == "T" {
                guard !isTime, digits.isEmpty else { return nil }
                isTime = true
                continue
            }
            guard let number = Int64(digits) else { return nil }
            switch (character, isTime) {
            case ("Y", false): months += 12 * number
            case ("M", false): months += number
            case ("W", false): milliseconds += 7 * 86_400_000 * number
            case ("D", false): milliseconds += 86_400_000 * number
            case ("H", true): milliseconds += 3_600_000 * number
            case ("M", true): milliseconds += 60_000 * number
            case ("S", true): milliseconds += 1000 * number
            default: return nil
            }
            digits = ""
            parts += 1
        }
        guard digits.isEmpty, parts > 0, months + milliseconds > 0 else { return nil }
        self.months = months
        self.milliseconds = milliseconds
    }

    /// The moment that lies this period after `moment`, UNIX milliseconds.
    func after(_ moment: Int64) -> Int64 { AppleDate.adding(months: months, to: moment) + milliseconds }

    /// Refuses a text that is no period, and a period shorter than a minute: a jump of the clock would bring too many.
    static func check(_ text: String, _ field: String) throws(ControlError) {
        guard let period = Period(text), period.months > 0 || period.milliseconds >= 60_000 else {
            throw ControlError(field: field, "must be a duration of a minute or more, such as P1W, P1M or PT5M")
        }
    }
}
