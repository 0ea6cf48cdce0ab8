import Ledger
import Metrics
import Purchases

extension Watch {
    /// Measures what endpoints have yet to get, and how far numbering is behind. An endpoint that no configuration has
    /// had for a day is behind no more.
    ///
    /// - Parameter known: app and name of the endpoints that were measured before.
    func measureDelivery(_ known: inout Set<[String]>) async throws {
        let numbering = try await ledger.run(Statements.numberingLag, ()).first
        gauge("makegood_numbering_lag_seconds").record(numbering?.seconds ?? 0)
        let standings = try await ledger.run(Statements.allEndpointStandings, ()).filter(\.isDefined)
        let endpoints = Set(standings.map { [$0.appID, $0.name] })
        for gone in known.subtracting(endpoints) { record(gone, lag: 0, waiting: 0, parked: 0, state: nil) }
        for endpoint in standings {
            record(
                [endpoint.appID, endpoint.name], lag: endpoint.lagSeconds, waiting: endpoint.waitingStreams,
                parked: endpoint.parkedStreams, state: endpoint.state)
        }
        known = endpoints
    }

    private func record(_ endpoint: [String], lag: Double, waiting: Int, parked: Int, state: EndpointState?) {
        let dimensions = [("app", endpoint[0]), ("endpoint", endpoint[1])]
        gauge("makegood_delivery_lag_seconds", dimensions).record(lag)
        gauge("makegood_delivery_waiting_streams", dimensions).record(waiting)
        gauge("makegood_delivery_parked_streams", dimensions).record(parked)
        gauge("makegood_endpoint_state", dimensions).record(state.map(\.metric) ?? 0)
    }
}

extension EndpointState {
    /// The value of `makegood_endpoint_state`.
    fileprivate var metric: Int {
        switch self {
        case .working: 0
        case .failing: 1
        case .suspended: 2
        }
    }
}
