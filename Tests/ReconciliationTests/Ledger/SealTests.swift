import Foundation
import Logging
import Postgres
import Purchases
import Synchronization
import TestRandom
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Support

/// Goal: a sealed row that the database's owner edits, deletes or adds is named with its block, whether the owner
/// leaves the seals alone or writes them anew, and nothing that happens by right is (L2). Method: verdicts, follow-ups
/// and erasures through their own statements; then each change in a transaction that is rolled back.
@Suite(.timeLimit(.minutes(8))) struct SealTests {
    @Test("L2: one row edited, deleted or added, the seals left alone or written anew: named, 100 of 100")
    func tampered() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "seals")
            try await lab.fillSealed()
            let blocks = try await lab.sealedBlocks()
            #expect(blocks.count >= 8 && Set(blocks.flatMap(\.names)).count >= 60)
            #expect(try await lab.sealFindings() == [])
            let heads = try await lab.database.run(Statements.sealHeads, 1000)
            var seen: Set<String> = []
            for number in 0..<100 {
                let tampering = Tampering.random(in: blocks, number, &random)
                seen.insert("\(tampering.table) \(tampering.what) \(tampering.isResealed)")
                let comment: Comment = "\(tampering), seed \(random.seed)"
                try await lab.withSession { session in
                    try await session.run(.begin)
                    for sql in tampering.sql { try await session.run(Statement<Void, Void>("test.tamper", sql)) }
                    guard tampering.isResealed else {
                        var found: [SealFinding] = []
                        for block in blocks { found += try await SealFinding.look(at: block.number, session) }
                        #expect(found == [tampering.finding], comment)
                        #expect(
                            try await SealFinding.look(at: 1...blocks.count, session) == [tampering.finding], comment)
                        try await session.run(.rollback)
                        return
                    }
                    try await session.run(Statement<Void, Void>("test.unseal", "delete from seals"))
                    var previous = [UInt8](repeating: 0, count: 32)
                    for block in blocks {
                        let plan = SealPlan(
                            number: block.number, previousHash: previous, firstXID: block.firstXID,
                            endXID: block.endXID, rows: 1, isMore: true, behindSeconds: 0, readAt: .now)
                        previous = try #require(try await session.run(Statements.seal, plan).first).head.hash
                        #expect(try await SealFinding.look(at: block.number, session) == [], comment)
                    }
                    let compared = try await SealFinding.compare(heads, session)
                    #expect(compared.agreeing == tampering.block - 1, comment)
                    #expect(compared.findings.first == SealFinding(block: tampering.block, what: .rewritten), comment)
                    #expect(compared.findings.count == blocks.count - compared.agreeing, comment)
                    try await session.run(.rollback)
                }
            }
            #expect(seen.count == 24, "each of four tables, three changes and two ways")
            #expect(try await lab.sealFindings() == [])
        }
    }

    @Test("L2: blocks that are deleted, changed or exchanged are named")
    func blocks() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.fillSealed()
            let heads = try await lab.database.run(Statements.sealHeads, 1000)
            let last = try #require(heads.first?.number)
            for (sql, what) in [
                ("delete from seals where number = 2", [SealFinding.What.missing]),
                ("update seals set hash = sha256(hash) where number = 2", [.resealed]),
                ("update seals set previous_hash = sha256(hash) where number = 2", [.resealed]),
                ("update seals set hashes[1] = sha256(hashes[1]) where number = 2", [.resealed, .edited]),
            ] {
                try await lab.withSession { session in
                    try await session.run(.begin)
                    try await session.run(Statement<Void, Void>("test.tamper", sql))
                    #expect(try await SealFinding.look(at: 2, session).map(\.what) == what, "\(sql)")
                    try await session.run(.rollback)
                }
            }
            // Only a head that left the database shows that the newest blocks are gone.
            try await lab.run("delete from seals where number >= \(last - 1)")
            #expect(try await lab.sealFindings() == [])
            let compared = try await SealFinding.compare(heads, lab.database)
            #expect(compared.agreeing == last - 2)
            #expect(compared.findings.map(\.what) == [.missing, .missing])
        }
    }

    @Test(
        "L2: erasures, reopened receipts, merges, moves and support's decisions are no finding, sealed before or after")
    func byRight() async throws {
        for isSealedFirst in [true, false] {
            try await LedgerLab.with(endsSound: false) { lab in
                func seal() async throws { if isSealedFirst { try await lab.sealAll() } }
                let repairs = Repairs(database: lab.database, actor: "ann")
                // Held, then granted; rejected, then judged again.
                let held = try await lab.post()
                try await lab.settle(held, .purchase("h1", .held(.productUnknown)))
                let rejected = try await lab.post()
                try await lab.settle(rejected, .purchase("r1", .rejected(.wrongApp)))
                // A purchase that was refused because another user has it, and one that Apple takes back.
                let period = Verdict.Entry.purchase("p1", of: "first", kind: .autoRenewable)
                var match = Match(userID: "u1", source: .poster)
                match.takesChain = true
                try await lab.settle(
                    try await lab.post("u1"),
                    Verdict.Entry(transaction: period.transaction, decision: period.decision, match: match))
                let claim = try await lab.post("u2")
                try await lab.settle(claim, period)
                try await lab.settle(try await lab.post("u1"), .purchase("t1", signedAt: LedgerLab.bought + 10))
                try await lab.hear(Verdict.Entry.purchase("t1").transaction.refunded(60))
                #expect(try await lab.followUp().revocations == 1)
                try await seal()

                #expect(try await lab.settle(held, .purchase("h1")) == .granted)
                #expect(try await repairs.rejudge("game", reason: nil, since: nil) == 1)
                #expect(try await lab.settle(rejected, attempt: 1, .purchase("r1")) == .granted)
                #expect(try await repairs.decideOwner("u2", of: "p1", appID: "game") == "u1")
                #expect(try await lab.reopen(claim))
                #expect(try await lab.settle(claim, attempt: 1, period) == .alreadyGranted)
                #expect(try await lab.merge("guest", into: "u1") == .merged)
                try await seal()
                #expect(try await lab.sealFindings() == [])
                var again: Set<String> = []
                for block in try await lab.sealedBlocks() {
                    again.formUnion(
                        try await lab.database.run(Statements.decidedAgain, block.number).map {
                            $0.suffix(2).description
                        })
                }
                #expect(again == (isSealedFirst ? ["h1", "p1", "r1"] : []))

                let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
                #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
                #expect(try await lab.number("select count(*) from grants where user_id = 'u1'") == 0)
                #expect(try await lab.sealFindings() == [])
                try await lab.sealAll()
                #expect(try await lab.sealFindings() == [])
                #expect(
                    try await lab.texts("select distinct split_part(name, ' ', 1) from seal_corrections order by 1")
                        == ["audit", "grant", "revocation"])
                // An erased row is sealed all the same, and a tombstone without an audit is none by right.
                try await lab.run("update grants set quantity = quantity + 1 where transaction_id = 't1'")
                #expect(try await lab.sealFindings().map(\.row) == ["grant t1"])
                try await lab.run("update grants set quantity = quantity - 1 where transaction_id = 't1'")
                try await lab.run("delete from audits where action = 'users.erase'")
                #expect(Set(try await lab.sealFindings().map(\.what)) == [.deleted, .uncaused])
            }
        }
    }

    @Test("L2: a block ends before a transaction that runs; two sealers beside writers seal each row once")
    func concurrent() async throws {
        try await LedgerLab.with(connections: 6, endsSound: false) { lab in
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(
                    Statement<Void, Void>(
                        "test.late", "insert into audits (actor, action, details) values ('ann', 'late', '{}')"))
                try await lab.settle(try await lab.post(), .purchase("t0"))
                let late = try #require(
                    try await session.run(
                        Statement<Void, Int>(
                            "test.xid", "select pg_current_xact_id()::text::bigint",
                            read: { row throws(PostgresError) in try row.int(0) })
                    ).first)
                var memory = Sealer.Memory()
                let sealer = Sealer(ledger: lab.ledger, logger: .silent, pause: 0)
                for _ in 0..<3 { try await sealer.sealAll(&memory) }
                #expect(try await lab.sealedBlocks().allSatisfy { $0.endXID <= late })
                #expect(try await !lab.sealedBlocks().flatMap(\.names).contains("grant t0"))
                try await session.run(.commit)
            }
            let isWritten = Written()
            try await withThrowingTaskGroup(of: Void.self) { group in
                for _ in 0..<2 {
                    group.addTask {
                        var memory = Sealer.Memory(transactions: 3)
                        let sealer = Sealer(ledger: lab.ledger, logger: .silent, pause: 0)
                        while !isWritten.isSet { try await sealer.sealAll(&memory) }
                    }
                }
                try await withThrowingTaskGroup(of: Void.self) { settling in
                    for writer in 0..<3 {
                        settling.addTask {
                            for number in 0..<30 {
                                let posted = try await lab.post("u\(writer)")
                                _ = try await lab.ledger.settle(
                                    lab.verdict(posted, .transactions([.purchase("w\(writer)-\(number)")])))
                            }
                        }
                    }
                    try await settling.waitForAll()
                }
                isWritten.set()
                try await group.waitForAll()
            }
            try await lab.sealAll()
            let names = try await lab.sealedBlocks().flatMap(\.names)
            #expect(names.count == Set(names).count)
            #expect(names.count { $0.hasPrefix("grant w") } == 90 && names.contains("grant t0"))
            #expect(
                try await names.count
                    == lab.number(
                        """
                        select (select count(*) from grants) + (select count(*) from outcomes)
                          + (select count(*) from revocations) + (select count(*) from audits)
                        """))
            #expect(try await lab.sealFindings() == [])
        }
    }

    @Test("L2: after a dump was loaded into a server with smaller transaction numbers, seals continue and name changes")
    func elsewhere() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            try await lab.settle(try await lab.post(), .purchase("t2"))
            // As another server wrote them: numbers that this one reaches in years.
            try await lab.run("update grants set xid = xid + 1000000000000")
            try await lab.run("alter table outcomes disable trigger outcomes_place")
            try await lab.run("update outcomes set xid = xid + 1000000000000")
            try await lab.run("alter table outcomes enable trigger outcomes_place")
            let first = try await lab.number("select min(xid) from grants")
            let plan = SealPlan(
                number: 1, previousHash: [UInt8](repeating: 0, count: 32), firstXID: 0, endXID: first + 1, rows: 1,
                isMore: true, behindSeconds: 0, readAt: .now)
            #expect(try await lab.database.run(Statements.seal, plan).first?.rows == 2)
            try await lab.settle(try await lab.post(), .purchase("t3"))
            try await lab.sealAll()
            let names = try await lab.sealedBlocks().flatMap(\.names).filter { $0.hasPrefix("grant") }
            #expect(names == ["grant t1", "grant t2", "grant t3"])
            #expect(try await lab.sealFindings() == [])
            try await lab.settle(try await lab.post(), .purchase("t4"))
            #expect(try await lab.sealFindings() == [], "it is not sealed yet")
            try await lab.sealAll()
            #expect(try await lab.sealFindings() == [])
            try await lab.run("delete from grants where transaction_id = 't2'")
            try await lab.run("update grants set user_id = 'thief' where transaction_id = 't4'")
            #expect(
                Set(try await lab.sealFindings().map { "\($0.what.rawValue) \($0.row ?? "")" }) == [
                    "deleted grant t2", "edited grant t4",
                ])
        }
    }

    @Test("the scheduler seals, finds what was changed and heads that were written anew")
    func sealer() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let lines = LogLines()
            let registry = PrometheusRegistry()
            let sealer = Sealer(ledger: lab.ledger, logger: lines.logger, pause: 0, metrics: registry)
            func value(_ name: String) -> Double? {
                registry.text.split(separator: "\n").first { $0.hasPrefix("\(name) ") }
                    .flatMap { Double($0.dropFirst(name.count + 1)) }
            }
            try await lab.fillSealed()
            var memory = Sealer.Memory()
            try await sealer.sealAll(&memory)
            let head = try #require(try await lab.database.run(Statements.sealHeads, 1).first)
            #expect(memory.head == head && memory.logged == head)
            #expect(value("makegood_seals_rewritten") == 0)
            var turn = Sealer.Turn()
            try await sealer.check(&turn, for: .seconds(60))
            #expect(value("makegood_seal_findings") == 0)
            #expect(value("makegood_seals_checked_timestamp_seconds") ?? 0 > 0)
            _ = lines.take()

            try await lab.run("update grants set user_id = 'thief' where transaction_id = 'g1'")
            try await sealer.check(&turn, for: .seconds(60))
            #expect(value("makegood_seal_findings") == 1)
            #expect(lines.take().contains { $0.level == .critical && $0.metadata["seal.row"] == "grant g1" })
            try await lab.run("update grants set user_id = 'u1' where transaction_id = 'g1'")
            try await sealer.check(&turn, for: .seconds(60))
            #expect(value("makegood_seal_findings") == 0)

            try await lab.run("update seals set hash = sha256(hash) where number = \(head.number)")
            try await sealer.sealAll(&memory)
            #expect(value("makegood_seals_rewritten") == 1)
            #expect(lines.take().contains { $0.metadata["seal.finding"] == "rewritten" })
        }
    }
}

