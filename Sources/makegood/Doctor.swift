import AppStore
import Commands
import Encoding
import Foundation
import Intake
import Ledger
import Postgres
import Purchases
import RabbitMQ
import Service
import Settings

/// The result of one check. Never holds a secret: errors name keys, not values.
struct Diagnosis: Encodable, Equatable {
    enum Verdict: String, Encodable {
        case ok
        /// It works, but not for ever or not safely.
        case warn
        /// It will not work.
        case fail
    }

    let check: String
    let verdict: Verdict
    let found: String
    /// What a person should do; nil: nothing.
    let toDo: String?

    static func ok(_ check: String, _ found: String) -> Diagnosis {
        Diagnosis(check: check, verdict: .ok, found: found, toDo: nil)
    }

    static func warn(_ check: String, _ found: String, _ toDo: String) -> Diagnosis {
        Diagnosis(check: check, verdict: .warn, found: found, toDo: toDo)
    }

    static func fail(_ check: String, _ found: String, _ toDo: String) -> Diagnosis {
        Diagnosis(check: check, verdict: .fail, found: found, toDo: toDo)
    }
}

/// The checks for an operator's first hour, in the order in which things would fail.
struct Doctor {
    /// Above this difference some of a gateway's short-lived tokens and Apple's freshly signed data are judged wrongly.
    private static let clockWarning: Duration = .seconds(2)
    /// Above this difference, the leeway of tokens, every user is refused.
    private static let clockFailure: Duration = .seconds(30)
    private static let expiryWarning: Duration = .seconds(90 * 86_400)
    private static let keyWarning: Duration = .seconds(30 * 86_400)

    func examine() async -> [Diagnosis] {
        var findings = [Self.libPQ(.loaded), Self.libRabbitMQ(.loaded)]
        findings += DebianPackage.required.compactMap(\.finding)
        let settings: Settings
        do {
            settings = try Settings()
            findings.append(.ok("settings", "readable"))
        } catch {
            return findings + [
                .fail("settings", "\(error)", "mend the environment; deploy/configuration.md lists every variable")
            ]
        }
        if let limit = try? OpenFiles.limit(
            raisedTo: DescriptorShares.most(settings, hasClients: true, callsApple: true))
        {
            findings.append(Self.files(limit, settings))
        }
        findings += Self.metrics(settings)
        findings += await configuration(settings)
        findings += await database(settings)
        findings += await broker()
        return findings
    }

    // MARK: Libraries

    static func libPQ(_ version: LibPQVersion) -> Diagnosis {
        do {
            try version.check()
            return .ok("libpq", "\(version)")
        } catch {
            return .fail("libpq", "\(version)", "\(error)")
        }
    }

    static func libRabbitMQ(_ version: LibRabbitMQVersion) -> Diagnosis {
        do {
            try version.check()
            return .ok("librabbitmq", "\(version)")
        } catch {
            return .fail("librabbitmq", "\(version)", "\(error)")
        }
    }

    // MARK: The machine

    /// Checks the limit on open files of this shell for a process of all roles; a service manager may set another one.
    static func files(_ limit: Int, _ settings: Settings) -> Diagnosis {
        do throws(ConfigurationError) {
            let shares = try DescriptorShares(files: limit, settings, hasClients: true, callsApple: true)
            return .ok(
                "files",
                "\(limit) at once, \(shares.clients.counted("client")) and "
                    + shares.appleInFlight.counted("call to Apple", "calls to Apple"))
        } catch {
            return .fail("files", "\(limit) at once", "\(error)")
        }
    }

    static func metrics(_ settings: Settings) -> [Diagnosis] {
        guard settings.operationsPort == nil, !settings.showsInside else { return [] }
        return [
            .warn(
                "metrics", "not served: ingest listens on \(settings.httpHost)",
                "set MAKEGOOD_OPERATIONS_PORT, which must not be reached from outside")
        ]
    }

    // MARK: Configuration

