import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import MovingIn
import Purchases
import Service
import Settings
import Support

struct ReconcileCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "reconcile",
        abstract: "Compare Apple's own reports with the ledger.",
        subcommands: [Sales.self])

    struct Sales: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Explain each difference between Apple's Sales or Financial Reports and what was granted.",
            discussion: """
                FILE is a Sales Report (Summary, daily, weekly or monthly, versions 1_0 to 1_3) or a Financial Report \
                (by region, or detailed), as App Store Connect gives it: values separated by tabs, plain or compressed \
                with gzip. Columns are found by their names; unknown ones are passed over. Files of any length are \
                read in bounded memory. Rows of apps, updates and downloads are counted and passed over.

                Compared are the units of each product, country and day, sales and refunds apart. Apple's day is a day \
                of Pacific time; of Financial Reports Apple's fiscal months are compared. Currency and proceeds are \
                not compared. Each difference has causes with the transactions behind them; the rest is \
                unexplained. Give the reports of the days around too: beside days without a report Apple may have \
                counted a purchase on either side. Apple completes a day within two days.

                Needs MAKEGOOD_CONFIG, the file that the services use, and the rights of support. Read-only.

                Exit code 0: every unit is explained; 1: some are not; 2: a report or the configuration is of no use, \
                and nothing was compared.
                """)

        @Argument(help: "The reports; - is standard input.")
        var files: [String]
        @Option(help: "The app; needed where MAKEGOOD_CONFIG has several.")
        var app: String?
        @Flag(help: "Print JSON.")
        var json = false

        func validate() throws {
            guard !files.isEmpty else { throw ValidationError("name a report") }
            guard Set(files).count == files.count else { throw ValidationError("a report is named twice") }
        }

        func run() async throws {
            let result: SalesReconciliation
            do {
                result = try await reconcile()
            } catch let error as AppleReportError {
                Terminal.tell("\(error)")
                throw ExitCode.unusableInput
            } catch let error as UnusableInput {
                Terminal.tell("\(error)")
                throw ExitCode.unusableInput
            } catch let error as ConfigurationError {
                Terminal.tell("\(error)")
                throw ExitCode.unusableInput
            }
            if json {
                Terminal.show(result.json.bytes)
            } else {
                for line in result.lines { Terminal.show(line) }
            }
            if result.unexplained > 0 { throw ExitCode(1) }
        }

        private func reconcile() async throws -> SalesReconciliation {
            let configuration = try Settings().loadConfiguration()
            let id = try app ?? onlyApp(of: configuration)
            guard let settings = configuration.apps[id] else {
                throw UnusableInput("--app names no app of MAKEGOOD_CONFIG")
            }
            return try await Connections.withDatabase("reconcile", patience: .seconds(900), isReadOnly: true) {
                database in
                let catalogue = try await CatalogueEditor(database: database, actor: Connections.actor).current(id)
                    .completed(by: settings.policy.catalogue)
                return try await SalesReconciliation(
                    of: id, try read(app: id, known: Set(catalogue.products.keys)),
                    grantFrom: settings.hasGrantFrom ? settings.policy.grantFrom : nil, in: database)
            }
        }

        private func onlyApp(of configuration: Configuration) throws -> String {
            guard configuration.apps.count == 1, let id = configuration.apps.keys.first else {
                throw UnusableInput("MAKEGOOD_CONFIG has several apps: say which with --app")
            }
            return id
        }

        private func read(app: String, known: Set<String>) throws -> [AppleBooks] {
            var books: [AppleReportKind: AppleBooks] = [:]
            let progress = TerminalProgress()
            defer { progress.clear() }
            for path in files {
                let input = InputFile(path: path)
                let unpacked = UnpackedFile(try input.chunks())
                var lines = LineReader { try unpacked.next() }
                var line = 1
                do {
                    guard let header = try lines.next() else {
                        throw AppleReportError(file: input.name, line: 1, column: 1, problem: "the file is empty")
                    }
                    var reader = try AppleReportReader(file: input.name, header: header.bytes ?? [])
                    var book = books[reader.kind] ?? AppleBooks(reader.kind, app: app, known: known)
                    line = 2
                    while let next = try lines.next() {
                        guard let bytes = next.bytes else {
                            throw reader.error(line: next.number, "the line has more than 64 KiB")
                        }
                        if case .row(let row) = try reader.read(bytes, number: next.number) {
                            try book.add(row, of: reader)
                        }
                        line = next.number + 1
                        if next.number.isMultiple(of: 100_000) { progress.show("\(input.name): \(next.number) lines") }
                    }
                    books[reader.kind] = book
                } catch let failure as UnpackedFile.Failure {
                    throw AppleReportError(
                        file: input.name, line: line, column: 1,
                        problem: failure == .cut
                            ? "the gzip data end here, before their end: the file was cut off" : "is no valid gzip")
                }
                if !lines.endsWithNewline {
                    Terminal.tell("\(input.name): the last line has no end: was the file cut off?")
                }
            }
            return AppleReportKind.allCases.compactMap { books[$0] }
        }
    }
}
