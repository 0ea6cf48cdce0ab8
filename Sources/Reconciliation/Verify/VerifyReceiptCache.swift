import AppStore
import Foundation
import Synchronization

/// Answers of verifyReceipt about receipts that then had to wait for the Server API, whose calls Apple limits. When
/// such a receipt comes again, perhaps ten times after an outage, verifyReceipt is not asked again. The answers are
/// kept in memory, by each process for itself.
final class VerifyReceiptCache: Sendable {
    /// The age up to which an answer is used. That is safe: the Server API confirms what is granted, and the rest was
    /// true minutes ago.
    static let keptFor: Duration = .seconds(600)
    static let receiptsMax = 4096
    /// Entries of one receipt. For a larger receipt verifyReceipt is asked again.
    static let entriesMax = 32

    private let answers = Mutex<[UUID: (verified: VerifiedReceipt, at: ContinuousClock.Instant)]>([:])

    func answer(about receiptID: UUID, at now: ContinuousClock.Instant = .now) -> VerifiedReceipt? {
        answers.withLock { answers in
            guard let answer = answers[receiptID], now - answer.at < Self.keptFor else { return nil }
            return answer.verified
        }
    }

    func note(_ verified: VerifiedReceipt, about receiptID: UUID, at now: ContinuousClock.Instant = .now) {
        guard (verified.inApp?.count ?? 0) + (verified.latestReceiptInfo?.count ?? 0) <= Self.entriesMax else { return }
        var kept = verified
        kept.latestReceipt = nil
        answers.withLock { answers in
            // The first answer's time counts, or the answer would never become too old.
            guard answers[receiptID].map({ now - $0.at >= Self.keptFor }) ?? true else { return }
            if answers.count >= Self.receiptsMax { answers = answers.filter { now - $0.value.at < Self.keptFor } }
            if answers.count < Self.receiptsMax { answers[receiptID] = (kept, now) }
        }
    }

    func forget(_ receiptID: UUID) { answers.withLock { _ = $0.removeValue(forKey: receiptID) } }
}
