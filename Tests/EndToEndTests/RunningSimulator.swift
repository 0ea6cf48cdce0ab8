import AppStoreSimulator
import Foundation
import Logging
import TestServers

/// The App Store of one test, in this process, over real HTTP.
struct RunningSimulator: Sendable {
    let store: AppStoreSimulator
    let url: String
    private let service: RunningService

    static func start() async throws -> RunningSimulator {
        var logger = Logger(label: "app-store")
        logger.logLevel = .critical
        let store = try AppStoreSimulator(SimulatorConfiguration(seed: 1, namesResponder: true), logger: logger)
        let service = RunningService(store)
        let port = try await store.boundPort
        for (app, bundle, id) in [
            ("game", "com.example.game", 1_234_567_890), ("puzzle", "com.example.puzzle", 1_234_567_891),
        ] {
            try store.register(RegisteredApp(app: app, bundleId: bundle, appAppleId: Int64(id)))
        }
        return RunningSimulator(store: store, url: "http://127.0.0.1:\(port)", service: service)
    }

    func stop() async {
        store.clearFaults()
        try? await service.stop()
    }

    /// Sells one purchase, made now unless `change` says otherwise.
    func sell(
        _ productID: String = ConfigurationFile.coins, app: String = "game",
        _ change: (inout SaleRequest) -> Void = { _ in }
    ) async throws -> Sale {
        try await sell(1, productID, app: app, change)[0]
    }

    func sell(
        _ count: Int, _ productID: String = ConfigurationFile.coins, app: String = "game",
        _ change: (inout SaleRequest) -> Void = { _ in }
    ) async throws -> [Sale] {
        var request = SaleRequest(app: app, productId: productID)
        request.count = count
        change(&request)
        return try await store.sell(request)
    }

    /// The calls with a number above `after`, without those of the sweep of notifications, which ask about no purchase.
    func calls(after: Int = 0) -> [SimulatorCall] {
        store.calls(after: after).filter { $0.service != .notificationHistory }
    }

    /// The calls about this purchase that Apple has answered or dropped.
    func calls(about sale: Sale) -> [SimulatorCall] {
        store.calls().filter { $0.transactionIds.contains(sale.purchase.transactionId) }
    }
}
