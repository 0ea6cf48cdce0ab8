import Adversary
import Foundation
import Ledger
import Purchases
import ServiceLifecycle
import TestRandom
import Testing
import WorkQueue

/// Goal: each event reaches its endpoint, those of a user in order; what fails delays itself alone; one dispatcher at a
/// time sends to an endpoint, within its bounds (B8).
/// Method: dispatchers on real servers, and a receiver on real HTTP that answers by a script and writes down what came.
@Suite(.serialized, .timeLimit(.minutes(5))) struct DispatcherTests {
    private static let users = (1...20).map { "u\($0)" }

    @Test("20 users get 20 events each in order, though each tenth webhook fails")
    func order() async throws {
        var random = SeededRandom(announcing: "dispatcher order")
        let seed = random.seed
        let fails = (0..<10_000).map { _ in Int.random(in: 0..<10, using: &random) == 0 }
        try await DispatcherLab.with(script: { _, number in fails[number] ? .init(.status(500)) : .taken }) {
            lab, receiver in
            try await lab.tell(20, users: Self.users)
            try await lab.run { _ in try await lab.untilTaken(400, by: receiver) }
            #expect(receiver.orderDefects == [], "seed \(seed)")
            #expect(receiver.repeats == 0)
            let audit = try await DeliveryAudit.run(receiver, of: lab.shop, in: lab.lab.ledger.database)
            #expect(audit.defects == [] && audit.events == 400 && audit.refusals == 0, "seed \(seed)")
            for user in Self.users {
                let sequences = receiver.taken.filter { $0.userID == user }.map(\.sequence)
                #expect(sequences == Array(1...20), "\(user), seed \(seed)")
            }
            #expect(Set(receiver.received.map(\.cursor)).count > 1, "the cursor goes on while events are delivered")
        }
    }

    @Test("A user whose events fail delays nobody else, and goes on in order once they are taken")
    func failingUser() async throws {
        try await DispatcherLab.with(
            script: { webhook, _ in webhook.userID == "bad" ? .init(.status(500)) : .taken }
        ) { lab, receiver in
            try await lab.tell(5, users: ["bad"] + Self.users)
            try await lab.run { _ in
                try await lab.untilTaken(100, by: receiver)
                #expect(receiver.received.filter { $0.userID == "bad" }.allSatisfy { $0.sequence == 1 })
                try await lab.lab.until("a second attempt") { receiver.received.contains { $0.attempt == 2 } }
                receiver.answer { _, _ in .taken }
                try await lab.untilTaken(105, by: receiver)
            }
            #expect(receiver.orderDefects == [])
            let attempts = receiver.received.filter { $0.userID == "bad" && $0.sequence == 1 }.map(\.attempt)
            #expect(attempts == Array(1...attempts.count) && attempts.count > 1, "each attempt has its number")
        }
    }

    @Test("S0-23: an answer may report the hand-out; what nobody understands is passed over, and the delivery stands")
    func reports() async throws {
        @Sendable func answer(_ body: String) -> EventReceiver.Reply {
            .init(.bytes("HTTP/1.1 200 OK\r\ncontent-length: \(body.utf8.count)\r\n\r\n\(body)"))
        }
        try await DispatcherLab.with(script: { webhook, _ in
            switch webhook.userID {
            case "owner": answer(#"{"handled":{"outcome":"handed_out"}}"#)
            case "liar": answer(#"{"handled":{"outcome":"handed_out","eventId":"\#(UUID())"}}"#)
            case "odd": answer(#"{"handled":7}"#)
            default: answer("thanks")
            }
        }) { lab, receiver in
            for user in ["owner", "liar", "odd", "plain"] {
                try await lab.lab.run(
                    """
                    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                    values (gen_random_uuid(), 'game', 'purchase.granted', '\(user)', 't-\(user)', gen_random_uuid(),
                      '{"goods": [{"item": "coins", "amount": 5}], "environment": "Production"}')
                    """)
            }
            try await lab.run { _ in
                try await lab.lab.until("every event is delivered") {
                    try await lab.lab.number("select count(*) from deliveries where done_sequence = 1") == 4
                }
            }
            let stored = try await lab.lab.texts("select transaction_id || ' ' || outcome from hand_outs")
            #expect(stored == ["t-owner handed_out"])
            #expect(receiver.received.count == 4)
        }
    }

    @Test("After eight failures in a row an endpoint gets one event now and then, and everything once it takes one")
    func breaker() async throws {
        try await DispatcherLab.with(script: { _, _ in .init(.status(500)) }) { lab, receiver in
            try await lab.tell(3, users: Self.users)
            try await lab.run { _ in
                try await lab.lab.until("the endpoint fails") { try await lab.state() == "failing" }
                try await Task.sleep(for: .milliseconds(500))
                let before = receiver.received.count
                try await Task.sleep(for: .seconds(1))
                // By now the gaps between probes are 200 ms and more.
                #expect(receiver.received.count - before <= 6)
                receiver.answer { _, _ in .taken }
                try await lab.untilTaken(60, by: receiver)
                try await lab.lab.until("the endpoint works") { try await lab.state() == "working" }
                try await lab.lab.until("both events about the endpoint come") {
                    Set(receiver.taken.filter { $0.userID == nil }.map(\.type))
                        == ["endpoint.failing", "endpoint.recovered"]
                }
            }
            #expect(receiver.orderDefects == [])
        }
    }

    @Test("410 suspends an endpoint until a person resumes it, and nothing is lost")
    func gone() async throws {
        try await DispatcherLab.with(script: { _, _ in .init(.status(410)) }) { lab, receiver in
            try await lab.tell(users: Self.users)
            try await lab.run { _ in
                try await lab.lab.until("the endpoint is suspended") { try await lab.state() == "suspended gone" }
                try await Task.sleep(for: .milliseconds(500))
                let before = receiver.received.count
                receiver.answer { _, _ in .taken }
                try await lab.tell(users: Self.users)
                try await Task.sleep(for: .seconds(1))
                #expect(receiver.received.count == before)
                let resumed = try await lab.lab.ledger.run(
                    Statements.resumeEndpoint, (endpoint: lab.shop.id, actor: "test"))
                #expect(resumed == [true])
                try await lab.untilTaken(40, by: receiver)
                try await lab.lab.until("the endpoint works") { try await lab.state() == "working" }
            }
            #expect(receiver.orderDefects == [])
        }
    }

    @Test("429 with Retry-After stops the whole endpoint for that time")
    func retryAfter() async throws {
        try await DispatcherLab.with(
            "concurrency: 1,",
            script: { _, number in number == 1 ? .init(.status(429, headers: ["Retry-After": "1"])) : .taken }
        ) { lab, receiver in
            try await lab.tell(users: Self.users)
            try await lab.run { _ in try await lab.untilTaken(20, by: receiver) }
            let times = receiver.received.map(\.at)
            let pause = try #require(times.dropFirst().first) - times[0]
            #expect(pause >= .milliseconds(990) && pause < .seconds(3))
        }
    }

    @Test("Two dispatchers, one of which ends: no event twice, no inversion, and the concurrency holds for both")
    func twoDispatchers() async throws {
        try await DispatcherLab.with(
            "concurrency: 5,", script: { _, _ in .init(.status(200), after: .milliseconds(5)) }
        ) {
            lab, receiver in
            try await lab.tell(20, users: Self.users)
            try await lab.run(2) { groups in
                try await lab.lab.until("some arrive") { receiver.received.count > 50 }
                await groups[0].triggerGracefulShutdown()
                try await lab.untilTaken(400, by: receiver)
            }
            #expect(receiver.orderDefects == [])
            #expect(receiver.repeats == 0)
            #expect(receiver.inFlightMax <= 5)
        }
    }

    @Test("The turn of a dispatcher that was killed passes on within three seconds, and not while it may still send")
    func killedHolder() async throws {
        try await DispatcherLab.with { lab, receiver in
            let start = ContinuousClock.now
            let turn = try await lab.lab.ledger.run(
                Statements.takeTurn, TurnRequest(endpoint: lab.shop.id, holder: UUID(), length: .seconds(2)))
            #expect(turn.count == 1)
            try await lab.tell(users: Self.users)
            try await lab.run { _ in try await lab.untilTaken(20, by: receiver) }
            let first = try #require(receiver.received.first).at - start
            #expect(first >= .milliseconds(1900) && first < .seconds(3))
        }
    }

    @Test("Rate and concurrency are never exceeded")
    func bounds() async throws {
        try await DispatcherLab.with(
            "concurrency: 3, rate: {perSecond: 50, burst: 5},",
            script: { _, _ in .init(.status(200), after: .milliseconds(20)) }
        ) { lab, receiver in
            try await lab.tell(6, users: Self.users)
            try await lab.run { _ in try await lab.untilTaken(120, by: receiver) }
            #expect(receiver.inFlightMax <= 3)
            let times = receiver.received.map(\.at)
            for (index, time) in times.enumerated() {
                // What was sent within a second may arrive within a little less.
                let count = times[index...].count { $0 - time < .seconds(1) }
                #expect(count <= 60)
            }
            let length = try #require(times.last) - times[0]
            #expect(length > .seconds(2), "120 webhooks at 50 a second, and 5 at once")
        }
    }

    @Test("Redrive sends at once what would wait, and skip lets the later events of the user go on")
    func commands() async throws {
        try await DispatcherLab.with(scale: 1, script: { _, _ in .init(.status(500)) }) { lab, receiver in
            try await lab.tell(2, users: ["u1", "u2"])
            try await lab.run { _ in
                try await lab.lab.until("both were refused") {
                    try await lab.lab.number("select count(*) from v_undelivered") == 2
                }
                receiver.answer { _, _ in .taken }
                let refused = try #require(receiver.received.first { $0.userID == "u2" })
                let event = try #require(UUID(uuidString: refused.id))
                let skipped = try await lab.lab.ledger.run(
                    Statements.skipEvent, (endpoint: lab.shop.id, event: event, reason: "a test", actor: "test"))
                #expect(skipped == [true])
                let redriven = try await lab.lab.ledger.run(
                    Statements.redriveEvents, .init(endpoint: lab.shop.id, .user("u1"), actor: "test"))
                #expect(redriven == [1])
                // Without the two, these events would come after 4 s at the earliest.
                try await lab.untilTaken(3, by: receiver, within: .seconds(3))
            }
            let last = try #require(receiver.taken.first { $0.userID == "u2" })
            #expect(last.sequence == 2 && last.previousID == nil, "the one before was never delivered")
            #expect(receiver.taken.filter { $0.userID == "u1" }.map(\.sequence) == [1, 2])
            let audits = try await lab.lab.texts(
                "select action || ' ' || coalesce(details ->> 'reason', '') from audits order by action")
            #expect(audits == ["endpoints.redrive ", "endpoints.skip a test"])
        }
    }

    @Test("A dispatcher that is told to end waits for what is in flight, and stores it")
    func drain() async throws {
        try await DispatcherLab.with(script: { _, _ in .init(.status(200), after: .milliseconds(700)) }) {
            lab, receiver in
            try await lab.tell(3, users: Self.users)
            try await lab.run { _ in
                try await lab.lab.until("some are on the way") { !receiver.received.isEmpty }
            }
            let came = receiver.received
            #expect(!came.isEmpty && came.allSatisfy(\.isTaken), "each send got its answer")
            #expect(
                try await lab.lab.number("select coalesce(sum(done_sequence), 0)::int8 from deliveries") == came.count)
            #expect(try await lab.lab.number("select count(*) from endpoints where turn is not null") == 0)
            receiver.answer { _, _ in .taken }
            try await lab.run { _ in try await lab.untilTaken(60, by: receiver) }
            #expect(receiver.repeats == 0)
        }
    }

    @Test("Resets, hanging and long answers, half a header and redirects are failures, and the events come again")
    func badReceivers() async throws {
        let answers: [EventReceiver.Answer] = [
            .reset, .hang, .body(500, bytes: 10_000_000), .bytes("HTTP/1.1 200 O"), .bytes("what?\r\n\r\n"),
            .status(302, headers: ["Location": "http://127.0.0.1:1/"]),
        ]
        try await DispatcherLab.with(
            "timeout: 1s,",
            script: { webhook, _ in
                webhook.attempt == 1 ? .init(answers[webhook.sequence % answers.count]) : .taken
            }
        ) { lab, receiver in
            try await lab.tell(answers.count, users: ["u1"])
            try await lab.run { _ in try await lab.untilTaken(answers.count, by: receiver) }
            #expect(receiver.orderDefects == [])
            #expect(receiver.received.count == 2 * answers.count)
        }
    }

    @Test("What is no ring becomes a dead letter, and a ring for an endpoint that nobody defines does no harm")
    func rings() async throws {
        try await DispatcherLab.with { lab, receiver in
            try await lab.run { _ in
                let queues = lab.workQueue.queues
                try await lab.workQueue.publish(Pointer(receiptID: UUID(), attempt: 1), to: queues.deliver)
                lab.workQueue.ring(UUID())
                try await lab.lab.until("the dead letter") { try await lab.workQueue.deadLetters() == 1 }
                try await lab.tell(users: Self.users)
                try await lab.untilTaken(20, by: receiver)
            }
        }
    }
}
