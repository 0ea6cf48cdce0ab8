import ArgumentParser
import Settings

/// The laboratory: tests and measures Makegood, and is never shipped. Its commands can kill processes, write purchases
/// that nobody made, and break servers of their own.
@main
struct MakegoodLab: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "makegood-lab",
        abstract: "Breaks, fuzzes and measures Makegood, on servers and databases of its own.",
        version: Version.current,
        subcommands: [ChaosCommand.self, YearCommand.self, FuzzCommand.self, LabBenchCommand.self])
}

/// `makegood-lab bench`: measures one part of the work, in a database that holds nothing else.
struct LabBenchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "bench", abstract: "Measure a part of the work in a database of its own.",
        subcommands: [
            BenchGovernorCommand.self, BenchSettleCommand.self, BenchFillCommand.self, BenchEntitlementsCommand.self,
            BenchSweepsCommand.self, BenchSealsCommand.self, BenchDeliverCommand.self,
        ])
}
