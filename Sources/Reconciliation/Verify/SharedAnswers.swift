import AppStore
import Caching
import Foundation
import Ledger
import Purchases
import Synchronization

/// verifyReceipt's answers about the bytes that many users post (F20). The bytes have one answer for every poster: a
/// process asks for the receipts of ``askingMax`` users in ten minutes, and the other users get the answer of these.
///
/// A user's receipt that was asked about before is asked about as if there were no other users.
final class SharedAnswers: Sendable {
    static let askingMax = 8
    /// After this time other users' receipts are asked about.
    static let keptFor = VerifyReceiptCache.keptFor
    private static let proofsMax = 2048

    /// The bytes that were posted in one app.
    struct PostedBytes: Hashable, Sendable {
        let appID: String
        let sha256: [UInt8]

        init(_ receipt: StoredReceipt) {
            appID = receipt.appID
            sha256 = receipt.proof.payloadSHA256
        }

        init(appID: String, sha256: [UInt8]) {
            self.appID = appID
            self.sha256 = sha256
        }
    }

    enum Leave: Sendable {
        /// Ask Apple, and say how it ended (``asked(about:for:_:)``).
        case ask
        case answer(VerifiedReceipt)
        /// As many receipts as may be are asked about, and none has an answer.
        case wait
    }

    private struct Shown {
        var since: ContinuousClock.Instant
        var asking: Set<UUID> = []
        var answer: VerifiedReceipt?
    }

    private let proofs = Mutex(RecentDictionary<PostedBytes, Shown>(generationMax: proofsMax))

    func leave(toAskAbout proof: PostedBytes, for receiptID: UUID, at now: ContinuousClock.Instant = .now) -> Leave {
        proofs.withLock { proofs in
            var shown = proofs[proof] ?? Shown(since: now)
            if now - shown.since >= Self.keptFor { shown = Shown(since: now) }
            if !shown.asking.contains(receiptID), shown.asking.count >= Self.askingMax {
                return shown.answer.map { .answer($0) } ?? .wait
            }
            shown.asking.insert(receiptID)
            proofs[proof] = shown
            return .ask
        }
    }

    /// - Parameter verified: Apple's answer; nil: there was none, and another receipt may be asked about instead.
    func asked(about proof: PostedBytes, for receiptID: UUID, _ verified: VerifiedReceipt?) {
        proofs.withLock { proofs in
            guard var shown = proofs[proof] else { return }
            if var verified {
                verified.latestReceipt = nil
                // Nobody but the one poster asks about most receipts, and their answers need no room.
                if shown.asking.count >= Self.askingMax { shown.answer = verified }
            } else {
                shown.asking.remove(receiptID)
            }
            proofs[proof] = shown
        }
    }
}