    private func configuration(_ settings: Settings) async -> [Diagnosis] {
        let configuration: Configuration
        do {
            configuration = try settings.loadConfiguration()
            if let section = configuration.gatewayJWT { _ = try await GatewayVerifier(section) }
        } catch {
            let toDo =
                settings.configurationPath == nil
                ? "set MAKEGOOD_CONFIG to the file with the apps and keys" : "mend the file that MAKEGOOD_CONFIG names"
            return [.fail("configuration", "\(error)", toDo)]
        }
        let apps = configuration.apps.values.sorted { $0.id < $1.id }
        let found =
            "\(apps.count.counted("app")), \(configuration.access.count.counted("key")), "
            + "sha256 \(configuration.hash.prefix(12))"
        let mayPost =
            configuration.access.contains { $0.scopes.contains(.intake) && !$0.hasEnded(at: Date()) }
            || configuration.gatewayJWT?.scopes.contains(.intake) == true
        var findings: [Diagnosis] = [
            mayPost
                ? .ok("configuration", found)
                : .warn("configuration", found, "nobody may post: give a key or the gateway the scope intake")
        ]
        findings += Self.keys(configuration.access, now: Date())
        findings += Self.access(to: settings.allFiles(configuration))
        for app in apps where app.policy.products.isEmpty {
            findings.append(
                .warn("products", "\(app.id) has none", "its purchases will be held until its products are listed"))
        }
        findings += apps.compactMap(Self.sweeps)
        findings += apps.flatMap(Self.endpoints)
        var roots = apps.flatMap { app in app.rootCertificates.map { (of: "app \(app.id)", der: $0) } }
        if let file = (try? BrokerConfiguration(url: settings.amqpURL))?.tls?.authoritiesFile,
            let data = FileManager.default.contents(atPath: file)
        {
            roots += ((try? TrustAnchors.load(pemOrDER: Array(data))) ?? []).map { (of: "the broker", der: $0) }
        }
        return findings + Self.expiry(of: roots, now: Date())
    }

    /// The warning for an app whose sweeps have no credentials; nil if the app has them, or wants no sweep.
    static func sweeps(_ app: AppConfiguration) -> Diagnosis? {
        let policy = app.policy.sweeps
        guard app.serverAPI == nil, policy.customersEvery != nil || policy.refundsEvery != nil else { return nil }
        return .warn(
            "sweeps", "\(app.id) has no serverApi: Apple is not asked for purchases and refunds that nobody told",
            "add serverApi to the app, or set sweeps: {customersEvery: off, refundsEvery: off}")
    }

    /// The warnings for endpoints of an app that get webhooks without TLS.
    static func endpoints(_ app: AppConfiguration) -> [Diagnosis] {
        app.endpoints.filter { !$0.url.isSecure }.map { endpoint in
            .warn(
                "endpoints", "\(endpoint.name) of \(app.id) gets webhooks without TLS",
                "give the endpoint an https url, if others can read on the way")
        }
    }

    /// Checks the keys by name: two keys of one name are a rotation, and the last one counts.
    static func keys(_ keys: [AccessKey], now: Date) -> [Diagnosis] {
        let toDo = "add an entry of the same name with a new key, and let the caller change"
        let ends = AccessKey.lastEnds(keys).sorted { $0.key < $1.key }
        var findings = ends.filter { $0.value < .distantFuture }.map { name, end -> Diagnosis in
            let day = end.formatted(.iso8601.year().month().day())
            if end <= now { return .warn("keys", "\(name) ended on \(day) and is refused", toDo) }
            if end <= now + Self.keyWarning.seconds { return .warn("keys", "\(name) ends on \(day)", toDo) }
            return .ok("keys", "\(name) is good until \(day)")
        }
        let endless = ends.filter { $0.value > .distantFuture }.map(\.key)
        if !endless.isEmpty {
            findings.append(
                .warn(
                    "keys", "\(endless.joined(separator: ", ")): no end", "give each an end (expires) and rotate them"))
        }
        return findings
    }

    /// Checks which files other users may read or change; each finding names the setting of the file.
    static func access(to files: [NamedFile]) -> [Diagnosis] {
        let found = files.compactMap { file -> Diagnosis? in
            switch FileAccess(to: file) {
            case .writable:
                .fail(
                    "modes", "every user of this machine may change the file of \(file.key)", "chmod o-w \(file.path)")
            case .replaceable:
                .fail(
                    "modes", "every user of this machine may replace the file of \(file.key)",
                    "chmod o-w its directory: \(file.path)")
            case .readable:
                .warn(
                    "modes", "every user of this machine may read the secret of \(file.key)", "chmod o-r \(file.path)")
            case nil: nil
            }
        }
        return found.isEmpty
            ? [.ok("modes", "\(files.count.counted("file is", "files are")) closed to other users")] : found
    }

    static func expiry(of roots: [(of: String, der: [UInt8])], now: Date) -> [Diagnosis] {
        guard !roots.isEmpty else { return [.ok("roots", "Apple's own, built in")] }
        return roots.map { root in
            guard let end = try? TrustAnchors.expiry(of: root.der) else {
                return .fail("roots", "one of \(root.of) is no certificate", "replace it")
            }
            let day = end.formatted(.iso8601.year().month().day())
            if end <= now { return .fail("roots", "one of \(root.of) expired on \(day)", "replace it") }
            if end <= now + Self.expiryWarning.seconds {
                return .warn("roots", "one of \(root.of) expires on \(day)", "add its successor now")
            }
            return .ok("roots", "one of \(root.of) is good until \(day)")
        }
    }

    // MARK: Database

