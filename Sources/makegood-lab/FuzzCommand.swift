import Adversary
import AppStore
import ArgumentParser
import Commands
import Foundation

/// `makegood-lab fuzz`: feeds mutated proofs, certificates and answers to their readers.
struct FuzzCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "fuzz",
        abstract: "Throw mutated proofs, certificates and answers at what reads them, and watch it.",
        discussion: """
            Calls nobody and uses one core. For each parser first the inputs of the corpus, then as many mutated ones \
            as the time allows; each follows from the seed and its number. It must return, in a time that follows from \
            its size, and believe nothing but what the genuine inputs say. Then how the time grows where inputs of one \
            kind are doubled: not more than \(FuzzGrowth.factorMax) times.
            What breaks a rule is kept as a file in --keep, beside what earlier runs found. A crash or a hang leaves its \
            input there as <parser>-<seed>-current.
            Exit 0 only if nothing did; 3: an input took far too long and was given up.
            """)

    @Argument(help: ArgumentHelp("\(ParserProbe.Parser.names), or all.", valueName: "parser"))
    var parsers = ["all"]

    @Option(help: ArgumentHelp("For each parser.", valueName: "number"))
    var seconds = 60.0

    @Option(
        help: ArgumentHelp(
            "Start of all random numbers. (default: another one each time, and printed)", valueName: "number"))
    var seed: UInt64?

    @Option(
        help: ArgumentHelp(
            "A folder of inputs to mutate. (default: those of an App Store made for this run)", valueName: "folder"))
    var corpus: String?

    @Flag(help: "First write a new corpus to --corpus, with certificates of its own, over what is there.")
    var renew = false

    @Option(help: ArgumentHelp("Where inputs are kept that break a rule.", valueName: "folder"))
    var keep = "fuzz-found"

    @Flag(inversion: .prefixedNo, help: "Measure how the time grows with the size.")
    var growth = true

    func validate() throws {
        for parser in parsers where parser != "all" && ParserProbe.Parser(rawValue: parser) == nil {
            throw ValidationError("there is no parser \(parser): \(ParserProbe.Parser.names), or all")
        }
        guard (0...86_400).contains(seconds) else { throw ValidationError("--seconds must be 0 to 86400") }
        if renew, corpus == nil { throw ValidationError("--renew needs --corpus") }
    }

    func run() async throws {
        let seed = seed ?? .random(in: 0...999_999)
        let inputs = try await inputs()
        let run = try FuzzRun(inputs, seed: seed, keep: URL(filePath: keep))
        let chosen = ParserProbe.Parser.allCases.filter { parsers.contains("all") || parsers.contains($0.rawValue) }
        var isSound = true
        for parser in chosen {
            let report = try await run.run(parser, for: .seconds(seconds))
            show(report, seed)
            isSound = isSound && report.failures.isEmpty
            guard growth else { continue }
            for row in try await FuzzGrowth(inputs).run(parser) {
                show(row)
                isSound = isSound && row.isLinear
            }
        }
        if !isSound { throw ExitCode.failure }
    }

    private func inputs() async throws -> FuzzCorpus {
        guard let corpus else { return try await .made() }
        let folder = URL(filePath: corpus)
        if renew { try await FuzzCorpus.made().write(to: folder) }
        do { return try FuzzCorpus(directory: folder) } catch let error as FuzzCorpus.Unreadable {
            Terminal.tell("\(error)")
            throw ExitCode.unusableInput
        }
    }

    private func show(_ report: FuzzRun.Report, _ seed: UInt64) {
        let worst = report.slowest.prefix(3).map { "\(Self.milliseconds($0.cpu)) ms for \($0.bytes) B" }
        Terminal.show(
            """
            \(report.parser.rawValue): \(report.inputs) inputs, \(report.read) read, \(report.believed) genuine, \
            \(report.failures.count) failures, slowest \(worst.joined(separator: ", ")); seed \(seed)
            """)
        for failure in report.failures { Terminal.show("  FAILED \(failure)") }
    }

    private func show(_ row: FuzzGrowth.Row) {
        let times = row.times.map { "\($0.bytes) B \(Self.milliseconds($0.cpu)) ms" }.joined(separator: ", ")
        let factor =
            row.factor == 0 ? "too short to tell" : "x \(row.factor.formatted(.number.precision(.fractionLength(1))))"
        Terminal.show("  \(row.isLinear ? "linear" : "FAILED"), \(row.kind): \(times); \(factor)")
    }

    private static func milliseconds(_ time: Duration) -> String {
        (time / .milliseconds(1)).formatted(.number.precision(.fractionLength(2)).grouping(.never))
    }
}

extension ParserProbe.Parser {
    fileprivate static var names: String { allCases.map(\.rawValue).joined(separator: ", ") }
}
