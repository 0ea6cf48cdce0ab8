import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: however many receipts of one user are due, others' receipts are claimed beside them and not behind them.
/// Method: due rows made by SQL, claims as the scheduler makes them.
@Suite(.timeLimit(.minutes(8))) struct SchedulerFeedTests {
    private static let flood = 2000
    private static let others = 20

    private func claim(_ limit: Int, in lab: LedgerLab) async throws -> Set<UUID> {
        let claimed = try await lab.ledger.run(
            Statements.claim,
            .init(
                lane: .local, apps: ["game"], limit: limit, rescueDelay: .seconds(10), rescueDelayMax: .seconds(3600)))
        return Set(claimed.map(\.id))
    }

    /// Stores rows of the local lane; `whose` is SQL of `user_id, order_id` for number n, and each row has been due for
    /// `seconds` more than its number.
    private func fill(_ count: Int, _ whose: String, dueFor seconds: Int, in lab: LedgerLab) async throws {
        try await lab.run(
            """
            insert into receipts (id, app_id, user_id, order_id, kind, lane, is_vouched, details, payload_sha256, due_at)
            select gen_random_uuid(), 'game', \(whose), 'signed_transaction', 'local', false, '{}', '\\x00',
              now() - make_interval(secs => \(seconds) + n)
            from generate_series(1, \(count)) n
            """)
    }

    private func ids(_ condition: String, in lab: LedgerLab) async throws -> Set<UUID> {
        Set(
            try await lab.texts("select id::text from receipts where \(condition)").compactMap(
                UUID.init(uuidString:)))
    }

    @Test("2,000 due rows of one user are older than 20 of others, and those are among the first 40")
    func turns() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await fill(Self.flood, "'flood', null", dueFor: 1000, in: lab)
            try await fill(Self.others, "'u' || n, null", dueFor: 1, in: lab)
            let others = try await ids("user_id <> 'flood'", in: lab)
            let oldest = try await ids(
                "user_id = 'flood' and due_at <= now() - interval '\(1000 + Self.flood - Self.others) seconds'", in: lab
            )
            #expect(others.count == Self.others)
            let first = try await claim(2 * Self.others, in: lab)
            #expect(first.count == 2 * Self.others)
            #expect(first.isSuperset(of: others))
            // The rest of the places goes to the oldest rows.
            #expect(first.subtracting(others).isSubset(of: oldest))
            // If only one user's rows are left, they are claimed alone.
            #expect(try await claim(600, in: lab).count == 600)
            var left = Self.flood - Self.others - 600
            while left > 0 {
                let claimed = try await claim(600, in: lab).count
                #expect(claimed == min(left, 600))
                guard claimed > 0 else { return }
                left -= claimed
            }
            #expect(try await claim(600, in: lab).isEmpty)
        }
    }

    @Test("Beyond the rows that take turns no row is lost: once some are claimed, the next take turns")
    func window() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await fill(Statements.turnsMax, "'flood', null", dueFor: 1000, in: lab)
            try await fill(1, "'u1', null", dueFor: 1, in: lab)
            let other = try await ids("user_id = 'u1'", in: lab)
            #expect(try await claim(10, in: lab).isDisjoint(with: other))
            #expect(try await claim(10, in: lab).isSuperset(of: other))
        }
    }

    @Test("Without a user the order is the user: each order has its turn")
    func orders() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await fill(50, "null, 'o1'", dueFor: 1000, in: lab)
            try await fill(3, "null, 'other' || n", dueFor: 1, in: lab)
            #expect(try await claim(4, in: lab).isSuperset(of: ids("order_id <> 'o1'", in: lab)))
        }
    }
}
