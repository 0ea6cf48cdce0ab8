import AppStoreSimulator
import Foundation
import Logging
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: where an app falls silent, one worker asks Apple once for a test, and the alarm depends on whether a
/// notification came (P38). Method: the watch between the simulator over real HTTP and a real database, whose rows are
/// moved in time by SQL.
@Suite(.timeLimit(.minutes(4))) struct NotificationWatchTests {
    private static let place = Statements.NotificationPlace(appID: VerifyLab.appID, environment: "Production")

    private struct WatchLab {
        let lab: VerifyLab
        let apps: AppDirectory
        let watch: NotificationWatch
        let registry = PrometheusRegistry()
        let lines = LogLines()
        var silent: Set<Statements.NotificationPlace> = []

        init(_ lab: VerifyLab, hasServerAPI: Bool = true) async throws {
            self.lab = lab
            apps = AppDirectory(http: lab.http)
            try await apps.update(lab.configuration(hasServerAPI: hasServerAPI), ledger: lab.lab.ledger)
            watch = NotificationWatch(
                ledger: lab.lab.ledger, apps: apps, halts: lab.halts, logger: lines.logger, metrics: registry)
        }

        /// Whether the alarm is on after a look. Nil: no gauge says it.
        mutating func look() async throws -> Bool? {
            try await watch.look(&silent)
            let series = #"makegood_notifications_silent{app="game",environment="Production"} "#
            return registry.text.split(separator: "\n").first { $0.hasPrefix(series) }
                .map { $0.dropFirst(series.count) != "0" }
        }

        /// The problem of each alarm that the log has named since the last look.
        func alarms() -> [String] {
            lines.take().filter { $0.level == .error }.map { $0.metadata["problem"]?.description ?? "none" }
        }

        func problems() async throws -> [String] {
            try await lab.lab.texts(
                "select coalesce(problem, 'none') from notification_tests where asked_at is not null")
        }

        /// A notification that came so long ago, and days on which an hour of silence was usual.
        func heard(_ ago: String) async throws {
            try await lab.lab.run(
                """
                insert into notifications (id, version, app_id, environment, type, payload_sha256, state, settled_at,
                  received_at)
                values (gen_random_uuid(), 2, 'game', 'Production', 'DID_RENEW', '', 'ended', now(), now() - interval '\(ago)')
                """)
            try await lab.lab.run(
                """
                insert into notification_days (app_id, environment, day, received, longest_gap_seconds)
                select 'game', 'Production', (now() at time zone 'UTC')::date - d, 9, 3600 from generate_series(1, 10) d
                on conflict do nothing
                """)
        }
    }

    @Test("P38: a silent app: Apple is asked once, and what does not come alarms; without a URL the log says so")
    func silent() async throws {
        try await VerifyLab.with { lab in
            var watched = try await WatchLab(lab)
            #expect(try await watched.look() == false)
            #expect(try await watched.problems() == [], "nothing ever came, and nobody is asked")

            try await watched.heard("30 minutes")
            #expect(try await watched.look() == false)
            #expect(try await watched.problems() == [])
            try await lab.lab.run("update notifications set received_at = now() - interval '3 hours'")
            #expect(try await watched.look() == false)
            #expect(try await watched.problems() == ["no_url"], "Apple has no URL for the app yet")
            #expect(watched.alarms() == [])

            try await lab.lab.run("update notification_tests set asked_at = asked_at - interval '11 minutes'")
            #expect(try await watched.look() == true)
            #expect(try await watched.look() == true)
            #expect(watched.alarms() == ["no_url"], "told once")

            // The URL is entered, and an hour later Apple is asked again. Two workers ask once.
            var game = RegisteredApp(app: VerifyLab.bundleID)
            game.notificationURL = "http://127.0.0.1:1/v1/apple/notifications"
            try lab.store.register(game)
            try await lab.lab.run(
                """
                update notification_tests set claimed_at = now() - interval '2 hours', asked_at = now() - interval '2 hours'
                """)
            var other = try await WatchLab(lab)
            _ = try await (watched.look(), other.look())
            #expect(try await watched.problems() == ["none"])
            #expect(
                try await lab.lab.number(
                    "select count(*) from notification_tests where asked_at > now() - interval '1 minute'")
                    == 1)
            // Anything that comes ends the alarm.
            try await watched.heard("0 seconds")
            #expect(try await watched.look() == false)
        }
    }

    @Test("P38: without credentials nobody is asked, and a silence ten times as long as usual alarms")
    func withoutCredentials() async throws {
        try await VerifyLab.with { lab in
            var watched = try await WatchLab(lab, hasServerAPI: false)
            try await watched.heard("9 hours")
            #expect(try await watched.look() == false)
            try await lab.lab.run("update notifications set received_at = now() - interval '11 hours'")
            #expect(try await watched.look() == true)
            #expect(try await watched.problems() == [])
            #expect(watched.alarms() == ["none"])
            // The configuration has the environment no longer, so nothing is expected of it.
            try await watched.apps.update(lab.configuration(environments: ["Sandbox"]), ledger: lab.lab.ledger)
            #expect(try await watched.look() == false)
            #expect(watched.alarms() == [])
        }
    }
}
