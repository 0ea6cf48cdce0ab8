import Encoding
package import Foundation
package import Postgres
package import Purchases

/// What became of a receipt when its verdict was written.
package struct ReceiptOutcome: Sendable, Equatable {
    package let receiptID: UUID
    package let state: ReceiptState
    /// The row's attempt after the verdict: what the next pointer carries.
    package let attempt: Int
    /// Seconds since it was accepted, when the verdict was written, by the database's clock.
    package let age: Double
    /// Whether it told for the first time that two users claim a purchase.
    package let tellsDispute: Bool
    /// A limit in which a purchase found no place: of the policy, by which it was held, or of the catalogue, beyond
    /// which it was given.
    package let lackingLimit: LimitPlace.Limit?
    /// The purchases that its poster shows and another user has.
    package let ownedByAnother: [String]
}

/// One batch of verdicts, each about another receipt.
package struct SettleBatch: Sendable {
    package var verdicts: [Verdict]
    package var parking: Parking

    package init(verdicts: [Verdict], parking: Parking) {
        self.verdicts = verdicts
        self.parking = parking
    }
}

extension Database {
    /// Writes every verdict of a batch, final or not, in one transaction: facts, grants, outcomes, attempts, events,
    /// receipts. Returns what became of each receipt. A receipt that is missing from the result was changed since it
    /// was read, or is locked, or one of its purchases must be matched anew: the caller reads it again.
    ///
    /// Idempotent: a repeated batch finds settled rows, or rows whose attempt moved on, and changes nothing.
    package func settle(_ batch: SettleBatch) async throws(PostgresError) -> [ReceiptOutcome] {
        do throws(PostgresError) {
            return try await transact("ledger.settle") { transaction throws(PostgresError) in
                guard let result = try SettleTransaction(batch, in: transaction).run() else { return [] }
                try transaction.commit()
                return result.outcomes
            }
        } catch .data(sqlState: "23505", statement: Statements.moveOwnerships.name) {
            throw .serialization
        }
    }
}

/// The three rounds in which a batch of verdicts is written.
struct SettleTransaction {
    private let batch: SettleBatch
    private let transaction: DatabaseTransaction

    init(_ batch: SettleBatch, in transaction: DatabaseTransaction) {
        self.batch = batch
        self.transaction = transaction
    }

    /// Runs the rounds; the caller commits.
    ///
    /// - Returns: nil where no receipt of the batch is as it was when it was judged: then there is nothing to commit.
    func run() throws(PostgresError) -> SettleResult? {
        let rows = VerdictRow.rows(of: batch.verdicts)
        guard let (current, gates, records, receipts) = try take(rows) else { return nil }
        let decided = zip(current, gates).map { (row: $0, gate: $1, decision: $0.decision(behind: $1)) }
        let (won, standings) = try give(decided)
        let purchases = outcomes(of: decided, won: won, standings: standings, receipts: receipts)
        return try write(purchases.purchases, moves: purchases.moves, records: records, receipts: receipts)
    }

    private typealias Taken = (
        rows: [VerdictRow], gates: [Gate], records: [UUID: ReceiptSummary.Record],
        receipts: [UUID: Statements.TakenReceipt]
    )

    // MARK: Round 1

