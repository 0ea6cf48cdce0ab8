import AppStore
package import AppleGateway
import Encoding
import Foundation
package import Ledger
package import Logging
package import Metrics
import Purchases
import Service
import ServiceLifecycle
import Settings

/// A loop that finds out whether Apple's notifications still arrive (P38). It asks Apple for a test where an app has
/// been silent for longer than usual, and raises the alarm where the test does not come. `NotificationSilence`
/// decides.
///
/// Runs in the workers, because no other process reaches Apple in a closed network. Any number may run it. A row in the
/// database says which one asks.
package struct NotificationWatch: Service {
    package static let interval: Duration = .seconds(60)
    /// How often a worker looks for days that have yet to be counted.
    static let countInterval: Duration = .seconds(3600)

    private let ledger: Ledger
    private let apps: AppDirectory
    private let halts: Halts
    private let logger: Logger
    private let metrics: any MetricsFactory

    package init(
        ledger: Ledger, apps: AppDirectory, halts: Halts, logger: Logger,
        metrics: any MetricsFactory = MetricsSystem.factory
    ) {
        self.ledger = ledger
        self.apps = apps
        self.halts = halts
        self.logger = logger
        self.metrics = metrics
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var silent: Set<Statements.NotificationPlace> = []
            var countedAt: ContinuousClock.Instant?
            while !Task.isCancelled {
                // First, because a worker that has just started has purchases to judge.
                try? await Task.sleep(for: Self.interval)
                guard !Task.isCancelled else { return }
                do {
                    if countedAt.map({ ContinuousClock.now - $0 >= Self.countInterval }) ?? true {
                        try await countDays()
                        countedAt = .now
                    }
                    try await look(&silent)
                } catch {
                    logger.warning("watch could not look", metadata: LogKeys.error(error))
                }
            }
        }
    }

    private func countDays() async throws {
        for id in apps.ids {
            for environment in apps[id]?.lookUpOrder ?? [] where !Task.isCancelled {
                _ = try await ledger.run(
                    Statements.countNotificationDays, .init(appID: id, environment: environment.rawValue))
            }
        }
    }

    /// Looks once at every app and environment that this worker is configured for.
    ///
    /// - Parameter silent: the places whose alarm the log has told, and which are still silent.
    func look(_ silent: inout Set<Statements.NotificationPlace>) async throws {
        var found: Set<Statements.NotificationPlace> = []
        for health in try await ledger.run(Statements.notificationHealth, ()) {
            let environment = StoreEnvironment(rawValue: health.place.environment)
            guard let app = apps[health.place.appID], app.lookUpOrder.contains(environment) else { continue }
            let silence = NotificationSilence(facts(health, of: app))
            gauge(health.place).record(silence.isSilent ? 1 : 0)
            if silence.isSilent {
                found.insert(health.place)
                if !silent.contains(health.place) { tell(health) }
            }
            if silence.asks { try await ask(app, in: environment, health.place) }
        }
        // An alarm ends too where the configuration no longer has the app or the environment.
        for place in silent.subtracting(found) { gauge(place).record(0) }
        silent = found
    }

    private func gauge(_ place: Statements.NotificationPlace) -> Gauge {
        Gauge(
            label: "makegood_notifications_silent",
            dimensions: [("app", place.appID), ("environment", place.environment)], factory: metrics)
    }

    private func facts(_ health: Statements.NotificationHealth, of app: AppServices) -> NotificationSilence.Facts {
        NotificationSilence.Facts(
            now: health.now, heardAt: health.heardAt, usualGap: health.usualGap, days: health.days,
            askedAt: health.testAskedAt,
            canAsk: app.serverAPI != nil && halts.halt(of: .serverApi, for: app) == nil
                && !halts.isPaused(app.configuration.id),
            isExpected: app.configuration.notifications.forwardTo != nil)
    }

    private func tell(_ health: Statements.NotificationHealth) {
        var metadata = Self.names(health.place)
        metadata["heard.at"] = "\(health.heardAt?.rfc3339 ?? "never")"
        metadata["asked.at"] = "\(health.testAskedAt?.rfc3339 ?? "never")"
        if let problem = health.testProblem { metadata["problem"] = "\(problem)" }
        logger.error(
            health.testProblem == nil
                ? "Apple's notifications do not arrive"
                : "Apple's notifications do not arrive: App Store Connect has no URL for them",
            metadata: metadata)
    }

    /// Asks Apple for a test, unless another worker does. If Apple does not answer, a worker asks again a minute later.
    private func ask(
        _ app: AppServices, in environment: StoreEnvironment, _ place: Statements.NotificationPlace
    ) async throws {
        guard let api = app.serverAPI, try await ledger.run(Statements.claimNotificationTest, place).first != nil
        else { return }
        var token: String?
        do throws(AppStoreFailure) {
            token = try await api.requestTestNotification(in: environment).value
        } catch {
            guard case .api(let code, _) = error.error, code == .serverNotificationUrlNotFound else {
                logger.notice(
                    "Apple was not asked for a test notification",
                    metadata: Self.names(place).merging(["error": "\(error)"]) { $1 })
                return
            }
        }
        _ = try await ledger.run(Statements.noteNotificationTest, .init(place: place, token: token))
        logger.info("Apple was asked for a test notification", metadata: Self.names(place))
    }

    private static func names(_ place: Statements.NotificationPlace) -> Logger.Metadata {
        ["app.id": "\(place.appID)", "apple.environment": "\(place.environment)"]
    }
}
