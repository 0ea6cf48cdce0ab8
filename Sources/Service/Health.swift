package import Encoding
import ServiceLifecycle
package import Settings
import Synchronization

/// What a process says about itself to load balancers and people. One per process, shared by all its services.
package final class Health: Sendable {
    package enum Role: String, Sendable, CaseIterable {
        case ingest, worker, dispatcher, scheduler, all
    }

    package let role: Role
    /// The newest migration this program knows.
    private let schema: Int
    private let configuration: ConfigurationHolder?
    private let isDatabaseUp: @Sendable () -> Bool
    private let isBrokerUp: (@Sendable () -> Bool)?
    private let draining = Atomic<Bool>(false)

    /// - Parameters:
    ///   - isDatabaseUp: must answer at once, such as `ledger.database.isReady`.
    ///   - isBrokerUp: the same; nil where the process has no broker.
    package init(
        role: Role, schema: Int, configuration: ConfigurationHolder?, isDatabaseUp: @escaping @Sendable () -> Bool,
        isBrokerUp: (@Sendable () -> Bool)? = nil
    ) {
        self.role = role
        self.schema = schema
        self.configuration = configuration
        self.isDatabaseUp = isDatabaseUp
        self.isBrokerUp = isBrokerUp
    }

    /// Makes the process not ready, from now on and for good; called at the first sign of shutdown.
    package func beginDrain() { draining.store(true, ordering: .relaxed) }

    package var isDraining: Bool { draining.load(ordering: .relaxed) }

    /// A process is ready if it has the database. Without the broker rows wait and are granted later (B12). Then the
    /// process is degraded, but that is no reason to send purchases to another process, which has no broker either.
    package var report: Report {
        let database = isDatabaseUp()
        let broker = isBrokerUp.map { $0() }
        let status: Report.Status =
            if isDraining { .draining } else if !database { .unready } else if broker == false { .degraded } else {
                .ready
            }
        return Report(
            status: status, role: role, database: database, broker: broker, schema: schema,
            configurationHash: configuration?.current.hash)
    }

    package struct Report: Sendable, Equatable {
        package enum Status: String, Sendable, CaseIterable {
            case ready, degraded, unready, draining
        }

        package let status: Status
        let role: Role
        let database: Bool
        let broker: Bool?
        let schema: Int
        let configurationHash: String?

        /// Whether a load balancer should send requests here.
        package var isReady: Bool { status == .ready || status == .degraded }

        package var outsideJSON: JSONValue { .object([.init("status", .string(status.rawValue))]) }

        package var json: JSONValue {
            var members: [JSONValue.Member] = [
                .init("status", .string(status.rawValue)), .init("role", .string(role.rawValue)),
                .init("database", .string(database ? "up" : "down")),
            ]
            if let broker { members.append(.init("broker", .string(broker ? "up" : "down"))) }
            members.append(.init("draining", .bool(status == .draining)))
            members.append(.init("version", .string(Version.current)))
            members.append(.init("schema", .integer(schema)))
            if let configurationHash { members.append(.init("configuration", .string(configurationHash))) }
            return .object(members)
        }
    }
}

/// Turns readiness off at the first sign of shutdown. Put it last in the service group, so that it is told first; an
/// `IntakeServer` does the same by itself.
package struct DrainSign: Service {
    private let health: Health

    package init(health: Health) {
        self.health = health
    }

    package func run() async throws {
        try await gracefulShutdown()
        health.beginDrain()
    }
}
