import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// The sweep of Apple's notification history: real processes, and an App Store whose notifications do not arrive.
    @Suite struct NotificationSweepTests {
        /// A notification about a purchase, which Apple holds and does not bring.
        ///
        /// - Parameter result: Apple's belief about its attempts.
        private func hold(
            _ type: String, about sale: Sale, _ result: String, in system: System
        ) throws -> AppleNotice {
            var request = NotificationRequest(
                app: "game", notificationType: type, transactionId: sale.purchase.transactionId)
            let now = Int64(Date.now.timeIntervalSince1970 * 1000)
            request.sendAttempts = (0..<3).map { .init(attemptDate: now - $0, sendAttemptResult: result) }
            let (notification, payload) = try system.appStore.store.hold(request)
            return AppleNotice(id: notification.notificationUUID, signedPayload: payload)
        }

        /// Goal: a purchase is granted that no app posts and of which Apple could tell nobody, because the notification
        /// URL answers 500 (B2, S1-6): once, to its user, and `v_nets` says which net caught it. What a gateway took in
        /// our place is found by command. Method: dora's order is bought while the URL fails, and a worker starts.
        /// Later Apple brings the same notification after all, and the app posts. Of carl's order Apple believes that
        /// the notification arrived.
        @Test func aURLThatFailsLosesNoPurchase() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let nets = "select concat_ws(' ', net, kind, caught, alone) from v_nets"
                let order = try await system.place("dora")
                let sale = try await system.appStore.sell { $0.appAccountToken = order }
                system.owe(sale, to: "dora")
                let notice = try hold("ONE_TIME_CHARGE", about: sale, "UNSUCCESSFUL_HTTP_RESPONSE_CODE", in: system)
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.wait(unposted: sale, toBe: "granted")
                #expect(try await system.order(of: sale) == "\(order) order_token")
                #expect(try await system.texts(nets) == ["notification_history purchase 1 1"])
                try await system.hearAll()

                try await system.notify(notice)
                #expect(try await system.texts("select repeats::text from notifications") == ["1"])
                #expect(try await system.texts(nets) == ["notification_history purchase 1 0"])
                let posted = try await system.submit(sale, user: "dora", wait: 20)
                #expect(posted.state == "already_granted" && posted.safeToFinish == true)

                let other = try await system.place("carl")
                let taken = try await system.appStore.sell { $0.appAccountToken = other }
                system.owe(taken, to: "carl")
                _ = try hold("ONE_TIME_CHARGE", about: taken, "SUCCESS", in: system)
                let printed = try await system.command("sweep", "notifications", "--app", "game")
                #expect(printed.contains("days of notifications are asked for"))
                try await system.wait(unposted: taken, toBe: "granted")
                #expect(try await system.order(of: taken) == "\(other) order_token")
                #expect(try await system.count("select count(*) from grants") == 2)
                #expect(
                    try await system.count("select count(*) from audits where action = 'sweep.notifications'") == 1)
                try await system.hearAll()
            }
        }
    }
}
