import ArgumentParser
import Commands
import Foundation
import Ledger
import Support

/// `makegood sweep`: has Apple asked, before it is due, for what nobody told.
struct SweepCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sweep", abstract: "Have Apple asked for what nobody told of, before it is due.",
        discussion: """
            The commands make rows due; the workers ask Apple within seconds. v_sweeps shows how far they are, and \
            v_nets what they caught.
            """,
        subcommands: [Notifications.self, Customers.self])

    struct Notifications: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Have all notifications since a time asked for, also those that Apple believes to have arrived.",
            discussion: """
                Use it after a restored backup, or where another program answered in the place of ingest. Apple remembers \
                180 days in production and 30 in the sandbox. What is stored already stays as it is. As support. Audited, \
                and safe to repeat.
                """)

        @Option(help: "The app.")
        var app: String
        @Option(help: "Only since then, for example 2026-01-31T00:00:00Z. Default: as long as Apple remembers.")
        var since: String?

        func validate() throws { _ = try start }

        private var start: Date? {
            get throws {
                guard let since else { return nil }
                guard let date = try? Date(since, strategy: .iso8601) else {
                    throw ValidationError("--since must be a time such as 2026-01-31T00:00:00Z")
                }
                return date
            }
        }

        func run() async throws {
            let since = try start
            let days = try await Connections.withDatabase("sweep") { database in
                try await Repairs(database: database, actor: Connections.actor).askNotificationHistory(
                    app, since: since)
            }
            guard days > 0 else {
                throw ValidationError("no worker asks Apple about \(app): it needs serverApi credentials and a worker")
            }
            print("\(days) days of notifications are asked for")
        }
    }

    struct Customers: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Have the purchases of one of Apple's customers asked for.",
            discussion: """
                Use it where a user says that a purchase is missing. The purchases found are judged as posted by nobody. \
                As support. Audited, and safe to repeat.
                """)

        @Option(help: "The app.")
        var app: String
        @Option(help: "A transaction id of the customer's, or the id of a subscription's first transaction.")
        var customer: String

        func run() async throws {
            let count = try await Connections.withDatabase("sweep") { database in
                try await Repairs(database: database, actor: Connections.actor).askCustomer(app, purchase: customer)
            }
            guard count > 0 else { throw ValidationError("no purchase of \(app) has the id \(customer)") }
            print("Apple is asked for the purchases of this customer")
        }
    }
}
