import Encoding
import Foundation
import Ledger

extension Doctor {
    /// Whether Apple's notifications arrive: one finding for each app. Apple sends the sandbox's notifications to the
    /// URL of production where App Store Connect has no other URL.
    static func notifications(_ health: [Statements.NotificationHealth], of apps: Set<String>) -> [Diagnosis] {
        let check = "notifications"
        return apps.sorted().map { app in
            // Of an app that no service has started with yet there is none.
            let places = health.filter { $0.place.appID == app }
            if places.contains(where: { $0.testProblem != nil }) {
                return .warn(
                    check, "App Store Connect has no URL for \(app)",
                    "enter https://HOST/v1/apple/notifications there, version 2, for production and for the sandbox")
            }
            guard let now = places.first?.now, let heardAt = places.compactMap(\.heardAt).max() else {
                return .warn(
                    check, "none ever came for \(app)",
                    "enter https://HOST/v1/apple/notifications in App Store Connect, version 2, for production and for "
                        + "the sandbox, then run makegood apple test-notification --app \(app)")
            }
            let minutes = Int(max(0, now.timeIntervalSince(heardAt)) / 60)
            return .ok(check, "the last one for \(app) came \(minutes.counted("minute")) ago")
        }
    }
}
