import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import MovingIn
import Postgres
import Purchases
import Settings

struct ImportCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "import",
        abstract: "Bring what the system before this one has given, and to whom.",
        discussion: """
            Needs MAKEGOOD_CONFIG, the file that the services use, and works as the schema's owner, as `migrate` does. \
            FILE holds comma-separated values with a first line that names the columns, or one JSON object a line; its \
            name says which (.csv; .jsonl, .ndjson, .json), or --format. UTF-8. Case, spaces, _ and - in names do not \
            matter. Times are RFC 3339 or milliseconds since 1970. Files of any length are read in bounded memory.

            Nothing that stands here is changed: a line that contradicts it is reported as a conflict. A line that cannot \
            be read is reported with its number and field, and the others go on. The same file again changes nothing, \
            and so an import that was broken off is run again. Import owners before grants. Each import is audited.

            Exit code 0: all of it is here; 1: lines were refused or contradict; 2: the file or the \
            configuration is of no use.
            """,
        subcommands: [Grants.self, Owners.self, Tokens.self, Orders.self, Bonuses.self])

    struct Options: ParsableArguments {
        @Argument(help: "The file; - is standard input.")
        var file: String
        @Option(help: "The app.")
        var app: String
        @Option(help: "csv or jsonl, where the file's name does not say it.")
        var format: ImportFile.Format?
        @Option(help: "Production or Sandbox: of lines that do not say it themselves.")
        var environment = Transaction.production
        @Flag(help: "Print JSON: one object a line that needs to be told of, the counts last.")
        var json = false

        func validate() throws {
            guard [Transaction.production, Transaction.sandbox].contains(environment) else {
                throw ValidationError("--environment must be Production or Sandbox")
            }
        }

        /// Opens the file, and reads the app's context for its lines.
        func open(
            _ configuration: Configuration, in database: Database
        ) async throws -> (file: ImportFile, context: ImportContext) {
            guard let settings = configuration.apps[app] else {
                throw UnusableInput("--app names no app of MAKEGOOD_CONFIG")
            }
            let input = InputFile(path: file)
            guard let format = format ?? ImportFile.format(ofName: file) else {
                throw UnusableInput("\(input.name) does not say its format: give --format csv or jsonl")
            }
            let catalogue = try await CatalogueEditor(database: database, actor: Connections.actor).current(app)
                .completed(by: settings.policy.catalogue)
            return (
                ImportFile(format, try input.chunks()),
                ImportContext(
                    settings, catalogue: catalogue, keys: configuration.userKeys, environment: environment)
            )
        }
    }

    struct Writing: ParsableArguments {
        @Flag(help: "Check every line and say what would happen; write nothing.")
        var dryRun = false
    }

    struct Grants: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Purchases that were given: nothing is given for them again.",
            discussion: """
                Columns: transactionId, userId, productId, purchasedAt; optional originalTransactionId (else the \
                transaction is its own), environment. Posted here, such a purchase is `already_granted`, also under \
                another id of the same purchase. Renewals of a subscription go to the user of its latest line.
                """)

        @OptionGroup var options: Options
        @OptionGroup var writing: Writing

        func run() async throws { try await ImportCommand.run(.grants, options, writing) }
    }

    struct Owners: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Whose each subscription is: renewals and restores go to this user.",
            discussion: """
                Columns: originalTransactionId, userId; optional since (else from now on), environment.
                """)

        @OptionGroup var options: Options
        @OptionGroup var writing: Writing

        func run() async throws { try await ImportCommand.run(.owners, options, writing) }
    }

    struct Tokens: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "The appAccountTokens that the app uses for its users.",
            discussion: "Columns: token (a UUID), userId.")

        @OptionGroup var options: Options
        @OptionGroup var writing: Writing

        func run() async throws { try await ImportCommand.run(.tokens, options, writing) }
    }

    struct Orders: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Orders that still wait for their purchase.",
            discussion: """
                Columns: orderId (the purchase's appAccountToken, or the number that its clients post), userId, productId, \
                placedAt; optional item, quantity, promotion, priceMilliunits and currency, payBy, server, role, country, \
                environment. An order promises what the catalogue says of the day it was placed.
                """)

        @OptionGroup var options: Options
        @OptionGroup var writing: Writing

        func run() async throws { try await ImportCommand.run(.orders, options, writing) }
    }

    struct Bonuses: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Bonuses that were given once beside a purchase: they are not given again.",
            discussion: """
                Columns: userId, bonus (its id in the catalogue); givenAt where it is given once a month or a day.
                """)

        @OptionGroup var options: Options
        @OptionGroup var writing: Writing

        func run() async throws { try await ImportCommand.run(.bonuses, options, writing) }
    }

    fileprivate static func run(_ kind: ImportKind, _ options: Options, _ writing: Writing) async throws {
        let report = try await told(options) {
            let configuration = try Settings().loadConfiguration()
            return try await Connections.withDatabase("import", isReadOnly: writing.dryRun) { database in
                if writing.dryRun {
                    try await UserProtection.check(configuration.userKeys, in: database)
                } else {
                    // The import writes users: from here on the database names users as this configuration does.
                    try await UserProtection.agree(configuration.userKeys, in: database)
                }
                var (file, context) = try await options.open(configuration, in: database)
                return try await Importer(
                    database: database, context: context, actor: Connections.actor, isDryRun: writing.dryRun
                ).run(kind, &file) { problem in
                    let place = problem.field.map { " \($0)" } ?? ""
                    Terminal.show(
                        options.json
                            ? problem.json.text
                            : "line \(problem.line): \(problem.kind.rawValue):\(place) \(problem.text)")
                }
            }
        }
        if options.json {
            Terminal.show(report.json.text)
        } else {
            for line in report.text { Terminal.show(line) }
        }
        if !report.isClean { throw ExitCode(1) }
    }

    /// Reports an unusable file or configuration in one line and ends with 2; nothing was imported.
    static func told<Result>(_ options: Options, _ body: () async throws -> Result) async throws -> Result {
        do {
            return try await body()
        } catch let error as ImportFileError {
            Terminal.tell("\(InputFile(path: options.file).name) \(error)")
            throw ExitCode.unusableInput
        } catch let error as UnusableInput {
            Terminal.tell("\(error)")
            throw ExitCode.unusableInput
        } catch let error as ConfigurationError {
            Terminal.tell("\(error)")
            throw ExitCode.unusableInput
        }
    }
}

extension ImportFile.Format: ExpressibleByArgument {}

extension ImportReport {
    fileprivate var text: [String] {
        var counts =
            isDryRun
            ? "dry run: of \(lines) lines \(imported) would be imported" : "\(lines) lines: \(imported) imported"
        counts += ", \(alreadyThere) already there, \(conflicts) conflicts, \(refused) refused"
        if ownersKept > 0 { counts += "; \(ownersKept) chains stay with another user" }
        if !isDryRun, imported == 0, isClean { counts += ": nothing has changed" }
        var all = [counts]
        if !ignored.isEmpty { all.append("columns that nobody knows: \(ignored.joined(separator: ", "))") }
        if !unknownProducts.isEmpty {
            all.append("products that the app does not sell: \(unknownProducts.joined(separator: ", "))")
        }
        if !endsWithNewline { all.append("the last line has no end: was the file cut off?") }
        return all
    }
}
