package import Foundation

/// Why Apple gave no usable answer. Closed, so that one exhaustive switch turns each into retry, reject or halt.
///
/// The description holds codes only: never a payload, a token or Apple's text.
package enum AppStoreError: Error, Hashable, Sendable, CustomStringConvertible {
    /// No complete answer within the time limit; Apple may have seen the question.
    case timedOut
    /// No connection, or it broke.
    case unreachable
    /// Our task was cancelled: says nothing about Apple or the receipt.
    case cancelled
    /// An HTTP status without an error code in the body.
    case httpStatus(Int)
    /// An answer that cannot be read: not JSON, fields missing, over the size limit.
    case garbage
    /// HTTP 429. `until` is nil if Apple did not say, otherwise 1 s to 1 h from now.
    case rateLimited(until: Date?)
    /// A limit of our own: Apple was not asked (``CallLimiter``). `until` is nil if nobody knows.
    case notAdmitted(until: Date?)
    /// The host of the call is down, as far as we know: Apple was not asked (``CallLimiter``).
    case hostDown
    /// Apple has refused our credentials in the meantime: Apple was not asked (``CallLimiter``).
    case halted
    /// HTTP 401: wrong key, issuer or bundle id, our clock, or an app never released (AppleFacts 3.2).
    case unauthorized
    /// A verifyReceipt status other than 0 (AppleFacts 5.2); `retryable` is Apple's `is_retryable`, if sent.
    case receiptStatus(code: Int, retryable: Bool?)
    /// An error object of the App Store Server API; unknown codes come through as they are.
    case api(code: APIErrorCode, httpStatus: Int)
    /// No credentials for this call, or a key that cannot sign.
    case credentialsMissing
    /// The environment is neither Production nor Sandbox, or Apple does not offer the endpoint in it (AppleFacts 3.1).
    case environmentNotServed

    /// Whether the same call may succeed later without a change by anybody. True if that is not known.
    package var isRetryable: Bool {
        switch self {
        case .timedOut, .unreachable, .cancelled, .httpStatus, .garbage, .rateLimited, .notAdmitted, .hostDown: true
        case .unauthorized, .halted, .credentialsMissing, .environmentNotServed: false
        case .receiptStatus(let code, let retryable):
            switch code {
            case 21000, 21001, 21003, 21004, 21006, 21010: false
            case 21100...21199: retryable ?? true
            default: true  // 21002, 21005, 21009; 21007 and 21008 when Apple contradicts itself; unknown ones
            }
        case .api(let code, _): code.isRetryable
        }
    }

    package var description: String {
        switch self {
        case .receiptStatus(let code, _): "receipt_status \(code)"
        case .api(let code, let httpStatus): "api \(code) (HTTP \(httpStatus))"
        case .httpStatus(let status): "http_status \(status)"
        default: label
        }
    }

    /// The case alone, for metrics. A code or a status that Apple does not document has a label of its own, to be
    /// alerted on; so has a status that says that our request was wrong.
    package var label: String {
        switch self {
        case .timedOut: "timed_out"
        case .unreachable: "unreachable"
        case .cancelled: "cancelled"
        case .httpStatus: "http_status"
        case .garbage: "garbage"
        case .rateLimited: "rate_limited"
        case .notAdmitted: "not_admitted"
        case .hostDown: "host_down"
        case .halted: "halted"
        case .unauthorized: "unauthorized"
        case .receiptStatus(let code, _): Self.isExpected(code) ? "receipt_status" : "receipt_status_unknown"
        case .api(let code, _): code.meaning == .unknown ? "api_unknown" : "api"
        case .credentialsMissing: "credentials_missing"
        case .environmentNotServed: "environment_not_served"
        }
    }
}

extension AppStoreError {
    /// Whether verifyReceipt may answer this status to a request as we make it (AppleFacts 5.2). 21000 and 21001 speak
    /// of the request, not of the receipt.
    fileprivate static func isExpected(_ receiptStatus: Int) -> Bool {
        switch receiptStatus {
        case 21002...21010, 21100...21199: true
        default: false
        }
    }
}

/// An error with the calls that led to it, in order; the last one failed. No calls: Apple was not asked.
package struct AppStoreFailure: Error, Hashable, Sendable, CustomStringConvertible {
    package let error: AppStoreError
    package let calls: [ServiceCall]

    package init(_ error: AppStoreError, calls: [ServiceCall] = []) {
        self.error = error
        self.calls = calls
    }

    package var isRetryable: Bool { error.isRetryable }

    package var description: String { error.description }
}

/// One call to Apple, as one row of `attempts` wants it.
package struct ServiceCall: Hashable, Sendable {
    package enum Service: String, Hashable, Sendable { case verifyReceipt, serverApi }

    package let service: Service
    package let environment: StoreEnvironment
    /// nil if no answer came.
    package let httpStatus: Int?
    /// verifyReceipt's `status`, or the API's `errorCode`; nil if none came.
    package let code: Int64?
    package let duration: Duration

    package init(
        service: Service, environment: StoreEnvironment, httpStatus: Int?, code: Int64?, duration: Duration
    ) {
        self.service = service
        self.environment = environment
        self.httpStatus = httpStatus
        self.code = code
        self.duration = duration
    }
}
