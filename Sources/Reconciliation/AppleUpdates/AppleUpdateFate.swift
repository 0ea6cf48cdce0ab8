import AppStore
import AppleGateway
import Purchases

/// What came of telling Apple about a decided purchase, from Apple's answer: the one switch for Apple updates, as ``Fate`` is
/// for receipts.
enum AppleUpdateFate: Equatable {
    case done
    /// Apple will never take it, and that is no harm to the purchase: it was decided before.
    case refused(Reason)
    case retry(Reason)
    /// Apple was not asked, or wants to be left alone for a while: no try is counted.
    case wait(Reason)
    /// Retried at first: a new purchase takes a while to show. Believed where it stays so.
    case notFound

    /// Tries after which an id that Apple does not know is believed to be unknown, and the time that they take at least.
    static let notFoundTries = 5
    static let notFoundAge: Duration = .seconds(3600)

    init(_ refusal: AppleRefusal) {
        let reason = refusal.fate.reason
        switch refusal.fate {
        case .halt, .postpone, .hold:
            self = .wait(reason)
        case .retry, .reject:
            guard let code = refusal.calls.last?.code.map(APIErrorCode.init(rawValue:)) else {
                // Rejected without Apple's word: it does not offer this there.
                if case .reject = refusal.fate { self = .refused(reason) } else { self = .retry(reason) }
                return
            }
            switch code.meaning {
            case .notFound: self = .notFound
            // What is missing in App Store Connect a person may mend. `tooMany` is waited for, above.
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
