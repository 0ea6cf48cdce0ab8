import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Support

/// `makegood sweep`: makes questions to Apple due before their time.
struct SweepCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sweep", abstract: "Have Apple asked for purchases that nobody told, before it is time.",
        discussion: """
            The commands make rows due; the workers ask Apple within seconds. v_sweeps shows how far the sweeps are, \
            and v_nets their catches.
            """,
        subcommands: [Notifications.self, Customers.self])

    struct Notifications: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Have all notifications since a time asked for, also those that Apple believes to have arrived.",
            discussion: """
                For use after a restored backup, or where another program answered in the place of ingest. Apple \
                remembers 180 days in production and 30 in the sandbox. Stored notifications stay as they are. As \
                support. Audited, and safe to repeat.
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
                throw ValidationError("no worker asks Apple about \(app): serverApi or a worker is missing")
            }
            print("\(days.counted("day of notifications is", "days of notifications are")) asked for")
        }
    }

    struct Customers: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Have the purchases of one of Apple's customers asked for.",
            discussion: """
                For use where a user says that a purchase is missing. Workers judge the found purchases as posted by \
                nobody. As support. Audited, and safe to repeat.
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
