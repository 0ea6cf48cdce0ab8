import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: the same submission is one row, one payload and one count, however often, wherever and how concurrently it is
/// posted; and a stored submission is read back unchanged.
@Suite(.timeLimit(.minutes(8))) struct InsertTests {
    private static func submission(_ number: Int, app: String = "game") -> Submission {
        Submission(
            appID: app, userID: "u\(number % 7)", proof: .receipt("receipt \(number)"), details: #"{"n": \#(number)}"#)
    }

    @Test("S1-2, P4: posted 100 times in one burst it is new once")
    func burst() async throws {
        try await LedgerLab.with { lab in
            let news = try await withThrowingTaskGroup(of: Bool.self) { group in
                for _ in 0..<100 { group.addTask { try await lab.ledger.insert(Self.submission(1)) } }
                return try await group.reduce(into: [Bool]()) { $0.append($1) }
            }
            #expect(news.filter { $0 }.count == 1, "one pointer per new row")
            #expect(try await lab.ledger.insert(Self.submission(1)) == false)
            #expect(try await lab.number("select count(*) from receipts") == 1)
            #expect(try await lab.number("select count(*) from payloads") == 1)
            #expect(try await lab.number("select sum(received)::int from tallies") == 1)
        }
    }

    @Test(
        "tallies count what was inserted, under eight writers of two apps", arguments: [11, 12] as [UInt64])
    func tallies(seed: UInt64) async throws {
        try await LedgerLab.with(connections: 8, writers: 8) { lab in
            var random = SeededRandom(seed: seed)
            // Each of 400 submissions is posted one to four times, in random order.
            let posts = (0..<400).flatMap { number in
                Array(repeating: number, count: Int.random(in: 1...4, using: &random))
            }.shuffled(using: &random)
            let news = try await withThrowingTaskGroup(of: Int.self) { group in
                for number in posts {
                    group.addTask {
                        let submission = Self.submission(number, app: number % 3 == 0 ? "one" : "other")
                        return try await lab.ledger.insert(submission) ? 1 : 0
                    }
                }
                return try await group.reduce(0, +)
            }
            #expect(news == 400, "seed \(seed)")
            let counted = try await lab.texts(
                "select app_id || ' ' || sum(received)::text from tallies group by app_id order by 1")
            #expect(counted == ["one 134", "other 266"])
            #expect(try await lab.number("select count(*) from v_conservation where not is_exact") == 0)
        }
    }

    @Test("a row is fetched as it was posted, with the database's clock")
    func fetch() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let signed = Submission(
                appID: "game", userID: "u1", orderID: nil, proof: .signedTransaction("a.b.c"), transactionID: "7",
                originalTransactionID: "5", isVouched: true, details: #"{"item": "x", "neu": [1]}"#)
            let bare = Submission(appID: "game", userID: "u2", proof: .identifier, transactionID: "8")
            for submission in [signed, bare] { #expect(try await lab.ledger.insert(submission)) }
            let row = try #require(try await lab.ledger.fetch(signed.receiptID))
            #expect(row.proof == signed.proof && row.userID == "u1" && row.transactionID == "7")
            #expect(row.originalTransactionID == "5" && row.isVouched && row.hasPayload)
            #expect(row.lane == .local && row.state == .received && row.attempt == 0 && row.reason == nil)
            #expect(row.readAt >= row.receivedAt && row.readAt.timeIntervalSince(row.receivedAt) < 60)
            let question = try #require(try await lab.ledger.fetch(bare.receiptID))
            #expect(question.proof == .identifier && question.hasPayload && question.lane == .apple)
            #expect(try await lab.ledger.fetch(UUID()) == nil)
            #expect(try await lab.number("select count(*) from payloads") == 1, "a bare id has no payload")
            let waits = try await lab.texts(
                "select lane || ' ' || extract(epoch from due_at - received_at)::int from receipts order by 1")
            #expect(waits == ["apple 60", "local 10"])
            try await lab.run("delete from stored_payloads")
            #expect(try await lab.ledger.fetch(signed.receiptID)?.hasPayload == false)
        }
    }

    @Test("S1-18: a submission without a user is its order's user's, of the same app only")
    func orderUser() async throws {
        try await LedgerLab.with { lab in
            let order = UUID()
            try await lab.run(
                "insert into orders (id, app_id, user_id, product_id) values ('\(order)', 'game', 'u9', 'coins')")
            for (app, orderID, expected) in [
                ("game", order.uuidString, "u9" as String?), ("other", order.uuidString, nil), ("game", "no uuid", nil),
                ("game", UUID().uuidString, nil),
            ] {
                let submission = Submission(
                    appID: app, userID: nil, orderID: orderID, proof: .receipt(UUID().uuidString))
                #expect(try await lab.ledger.insert(submission))
                #expect(try await lab.ledger.fetch(submission.receiptID)?.userID == expected, "\(app)")
            }
            let named = Submission(
                appID: "game", userID: "u1", orderID: order.uuidString, proof: .receipt("x"))
            #expect(try await lab.ledger.insert(named))
            #expect(try await lab.ledger.fetch(named.receiptID)?.userID == "u1", "the poster stays the poster")
        }
    }

    @Test("payloads go to the partition of their day, and partitions are made once by any number of schedulers")
    func partitions() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            #expect(try await lab.ledger.insert(Self.submission(1)))
            try await withThrowingTaskGroup(of: Void.self) { group in
                for _ in 0..<4 {
                    group.addTask { _ = try await lab.ledger.run(Statements.createPayloadPartitions, 3) }
                }
                try await group.waitForAll()
            }
            let partitions = try await lab.number(
                "select count(*) from pg_inherits where inhparent = 'stored_payloads'::regclass")
            #expect(partitions == 4, "three days to come beside the default")
            try await lab.run(
                """
                insert into stored_payloads (receipt_id, received_on, body)
                select gen_random_uuid(), (now() at time zone 'UTC')::date + 2, 'later'
                """)
            let name = try await lab.texts(
                """
                select (tableoid::regclass::text = 'payloads_'
                  || to_char((now() at time zone 'UTC')::date + 2, 'YYYYMMDD'))::text
                from stored_payloads where body = 'later'
                """)
            #expect(name == ["true"])
            let today = try await lab.texts(
                "select tableoid::regclass::text from stored_payloads where body like 'receipt%'")
            #expect(today == ["payloads_default"])
            #expect(try await lab.ledger.insert(Self.submission(2)))
        }
    }
}
