import AppStore
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation

/// Goal: Apple's answer to an Apple update ends the update, lets it wait or has it tried again, as AppleFacts 3.3 and
/// 3.7 say. Method: every code by the sentence about it, and every error without a code.
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
            // The id may stay unknown, because it is another app's, or may be new.
            (4_040_010, .notFound), (4_040_005, .notFound),
            // Apple's group of errors to be tried again, and Apple's advice about 5000000.
            (4_040_002, .retry(.appleAnswer)), (4_040_004, .retry(.appleAnswer)), (4_040_006, .retry(.appleAnswer)),
            (5_000_001, .retry(.appleAnswer)), (5_000_000, .retry(.appleAnswer)),
            (4_290_000, .wait(.appleUnavailable)),
            // The id or the kind of purchase is wrong, and another try changes nothing.
            (4_000_006, .refused(.appleRefused)), (4_000_048, .refused(.appleRefused)),
            (4_000_183, .refused(.appleRefused)), (4_000_185, .refused(.appleRefused)),
            (4_000_187, .refused(.appleRefused)), (4_000_000, .refused(.appleRefused)),
            (4_040_001, .refused(.appleRefused)),
            // A person may correct the first; the other is a code that the program does not know.
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
