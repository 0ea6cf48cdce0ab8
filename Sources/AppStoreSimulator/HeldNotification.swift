import Foundation

/// An App Store Server Notification that the store holds for its notification history and, where the app has a URL,
/// sends.
///
/// The notification keeps the payloads of its nested transaction and renewal as they were when it was made, since a
/// history shows the state at sending time. The store signs these payloads anew, with the same signedDate, at each
/// read.
package struct HeldNotification: Codable, Sendable, Equatable {
    /// One try to deliver it.
    package struct Attempt: Codable, Sendable, Equatable {
        /// UNIX milliseconds.
        package let attemptDate: Int64
        /// `SUCCESS`, `TIMED_OUT`, … (AppleFacts 3.6).
        package let sendAttemptResult: String

        package init(attemptDate: Int64, sendAttemptResult: String) {
            self.attemptDate = attemptDate
            self.sendAttemptResult = sendAttemptResult
        }

        static let results = [
            "SUCCESS", "TIMED_OUT", "TLS_ISSUE", "CIRCULAR_REDIRECT", "NO_RESPONSE", "SOCKET_ISSUE",
            "UNSUPPORTED_CHARSET", "INVALID_RESPONSE", "PREMATURE_CLOSE", "UNSUCCESSFUL_HTTP_RESPONSE_CODE", "OTHER",
        ]

        func validate() throws(ControlError) {
            try SaleRequest.checkTime(attemptDate, "attemptDate")
            guard Self.results.contains(sendAttemptResult) else {
                throw ControlError(
                    field: "sendAttemptResult", "must be one of \(Self.results.joined(separator: ", "))")
            }
        }
    }

    /// Apple tries once, and again at most five times.
    static let attemptsMax = 6

    package let notificationUUID: String
    /// The bundle id.
    package let app: String
    package let environment: StoreEnvironment
    package let notificationType: String
    package let subtype: String?
    package let signedDate: Int64
    /// The Apple account it is about; nil: none.
    package let customer: String?
    /// JSON, not yet signed.
    package let transaction: String?
    /// JSON, not yet signed.
    let renewal: String?
    /// The status of the subscription, 1 to 5.
    let status: Int?
    let consumptionRequestReason: String?
    package var sendAttempts: [Attempt]
    /// The chain of the notification's purchase.
    package var originalTransactionId: String?
    /// Nil: the notification is held and not sent.
    package var delivery: Delivery?
    /// The content of a notification of version 1; nil: the notification has version 2.
    var v1: NotificationV1?
    /// The result of an extension for all subscribers, in the place of data; nil: there is data.
    var summary: ExtensionSummary?

    /// When the first attempt is due.
    func due(now: Int64) -> Int64 { summary == nil ? now : max(now, signedDate) }

    /// The object `summary` (AppleFacts 4.2).
    struct ExtensionSummary: Codable, Sendable, Equatable {
        let productId: String
        let requestIdentifier: String
        let storefrontCountryCodes: [String]
        let succeededCount: Int
        let failedCount: Int
    }

    var lane: DeliveryLane { DeliveryLane(app: app, environment: environment) }

    /// The token of a test notification.
    var testToken: String? { notificationType == "TEST" ? "\(notificationUUID)_\(signedDate)" : nil }

    /// Whether delivery was tried and no attempt reached the app's server.
    package var isFailure: Bool {
        !sendAttempts.isEmpty && !sendAttempts.contains { $0.sendAttemptResult == "SUCCESS" }
    }

    /// The JSON that is signed (AppleFacts 4.2). `sign` makes the JWS of a nested payload.
    func payload<Failure: Error>(
        appAppleId: Int64?,
        sign: ([UInt8]) throws(Failure) -> String
    ) throws(Failure) -> [UInt8] {
        let transaction: String? = if let text = self.transaction { try sign(Array(text.utf8)) } else { nil }
        let renewal: String? = if let text = self.renewal { try sign(Array(text.utf8)) } else { nil }
        return JSONWriter.object(capacity: 12_000) { json in
            json.field("notificationType", notificationType)
            json.field("subtype", ifPresent: subtype)
            json.field("notificationUUID", notificationUUID)
            json.field("version", "2.0")
            json.field("signedDate", signedDate)
            if let summary {
                json.field("summary", object: { write(summary, appAppleId, &$0) })
                return
            }
            json.field(
                "data",
                object: { data in
                    data.field("appAppleId", ifPresent: appAppleId)
                    data.field("bundleId", app)
                    data.field("bundleVersion", "1")
                    data.field("environment", environment.rawValue)
                    data.field("signedTransactionInfo", ifPresent: transaction)
                    data.field("signedRenewalInfo", ifPresent: renewal)
                    data.field("status", ifPresent: status)
                    data.field("consumptionRequestReason", ifPresent: consumptionRequestReason)
                })
        }
    }

    private func write(_ summary: ExtensionSummary, _ appAppleId: Int64?, _ json: inout JSONWriter) {
        json.field("environment", environment.rawValue)
        json.field("appAppleId", ifPresent: appAppleId)
        json.field("bundleId", app)
        json.field("productId", summary.productId)
        json.field("requestIdentifier", summary.requestIdentifier)
        json.field(
            "storefrontCountryCodes",
            array: { array in for code in summary.storefrontCountryCodes { array.element(code) } })
        json.field("succeededCount", summary.succeededCount)
        json.field("failedCount", summary.failedCount)
    }

    func write(_ json: inout JSONWriter) {
        json.field("notificationUUID", notificationUUID)
        json.field("app", app)
        json.field("environment", environment.rawValue)
        json.field("notificationType", notificationType)
        json.field("subtype", ifPresent: subtype)
        json.field("signedDate", signedDate)
        json.field("customer", ifPresent: customer)
        json.field("testNotificationToken", ifPresent: testToken)
        json.field("notificationTypeV1", ifPresent: v1?.notificationType)
        if let delivery {
            json.field("url", delivery.url)
            json.field("version", delivery.version)
            json.field("nextAttempt", ifPresent: delivery.due)
            json.field("fault", ifPresent: delivery.fault)
        }
        writeAttempts(&json)
    }

    func writeAttempts(_ json: inout JSONWriter) {
        json.field(
            "sendAttempts",
            array: { array in
                for attempt in sendAttempts {
                    array.element { element in
                        element.field("attemptDate", attempt.attemptDate)
                        element.field("sendAttemptResult", attempt.sendAttemptResult)
                    }
                }
            })
    }
}

