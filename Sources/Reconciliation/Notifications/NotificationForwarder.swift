package import AsyncHTTPClient
import Encoding
import Foundation
package import Ledger
package import Logging
import Metrics
import NIOCore
import NIOHTTP1
import Purchases
import Service
import ServiceLifecycle
package import Settings

/// Sends notifications to the apps' other URLs (`notifications.forwardTo`), as Apple sent them. A notification that the
/// other URL does not take for a day is given up; its facts are stored here anyway.
///
/// Runs in the workers, because no other process reaches the internet in a closed network. Any number may run it.
package struct NotificationForwarder: Service {
    static let interval: Duration = .seconds(1)
    /// Notifications on the way at a time, in each process.
    static let inFlightMax = 8
    private static let callLimit: Duration = .seconds(10)
    private static let retryMin: Duration = .seconds(60)
    private static let retryMax: Duration = .seconds(3600)
    static let givenUpAfter: Duration = .seconds(86_400)

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let http: HTTPClient
    private let logger: Logger

    package init(ledger: Ledger, configuration: ConfigurationHolder, http: HTTPClient, logger: Logger) {
        self.ledger = ledger
        self.configuration = configuration
        self.http = http
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            while !Task.isCancelled {
                guard await !round() else { continue }
                try? await Task.sleep(for: max(.milliseconds(50), Self.interval * ledger.schedule.scale))
            }
        }
    }

    /// Sends what is due.
    ///
    /// - Returns: whether more may be due, and the other URLs took some of these.
    @discardableResult
    func round() async -> Bool {
        let urls = configuration.current.apps.compactMapValues(\.notifications.forwardTo)
        guard !urls.isEmpty else { return false }
        do {
            let claimed = try await ledger.run(
                Statements.claimForwards,
                .init(
                    apps: urls.keys.sorted(), limit: Self.inFlightMax, delay: Self.retryMin * ledger.schedule.scale,
                    delayMax: Self.retryMax * ledger.schedule.scale))
            guard !claimed.isEmpty else { return false }
            let taken = await withTaskGroup(of: UUID?.self) { group in
                for notification in claimed {
                    group.addTask { await send(notification, to: urls[notification.appID]) ? notification.id : nil }
                }
                return await group.reduce(into: Set<UUID>()) { taken, id in if let id { taken.insert(id) } }
            }
            let givenUp = claimed.filter {
                !taken.contains($0.id) && $0.age > Self.givenUpAfter * ledger.schedule.scale
            }
            let ended = taken.union(givenUp.map(\.id))
            if !ended.isEmpty { _ = try await ledger.run(Statements.endForwards, Array(ended)) }
            for notification in claimed {
                count(
                    notification,
                    taken.contains(notification.id) ? "sent" : ended.contains(notification.id) ? "given_up" : "failed")
            }
            return claimed.count == Self.inFlightMax && !taken.isEmpty
        } catch {
            // The claim has set the time of the next try.
            logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    /// Returns whether the other URL has taken the notification. Only the status of the answer is read.
    private func send(_ notification: Statements.ForwardedNotification, to url: URL?) async -> Bool {
        guard let url else { return false }
        var request = HTTPClientRequest(url: url.absoluteString)
        request.method = .POST
        request.headers.add(name: "content-type", value: "application/json")
        request.body = .bytes(ByteBuffer(string: notification.body))
        let limit = max(.seconds(1), Self.callLimit * ledger.schedule.scale)
        guard
            let response = try? await http.execute(
                request, timeout: .nanoseconds(Int64(limit.inSeconds * 1_000_000_000)))
        else { return false }
        return (200..<300).contains(response.status.code)
    }

    private func count(_ notification: Statements.ForwardedNotification, _ outcome: String) {
        Counter(
            label: "makegood_notification_forwards_total",
            dimensions: [("app", notification.appID), ("outcome", outcome)]
        ).increment()
        guard outcome == "given_up" else { return }
        logger.warning(
            "a notification could not be forwarded for a day",
            metadata: ["notification.id": "\(notification.id)", "app.id": "\(notification.appID)"])
    }
}

extension Statements.ForwardedNotification {
    /// The body as Apple posts it: version 1 without the password, version 2 as the one member of an object.
    var body: String {
        version == 1 ? payload : JSONValue.object([.init("signedPayload", .string(payload))]).text
    }
}
