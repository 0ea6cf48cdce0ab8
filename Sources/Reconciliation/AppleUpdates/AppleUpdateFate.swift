import AppStore
import AppleGateway
import Purchases

/// What Apple's answer to an Apple update means for the update. All answers to Apple updates are classified here, as
/// ``Fate`` classifies those about receipts.
enum AppleUpdateFate: Equatable {
    case done
    /// Apple will never accept the update. That does not harm the purchase, which was decided before.
    case refused(Reason)
    case retry(Reason)
    /// Apple was not asked, or Apple told us to wait: no try is counted.
    case wait(Reason)
    /// Apple does not know the id. The worker retries at first, because a new purchase takes a while to show, and
    /// believes the answer if it stays the same.
    case notFound

    /// After this many tries, and after this much time, an id that Apple does not know is believed to be unknown.
    static let notFoundTries = 5
    static let notFoundAge: Duration = .seconds(3600)

    init(_ refusal: AppleRefusal) {
        let reason = refusal.fate.reason
        switch refusal.fate {
        case .halt, .postpone, .hold:
            self = .wait(reason)
        case .retry, .reject:
            guard let code = refusal.calls.last?.code.map(APIErrorCode.init(rawValue:)) else {
                // Rejected without an answer from Apple: Apple does not serve this call in that environment.
                if case .reject = refusal.fate { self = .refused(reason) } else { self = .retry(reason) }
                return
            }
            switch code.meaning {
            case .notFound: self = .notFound
            // A person may correct a missing setting in App Store Connect. `tooMany` waits, see above.
            case .temporary, .tooMany, .unknown, .configuration: self = .retry(.appleAnswer)
            case .invalidID, .ourRequest, .refused, .absent: self = .refused(.appleRefused)
            }
        }
    }
}

extension Fate {
    var reason: Reason {
        switch self {
        case .retry(let reason), .postpone(let reason, _), .reject(let reason), .hold(let reason), .halt(let reason):
            reason
        }
    }
}
