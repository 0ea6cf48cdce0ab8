package import AppStore
package import Foundation

/// One app's calls of one lane, as the governor lets them through.
package struct GovernedCalls: CallGate {
    let governor: Governor
    let appID: String
    /// For Get Transaction Info in production; the other limits stand to it as in Apple's table (apple-facts 3.8).
    let callsPerSecond: Double
    let lane: CallLane

    package func admit(
        _ endpoint: ServerAPIClient.Endpoint, in environment: StoreEnvironment
    ) async throws(AppStoreError) {
        guard let limit = endpoint.callsPerSecond(in: environment),
            let whole = ServerAPIClient.Endpoint.transactionInfo.callsPerSecond(in: .production)
        else { throw .environmentNotServed }
        switch await governor.permit(
            budget(endpoint, environment), callsPerSecond: callsPerSecond * limit / whole, lane: lane)
        {
        case .granted: return
        case .refused(let until): throw .notAdmitted(until: until)
        }
    }

    package func limited(
        _ endpoint: ServerAPIClient.Endpoint, in environment: StoreEnvironment, until: Date?
    ) async {
        await governor.stop(budget(endpoint, environment), until: until)
    }

    private func budget(_ endpoint: ServerAPIClient.Endpoint, _ environment: StoreEnvironment) -> CallBudget {
        CallBudget(appID: appID, environment: environment.rawValue, endpoint: endpoint.rawValue)
    }
}
