import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: whatever races, dies or is delivered twice, each purchase is granted once, to a receipt that showed it, and
/// every receipt has the right outcome of it (WritingVerdicts).
///
/// Method: 240 receipts of 0 to 12 transactions over 80 ids, a quarter of them restores of others, and a quarter
/// periods whose restores name no billing event, of six users, judged each by one to three of eight writers in random
/// order and batches of 1 to 40, 5 % of the verdicts transient, while sessions are ended every 50 to 150 ms. In the
/// first phase two products are not configured and purchases are held; in the second they are. After each phase,
/// queries check that all rows agree.
@Suite(.serialized, .timeLimit(.minutes(8))) struct SettleRandomTests {
    @Test("eight writers, ended sessions, transient verdicts", arguments: [1, 2, 3, 4] as [UInt64])
    func random(seed: UInt64) async throws {
        print("settle: seed \(seed)")
        try await LedgerLab.with { lab in
            var random = SeededRandom(seed: seed)
            let trial = try await SettleTrial(in: lab, random: &random)
            for phase in [SettleTrial.Phase.productsMissing, .productsConfigured] {
                try await trial.judge(in: lab, phase, seed: random.next())
                try await trial.examine(in: lab, phase, seed: seed)
            }
            #expect(
                try await lab.number("select deadlocks from pg_stat_database where datname = current_database()") == 0,
                "seed \(seed)")
        }
    }
}

/// The submissions, and Apple's answers about them.
struct SettleTrial: Sendable {
    enum Phase: Sendable { case productsMissing, productsConfigured }

    struct Receipt: Sendable {
        let posted: Posted
        let transactions: [Transaction]
    }

    static let missingProducts: Set<String> = ["p4", "p5"]
    let receipts: [Receipt]

    init(in lab: LedgerLab, random: inout SeededRandom) async throws {
        let catalogue = (0..<80).map { number in
            // The last twenty are restores: another id, the purchase of one of the first twenty.
            let original = number < 60 ? number : number - 60
            let isPeriod = original % 4 == 1
            return Transaction(
                id: "t\(number * 37 % 80)-\(number)", originalID: "o\(original)", productID: "p\(original % 6)",
                kind: isPeriod ? .autoRenewable : .nonConsumable, environment: Transaction.production,
                purchasedAt: Date(timeIntervalSince1970: 1_800_000_000),
                expiresAt: isPeriod ? Date(timeIntervalSince1970: 1_802_592_000) : nil,
                revokedAt: original % 13 == 0 ? Date(timeIntervalSince1970: 1_800_000_100) : nil,
                webOrderLineItemID: isPeriod && number < 60 ? "w\(number)" : nil)
        }
        var receipts: [Receipt] = []
        for _ in 0..<240 {
            let posted = try await lab.post("u\(Int.random(in: 0..<6, using: &random))")
            let count = Int.random(in: 0...12, using: &random)
            receipts.append(
                Receipt(posted: posted, transactions: Array(catalogue.shuffled(using: &random).prefix(count))))
        }
        self.receipts = receipts
    }

    static func decide(_ transaction: Transaction, _ phase: Phase) -> Decision {
        if transaction.revokedAt != nil { return .rejected(.refunded) }
        if phase == .productsMissing, missingProducts.contains(transaction.productID) { return .held(.productUnknown) }
        return .grant(goods: Verdict.Entry.coins, source: .poster)
    }

    // MARK: Judging

    func judge(in lab: LedgerLab, _ phase: Phase, seed: UInt64) async throws {
        var random = SeededRandom(seed: seed)
        var work: [[Receipt]] = Array(repeating: [], count: 8)
        for receipt in receipts {
            for writer in (0..<8).shuffled(using: &random).prefix(Int.random(in: 1...3, using: &random)) {
                work[writer].append(receipt)
            }
        }
        let ledgers = (0..<4).map { _ in
            Ledger(
                database: Database(
                    LedgerLab.configuration(lab.url, name: "makegood-writer"), connections: 2, logger: .silent),
                writers: 2, schedule: RetrySchedule())
        }
        try await withThrowingTaskGroup(of: Void.self) { group in
            for (writer, receipts) in work.enumerated() {
                let random = SeededRandom(seed: random.next())
                group.addTask {
                    try await write(receipts, through: ledgers[writer % 4], phase, lab, random)
                }
            }
            let killing = SeededRandom(seed: random.next())
            let killer = Task { try await Self.endSessions(of: lab, killing) }
            try await group.waitForAll()
            killer.cancel()
            #expect((try? await killer.value) ?? 0 > 0, "no session was ended: the fault was not tried")
        }
        for ledger in ledgers { await ledger.close() }
        try await lab.until("the writers' sessions end, and with them their statistics") {
            try await lab.number(
                """
                select count(*) from pg_stat_activity
                where application_name = 'makegood-writer' and datname = current_database()
                """
            ) == 0
        }
    }