    private struct Server: Sendable {
        let version: String
        let isReadOnly: Bool
        let now: Date
        /// Whether `now()` and `clock_timestamp()` are PostgreSQL's own, and no functions that stand in their way.
        let hasOwnClock: Bool
    }

    private static let askServer = Statement<Void, Server>(
        "doctor.server",
        """
        select current_setting('server_version'),
          pg_is_in_recovery() or current_setting('transaction_read_only')::bool, clock_timestamp(),
          to_regprocedure('now()') = 'pg_catalog.now()'::regprocedure
            and to_regprocedure('clock_timestamp()') = 'pg_catalog.clock_timestamp()'::regprocedure
        """,
        read: { row throws(PostgresError) in
            Server(
                version: try row.text(0), isReadOnly: try row.bool(1), now: try row.date(2),
                hasOwnClock: try row.bool(3))
        })

    /// The version of the C library that made the database's locale, and the present version. Null: the locale has
    /// none.
    private static let askCollation = Statement<Void, (recorded: String?, actual: String?)>(
        "doctor.collation",
        """
        select datcollversion, pg_database_collation_actual_version(oid) from pg_database
        where datname = current_database()
        """,
        read: { row throws(PostgresError) in (recorded: try row.optionalText(0), actual: try row.optionalText(1)) })

    /// Compares the two versions; nil if one is missing.
    static func collation(recorded: String?, actual: String?) -> Diagnosis? {
        guard let recorded, let actual else { return nil }
        guard recorded != actual else { return .ok("collation", "as the C library sorts, version \(actual)") }
        return .warn(
            "collation", "the database was made where the C library sorted by version \(recorded); it is \(actual) now",
            "Makegood's indexes compare by bytes and are right; for others REINDEX DATABASE, then ALTER DATABASE … REFRESH "
                + "COLLATION VERSION")
    }

    /// The commit writes a record to the write-ahead log: it needs the disk, and changes no table.
    private static let writeNothing = Statement<Void, Void>("doctor.write", "select pg_current_xact_id()")

    private func database(_ settings: Settings) async -> [Diagnosis] {
        let logger = Connections.logger(settings, isCommand: true)
        let configuration: PostgresConfiguration
        do {
            configuration = try Connections.postgres(settings, "doctor")
        } catch {
            return [.fail("database", "\(error)", "set MAKEGOOD_POSTGRES_URL")]
        }
        let migrator = Migrator(configuration, migrations: Schema.migrations, logger: logger)
        var schema = Diagnosis.ok("schema", "\(Schema.migrations.last?.fileName ?? "none")")
        do throws(MigrationError) {
            try await migrator.check()
        } catch {
            if case .database(let cause) = error {
                return [
                    .fail(
                        "database", "\(cause)",
                        cause.isRetryable
                            ? "start it, or mend host and port in MAKEGOOD_POSTGRES_URL; a read-only one is none"
                            : "mend user, password, database or TLS in MAKEGOOD_POSTGRES_URL")
                ]
            }
            schema = .fail("schema", "\(error)", Self.toDo(error))
        }
        let database = Database(configuration, connections: 1, logger: logger)
        var findings = await server(database)
        if schema.verdict == .ok, let ours = try? settings.loadConfiguration() {
            findings.append(await Self.agreement(of: ours, database))
            findings += await Self.terms(of: ours, database)
            // Only workers, support and dashboards may read the health of notifications. The doctor of another role is
            // silent about it.
            if let health = try? await database.run(Statements.notificationHealth) {
                findings += Self.notifications(health, of: Set(ours.apps.keys))
            }
        }
        await database.close()
        return findings.first?.verdict == .fail ? findings : [findings[0], schema] + findings.dropFirst()
    }

    /// Checks the settings on which all services of a database must agree.
    private static func agreement(of configuration: Configuration, _ database: Database) async -> Diagnosis {
        do {
            // Without this row no service has started yet: the first one will decide.
            if try await database.run(Statements.userProtection).first != nil {
                try await UserProtection.check(configuration.userKeys, in: database)
            }
            try await DatabasePurpose.check(configuration, in: database)
            return .ok("agreement", "the configuration and the database agree")
        } catch let error as ConfigurationError {
            return .fail("agreement", "\(error)", "use the configuration of this database, or another database")
        } catch {
            return .fail("agreement", "\(error)", "look at the log of the database, and at the role's rights")
        }
    }

    /// Checks what the catalogues in force say for entitlements. No finding where the database does not say it.
    private static func terms(of configuration: Configuration, _ database: Database) async -> [Diagnosis] {
        let editor = CatalogueEditor(database: database, actor: Connections.actor)
        var findings: [Diagnosis] = []
        for app in configuration.apps.values.sorted(by: { $0.id < $1.id }) {
            guard let applied = try? await editor.current(app.id) else { continue }
            if let finding = terms(applied.completed(by: app.policy.catalogue), of: app.id) { findings.append(finding) }
        }
        return findings
    }

