import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Purchases
import Support

/// `makegood differences`: what Apple's books and ours do not have in common, and a person's closing of it.
struct DifferencesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "differences",
        abstract: "See the open differences between Apple's books and ours, and close what is explained.",
        discussion: """
            Most differences heal by themselves. Those that heal by a person stay open until somebody closes them here.
            """,
        subcommands: [List.self, Close.self], defaultSubcommand: List.self)

    struct List: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "List the open differences, the oldest first.",
            discussion: "makegood explain SUBJECT tells what is known of a transaction. As support; read-only.")

        @Option(help: "Only this app.")
        var app: String?
        @Flag(help: "Print JSON.")
        var json = false

        func run() async throws {
            let differences = try await Connections.withDatabase("differences", isReadOnly: true) { database in
                try await Repairs(database: database, actor: Connections.actor).openDifferences(app)
            }
            let lines = differences.map { difference in
                [
                    "foundAt": difference.foundAt.rfc3339, "seenAt": difference.seenAt.rfc3339,
                    "category": difference.category, "subject": difference.subject, "app": difference.appID,
                    "environment": difference.environment, "net": difference.net, "healsBy": difference.healsBy,
                    "details": difference.details,
                ]
            }
            if json { return try JSON.print(lines) }
            let names = ["foundAt", "category", "subject", "app", "environment", "net", "healsBy", "details"]
            for line in lines { print(names.map { line[$0] ?? "-" }.joined(separator: "  ")) }
            if lines.isEmpty { print("no difference is open") }
            if lines.count == Statements.listedDifferencesMax { print("… and more") }
        }
    }

    struct Close: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Close a difference that a person has explained.",
            discussion: """
                The difference stays closed, also if a later look finds it again. The ledger stays as it is. As support. \
                Audited, and safe to repeat.
                Exit code 0: it is closed, or has healed; 1: there is no such difference.
                """)

        @Argument(
            help: ArgumentHelp(
                "One of \(Difference.Category.allCases.map(\.rawValue).joined(separator: ", ")).",
                valueName: "category"))
        var category: Difference.Category
        @Argument(help: "The transaction's id, or the chain's, as `makegood differences` prints it.")
        var subject: String
        @Option(help: "What explains the difference, for the audit.")
        var note: String

        func validate() throws {
            guard (1...500).contains(note.trimmingCharacters(in: .whitespacesAndNewlines).count) else {
                throw ValidationError("--note must have 1 to 500 characters")
            }
        }

        func run() async throws {
            let standing = try await Connections.withDatabase("differences") { database in
                try await Repairs(database: database, actor: Connections.actor)
                    .closeDifference(category, subject, note: note)
            }
            guard let standing else {
                Terminal.tell("there is no difference \(category.rawValue) of \(subject): see `makegood differences`")
                throw ExitCode(1)
            }
            switch standing.word {
            case .closed: print("closed")
            case .wasClosed: print("closed already" + (standing.endedBy.map { ", by \($0)" } ?? ""))
            case .healed: print("it has healed, so nothing is left to close")
            }
        }
    }
}

extension Difference.Category: ExpressibleByArgument {}
