import Foundation
import TestServers
import Testing

@testable import Postgres

/// Goal: a transaction writes everything or nothing, whatever goes wrong in which round, and never stalls.
@Suite(.database, .serialized, .timeLimit(.minutes(2))) struct DatabaseTransactionTests {
    private static let create = Statement<Void, Void>(
        "test.create", "create table if not exists kept (id int primary key, text text)")
    private static let clear = Statement<Void, Void>("test.clear", "delete from kept")
    private static let keep = Statement<Int, Int>(
        "test.keep", "insert into kept (id) values ($1) returning id", bind: { [.int32($0)] },
        read: { row throws(PostgresError) in try row.int(0) })
    private static let kept = Statement<Void, Int>(
        "test.kept", "select id from kept order by id", read: { row throws(PostgresError) in try row.int(0) })
    private static let echo = Statement<String, String>(
        "test.echo", "select $1", bind: { [.text($0)] }, read: { row throws(PostgresError) in try row.text(0) })

    private func withTable(
        namedStatements: Bool = true, _ body: (Database) async throws -> Void
    ) async throws {
        try await withDatabase({ $0.namedStatements = namedStatements }) { database in
            try await database.run(Self.create)
            try await database.run(Self.clear)
            try await body(database)
        }
    }

    @Test("a round sees what the rounds before it wrote, and the commit keeps all", arguments: [true, false])
    func commits(namedStatements: Bool) async throws {
        try await withTable(namedStatements: namedStatements) { database in
            for number in 0..<3 {
                let seen = try await database.transact("test.transaction") { transaction throws(PostgresError) in
                    let first = transaction.queue(Self.keep, number * 10 + 1)
                    transaction.queue(Self.keep, number * 10 + 2)
                    try transaction.exchange()
                    let seen = transaction.queue(Self.kept, ())
                    transaction.queue(Self.keep, number * 10 + 3)
                    try transaction.commit()
                    return first.rows + seen.rows
                }
                #expect(seen.suffix(2) == [number * 10 + 1, number * 10 + 2] && seen.first == number * 10 + 1)
            }
            let kept = try await database.run(Self.kept)
            #expect(kept == [1, 2, 3, 11, 12, 13, 21, 22, 23])
        }
    }

    @Test("a snapshot reads one state of the database; any other transaction may write", arguments: [true, false])
    func snapshot(namedStatements: Bool) async throws {
        let mode = Statement<Void, String>(
            "test.mode",
            "select current_setting('transaction_isolation') || ' ' || current_setting('transaction_read_only')",
            read: { row throws(PostgresError) in try row.text(0) })
        try await withTable(namedStatements: namedStatements) { database in
            for (isSnapshot, expected) in [(true, "repeatable read on"), (false, "read committed off")] {
                let modes = try await database.transact("test.snapshot", isSnapshot: isSnapshot) {
                    transaction throws(PostgresError) in
                    let first = transaction.queue(mode, ())
                    try transaction.exchange()
                    let second = transaction.queue(mode, ())
                    try transaction.commit()
                    return first.rows + second.rows
                }
                #expect(modes == [expected, expected])
            }
            // The connection is as it was.
            try await database.run(Self.keep, 1)
            #expect(try await database.run(mode) == ["read committed off"])
        }
    }

    @Test("without a commit nothing is kept, and the connection serves the next call")
    func rollsBack() async throws {
        try await withTable { database in
            try await database.transact("test.transaction") { transaction throws(PostgresError) in
                transaction.queue(Self.keep, 1)
                try transaction.exchange()
            }
            let kept = try await database.run(Self.kept)
            #expect(kept == [])
        }
    }

    @Test("the first error of a round ends the transaction, in any round", arguments: [true, false])
    func fails(namedStatements: Bool) async throws {
        try await withTable(namedStatements: namedStatements) { database in
            for isLast in [false, true] {
                await #expect(throws: PostgresError.data(sqlState: "23505", statement: "test.keep")) {
                    try await database.transact("test.transaction") { transaction throws(PostgresError) in
                        transaction.queue(Self.keep, 1)
                        if isLast { try transaction.exchange() }
                        transaction.queue(Self.keep, 1)
                        transaction.queue(Self.keep, 2)
                        try transaction.commit()
                    }
                }
                let kept = try await database.run(Self.kept)
                #expect(kept == [])
            }
        }
    }

    @Test("a value that cannot be sent fails before anything is sent")
    func refusesValues() async throws {
        try await withTable { database in
            await #expect(throws: PostgresError.data(sqlState: "22021", statement: "test.echo")) {
                try await database.transact("test.transaction") { transaction throws(PostgresError) in
                    transaction.queue(Self.keep, 1)
                    transaction.queue(Self.echo, "a\0")
                    try transaction.commit()
                }
            }
            let kept = try await database.run(Self.kept)
            #expect(kept == [])
        }
    }

    @Test("prepared statements that are gone are prepared anew, once, and the transaction begins again")
    func preparesAnew() async throws {
        try await withTable { database in
            for number in 1...3 {
                try await database.transact("test.transaction") { transaction throws(PostgresError) in
                    transaction.queue(Self.keep, number)
                    try transaction.commit()
                }
                try await database.run(Statement<Void, Void>("test.discard", "discard plans"))
                try await database.run(Statement<Void, Void>("test.deallocate", "deallocate all"))
            }
            let kept = try await database.run(Self.kept)
            #expect(kept == [1, 2, 3])
        }
    }

    @Test("a round much larger than the buffers of both sides does not stall")
    func largeRounds() async throws {
        try await withTable { database in
            let text = String(repeating: "x", count: 1 << 20)
            let lengths = try await database.transact("test.transaction") { transaction throws(PostgresError) in
                let replies = (0..<24).map { _ in transaction.queue(Self.echo, text) }
                try transaction.commit()
                return replies.map { $0.rows.first?.utf8.count }
            }
            #expect(lengths == Array(repeating: 1 << 20, count: 24))
        }
    }

    @Test("the server ends a transaction whose next round does not come: nothing is kept, and locks are free")
    func idles() async throws {
        try await withTable { database in
            await #expect(throws: PostgresError.lost) {
                try await database.transact("test.transaction") { transaction throws(PostgresError) in
                    transaction.queue(Self.keep, 1)
                    try transaction.exchange()
                    Thread.sleep(forTimeInterval: 1.5)
                    try transaction.commit()
                }
            }
            let kept = try await database.run(Self.kept)
            #expect(kept == [])
        }
    }
}
