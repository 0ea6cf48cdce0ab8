import Foundation
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Intake
@testable import Service

/// Goal: `?wait=S` answers as soon as the receipt is no longer being tried, and never later than S seconds. Method: a
/// verdict is written while requests wait, and the time is measured.
@Suite(.migratedDatabase, .serialized) struct IntakeWaitTests {
    private static func body(_ user: String) -> String {
        #"{"userId":"\#(user)","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
    }

    private static func settle(_ user: String, _ intake: RunningIntake) async throws {
        try await intake.execute(
            """
            update receipts set state='rejected', reason='signature', settled_at=now(), due_at=null
            where user_id='\(user)'
            """)
    }

    @Test("A POST and many GETs are answered together, within a few looks of 50 ms")
    func wakesUp() async throws {
        try await RunningIntake.run { intake in
            let body = Self.body("u-wait")
            guard case .string(let id)? = try await intake.post(body)["id"] else { return }
            let start = ContinuousClock.now
            let answers = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                group.addTask { try await intake.post(body, wait: "20") }
                for _ in 0..<20 { group.addTask { try await intake.get("/v1/receipts/\(id)?wait=20") } }
                try await Task.sleep(for: .milliseconds(500))
                try await Self.settle("u-wait", intake)
                return try await group.reduce(into: []) { $0.append($1) }
            }
            let waited = ContinuousClock.now - start
            #expect(answers.count == 21)
            #expect(answers.allSatisfy { $0.status == 200 && $0["state"] == .string("rejected") })
            #expect(waited > .milliseconds(450) && waited < .seconds(5))
        }
    }

    @Test("Time runs out: the current state, 202 for POST and 200 for GET")
    func runsOut() async throws {
        try await RunningIntake.run { intake in
            let start = ContinuousClock.now
            let answer = try await intake.post(Self.body("u-late"), wait: "1")
            #expect(answer.status == 202)
            #expect(answer["state"] == .string("received"))
            #expect((.milliseconds(950)..<Duration.seconds(4)).contains(ContinuousClock.now - start))
            guard case .string(let id)? = answer["id"] else { return }
            #expect(try await intake.get("/v1/receipts/\(id)?wait=0.2").status == 200)
        }
    }

    @Test("A held receipt is not waited for, and an ended one neither")
    func nothingToWaitFor() async throws {
        try await RunningIntake.run { intake in
            let body = Self.body("u-ended")
            _ = try await intake.post(body)
            try await intake.execute("update receipts set state='held', reason='review' where user_id='u-ended'")
            let start = ContinuousClock.now
            #expect(try await intake.post(body, wait: "25").status == 202)
            try await Self.settle("u-ended", intake)
            #expect(try await intake.post(body, wait: "25").status == 200)
            #expect(ContinuousClock.now - start < .seconds(5))
        }
    }

    @Test("The database is asked once for all who wait, and not at all while nobody does")
    func quiet() async throws {
        try await RunningIntake.run { intake in
            let asked = """
                select coalesce(sum(idx_scan), 0)::int8 + coalesce(sum(seq_scan), 0)::int8
                from pg_stat_user_tables where relname = 'receipts'
                """
            guard case .string(let id)? = try await intake.post(Self.body("u-quiet"))["id"] else { return }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for _ in 0..<100 { group.addTask { _ = try await intake.get("/v1/receipts/\(id)?wait=2") } }
                try await group.waitForAll()
            }
            try await intake.execute("select pg_stat_force_next_flush()")
            try await Task.sleep(for: .milliseconds(1500))
            let before = try await intake.count(asked)
            try await Task.sleep(for: .seconds(1))
            #expect(try await intake.count(asked) - before <= 2)
        }
    }

    @Test("Beyond the bound nobody waits")
    func bound() async throws {
        try await RunningIntake.run { intake in
            let poll = LongPoll(ledger: intake.ledger)
            let tickets = (0..<LongPoll.waitersMax).compactMap { _ in
                poll.register(UUID(), of: nil, upTo: .seconds(25))
            }
            #expect(tickets.count == LongPoll.waitersMax)
            #expect(poll.register(UUID(), of: nil, upTo: .seconds(25)) == nil)
            tickets[0].leave()
            #expect(poll.register(UUID(), of: nil, upTo: .seconds(25)) != nil)
            poll.close()
            await tickets[1].wait()
            #expect(poll.register(UUID(), of: nil, upTo: .seconds(25)) == nil)
        }
    }

    @Test("Beyond the bound of one user nobody waits for that user's, and everybody else does")
    func boundOfUser() async throws {
        try await RunningIntake.run { intake in
            let poll = LongPoll(ledger: intake.ledger)
            // One accented letter in two spellings: Unicode calls them equal, but they are two users.
            let (one, other) = ("caf\u{E9}", "cafe\u{301}")
            let tickets = (0..<LongPoll.waitersOfUserMax).compactMap { _ in
                poll.register(UUID(), of: one, upTo: .seconds(25))
            }
            #expect(tickets.count == LongPoll.waitersOfUserMax)
            #expect(poll.register(UUID(), of: one, upTo: .seconds(25)) == nil)
            for user in [other, nil] { #expect(poll.register(UUID(), of: user, upTo: .seconds(25)) != nil) }
            // The place is given back once, however often `leave` is called.
            for _ in 0..<2 { tickets[0].leave() }
            #expect(poll.register(UUID(), of: one, upTo: .seconds(25)) != nil)
            #expect(poll.register(UUID(), of: one, upTo: .seconds(25)) == nil)
            poll.close()
        }
    }

    @Test("A user who waits 200 times is answered at once the next time, and the answer names the limit")
    func flood() async throws {
        try await RunningIntake.run { intake in
            guard case .string(let id)? = try await intake.post(Self.body("u-flood"))["id"] else { return }
            let extra = 20
            let waits = try await withThrowingTaskGroup(of: (time: Duration, limit: String?).self) { group in
                for _ in 0..<LongPoll.waitersOfUserMax + extra {
                    group.addTask {
                        let start = ContinuousClock.now
                        let answer = try await intake.get("/v1/receipts/\(id)?wait=6")
                        #expect(answer.status == 200)
                        return (ContinuousClock.now - start, answer.headers["makegood-limit"])
                    }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(waits.count { $0.time < .seconds(5) && $0.limit == "user.waiters" } == extra)
            #expect(waits.count { $0.time >= .seconds(5) && $0.limit == nil } == LongPoll.waitersOfUserMax)
        }
    }

    @Test("Who gives up leaves at once")
    func cancelled() async throws {
        try await RunningIntake.run { intake in
            let poll = LongPoll(ledger: intake.ledger)
            let ticket = try #require(poll.register(UUID(), of: nil, upTo: .seconds(25)))
            let start = ContinuousClock.now
            let waiting = Task { await ticket.wait() }
            try await Task.sleep(for: .milliseconds(50))
            waiting.cancel()
            await waiting.value
            #expect(ContinuousClock.now - start < .seconds(5))
        }
    }
}
