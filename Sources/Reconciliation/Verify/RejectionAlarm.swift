import Purchases
import Synchronization

/// Notices when one app's receipts fail often in a way that is a mistake of ours as often as an attack
/// (RetriesAndRescue).
final class RejectionAlarm: Sendable {
    static let window: Duration = .seconds(600)
    /// More failures than this in one window raise the alarm, once a window.
    static let countMax = 10

    private struct Key: Hashable {
        let appID: String
        let reason: Reason
    }

    private struct Window {
        var start: ContinuousClock.Instant
        var count = 0
    }

    private let windows = Mutex<[Key: Window]>([:])

    /// What the operator should look at first; nil for a reason that is no mistake of ours.
    static func cause(_ reason: Reason) -> String? {
        switch reason {
        case .malformed: "the app's latest release"
        case .wrongApp: "bundleId"
        case .wrongEnvironment: "environments"
        case .untrustedRoot: "rootCertificates"
        case .clockAhead: "the clock of the database"
        case .certificateRevoked: "ocsp"
        default: nil
        }
    }

    /// True once per window, when the count passes the limit.
    func record(_ appID: String, _ reason: Reason, at now: ContinuousClock.Instant = .now) -> Bool {
        windows.withLock { windows in
            let key = Key(appID: appID, reason: reason)
            var window = windows[key] ?? Window(start: now)
            if now - window.start > Self.window { window = Window(start: now) }
            window.count += 1
            windows[key] = window
            return window.count == Self.countMax + 1
        }
    }
}
