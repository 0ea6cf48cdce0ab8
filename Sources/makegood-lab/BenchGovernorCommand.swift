import AppStore
import AppleGateway
import ArgumentParser
import Commands
import Foundation
import Ledger
import Logging
import Purchases

#if canImport(Glibc)
    import Glibc
#endif

/// `makegood-lab bench governor`: measures a worker's cost of keeping Apple's limits.
struct BenchGovernorCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "governor",
        abstract: "Let calls out as a worker does, with leases of the real database, and say what each costs.",
        discussion: """
            So many calls at a time, each as long as Apple would take; nobody is called. Then the same without the \
            governor: the difference is what it costs, all threads of this process together; the median of five such \
            pairs. Prints one line of JSON: {"cpuMicrosecondsPerCall", "cpuPercentOfCore", "perSecond", "calls", \
            "refused"}. Where calls are refused, those that are let out bear the cost of the others too. The budget is \
            that of an app named makegood-bench.
            """)

    @Option(help: ArgumentHelp("Calls at the same time.", valueName: "number"))
    var inFlight = 300

    @Option(help: ArgumentHelp("How long each takes.", valueName: "number"))
    var milliseconds = 300

    @Option(help: ArgumentHelp("What Apple allows, of which four fifths are used.", valueName: "number"))
    var callsPerSecond = 5000.0

    @Option(help: "How long all runs take, with the governor and without.")
    var seconds = 10.0

    func validate() throws {
        guard (1...10_000).contains(inFlight) else { throw ValidationError("--in-flight must be 1 to 10000") }
        guard (1...60_000).contains(milliseconds) else { throw ValidationError("--milliseconds must be 1 to 60000") }
        guard (1...1_000_000).contains(callsPerSecond) else {
            throw ValidationError("--calls-per-second must be 1 to 1000000")
        }
        guard (1...600).contains(seconds) else { throw ValidationError("--seconds must be 1 to 600") }
    }

    func run() async throws {
        try await Connections.withDatabase("bench-governor") { database in
            let ledger = Ledger(database: database, writers: 1, schedule: RetrySchedule())
            let governor = Governor(
                ledger: ledger, callsMax: inFlight, waitersMax: inFlight, scale: 1, logger: Logger(label: "makegood"))
            let host = AppleHost(.serverApi, .production)
            let allowance = Governor.Allowance(
                CallBudget(appID: "makegood-bench", environment: "Production", endpoint: "transactionInfo"),
                callsPerSecond: callsPerSecond)
            // The warm-up lasts until the governor has learned that so many calls may be under way.
            _ = await Self.load(inFlight, .milliseconds(20), for: 1) {
                await Self.call(host, allowance, governor, .milliseconds(20))
            }
            let length = Duration.milliseconds(milliseconds)
            let secondsOfRun = seconds / Double(2 * Self.pairs)
            var (costs, calls, refused): ([Double], Int, Int) = ([], 0, 0)
            // Governed and plain runs alternate, so that other work on the machine slows both.
            for _ in 0..<Self.pairs {
                let governed = await Self.load(inFlight, length, for: secondsOfRun) {
                    await Self.call(host, allowance, governor, length)
                }
                let alone = await Self.load(inFlight, length, for: secondsOfRun) {
                    try? await Task.sleep(for: length)
                    return true
                }
                costs.append(governed.cpuSecondsPerCall - alone.cpuSecondsPerCall)
                calls += governed.calls
                refused += governed.refused
            }
            let cost = costs.sorted()[Self.pairs / 2]
            let perSecond = Double(calls) / (secondsOfRun * Double(Self.pairs))
            Terminal.show(
                "{\"cpuMicrosecondsPerCall\":\((cost * 1e6).rounded(to: 1)),"
                    + "\"cpuPercentOfCore\":\((cost * perSecond * 100).rounded(to: 2)),"
                    + "\"perSecond\":\(perSecond.rounded(to: 1)),\"calls\":\(calls),\"refused\":\(refused)}")
        }
    }

    private static let pairs = 5

    private struct Load {
        var calls = 0
        var refused = 0
        var cpuSeconds = 0.0

        var cpuSecondsPerCall: Double { cpuSeconds / Double(max(1, calls)) }
    }

    /// Makes one call after the other in each of so many tasks.
    private static func load(
        _ tasks: Int, _ length: Duration, for seconds: Double, _ call: @escaping @Sendable () async -> Bool
    ) async -> Load {
        let (start, cpu) = (ContinuousClock.now, cpuSeconds)
        return await withTaskGroup(of: (calls: Int, refused: Int).self) { group in
            for number in 0..<tasks {
                group.addTask {
                    var (calls, refused) = (0, 0)
                    // The tasks start at different times: otherwise their calls would stay in step.
                    try? await Task.sleep(for: length * number / tasks)
                    while ContinuousClock.now - start < .seconds(seconds) {
                        if await call() { calls += 1 } else { refused += 1 }
                    }
                    return (calls, refused)
                }
            }
            var load = Load()
            for await part in group {
                load.calls += part.calls
                load.refused += part.refused
            }
            load.cpuSeconds = cpuSeconds - cpu
            return load
        }
    }

    private static func call(
        _ host: AppleHost, _ allowance: Governor.Allowance, _ governor: Governor, _ length: Duration
    ) async -> Bool {
        guard case .granted(let pass) = await governor.admit(host, within: allowance, lane: .fresh) else {
            // A refused call comes again later, as a worker's does.
            try? await Task.sleep(for: length)
            return false
        }
        try? await Task.sleep(for: length)
        governor.leave(pass, .answered)
        return true
    }

    /// The CPU time of all threads of this process, in user and kernel mode.
    private static var cpuSeconds: Double {
        // POSIX counts in millionths of a second, whatever the machine.
        Double(clock()) / 1e6
    }
}