/// One change of the owner's, and what must be found.
private struct Tampering: CustomStringConvertible {
    var table = ""
    var what = SealFinding.What.edited
    var isResealed = false
    var block = 0
    var row = ""
    var sql: [String] = []

    var finding: SealFinding { SealFinding(block: block, what: what, row: row) }
    var description: String { "\(sql.joined(separator: "; ")) in block \(block), resealed: \(isResealed)" }

    /// The changes of a row of each table that its constraints allow.
    private static let edits = [
        "grants": [
            "user_id = 'thief'", "quantity = quantity + 1", "goods = '[]'", "product_id = product_id || 'x'",
            "binding_source = 'x'", "is_entitling = is_entitling is not true", "customer_id = 'x'", "item = 'x'",
            "granted_at = granted_at + interval '1 microsecond'", "environment = 'Sandbox'", "app_id = 'x'",
            "purchase_key = purchase_key || 'x'", "receipt_id = gen_random_uuid()",
        ],
        "outcomes": [
            "state = 'already_granted'", "state = 'rejected'", "reason = 'x'", "binding_source = 'x'",
            "decided_at = decided_at + interval '1 microsecond'", "reasons = '{x,y}'", "granted_as = 'x'",
            "safe_at = now()",
        ],
        "revocations": [
            "user_id = 'thief'", "goods = '[{\"item\": \"coin\", \"amount\": 61}]'", "takes_back = not takes_back",
            "percentage = (percentage + 1) % 100001", "at = at + interval '1 microsecond'", "app_id = 'x'",
            "reason = 'withdrawn'", "recorded_at = recorded_at + interval '1 microsecond'",
        ],
        "audits": [
            "actor = actor || 'x'", "action = 'x'", "details = details || '{\"x\": 1}'",
            "details = details || '{\"user\": \"thief\"}'", "at = at + interval '1 microsecond'",
        ],
    ]

