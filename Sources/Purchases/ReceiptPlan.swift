package import Foundation

/// What is known of one purchase that a receipt lists, before Apple is asked about it.
package struct ListedPurchase: Sendable, Equatable {
    /// The purchase as the receipt lists it: Apple's statement of the day the receipt was made.
    package let listed: Transaction
    /// The purchase as it is stored, from an earlier answer of Apple's.
    package private(set) var stored: Transaction?
    /// Whether it is granted for good, or on trust by another receipt: to any user, under this id or another id of the
    /// same purchase.
    package let isGranted: Bool
    /// Whether this receipt was given the purchase on trust, and Apple has yet to confirm it.
    package let isOnTrust: Bool
    /// This receipt's earlier decision about the purchase, if that was held, open or rejected.
    package let before: Decision?

    package init(
        listed: Transaction, stored: Transaction? = nil, isGranted: Bool = false, isOnTrust: Bool = false,
        before: Decision? = nil
    ) {
        self.listed = listed
        self.stored = stored
        // The database does not store this id; the listed one is of the same purchase.
        self.stored?.webOrderLineItemID = listed.webOrderLineItemID
        self.isGranted = isGranted
        self.isOnTrust = isOnTrust
        self.before = before
    }

    /// Whether only the receipt itself tells of the purchase. A held or refunded purchase is not given on trust, and a
    /// granted one need not be given again.
    package var isUnreached: Bool {
        switch before {
        case nil, .open: !isGranted && !isOnTrust && stored?.revokedAt == nil
        case .held, .rejected, .grant, .provisional: false
        }
    }

    /// Whether no answer of Apple's could still grant the purchase, or grant it to another user: it is granted, or
    /// rejected for good. False if the receipt shows a refund that was not known.
    ///
    /// - Parameter decision: the decision by the known facts.
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

    /// The entry while Apple gives no answer. A held purchase stays held, because its facts are stored.
    package func waiting(_ reason: Reason) -> Verdict.Entry {
        var decision = Decision.open(reason)
        if case .held = before { decision = before ?? decision }
        return Verdict.Entry(transaction: listed.snapshot, decision: decision)
    }

    /// The newer of ``listed`` and ``stored``.
    package var current: Transaction {
        guard let stored, let storedAt = stored.signedAt, storedAt > listed.signedAt ?? .distantPast else {
            return listed.snapshot
        }
        return stored
    }
}

/// What to ask Apple about a receipt that was verified here. A receipt with a thousand purchases costs no more calls
/// than it has unknown purchases. Pure.
///
/// | a purchase | what is done |
/// | granted before | nothing, the grant answers any poster; if this receipt's grant is on trust, Apple is asked |
/// | refunded, historical, held, by the known facts | judged by them: only a grant needs Apple's answer of today, and |
/// | | a purchase on trust, unless it is known to be refunded |
/// | would be granted, stored facts are fresh | judged by those, unless it waited for a person |
/// | would be granted, the named one, those on trust, and the newest, up to `lookUpsMax` | looked up by its id |
/// | would be granted, more than these | waits for the customer's history |
package struct ReceiptPlan: Sendable, Equatable {
    /// How many purchases are looked up one by one. For a receipt with more unknown ones it is worth reading the
    /// customer's history, 20 to a call.
    package static let lookUpsMax = 5

    /// Purchases that need no call.
    package private(set) var judged: [Verdict.Entry] = []
    /// Purchases to look up, the most urgent first.
    package private(set) var asked: [ListedPurchase] = []
    /// Purchases to find in the history.
    package private(set) var waiting: [ListedPurchase] = []

    /// - Parameters:
    ///   - named: the transaction that the poster meant, if any.
    ///   - freshFor: facts that Apple signed this long before the submission still count, in seconds.
    ///   - asks: whether Apple is asked about a purchase that would be granted. The others are granted as listed.
    package init(
        _ purchases: [ListedPurchase], named: String?, judge: Judge, freshFor: TimeInterval,
        asks: (Transaction) -> Bool = { _ in true }
    ) {
        var unknown: [ListedPurchase] = []
        for purchase in purchases {
            if let entry = Self.entry(purchase, judge, freshFor, asks) {
                judged.append(entry)
            } else {
                unknown.append(purchase)
            }
        }
        // A purchase that was given on trust goes before one that was not. A purchase that Apple does not find must not
        // stand before one about which nobody asked yet.
        let urgency = { (purchase: ListedPurchase) in
            (
                purchase.listed.isCalled(named) ? 0 : purchase.isOnTrust ? 1 : purchase.wasAnswered ? 3 : 2,
                -purchase.listed.purchasedAt.timeIntervalSince1970, purchase.listed.id
            )
        }
        unknown.sort { urgency($0) < urgency($1) }
        asked = Array(unknown.prefix(Self.lookUpsMax))
        waiting = Array(unknown.dropFirst(Self.lookUpsMax))
    }

    /// Nil: Apple must be asked.
    private static func entry(
        _ purchase: ListedPurchase, _ judge: Judge, _ freshFor: TimeInterval, _ asks: (Transaction) -> Bool
    ) -> Verdict.Entry? {
        let entry = judge.judge(purchase.current)
        guard case .grant(_, let source) = entry.decision else {
            return purchase.isOnTrust && entry.decision.leavesTrustOpen ? nil : entry
        }
        // The existing grant answers before any decision: this decision would be seen only if the grant were gone.
        if purchase.isGranted, entry.transaction.hasKeyOfItsIDs { return entry.with(.held(.review)) }
        if !asks(purchase.current) { return entry }
        // A purchase that waited for a person may be refunded by now.
        guard source != .support, let stored = purchase.stored, let signedAt = stored.signedAt,
            judge.claim.receivedAt.timeIntervalSince(signedAt) <= freshFor,
            // A period is granted by its billing event, or it could be granted twice.
            !stored.isPeriod || stored.webOrderLineItemID != nil
        else { return nil }
        let known = judge.judge(stored)
        return known.decision.gives && stored.endsByReceipt ? nil : known
    }
}

extension Transaction {
    /// The transaction as a receipt lists it, to be stored: without the signing date, so that it never counts as
    /// Apple's answer of today. An end keeps its own date, because an end of any source counts until a later word of
    /// Apple's.
    package var snapshot: Transaction {
        guard revokedAt == nil else { return self }
        var transaction = self
        transaction.signedAt = nil
        return transaction
    }

    /// Whether a receipt told its end: then the signing date is the receipt's, and no answer of Apple's about it. A
    /// purchase that is given all the same, such as a period that an upgrade ended, may be refunded by now.
    package var endsByReceipt: Bool { revokedAt != nil && reason == nil }
}