    private func write(
        _ receipts: [Receipt], through ledger: Ledger, _ phase: Phase, _ lab: LedgerLab, _ random: SeededRandom
    ) async throws {
        var random = random
        var rest = receipts.shuffled(using: &random)[...]
        while !rest.isEmpty {
            let batch = rest.prefix(Int.random(in: 1...40, using: &random))
            rest = rest.dropFirst(batch.count)
            try await withThrowingTaskGroup(of: Void.self) { group in
                for receipt in batch {
                    let random = SeededRandom(seed: random.next())
                    group.addTask { try await settle(receipt, through: ledger, phase, lab, random) }
                }
                try await group.waitForAll()
            }
        }
    }

    /// As a worker does it: reads, judges, writes, and reads again the rows that were not written.
    private func settle(
        _ receipt: Receipt, through ledger: Ledger, _ phase: Phase, _ lab: LedgerLab, _ random: SeededRandom
    ) async throws {
        var random = random
        for _ in 0..<200 {
            guard
                let row = try await Self.patiently({ () throws(LedgerError) in
                    try await ledger.fetch(receipt.posted.id)
                })
            else { break }
            if row.state.isEnded { return }
            let isTransient = Int.random(in: 0..<20, using: &random) == 0
            let verdict = lab.verdict(
                receipt.posted, attempt: row.attempt, decided(receipt, phase, isTransient: isTransient, &random))
            let outcome = try await Self.patiently { () throws(LedgerError) in try await ledger.settle(verdict) }
            if let outcome, outcome.state != .received { return }
        }
        Issue.record("receipt \(receipt.posted.id) never reached a verdict")
    }

    private func decided(
        _ receipt: Receipt, _ phase: Phase, isTransient: Bool, _ random: inout SeededRandom
    ) -> Verdict.Decisions {
        if isTransient, Bool.random(using: &random) { return .receipt(.open(.appleUnavailable)) }
        guard !receipt.transactions.isEmpty else { return .receipt(.held(.noTransactionYet)) }
        var entries = receipt.transactions.map { transaction in
            Verdict.Entry(
                transaction: transaction, decision: Self.decide(transaction, phase),
                heldBy: .init(.poster, owner: receipt.posted.userID))
        }
        if isTransient {
            let index = Int.random(in: entries.indices, using: &random)
            entries[index] = .init(transaction: entries[index].transaction, decision: .open(.appleAnswer))
        }
        return .transactions(entries.shuffled(using: &random))
    }

    private static func patiently<Value: Sendable>(_ body: () async throws(LedgerError) -> Value) async throws -> Value
    {
        for _ in 0..<400 {
            do throws(LedgerError) {
                return try await body()
            } catch {
                guard error.isRetryable else { throw error }
                try await Task.sleep(for: .milliseconds(25))
            }
        }
        return try await body()
    }

    /// Ends a random session of the writers every 50 to 150 ms. Returns how many.
    private static func endSessions(of lab: LedgerLab, _ random: SeededRandom) async throws -> Int {
        var random = random
        var ended = 0
        while !Task.isCancelled {
            ended += try await lab.number(
                """
                select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity
                  where datname = current_database() and application_name = 'makegood-writer'
                  order by md5(pid::text || '\(random.next())') limit 1) p
                """)
            let pause = Int.random(in: 50...150, using: &random)
            try? await Task.sleep(for: .milliseconds(pause))
        }
        return ended
    }
}

extension SettleTrial {
    // MARK: Examining

