/// What goes wrong, where and how often: the body of `POST /control/faults`.
///
/// `count`: the fault fires for the next that many matching calls. `percent`: the fault fires for each matching call
/// with that probability. Both: with that probability until the fault has fired `count` times. Neither: until the fault
/// is deleted.
package struct FaultRequest: ControlBody, Sendable {
    /// Which calls are touched: the names of ``SimulatedService``, or all of them.
    package enum Endpoint: String, Codable, Sendable, CaseIterable {
        case verifyReceipt, transactionInfo, history, historyV1, subscriptionStatuses, orderLookup, refundHistory
        case refundHistoryV1, extendSubscription, massExtend, massExtendStatus, consumption, consumptionV1
        case testNotification, testNotificationStatus, notificationHistory, appAccountToken, appTransaction, finish
        case messaging
        case all

        /// Nil: all of them.
        var service: SimulatedService? { SimulatedService(rawValue: rawValue) }
    }

    /// What happens to a matching call.
    package enum Kind: String, Codable, Sendable, CaseIterable {
        /// The answer comes late; later faults still apply.
        case latency
        /// No answer; the connection is closed after `seconds`.
        case timeout
        /// The connection is closed at once, with a TCP reset.
        case reset
        /// An HTTP status instead of the answer.
        case status
        /// An error object of the App Store Server API; its HTTP status is the code's first three digits.
        case error
        /// A `status` of verifyReceipt.
        case receiptStatus
        /// HTTP 200 with something that is not the answer.
        case garbage
        /// 404 with TransactionIdNotFound, or OriginalTransactionIdNotFound where the endpoint asks for one.
        case notFound
        /// The true answer, signed below a root that is not ours.
        case foreignRoot
    }

    /// How `Retry-After` is written.
    package enum RetryAfterForm: String, Codable, Sendable, CaseIterable {
        /// Absolute UNIX milliseconds, as Apple does.
        case milliseconds
        /// Seconds from now (RFC 9110).
        case seconds
        /// A date (RFC 9110).
        case date
    }

    /// What `garbage` looks like.
    package enum Form: String, Codable, Sendable, CaseIterable {
        /// 512 random bytes.
        case bytes
        /// The first half of the true answer.
        case truncated
        /// A page of a proxy.
        case html
        /// Nothing.
        case empty
        /// JSON of another shape: `[]`.
        case json
    }

    package var endpoint: Endpoint
    package var kind: Kind
    /// Default: both.
    package var environment: StoreEnvironment?
    /// 1 to 1,000,000,000.
    package var count: Int?
    /// Above 0, up to 100.
    package var percent: Double?
    /// Starts the random numbers of all faults anew.
    package var seed: Int64?
    /// `latency`: a constant delay; 0 to 600,000.
    package var milliseconds: Double?
    /// `latency`: log-normal with this median (and `p99Milliseconds`), cut at 600,000.
    package var medianMilliseconds: Double?
    package var p99Milliseconds: Double?
    /// `timeout`: default 120, 0 to 3,600.
    package var seconds: Double?
    /// `status`: 200 to 599. `receiptStatus`: verifyReceipt's status.
    package var status: Int?
    /// `status`: the answer's body, at most 64 KiB; default empty.
    package var body: String?
    /// `status`, `error`: adds `Retry-After` = now + this, as absolute UNIX milliseconds (AppleFacts 3.8).
    package var retryAfterMilliseconds: Int64?
    /// `status`, `error`: default `milliseconds`.
    package var retryAfterForm: RetryAfterForm?
    /// `error`: 4000000 to 5999999.
    package var errorCode: Int?
    package var errorMessage: String?
    /// `receiptStatus`: adds `is_retryable` (only meaningful for 21100 to 21199).
    package var isRetryable: Bool?
    /// `receiptStatus`: the key of `is_retryable` in the answer; that name (default), or `is-retryable`.
    package var retryableKey: String?
    /// `garbage`: default `truncated`.
    package var form: Form?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case endpoint, kind, environment, count, percent, seed, milliseconds, medianMilliseconds, p99Milliseconds
        case seconds, status, body, retryAfterMilliseconds, errorCode, errorMessage, isRetryable, retryableKey, form
        case retryAfterForm
    }

    package static let fractions: Set<String> = [
        "percent", "milliseconds", "medianMilliseconds", "p99Milliseconds", "seconds",
    ]

    package init(_ kind: Kind, on endpoint: Endpoint, count: Int? = nil, percent: Double? = nil) {
        self.kind = kind
        self.endpoint = endpoint
        self.count = count
        self.percent = percent
    }

    static let latencyMax = 600_000.0
    static let bodyMax = 65_536

    /// Refuses values out of range, missing values, and fields that belong to another kind.
    func validate() throws(ControlError) {
        try validateScope()
        try refuseForeignFields()
        switch kind {
        case .latency: try validateLatency()
        case .timeout:
            try Self.range(seconds, "seconds", 0...3600)
        case .status:
            guard let status else { throw ControlError(field: "status", "is missing") }
            try Self.range(Double(status), "status", 200...599)
            if let body, body.utf8.count > Self.bodyMax {
                throw ControlError(field: "body", "must be at most \(Self.bodyMax) bytes")
            }
        case .error:
            guard let errorCode else { throw ControlError(field: "errorCode", "is missing") }
            try Self.range(Double(errorCode), "errorCode", 4_000_000...5_999_999)
        case .receiptStatus:
            guard let status else { throw ControlError(field: "status", "is missing") }
            try Self.range(Double(status), "status", 0...99_999)
            if let retryableKey, !["is_retryable", "is-retryable"].contains(retryableKey) {
                throw ControlError(field: "retryableKey", "must be is_retryable or is-retryable")
            }
        case .reset, .garbage, .notFound, .foreignRoot: break
        }
        try Self.range(retryAfterMilliseconds.map { Double($0) }, "retryAfterMilliseconds", 0...86_400_000)
    }

    private func validateScope() throws(ControlError) {
        if kind == .receiptStatus, endpoint != .verifyReceipt {
            throw ControlError(field: "endpoint", "must be verifyReceipt for the kind receiptStatus")
        }
        if kind == .notFound, endpoint.service?.notFound == nil {
            throw ControlError(field: "endpoint", "must be one that asks for a transaction, for the kind notFound")
        }
        if kind == .foreignRoot, endpoint.service?.answersSigned != true {
            throw ControlError(field: "endpoint", "must be one that answers with signed data, for the kind foreignRoot")
        }
        try Self.range(count.map { Double($0) }, "count", 1...1_000_000_000)
        if let percent, !(percent > 0 && percent <= 100) {
            throw ControlError(field: "percent", "must be above 0 and at most 100")
        }
    }

    private func validateLatency() throws(ControlError) {
        try Self.range(milliseconds, "milliseconds", 0...Self.latencyMax)
        try Self.range(medianMilliseconds, "medianMilliseconds", 0.001...Self.latencyMax)
        switch (milliseconds, medianMilliseconds, p99Milliseconds) {
        case (.some, nil, nil): break
        case (nil, let median?, let p99?):
            try Self.range(p99, "p99Milliseconds", median...max(median, Self.latencyMax))
        case (nil, nil, nil): throw ControlError(field: "milliseconds", "is missing")
        case (nil, .some, nil): throw ControlError(field: "p99Milliseconds", "is missing")
        case (nil, nil, .some): throw ControlError(field: "medianMilliseconds", "is missing")
        default: throw ControlError(field: "milliseconds", "must not stand beside a distribution")
        }
    }

    /// Refuses the fields of other kinds: a script that has one does not do what its author thinks.
    private func refuseForeignFields() throws(ControlError) {
        let present: [(String, Bool, [Kind])] = [
            ("milliseconds", milliseconds != nil, [.latency]),
            ("medianMilliseconds", medianMilliseconds != nil, [.latency]),
            ("p99Milliseconds", p99Milliseconds != nil, [.latency]),
            ("seconds", seconds != nil, [.timeout]),
            ("status", status != nil, [.status, .receiptStatus]),
            ("body", body != nil, [.status]),
            ("retryAfterMilliseconds", retryAfterMilliseconds != nil, [.status, .error]),
            ("retryAfterForm", retryAfterForm != nil, [.status, .error]),
            ("errorCode", errorCode != nil, [.error]),
            ("errorMessage", errorMessage != nil, [.error]),
            ("isRetryable", isRetryable != nil, [.receiptStatus]),
            ("retryableKey", retryableKey != nil, [.receiptStatus]),
            ("form", form != nil, [.garbage]),
        ]
        for (field, set, kinds) in present where set && !kinds.contains(kind) {
            throw ControlError(field: field, "does not belong to the kind \(kind.rawValue)")
        }
    }

    private static func range(
        _ value: Double?,
        _ field: String,
        _ bounds: ClosedRange<Double>
    ) throws(ControlError) {
        if let value, !bounds.contains(value) {
            throw ControlError(field: field, "must be \(bounds.lowerBound) to \(bounds.upperBound)")
        }
    }
}
