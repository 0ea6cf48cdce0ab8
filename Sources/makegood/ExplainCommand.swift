import ArgumentParser
import Commands
import Encoding
import Ledger
import Settings
import Foundation
import Postgres
import Support

struct ExplainCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "explain",
        abstract:
            "Tell the story of a receipt, a transaction or an order: what happened, where it stands, what is next.",
        discussion: """
            From stored rows alone, read-only, also on a standby. All times are UTC. Where users are protected, their \
            ids are shown if MAKEGOOD_CONFIG names the file that the services use, else the keys that stand in the tables. \
            Exit code 0: it was found; 1: nothing has this id.
            """)

    @Argument(help: "A receipt's or an order's UUID, or Apple's transaction id.")
    var id: String
    @Flag(help: "Print JSON.")
    var json = false

    func run() async throws {
        let settings = try Settings()
        let keys = try settings.configurationPath == nil ? nil : settings.loadConfiguration().userKeys
        let story = try await Connections.withDatabase("explain", isReadOnly: true) { database in
            try await Explainer(database: database, keys: keys).story(ofAny: id, for: .people)
        }
        guard let story else {
            Terminal.tell("nothing has the id \(id)")
            throw ExitCode(1)
        }
        if json {
            Terminal.show(story.json.bytes)
        } else {
            Terminal.show(story.text)
        }
    }
}
