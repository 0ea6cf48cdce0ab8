import Encoding
import Foundation
package import Postgres
package import Purchases

/// The result of one follow-up transaction.
package struct FollowedChains: Sendable, Equatable {
    /// How many chains were looked at.
    package var chains = 0
    package var revocations = 0
    package var events = 0
    /// How long the oldest of the chains was due or marked; zero where there was none.
    package var lag: Duration = .zero
    /// Receipts that became due at once, with their lanes.
    package var woken: [WokenReceipt] = []
    /// Whether more chains may be marked or due.
    package var isMore = false

    package init() {}
}

/// A receipt that became due because of what happened to a chain.
package struct WokenReceipt: Sendable, Equatable {
    package let pointer: Pointer
    package let lane: Lane
}

extension Database {
    /// Follows up chains that are marked or due, at most `limit`, in one transaction. It decides for each chain
    /// (``ChainFacts/followUp(by:)``), writes revocations, events and told states, and makes the receipts due that have
    /// to be judged again.
    ///
    /// Two follow-ups of one chain do not run at once. None waits for a receipt: a chain with a receipt that another
    /// process has locked stays as it is, and is followed up after the others. A chain of a user who is being
    /// erased is followed
    /// up later too.
    ///
    /// Idempotent: a repeated follow-up finds no mark, or nothing new.
    ///
    /// - Parameter policies: by app. An app that is missing has the default.
    package func followUpChains(
        policies: [String: SubscriptionPolicy], limit: Int
    ) async throws(PostgresError) -> FollowedChains {
        try await transact("ledger.follow_up") { transaction throws(PostgresError) in
            try FollowUpTransaction(policies: policies, limit: limit, in: transaction).run()
        }
    }
}

extension Ledger {
    /// As `Database.followUpChains`. A conflict with another transaction is not retried: the chains stay marked or due.
    package func followUpChains(
        policies: [String: SubscriptionPolicy], limit: Int
    ) async throws(LedgerError) -> FollowedChains {
        do {
            return try await database.followUpChains(policies: policies, limit: limit)
        } catch {
            throw LedgerError(error)
        }
    }

    /// Has the chain whose turn it is followed up ten minutes later, because its follow-up fails: it must not keep the
    /// other chains waiting. Returns what the log may say of the chain; nil: it is no chain's turn.
    package func putOffChain() async throws(LedgerError) -> String? {
        do {
            return try await database.transact("ledger.put_off_chain") { transaction throws(PostgresError) in
                transaction.queue(Statements.enterChains, ())
                let later = transaction.queue(Statements.putOffChain, ())
                try transaction.commit()
                return later.rows.first
            }
        } catch {
            throw LedgerError(error)
        }
    }
}

/// A chain that a follow-up has locked, with the result of its follow-up.
struct FollowedChain: Sendable {
    let facts: ChainFacts
    let followUp: FollowUp
    /// The ids of the marks that were read before the facts.
    let marks: [Int]
    /// The holder of each granted purchase, by its transaction, also where the user was erased.
    let holders: [String: String]
    /// The chain that this one is known to continue since this follow-up.
    let newPrevious: String?

    /// The granted purchases that are taken back now.
    var revokedIDs: [String] {
        let entries = facts.purchases.flatMap(\.revocations) + followUp.revocations
        return Dictionary(entries.map { ($0.transactionID, $0) }, uniquingKeysWith: { $1 })
            .values.filter { $0.kind == .revoked }.map(\.transactionID)
    }

    /// The follow-up of each chain.
    ///
    /// - Parameters:
    ///   - purchases: of all these chains.
    ///   - entries: the revocations of all these purchases.
    ///   - policy: by app.
    static func decide(
        _ chains: [Statements.TakenChain], _ purchases: [Statements.ChainPurchase], _ entries: [RevocationEntry],
        by policy: (String) -> SubscriptionPolicy
    ) -> [FollowedChain] {
        let revocations = Dictionary(grouping: entries, by: \.transactionID)
        let byChain = Dictionary(grouping: purchases, by: \.chain)
        return chains.enumerated().map { index, chain in
            decide(chain, byChain[index] ?? [], revocations, by: policy(chain.facts.appID))
        }
    }

