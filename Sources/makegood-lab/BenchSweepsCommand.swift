import AppStore
import AppleGateway
import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Logging
import Postgres
import Purchases
import Synchronization

/// `makegood-lab bench sweeps`: measures what a purchase waits for while very many subscriptions are asked about.
/// Hidden: it writes subscriptions and purchases that nobody bought.
struct BenchSweepsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sweeps",
        abstract: "Grant purchases beside the subscription sweep and without it, in turn, and say how long each waits.",
        discussion: """
            The chains became due within the last hour. The sweep claims chains, asks and stores the answers as a \
            worker does, with the governor and the leases of the real database; nobody is called, and an answer takes \
            as long as Apple's would. Meanwhile purchases come at an even rate: each is stored, asked about and \
            granted. Three turns with the sweep and three without; p99 is over all turns of a kind. Prints one line \
            of JSON: {"withoutMilliseconds", "withMilliseconds", "ratio", "questionsPerSecond", "allowedPerSecond", \
            "restMilliseconds"}; the last is a look of the sweep that finds nothing due. Needs a migrated database \
            that holds nothing else, with room for the chains.
            """, shouldDisplay: false)

    @Option(help: ArgumentHelp("Chains that are due.", valueName: "number"))
    var chains = 1_000_000

    @Option(help: ArgumentHelp("Purchases a second.", valueName: "number"))
    var rate = 30.0

    @Option(help: ArgumentHelp("How long each answer of Apple's takes.", valueName: "number"))
    var milliseconds = 300

    @Option(
        help: ArgumentHelp(
            "What Apple allows of each kind of call, of which four fifths are used.", valueName: "number"))
    var callsPerSecond = 50.0

    @Option(help: ArgumentHelp("Workers, each with four questions at a time.", valueName: "number"))
    var workers = 2

    @Option(help: "How long all turns take.")
    var seconds = 120.0

    private static let pairs = 3
    private static let questionsAtATime = 4

    func validate() throws {
        guard (1...10_000_000).contains(chains) else { throw ValidationError("--chains must be 1 to 10000000") }
        guard (0.1...1000).contains(rate) else { throw ValidationError("--rate must be 0.1 to 1000") }
        guard (1...60_000).contains(milliseconds) else { throw ValidationError("--milliseconds must be 1 to 60000") }
        guard (1...1_000_000).contains(callsPerSecond) else {
            throw ValidationError("--calls-per-second must be 1 to 1000000")
        }
        guard (1...64).contains(workers) else { throw ValidationError("--workers must be 1 to 64") }
        guard (1...3600).contains(seconds) else { throw ValidationError("--seconds must be 1 to 3600") }
    }

    func run() async throws {
        try await Connections.withDatabase(
            "bench-sweeps", patience: .seconds(600), keepsPlans: true, connections: 2 + workers
        ) { database in
            if try await database.run(SweepTrial.isUsed).first == true {
                throw ValidationError("the database is not empty")
            }
            try await database.run(SweepTrial.fill, chains)
            try await database.run(Statement<Void, Void>("bench.vacuum_chains", "vacuum (analyze) chains"))
            let ledger = Ledger(database: database, writers: 2, schedule: RetrySchedule())
            let trial = SweepTrial(
                ledger: ledger,
                governor: Governor(
                    ledger: ledger, callsMax: 64, waitersMax: 64, scale: 1, logger: Logger(label: "makegood")),
                callsPerSecond: callsPerSecond, length: .milliseconds(milliseconds))
            let length = Duration.seconds(seconds / Double(2 * Self.pairs))
            // The warm-up lasts until the governor has learned that so many calls may be under way.
            _ = try await trial.grants(at: rate, for: .seconds(2))
            var (without, with, questions): ([Double], [Double], Int) = ([], [], 0)
            for pair in 0..<Self.pairs {
                for sweeps in pair % 2 == 0 ? [false, true] : [true, false] {
                    let sweep = Task {
                        guard sweeps else { return 0 }
                        return await trial.sweep(workers: workers, atATime: Self.questionsAtATime, for: length)
                    }
                    let waits = try await trial.grants(at: rate, for: length)
                    questions += await sweep.value
                    if sweeps { with += waits } else { without += waits }
                }
            }
            let rest = try await trial.rest()
            let (plain, beside) = (Self.p99(without), Self.p99(with))
            let perSecond = Double(questions) / (seconds / 2)
            Terminal.show(
                "{\"withoutMilliseconds\":\((plain * 1000).rounded(to: 1)),"
                    + "\"withMilliseconds\":\((beside * 1000).rounded(to: 1)),"
                    + "\"ratio\":\((beside / plain).rounded(to: 3)),"
                    + "\"questionsPerSecond\":\(perSecond.rounded(to: 1)),\"allowedPerSecond\":\(callsPerSecond),"
                    + "\"restMilliseconds\":\((rest * 1000).rounded(to: 3)),\"chains\":\(chains)}")
        }
    }

    private static func p99(_ waits: [Double]) -> Double {
        guard !waits.isEmpty else { return 0 }
        return waits.sorted()[min(waits.count - 1, waits.count * 99 / 100)]
    }
}

