import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL
import Synchronization

/// Sends notifications to the apps' servers over HTTP, those of one app and environment one after the other.
struct NotificationSender: Sendable {
    /// How often the sender looks for what is due.
    private static let beat: Duration = .milliseconds(50)
    /// The largest answer that is read, in bytes.
    private static let answerMax = 1 << 20

    let store: Storefront
    private let busy = Busy()
    private let http: HTTPClient

    init(store: Storefront) {
        self.store = store
        var configuration = HTTPClient.Configuration(redirectConfiguration: .disallow)
        // A refused connection is an attempt that failed.
        configuration.connectionPool.retryConnectionEstablishment = false
        http = HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
    }

    /// The lanes in which a notification is on its way.
    private final class Busy: Sendable {
        private let lanes = Mutex<Set<DeliveryLane>>([])

        func take(_ lane: DeliveryLane) -> Bool { lanes.withLock { $0.insert(lane).inserted } }
        func leave(_ lane: DeliveryLane) { lanes.withLock { _ = $0.remove(lane) } }
    }

    /// Runs until it is cancelled; called once. A notification that is on its way then stays due.
    func run() async {
        await withDiscardingTaskGroup { group in
            while !Task.isCancelled {
                for (lane, notifications) in store.ledger.due() where busy.take(lane) {
                    group.addTask {
                        for notification in notifications where !Task.isCancelled { await send(notification) }
                        busy.leave(lane)
                    }
                }
                try? await Task.sleep(for: Self.beat)
            }
        }
        try? await http.shutdown()
    }

    private func send(_ notification: HeldNotification) async {
        guard let delivery = notification.delivery else { return }
        guard delivery.isUnanswered != true else {
            try? store.ledger.sent(notification.notificationUUID, result: "TIMED_OUT")
            return
        }
        let result: String
        do {
            var request = HTTPClientRequest(url: delivery.url)
            request.method = .POST
            request.headers.add(name: "Content-Type", value: "application/json")
            request.headers.add(name: "User-Agent", value: "App Store simulator")
            request.body = .bytes(ByteBuffer(bytes: try store.body(of: notification)))
            let wait = store.ledger.settings.notificationTimeoutMilliseconds ?? 10_000
            let response = try await http.execute(request, timeout: .milliseconds(wait))
            _ = try? await response.body.collect(upTo: Self.answerMax)
            result = (200...206).contains(response.status.code) ? "SUCCESS" : "UNSUCCESSFUL_HTTP_RESPONSE_CODE"
        } catch {
            if Task.isCancelled { return }
            result = Self.result(of: error)
        }
        // A full disk leaves the notification due.
        try? store.ledger.sent(notification.notificationUUID, result: result)
    }

    /// The name that the notification history has for a failure (AppleFacts 3.6).
    private static func result(of error: any Error) -> String {
        if error is NIOSSLError || error is NIOSSLExtraError || error is BoringSSLError { return "TLS_ISSUE" }
        if error is NIOConnectionError || error is IOError { return "SOCKET_ISSUE" }
        guard let error = error as? HTTPClientError else { return "OTHER" }
        switch error {
        case .deadlineExceeded, .connectTimeout, .readTimeout, .writeTimeout, .getConnectionFromPoolTimeout:
            return "TIMED_OUT"
        case .tlsHandshakeTimeout: return "TLS_ISSUE"
        case .remoteConnectionClosed: return "PREMATURE_CLOSE"
        default: return "OTHER"
        }
    }
}
