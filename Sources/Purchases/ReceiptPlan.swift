package import Foundation

/// What is known of one purchase that a receipt lists, before Apple is asked about it.
package struct ListedPurchase: Sendable, Equatable {
    /// As the receipt has it: Apple's word of the day the receipt was made.
    package let listed: Transaction
    /// As it is stored, from whatever Apple said of it before.
    package private(set) var stored: Transaction?
    /// For good, or on trust by another receipt: to whomever, under this id or another one of the same purchase.
    package let isGranted: Bool
    /// Given on trust by this receipt: Apple has yet to confirm it.
    package let isOnTrust: Bool
    /// What this receipt was told of it before, where that was held, open or rejected.
    package let before: Decision?

    package init(
        listed: Transaction, stored: Transaction? = nil, isGranted: Bool = false, isOnTrust: Bool = false,
        before: Decision? = nil
    ) {
        self.listed = listed
        self.stored = stored
        // Not stored, and the same purchase's.
        self.stored?.webOrderLineItemID = listed.webOrderLineItemID
        self.isGranted = isGranted
        self.isOnTrust = isOnTrust
        self.before = before
    }

    /// Whether nothing is known of it but what the receipt itself says: what was held or refunded is no matter of trust,
    /// and what was given need not be given again.
    package var isUnheard: Bool {
        switch before {
        case nil, .open: !isGranted && !isOnTrust && stored?.revokedAt == nil
        case .held, .rejected, .grant, .provisional: false
        }
    }

    /// Whether nothing that Apple could say now would give it, or give it to somebody else: it was given before, or this is
    /// its end. Not where the receipt tells of a refund that was not known.
    ///
    /// - Parameter decision: by what is known.
    package func isOver(by decision: Decision) -> Bool {
        guard listed.revokedAt == nil || stored?.revokedAt != nil else { return false }
        if case .rejected = decision { return true }
        return isGranted
    }

    /// Whether Apple was asked about it before, in vain, or it was held.
    fileprivate var wasAnswered: Bool {
        switch before {
        case .open(.notFoundYet), .held: true
        default: false
        }
    }

    /// What it is while Apple gives no answer: a held purchase whose facts are stored does not become unknown.
    package func waiting(_ reason: Reason) -> Verdict.Entry {
        var decision = Decision.open(reason)
        if case .held = before { decision = before ?? decision }
        return Verdict.Entry(transaction: listed.snapshot, decision: decision)
    }

    /// The newer of the two.
    package var current: Transaction {
        guard let stored, let storedAt = stored.signedAt, storedAt > listed.signedAt ?? .distantPast else {
            return listed.snapshot
        }
        return stored
    }
}

/// What to ask Apple about a receipt that was verified here, so that one with a thousand purchases costs no more calls
/// than it holds secrets. Pure.
///
/// | of a purchase | is done |
/// | granted before | nothing: whoever posts it, the grant answers, unless it is ours, on trust: then Apple is asked |
/// | refunded, historical, held, by what is known | judged as known: only a grant needs Apple's word of today, and what |
/// | | was given on trust, unless it is known to be refunded |
/// | would be granted, stored facts are fresh | judged by those, unless it waited for a person |
/// | would be granted, the named one, what was given on trust, and the newest, up to `lookUpsMax` | looked up by its id |
/// | would be granted, more than these | waits for the customer's history |
package struct ReceiptPlan: Sendable, Equatable {
    /// Looked up one by one; a receipt with more than these unknown ones is worth reading a history, 20 to a call.
    package static let lookUpsMax = 5

    /// Needs no call.
    package private(set) var judged: [Verdict.Entry] = []
    /// To be looked up, most urgent first.
    package private(set) var asked: [ListedPurchase] = []
    /// To be found in the history.
    package private(set) var waiting: [ListedPurchase] = []

    /// - Parameters:
    ///   - named: the transaction that the poster meant, if any.
    ///   - freshFor: facts that Apple signed this long before the submission still count, in seconds.
    package init(_ purchases: [ListedPurchase], named: String?, judge: Judge, freshFor: TimeInterval) {
        var unknown: [ListedPurchase] = []
        for purchase in purchases {
            if let entry = Self.entry(purchase, judge, freshFor) {
                judged.append(entry)
            } else {
                unknown.append(purchase)
            }
        }
        // What was given goes before what was not; what Apple does not find must not stand before what nobody asked for
        // yet.
        let urgency = { (purchase: ListedPurchase) in
            (
                purchase.listed.id == named ? 0 : purchase.isOnTrust ? 1 : purchase.wasAnswered ? 3 : 2,
                -purchase.listed.purchasedAt.timeIntervalSince1970, purchase.listed.id
            )
        }
        unknown.sort { urgency($0) < urgency($1) }
        asked = Array(unknown.prefix(Self.lookUpsMax))
        waiting = Array(unknown.dropFirst(Self.lookUpsMax))
    }

    /// Nil: Apple must be asked.
    private static func entry(
        _ purchase: ListedPurchase, _ judge: Judge, _ freshFor: TimeInterval
    ) -> Verdict.Entry? {
        let entry = judge.judge(purchase.current)
        guard case .grant(_, let source) = entry.decision else {
            return purchase.isOnTrust && entry.decision.leavesTrustOpen ? nil : entry
        }
        // The grant answers before any decision; this one would be seen only if it were gone.
        if purchase.isGranted, entry.transaction.hasKeyOfItsIDs { return entry.with(.held(.review)) }
        // What waited for a person may be refunded by now.
        guard source != .support, let stored = purchase.stored, let signedAt = stored.signedAt,
            judge.claim.receivedAt.timeIntervalSince(signedAt) <= freshFor,
            // A period is granted by its billing event, or it could be granted twice.
            !stored.isPeriod || stored.webOrderLineItemID != nil
        else { return nil }
        return judge.judge(stored)
    }
}

extension Transaction {
    /// As a receipt has it, to be stored: without a date, so that it never counts as Apple's word of today.
    package var snapshot: Transaction {
        var transaction = self
        transaction.signedAt = nil
        return transaction
    }
}
