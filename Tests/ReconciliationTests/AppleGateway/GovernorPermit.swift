import AppStore
import Foundation

@testable import AppleGateway
@testable import Ledger

/// The governor's answer to a request for one call. No call is made.
enum Permit: Equatable {
    case granted
    case refused(until: Date?)
}

extension Governor {
    func permit(_ budget: CallBudget, callsPerSecond: Double, lane: CallLane) async -> Permit {
        let host = AppleHost(.serverApi, StoreEnvironment(rawValue: budget.environment))
        switch await admit(host, within: Allowance(budget, callsPerSecond: callsPerSecond), lane: lane) {
        case .granted(let pass):
            leave(pass, .answered)
            return .granted
        case .refused(let until): return .refused(until: until)
        case .hostDown: return .refused(until: .distantPast)
        }
    }

    /// A call for which Apple names no limit.
    func pass(_ host: AppleHost, _ lane: CallLane) async -> Pass? {
        guard case .granted(let pass) = await admit(host, within: nil, lane: lane) else { return nil }
        return pass
    }
}