extension HeldNotification {
    /// A summary of an extension for all subscribers, which Apple makes when the extension is complete.
    init(of summary: ExtensionSummary, app: String, _ environment: StoreEnvironment, at complete: Int64) {
        self.init(
            notificationUUID: UUID().uuidString.lowercased(), app: app, environment: environment,
            notificationType: NotificationType.renewalExtension.rawValue, subtype: "SUMMARY", signedDate: complete,
            customer: nil, transaction: nil, renewal: nil, status: nil, consumptionRequestReason: nil, sendAttempts: [])
        self.summary = summary
    }
}

/// A notification to hold: the body of `POST /control/notifications`.
package struct NotificationRequest: ControlBody, Sendable {
    /// Bundle id or registered name.
    package var app: String
    /// Default `Production`.
    package var environment: StoreEnvironment?
    /// One that travels with a transaction, or `TEST` (AppleFacts 4.3).
    package var notificationType: String
    package var subtype: String?
    /// The purchase that the notification is about; all types but `TEST`.
    package var transactionId: String?
    /// UNIX milliseconds; default now.
    package var signedDate: Int64?
    /// `CONSUMPTION_REQUEST` only.
    package var consumptionRequestReason: String?
    /// Default: none yet.
    package var sendAttempts: [HeldNotification.Attempt]?
    /// True: the notification is sent to the app's URL as well, as version 2.
    package var send: Bool?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, environment, notificationType, subtype, transactionId, signedDate, consumptionRequestReason
        case sendAttempts, send
    }

    package init(app: String, notificationType: String, subtype: String? = nil, transactionId: String? = nil) {
        self.app = app
        self.notificationType = notificationType
        self.subtype = subtype
        self.transactionId = transactionId
    }

    func validate() throws(ControlError) {
        try SaleRequest.check(app, "app")
        guard let kind = NotificationType(rawValue: notificationType) else {
            throw ControlError(field: "notificationType", "is not one of Apple's types")
        }
        guard kind.hasData else {
            throw ControlError(field: "notificationType", "\(notificationType) is about no transaction; not held here")
        }
        if let subtype, !NotificationType.subtypes.contains(subtype) || subtype == "SUMMARY" {
            throw ControlError(field: "subtype", "is not one that travels with a transaction")
        }
        guard (transactionId == nil) == (kind == .test) else {
            throw ControlError(field: "transactionId", "belongs to every type but TEST")
        }
        let reasons = NotificationType.consumptionReasons
        if let reason = consumptionRequestReason, kind != .consumptionRequest || !reasons.contains(reason) {
            throw ControlError(
                field: "consumptionRequestReason",
                "belongs to CONSUMPTION_REQUEST; one of \(reasons.joined(separator: ", "))")
        }
        try SaleRequest.checkTime(signedDate, "signedDate")
        if let sendAttempts {
            guard sendAttempts.count <= HeldNotification.attemptsMax else {
                throw ControlError(field: "sendAttempts", "must be at most \(HeldNotification.attemptsMax)")
            }
            for attempt in sendAttempts { try attempt.validate() }
        }
    }
}

