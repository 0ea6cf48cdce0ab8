package import AppStore
import Ledger
import Logging
import Purchases
import Service
import Settings

/// The calls of one app in one lane, which the governor lets out.
package struct GovernedCalls: CallLimiter {
    let governor: Governor
    let halts: Halts
    let app: AppServices
    let lane: CallLane
    /// The halt that was in force when the question was asked; its probe may pass.
    let knownHalt: Halt?

    package func pass<Value>(
        _ host: AppleHost, _ endpoint: ServerAPIClient.Endpoint?, _ call: () async -> CallAnswer<Value>
    ) async throws(AppStoreError) -> CallAnswer<Value> {
        let pass = try await pass(host, try allowance(endpoint, host.environment))
        // Apple may have refused the secret while this call waited.
        if let halt = halts.halt(of: host.service, for: app), halt != knownHalt {
            governor.leave(pass, .none)
            throw .halted
        }
        let answer = await call()
        if let trace = TraceContext.current { tell(answer.call, endpoint, trace) }
        switch answer.result {
        case .success: governor.leave(pass, .answered)
        case .failure(.cancelled): governor.leave(pass, .none)
        case .failure(.rateLimited(let until)):
            governor.leave(pass, .limited)
            if let endpoint { await governor.stop(budget(endpoint, host.environment), until: until) }
        case .failure(let error): governor.leave(pass, error.isOutage ? .failed : .answered)
        }
        return answer
    }

    private func tell(_ call: ServiceCall, _ endpoint: ServerAPIClient.Endpoint?, _ trace: TraceContext) {
        governor.logger.log(
            level: trace.level, "Apple was asked",
            metadata: [
                "app.id": "\(app.configuration.id)", "apple.service": "\(call.service.rawValue)",
                "apple.environment": "\(call.environment.rawValue)", "apple.endpoint": "\(endpoint?.rawValue ?? "")",
                "http.status": "\(call.httpStatus.map(String.init) ?? "")",
                "duration.ms": "\(Int(call.duration.inSeconds * 1000))",
            ])
    }

    private func pass(
        _ host: AppleHost, _ allowance: Governor.Allowance?
    ) async throws(AppStoreError) -> Governor.Pass {
        let deadline = ContinuousClock.now + Governor.patience
        while true {
            switch await governor.admit(host, within: allowance, lane: lane, by: deadline) {
            case .granted(let pass):
                let now = ContinuousClock.now
                guard let leavesBy = pass.leavesBy, now > leavesBy else { return pass }
                governor.leave(pass, .none)
                if now > deadline { throw .notAdmitted(until: nil) }
            case .refused(let until): throw .notAdmitted(until: until)
            case .hostDown: throw .hostDown
            }
        }
    }

    /// Apple's allowance for an endpoint. The configured number is for Get Transaction Info in production; the other
    /// limits are in the proportion of Apple's table (AppleFacts 3.8). Nil for verifyReceipt, for which Apple names
    /// none.
    private func allowance(
        _ endpoint: ServerAPIClient.Endpoint?, _ environment: StoreEnvironment
    ) throws(AppStoreError) -> Governor.Allowance? {
        guard let endpoint, let section = app.configuration.serverAPI else { return nil }
        guard let limit = endpoint.callsPerSecond(in: environment), let whole = Self.whole else {
            throw .environmentNotServed
        }
        return Governor.Allowance(
            budget(endpoint, environment), callsPerSecond: section.callsPerSecond * limit / whole)
    }

    private static let whole = ServerAPIClient.Endpoint.transactionInfo.callsPerSecond(in: .production)

    private func budget(_ endpoint: ServerAPIClient.Endpoint, _ environment: StoreEnvironment) -> CallBudget {
        CallBudget(
            appID: app.configuration.id, environment: environment.rawValue, endpoint: endpoint.rawValue)
    }
}
