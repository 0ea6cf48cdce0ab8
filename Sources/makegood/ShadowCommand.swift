import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import MovingIn
import Purchases
import Settings

struct ShadowCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "shadow",
        abstract: "Compare what an app in shadow would have given with what the system before it gave.",
        discussion: """
            `mode: shadow` in an app's section: everything is received, verified and decided, nothing is given, told or \
            safe to finish. To go live: stop the other system, import what it gave (`makegood import`), set the mode to \
            live, and run `makegood queue redrive --app ID --state held --reason shadow`. What was imported is then \
            already granted; what was bought before and not imported waits for a person.
            """,
        subcommands: [Diff.self])

    struct Diff: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Tell every purchase that the two have not given alike.",
            discussion: """
                FILE is what `makegood import grants` takes. Read-only. Told are: other_user, other_product, only_here \
                (given here alone, of purchases between the file's first and last, or --since and --until), only_there \
                (with the reason, or nobody posted it), undecided (held here, or still being tried) and refused (a line \
                that cannot be read). Of an app that is live, which the command says, the file is compared with what was \
                granted. Exit code 0: no difference; 1: differences, undecided ones apart; 2: the file or \
                the configuration is of no use.
                """)

        @OptionGroup var origin: ImportCommand.Origin
        @OptionGroup var options: ImportCommand.Options
        @Option(help: "Look in the file for purchases made here from then on (RFC 3339).")
        var since: String?
        @Option(help: "Look in the file for purchases made here up to then (RFC 3339).")
        var until: String?

        func validate() throws {
            for (name, text) in [("--since", since), ("--until", until)] {
                if let text, Date(rfc3339: text) == nil {
                    throw ValidationError("\(name) must be a time such as 2026-03-01T00:00:00Z")
                }
            }
        }

        func run() async throws {
            let report = try await ImportCommand.told(options) {
                let configuration = try Settings().loadConfiguration()
                let isLive = configuration.apps[options.app]?.policy.mode == .live
                if isLive {
                    Terminal.tell(
                        "\(options.app) is live, not in shadow: the file is compared with what was granted here")
                }
                return try await Connections.withDatabase("shadow", isReadOnly: true) { database in
                    try await UserProtection.check(configuration.userKeys, in: database)
                    var (file, context) = try await options.open(configuration, from: origin.from, in: database)
                    return try await ShadowDiff(database: database, context: context, isLive: isLive).run(
                        &file, since: since.flatMap(Date.init(rfc3339:)), until: until.flatMap(Date.init(rfc3339:))
                    ) { difference in
                        Terminal.show(options.json ? difference.json.text : difference.text)
                    }
                }
            }
            if options.json {
                Terminal.show(report.json.text)
            } else {
                let counts = ShadowDiff.Kind.allCases.map { "\($0.rawValue) \(report.counts[$0] ?? 0)" }
                Terminal.show("\(report.lines.counted("line")): same \(report.same), \(counts.joined(separator: ", "))")
                if !report.skipped.isEmpty { Terminal.show("skipped: \(ImportSkip.text(report.skipped))") }
                if report.undecidedReceipts > 0 {
                    let receipts = report.undecidedReceipts.counted("receipt of the app is", "receipts of the app are")
                    Terminal.show("\(receipts) not judged yet")
                }
            }
            if !report.isSame { throw ExitCode(1) }
        }
    }
}

extension ShadowDiff.Difference {
    fileprivate var text: String {
        var text = kind.rawValue
        if let line { text += " line \(line)" }
        if let transactionID { text += " transaction \(transactionID)" }
        for (name, side) in [("here", here), ("there", there)] {
            if let side { text += ", \(name) \(side[1]) to \(side[0])" }
        }
        return text + (why.map { ": \($0)" } ?? "")
    }
}
