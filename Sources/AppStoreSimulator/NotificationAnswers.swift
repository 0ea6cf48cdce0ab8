import Foundation

/// The endpoints about App Store Server Notifications.
extension ServerAPI {
    /// How far back the notification history reaches (AppleFacts 3.6).
    private var reach: Int64 { (environment == .production ? 180 : 30) * 86_400_000 }

    /// Request a Test Notification (AppleFacts 3.3, endpoint 10).
    func testNotification() throws(AppleError) -> AppleAnswer {
        let hasURL = ledger.read { $0.target(app, environment, fallback: ledger.notificationURL) != nil }
        guard hasURL else { throw .notificationURLNotFound }
        let notification = HeldNotification(
            notificationUUID: UUID().uuidString.lowercased(), app: app, environment: environment,
            notificationType: NotificationType.test.rawValue, subtype: nil, signedDate: now, customer: nil,
            transaction: nil, renewal: nil, status: nil, consumptionRequestReason: nil, sendAttempts: [])
        do {
            _ = try ledger.hold(notification, isSent: true)
        } catch {
            throw .generalInternalRetryable
        }
        return answer { $0.field("testNotificationToken", ifPresent: notification.testToken) }
    }

    /// Get Test Notification Status (endpoint 11).
    func testNotificationStatus() throws(AppleError) -> AppleAnswer {
        let parts = call.id.split(separator: "_", omittingEmptySubsequences: false)
        guard parts.count == 2, UUID(uuidString: String(parts[0])) != nil, Int64(parts[1]) != nil else {
            throw .invalidTestNotificationToken
        }
        guard let notification = ledger.read({ $0.notification(String(parts[0])) }),
            notification.testToken == call.id, notification.app == app, notification.environment == environment
        else { throw .testNotificationNotFound }
        let payload = try sign(notification)
        return answer(capacity: payload.utf8.count + 512) { json in
            json.field("signedPayload", payload)
            notification.writeAttempts(&json)
        }
    }

    private func sign(_ notification: HeldNotification) throws(AppleError) -> String {
        try sign(
            notification.payload(appAppleId: appAppleId) { payload throws(AppleError) in try sign(payload) })
    }

    /// A notification with its number, from 1.
    private typealias Held = (number: Int, notification: HeldNotification)

    /// Get Notification History (endpoint 12), 20 to a page, oldest first (our reading: Apple names no order).
    func notificationHistory() throws(AppleError) -> AppleAnswer {
        let fields = try BodyValue.fields(call.body)
        let wanted = try NotificationFilter(fields, now: now, reach: reach)
        let fingerprint = Revision.fingerprint(
            call, account: nil,
            body: fields.sorted { $0.key < $1.key }.map { "\($0.key)=\($0.value)" }.joined(separator: "&"))
        var after = 0
        if let text = try call.value("paginationToken", else: .invalidPaginationToken) {
            guard let parts = Revision.parts(text, fingerprint), parts.count == 2 else {
                throw .invalidPaginationToken
            }
            guard parts[1] > now else { throw .paginationTokenExpired }
            after = Int(parts[0])
        }
        let (found, settings) = try ledger.read { store throws(AppleError) -> ([Held], StoreSettings) in
            var customer: String?
            if let id = wanted.transactionId {
                let account = try self.account(any: id, store)
                guard store.customers[account]?.account != false else { throw .accountNotFound }
                customer = account.customer
            }
            var found: [Held] = []
            for (index, notification) in store.notifications.enumerated().dropFirst(after)
            where notification.app == app && notification.environment == environment && notification.v1 == nil
                && wanted.matches(notification, customer: customer)
            {
                found.append((index + 1, notification))
                if found.count > Self.page { break }
            }
            return (found, store.settings)
        }
        let page = found.prefix(Self.page)
        let hasMore = found.count > page.count
        var records: [(payload: String, notification: HeldNotification)] = []
        for (_, notification) in page { records.append((try sign(notification), notification)) }
        return answer(capacity: 256 + records.count * 16_000) { json in
            if hasMore, let last = page.last {
                let expires = now + settings.paginationTokenMilliseconds
                json.field("paginationToken", Revision.text([Int64(last.number), expires], fingerprint))
            }
            json.field("hasMore", hasMore)
            json.field(
                "notificationHistory",
                array: { array in
                    for record in records {
                        array.element { element in
                            element.field("signedPayload", record.payload)
                            record.notification.writeAttempts(&element)
                        }
                    }
                })
        }
    }
}

/// The body of Get Notification History (AppleFacts 3.6).
private struct NotificationFilter {
    let dates: Range<Int64>
    let type: String?
    let subtype: String?
    let transactionId: String?
    let onlyFailures: Bool

    init(_ fields: [String: BodyValue], now: Int64, reach: Int64) throws(AppleError) {
        guard let start = fields["startDate"]?.integer, start >= 0 else { throw .invalidStartDate }
        guard let end = fields["endDate"]?.integer, end >= 0 else { throw .invalidEndDate }
        guard start <= end else { throw .startDateAfterEndDate }
        guard start >= now - reach else { throw .startDateTooFarInPast }
        guard start <= now else { throw .startDateAfterEndDate }
        // An end in the future counts as now; notifications signed in this very millisecond belong to the range.
        dates = start..<max(start, min(end, now) + 1)
        guard fields["notificationType"] == nil || fields["transactionId"] == nil else {
            throw .multipleFiltersSupplied
        }
        type = fields["notificationType"]?.string
        subtype = fields["notificationSubtype"]?.string
        if fields["notificationType"] != nil, type.flatMap({ NotificationType(rawValue: $0) }) == nil {
            throw .invalidNotificationType
        }
        if fields["notificationSubtype"] != nil {
            guard type != nil, let subtype, NotificationType.subtypes.contains(subtype) else {
                throw .invalidNotificationType
            }
        }
        if let id = fields["transactionId"] {
            guard let text = id.string, SaleRequest.isTransactionId(text) else { throw .invalidTransactionId }
            transactionId = text
        } else {
            transactionId = nil
        }
        onlyFailures = fields["onlyFailures"]?.bool ?? false
    }

    /// - Parameter customer: the Apple account behind `transactionId`.
    func matches(_ notification: HeldNotification, customer: String?) -> Bool {
        guard dates.contains(notification.signedDate) else { return false }
        if let type, notification.notificationType != type { return false }
        if let subtype, notification.subtype != subtype { return false }
        if transactionId != nil, notification.customer != customer { return false }
        return !onlyFailures || notification.isFailure
    }
}
