import Purchases

/// A signal that wakes the runner of follow-ups. Wakes that come while the runner runs are one wake.
final class FollowUpSignal: Sendable {
    let wakes: AsyncStream<Void>
    private let continuation: AsyncStream<Void>.Continuation

    init() {
        (wakes, continuation) = AsyncStream<Void>.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    /// Tells the runner that a transaction may have marked a chain.
    func wake() { continuation.yield() }
}

extension Verdict.Decisions {
    /// Whether storing the verdict may mark a chain: it has a period, an end, or a change of owner.
    var mayMarkChains: Bool {
        guard case .transactions(let entries) = self else { return false }
        return entries.contains {
            let transaction = $0.transaction
            return transaction.expiresAt != nil || transaction.revokedAt != nil
                || transaction.previousOriginalID != nil || $0.transfer != nil
        }
    }
}