    private static func decide(
        _ taken: Statements.TakenChain, _ rows: [Statements.ChainPurchase], _ revocations: [String: [RevocationEntry]],
        by policy: SubscriptionPolicy
    ) -> FollowedChain {
        var facts = taken.facts
        facts.purchases = rows.map { row in
            var purchase = row.purchase
            purchase.revocations = revocations[purchase.transaction.id] ?? []
            return purchase
        }
        let previous = facts.purchases.last { $0.transaction.previousOriginalID != nil }?.transaction.previousOriginalID
        let isNew = previous != nil && !previous.isSameText(as: facts.previousOriginalID)
        if isNew { facts.previousOriginalID = previous }
        var followUp = facts.followUp(by: policy)
        if !taken.marks.isEmpty, facts.hasEnds {
            let again = facts.now + FollowUpTransaction.lookedAgainAfter
            followUp.dueAt = followUp.dueAt.map { min($0, again) } ?? again
        }
        return FollowedChain(
            facts: facts, followUp: followUp, marks: taken.marks,
            holders: Dictionary(
                rows.compactMap { row in row.holder.map { (row.purchase.transaction.id, $0) } },
                uniquingKeysWith: { first, _ in first }),
            newPrevious: isNew ? previous : nil)
    }

    /// Whether receipts that nobody posted may have another answer now.
    var isNews: Bool { !followUp.revocations.isEmpty || !followUp.events.isEmpty }
}

/// The rounds of a follow-up. Chains are locked first, in any order, because nobody waits for them; receipts after
/// them, and nobody waits for those either.
struct FollowUpTransaction {
    /// The marks that are read at once, the oldest, and the chains among which their turn is.
    static let marksMax = 5000
    static let markedChainsMax = 500
    /// A chain with an end is looked at again so many seconds after its facts were new, longer than a verdict takes. A
    /// verdict on another id of the purchase may be written at this moment by what was known before, and marks no
    /// chain.
    fileprivate static let lookedAgainAfter: TimeInterval = 60

    private let policies: [String: SubscriptionPolicy]
    private let limit: Int
    private let transaction: DatabaseTransaction

    init(policies: [String: SubscriptionPolicy], limit: Int, in transaction: DatabaseTransaction) {
        self.policies = policies
        self.limit = limit
        self.transaction = transaction
    }

    /// Runs the rounds and commits.
    func run() throws(PostgresError) -> FollowedChains {
        var result = FollowedChains()
        transaction.queue(Statements.enterChains, ())
        let taken = transaction.queue(Statements.takeChains, limit)
        try transaction.exchange()
        guard !taken.rows.isEmpty else {
            // The rows of marked chains, which others have locked.
            try transaction.commit()
            return result
        }
        result.lag = .seconds(max(0, taken.rows.map(\.lag).max() ?? 0))
        let all = try read(taken.rows)
        let receipts = try take(all)
        let free = all.indices.filter { !receipts.busy.contains($0) }
        let chains = free.map { all[$0] }
        result.chains = chains.count
        result.isMore = taken.rows.count >= limit && !chains.isEmpty
        result.revocations = chains.reduce(0) { $0 + $1.followUp.revocations.count }
        result.events = chains.reduce(0) { $0 + $1.followUp.events.count }
        let busy = all.indices.filter(receipts.busy.contains).map { all[$0] }
        let woken = try write(chains, receipts.found.filter { !receipts.busy.contains($0.chain) }, busy: busy)
        result.woken = woken
        return result
    }

    // MARK: Reading

    /// Reads the facts of the chains after the lock, and decides.
    private func read(_ taken: [Statements.TakenChain]) throws(PostgresError) -> [FollowedChain] {
        let purchases = transaction.queue(Statements.readChainPurchases, taken)
        let entries = transaction.queue(Statements.readRevocations, taken)
        try transaction.exchange()
        return FollowedChain.decide(taken, purchases.rows, entries.rows) { policies[$0] ?? SubscriptionPolicy() }
    }

    // MARK: Receipts

