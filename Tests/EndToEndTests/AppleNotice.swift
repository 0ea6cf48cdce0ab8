import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1
import Testing

/// A post of Apple's: a notification that the App Store of the test has signed.
struct AppleNotice: Sendable {
    let id: String
    let signedPayload: String

    /// The body of Apple's post.
    var body: Data { (try? JSONEncoder().encode(["signedPayload": signedPayload])) ?? Data() }
}

extension RunningSimulator {
    /// A notification about a purchase as it is now.
    func notice(
        _ type: String, _ subtype: String? = nil, about sale: Sale? = nil, app: String = "game",
        signedDate: Int64? = nil
    ) throws -> AppleNotice {
        var request = NotificationRequest(
            app: app, notificationType: type, subtype: subtype, transactionId: sale?.purchase.transactionId)
        request.signedDate = signedDate
        let (notification, payload) = try store.hold(request)
        return AppleNotice(id: notification.notificationUUID, signedPayload: payload)
    }

    /// The JSON of a notification of version 1, which nobody signs.
    ///
    /// - Parameter password: by default the app's shared secret.
    func noticeV1(_ type: String, of sale: Sale, _ receipt: String, password: String? = nil) throws -> Data {
        try JSONSerialization.data(withJSONObject: [
            "notification_type": type, "bid": "com.example.game", "environment": "PROD",
            "password": password ?? store.credentials.sharedSecret,
            "original_transaction_id": sale.purchase.transactionId, "unified_receipt": ["latest_receipt": receipt],
        ])
    }

    /// A notification of a type that the App Store of the test does not know.
    func strange(_ type: String, about sale: Sale, bundleID: String = "com.example.game") throws -> AppleNotice {
        let id = UUID().uuidString.lowercased()
        let now = Int64(Date.now.timeIntervalSince1970 * 1000)
        let data: [String: Any] = [
            "appAppleId": 1_234_567_890, "bundleId": bundleID, "environment": "Production",
            "signedTransactionInfo": try store.sign(sale.purchase.transactionId),
        ]
        let payload: [String: Any] = [
            "notificationType": type, "notificationUUID": id, "version": "2.0", "signedDate": now, "data": data,
        ]
        return AppleNotice(
            id: id, signedPayload: try store.sign(Array(JSONSerialization.data(withJSONObject: payload))))
    }
}

extension System {
    /// Posts a body to ingest as Apple does, without a credential. Returns the status.
    @discardableResult
    func postAsApple(_ body: Data, _ path: String = "/v1/apple/notifications") async throws -> Int {
        var request = HTTPClientRequest(url: try client.url + path)
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        request.body = .bytes(ByteBuffer(bytes: body))
        let response = try await HTTPClient.shared.execute(request, timeout: .seconds(60))
        _ = try await response.body.collect(upTo: 1 << 20)
        return Int(response.status.code)
    }

    /// Posts a notification about a purchase as it is now; it must be taken.
    @discardableResult
    func notify(_ type: String, _ subtype: String? = nil, about sale: Sale? = nil) async throws -> AppleNotice {
        let notice = try appStore.notice(type, subtype, about: sale)
        try await notify(notice)
        return notice
    }

    func notify(_ notice: AppleNotice) async throws {
        let status = try await postAsApple(notice.body)
        guard status == 200 else { throw Failure(description: "a notification was answered \(status)") }
    }

    /// Waits until every notification has ended.
    func hearAll() async throws {
        try await wait("every notification to be heard") {
            try await self.count("select count(*) from notifications where state <> 'ended'") == 0
        }
    }

    /// The state and reason of the receipt that nobody posted of this purchase. Nil: there is none.
    func unposted(_ sale: Sale) async throws -> String? {
        try await texts(
            """
            select concat_ws(' ', state, reason) from receipts
            where source <> 'post' and lane = 'unposted' and transaction_id = '\(sale.purchase.transactionId)'
            """
        ).first
    }

    func wait(unposted sale: Sale, toBe state: String) async throws {
        try await wait("what nobody posted to be \(state)") { try await self.unposted(sale) == state }
    }

    /// Lets the day pass in which a purchase that nobody posted waits for its owner. A test may call this once.
    func passADay() async throws {
        try await execute(
            """
            with aged as (
                update receipts set received_at = received_at - interval '1 day',
                  due_at = case when due_at is not null then now() end),
              moved as (update stored_payloads set received_on = received_on - 1)
            update tallies set day = day - 1
            """)
    }

    /// The events of one type about a purchase.
    func events(_ type: String, about sale: Sale) async throws -> [[String: Any]] {
        try await client.events().filter {
            $0["type"] as? String == type && $0["transactionId"] as? String == sale.purchase.transactionId
        }
    }
}
