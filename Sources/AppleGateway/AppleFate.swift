package import AppStore
package import Purchases

extension Fate {
    /// What an error of Apple's means for a receipt; nothing else maps these errors (RetriesAndRescue; AppleFacts 3.7
    /// and 5.2). An error that Apple does not explain is retried: not knowing is no proof (P14, P15).
    package init(_ error: AppStoreError) {
        self =
            switch error {
            case .timedOut, .unreachable: .retry(.appleUnavailable)
            case .cancelled: .postpone(.appleUnavailable, until: nil)
            case .httpStatus, .garbage: .retry(.appleAnswer)
            case .rateLimited(let until): .postpone(.appleUnavailable, until: until)
            case .notAdmitted(let until): .postpone(.appleBudget, until: until)
            case .hostDown: .postpone(.appleUnavailable, until: nil)
            case .unauthorized, .halted: .halt(.halted)
            case .credentialsMissing: .hold(.credentialsMissing)
            case .environmentNotServed: .reject(.wrongEnvironment)
            case .receiptStatus(let code, let retryable): Fate(receiptStatus: code, retryable: retryable)
            case .api(let code, _): Fate(apiError: code)
            }
    }

    private init(receiptStatus code: Int, retryable: Bool?) {
        self =
            switch code {
            case 21003: .reject(.notAuthenticated)
            case 21004: .halt(.halted)
            case 21010: .reject(.accountNotFound)
            case 21100...21199: retryable == false ? .reject(.appleRefused) : .retry(.appleAnswer)
            // 21002 also means temporary trouble. 21000 and 21001 speak of our request, not of the receipt. 21006 comes
            // here only if Apple left out the purchases. 21007 and 21008 come here only when Apple contradicts itself.
            // The rest is not in our table, and no proof of anything.
            default: .retry(.appleAnswer)
            }
    }

    private init(apiError code: APIErrorCode) {
        self =
            switch code.meaning {
            case .invalidID: .reject(.invalidTransactionID)
            case .tooMany: .postpone(.appleUnavailable, until: nil)
            case .notFound: .retry(.notFoundYet)
            // Apple documents none of the last four for a question about a receipt, so they explain nothing.
            case .temporary, .unknown, .ourRequest, .configuration, .refused, .absent: .retry(.appleAnswer)
            }
    }
}

extension Reason {
    /// The reason why signed data was not believed, under the same name.
    package init(_ reason: VerificationFailure.Reason) {
        self =
            switch reason {
            case .malformed: .malformed
            case .algorithm: .algorithm
            case .chainLength: .chainLength
            case .certificate: .certificate
            case .untrustedRoot: .untrustedRoot
            case .missingOID: .missingOID
            case .expired: .expired
            case .signature: .signature
            case .wrongApp: .wrongApp
            case .wrongEnvironment: .wrongEnvironment
            case .unsigned: .unsigned
            case .revoked: .certificateRevoked
            case .statusUnknown: .certificateStatusUnknown
            }
    }
}

extension Verdict.Call {
    package init(_ call: ServiceCall) {
        self.init(
            service: call.service.rawValue, environment: call.environment.rawValue, httpStatus: call.httpStatus,
            code: call.code.map(Int.init(clamping:)), milliseconds: Int(call.duration.inSeconds * 1000))
    }
}
