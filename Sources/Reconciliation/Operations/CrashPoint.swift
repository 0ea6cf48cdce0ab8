import Foundation
import Synchronization

#if canImport(Glibc)
    import Glibc
#endif

/// Places where a test may end the process as kill -9 would. Compiled into debug builds only.
///
/// `MAKEGOOD_TEST_CRASH=after_commit_before_ack` dies at the first pass; `judging:USER` dies whenever a receipt of
/// that user is judged.
enum CrashPoint: String {
    case afterCommitBeforeAck = "after_commit_before_ack"
    case afterAppleBeforeCommit = "after_apple_before_commit"
    case judging

    #if DEBUG
        private static let wanted = ProcessInfo.processInfo.environment["MAKEGOOD_TEST_CRASH"] ?? ""

        func reached(for subject: String? = nil) {
            guard !Self.wanted.isEmpty else { return }
            let here = subject.map { "\(rawValue):\($0)" } ?? rawValue
            if Self.wanted == here { kill(getpid(), SIGKILL) }
        }
    #else
        @inline(__always) func reached(for subject: String? = nil) {}
    #endif
}
