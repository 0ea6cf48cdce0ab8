/// The terms of a product that entitlements need and that Apple's data lacks. A term is nil where the catalogue does
/// not name it.
package struct EntitlementTerms: Sendable, Equatable {
    /// Of a subscription: the group of one's own naming. Of the running subscriptions of one group one counts.
    package var group: String?
    /// Of a subscription: its rank in the group. 1 is the highest.
    package var level: Int?
    /// Of a non-renewing purchase: how long the user may use it. Nil: for ever.
    package var duration: CalendarPeriod?

    package init(group: String? = nil, level: Int? = nil, duration: CalendarPeriod? = nil) {
        self.group = group
        self.level = level
        self.duration = duration
    }

    /// As a person reads it: `group passes, level 1`, `lasts P30D`. Nil: it says nothing.
    package var text: String? {
        let parts = [group.map { "group \($0)" }, level.map { "level \($0)" }, duration.map { "lasts \($0)" }]
        let text = parts.compactMap { $0 }.joined(separator: ", ")
        return text.isEmpty ? nil : text
    }
}

extension Catalogue.Product {
    /// The terms that are missing of a product whose kind needs them; nil: none.
    package var lackingTerm: String? {
        switch kind {
        case .autoRenewable:
            switch (terms.group, terms.level) {
            case (nil, _): "group"
            case (_, nil): "level"
            case (_?, _?): nil
            }
        case .nonRenewing: terms.duration == nil ? "duration" : nil
        case .consumable, .nonConsumable: nil
        }
    }
}
