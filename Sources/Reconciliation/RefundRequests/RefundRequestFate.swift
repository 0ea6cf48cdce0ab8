import AppStore
import AppleGateway
import Foundation
import Purchases

/// The meaning of a failure to give Apple an answer about a refund.
enum RefundRequestFate: Equatable {
    /// Apple will never take the answer: Apple would refuse the same answer again (P41).
    case refused
    case retry
    /// Apple does not know the id: another build of the app may have sold it, or the id is new.
    case notFound
    /// Apple was not asked, or told us to wait: no try is counted.
    case wait(until: Date?)

    init(_ refusal: AppleRefusal) {
        switch refusal.fate {
        case .halt, .hold: self = .wait(until: nil)
        case .postpone(_, let until): self = .wait(until: until)
        case .retry, .reject:
            guard let call = refusal.calls.last, let status = call.httpStatus else {
                // Rejected without an answer from Apple: Apple does not serve this call in that environment.
                if case .reject = refusal.fate { self = .refused } else { self = .retry }
                return
            }
            switch (status, call.code.map { APIErrorCode(rawValue: $0).meaning }) {
            case (404, _), (_, .notFound): self = .notFound
            // A person may correct a missing setting in App Store Connect.
            case (_, .configuration), (401, _), (408, _), (429, _): self = .retry
            // Apple has codes for this call whose numbers are not documented, and answers some faults without a code.
            case (400..<500, _): self = .refused
            default: self = .retry
            }
        }
    }
}
