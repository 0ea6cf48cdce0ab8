import Encoding
import Foundation
package import Ledger
package import Purchases

/// The reader of a timeline: decides how the timeline names users, and how much it tells.
package enum Audience: Sendable {
    /// Everything. Users have their ids, where the register knows them.
    case support([UserName: RevealedUser])
    /// The player's own rows, without other users and without internals. Holds the player's id, and the ids of accounts
    /// that became part of the player's.
    case player([String])

    var isSupport: Bool {
        if case .support = self { true } else { false }
    }

    func isReader(_ user: String) -> Bool {
        guard case .player(let ids) = self else { return false }
        return ids.contains { $0.isSameText(as: user) }
    }

    /// The user's name for this reader: a player sees no other user's name.
    func name(_ user: String, app: String) -> String {
        switch self {
        case .player: return isReader(user) ? "you" : "another account"
        case .support(let names):
            switch names[UserName(appID: app, key: user)] {
            case .id(let id): return id
            case .erased: return "\(user) (erased)"
            case .unreadable, nil: return user
            }
        }
    }
}

/// The events of a receipt, a transaction or an order in the order of time, its present state, and the next step (B14).
/// Made from stored rows alone, never from logs.
package struct Timeline: Sendable {
    /// The present state.
    package struct Standing: Sendable, Equatable {
        /// A receipt's state; `ordered` for an order without a purchase, `unclaimed` for a purchase that no user
        /// posted.
        package let state: String
        package let reason: String?
        package let sentence: PlayerSentence

        init(_ state: ReceiptState, _ reason: String?, isShared: Bool = false) {
            self.state = state.rawValue
            self.reason = reason
            sentence = PlayerSentence(state, reason.flatMap(Reason.init(rawValue:)), isShared: isShared)
        }

        private init(_ state: String, _ sentence: PlayerSentence) {
            self.state = state
            reason = nil
            self.sentence = sentence
        }

        static let ordered = Standing("ordered", .orderOpen)
        static let unclaimed = Standing("unclaimed", .unclaimed)
    }

    package let subject: TimelineSubject
    package let appID: String
    package let standing: Standing
    package let next: NextStep
    package let lines: [TimelineEntry]
    let audience: Audience
    /// The receipts that the timeline tells of, the newest last.
    let receipts: [TimelineRows.Receipt]
    let halts: [TimelineRows.Halt]
    let now: Date

    package init(_ subject: TimelineSubject, of appID: String, rows: TimelineRows, for audience: Audience) {
        let rows = rows.visible(to: audience)
        self.subject = subject
        self.appID = appID
        self.audience = audience
        receipts = rows.receipts.sorted { ($0.receivedAt, $0.id.uuidString) < ($1.receivedAt, $1.id.uuidString) }
        halts = rows.halts
        now = rows.now
        standing = Self.standing(subject, rows)
        next = Self.next(receipts, standing, appID, rows)
        lines = TimelineEntry.all(rows, app: appID, audience)
    }

    // MARK: Standing

    private static func standing(_ subject: TimelineSubject, _ rows: TimelineRows) -> Standing {
        switch subject {
        case .receipt(let id): rows.receipts.first { $0.id == id }.map { standing($0, rows) } ?? .unclaimed
        case .transaction(let id): standing(id, rows) ?? waiting(rows) ?? .unclaimed
        case .order(let id):
            rows.orders.first { $0.id == id }?.transactionId.flatMap { standing($0, rows) }
                ?? rows.receipts.filter { !$0.isOver }.max { $0.receivedAt < $1.receivedAt }
                .map { standing($0, rows) } ?? .ordered
        }
    }

    /// Of the newest post that is still open; nothing of its purchases is known yet.
    private static func waiting(_ rows: TimelineRows) -> Standing? {
        rows.receipts.filter { !$0.state.isEnded }.max { $0.receivedAt < $1.receivedAt }
            .map { Standing($0.shownState, $0.reason) }
    }

    private static func standing(_ receipt: TimelineRows.Receipt, _ rows: TimelineRows) -> Standing {
        let granted = rows.outcomes.filter { $0.receiptId == receipt.id && $0.state == "granted" }
        // For a single purchase Apple's present state counts, because a receipt ends before a refund.
        if granted.count == 1, receipt.purchases == 1, receipt.shownState == .granted,
            let standing = standing(granted[0].transactionId, rows)
        {
            return standing
        }
        return Standing(receipt.shownState, receipt.reason)
    }

    private static func standing(_ transaction: String, _ rows: TimelineRows) -> Standing? {
        if let grant = rows.grant(of: transaction) {
            let facts = rows.transactions.first { $0.transactionId == transaction }
            let takenBack = facts?.takenBack
            let isShared = facts?.ownership.map { Transaction.sharedOwnerships.contains($0) } ?? false
            let outcome = rows.outcomes.first { $0.receiptId == grant.receiptId && $0.transactionId == transaction }
            // This reason is for a poster who is not the owner, and says nothing of the grant.
            let reason = outcome?.reason == Reason.ownedByAnotherUser.rawValue ? nil : outcome?.reason
            return Standing(
                .granted, takenBack == Reason.review.rawValue ? reason : takenBack ?? reason, isShared: isShared)
        }
        guard
            let outcome = rows.outcomes.filter({ $0.transactionId == transaction }).max(by: {
                $0.decidedAt < $1.decidedAt
            })
        else {
            let isImported = rows.imported.contains { $0.transactionId == transaction }
            return isImported ? Standing(.alreadyGranted, Reason.imported.rawValue) : nil
        }
        let isParked = rows.receipts.contains { $0.id == outcome.receiptId && $0.state == .parked }
        switch ReceiptState(rawValue: outcome.state) {
        // The reader is a player whose receipt brought the purchase to another user.
        case .granted?: return Standing(.alreadyGranted, Reason.ownedByAnotherUser.rawValue)
        case let state?: return Standing(state, outcome.reason)
        case nil: return Standing(isParked ? .parked : .received, outcome.reason)
        }
    }

    private static func next(
        _ receipts: [TimelineRows.Receipt], _ standing: Standing, _ appID: String, _ rows: TimelineRows
    ) -> NextStep {
        let open = receipts.filter { !$0.state.isEnded }.min { $0.dueAt ?? .distantFuture < $1.dueAt ?? .distantFuture }
        if let receipt = open ?? receipts.last {
            return NextStep(receipt, app: appID, halts: rows.halts, now: rows.now)
        }
        switch standing {
        case .ordered: return NextStep(by: .player, "no purchase has come for this order yet")
        case .unclaimed: return NextStep(by: .player, "nobody has posted it: the app has to post Apple's own proof")
        default: return .nothing
        }
    }
}

