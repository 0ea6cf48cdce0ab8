import AsyncHTTPClient
import Encoding
import Logging
import NIOCore
import NIOHTTP1
import Service
import ServiceLifecycle
import Settings
import Testing

/// Goal: a process is ready exactly when it can take requests. Method: each combination of the services that are up,
/// and its report.
@Suite struct OperationsHealthTests {
    private static func health(database: Bool, broker: Bool?) -> Health {
        let isBrokerUp: @Sendable () -> Bool = { broker ?? false }
        return Health(
            role: .all, schema: 3, configuration: nil, isDatabaseUp: { database },
            isBrokerUp: broker == nil ? nil : isBrokerUp)
    }

    @Test(
        "B12: ready needs the database and only the database",
        arguments: [
            (true, true, "ready", true), (true, nil, "ready", true), (true, false, "degraded", true),
            (false, true, "unready", false), (false, false, "unready", false),
        ] as [(Bool, Bool?, String, Bool)])
    func readiness(_ database: Bool, _ broker: Bool?, _ status: String, _ isReady: Bool) {
        let report = Self.health(database: database, broker: broker).report
        #expect(report.status.rawValue == status)
        #expect(report.isReady == isReady)
        #expect(report.json["database"] == .string(database ? "up" : "down"))
        #expect(report.json["broker"] == broker.map { .string($0 ? "up" : "down") })
        #expect(report.json["schema"] == .number("3"))
        #expect(report.json["version"] == .string(Version.current))
    }

    @Test func aDrainingProcessIsNotReady() {
        let health = Self.health(database: true, broker: true)
        health.beginDrain()
        #expect(health.isDraining)
        #expect(health.report.status == .draining)
        #expect(!health.report.isReady)
        #expect(health.report.json["draining"] == .bool(true))
    }

    @Test("Every role reports its shutdown on the operations port, for as long as the others drain")
    func operationsServer() async throws {
        var logger = Logger(label: "tests")
        logger.logLevel = .critical
        let health = Self.health(database: true, broker: true)
        let server = OperationsServer(
            routes: OperationsRoutes(health: health, registry: PrometheusRegistry()), host: "127.0.0.1", port: 0,
            connectionsMax: 8, logger: logger)
        // Stands for a worker that needs a while to drain.
        struct Slow: Service {
            func run() async throws {
                try await gracefulShutdown()
                try await Task.sleep(for: .seconds(4))
            }
        }
        let services: [any Service] = [server, Slow(), DrainSign(health: health)]
        let group = ServiceGroup(configuration: .init(services: services, logger: logger))
        let running = Task { try await group.run() }
        let base = "http://127.0.0.1:\(try await server.address.port)"
        func status(_ path: String) async throws -> Int {
            Int(try await HTTPClient.shared.execute(.init(url: base + path), timeout: .seconds(5)).status.code)
        }
        #expect(try await status("/health/ready") == 200)
        #expect(try await status("/metrics") == 200)
        #expect(try await status("/v1/receipts") == 404)
        await group.triggerGracefulShutdown()
        try await Task.sleep(for: .milliseconds(300))
        #expect(try await status("/health/ready") == 503)
        #expect(try await status("/health/live") == 200)
        try await running.value
    }
}
