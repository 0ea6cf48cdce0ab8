import Encoding
import HTTPTypes
import Hummingbird
package import Logging
import Metrics
import NIOCore
import ServiceLifecycle
import Settings

/// `/health/live`, `/health/ready` and `/metrics`. They need no credentials: they say nothing about anybody, and the
/// port is for the internal network. On a public port a load balancer learns whether requests should come, and nobody
/// learns more.
package struct OperationsRoutes: Sendable {
    package let health: Health
    private let registry: PrometheusRegistry

    package init(health: Health, registry: PrometheusRegistry) {
        self.health = health
        self.registry = registry
    }

    /// - Parameter isInside: false: there is no `/metrics`, and `/health/ready` says `status` alone.
    package func add(to router: some RouteTable, isInside: Bool = true) {
        router.serve(
            "/health/live", [.get: Endpoint { _, _ in Response(json: .object([.init("status", .string("live"))])) }])
        router.serve(
            "/health/ready",
            [
                .get: Endpoint { _, _ in
                    let report = health.report
                    let json = isInside ? report.json : report.outsideJSON
                    guard !report.isReady else { return Response(json: json) }
                    var response = Response(json: json, status: .serviceUnavailable)
                    response.headers[.retryAfter] = Problem.retryAfter
                    return response
                }
            ])
        guard isInside else { return }
        Gauge(label: "makegood_build_info", dimensions: [("version", Version.current)], factory: registry).record(1)
        router.serve(
            "/metrics",
            [
                .get: Endpoint { _, _ in
                    Response(
                        status: .ok, headers: [.contentType: PrometheusRegistry.contentType],
                        body: .init(byteBuffer: ByteBuffer(string: registry.text)))
                }
            ])
    }
}

/// Health and metrics on a port of their own, for every role. Put it first in the service group, so that it is the
/// last to stop and tells of the drain.
package struct OperationsServer: Service {
    private let routes: OperationsRoutes
    private let host: String
    private let port: Int
    private let connections: ConnectionLimit
    private let logger: Logger
    package let address = ListeningAddress()

    /// - Parameters:
    ///   - port: `MAKEGOOD_OPERATIONS_PORT`; 0 takes any free one.
    ///   - connectionsMax: more wait in the backlog.
    package init(routes: OperationsRoutes, host: String, port: Int, connectionsMax: Int, logger: Logger) {
        self.routes = routes
        self.host = host
        self.port = port
        connections = ConnectionLimit(connectionsMax)
        self.logger = logger
    }

    /// Serves until graceful shutdown or cancellation.
    package func run() async throws {
        defer { address.ended() }
        let router = Router(context: HTTPContext.self, options: .autoGenerateHeadEndpoints)
        router.add(middleware: AnswerMiddleware(health: routes.health, connections: connections, logger: logger))
        routes.add(to: router)
        let application = Application(
            router: router, server: .http1(configuration: HTTPLimits.http1(connections: connections)),
            configuration: .init(
                address: .hostname(host, port: port), reuseAddress: true, availableConnectionsDelegate: connections),
            onServerRunning: { [address, host, logger] channel in
                let port = channel.localAddress?.port ?? 0
                logger.info("operations listening", metadata: ["http.address": "\(host):\(port)"])
                address.listening(port)
            },
            logger: logger.quiet)
        async let _ = connections.run()
        try await application.run()
    }
}