    /// Locks the receipts, stores Apple's facts, takes places within limits, and reads what stands at each gate.
    private func take(_ rows: [VerdictRow]) throws(PostgresError) -> Taken? {
        let taken = transaction.queue(Statements.takeReceipts, rows)
        queue(Statements.storeFacts, rows.filter { $0.transaction != nil })
        let lacking = queue(
            Statements.takeLimitPlaces, batch.verdicts.filter { !$0.places.isEmpty }.flatMap(Self.places))
        let gated = rows.indices.filter { rows[$0].hasGate && rows[$0].transaction != nil }
        let read = queue(Statements.readGates, gated.map { rows[$0] })
        let trust = transaction.queue(Statements.readTrust, batch.verdicts.map(\.receiptID))
        let given = queue(Statements.readGiven, rows.filter { $0.transactionID == nil }.map(\.verdict.receiptID))
        try transaction.exchange()

        let receipts = Dictionary(uniqueKeysWithValues: taken.rows.map { ($0.id, $0) })
        guard !receipts.isEmpty else { return nil }
        var gates = Array(repeating: Gate(), count: rows.count)
        for (row, gate) in read?.rows ?? [] { gates[gated[row]] = gate }
        var limits: [PurchaseOfReceipt: Set<LimitPlace.Limit>] = [:]
        for place in lacking?.rows ?? [] {
            limits[PurchaseOfReceipt(receipt: place.receiptID, transaction: place.transactionID), default: []]
                .insert(place.limit)
        }
        for index in limits.isEmpty ? [] : gated {
            guard let purchase = PurchaseOfReceipt(rows[index]), let lacking = limits[purchase] else { continue }
            gates[index].lacking = lacking.sorted { $0.rawValue < $1.rawValue }
        }
        var records: [UUID: ReceiptSummary.Record] = [:]
        for (receiptID, transactionID) in trust.rows {
            records[receiptID, default: .init()].onTrust.insert(transactionID)
        }
        for (receiptID, state, reason) in given?.rows ?? [] {
            records[receiptID, default: .init()].given.append((state: state, reason: reason))
        }
        let current = rows.indices.filter { receipts[rows[$0].verdict.receiptID] != nil }
        return (current.map { rows[$0] }, current.map { gates[$0] }, records, receipts)
    }

    private static func places(of verdict: Verdict) -> [Statements.PlaceOfVerdict] {
        guard case .transactions(let entries) = verdict.decisions else { return [] }
        let owners = Dictionary(
            entries.map { ($0.transaction.id, $0.match?.userID) }, uniquingKeysWith: { first, _ in first })
        return verdict.places.map {
            Statements.PlaceOfVerdict(verdict: verdict, owner: owners[$0.transactionID] ?? nil, place: $0)
        }
    }

    // MARK: Round 2

    private typealias Decided = (row: VerdictRow, gate: Gate, decision: Decision)

    /// Inserts bonuses and grants, and reads who has each purchase now.
    private func give(
        _ decided: [Decided]
    ) throws(PostgresError) -> (won: Set<PurchaseOfReceipt>, standings: [Standing]) {
        let giving = decided.filter { $0.decision.gives && !$0.row.yields }.map(\.row)
        queue(Statements.giveBonuses, Self.bringingBonuses(giving))
        let granted = queue(Statements.insertGrants, giving)
        let asked = decided.indices.filter { index in
            guard decided[index].row.transactionID != nil else { return false }
            // An unposted receipt ends where a user has its purchase, also while it waits for its owner.
            if case .open = decided[index].decision { return !decided[index].row.verdict.claim.isPosted }
            return true
        }
        let read = queue(Statements.readStandings, asked.map { decided[$0].row })
        let claiming = asked.filter { decided[$0].row.entry?.transfer != nil }
        let chains = queue(Statements.readClaimedChains, claiming.map { decided[$0].row })
        try transaction.exchange()

        var standings = Array(repeating: Standing(), count: decided.count)
        for (row, standing) in read?.rows ?? [] { standings[asked[row]] = standing }
        for (row, chain) in chains?.rows ?? [] { standings[claiming[row]].chain = chain }
        return (Set((granted?.rows ?? []).map { PurchaseOfReceipt(receipt: $1, transaction: $0) }), standings)
    }

