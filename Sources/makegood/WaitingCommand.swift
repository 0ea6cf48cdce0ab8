import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Purchases
import Settings
import Support

extension SupportCommand {
    struct Waiting: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Which receipts are held or parked: id, user, reason, age, purchases; the oldest first.",
            discussion: """
                makegood explain ID tells all of one of them, makegood queue redrive ID has it judged again now. With \
                MAKEGOOD_CONFIG the ids of protected users are shown. Read-only.
                """)

        @Option(help: "Only this app.")
        var app: String?
        @Option(help: "parked or held; both when left out.")
        var state: String?
        @Option(help: "Only receipts with this reason, for example product_unknown.")
        var reason: String?
        @Option(help: "At most so many.")
        var limit = 100
        @Option(help: "Go on after a page: the `next` that it ended with.")
        var after: String?
        @Flag(help: "Print JSON.")
        var json = false

        func validate() throws {
            guard state.map({ [ReceiptState.parked, .held].map(\.rawValue).contains($0) }) ?? true else {
                throw ValidationError("--state must be parked or held")
            }
            guard (1...10_000).contains(limit) else { throw ValidationError("--limit must be 1 to 10000") }
            guard after.map({ ListCursor($0) != nil }) ?? true else {
                throw ValidationError("--after must be the next of an earlier page")
            }
        }

        func run() async throws {
            let settings = try Settings()
            let keys = try settings.configurationPath == nil ? nil : settings.loadConfiguration().userKeys
            let question = Statements.WaitingQuestion(
                apps: app.map { [$0] }, state: state.flatMap(ReceiptState.init(rawValue:)), reason: reason,
                after: after.flatMap(ListCursor.init) ?? .oldest, limit: limit)
            let list = try await Connections.withDatabase("support", isReadOnly: true) { database in
                try await WaitingList(of: question, keys: keys, in: database)
            }
            if json { return Terminal.show(list.json.bytes) }
            for line in list.lines { Terminal.show(line) }
            if list.receipts.isEmpty { Terminal.show("nothing waits") }
            if let next = list.next { Terminal.show("… and more: --after \(next.text)") }
        }
    }
}
