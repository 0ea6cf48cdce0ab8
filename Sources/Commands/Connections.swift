import Foundation
import Ledger
package import Logging
package import Postgres
import Purchases
package import RabbitMQ
import Service
package import Settings
package import Support
package import WorkQueue

/// Connections to the database and the broker, as the settings of this process name them.
package enum Connections {
    /// The person who runs the command, for the audit.
    package static var actor: String { ProcessInfo.processInfo.environment["USER"] ?? NSUserName() }

    package static func migrator(_ settings: Settings, _ command: String) throws(ConfigurationError) -> Migrator {
        Migrator(
            try postgres(settings, command), migrations: Schema.migrations, logger: logger(settings, isCommand: true))
    }

    /// With the patience of a service every request is answered within `PostgresConfiguration.silenceMax`, 12 s, also
    /// where the database does not answer at all: gateways give up after 29 s and more.
    package static func postgres(
        _ settings: Settings, _ role: String, patience: Duration = .seconds(5)
    ) throws(ConfigurationError) -> PostgresConfiguration {
        var configuration = PostgresConfiguration(
            url: try settings.requiredPostgresURL(), applicationName: "makegood-\(role)", statementTimeout: patience,
            callDeadline: patience + .seconds(5), namedStatements: settings.namedStatements)
        configuration.keepsPlans = true
        return configuration
    }

    /// - Parameter isCommand: whether the process is a command. A command prints its result, and its log leaves out
    ///   what went well on the way.
    package static func logger(_ settings: Settings, isCommand: Bool = false) -> Logger {
        var logger = Logger(label: "makegood") { label in
            switch settings.logFormat {
            case .text: StreamLogHandler.standardError(label: label, metadataProvider: TraceContext.metadata)
            case .json: JSONLogHandler.standardError(metadataProvider: TraceContext.metadata)
            }
        }
        logger.logLevel = isCommand && settings.logLevel == .info ? .warning : settings.logLevel
        return logger
    }

    /// A database for one command, closed when the command is done.
    package static func withDatabase<Result: Sendable>(
        _ command: String, patience: Duration = .seconds(60), isReadOnly: Bool = false, keepsPlans: Bool = false,
        connections: Int = 1, _ body: (Database) async throws -> Result
    ) async throws -> Result {
        let settings = try Settings()
        var configuration = try postgres(settings, command, patience: patience)
        configuration.isReadOnly = isReadOnly
        configuration.keepsPlans = keepsPlans
        let database = Database(
            configuration, connections: connections,
            logger: logger(settings, isCommand: true))
        do {
            let result = try await body(database)
            await database.close()
            return result
        } catch {
            await database.close()
            throw error
        }
    }

    /// Ready messages of every queue, the dead letters last. Only looks: a queue that is missing is an error
    /// (`RabbitMQError.topology`), for whatever user.
    package static func queueDepths() async throws -> [(String, Int)] {
        try await withQueues(declares: false) { publisher, queues in
            var depths: [(String, Int)] = []
            let names = Lane.allCases.map(queues.verify) + RetrySchedule.retryDelays.indices.map { queues.retry($0) }
            for name in names + [queues.deliver, queues.dead] {
                depths.append((name, try await publisher.depth(of: name)))
            }
            return depths
        }
    }

    /// A connection to the broker for one command, closed when the command is done.
    ///
    /// - Parameter declares: whether missing queues are declared.
    package static func withQueues<Result: Sendable>(
        declares: Bool, _ body: (Publisher, Queues) async throws -> Result
    ) async throws -> Result {
        let settings = try Settings()
        let queues = Queues(prefix: settings.queuePrefix, schedule: RetrySchedule(scale: settings.timeScale))
        let publisher = Publisher(
            try broker(settings, declares: declares), topology: queues.topology,
            logger: logger(settings, isCommand: true))
        await publisher.start()
        do {
            let result = try await body(publisher, queues)
            await publisher.close()
            return result
        } catch {
            await publisher.close()
            throw error
        }
    }

    private static func broker(_ settings: Settings, declares: Bool) throws -> BrokerConfiguration {
        var broker = try BrokerConfiguration(url: settings.requiredAMQPURL())
        broker.declaresQueues = declares
        return broker
    }

    /// The dead letters for one command, with the connections that they need.
    package static func withDeadLetters<Result: Sendable>(
        _ body: (DeadLetters) async throws -> Result
    ) async throws -> Result {
        let settings = try Settings()
        let broker = try broker(settings, declares: false)
        return try await withDatabase("queue") { database in
            try await withQueues(declares: false) { publisher, queues in
                try await body(
                    DeadLetters(
                        broker: broker, queues: queues, publisher: publisher, database: database,
                        logger: logger(settings, isCommand: true)))
            }
        }
    }
}
