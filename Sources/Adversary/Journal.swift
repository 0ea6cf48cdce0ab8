import Foundation
import Ledger
import Synchronization

/// The apps' memory: every answer to every post, and how long it took.
final class Journal: Sendable {
    struct Answer: Sendable {
        let at: ContinuousClock.Instant
        /// The HTTP status; 0: no answer.
        let status: Int
        /// Why no answer came; nil: one came.
        let loss: String?
        let seconds: Double
    }

    private struct State {
        var entries: [Witness.JournalEntry] = []
        var answers: [Answer] = []
        /// Submissions that have no final answer yet.
        var open = 0
        var surprises: [String] = []
    }

    private let state = Mutex(State())

    var entries: [Witness.JournalEntry] { state.withLock { $0.entries } }
    /// The number of submissions that apps still try.
    var open: Int { state.withLock { $0.open } }
    /// Answers that no client should ever see; the first ten.
    var surprises: [String] { state.withLock { $0.surprises } }

    func began() { state.withLock { $0.open += 1 } }
    func ended() { state.withLock { $0.open -= 1 } }

    func surprise(_ text: String) {
        state.withLock { if $0.surprises.count < 10 { $0.surprises.append(text) } }
    }

    /// - Parameters:
    ///   - loss: why no answer came.
    ///   - isOfLoad: false: the answer says nothing about how the load is served.
    func record(
        _ post: PurchaseGenerator.Post, status: Int, receiptID: UUID?, loss: String? = nil, seconds: Double,
        isOfLoad: Bool = true
    ) {
        let entry = Witness.JournalEntry(
            submission: post.submission, receiptID: receiptID, status: status, appID: PurchaseGenerator.app,
            userID: post.userID,
            transactionID: post.transactionID, bodySHA256: post.proofSHA256)
        state.withLock { state in
            state.entries.append(entry)
            // A post that must be refused says nothing about the service's health.
            if isOfLoad, !post.isRefused || status == 0 || status >= 500 {
                state.answers.append(Answer(at: .now, status: status, loss: loss, seconds: seconds))
            }
        }
    }

    /// Records the answer to a notification of Apple's.
    func record(_ notification: PurchaseGenerator.Notification, status: Int) {
        var entry = Witness.JournalEntry(
            submission: "notification about \(notification.transactionID)", receiptID: nil, status: status,
            appID: PurchaseGenerator.app, userID: "", transactionID: notification.transactionID, bodySHA256: nil)
        entry.isNotification = true
        state.withLock { [entry] in $0.entries.append(entry) }
    }

    /// Sums up the answers of a span of time.
    func summary(_ span: Range<ContinuousClock.Instant>) -> Summary {
        let answers = state.withLock { state in
            state.answers.drop { $0.at < span.lowerBound }.filter { span.contains($0.at) }
        }
        return Summary(answers)
    }

    struct Summary: Sendable {
        let count: Int
        /// The number of answers by status, without 200 and 202.
        let troubles: [Int: Int]
        /// The number of posts without an answer, by reason.
        let losses: [String: Int]
        let p99Seconds: Double
        let longestSeconds: Double

        init(_ answers: some Sequence<Answer>) {
            var troubles: [Int: Int] = [:]
            var losses: [String: Int] = [:]
            var seconds: [Double] = []
            for answer in answers {
                seconds.append(answer.seconds)
                if answer.status != 200 && answer.status != 202 { troubles[answer.status, default: 0] += 1 }
                if let loss = answer.loss { losses[loss, default: 0] += 1 }
            }
            count = seconds.count
            self.troubles = troubles
            self.losses = losses
            seconds.sort()
            longestSeconds = seconds.last ?? 0
            p99Seconds = seconds.isEmpty ? 0 : seconds[(seconds.count - 1) * 99 / 100]
        }

        var troubleCount: Int { troubles.values.reduce(0, +) }
        var troubleText: String {
            guard !troubles.isEmpty else { return "0" }
            let reasons = losses.sorted { $0.value > $1.value }.prefix(3).map { "\($0.value)× \($0.key)" }
            return troubles.sorted { $0.key < $1.key }.map {
                $0.key == 0 ? "\($0.value)× no answer (\(reasons.joined(separator: ", ")))" : "\($0.value)× \($0.key)"
            }.joined(separator: ", ")
        }
    }
}