    /// Of the rows of one purchase the one that will have the grant, if it brings bonuses.
    private static func bringingBonuses(_ giving: [VerdictRow]) -> [VerdictRow] {
        guard giving.contains(where: { $0.bonuses != nil }) else { return [] }
        var seen: Set<String> = []
        // As the grants are inserted.
        let ordered = giving.map { row in
            let key = row.transaction?.periodKey ?? row.transaction?.purchaseKey ?? ""
            return (row: row, key: Array("\(key)\0\(row.transactionID ?? "")\0\(row.verdict.receiptID.text)".utf8))
        }.sorted { $0.key.lexicographicallyPrecedes($1.key) }.map(\.row)
        return ordered.filter { row in
            let keys = [row.transaction?.purchaseKey, row.transaction?.periodKey, row.transactionID].enumerated()
                .compactMap { kind, key in key.map { "\(kind) \($0)" } }
            let isFirst = seen.isDisjoint(with: keys)
            seen.formUnion(keys)
            return isFirst && row.bonuses != nil
        }
    }

    // MARK: Decision

    private func outcomes(
        of decided: [Decided], won: Set<PurchaseOfReceipt>, standings: [Standing],
        receipts: [UUID: Statements.TakenReceipt]
    ) -> (purchases: [SettledPurchase], moves: [SettledMove]) {
        let isWon = decided.map { entry in
            PurchaseOfReceipt(entry.row).map(won.contains) ?? false
        }
        let (transfers, moves) = transfers(of: decided, isWon: isWon, standings: standings, receipts: receipts)
        let purchases = decided.indices.map { index in
            let (row, gate, decision) = decided[index]
            let outcome = row.outcome(
                decision, behind: gate, isWon: isWon[index], standing: standings[index], transfer: transfers[index],
                now: receipts[row.verdict.receiptID]?.now ?? .now, disputedFor: batch.parking.disputedFor.inSeconds)
            return SettledPurchase(
                row: row, decision: decision, gate: gate, standing: standings[index], isWon: isWon[index],
                outcome: outcome)
        }
        return (purchases, moves)
    }

    /// What comes of the claims. Of the posters who claim one purchase in a batch, the first receipt gets it, and so do
    /// other receipts of the same poster.
    private func transfers(
        of decided: [Decided], isWon: [Bool], standings: [Standing], receipts: [UUID: Statements.TakenReceipt]
    ) -> (transfers: [TransferOutcome?], moves: [SettledMove]) {
        let answers = decided.indices.map { index -> AppPolicy.TransferDecision? in
            guard !isWon[index], let receipt = receipts[decided[index].row.verdict.receiptID] else { return nil }
            return decided[index].row.transfer(
                by: standings[index], decision: decided[index].decision, claimedAt: receipt.claimedAt)
        }
        var moves: [String: SettledMove] = [:]
        for index in decided.indices where answers[index] == .move {
            let (row, standing) = (decided[index].row, standings[index])
            guard let holding = standing.holding, let chain = standing.chain else { continue }
            if let known = moves[holding.transactionID],
                known.row.verdict.receiptID.text <= row.verdict.receiptID.text
            {
                continue
            }
            moves[holding.transactionID] = SettledMove(
                row: row, chain: chain, grantedID: holding.transactionID, holder: chain.holderID)
        }
        let transfers = decided.indices.map { index -> TransferOutcome? in
            guard let answer = answers[index] else { return nil }
            let move = standings[index].holding.flatMap { moves[$0.transactionID] }
            let isMovers = move?.row.poster.map { $0.isSameText(as: decided[index].row.poster) } ?? false
            switch answer {
            case .hold: return .held
            case .limit: return isMovers ? .moves : .limited
            case .move: return isMovers ? .moves : .losesToAnother
            }
        }
        return (transfers, moves.values.sorted { $0.grantedID < $1.grantedID })
    }

    // MARK: Round 3

