import Encoding
import Foundation
package import Ledger
package import Logging
package import Metrics
import Postgres
import Purchases
import Service
import ServiceLifecycle

/// Seals rows of grants, outcomes, revocations and audits in blocks behind the verdicts, and checks sealed blocks for
/// ever (L2). Any number of schedulers may run this: the newest block is the position, and its number is unique.
///
/// A look reads and writes in PostgreSQL, and then rests for a multiple of the time that it took. So sealing and
/// checking each take at most a twentieth of a core.
package struct Sealer: Service {
    package static let interval: Duration = .seconds(60)
    /// The rows of a block. A block takes tens of milliseconds.
    package static let rowsMax = 4096
    /// The newest blocks that are checked in each interval, before the others have their turn.
    static let newest = 4
    /// The blocks that one look at older blocks takes at most: of small blocks many, because each look costs some
    /// milliseconds however small its blocks are.
    static let widthMax = 32
    /// The time between two heads in the log.
    static let headInterval: TimeInterval = 300

    private let ledger: Ledger
    private let logger: Logger
    /// The rest after each look, as a multiple of the look's time.
    private let pause: Int
    private let metrics: any MetricsFactory

    package init(
        ledger: Ledger, logger: Logger, pause: Int = 19, metrics: any MetricsFactory = MetricsSystem.factory
    ) {
        self.ledger = ledger
        self.logger = logger
        self.pause = pause
        self.metrics = metrics
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await sealForEver() }
                group.addTask { await checkForEver() }
            }
        }
    }

    private var interval: Duration { max(.milliseconds(50), Self.interval * ledger.schedule.scale) }

    private func sealForEver() async {
        var memory = Memory()
        while !Task.isCancelled {
            do {
                try await sealAll(&memory)
            } catch {
                logger.warning("rows could not be sealed", metadata: LogKeys.error(error))
                memory.lookAtFewer()
            }
            try? await Task.sleep(for: interval)
        }
    }

    /// The memory of one sealer between two looks.
    struct Memory {
        /// The newest head that this process has seen. A person who rewrites the seals cannot change this head.
        var head: SealHead?
        /// When this process last logged a head, by the database's clock.
        var loggedAt: Date?
        var logged: SealHead?
        /// The number of transactions that the next plan looks at; nil: all.
        var transactions: Int?

        /// The backlog may be too large to be read in the time of a statement.
        mutating func lookAtFewer() {
            transactions = max(SealPlan.transactionsMin, (transactions ?? 1 << 20) / 4)
        }
    }

    /// Seals all rows that no running transaction can add to. Returns the number of rows.
    @discardableResult
    func sealAll(_ memory: inout Memory) async throws -> Int {
        var rows = 0
        while !Task.isCancelled {
            let start = ContinuousClock.now
            let reach = Statements.SealReach(transactions: memory.transactions, rows: Self.rowsMax)
            guard let plan = try await ledger.run(Statements.planSeal, reach).first else { return rows }
            gauge("makegood_seals_behind_seconds").record(plan.behindSeconds)
            try await compare(plan, &memory)
            log(plan, &memory)
            memory.transactions = plan.nextTransactions
            if plan.rows > 0 {
                for block in try await ledger.run(Statements.seal, plan) {
                    rows += block.rows
                    counter("makegood_sealed_rows_total").increment(by: block.rows)
                }
            }
            guard plan.isMore else { return rows }
            try? await Task.sleep(for: (ContinuousClock.now - start) * pause)
        }
        return rows
    }

    /// Compares the head that this process remembers with the stored one, and remembers the newest.
    private func compare(_ plan: SealPlan, _ memory: inout Memory) async throws {
        if let head = memory.head, head != plan.head {
            let stored = try await ledger.run(Statements.sealHeadsAt, [head.number]).first
            let what: SealFinding.What = stored == nil ? .missing : .rewritten
            let finding = stored == head ? nil : SealFinding(block: head.number, what: what)
            gauge("makegood_seals_rewritten").record(finding == nil ? 0 : 1)
            if let finding {
                report(finding)
                // The remembered head stays, and the finding with it, until a person starts this process again.
                return
            }
        }
        if memory.head == nil { gauge("makegood_seals_rewritten").record(0) }
        memory.head = plan.head
    }

    /// Logs the newest head every few minutes, so that heads leave the database: `seal.head NUMBER HASH`.
    private func log(_ plan: SealPlan, _ memory: inout Memory) {
        guard let head = plan.head, head != memory.logged else { return }
        let scaled = Self.headInterval * ledger.schedule.scale
        if let loggedAt = memory.loggedAt, plan.readAt.timeIntervalSince(loggedAt) < scaled { return }
        memory.loggedAt = plan.readAt
        memory.logged = head
        logger.notice("\(head.line)")
    }

    private func checkForEver() async {
        var turn = Turn()
        gauge("makegood_seals_checked_timestamp_seconds").record(0)
        // Schedulers that are started together do not all check at once.
        try? await Task.sleep(for: interval * Double.random(in: 0..<1))
        while !Task.isCancelled {
            let start = ContinuousClock.now
            do {
                try await check(&turn, for: interval)
            } catch {
                logger.warning("seals could not be checked", metadata: LogKeys.error(error))
            }
            try? await Task.sleep(for: max(.milliseconds(50), start + interval - ContinuousClock.now))
        }
    }

    /// The place of a process in its turn through all blocks.
    struct Turn {
        /// The next block. Nil: the turn begins at a random block, so that processes that are started often read all.
        var next: Int?
        /// The blocks since the last look at the first one.
        var looked = 0
        /// The blocks that the next look takes.
        var width = 1
        /// The findings of each block with one, as the last look found them.
        var findings: [Int: Int] = [:]
    }

    /// Checks the newest blocks, and then others in turn until the time is over. Ends sooner after the last block.
    func check(_ turn: inout Turn, for time: Duration) async throws {
        let end = ContinuousClock.now + time
        let head = try await ledger.run(Statements.sealHeads, 1).first?.number ?? 0
        let older = max(0, head - Self.newest)
        var number = older + 1
        while number <= head && !Task.isCancelled { number = try await check(number...head, &turn) + 1 }
        if turn.next == nil, older > 0 { turn.next = Int.random(in: 1...older) }
        while turn.looked < older {
            let first = min(turn.next ?? 1, older)
            let last = try await check(first...min(older, first + turn.width - 1), &turn)
            turn.looked += last - first + 1
            turn.next = last % older + 1
            if turn.looked < older, ContinuousClock.now >= end || Task.isCancelled { return }
        }
        turn.looked = 0
        gauge("makegood_seals_checked_timestamp_seconds").record(Date().timeIntervalSince1970)
    }

    /// Checks the first of these blocks, and with it as many of the others as one look may take. Returns the last block
    /// that was checked.
    private func check(_ numbers: ClosedRange<Int>, _ turn: inout Turn) async throws -> Int {
        let start = ContinuousClock.now
        let findings: [SealFinding]
        let last: Int
        do {
            last = try await ledger.run(Statements.sealStretch, numbers).first ?? numbers.lowerBound
            findings = try await SealFinding.look(at: numbers.lowerBound...last, ledger.database)
        } catch {
            turn.width = max(1, turn.width / 2)
            throw error
        }
        let ofBlocks = Dictionary(grouping: findings, by: \.block)
        for number in numbers.lowerBound...last { turn.findings[number] = ofBlocks[number]?.count }
        gauge("makegood_seal_findings").record(turn.findings.values.reduce(0, +))
        for finding in findings.prefix(Self.loggedFindingsMax) { report(finding) }
        let taken = ContinuousClock.now - start
        if taken < .milliseconds(50) { turn.width = min(turn.width * 2, Self.widthMax) }
        if taken > .milliseconds(200) { turn.width = max(1, turn.width / 2) }
        try? await Task.sleep(for: taken * pause)
        return last
    }

    private static let loggedFindingsMax = 10

    private func report(_ finding: SealFinding) {
        logger.critical(
            "a sealed block is not as it was sealed",
            metadata: [
                "seal.block": "\(finding.block)", "seal.finding": "\(finding.what.rawValue)",
                "seal.row": "\(finding.row ?? "")",
            ])
    }

    private func gauge(_ label: String) -> Gauge { Gauge(label: label, factory: metrics) }
    private func counter(_ label: String) -> Counter { Counter(label: label, factory: metrics) }
}
