import Foundation
package import Logging
import Purchases

/// What a process takes from its environment. Unknown `MAKEGOOD_` variables are refused: a typo must not hide.
package struct Settings: Sendable {
    /// The files that hold the two addresses.
    package let files: [NamedFile]
    /// Empty where it is not set: a command that reaches no server needs neither address.
    package var postgresURL: String
    package var amqpURL: String
    /// Nil where the command needs no apps.
    package var configurationPath: String?
    package var httpHost: String
    package var httpPort: Int
    /// The port for health and metrics. Nil: ingest serves them on its own port, metrics on loopback alone; the other
    /// roles serve none.
    package var operationsPort: Int?
    package var bodyBytesMax: Int
    /// False behind PgBouncer in transaction mode.
    package var namedStatements: Bool
    /// Connections that write batches.
    package var postgresWriters: Int
    /// Event loops: the connections of clients and to Apple. Database and broker have threads of their own; tasks run
    /// on Swift's pool, one thread for each core.
    package var threads: Int
    /// Receipts in flight from the queue of local proofs.
    package var localInFlight: Int
    /// Receipts in flight from the queue that needs Apple: also the bound on calls in flight.
    package var appleInFlight: Int
    /// How long the listener stays open after SIGTERM, so that a gateway sees the 503 of /health/ready first.
    package var drainDelay: Duration
    /// Names of the queues begin with it.
    package var queuePrefix: String
    /// Names of the database's roles begin with it; only the commands `roles` and `migrate` use it.
    package var rolePrefix: String
    /// Multiplies every delay of retries, rescues and parking. 1 in production.
    package var timeScale: Double
    /// How long a paid purchase may wait before the scheduler names it (S1-33). A purchase that waits a day for its
    /// owner may wait a day longer.
    package var waitingLimit: Duration
    package var logLevel: Logger.Level
    package var logFormat: LogFormat

    package enum LogFormat: String, Sendable, CaseIterable {
        /// A line for people.
        case text
        /// A JSON object for each line.
        case json
    }

    private static let variables: [String: String] = [
        "MAKEGOOD_POSTGRES_URL": "libpq address of the database",
        "MAKEGOOD_POSTGRES_URL_FILE": "file with the libpq address",
        "MAKEGOOD_AMQP_URL": "address of RabbitMQ",
        "MAKEGOOD_AMQP_URL_FILE": "file with the address of RabbitMQ",
        "MAKEGOOD_CONFIG": "file with the apps and keys",
        "MAKEGOOD_HTTP_HOST": "address to listen on",
        "MAKEGOOD_HTTP_PORT": "port of ingest",
        "MAKEGOOD_OPERATIONS_PORT": "port of health and metrics",
        "MAKEGOOD_BODY_BYTES_MAX": "largest request body",
        "MAKEGOOD_POSTGRES_NAMED_STATEMENTS": "false behind PgBouncer in transaction mode",
        "MAKEGOOD_POSTGRES_WRITERS": "connections that write batches",
        "MAKEGOOD_THREADS": "event loops of a service",
        "MAKEGOOD_LOCAL_IN_FLIGHT": "receipts in flight, local proofs",
        "MAKEGOOD_APPLE_IN_FLIGHT": "receipts in flight, calls to Apple",
        "MAKEGOOD_DRAIN_DELAY_SECONDS": "listener stays open after SIGTERM",
        "MAKEGOOD_QUEUE_PREFIX": "queues begin with it",
        "MAKEGOOD_ROLE_PREFIX": "the database's roles begin with it",
        "MAKEGOOD_TIME_SCALE": "factor on every delay",
        "MAKEGOOD_WAITING_LIMIT_SECONDS": "a paid purchase that waits longer raises an alarm",
        "MAKEGOOD_LOG_LEVEL": "trace to critical",
        "MAKEGOOD_LOG_FORMAT": "text or json",
    ]
    /// Read by deploy/ and the tests, not by the program.
    private static let foreign: Set<String> = ["MAKEGOOD_LOCAL"]

    package init(environment: [String: String] = ProcessInfo.processInfo.environment) throws(ConfigurationError) {
        let ours = environment.keys.filter { $0.hasPrefix("MAKEGOOD_") && !$0.hasPrefix("MAKEGOOD_TEST_") }
        if let unknown = ours.filter({ Self.variables[$0] == nil && !Self.foreign.contains($0) }).sorted().first {
            throw ConfigurationError(key: unknown, problem: unknown.unknownSetting(among: Set(Self.variables.keys)))
        }
        files = ["MAKEGOOD_POSTGRES_URL_FILE", "MAKEGOOD_AMQP_URL_FILE"].compactMap { key in
            environment[key].map { NamedFile(key: key, path: $0, holdsSecret: true) }
        }
        postgresURL = try Self.secret("MAKEGOOD_POSTGRES_URL", environment) ?? ""
        amqpURL = try Self.secret("MAKEGOOD_AMQP_URL", environment) ?? ""
        configurationPath = environment["MAKEGOOD_CONFIG"]
        httpHost = environment["MAKEGOOD_HTTP_HOST"] ?? "127.0.0.1"
        httpPort = try Self.integer("MAKEGOOD_HTTP_PORT", environment, 0...65_535) ?? 8080
        operationsPort = try Self.integer("MAKEGOOD_OPERATIONS_PORT", environment, 0...65_535)
        bodyBytesMax =
            try Self.integer("MAKEGOOD_BODY_BYTES_MAX", environment, 1024...16_777_216) ?? Self.bodyBytesMaxDefault
        namedStatements = try Self.boolean("MAKEGOOD_POSTGRES_NAMED_STATEMENTS", environment) ?? true
        postgresWriters = try Self.integer("MAKEGOOD_POSTGRES_WRITERS", environment, 1...16) ?? 2
        threads = try Self.threads(environment)
        localInFlight = try Self.integer("MAKEGOOD_LOCAL_IN_FLIGHT", environment, 1...10_000) ?? 512
        appleInFlight = try Self.integer("MAKEGOOD_APPLE_IN_FLIGHT", environment, 1...10_000) ?? 64
        drainDelay = .seconds(try Self.integer("MAKEGOOD_DRAIN_DELAY_SECONDS", environment, 0...300) ?? 5)
        queuePrefix = environment["MAKEGOOD_QUEUE_PREFIX"] ?? "makegood"
        rolePrefix = try Self.word("MAKEGOOD_ROLE_PREFIX", environment) ?? "makegood"
        timeScale = try Self.factor("MAKEGOOD_TIME_SCALE", environment) ?? 1
        waitingLimit = .seconds(try Self.integer("MAKEGOOD_WAITING_LIMIT_SECONDS", environment, 60...604_800) ?? 3600)
        logLevel = try Self.word("MAKEGOOD_LOG_LEVEL", environment, of: Logger.Level.self) ?? .info
        logFormat = try Self.word("MAKEGOOD_LOG_FORMAT", environment, of: LogFormat.self) ?? .text
    }

    /// App receipts of years of renewals take 2 MiB and more. The same stands in deploy/gateway, deploy/compose and
    /// deploy/kubernetes; `deploy/check gateway` compares them.
    package static let bodyBytesMaxDefault = 8_388_608

    /// Two threads, beside those of database and broker, keep two cores busy. An operator who has more cores starts
    /// more processes.
    package static let threadsDefault = 2

    /// Reads this setting alone, because it is needed before anything else.
    package static func threads(
        _ environment: [String: String] = ProcessInfo.processInfo.environment
    ) throws(ConfigurationError) -> Int {
        try integer("MAKEGOOD_THREADS", environment, 1...64) ?? threadsDefault
    }

    /// The database's address, for a process that needs one.
    package func requiredPostgresURL() throws(ConfigurationError) -> String {
        try Self.required(postgresURL, "MAKEGOOD_POSTGRES_URL")
    }

    /// The broker's address, for a process that needs one.
    package func requiredAMQPURL() throws(ConfigurationError) -> String {
        try Self.required(amqpURL, "MAKEGOOD_AMQP_URL")
    }

    /// Whether ingest's own port shows metrics and all that `/health/ready` knows: only where nobody from outside can
    /// ask.
    package var showsInside: Bool { Self.isLoopback(httpHost) }

    /// `localhost`, `::1` and 127.0.0.0/8 (RFC 6761, RFC 4291, RFC 1122). A name that merely begins so is none of
    /// them.
    package static func isLoopback(_ host: String) -> Bool {
        let host = host.lowercased()
        if host == "localhost" || host == "::1" || host == "[::1]" { return true }
        let parts = host.split(separator: ".", omittingEmptySubsequences: false)
        // Some resolvers read leading zeros as octal, so such an address is not accepted.
        return parts.count == 4 && parts[0] == "127"
            && parts.allSatisfy { part in UInt8(part).map { String($0) == part } ?? false }
    }

    package func loadConfiguration() throws(ConfigurationError) -> Configuration {
        guard let configurationPath else {
            throw ConfigurationError(key: "MAKEGOOD_CONFIG", problem: "is not set")
        }
        return try Configuration.load(configurationPath)
    }

    /// The variable, or the content of the file that the variable with `_FILE` names, without its last line break. A
    /// password in a file stands neither in a unit, nor in a manifest, nor in the output of `docker inspect`.
    private static func secret(_ key: String, _ environment: [String: String]) throws(ConfigurationError) -> String? {
        guard let path = environment["\(key)_FILE"] else { return environment[key] }
        guard environment[key] == nil else {
            throw ConfigurationError(key: key, problem: "is set, and \(key)_FILE too")
        }
        guard let data = FileManager.default.contents(atPath: path),
            let text = String(data: data, encoding: .utf8)?.trimmingCharacters(in: .newlines), !text.isEmpty
        else {
            throw ConfigurationError(key: "\(key)_FILE", problem: "names no file that can be read, or an empty one")
        }
        return text
    }

    private static func required(_ value: String, _ key: String) throws(ConfigurationError) -> String {
        guard !value.isEmpty else {
            throw ConfigurationError(key: key, problem: "is not set (\(variables[key] ?? ""))")
        }
        return value
    }

    private static func integer(
        _ key: String, _ environment: [String: String], _ range: ClosedRange<Int>
    ) throws(ConfigurationError) -> Int? {
        guard let text = environment[key] else { return nil }
        guard let value = Int(text), range.contains(value) else {
            throw ConfigurationError(
                key: key, problem: "must be a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return value
    }

    private static func boolean(_ key: String, _ environment: [String: String]) throws(ConfigurationError) -> Bool? {
        guard let text = environment[key] else { return nil }
        guard let value = Bool(text) else { throw ConfigurationError(key: key, problem: "must be true or false") }
        return value
    }

    /// A name that SQL takes without quotes, with room for a suffix below PostgreSQL's 63 bytes.
    private static func word(_ key: String, _ environment: [String: String]) throws(ConfigurationError) -> String? {
        guard let text = environment[key] else { return nil }
        guard text.wholeMatch(of: /[a-z][a-z0-9_]{0,39}/) != nil else {
            throw ConfigurationError(
                key: key, problem: "must be 1 to 40 lower-case letters, digits and _, beginning with a letter")
        }
        return text
    }

    private static func factor(_ key: String, _ environment: [String: String]) throws(ConfigurationError) -> Double? {
        guard let text = environment[key] else { return nil }
        guard let value = Double(text), value > 0, value <= 1 else {
            throw ConfigurationError(key: key, problem: "must be a number above 0, at most 1")
        }
        return value
    }

    /// A value of a closed list.
    private static func word<Word: RawRepresentable & CaseIterable>(
        _ key: String, _ environment: [String: String], of words: Word.Type
    ) throws(ConfigurationError) -> Word? where Word.RawValue == String {
        guard let text = environment[key] else { return nil }
        guard let value = Word(rawValue: text) else {
            throw ConfigurationError(
                key: key, problem: "must be one of \(Word.allCases.map(\.rawValue).joined(separator: ", "))")
        }
        return value
    }
}

extension Settings: CustomStringConvertible, CustomReflectable {
    /// Without the two addresses, which hold passwords.
    package var description: String { "settings for \(httpHost):\(httpPort), queues \(queuePrefix)" }
    package var customMirror: Mirror { Mirror(self, children: ["description": description]) }
}
