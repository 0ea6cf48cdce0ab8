/// What the verdict makes of a receipt: the outcome of its purchases that counts most.
package struct ReceiptSummary: Sendable, Equatable {
    /// Nil: nothing is written of the receipt, and it is judged anew.
    package var state: ReceiptState?
    package var reason: String?
    /// When the row is due again; nil: it is settled.
    package var dueIn: Duration?
    /// Whether the verdict counts as a try at Apple.
    package var isTry = false
    /// The verdict is one on trust: it keeps the receipt open, and writes only what nothing was said of.
    package var isOnTrust = false
    /// The reason with which open and held purchases of the receipt end; nil: they do not end by this verdict.
    package var closingReason: String?

    /// What is on record of a receipt beside the verdict.
    package struct Record: Sendable {
        /// Purchases of the receipt that were given on trust and not answered by Apple.
        package var onTrust: Set<String> = []
        /// Outcomes by which earlier verdicts gave something, or found it given.
        package var given: [(state: PurchaseOutcome.State, reason: String?)] = []
        /// How much of the row's attempt is wakes, which are no tries.
        package var wakes = 0

        package init() {}
    }

    private static let states: [ReceiptState?] = [nil, .received, .held, .granted, .alreadyGranted, .rejected]

    /// - Parameters:
    ///   - outcomes: of each row of one receipt, at least one.
    ///   - age: since it was posted so that a claim in it counts.
    package init(
        _ outcomes: [(row: VerdictRow, decision: Decision, outcome: PurchaseOutcome)], record: Record, age: Duration,
        parking: Parking
    ) {
        isOnTrust = outcomes.contains { $0.row.asked.isProvisional }
        var ranked = outcomes.map { (rank: $0.outcome.rank(asked: $0.row.asked), reason: $0.outcome.reason) }
        ranked.sort { $0.rank != $1.rank ? $0.rank < $1.rank : Self.precedes($0.reason, $1.reason) }
        var rank = ranked.first?.rank ?? 5
        let closes = rank == 5 && outcomes.allSatisfy { $0.row.transactionID == nil }
        if isOnTrust { rank = min(rank, 1) }
        reason =
            isOnTrust
            ? outcomes.contains { $0.outcome.isUnconfirmed } ? "unconfirmed" : Reason.appleUnavailable.rawValue
            : ranked.first?.reason
        let hasTry = outcomes.contains { entry in
            entry.outcome.state == .open
                && !Reason.waiting.contains { $0.rawValue == entry.outcome.reason }
        }
        isTry = rank == 1 && hasTry && !isOnTrust
        let (judgedRank, judgedReason) = (rank, reason)
        // A proof that fails as a whole takes back nothing that it granted before.
        if closes {
            var given = record.given.map { (rank: $0.state == .granted ? 3 : 4, reason: $0.reason) }
            given.sort { $0.rank != $1.rank ? $0.rank < $1.rank : Self.precedes($0.reason, $1.reason) }
            if let best = given.first {
                rank = min(rank, best.rank)
                reason = best.reason
            }
        }
        // What was given on trust and is not answered here either keeps its receipt.
        let answered = Set(
            outcomes.filter { $0.outcome.mark == .confirmed || $0.outcome.mark == .revoked }
                .compactMap(\.row.transactionID))
        if judgedRank != 0, judgedRank != 2, !record.onTrust.subtracting(answered).isEmpty {
            rank = min(rank, 2)
            reason = "unconfirmed"
        }
        state = Self.states[rank]
        if closes, state != .held { closingReason = judgedReason }
        switch state {
        case .received, .held, .parked: dueIn = outcomes.map(\.row.verdict.dueIn).min()
        case nil, .granted, .alreadyGranted, .rejected: break
        }
        // Tried often enough, for long enough: judged again, ever more rarely.
        if isTry, let attempt = outcomes.first?.row.verdict.attempt,
            attempt - record.wakes + 1 >= Parking.attemptsMin, age > parking.after
        {
            state = .parked
            dueIn = min(max(age - parking.after, parking.againMin), parking.againMax)
        }
    }

    /// Nulls first, as SQL orders them here.
    private static func precedes(_ one: String?, _ other: String?) -> Bool {
        switch (one, other) {
        case (nil, nil), (_?, nil): false
        case (nil, _?): true
        case (let one?, let other?): one.utf8.lexicographicallyPrecedes(other.utf8)
        }
    }
}
