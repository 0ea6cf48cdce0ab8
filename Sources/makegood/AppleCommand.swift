import AppStore
import AppleGateway
import ArgumentParser
import AsyncHTTPClient
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Settings

struct AppleCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "apple", abstract: "Ask Apple about an app, with the app's own credentials.",
        subcommands: [TestNotification.self])

    struct TestNotification: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            commandName: "test-notification",
            abstract: "Have Apple send a test notification, and wait until it is here.",
            discussion: """
                Needs MAKEGOOD_CONFIG with the app's serverApi credentials. With MAKEGOOD_POSTGRES_URL the command waits \
                until the notification is stored; without it, until Apple says what became of it. App Store Connect needs \
                the URL https://HOST/v1/apple/notifications (version 2), for production and for the sandbox. Prints one \
                line for each step. Exit code 0: it arrived; 1: it did not; 2: the app or its credentials are of no use.
                """)

        @Option(help: "The app.")
        var app: String
        @Option(help: "Production or Sandbox.")
        var environment = StoreEnvironment.production.rawValue
        @Option(help: "How many seconds to wait.")
        var wait = 60
        @Flag(help: "Print JSON.")
        var json = false

        func validate() throws {
            guard [StoreEnvironment.production, .sandbox].map(\.rawValue).contains(environment) else {
                throw ValidationError("--environment must be Production or Sandbox")
            }
            guard (1...3600).contains(wait) else { throw ValidationError("--wait must be 1 to 3600") }
        }

        func run() async throws {
            let settings = try Settings()
            let configuration = try settings.loadConfiguration()
            guard let section = configuration.apps[app] else {
                throw ValidationError("--app names no app of the file")
            }
            guard section.serverAPI != nil else { throw ValidationError("\(app) has no serverApi credentials") }
            let http = HTTPClient(eventLoopGroupProvider: .singleton, configuration: .apple(inFlight: 1))
            do {
                guard let api = try await AppServices(section, http: http).serverAPI else {
                    throw ValidationError("\(app) has no serverApi credentials")
                }
                let report = try await report(api, hasDatabase: !settings.postgresURL.isEmpty)
                try? await http.shutdown()
                if json { try JSON.print(report) }
                if report.outcome != .arrived { throw ExitCode(1) }
            } catch {
                try? await http.shutdown()
                throw error
            }
        }

        private func report(_ api: ServerAPIClient, hasDatabase: Bool) async throws -> Report {
            let place = StoreEnvironment(rawValue: environment)
            guard hasDatabase else { return await TestNotificationRun(self, api, place, database: nil).run() }
            return try await Connections.withDatabase("apple", isReadOnly: true) { database in
                await TestNotificationRun(self, api, place, database: database).run()
            }
        }
    }

    /// The result of a test notification, as the command prints it.
    struct Report: Encodable, Sendable {
        enum Outcome: String, Encodable, Sendable {
            case arrived
            /// App Store Connect has no URL for the app.
            case noURL = "no_url"
            /// Apple did not take the request.
            case refused
            /// Apple sent the test, and got no good answer.
            case notTaken = "not_taken"
            /// Apple sent the test to another installation.
            case elsewhere
            case missing
        }

        struct Step: Encodable, Sendable {
            let step: String
            let text: String
        }

        let app: String
        let environment: String
        var outcome = Outcome.missing
        var steps: [Step] = []
    }
}

/// One test notification, from the request to its arrival.
private struct TestNotificationRun: Sendable {
    /// The time between two looks at the database.
    private static let lookInterval: Duration = .milliseconds(250)
    /// The time between two questions to Apple, which takes one in ten seconds for the sandbox.
    private var askInterval: Duration { .seconds(environment == .sandbox ? 10 : 2) }

    let api: ServerAPIClient
    let environment: StoreEnvironment
    let wait: Duration
    let database: Database?
    /// Whether each step is printed when it happens.
    let isTold: Bool
    private var report: AppleCommand.Report

    init(
        _ command: AppleCommand.TestNotification, _ api: ServerAPIClient, _ environment: StoreEnvironment,
        database: Database?
    ) {
        self.api = api
        self.environment = environment
        self.database = database
        wait = .seconds(command.wait)
        isTold = !command.json
        report = .init(app: command.app, environment: environment.rawValue)
    }

    func run() async -> AppleCommand.Report {
        var run = self
        await run.proceed()
        return run.report
    }

    private mutating func proceed() async {
        let since: Date
        let token: String
        do {
            since = try await database?.run(Self.now).first ?? .distantPast
        } catch {
            return end(.missing, "database", "the database does not answer: \(error)")
        }
        do throws(AppStoreFailure) {
            token = try await api.requestTestNotification(in: environment).value
        } catch {
            if case .api(let code, _) = error.error, code == .serverNotificationUrlNotFound {
                return end(
                    .noURL, "asked",
                    "App Store Connect has no URL: enter https://HOST/v1/apple/notifications for \(environment.rawValue)"
                )
            }
            return end(.refused, "asked", "Apple did not take the request: \(error)")
        }
        note("asked", "Apple was asked for a test notification of \(report.app) in \(environment.rawValue)")
        await follow(token, since)
    }

    private mutating func follow(_ token: String, _ since: Date) async {
        let start = ContinuousClock.now
        let place = Statements.NotificationPlace(appID: report.app, environment: environment.rawValue)
        // With a database the command asks Apple only about a test that does not come at once.
        var asked = database == nil ? nil : start
        var isTaken = false
        while ContinuousClock.now - start < wait {
            if let database,
                let came = try? await database.run(
                    Statements.arrivedNotificationTest, (place: place, since: since)
                ).first
            {
                return end(.arrived, "stored", "it is stored as notification \(came.id.text) (\(came.state))")
            }
            let now = ContinuousClock.now
            if asked.map({ now - $0 >= askInterval }) ?? true {
                asked = now
                // Apple does not know every test at once.
                let tried = try? await api.testNotification(token, in: environment).value.sendAttempts.first?.result
                switch tried {
                case .success?:
                    if !isTaken { note("sent", "Apple sent it and got a good answer") }
                    isTaken = true
                    if database == nil { return end(.arrived, nil, nil) }
                case let result?: return end(.notTaken, "sent", "Apple sent it in vain: \(result.rawValue)")
                case nil: break
                }
            }
            try? await Task.sleep(for: Self.lookInterval)
        }
        let seconds = Int(wait / .seconds(1))
        if isTaken {
            end(
                .elsewhere, "missing",
                "nothing came here within \(seconds) s: the URL in App Store Connect is of another installation")
        } else {
            end(.missing, "missing", "nothing came within \(seconds) s: is the URL in App Store Connect reachable?")
        }
    }

    private mutating func note(_ step: String, _ text: String) {
        report.steps.append(.init(step: step, text: text))
        if isTold { Terminal.show(text) }
    }

    private mutating func end(_ outcome: AppleCommand.Report.Outcome, _ step: String?, _ text: String?) {
        report.outcome = outcome
        if let step, let text { note(step, text) }
    }

    private static let now = Statement<Void, Date>(
        "apple.now", "select now()", read: { row throws(PostgresError) in try row.date(0) })
}
