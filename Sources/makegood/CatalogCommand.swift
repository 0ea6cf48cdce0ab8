import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Settings

struct CatalogCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "catalog",
        abstract: "Say what is sold, for which goods and when; orders freeze it.",
        discussion: """
            Needs MAKEGOOD_CONFIG, the file that the services use. Products of that file stand in the catalogue until \
            a catalogue names them.
            """,
        subcommands: [Apply.self, Show.self])

    struct Apply: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Put a catalogue in force: checked whole, taken or refused whole, audited.",
            discussion: """
                The file holds each of its apps' products whole; apps that it does not name stay as they are. Prints a \
                line for each change. A version that has begun cannot change, for purchases of its time are made good \
                by it: end it (`until`) and add another that begins later. Services follow within a second or two.
                """)

        @Argument(help: "The catalogue, YAML or JSON; - is standard input.")
        var file: String
        @Flag(help: "Only print what would change.")
        var dryRun = false

        func run() async throws {
            let configuration = try Settings().loadConfiguration()
            let catalogues = try CatalogueFile.parse(file: try text(), name: InputFile(path: file).name)
            for id in catalogues.keys.sorted() where configuration.apps[id] == nil {
                throw ConfigurationError(key: "apps", problem: "names an app that MAKEGOOD_CONFIG does not have: \(id)")
            }
            try await Connections.withDatabase("catalog") { database in
                let editor = CatalogueEditor(database: database, actor: Connections.actor)
                // The command checks all plans before it changes the first.
                var plans: [CatalogueEditor.Plan] = []
                for (id, catalogue) in catalogues.sorted(by: { $0.key < $1.key }) {
                    plans.append(try await editor.plan(catalogue, for: id, at: Date()))
                }
                for plan in plans {
                    for line in plan.changes { print("\(plan.appID): \(line)") }
                    if plan.changes.isEmpty {
                        print("\(plan.appID): nothing to do")
                    } else if dryRun {
                        print("\(plan.appID): \(plan.changes.count.counted("change")), not applied")
                    } else {
                        try await editor.apply(plan)
                        print(
                            "\(plan.appID): \(plan.changes.count.counted("change")) applied, revision \(plan.revision)")
                    }
                }
            }
        }

        private func text() throws -> String {
            guard file != "-" else {
                return String(decoding: FileHandle.standardInput.readDataToEndOfFile(), as: UTF8.self)
            }
            guard let data = FileManager.default.contents(atPath: file) else {
                throw ValidationError("\(file) cannot be read")
            }
            return String(decoding: data, as: UTF8.self)
        }
    }

    struct Show: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Print what an app sells: every item with its versions.",
            discussion: "The JSON is a file for `catalog apply` once it stands in a list of `apps`.")

        @Option(help: "The app.")
        var app: String
        @Flag(help: "Print JSON.")
        var json = false

        func run() async throws {
            let configuration = try Settings().loadConfiguration()
            guard let settings = configuration.apps[app] else {
                throw ValidationError("--app names no app of the file")
            }
            let applied = try await Connections.withDatabase("catalog") { database in
                try await CatalogueEditor(database: database, actor: Connections.actor).current(app)
            }
            let catalogue = applied.completed(by: settings.policy.catalogue)
            if json {
                print(CatalogueFile.document(catalogue).text)
                return
            }
            print(applied.revision.map { "revision \($0)" } ?? "no catalogue applied: the configuration's products")
            for product in catalogue.products.values.sorted(by: { $0.id < $1.id }) {
                let origin = applied.products[product.id] == nil ? ", of the configuration" : ""
                let terms = product.terms.text.map { ", \($0)" } ?? ""
                print(
                    "\(product.id): \(product.kind.settingName)\(terms), default \(product.defaultItem ?? "none")\(origin)"
                )
                for item in product.items.values.sorted(by: { $0.id < $1.id }) {
                    print("  \(item.id)\(item.limits.areNone ? "" : ": \(item.limits.text)")")
                    for version in item.versions {
                        let promotion = version.promotion.map { ", promotion \($0)" } ?? ""
                        let from = version.from?.formatted(.iso8601) ?? "ever"
                        print("    from \(from)\(promotion): \(version.text)")
                    }
                }
            }
        }
    }
}
