import Foundation
import Synchronization

#if canImport(Glibc)
    import Glibc
#endif

/// Places where a test may end the process as kill -9 would. Compiled into debug builds only.
///
/// `MAKEGOOD_TEST_CRASH=after_commit_before_ack` dies at the first pass, `after_commit_before_ack@20` at the 20th;
/// `judging:USER` dies whenever a receipt of that user is judged.
package enum CrashPoint: String, CaseIterable, Sendable {
    /// Ingest: the row is committed and no message was sent.
    case afterCommitBeforePublish = "after_commit_before_publish"
    /// Worker: the verdict is committed and the message not acknowledged.
    case afterCommitBeforeAck = "after_commit_before_ack"
    /// Worker: Apple has answered and nothing is written.
    case afterAppleBeforeCommit = "after_apple_before_commit"
    /// Worker: a purchase is given on trust and the failed attempt not written.
    case afterTrustBeforeRow = "after_trust_before_row"
    /// Worker: the failed attempt is written and the message for the next one not sent.
    case afterRowBeforeRetry = "after_row_before_retry"
    /// Scheduler: rows are claimed and not published.
    case afterClaimBeforePublish = "after_claim_before_publish"
    /// Worker: Apple was told something about a decided purchase and that is not written.
    case afterAppleUpdateBeforeRow = "after_apple_update_before_row"
    case judging

    #if DEBUG
        private static let wanted: (point: String, pass: Int) = {
            let words = (ProcessInfo.processInfo.environment["MAKEGOOD_TEST_CRASH"] ?? "").split(separator: "@")
            return (words.first.map(String.init) ?? "", words.count > 1 ? Int(words[1]) ?? 1 : 1)
        }()
        private static let passes = Atomic<Int>(0)

        package func reached(for subject: String? = nil) {
            guard !Self.wanted.point.isEmpty else { return }
            let here = subject.map { "\(rawValue):\($0)" } ?? rawValue
            guard Self.wanted.point == here else { return }
            if Self.passes.wrappingAdd(1, ordering: .relaxed).newValue >= Self.wanted.pass { kill(getpid(), SIGKILL) }
        }
    #else
        @inline(__always) package func reached(for subject: String? = nil) {}
    #endif
}
