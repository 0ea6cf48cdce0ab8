package import Foundation

/// Compares Apple's units with ours place by place, and explains the differences.
///
/// Units that Apple never counts explain first. Then a unit that is missing on one day and left over on the other; then
/// purchases that are known here and not granted; then purchases without a country, in any country; then units that a
/// report may leave out; then units near days that no report covers; at last the time before the cutover. A cause
/// explains whole transactions only, and never more than is missing, so the order can leave a unit unexplained but
/// explains none away.
package struct BookComparison {
    /// How far from its date Apple may count a unit.
    package struct Slack: Sendable, Equatable {
        package var back: TimeInterval
        package var ahead: TimeInterval
        package var cause: BookCause

        /// | report | unit | earlier | later |
        /// | sales | a purchase | 2 h: Apple's own dates are up to an hour off (P23) | 2 h |
        /// | sales | a renewal: Apple charges within the day before the period begins | 24 h | 2 h |
        /// | sales | a refund: Apple corrects the dates of refunds | 7 days | 7 days |
        /// | financial | a purchase or a refund: Apple settles when the money has come | 24 h | 10 days |
        package static func of(_ entry: BookEntry, in kind: AppleReportKind) -> Slack {
            let (hour, day) = (3600.0, 86_400.0)
            return switch (kind, entry.side) {
            case (.sales, .sales):
                Slack(back: entry.isRenewal ? day : 2 * hour, ahead: 2 * hour, cause: .dayBoundary)
            case (.sales, .refunds): Slack(back: 7 * day, ahead: 7 * day, cause: .refundDay)
            case (.financial, _): Slack(back: day, ahead: 10 * day, cause: .settlementMonth)
            }
        }

        /// How far outside the days of a report an entry may lie and still be counted there.
        package static func widest(_ kind: AppleReportKind) -> TimeInterval { (kind == .sales ? 8 : 11) * 86_400 }
    }

    private typealias Place = AppleBooks.Place

    private let books: AppleBooks
    private let entries: [BookEntry]
    private let cutover: Date
    /// Apple's units less ours, without what is explained so far.
    private var rest: [Place: Int] = [:]
    private var ours: [Place: Int] = [:]
    private var parts: [Place: [BookCause: BookDifference.Part]] = [:]
    /// Apple's places by product, days and side, the country left out.
    private var countries: [Place: [Place]] = [:]
    /// Entries that explain something already.
    private var spent: Set<Int> = []

    /// - Parameters:
    ///   - entries: every one of the places that differ, and those around the days of the reports.
    ///   - cutover: from when on the app's purchases are granted here.
    /// - Returns: the places that differ, in order. Places of which there is no entry and that Apple does not count are
    ///   none.
    package static func differences(
        _ books: AppleBooks, _ entries: [BookEntry], cutover: Date, among isCompared: (AppleBooks.Place) -> Bool
    ) -> [BookDifference] {
        var comparison = BookComparison(books, entries, cutover: cutover)
        comparison.compare(isCompared)
        return comparison.differences
    }

    private init(_ books: AppleBooks, _ entries: [BookEntry], cutover: Date) {
        self.books = books
        self.entries = entries.sorted { ($0.at, $0.id, $0.side.rawValue) < ($1.at, $1.id, $1.side.rawValue) }
        self.cutover = cutover
    }

    private var differences: [BookDifference] {
        rest.keys.sorted().compactMap { place in
            let all = BookCause.allCases.compactMap { parts[place]?[$0] }
            let unexplained = rest[place] ?? 0
            guard unexplained != 0 || !all.isEmpty else { return nil }
            let units = books.places[place] ?? .init()
            return BookDifference(
                place: place, apple: units.count + units.restored, ours: ours[place] ?? 0,
                parts: all.map { BookDifference.Part($0.cause, $0.units, $0.transactions.sorted()) },
                unexplained: unexplained)
        }
    }

    private mutating func compare(_ isCompared: (AppleBooks.Place) -> Bool) {
        for (place, units) in books.places where isCompared(place) {
            rest[place] = units.count + units.restored
            var anywhere = place
            anywhere.country = ""
            countries[anywhere, default: []].append(place)
            if !books.isKnown(place.product) {
                if units != .init() { explain(place, .notOurs, units.count + units.restored) }
            } else if units.restored != 0 {
                explain(place, .restored, units.restored)
            }
        }
        for place in countries.keys { countries[place]?.sort() }
        for entry in entries where entry.standing == .counted {
            guard let place = place(of: entry) else { continue }
            rest[place, default: 0] -= entry.units
            ours[place, default: 0] += entry.units
        }
        explainWhatAppleNeverCounts()
        moveBetweenReports()
        findNotGranted()
        findCountries()
        findLeftOut()
        moveAcrossTheEdge()
        for (place, units) in rest where units > 0 && place.days.end <= cutover {
            explain(place, .beforeCutover, units)
        }
    }

    private mutating func explainWhatAppleNeverCounts() {
        for (index, entry) in entries.enumerated() where entry.standing == .counted {
            guard let place = place(of: entry), entry.isSandbox || entry.isShared else { continue }
            explain(place, entry.isSandbox ? .sandbox : .familyShared, -entry.units, index)
        }
    }

    /// A unit that we count too many on some days, and too few on others.
    private mutating func moveBetweenReports() {
        for (index, entry) in entries.enumerated() where isFree(index) && entry.standing == .counted {
            guard let own = place(of: entry), rest[own, default: 0] <= -entry.units else { continue }
            let slack = Slack.of(entry, in: books.kind)
            let days = days(from: entry.at - slack.back, to: entry.at + slack.ahead)
            for other in days.sorted(by: { distance(entry.at, $0) < distance(entry.at, $1) }) where other != own.days {
                var target = own
                target.days = other
                guard rest[target, default: 0] >= entry.units else { continue }
                explain(own, slack.cause, -entry.units, index)
                explain(target, slack.cause, entry.units, index)
                break
            }
        }
    }

    /// Units that Apple sold or gave back, and that are known here without a grant.
    private mutating func findNotGranted() {
        for (index, entry) in entries.enumerated() where isFree(index) {
            guard let cause = entry.standing.cause, !entry.isSandbox, !entry.isShared, let own = place(of: entry),
                rest[own, default: 0] >= entry.units
            else { continue }
            explain(own, cause, entry.units, index)
        }
    }

    /// Purchases without a country stand for one that is missing in any: granted ones first.
    private mutating func findCountries() {
        for isCounted in [true, false] {
            for (index, entry) in entries.enumerated()
            where isFree(index) && entry.country.isEmpty && (entry.standing == .counted) == isCounted {
                guard !entry.isSandbox, !entry.isShared, let own = place(of: entry),
                    let target = countries[own]?.first(where: { rest[$0, default: 0] >= entry.units })
                else { continue }
                if let cause = entry.standing.cause {
                    explain(target, cause, entry.units, index)
                } else if rest[own, default: 0] <= -entry.units {
                    explain(own, .countryUnknown, -entry.units, index)
                    explain(target, .countryUnknown, entry.units, index)
                }
            }
        }
    }

    /// Units that we count, and that Apple's report may leave out.
    private mutating func findLeftOut() {
        for (index, entry) in entries.enumerated() where isFree(index) && entry.standing == .counted {
            guard let own = place(of: entry), rest[own, default: 0] <= -entry.units else { continue }
            if entry.side == .refunds, entry.isReversed {
                explain(own, .refundReversed, -entry.units, index)
            } else if entry.isFree {
                explain(own, .priceZero, -entry.units, index)
            }
        }
    }

    /// A unit near days that no report covers: Apple may have counted it there, or counts here what lies there.
    private mutating func moveAcrossTheEdge() {
        for (index, entry) in entries.enumerated() where isFree(index) && entry.standing == .counted {
            guard !entry.isSandbox, !entry.isShared else { continue }
            let slack = Slack.of(entry, in: books.kind)
            let (first, last) = (entry.at - slack.back, entry.at + slack.ahead)
            if let own = place(of: entry) {
                if rest[own, default: 0] <= -entry.units, !isCovered(first, last) {
                    explain(own, slack.cause, -entry.units, index)
                }
                continue
            }
            for other in days(from: first, to: last) {
                let target = Place(product: entry.product, country: entry.country, days: other, side: entry.side)
                guard rest[target, default: 0] >= entry.units else { continue }
                explain(target, slack.cause, entry.units, index)
                break
            }
        }
    }

    // MARK: Places

    private func isFree(_ index: Int) -> Bool { !spent.contains(index) && entries[index].units > 0 }

    private mutating func explain(_ place: Place, _ cause: BookCause, _ units: Int, _ index: Int? = nil) {
        rest[place, default: 0] -= units
        var part = parts[place]?[cause] ?? BookDifference.Part(cause, 0)
        part.units += units
        if let index {
            part.transactions.append(entries[index].id)
            spent.insert(index)
        }
        parts[place, default: [:]][cause] = part
    }

    /// Nil: no report covers the day.
    private func place(of entry: BookEntry) -> Place? {
        days(from: entry.at, to: entry.at).first.map {
            Place(product: entry.product, country: entry.country, days: $0, side: entry.side)
        }
    }

    /// The days of reports that have a moment of the span. By halving: a year has 365 daily reports.
    private func days(from first: Date, to last: Date) -> ArraySlice<AppleDays> {
        var (low, high) = (0, books.days.count)
        while low < high {
            let middle = (low + high) / 2
            if books.days[middle].end <= first { low = middle + 1 } else { high = middle }
        }
        return books.days[low...].prefix { $0.start <= last }
    }

    private func isCovered(_ first: Date, _ last: Date) -> Bool {
        var covered = first
        for days in days(from: first, to: last) {
            guard days.start <= covered else { return false }
            covered = days.end
        }
        return covered > last
    }

    private func distance(_ date: Date, _ days: AppleDays) -> TimeInterval {
        date < days.start ? days.start.timeIntervalSince(date) : date.timeIntervalSince(days.end)
    }
}

extension BookEntry.Standing {
    /// Why it is not granted; nil: it is.
    fileprivate var cause: BookCause? {
        switch self {
        case .counted: nil
        case .imported: .imported
        case .undecided: .undecided
        case .rejected: .rejected
        case .beforeCutover: .beforeCutover
        case .upgraded: .upgraded
        }
    }
}
