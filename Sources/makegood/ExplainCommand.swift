import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Settings
import Support

struct ExplainCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "explain",
        abstract:
            "Tell the timeline of a receipt, a transaction or an order: what happened, where it stands, what is next.",
        discussion: """
            From stored rows alone, also on a standby. Apple is then asked soon for all purchases of the customer. All \
            times are UTC. Where users are protected, their ids are shown if MAKEGOOD_CONFIG names the file that the \
            services use, else the keys that stand in the tables. \
            Exit code 0: it was found; 1: nothing has this id.
            """)

    @Argument(help: "A receipt's or an order's UUID, or Apple's transaction id.")
    var id: String
    @Flag(help: "Print JSON.")
    var json = false

    func run() async throws {
        let settings = try Settings()
        let keys = try settings.configurationPath == nil ? nil : settings.loadConfiguration().userKeys
        let timeline = try await Connections.withDatabase("explain", isReadOnly: true) { database in
            try await Explainer(database: database, keys: keys).timeline(ofAny: id, for: .people)
        }
        guard let timeline else {
            Terminal.tell("nothing has the id \(id)")
            throw ExitCode(1)
        }
        if json {
            Terminal.show(timeline.json.bytes)
        } else {
            Terminal.show(timeline.text)
        }
        // Apple is asked soon for the customer's history. On a standby nobody can write that down.
        _ = try? await Connections.withDatabase("explain", patience: .seconds(5)) { database in
            try await database.run(
                Statements.wantLookedUp, (appID: timeline.appID, subject: timeline.subject))
        }
    }
}
