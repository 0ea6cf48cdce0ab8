import Foundation
import Synchronization

/// Notifications that are made of the store's events.
extension StoreLedger {
    /// Makes the notifications of events, for apps that have a URL. A full list takes no more.
    ///
    /// - Parameter at: when the event happened. Of two notifications about one chain the later one is signed later.
    func announce(_ events: [StoreEvent], at: Int64, _ state: inout State) throws(ControlError) {
        for event in events {
            guard let position = state.store.positions[event.transactionId],
                state.store.notifications.count < LedgerState.notificationsMax
            else { continue }
            let purchase = state.store.purchases[position]
            guard
                let target = state.store.target(purchase.app, purchase.environment, fallback: notificationURL),
                var notification = state.store.notification(of: event, purchase, version: target.version, at: at)
            else { continue }
            notification.delivery = notificationFaults.apply(
                to: Delivery(url: target.url, version: target.version, due: at), of: event.type.rawValue,
                app: purchase.app)
            try commit([LedgerLine(notification: notification)], &state)
        }
    }

    /// Notes an attempt to send a notification, and when the next one is due.
    func sent(_ uuid: String, result: String) throws(ControlError) {
        try state.withLock { state throws(ControlError) in
            guard let notification = state.store.notification(uuid), let delivery = notification.delivery else {
                return
            }
            let now = clock.now
            let attempt = notification.sendAttempts.count + 1
            var lines: [LedgerLine] = []
            if attempt <= HeldNotification.attemptsMax {
                lines.append(
                    LedgerLine(
                        attempt: .init(
                            notificationUUID: uuid,
                            attempt: .init(attemptDate: now, sendAttemptResult: result))))
            }
            let next = delivery.after(
                attempt: attempt, isSuccess: result == "SUCCESS", environment: notification.environment, now: now)
            lines.append(LedgerLine(delivery: .init(notificationUUID: uuid, delivery: next)))
            try commit(lines, &state)
        }
    }

    /// The notifications to send now, by lane.
    func due() -> [DeliveryLane: [HeldNotification]] {
        state.withLock { state in
            catchUp(&state)
            return state.store.due(now: clock.now)
        }
    }
}

extension LedgerState {
    /// The notification of an event, with the store as it is now; nil: the version has no such notification.
    fileprivate func notification(
        of event: StoreEvent, _ purchase: Purchase, version: Int, at: Int64
    ) -> HeldNotification? {
        let original = purchase.originalTransactionId
        let signedDate = max(at, (lastSigned[original] ?? 0) + 1)
        let typeV1 = version == 1 ? event.typeV1(purchase) : nil
        guard version == 1 ? typeV1 != nil : !event.isReplaced else { return nil }
        let subscription = purchase.type == .autoRenewable ? subscription(original, now: .max) : nil
        var notification = HeldNotification(
            notificationUUID: UUID().uuidString.lowercased(), app: purchase.app, environment: purchase.environment,
            notificationType: event.type.rawValue, subtype: event.subtype, signedDate: signedDate,
            customer: purchase.account,
            transaction: String(decoding: purchase.payload(signedDate: signedDate), as: UTF8.self),
            renewal: subscription.map {
                String(decoding: $0.renewalPayload(signedDate: signedDate, now: at), as: UTF8.self)
            },
            status: subscription?.state(now: at).rawValue, consumptionRequestReason: event.reason, sendAttempts: [])
        notification.originalTransactionId = original
        if let typeV1 { notification.v1 = contentV1(typeV1, purchase, at: at) }
        return notification
    }

    private func contentV1(_ type: String, _ purchase: Purchase, at: Int64) -> NotificationV1 {
        let purchases = positions(of: purchase.key).map { self.purchases[$0] }
            .filter { $0.type != .consumable || $0.finishedAt == nil || $0.revoked }
            .suffix(NotificationV1.purchasesMax)
        var renewals: [String: Renewal] = [:]
        for original in Set(purchases.map(\.originalTransactionId)) { renewals[original] = self.renewals[original] }
        return NotificationV1(
            notificationType: type, originalTransactionId: purchase.originalTransactionId,
            purchases: Array(purchases), renewals: renewals, at: at)
    }
}
