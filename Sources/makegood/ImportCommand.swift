import AppStore
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
            FILE holds values separated by commas, semicolons or tabs with a first line that names the columns, or one \
            JSON object a line; its name says which (.csv; .jsonl, .ndjson, .json), or --format. UTF-8. Case, spaces, _ \
            and - in names do not matter. Times are RFC 3339 or milliseconds since 1970; a time without a zone needs \
            --time-zone. Files of any length are read in bounded memory. A placeholder instead of a user (undefined, \
            null, 0) is refused.

            `import --from revenuecat FILE` and `--from adapty FILE` read what those systems export, and skip lines that \
            are no purchases for Makegood; the counts name the reasons.

            Nothing that stands here is changed: a line that contradicts it is reported as a conflict. A line that cannot \
            be read is reported with its number and field, and the others go on. The same file again changes nothing, \
            and so an import that was broken off is run again. Import owners before grants. Each import is audited.

            Exit code 0: all of it is here, or skipped; 1: lines were refused or contradict; 2: the file or the \
            configuration is of no use.
            """,
        subcommands: [Grants.self, Owners.self, Tokens.self, Orders.self, Bonuses.self], defaultSubcommand: Grants.self)

    struct Options: ParsableArguments {
        @Argument(help: "The file; - is standard input.")
        var file: String
        @Option(help: "The app.")
        var app: String
        @Option(help: "csv or jsonl, where the file's name does not say it.")
        var format: ImportFile.Format?
        @Option(help: "Production or Sandbox: of lines that do not say it themselves.")
        var environment = Transaction.production
        @Option(help: "The zone of times that name none: UTC, Europe/Berlin or +02:00.")
        var timeZone: String?
        @Flag(help: "Print JSON: one object a line that needs to be told of, the counts last.")
        var json = false

        func validate() throws {
            if let timeZone, TimeZone(named: timeZone) == nil {
                throw ValidationError("--time-zone must be a zone such as UTC, Europe/Berlin or +02:00")
            }
            guard [Transaction.production, Transaction.sandbox].contains(environment) else {
                throw ValidationError("--environment must be Production or Sandbox")
            }
        }

        /// Opens the file, and reads the app's context for its lines.
        ///
        /// - Parameter origin: the system that wrote the file; nil: the columns have Makegood's names.
        func open(
            _ configuration: Configuration, from origin: ImportOrigin?, in database: Database
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
            var refunded: Set<String> = []
            if origin == .adapty {
                guard file != "-" else {
                    throw UnusableInput("--from adapty reads the file twice, first its refunds: name a file")
                }
                var first = ImportFile(format, from: origin, try input.chunks())
                refunded = try ImportOrigin.adapty.refunds(in: &first)
            }
            return (
                ImportFile(format, from: origin, try input.chunks()),
                ImportContext(
                    settings, catalogue: catalogue, keys: configuration.userKeys, environment: environment,
                    origin: origin, timeZone: timeZone.flatMap(TimeZone.init(named:)),
                    takesSandbox: settings.identity.environments.contains(.sandbox), refunded: refunded,
                    placeholders: configuration.placeholders)
            )
        }
    }

    struct Writing: ParsableArguments {
        @Flag(help: "Check every line and say what would happen; write nothing.")
        var dryRun = false
    }

    /// Of files with purchases.
    struct Origin: ParsableArguments {
        @Option(help: "The system that exported the file: revenuecat or adapty.")
        var from: ImportOrigin?
    }

    struct Grants: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Purchases that were given: nothing is given for them again.",
            discussion: """
                Columns: transactionId, userId, productId, purchasedAt; optional originalTransactionId (else the \
                transaction is its own), environment. Posted here, such a purchase is `already_granted`, also under \
                another id of the same purchase. Renewals of a subscription go to the user of its latest line.

                --from revenuecat reads the Transactions feed of RevenueCat's Scheduled Data Exports (times are UTC), \
                --from adapty the events that Adapty exports to Amazon S3 and Google Cloud Storage. Trials and renewals \
                are imported. Skipped, and counted by reason, are other_store, sandbox (unless the app takes Sandbox), \
                refunded, family_shared, anonymous_user (the export knows only an id of its own, such as \
                $RCAnonymousID:…: the purchase belongs to the user who posts it) and no_purchase (other events).
                """)

        @OptionGroup var origin: Origin
        @OptionGroup var options: Options
        @OptionGroup var writing: Writing

        func run() async throws { try await ImportCommand.run(.grants, options, writing, from: origin.from) }
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

    fileprivate static func run(
        _ kind: ImportKind, _ options: Options, _ writing: Writing, from origin: ImportOrigin? = nil
    ) async throws {
        let report = try await told(options) {
            let configuration = try Settings().loadConfiguration()
            return try await Connections.withDatabase("import", isReadOnly: writing.dryRun) { database in
                if writing.dryRun {
                    try await UserProtection.check(configuration.userKeys, in: database)
                } else {
                    // The import writes users: from here on the database names users as this configuration does.
                    try await UserProtection.agree(configuration.userKeys, in: database)
                }
                var (file, context) = try await options.open(configuration, from: origin, in: database)
                let progress = TerminalProgress()
                defer { progress.clear() }
                return try await Importer(
                    database: database, context: context, actor: Connections.actor, isDryRun: writing.dryRun
                ).run(kind, &file, progress: { progress.show("\($0) lines") }) { problem in
                    progress.clear()
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
extension ImportOrigin: ExpressibleByArgument {}

extension TimeZone {
    /// A zone by its name, or by its distance from UTC as RFC 3339 writes it; nil: there is none.
    fileprivate init?(named name: String) {
        if let date = Date(rfc3339: "2000-01-01T00:00:00\(name)"), let start = Date(rfc3339: "2000-01-01T00:00:00Z") {
            self.init(secondsFromGMT: Int(start.timeIntervalSince(date)))
        } else if name == "UTC" {
            self = .gmt
        } else {
            self.init(identifier: name)
        }
    }
}

extension ImportReport {
    fileprivate var text: [String] {
        var counts =
            isDryRun
            ? "dry run: of \(lines.counted("line")) \(imported) would be imported"
            : "\(lines.counted("line")): \(imported) imported"
        counts += ", \(alreadyThere) already there, \(conflicts.counted("conflict")), \(refused) refused"
        if !skipped.isEmpty { counts += ", \(skipped.values.reduce(0, +)) skipped" }
        if ownersKept > 0 { counts += "; \(ownersKept.counted("chain stays", "chains stay")) with another user" }
        if !isDryRun, imported == 0, isClean { counts += ": nothing has changed" }
        var all = [counts]
        if !skipped.isEmpty { all.append("skipped: \(ImportSkip.text(skipped))") }
        if !ignored.isEmpty { all.append("columns that nobody knows: \(ignored.joined(separator: ", "))") }
        if !unknownProducts.isEmpty {
            all.append("products that the app does not sell: \(unknownProducts.joined(separator: ", "))")
        }
        if !endsWithNewline { all.append("the last line has no end: was the file cut off?") }
        return all
    }
}

extension ImportSkip {
    /// The counts by reason: `other_store 3, refunded 1`.
    static func text(_ counts: [Self: Int]) -> String {
        allCases.compactMap { kind in counts[kind].map { "\(kind.rawValue) \($0)" } }.joined(separator: ", ")
    }
}