    /// Names each subscription without group or level, and each non-renewing product without a duration; nil: there is
    /// none.
    static func terms(_ catalogue: Catalogue, of app: String) -> Diagnosis? {
        let lacking = catalogue.products.values.sorted { $0.id < $1.id }.compactMap { product in
            product.lackingTerm.map { "\(product.id) has no \($0)" }
        }
        guard !lacking.isEmpty else { return nil }
        return .warn(
            "entitlements", "\(app): \(lacking.joined(separator: ", "))",
            "say it with the product: without group and level no subscription outranks another, and without a duration a "
                + "non-renewing purchase never ends")
    }

    private static func toDo(_ error: MigrationError) -> String {
        switch error {
        case .pending: "makegood migrate"
        case .tooNew: "start a newer version of this program"
        case .changed, .unknown, .misnumbered, .leftTransaction, .failed, .database:
            "use the database of this program, restored from a backup if it was changed by hand"
        }
    }

    private func server(_ database: Database) async -> [Diagnosis] {
        do throws(PostgresError) {
            // The first statement opens the connection, so it is not timed.
            try await database.run(Self.askServer)
            let before = Date()
            guard let server = try await database.run(Self.askServer).first else {
                return [.fail("database", "does not answer", "look at its log")]
            }
            let middle = before.addingTimeInterval(Date().timeIntervalSince(before) / 2)
            let found = [
                .ok("database", "PostgreSQL \(server.version)"), await writable(server, database),
                Self.clock(server.now.timeIntervalSince(middle), isOwn: server.hasOwnClock),
            ]
            // A server before 15 records no version.
            guard let collation = try? await database.run(Self.askCollation).first else { return found }
            return found + (Self.collation(recorded: collation.recorded, actual: collation.actual).map { [$0] } ?? [])
        } catch {
            return [.fail("database", "\(error)", "look at its log")]
        }
    }

    private func writable(_ server: Server, _ database: Database) async -> Diagnosis {
        let toDo = "connect to the primary (several hosts in the URL are allowed)"
        guard !server.isReadOnly else { return .fail("writable", "the server is read-only", toDo) }
        do throws(PostgresError) {
            try await database.run(Self.writeNothing)
            return .ok("writable", "yes")
        } catch {
            return .fail("writable", "\(error)", "look at the server's disk and its log")
        }
    }

    /// - Parameters:
    ///   - ahead: seconds by which the database's clock is ahead of this machine's.
    ///   - isOwn: whether the database's clock is PostgreSQL's own.
    static func clock(_ ahead: Double, isOwn: Bool = true) -> Diagnosis {
        guard isOwn else {
            return .fail(
                "clock", "other functions stand before PostgreSQL's own now() and clock_timestamp()",
                "this is a database of makegood-lab: use another one, or mend the search_path of the database")
        }
        let milliseconds = Int((abs(ahead) * 1000).rounded())
        let found = "the database is \(milliseconds) ms \(ahead < 0 ? "behind" : "ahead of") this machine"
        let toDo = "let one time service set both clocks"
        if abs(ahead) > clockFailure.seconds { return .fail("clock", found, toDo) }
        if abs(ahead) > clockWarning.seconds { return .warn("clock", found, toDo) }
        return .ok("clock", found)
    }

    // MARK: Broker

    private func broker() async -> [Diagnosis] {
        let depths: [(String, Int)]
        do {
            depths = try await Connections.queueDepths()
        } catch RabbitMQError.topology(let queue) {
            return [
                .ok("broker", "reachable"),
                .warn(
                    "queues", "\(queue) is not there",
                    "a service makes it when it starts, if its user has the right to configure it; else run makegood "
                        + "queue declare as a user who has"),
            ]
        } catch let error as RabbitMQError {
            return [
                .fail(
                    "broker", "\(error)",
                    error.isMisconfiguration
                        ? "mend MAKEGOOD_AMQP_URL or the broker's permissions"
                        : "start it, or mend host and port in MAKEGOOD_AMQP_URL")
            ]
        } catch {
            return [.fail("broker", "\(error)", "set MAKEGOOD_AMQP_URL")]
        }
        let ready = depths.dropLast().reduce(0) { $0 + $1.1 }
        let dead = depths.last?.1 ?? 0
        return [
            .ok("broker", "reachable"), .ok("queues", "\(depths.count) there, \(ready.counted("message")) ready"),
            dead == 0
                ? .ok("dead letters", "none")
                : .warn("dead letters", "\(dead)", "somebody publishes to our queues; look at them, then purge"),
        ]
    }
}

extension Duration {
    fileprivate var seconds: Double { self / .seconds(1) }
}
