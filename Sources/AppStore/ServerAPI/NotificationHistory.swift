package import Encoding
package import Foundation

/// Selects from the notifications that Apple sent us (AppleFacts 3.6).
package struct NotificationHistoryQuery: Sendable, Hashable {
    /// Apple takes one filter at most.
    package enum Filter: Sendable, Hashable {
        /// `SUBSCRIBED`, `REFUND` and so on; a subtype needs its type.
        case type(String, subtype: String? = nil)
        case transaction(id: String)
    }

    /// How far back Apple remembers.
    package static func reach(in environment: StoreEnvironment) -> Duration {
        .seconds((environment == .sandbox ? 30 : 180) * 86_400)
    }

    fileprivate let body: JSON

    /// - Parameters:
    ///   - start: no further back than ``reach(in:)``.
    ///   - end: in the future it means now.
    ///   - onlyFailures: those that did not reach us, some of which Apple still tries.
    /// - Throws: ``InvalidRequest`` for dates that are none or lie the wrong way round, and for an empty name or id.
    package init(
        from start: Date, to end: Date, filter: Filter? = nil, onlyFailures: Bool = false
    ) throws(InvalidRequest) {
        guard start <= end else { throw InvalidRequest("startDate", "must not lie after endDate") }
        var members: [String: JSON] = [
            "startDate": .integer(try start.milliseconds(for: "startDate")),
            "endDate": .integer(try end.milliseconds(for: "endDate")),
        ]
        switch filter {
        case .type(let type, let subtype):
            members["notificationType"] = .string(type)
            members["notificationSubtype"] = subtype.map(JSON.string)
        case .transaction(let id): members["transactionId"] = .string(id)
        case nil: break
        }
        if let empty = members.first(where: { $0.value == .string("") }) {
            throw InvalidRequest(empty.key, "must not be empty")
        }
        if onlyFailures { members["onlyFailures"] = .bool(true) }
        body = .object(members)
    }
}

/// One try of Apple to bring a notification.
package struct SendAttempt: Sendable, Hashable {
    package struct Result: RawRepresentable, Hashable, Sendable {
        package var rawValue: String

        package init(rawValue: String) { self.rawValue = rawValue }

        package static let success = Result(rawValue: "SUCCESS")
        package static let timedOut = Result(rawValue: "TIMED_OUT")
        package static let tlsIssue = Result(rawValue: "TLS_ISSUE")
        package static let circularRedirect = Result(rawValue: "CIRCULAR_REDIRECT")
        package static let noResponse = Result(rawValue: "NO_RESPONSE")
        package static let socketIssue = Result(rawValue: "SOCKET_ISSUE")
        package static let unsupportedCharset = Result(rawValue: "UNSUPPORTED_CHARSET")
        package static let invalidResponse = Result(rawValue: "INVALID_RESPONSE")
        package static let prematureClose = Result(rawValue: "PREMATURE_CLOSE")
        package static let unsuccessfulStatus = Result(rawValue: "UNSUCCESSFUL_HTTP_RESPONSE_CODE")
        package static let other = Result(rawValue: "OTHER")
    }

    package let date: Date?
    package let result: Result?

    init(_ object: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(object)
        date = fields.date("attemptDate")
        result = fields.string("sendAttemptResult").map(Result.init(rawValue:))
    }
}

/// A notification as it was sent: it tells the state of that time, not of now.
package struct SentNotification: Sendable, Hashable {
    /// Still to be verified: see ``SignedDataVerifier/notification(_:at:)``. nil where Apple left it out.
    package let signedPayload: String?
    /// Six at most.
    package let sendAttempts: [SendAttempt]

    package init(_ object: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(object)
        signedPayload = fields.string("signedPayload")
        sendAttempts = (try? fields.objects("sendAttempts", SendAttempt.init)) ?? []
    }
}

/// Up to 20 notifications.
package struct NotificationPage: Page, Hashable {
    package static let cursorName = "paginationToken"

    package let notifications: [SentNotification]
    /// A cursor lapses; then Apple answers 4000017, and the list begins anew.
    package let next: String?

    package init(_ body: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(body)
        notifications = try fields.objects("notificationHistory", SentNotification.init) ?? []
        let token = fields.string("paginationToken")
        let hasMore = fields.bool("hasMore")
        if hasMore == true, token == nil { throw FieldMismatch() }
        next = hasMore == false ? nil : token
    }
}

extension ServerAPIClient {
    /// The notifications Apple sent us, or tried to (Get Notification History).
    ///
    /// - Parameter token: of the last page read before, with the same query, to go on from there.
    package func notificationHistory(
        _ query: NotificationHistoryQuery, after token: String? = nil, in environment: StoreEnvironment
    ) -> Pages<NotificationPage> {
        Pages(
            self, Request(.notificationHistory, body: query.body, read: NotificationPage.init), after: token,
            in: [environment])
    }

    /// Has Apple send a `TEST` notification to the address it knows (Request a Test Notification): the token to ask
    /// about it with.
    ///
    /// - Throws: `.api` with 4040007, not retryable, if App Store Connect has no address of ours.
    package func requestTestNotification(
        in environment: StoreEnvironment
    ) async throws(AppStoreFailure) -> Answer<String> {
        try await ask(
            Request(.requestTestNotification) { (body) throws(FieldMismatch) in
                try AppleFields(body).required("testNotificationToken")
            }, in: [environment])
    }

    /// What became of a test notification (Get Test Notification Status).
    ///
    /// - Throws: `.api` with 4040008, not retryable, for a token Apple does not know any more, or not yet.
    package func testNotification(
        _ token: String, in environment: StoreEnvironment
    ) async throws(AppStoreFailure) -> Answer<SentNotification> {
        try await ask(Request(.testNotification, token, read: SentNotification.init), in: [environment])
    }
}