    /// Each statement returns one row per violation.
    private static let laws: [(name: String, sql: String)] = [
        (
            "a granted outcome is its receipt's grant, and the other way round",
            """
            select o.transaction_id from (select * from outcomes where state = 'granted') o
            full join grants g on g.transaction_id = o.transaction_id and g.receipt_id = o.receipt_id
            where o.receipt_id is null or g.receipt_id is null
            """
        ),
        (
            "already granted names an owner: this user, or another one",
            """
            select o.transaction_id from outcomes o join receipts r on r.id = o.receipt_id
            where o.state = 'already_granted' and not exists (
              select from grants g left join transactions t on t.transaction_id = o.transaction_id
              where (g.transaction_id = o.transaction_id
                  or g.purchase_key = 'Production/purchase/' || t.original_transaction_id
                  or starts_with(g.period_key, 'Production/until/' || t.original_transaction_id || '/'))
                and (g.user_id = r.user_id) = (o.reason is null)
                and (o.reason is null or o.reason = 'owned_by_another_user'))
            """
        ),
        (
            "a grant is its receipt's user's",
            "select g.transaction_id from grants g join receipts r on r.id = g.receipt_id where g.user_id <> r.user_id"
        ),
        (
            "one event for each grant",
            """
            select g.transaction_id from grants g
              left join events e on e.transaction_id = g.transaction_id and e.type = 'purchase.granted'
            group by 1 having count(e.event_id) <> 1
            union all select transaction_id from events
              where type = 'purchase.granted' and transaction_id not in (select transaction_id from grants)
            """
        ),
        (
            "a hold of a known owner is told, once for each reason, and nothing else is told as held",
            """
            select o.transaction_id from (
              select distinct transaction_id, reason from outcomes
              where state = 'held' and reason in (\(Reason.toldToOwner.map { "'\($0.rawValue)'" }.joined(separator: ",")))
                and binding_source is not null) o
              left join events e on e.transaction_id = o.transaction_id and e.type = 'purchase.held'
                and e.body ->> 'reason' = o.reason
            group by o.transaction_id, o.reason having count(e.event_id) <> 1
            union all select e.transaction_id from events e
            where e.type = 'purchase.held' and not exists (
              select from receipts r where r.id = e.receipt_id and r.user_id = e.user_id)
            """
        ),
        (
            "a receipt is the first of its outcomes that applies",
            """
            select r.id::text from receipts r join (
              select receipt_id, case when bool_or(state = 'open') then 'received'
                when bool_or(state = 'held') then 'held' when bool_or(state = 'granted') then 'granted'
                when bool_or(state = 'already_granted') then 'already_granted' else 'rejected' end as state
              from outcomes group by 1) o on o.receipt_id = r.id
            where r.state <> o.state
            """
        ),
        ("no outcome is open", "select transaction_id from outcomes where state = 'open'"),
        ("no receipt is still received", "select id::text from receipts where state in ('received', 'parked')"),
        (
            "an attempt is counted once",
            """
            select r.id::text from receipts r left join attempts a on a.receipt_id = r.id
            group by r.id, r.attempt having count(a.attempt) <> r.attempt or coalesce(max(a.attempt), 0) <> r.attempt
            """
        ),
    ]

    func examine(in lab: LedgerLab, _ phase: Phase, seed: UInt64) async throws {
        for law in Self.laws {
            let violations = try await lab.texts(law.sql)
            #expect(violations == [], "seed \(seed), \(phase): \(law.name)")
        }
        #expect(try await lab.number("select count(*) from receipts") == receipts.count)
        #expect(
            try await lab.number("select count(*) from outcomes") == receipts.map(\.transactions.count).reduce(0, +))
        // Every purchase that may be granted is granted, and no other.
        let keys = receipts.flatMap(\.transactions).filter {
            if case .grant = Self.decide($0, phase) { true } else { false }
        }.map { $0.periodKey ?? $0.purchaseKey }
        let granted = try await lab.texts("select coalesce(period_key, purchase_key) from grants")
        #expect(Set(granted) == Set(keys), "seed \(seed), \(phase)")
        #expect(granted.count == Set(keys).count, "seed \(seed), \(phase)")
        let held = try await lab.number(
            "select count(*) from receipts where state = 'held' and reason = 'product_unknown'")
        switch phase {
        case .productsMissing: #expect(held > 0, "no purchase was held: the phase was not tried")
        case .productsConfigured: #expect(held == 0, "seed \(seed)")
        }
        #expect(try await Invariant.check(lab.database, scale: 0) == [], "seed \(seed), \(phase)")
    }
}