/// The body of `POST /control/notifications/{uuid}/attempts`.
struct AttemptRequest: ControlBody, Sendable {
    /// UNIX milliseconds; default now.
    var attemptDate: Int64?
    var sendAttemptResult: String

    enum CodingKeys: String, CodingKey, CaseIterable {
        case attemptDate, sendAttemptResult
    }
}

/// The types of version 2 (AppleFacts 4.3).
enum NotificationType: String, CaseIterable {
    case subscribed = "SUBSCRIBED"
    case didRenew = "DID_RENEW"
    case didChangeRenewalPref = "DID_CHANGE_RENEWAL_PREF"
    case didChangeRenewalStatus = "DID_CHANGE_RENEWAL_STATUS"
    case offerRedeemed = "OFFER_REDEEMED"
    case didFailToRenew = "DID_FAIL_TO_RENEW"
    case gracePeriodExpired = "GRACE_PERIOD_EXPIRED"
    case expired = "EXPIRED"
    case priceIncrease = "PRICE_INCREASE"
    case refund = "REFUND"
    case refundReversed = "REFUND_REVERSED"
    case refundDeclined = "REFUND_DECLINED"
    case revoke = "REVOKE"
    case consumptionRequest = "CONSUMPTION_REQUEST"
    case oneTimeCharge = "ONE_TIME_CHARGE"
    case renewalExtended = "RENEWAL_EXTENDED"
    case renewalExtension = "RENEWAL_EXTENSION"
    case externalPurchaseToken = "EXTERNAL_PURCHASE_TOKEN"
    case rescindConsent = "RESCIND_CONSENT"
    case metadataUpdate = "METADATA_UPDATE"
    case migration = "MIGRATION"
    case priceChange = "PRICE_CHANGE"
    case test = "TEST"

    /// Whether its payload has `data`, the only one of the four objects that is written here.
    var hasData: Bool { self != .externalPurchaseToken && self != .rescindConsent }

    static let subtypes: Set<String> = [
        "INITIAL_BUY", "RESUBSCRIBE", "BILLING_RECOVERY", "UPGRADE", "DOWNGRADE", "AUTO_RENEW_ENABLED",
        "AUTO_RENEW_DISABLED", "GRACE_PERIOD", "VOLUNTARY", "BILLING_RETRY", "PRICE_INCREASE", "PRODUCT_NOT_FOR_SALE",
        "PENDING", "ACCEPTED", "SUMMARY", "FAILURE", "UNREPORTED", "CREATED", "ACTIVE_TOKEN_REMINDER",
        "SEATS", "INCREASE_QUANTITY", "DECREASE_QUANTITY",
    ]

    static let consumptionReasons = [
        "UNINTENDED_PURCHASE", "FULFILLMENT_ISSUE", "UNSATISFIED_WITH_PURCHASE", "LEGAL", "OTHER",
    ]
}