/// A ledger with due chains, and a governor that lets calls out which nobody answers.
private struct SweepTrial {
    static let app = "bench"
    private static let product = AppPolicy.Product(
        id: "com.example.bench.coins6", kind: .consumable, goods: [.init(item: "coins", amount: 6000)])
    private static let policy = AppPolicy(id: app, grantFrom: .distantPast, products: [product])

    let ledger: Ledger
    let governor: Governor
    let callsPerSecond: Double
    let length: Duration

    static let isUsed = Statement<Void, Bool>(
        "bench.is_used", "select exists (select from tallies) or exists (select from chains)",
        read: { row throws(PostgresError) in try row.bool(0) })

    static let fill = Statement<Int, Void>(
        "bench.fill_chains",
        """
        insert into chains (app_id, environment, original_transaction_id, state, product_id, transaction_id, expires_at)
        select '\(app)', 'Production', 'sweep-' || n, 'active', 'com.example.bench.pass', 'sweep-' || n,
          now() - n * interval '1 hour' / $1
        from generate_series(1, $1::bigint) n
        """,
        bind: { [.int($0)] })

    /// Lets one call out, and waits as long as Apple would take. False: the budget has no call now.
    private func call(_ endpoint: String, _ lane: CallLane) async -> Bool {
        let allowance = Governor.Allowance(
            CallBudget(appID: Self.app, environment: "Production", endpoint: endpoint), callsPerSecond: callsPerSecond)
        guard
            case .granted(let pass) = await governor.admit(
                AppleHost(.serverApi, .production), within: allowance, lane: lane)
        else { return false }
        try? await Task.sleep(for: length)
        governor.leave(pass, .answered)
        return true
    }

    // MARK: Purchases

    /// Purchases at an even rate, each in a task of its own. Returns the seconds from each post to its grant.
    func grants(at rate: Double, for length: Duration) async throws -> [Double] {
        let (start, pause) = (ContinuousClock.now, Duration.seconds(1 / rate))
        return try await withThrowingTaskGroup(of: Double.self) { group in
            var next = start
            while next < start + length {
                try await Task.sleep(until: next)
                group.addTask { try await grant() }
                next += pause
            }
            return try await group.reduce(into: []) { $0.append($1) }
        }
    }

