import AppStore
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation

/// Goal: what Apple answers to an Apple update ends it, waits or is tried again, as AppleFacts 3.3 and 3.7 say. Method: every
/// code by the sentence about it, and every error that brings no code.
@Suite struct AppleUpdateFateTests {
    private static func fate(_ error: AppStoreError, code: Int64? = nil, isAsked: Bool = true) -> AppleUpdateFate {
        let call = ServiceCall(
            service: .serverApi, environment: .production, httpStatus: code.map { Int($0 / 10_000) }, code: code,
            duration: .seconds(1))
        return AppleUpdateFate(AppleRefusal(Fate(error), calls: isAsked ? [call] : []))
    }

    private static func fate(_ code: Int64) -> AppleUpdateFate {
        fate(.api(code: APIErrorCode(rawValue: code), httpStatus: Int(code / 10_000)), code: code)
    }

    @Test("AppleFacts 3.3: what endpoints 13 and 15 answer")
    func codes() {
        for (code, expected) in [
            // Unknown for good, perhaps: another app's token, or just sold.
            (4_040_010, .notFound), (4_040_005, .notFound),
            // Apple's group of what is to be tried again, and what it says of 5000000.
            (4_040_002, .retry(.appleAnswer)), (4_040_004, .retry(.appleAnswer)), (4_040_006, .retry(.appleAnswer)),
            (5_000_001, .retry(.appleAnswer)), (5_000_000, .retry(.appleAnswer)),
            (4_290_000, .wait(.appleUnavailable)),
            // No such id, no such kind of purchase, nothing that another try changes.
            (4_000_006, .refused(.appleRefused)), (4_000_048, .refused(.appleRefused)),
            (4_000_183, .refused(.appleRefused)), (4_000_185, .refused(.appleRefused)),
            (4_000_187, .refused(.appleRefused)), (4_000_000, .refused(.appleRefused)),
            (4_040_001, .refused(.appleRefused)),
            // A person may mend it; Apple may say what we do not know.
            (4_040_003, .retry(.appleAnswer)), (4_999_999, .retry(.appleAnswer)),
        ] as [(Int64, AppleUpdateFate)] {
            #expect(Self.fate(code) == expected, "\(code)")
        }
    }

    @Test("without a code: Apple away is a try, not being let out is none")
    func errors() {
        for (error, isAsked, expected) in [
            (.timedOut, true, .retry(.appleUnavailable)), (.unreachable, true, .retry(.appleUnavailable)),
            (.httpStatus(503), true, .retry(.appleAnswer)), (.garbage, true, .retry(.appleAnswer)),
            (.rateLimited(until: nil), true, .wait(.appleUnavailable)),
            (.unauthorized, true, .wait(.halted)), (.halted, false, .wait(.halted)),
            (.notAdmitted(until: nil), false, .wait(.appleBudget)), (.hostDown, false, .wait(.appleUnavailable)),
            (.cancelled, true, .wait(.appleUnavailable)),
            (.credentialsMissing, false, .wait(.credentialsMissing)),
            (.environmentNotServed, false, .refused(.wrongEnvironment)),
            (.api(code: .invalidTransactionId, httpStatus: 400), false, .refused(.invalidTransactionID)),
        ] as [(AppStoreError, Bool, AppleUpdateFate)] {
            #expect(Self.fate(error, isAsked: isAsked) == expected, "\(error)")
        }
    }
}
