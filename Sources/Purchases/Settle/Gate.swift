/// What the database says of a purchase before anything is given.
package struct Gate: Sendable, Equatable {
    /// Why nothing is left to give, by facts of Apple that are newer than the proof; `review` where Apple took it back
    /// for a reason that is not known here.
    package var takenBack: Reason?
    /// Whether the purchase is rejected for its end although facts of Apple that are newer than the proof say that it
    /// stands.
    package var standsAgain = false
    /// The user whom the former system gave it to.
    package var imported: Standing.Holding?
    /// Whether a place on trust was taken for it by this receipt, and nothing was decided against it since.
    package var hasTrustPlace = false
    /// The limits in which it found no place, each once, in the order of their names.
    package var lacking: [LimitPlace.Limit] = []

    package init() {}

    /// The limit of the app's policy that holds it.
    package var holdingLimit: LimitPlace.Limit? { lacking.last { !$0.isOfCatalogue } }
    /// The limits of the catalogue beyond which it is given all the same.
    package var exceededLimits: [LimitPlace.Limit] { lacking.filter(\.isOfCatalogue) }
}

extension LimitPlace.Limit {
    package var isOfCatalogue: Bool {
        switch self {
        case .itemDay, .itemMonth, .itemEver: true
        case .sandboxUser, .sandboxApp, .makeUpCustomer, .makeUpUser: false
        }
    }
}

extension VerdictRow {
    /// Whether newer facts of Apple may change the decision: the purchase is to be given, or rejected for its end.
    package var hasGate: Bool { asked.gives || asked.isForEnd }

    /// The decision that is carried out: what was asked, unless the gate says otherwise.
    package func decision(behind gate: Gate) -> Decision {
        guard asked.gives else { return asked }
        // A person who gives has looked at what is not known here.
        if let reason = gate.takenBack, reason != .review || binding != .support {
            return reason == .review ? .held(.review) : .rejected(reason)
        }
        if gate.imported != nil { return .held(.possessionMissing) }
        let limit = gate.holdingLimit
        if asked.isProvisional { return gate.hasTrustPlace && limit == nil ? asked : .open(.appleUnavailable) }
        switch limit {
        case nil: return asked
        case .sandboxUser, .sandboxApp: return .held(.sandbox)
        case .makeUpCustomer, .makeUpUser, .itemDay, .itemMonth, .itemEver: return .held(.review)
        }
    }
}
