import AppStore
import AppleGateway
import Foundation
import Purchases
import Testing

/// Goal: there are three fates, one switch (RetriesAndRescue): errors that Apple explains are believed, other errors
/// are tried again. Method: every case of the error and every code of AppleFacts 3.7 and 5.2, written down a second
/// time.
@Suite struct AppleFateTests {
    private static let until = Date(timeIntervalSince1970: 1_800_000_000)

    /// Adding a case to the error breaks this switch: a new error needs a row in the table below.
    private static func word(_ error: AppStoreError) -> String {
        switch error {
        case .timedOut, .unreachable, .cancelled, .httpStatus, .garbage, .rateLimited, .unauthorized, .receiptStatus,
            .api, .credentialsMissing, .environmentNotServed, .notAdmitted, .hostDown, .halted:
            error.label
        }
    }

    @Test("P15: every error has its fate")
    func errors() {
        let table: [(AppStoreError, Fate)] = [
            (.timedOut, .retry(.appleUnavailable)), (.unreachable, .retry(.appleUnavailable)),
            (.cancelled, .postpone(.appleUnavailable, until: nil)), (.garbage, .retry(.appleAnswer)),
            (.httpStatus(500), .retry(.appleAnswer)), (.httpStatus(503), .retry(.appleAnswer)),
            (.httpStatus(403), .retry(.appleAnswer)), (.httpStatus(404), .retry(.appleAnswer)),
            (.httpStatus(302), .retry(.appleAnswer)),
            (.rateLimited(until: Self.until), .postpone(.appleUnavailable, until: Self.until)),
            (.rateLimited(until: nil), .postpone(.appleUnavailable, until: nil)), (.unauthorized, .halt(.halted)),
            (.notAdmitted(until: Self.until), .postpone(.appleBudget, until: Self.until)),
            (.notAdmitted(until: nil), .postpone(.appleBudget, until: nil)),
            (.hostDown, .postpone(.appleUnavailable, until: nil)), (.halted, .halt(.halted)),
            (.credentialsMissing, .hold(.credentialsMissing)), (.environmentNotServed, .reject(.wrongEnvironment)),
        ]
        #expect(Set(table.map { Self.word($0.0) }).count == 12)
        for (error, fate) in table { #expect(Fate(error) == fate, "\(error)") }
    }

    @Test("AppleFacts 5.2: every status of verifyReceipt, the numbers beside each, and what Apple may add")
    func receiptStatuses() {
        let final: [Int: Fate] = [
            21003: .reject(.notAuthenticated), 21004: .halt(.halted), 21010: .reject(.accountNotFound),
        ]
        for code in Array(20_990...21_250) + [-1, 0, 1, 99_999, .max, .min] {
            for retryable in [Bool?.none, true, false] {
                let isInternal = (21100...21199).contains(code)
                let expected =
                    final[code] ?? (isInternal && retryable == false ? .reject(.appleRefused) : .retry(.appleAnswer))
                #expect(Fate(.receiptStatus(code: code, retryable: retryable)) == expected, "\(code)")
            }
        }
    }

    /// AppleFacts 3.7, retention messaging included.
    private static let documented: [Int64] =
        [4_000_000, 4_000_002] + Array(4_000_004...4_000_006) + Array(4_000_008...4_000_028)
        + Array(4_000_030...4_000_044) + [4_000_047, 4_000_048, 4_000_161, 4_000_162, 4_000_163, 4_000_164, 4_000_175]
        + [
            4_000_183, 4_000_185, 4_000_187, 4_000_209, 4_000_211, 4_000_212, 4_000_213, 4_000_215, 4_000_216,
            4_000_218,
        ]
        + [
            4_000_219, 4_000_224, 4_000_225, 4_000_227, 4_030_004, 4_030_005, 4_030_007, 4_030_014, 4_030_016,
            4_030_017,
        ]
        + [4_030_018, 4_030_019, 4_030_026] + Array(4_040_001...4_040_010) + [4_040_014, 4_040_015, 4_040_018]
        + [4_040_019, 4_040_020, 4_040_021, 4_040_022, 4_090_000, 4_090_001, 4_290_000, 5_000_000, 5_000_001]

    @Test("AppleFacts 3.7: every error code of the API; unknown ones are retried, never final (P14, P15)")
    func apiCodes() {
        let exceptions: [Int64: Fate] = [
            4_000_006: .reject(.invalidTransactionID), 4_000_048: .reject(.invalidTransactionID),
            4_040_005: .retry(.notFoundYet), 4_040_010: .retry(.notFoundYet),
            4_290_000: .postpone(.appleUnavailable, until: nil),
        ]
        #expect(Set(exceptions.keys).isSubset(of: Self.documented))
        for code in Self.documented + [0, -1, 1, 4_999_999, 9_999_999, .max, .min] {
            let fate = Fate(.api(code: APIErrorCode(rawValue: code), httpStatus: 400))
            #expect(fate == exceptions[code] ?? .retry(.appleAnswer), "\(code)")
        }
    }

    @Test("P15: what Apple calls retryable is never final")
    func retryable() {
        for code in Self.documented {
            let error = AppStoreError.api(code: APIErrorCode(rawValue: code), httpStatus: Int(code / 10_000))
            guard error.isRetryable else { continue }
            switch Fate(error) {
            case .retry, .postpone: break
            case .reject, .hold, .halt: Issue.record("\(code) is retryable and ends")
            }
        }
        for code in 21_000...21_200 {
            for retryable in [Bool?.none, true, false] {
                let error = AppStoreError.receiptStatus(code: code, retryable: retryable)
                if error.isRetryable { #expect(Fate(error) == .retry(.appleAnswer), "\(code)") }
            }
        }
    }

    @Test("only trouble at Apple counts for the breaker, never an answer about a receipt or about us")
    func outages() {
        for error: AppStoreError in [
            .timedOut, .unreachable, .garbage, .httpStatus(500), .httpStatus(503), .httpStatus(599),
            .receiptStatus(code: 21005, retryable: nil), .receiptStatus(code: 21009, retryable: nil),
            .api(code: .generalInternal, httpStatus: 500), .api(code: .generalInternalRetryable, httpStatus: 500),
        ] {
            #expect(error.isOutage, "\(error)")
        }
        for error: AppStoreError in [
            .cancelled, .rateLimited(until: nil), .unauthorized, .credentialsMissing, .environmentNotServed,
            .httpStatus(404), .receiptStatus(code: 21002, retryable: nil), .receiptStatus(code: 21003, retryable: nil),
            .receiptStatus(code: 21004, retryable: nil), .api(code: .transactionIdNotFound, httpStatus: 404),
            .api(code: APIErrorCode(rawValue: 1), httpStatus: 400),
        ] {
            #expect(!error.isOutage, "\(error)")
        }
    }

    @Test("every reason of the verifier has ours of the same name", arguments: VerificationFailure.Reason.allCases)
    func verification(reason: VerificationFailure.Reason) {
        #expect(Reason(reason).rawValue == reason.rawValue)
    }

    @Test("a call becomes a row of attempts with its figures")
    func call() {
        let call = Verdict.Call(
            ServiceCall(
                service: .serverApi, environment: .sandbox, httpStatus: 404, code: 4_040_010,
                duration: .milliseconds(1234)))
        #expect(
            call
                == Verdict.Call(
                    service: "serverApi", environment: "Sandbox", httpStatus: 404, code: 4_040_010, milliseconds: 1234))
        let none = Verdict.Call(
            ServiceCall(
                service: .verifyReceipt, environment: .production, httpStatus: nil, code: nil, duration: .seconds(20)))
        #expect(none.httpStatus == nil && none.code == nil && none.milliseconds == 20_000)
    }
}