    /// Locks the receipts that have to be judged again.
    ///
    /// - Returns: the locked receipts, each with its chain's place; and the places of the chains with a receipt that
    ///   another process has locked, or of a user who is being erased.
    private func take(
        _ chains: [FollowedChain]
    ) throws(PostgresError) -> (found: [Statements.ReceiptOfChain], busy: Set<Int>) {
        let judged = chains.enumerated().flatMap { place, chain in
            Set(chain.followUp.rejudged).sorted().map {
                Statements.RejudgedTransaction(chain: place, appID: chain.facts.appID, transactionID: $0)
            }
        }
        let waiting = chains.enumerated().flatMap { place, chain -> [Statements.UnpostedQuestion] in
            guard chain.isNews else { return [] }
            let customers = Set(chain.facts.purchases.compactMap(\.transaction.customerID)).sorted()
            return [.init(chain: place, appID: chain.facts.appID, originalID: chain.facts.originalID, customerID: nil)]
                + customers.map {
                    .init(chain: place, appID: chain.facts.appID, originalID: nil, customerID: $0)
                }
        }
        let users = chains.enumerated().flatMap { place, chain in
            Set(chain.holders.values).union([chain.facts.told?.userID].compactMap(\.self)).sorted().map {
                Statements.HolderOfChain(chain: place, appID: chain.facts.appID, userID: $0)
            }
        }
        let ended =
            judged.isEmpty
            ? nil
            : transaction.queue(
                Statements.takeRejudged,
                .init(transactions: judged, revokedIDs: chains.flatMap(\.revokedIDs)))
        let unposted = transaction.queue(forAny: waiting, Statements.takeUnposted)
        let leaving = transaction.queue(forAny: users, Statements.holdersBeingErased)
        if ended != nil || unposted != nil || leaving != nil { try transaction.exchange() }
        let found = (ended?.rows ?? []) + (unposted?.rows ?? [])
        let busy = Set(found.filter { !$0.isOurs }.map(\.chain)).union(leaving?.rows ?? [])
        return (found, busy)
    }

    // MARK: Writing

    private func write(
        _ chains: [FollowedChain], _ receipts: [Statements.ReceiptOfChain], busy: [FollowedChain]
    ) throws(PostgresError) -> [WokenReceipt] {
        transaction.queue(
            forAny: chains.flatMap { chain in
                chain.followUp.revocations.compactMap { entry in
                    chain.holders[entry.transactionID].map { (chain.facts, entry, $0) }
                }
            }, Statements.writeRevocations)
        transaction.queue(forAny: chains.flatMap(SettledEvent.followed), Statements.writeEvents)
        transaction.queue(forAny: chains, Statements.writeChains)
        transaction.queue(forAny: chains.filter { $0.newPrevious != nil }, Statements.markContinuedChains)
        let opened = receipts.filter { $0.opens != nil }
        let reopened = opened.isEmpty ? nil : transaction.queue(Statements.reopenRefunded, opened)
        let opening = Set(opened.map(\.receiptID))
        let due = Set(receipts.map(\.receiptID)).subtracting(opening)
        let woken = due.isEmpty ? nil : transaction.queue(Statements.wakeReceipts, Array(due))
        transaction.queue(forAny: busy, Statements.putOffBusy)
        transaction.queue(forAny: (chains + busy).flatMap(\.marks), Statements.forgetMarks)
        try transaction.commit()
        return (reopened?.rows ?? []) + (woken?.rows ?? [])
    }
}

extension ChainFacts {
    /// Whether Apple ended one of the purchases, now or before.
    fileprivate var hasEnds: Bool {
        purchases.contains { $0.transaction.revokedAt != nil || !$0.revocations.isEmpty }
    }
}

extension SettledEvent {
    /// The events of a follow-up, in their order.
    fileprivate static func followed(_ chain: FollowedChain) -> [SettledEvent] {
        chain.followUp.events.map { event in
            SettledEvent(
                id: DerivedID.event(
                    appID: chain.facts.appID, transactionID: event.transactionID, type: event.type,
                    distinction: event.distinction),
                appID: chain.facts.appID, type: event.type, userID: event.userID, transactionID: event.transactionID,
                receiptID: event.receiptID, body: JSONValue.object(event.body).text)
        }
    }
}
