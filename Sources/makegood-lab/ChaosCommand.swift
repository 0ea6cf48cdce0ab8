import Adversary
import ArgumentParser
import Commands
import Foundation

/// `makegood-lab chaos`: breaks a deployment of its own with every drill, and checks all invariants.
struct ChaosCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "chaos",
        abstract: "Break a deployment of one's own under load, and prove that nothing was lost or doubled.",
        discussion: """
            Starts private PostgreSQL and RabbitMQ, a simulated App Store, 2 ingests, 3 workers and 2 schedulers of \
            the program, and a proxy between every two of them. Nothing listens beyond loopback, and everything \
            is ended at the end, also on SIGINT. Exit 0 only if no fault failed; the last line says how many \
            could not be run here.
            """,
        subcommands: [ChaosMatrixCommand.self, ChaosKillsCommand.self, ChaosListCommand.self])
}

struct ChaosOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Purchases a second.", valueName: "number"))
    var rate = 200.0

    @Option(
        help: ArgumentHelp(
            "Start of all random numbers. (default: another one each time, and printed)", valueName: "number"))
    var seed: UInt64?

    @Option(
        help: ArgumentHelp(
            "Factor on retry delays, rescue delays, limits of calls and the durations of faults.", valueName: "factor"))
    var scale = 0.1

    @OptionGroup var place: PlaceOptions

    var program: String { place.program }
    var local: String { place.local }

    func validate() throws {
        guard rate > 0, rate <= 5000 else { throw ValidationError("--rate must be above 0, at most 5000") }
        guard scale > 0, scale <= 1 else { throw ValidationError("--scale must be above 0, at most 1") }
    }

    /// The number of files that this process may open. Every client needs a connection of its own, and a proxy two.
    static var openFiles: Int { get throws { try OpenFiles.limit(raisedTo: 65_536) } }
}

/// Which program is broken, and by which script its servers are started.
struct PlaceOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp("The program to break. (default: the makegood beside this one)", valueName: "file"))
    var program = URL(filePath: "/proc/self/exe").resolvingSymlinksInPath().deletingLastPathComponent()
        .appending(path: "makegood").path

    @Option(
        help: ArgumentHelp("The script that starts private servers; a copy of it is used.", valueName: "deploy/local"))
    var local = ProcessInfo.processInfo.environment["MAKEGOOD_LOCAL"] ?? "deploy/local"

    func validate() throws {
        guard FileManager.default.isExecutableFile(atPath: local) else {
            throw ValidationError("--local: there is no \(local)")
        }
        guard FileManager.default.isExecutableFile(atPath: program) else {
            throw ValidationError("--program: there is no program \(program)")
        }
    }
}

struct ChaosMatrixCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "matrix", abstract: "Run faults one after the other, each on a deployment of its own.")

    @Option(help: ArgumentHelp("all, or ids, numbers and ranges: 1,2,7-9,23a.", valueName: "faults"))
    var faults = "all"

    @OptionGroup var options: ChaosOptions

    @Flag(help: "Succeed also where a fault cannot run here, for what its line says is missing.")
    var allowSkipped = false

    @Flag(help: "Print the table as JSON when all is done.")
    var json = false

    func validate() throws {
        guard Drill.select(faults) != nil else {
            throw ValidationError("--faults: no such fault (makegood-lab chaos list)")
        }
    }

    func run() async throws {
        let plan = Matrix.Plan(
            drills: Drill.select(faults) ?? [], seed: options.seed ?? .random(in: 0...999_999), scale: options.scale,
            rate: options.rate, script: options.local, executable: options.program,
            openFiles: try ChaosOptions.openFiles)
        let start = ContinuousClock.now
        let isJSON = json
        let rows = try await Interrupted.ends {
            try await Matrix(plan) { isJSON ? Terminal.tell($0) : Terminal.show($0) }.run()
        }
        if json {
            let encoder = JSONEncoder()
            encoder.outputFormatting = [.prettyPrinted, .sortedKeys, .withoutEscapingSlashes]
            Terminal.show(Array(try encoder.encode(rows)))
        }
        let failed = rows.count { $0.outcome == .failed }
        let skipped = rows.count { $0.outcome == .skipped }
        Terminal.tell(
            """
            \(rows.count - failed - skipped) passed, \(failed) failed, \(skipped) skipped in \
            \((ContinuousClock.now - start).components.seconds) s; seed \(plan.seed)
            """)
        if failed > 0 || skipped > 0 && !allowSkipped { throw ExitCode.failure }
    }
}

struct ChaosKillsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "kills",
        abstract: "kill -9 processes of each kind at random moments under load.",
        discussion: """
            A kill counts when the process had work in flight: it is stopped first (SIGSTOP), and counted if clients \
            wait for its answers, or if the proxies before its servers saw a question without an answer, a message \
            without an ack, or a publish without a confirm; then it is killed and started again. A scheduler's \
            counts only if rows were due as well. Three processes of each kind run; each kind is killed in a row of \
            its own, and at least a fifth of the kills that count are of each.
            With --all-in-one three processes of the role all run instead, and are killed by the same \
            rule: where it has no clients and no messages in flight, rows must have been due.
            """)

    @Option(help: ArgumentHelp("Kills that must count.", valueName: "number"))
    var count = 1000

    @Option(help: ArgumentHelp("From one kill of a kind to the next, on average.", valueName: "seconds"))
    var pause = 1.0

    @Flag(help: "Kill processes that are ingest, worker and scheduler in one.")
    var allInOne = false

    @OptionGroup var options: ChaosOptions

    func validate() throws {
        guard (1...100_000).contains(count) else { throw ValidationError("--count must be 1 to 100000") }
        guard (0.1...60).contains(pause) else { throw ValidationError("--pause must be 0.1 to 60") }
    }

    func run() async throws {
        let plan = Matrix.Plan(
            drills: [], seed: options.seed ?? .random(in: 0...999_999), scale: options.scale, rate: options.rate,
            script: options.local, executable: options.program, openFiles: try ChaosOptions.openFiles)
        let (count, pause, isAllInOne) = (count, Duration.seconds(pause), allInOne)
        let row = try await Interrupted.ends {
            try await KillRun(plan, count: count, pause: pause, isAllInOne: isAllInOne) { Terminal.tell($0) }.run()
        }
        Terminal.show(row.text)
        if row.outcome == .failed { throw ExitCode.failure }
    }
}

struct ChaosListCommand: ParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "Name the faults.")

    func run() {
        for drill in Drill.all { Terminal.show("\(drill.id)\t\(drill.name)\n\t\(drill.expected)") }
    }
}

/// SIGINT, SIGTERM and SIGHUP cancel the run, so that it removes everything that it started. A second signal ends this
/// process at once; the reaper then removes the rest.
enum Interrupted {
    static func ends<Result: Sendable>(_ body: @escaping @Sendable () async throws -> Result) async throws -> Result {
        let task = Task { try await body() }
        let sources = [SIGINT, SIGTERM, SIGHUP].map { number in
            signal(number, SIG_IGN)
            let source = DispatchSource.makeSignalSource(signal: number, queue: .global())
            source.setEventHandler {
                guard !task.isCancelled else { Foundation.exit(128 + number) }
                Terminal.tell("interrupted: everything is taken down")
                task.cancel()
            }
            source.resume()
            return source
        }
        defer { for source in sources { source.cancel() } }
        do {
            return try await task.value
        } catch  where task.isCancelled {
            throw ExitCode(128 + SIGINT)
        }
    }
}