extension TimelineRows.Receipt {
    /// Whether its purchase was given, and so was not for an order that is still open.
    fileprivate var isOver: Bool { [.granted, .alreadyGranted].contains(shownState) }

    /// The state for the poster: if the receipt brought another user's purchase, the poster learns no more than if the
    /// owner had had it before.
    var shownState: ReceiptState {
        state == .granted && reason == Reason.ownedByAnotherUser.rawValue ? .alreadyGranted : state
    }
}

extension TimelineRows {
    func grant(of transaction: String) -> Grant? { grants.first { $0.transactionId == transaction } }

    /// Every user that the rows name.
    var users: Set<String> {
        Set(
            receipts.compactMap(\.userId) + grants.map(\.userId) + orders.map(\.userId) + ownerships.map(\.userId)
                + doubleCharges.map(\.userId) + reports.compactMap(\.userId) + imported.map(\.userId)
        ).union(commands.compactMap(\.receiver)).union(hearing.revocations.map(\.userId))
            .union(hearing.subscriptions.compactMap(\.userId))
    }

    /// All rows for support. For a player: the player's own receipts, orders and grants, and Apple's data on purchases
    /// that the player has shown or owns. A player who knows only an id gets no hint (Ownership, note 5).
    fileprivate func visible(to audience: Audience) -> TimelineRows {
        guard !audience.isSupport else { return self }
        let orders = orders.filter { audience.isReader($0.userId) }.map { order in
            order.grantedTo.map(audience.isReader) ?? true ? order : order.open
        }
        let ownOrders = Set(orders.map(\.id.uuidString))
        let receipts = receipts.filter { receipt in
            guard let user = receipt.userId else { return ownOrders.contains(receipt.orderId?.uppercased() ?? "") }
            return audience.isReader(user)
        }
        let ids = Set(receipts.map(\.id))
        let outcomes = outcomes.filter { ids.contains($0.receiptId) }
        let grants = grants.filter { audience.isReader($0.userId) }
        let imported = imported.filter { audience.isReader($0.userId) }
        let owned = Set(grants.map(\.transactionId) + imported.map(\.transactionId))
        let shown = owned.union(
            outcomes.filter { $0.reason != Reason.possessionMissing.rawValue }.map(\.transactionId))
        var visible = TimelineRows(
            now: now, receipts: receipts, outcomes: outcomes, attempts: [],
            transactions: transactions.filter { shown.contains($0.transactionId) }, grants: grants,
            trusts: trusts.filter { owned.contains($0.transactionId) }, events: [], orders: orders, appleUpdates: [],
            commands: [], halts: [], ownerships: ownerships.filter { audience.isReader($0.userId) },
            doubleCharges: doubleCharges.filter { audience.isReader($0.userId) },
            reports: reports.filter { $0.userId.map(audience.isReader) ?? false }, imported: imported)
        visible.hearing.revocations = hearing.revocations.filter { audience.isReader($0.userId) }
        visible.hearing.refundRequests = hearing.refundRequests.filter { owned.contains($0.transactionId) }
        visible.hearing.subscriptions = hearing.subscriptions.filter { $0.userId.map(audience.isReader) ?? false }
        return visible
    }
}