    /// - Parameter number: counts the changes, so that each kind comes.
    static func random(
        in blocks: [SealedRows], _ number: Int, _ random: inout SeededRandom
    ) -> Tampering {
        let tables = ["grants", "outcomes", "revocations", "audits"]
        let kinds = [SealFinding.What.edited, .deleted, .inserted]
        var tampering = Tampering()
        tampering.table = tables[number % 4]
        tampering.what = kinds[number / 4 % 3]
        tampering.isResealed = number / 12 % 2 == 1
        let kind = String(tampering.table.dropLast())
        let rows = blocks.flatMap { block in
            block.names.filter { $0.hasPrefix(kind + " ") }.map { (block: block, name: $0) }
        }
        let (block, name) = rows.randomElement(using: &random) ?? (blocks[0], "")
        tampering.block = block.number
        tampering.row = name
        let parts = name.split(separator: " ").map(String.init)
        let table = tampering.table
        let place =
            switch table {
            case "grants": "transaction_id = '\(parts[1])'"
            case "outcomes": "receipt_id = '\(parts[1])' and transaction_id = '\(parts[2])'"
            case "revocations": "transaction_id = '\(parts[1])' and ordinal = \(parts[2])"
            default: "id = \(parts[1])"
            }
        switch tampering.what {
        case .deleted: tampering.sql = ["delete from \(table) where \(place)"]
        case .inserted:
            let (change, added) =
                switch table {
                case "grants":
                    (
                        #"{"transaction_id": "forged", "purchase_key": "f", "period_key": null, "order_id": null}"#,
                        "grant forged"
                    )
                case "outcomes": (#"{"transaction_id": "forged"}"#, "outcome \(parts[1]) forged")
                case "revocations": (#"{"ordinal": 99}"#, "revocation \(parts[1]) 99")
                default: (#"{"id": 999999}"#, "audit 999999")
                }
            tampering.row = added
            tampering.sql = [
                """
                insert into \(table) overriding system value
                select (jsonb_populate_record(r, '\(change)')).* from \(table) r where \(place)
                """
            ]
        default:
            let edit = edits[table]?.randomElement(using: &random) ?? ""
            tampering.sql = ["update \(table) set \(edit) where \(place)"]
        }
        return tampering
    }
}

/// Whether all writers have ended.
private final class Written: Sendable {
    private let value = Atomic<Bool>(false)

    var isSet: Bool { value.load(ordering: .relaxed) }
    func set() { value.store(true, ordering: .relaxed) }
}

/// A block as the tests read it.
struct SealedRows: Sendable {
    let number: Int
    let firstXID: Int
    let endXID: Int
    let names: [String]
}

extension LedgerLab {
    /// Twelve rounds of purchases, refunds and audits, each sealed.
    func fillSealed() async throws {
        for round in 0..<12 {
            let posted = try await post()
            try await settle(
                posted, .purchase("g\(2 * round)", signedAt: Self.bought + 10),
                .purchase("g\(2 * round + 1)", signedAt: Self.bought + 10))
            try await hear(Verdict.Entry.purchase("g\(2 * round)").transaction.refunded(60))
            #expect(try await followUp().revocations == 1)
            try await run(
                """
                insert into audits (actor, action, details)
                values ('ann', 'users.merge', '{"app": "game", "user": "guest\(round)", "into": "u1"}'),
                  ('ann', 'queue.pause', '{"app": "game"}')
                """)
            try await sealAll()
        }
    }

    /// Seals every row. Other tests' transactions on the same server may hold up the end of a block for a moment.
    func sealAll() async throws {
        var memory = Sealer.Memory()
        let sealer = Sealer(ledger: ledger, logger: .silent, pause: 0)
        try await until("rows are left that no block has") {
            try await sealer.sealAll(&memory)
            return try await number(
                """
                select (select count(*) from (
                    select 'grant ' || transaction_id as name from grants
                    union all select 'outcome ' || receipt_id || ' ' || transaction_id from outcomes
                    union all select 'revocation ' || transaction_id || ' ' || ordinal from revocations
                    union all select 'audit ' || id from audits
                    union all select 'correction ' || id from seal_corrections) r
                  where name not in (select unnest(names) from seals))
                + (select count(*) from outcomes
                  where xid >= (select end_xid from seals order by number desc limit 1) and xid < 1000000000000)
                """) == 0
        }
    }

    /// The findings of all blocks.
    func sealFindings() async throws -> [SealFinding] {
        var findings: [SealFinding] = []
        for block in try await sealedBlocks() { findings += try await SealFinding.look(at: block.number, database) }
        return findings
    }

    func sealedBlocks() async throws -> [SealedRows] {
        try await database.run(
            Statement<Void, SealedRows>(
                "test.seals", "select number, first_xid, end_xid, names from seals order by number",
                read: { row throws(PostgresError) in
                    SealedRows(
                        number: try row.int(0), firstXID: try row.int(1), endXID: try row.int(2),
                        names: try row.texts(3))
                }))
    }
}