    private func write(
        _ purchases: [SettledPurchase], moves: [SettledMove], records: [UUID: ReceiptSummary.Record],
        receipts: [UUID: Statements.TakenReceipt]
    ) throws(PostgresError) -> SettleResult {
        var purchases = purchases
        let places = Dictionary(grouping: purchases.indices) { purchases[$0].row.verdict.receiptID }
        let settled = batch.verdicts.compactMap { verdict -> SettledReceipt? in
            guard let taken = receipts[verdict.receiptID], let indices = places[verdict.receiptID] else { return nil }
            var record = records[verdict.receiptID] ?? .init()
            record.wakes = taken.wakes
            let summary = ReceiptSummary(
                indices.map { (purchases[$0].row, purchases[$0].decision, purchases[$0].outcome) }, record: record,
                age: .seconds(taken.now.timeIntervalSince(taken.claimedAt)), parking: batch.parking)
            return SettledReceipt(verdict: verdict, summary: summary)
        }
        let ended = settled.filter { $0.summary.state != nil }
        let summaries = Dictionary(
            ended.map { ($0.verdict.receiptID, $0.summary) }, uniquingKeysWith: { first, _ in first })
        for index in purchases.indices {
            let purchase = purchases[index]
            guard summaries[purchase.row.verdict.receiptID]?.isOnTrust == true,
                !(purchase.row.asked.isProvisional && purchase.outcome.state == .granted)
            else { continue }
            purchases[index].isWrittenOnlyIfNew = true
        }
        let written = purchases.filter { purchase in
            summaries[purchase.row.verdict.receiptID] != nil && purchase.row.transactionID != nil
                && !(purchase.isWrittenOnlyIfNew && purchase.outcome.state == .alreadyGranted)
        }
        queue(Statements.writeOutcomes, written)
        queue(
            Statements.endCollisions,
            written.filter { purchase in
                purchase.row.transaction?.isGivenApart == true
                    && [.granted, .alreadyGranted, .rejected].contains(purchase.outcome.state)
            })
        queue(Statements.closeOutcomes, ended.filter { $0.summary.closingReason != nil })
        queue(
            Statements.writeAttempts,
            ended.filter(\.summary.isTry).compactMap { receipt in
                places[receipt.verdict.receiptID]?.lazy.compactMap { index -> (Verdict, Reason?)? in
                    guard case .open(let reason) = purchases[index].decision, !Reason.waiting.contains(reason) else {
                        return nil
                    }
                    return (receipt.verdict, reason)
                }.first
            })
        writeGrants(purchases.filter(\.isWon).map(\.row))
        let told = tell(purchases, moves: moves, summaries: summaries)
        queue(Statements.moveOwnerships, moves)
        queue(Statements.insertAppleUpdates, appleUpdates(after: purchases))
        let marked = purchases.filter { purchase in
            purchase.outcome.mark == .given
                || purchase.outcome.mark != nil && summaries[purchase.row.verdict.receiptID] != nil
        }
        queue(Statements.markTrust, marked)
        queue(Statements.tellAnswers, marked.filter { $0.outcome.mark != .given })
        let updated = queue(Statements.updateReceipts, ended)
        // After the receipts: a receipt that has just ended waits for nothing.
        queue(Statements.wakeUnposted, purchases.filter(\.isWon).map(\.row) + moves.map(\.row))
        return SettleResult(purchases: purchases, told: told, updated: updated)
    }

    /// What a grant brings beside its event.
    private func writeGrants(_ won: [VerdictRow]) {
        queue(Statements.ownChains, won.filter { $0.match?.takesChain == true })
        queue(
            Statements.rememberTokens,
            won.filter { $0.remembersToken && $0.transaction?.environment == Transaction.production })
        queue(Statements.noteDoubleCharges, won.filter { $0.match?.secondChargeOf != nil })
    }

