package import Foundation

/// A change of the catalogue that would take back a promise, or change what was valid at a time that has passed.
package struct CatalogueConflict: Error, Sendable, Equatable {
    /// `com.example.coins6 / coins6, from 2026-04-07T00:00:00Z`.
    package let place: String
    package let problem: String
}

extension Catalogue {
    /// A version may leave the catalogue this long after it ended: then no purchase of its time comes any more.
    package static let endedFor: Duration = .seconds(366 * 86_400)

    /// The changes from this catalogue to the next one, a line each. Empty: there are none.
    ///
    /// A version that has begun stays as it is, because purchases of its time are made good by it. Only its end may be
    /// set, to a time to come. A version that has not begun may be changed at will.
    package func changes(to next: Catalogue, at now: Date) throws(CatalogueConflict) -> [String] {
        var lines: [String] = []
        for id in Set(products.keys).union(next.products.keys).sorted() {
            let (old, new) = (products[id], next.products[id])
            switch (old, new) {
            case (nil, let new?):
                lines.append("+ \(id): \(new.kind.rawValue), default \(new.defaultItem ?? "none")")
                if let text = new.terms.text { lines.append("+ \(id): \(text)") }
            case (_?, nil): lines.append("- \(id)")
            case (let old?, let new?):
                if old.kind != new.kind { lines.append("~ \(id): \(new.kind.rawValue), was \(old.kind.rawValue)") }
                if old.defaultItem != new.defaultItem {
                    lines.append("~ \(id): default \(new.defaultItem ?? "none"), was \(old.defaultItem ?? "none")")
                }
                if old.terms != new.terms {
                    lines.append("~ \(id): \(new.terms.text ?? "no terms"), was \(old.terms.text ?? "no terms")")
                }
            case (nil, nil): break
            }
            for item in Set(old?.items.keys.map { $0 } ?? []).union(new?.items.keys.map { $0 } ?? []).sorted() {
                lines += try Self.changes(
                    "\(id) / \(item)", from: old?.items[item], to: new?.items[item], at: now)
            }
        }
        return lines
    }

    private static func changes(
        _ place: String, from old: Item?, to new: Item?, at now: Date
    ) throws(CatalogueConflict) -> [String] {
        var lines: [String] = []
        if let old, let new, old.limits != new.limits { lines.append("~ \(place): \(new.limits.text)") }
        if old == nil, let new, !new.limits.areNone { lines.append("+ \(place): \(new.limits.text)") }
        for version in old?.versions ?? [] {
            let name = version.name(of: place)
            guard let same = new?.versions.first(where: { $0.isSame(as: version) }) else {
                guard !version.hasBegun(at: now) || version.endedLongBefore(now) else {
                    throw CatalogueConflict(place: name, problem: "has begun and must stay; end it by `until`")
                }
                lines.append("- \(name)")
                continue
            }
            if same == version { continue }
            guard version.hasBegun(at: now) else {
                lines.append("~ \(name): \(same.text)")
                continue
            }
            guard same.gives(as: version) else {
                throw CatalogueConflict(
                    place: name, problem: "has begun with other goods or another price; add a version that begins later"
                )
            }
            let isOver = version.until.map { $0 <= now } ?? false
            guard !isOver, same.until.map({ $0 >= now }) ?? true else {
                throw CatalogueConflict(place: name, problem: "cannot end at a time that has passed, or begin again")
            }
            lines.append("~ \(name): until \(same.until.map(\.text) ?? "open")")
        }
        for version in new?.versions ?? [] where !(old?.versions.contains { $0.isSame(as: version) } ?? false) {
            let name = version.name(of: place)
            // Nobody was promised anything by a new item, or by a promotion that no order could name.
            guard old == nil || version.promotion != nil || !version.hasBegun(at: now) else {
                throw CatalogueConflict(place: name, problem: "would change what was valid; it must begin later")
            }
            lines.append("+ \(name): \(version.text)")
        }
        return lines
    }
}

extension Catalogue.Version {
    /// Two of one item with the same promotion and beginning are one version.
    package func isSame(as other: Catalogue.Version) -> Bool { promotion == other.promotion && from == other.from }

    fileprivate func gives(as other: Catalogue.Version) -> Bool {
        goods == other.goods && bonuses == other.bonuses && price == other.price
    }

    fileprivate func endedLongBefore(_ now: Date) -> Bool {
        until.map { $0.addingTimeInterval(Catalogue.endedFor.inSeconds) < now } ?? false
    }

    fileprivate func name(of place: String) -> String {
        "\(place)\(promotion.map { ", promotion \($0)" } ?? ""), from \(from.map(\.text) ?? "ever")"
    }

    /// What it gives, as a person reads it.
    package var text: String {
        var parts = [goods.text]
        parts += bonuses.map { "+ \($0.goods.text) once \($0.once.rawValue) (\($0.id))" }
        if let price { parts.append("for \(price.milliunits) milliunits \(price.currency)") }
        if let until { parts.append("until \(until.text)") }
        return parts.joined(separator: " ")
    }
}

extension Catalogue.Limits {
    package var text: String {
        let parts = [("day", day), ("month", month), ("ever", ever)].compactMap { name, count in
            count.map { "\($0) a user \(name == "ever" ? "ever" : "and \(name)")" }
        }
        return parts.isEmpty ? "no limits" : "at most " + parts.joined(separator: ", ")
    }
}

extension [AppPolicy.Goods] {
    fileprivate var text: String {
        isEmpty ? "nothing" : map { "\($0.amount) \($0.item)" }.joined(separator: ", ")
    }
}

extension Date {
    fileprivate var text: String { formatted(Date.ISO8601FormatStyle()) }
}
