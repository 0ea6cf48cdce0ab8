import Foundation

/// One purchase of a verdict, or the verdict's receipt where nothing is known of its purchases.
package struct VerdictRow: Sendable {
    package let verdict: Verdict
    package let transactionID: String?
    package let asked: Decision
    /// Nil: Apple has proved nothing of it.
    package let entry: Verdict.Entry?
    /// Whether another purchase of the batch gets the order that this purchase wants.
    package private(set) var yields = false

    private init(_ verdict: Verdict, _ transactionID: String?, _ asked: Decision, _ entry: Verdict.Entry? = nil) {
        self.verdict = verdict
        self.transactionID = transactionID
        self.asked = asked
        self.entry = entry
    }

    /// The rows of these verdicts, in order. Of the purchases that want the same order, the first gets it.
    package static func rows(of verdicts: [Verdict]) -> [VerdictRow] {
        var rows: [VerdictRow] = []
        var wantedOrders: Set<UUID> = []
        for verdict in verdicts {
            switch verdict.decisions {
            case .transactions(let entries):
                for entry in entries {
                    var entry = entry
                    entry.transaction = entry.transaction.asStored
                    var row = VerdictRow(verdict, entry.transaction.id, entry.decision, entry)
                    if entry.decision.gives, let order = entry.match?.order {
                        row.yields = !wantedOrders.insert(order.id).inserted
                    }
                    rows.append(row)
                }
            case .identifier(let id, let reason): rows.append(VerdictRow(verdict, id, .held(reason)))
            case .receipt(let decision): rows.append(VerdictRow(verdict, nil, decision))
            }
        }
        return rows
    }

    package var transaction: Transaction? { entry?.transaction }
    package var match: Match? { entry?.match }
    package var poster: String? { verdict.claim.userID }
    package var hasPossession: Bool { verdict.claim.hasPossession }
    /// Whose it is: the matched user, else the poster.
    package var owner: String? { match?.userID ?? poster }
    /// The row of Ownership that gives it, or that found whose it is.
    package var binding: BindingSource? { asked.source ?? entry?.heldBy?.source }
    /// Whether the purchase's own token names the owner: where another user has it, that is a dispute (note 2). A token
    /// that was only used before proves nothing.
    package var provesOwner: Bool { match?.source == .orderToken || match?.source == .userToken }
    package var matchReasons: [String]? {
        let reasons = match?.reasons ?? entry?.heldBy?.reasons ?? []
        return reasons.isEmpty ? nil : reasons.map(\.rawValue)
    }
    /// Whether the purchase's grant, and no ownership of a chain, leads from the user to the entitlement: the purchase
    /// is non-renewing, another customer shares it, or its chain continues another one, which has the ownership.
    package var isEntitlingByGrant: Bool {
        entry?.kind == .nonRenewing || binding == .shared || transaction?.previousOriginalID != nil
    }
    /// What the purchase is called where its chain is meant.
    package var originalID: String? { transaction?.originalID ?? transactionID }
}

extension Decision {
    package var source: BindingSource? {
        switch self {
        case .grant(_, let source), .provisional(_, let source): source
        case .rejected, .held, .open: nil
        }
    }

    package var reason: Reason? {
        switch self {
        case .grant: nil
        case .provisional: .appleUnavailable
        case .rejected(let reason), .held(let reason), .open(let reason): reason
        }
    }

    package var goods: [AppPolicy.Goods]? {
        switch self {
        case .grant(let goods, _), .provisional(let goods, _): goods
        case .rejected, .held, .open: nil
        }
    }

    package var isProvisional: Bool { if case .provisional = self { true } else { false } }
}