    private func tell(
        _ purchases: [SettledPurchase], moves: [SettledMove], summaries: [UUID: ReceiptSummary]
    ) -> (written: DatabaseTransaction.Reply<UUID>?, disputes: [SettledEvent]) {
        var events: [SettledEvent] = []
        for purchase in purchases where purchase.isWon {
            events += [SettledEvent.granted(purchase.row)].compactMap { $0 } + SettledEvent.beside(purchase.row)
        }
        let stored = purchases.filter { summaries[$0.row.verdict.receiptID] != nil }
        events += stored.compactMap(SettledEvent.held)
        var disputes = stored.flatMap(SettledEvent.disputes)
        disputes.sort { $0.id.text < $1.id.text }
        return (queue(Statements.writeEvents, events + disputes + moves.flatMap(SettledEvent.moved)), disputes)
    }

    /// The Apple updates that follow. A token is the owner's whom this very verdict has found, or has found again where
    /// Apple confirmed what was given on trust: the order that it was given by. That a purchase is finished may be told
    /// whenever.
    private func appleUpdates(after purchases: [SettledPurchase]) -> [(appID: String, update: AppleUpdate)] {
        let byPurchase = Dictionary(
            purchases.filter { !$0.row.verdict.appleUpdates.isEmpty }.compactMap { purchase in
                PurchaseOfReceipt(purchase.row).map { ($0, purchase) }
            }, uniquingKeysWith: { first, _ in first })
        return batch.verdicts.flatMap { verdict in
            verdict.appleUpdates.filter { update in
                let key = PurchaseOfReceipt(receipt: verdict.receiptID, transaction: update.transaction.id)
                guard let purchase = byPurchase[key] else { return false }
                switch update.kind {
                case .setToken:
                    return purchase.isWon
                        || purchase.outcome.mark == .confirmed && update.token == purchase.standing.holding?.orderID
                case .finish:
                    return purchase.outcome.state.rawValue == update.outcome.rawValue
                        && purchase.outcome.reason != "id_collision"
                }
            }.map { (appID: verdict.appID, update: $0) }
        }
    }

    /// Adds a statement to the round, if there is anything for it.
    @discardableResult
    private func queue<Element, Row>(
        _ statement: Statement<[Element], Row>, _ elements: [Element]
    ) -> DatabaseTransaction.Reply<Row>? {
        elements.isEmpty ? nil : transaction.queue(statement, elements)
    }
}

/// A purchase as one receipt brings it.
struct PurchaseOfReceipt: Hashable {
    let receipt: UUID
    let transaction: String
}

extension PurchaseOfReceipt {
    /// Nil where nothing is known of the receipt's purchases.
    init?(_ row: VerdictRow) {
        guard let transactionID = row.transactionID else { return nil }
        self.init(receipt: row.verdict.receiptID, transaction: transactionID)
    }
}

/// What a settle transaction made of its batch, once its last round is exchanged.
struct SettleResult {
    let purchases: [SettledPurchase]
    let told: (written: DatabaseTransaction.Reply<UUID>?, disputes: [SettledEvent])
    let updated: DatabaseTransaction.Reply<(id: UUID, state: ReceiptState, attempt: Int, age: Double)>?

    var outcomes: [ReceiptOutcome] {
        let written = Set(told.written?.rows ?? [])
        let disputed = Set(told.disputes.filter { written.contains($0.id) }.map(\.receiptID))
        let places = Dictionary(grouping: purchases) { $0.row.verdict.receiptID }
        return (updated?.rows ?? []).map { row -> ReceiptOutcome in
            let lacking = (places[row.id] ?? []).flatMap { purchase -> [LimitPlace.Limit] in
                switch row.state {
                case .held: [purchase.gate.holdingLimit].compactMap { $0 }
                case .granted: purchase.gate.exceededLimits
                default: []
                }
            }
            return ReceiptOutcome(
                receiptID: row.id, state: row.state, attempt: row.attempt, age: row.age,
                tellsDispute: disputed.contains(row.id), lackingLimit: lacking.min { $0.rawValue < $1.rawValue },
                ownedByAnother: (places[row.id] ?? []).filter {
                    $0.outcome.reason == Reason.ownedByAnotherUser.rawValue
                }.compactMap(\.row.transactionID))
        }
    }
}