    private func grant() async throws -> Double {
        let start = ContinuousClock.now
        let bought = Date()
        let transaction = Transaction(
            id: "8" + String(UInt64.random(in: 0...UInt64.max)), originalID: nil, productID: Self.product.id,
            kind: .consumable, environment: Transaction.production, purchasedAt: bought, ownership: "PURCHASED",
            signedAt: bought, reason: "PURCHASE", showsToken: true, facts: #"{"price": 990, "reason": "PURCHASE"}"#)
        let user = "u\(Int.random(in: 0..<1_000_003))"
        let submission = Submission(
            appID: Self.app, userID: user, proof: .signedTransaction("\(transaction.id).bench.bench"))
        _ = try await ledger.store(submission)
        // A receipt that finds no call waits for its row in a worker; here it asks again.
        while !(await call("transactionInfo", .fresh)) { try await Task.sleep(for: .milliseconds(50)) }
        let claim = Claim(userID: user, hasPossession: true, receivedAt: bought)
        let verdict = Verdict(
            receiptID: submission.receiptID, attempt: 0, appID: Self.app, claim: claim,
            decisions: .transactions([Self.policy.judge(transaction, claim: claim, evidence: .none)]),
            dueIn: .seconds(600))
        guard try await ledger.settle(verdict)?.state == .granted else {
            throw ValidationError("a purchase of the bench was not granted")
        }
        return (ContinuousClock.now - start).inSeconds
    }

    // MARK: The sweep

    /// Asks about due chains as so many workers do. Returns the number of answers.
    func sweep(workers: Int, atATime: Int, for length: Duration) async -> Int {
        let end = ContinuousClock.now + length
        return await withTaskGroup(of: Int.self) { group in
            for _ in 0..<workers {
                group.addTask {
                    var answers = 0
                    while ContinuousClock.now < end { answers += await round(atATime) }
                    return answers
                }
            }
            var answers = 0
            for await part in group { answers += part }
            return answers
        }
    }

    private func round(_ limit: Int) async -> Int {
        let claim = Statements.ChainClaim(appIDs: [Self.app], limit: limit, lease: .seconds(120))
        guard let claimed = try? await ledger.run(Statements.claimChains, claim), !claimed.isEmpty else {
            try? await Task.sleep(for: .milliseconds(50))
            return 0
        }
        return await withTaskGroup(of: Bool.self) { group in
            for chain in claimed {
                group.addTask {
                    guard await call("subscriptionStatuses", .sweep) else { return false }
                    return (try? await ledger.hear(Self.answer(about: chain))) != nil
                }
            }
            var answers = 0
            for await isAnswered in group where isAnswered { answers += 1 }
            return answers
        }
    }

    /// A renewal that nobody told.
    private static func answer(about chain: ClaimedChain) -> Hearing {
        let (start, end) = (chain.readAt - 60, chain.readAt + 30 * 86_400)
        let period = Transaction(
            id: chain.originalID + "-2", originalID: chain.originalID, productID: "com.example.bench.pass",
            kind: .autoRenewable, environment: Transaction.production, purchasedAt: start, expiresAt: end,
            ownership: "PURCHASED", signedAt: chain.readAt, reason: "RENEWAL", facts: #"{"reason": "RENEWAL"}"#)
        var asked = AskedChain(chain)
        (asked.isAnswered, asked.askAt, asked.endsAt, asked.appleState) = (true, end, end, .active)
        var hearing = Hearing(notification: nil, appID: app, net: .subscription)
        hearing.transactions = [period]
        hearing.renewals = [
            Renewal(originalID: chain.originalID, environment: Transaction.production, signedAt: chain.readAt)
        ]
        hearing.submissions = [Submission(unposted: period, jws: "\(period.id).bench.bench", of: app, source: .sweep)]
        hearing.askedChain = asked
        return hearing
    }

    /// Seconds of a look beside the chains when nothing is due: the median of many.
    func rest() async throws -> Double {
        _ = try await ledger.run(
            Statement<Void, Void>("bench.put_off_chains", "update chains set ask_at = now() + interval '1 day'"), ())
        _ = try await ledger.run(Statement<Void, Void>("bench.vacuum_again", "vacuum (analyze) chains"), ())
        let claim = Statements.ChainClaim(appIDs: [Self.app], limit: 4, lease: .seconds(120))
        var looks: [Double] = []
        for _ in 0..<200 {
            let start = ContinuousClock.now
            _ = try await ledger.run(Statements.compareChains, .init(appIDs: [Self.app], again: .seconds(3600)))
            _ = try await ledger.run(Statements.claimChains, claim)
            looks.append((ContinuousClock.now - start).inSeconds)
        }
        return looks.sorted()[looks.count / 2]
    }
}
