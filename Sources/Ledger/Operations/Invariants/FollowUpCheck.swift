package import Postgres
import Purchases

/// A check that the told state of each chain is what its facts say: follows up chains anew by the pure function
/// (``ChainFacts/followUp(by:)``), writes nothing, and reports each chain about which a follow-up would write or tell
/// something although the chain is neither marked nor due soon (I16).
///
/// A database does not say by which policy a chain was followed up, so a chain holds if one of all policies explains
/// what was told. Runs in `makegood check`, by a role that may read Apple's facts: the scheduler may not. Reads the
/// chains that were followed up in the span, ``pageSize`` in one snapshot; of a span that is not everything at most
/// ``chainsMax``, in the order of their keys.
package enum FollowUpCheck {
    package static let name = "told_by_facts"
    package static let id = "I16"
    package static let meaning = "what was told of a chain is what its facts say"
    package static let chainsMax = 20_000
    private static let pageSize = 256

    /// - Returns: the violation, nil if there is none; and how many chains were read.
    package static func run(
        _ database: Database, span: Invariant.Span
    ) async throws(PostgresError) -> (violation: Invariant.Violation?, chains: Int) {
        var page = Statements.FollowedPage(seconds: span.inSeconds, limit: pageSize)
        var (chains, count) = (0, 0)
        var examples: [String] = []
        while span == .all || chains < chainsMax {
            let read = try await read(page, in: database)
            chains += read.count
            for chain in read where chain.isNews {
                count += 1
                let id = String(chain.facts.originalID.suffix(4))
                let news =
                    chain.followUp.revocations.first?.kind.rawValue ?? chain.followUp.events.first?.type.rawValue
                if examples.count < Invariant.Violation.examplesMax {
                    examples.append("chain …\(id): untold \(news ?? "")")
                }
            }
            guard read.count == pageSize, let last = read.last?.facts else { break }
            page.after = (app: last.appID, environment: last.environment, original: last.originalID)
        }
        guard count > 0 else { return (nil, chains) }
        return (Invariant.Violation(id: id, invariant: name, examples: examples, count: count), chains)
    }

    /// Reads a page in one snapshot, so that a chain, its marks and its facts are of one moment.
    private static func read(
        _ page: Statements.FollowedPage, in database: Database
    ) async throws(PostgresError) -> [FollowedChain] {
        try await database.transact("check.chains", isSnapshot: true) { transaction throws(PostgresError) in
            let taken = transaction.queue(Statements.followedChains, page)
            try transaction.exchange()
            guard !taken.rows.isEmpty else {
                try transaction.commit()
                return []
            }
            let purchases = transaction.queue(Statements.recheckChainPurchases, taken.rows)
            let entries = transaction.queue(Statements.readRevocations, taken.rows)
            try transaction.commit()
            let followed = policies.map { policy in
                FollowedChain.decide(taken.rows, purchases.rows, entries.rows) { _ in policy }
            }
            return taken.rows.indices.map { place in
                followed.map { $0[place] }.first { !$0.isNews } ?? followed[0][place]
            }
        }
    }

    /// Every policy by which the state of a subscription may have been told.
    private static let policies: [SubscriptionPolicy] = [true, false].flatMap { grace in
        [true, false].map { retry in
            var policy = SubscriptionPolicy()
            (policy.graceEntitles, policy.retryEntitles) = (grace, retry)
            return policy
        }
    }
}
