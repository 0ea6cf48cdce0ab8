import Adversary
import Foundation
import Ledger
import Purchases
import ServiceLifecycle
import Testing

/// Goal: events that are sent once more go behind fresh ones and harm nothing: neither the order of users, nor the
/// endpoint's bounds, nor its health (B8). Method: dispatchers on real servers, and a receiver on real HTTP.
@Suite(.serialized, .timeLimit(.minutes(5))) struct ReplayDispatchTests {
    private static let users = (1...20).map { "u\($0)" }

    /// Replays everything that the feed shows; what runs already goes on.
    private static func replay(_ lab: DispatcherLab) async throws -> UUID {
        let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
        try await lab.lab.until("the feed shows everything") { try await lab.lab.number(hidden) == 0 }
        let question = ReplayQuestion(EndpointFilter(key: lab.shop))
        let span = try #require(try await lab.lab.ledger.run(Statements.countReplay, question).first)
        let request = Statements.ReplayRequest(question, span, actor: "test")
        return try #require(try await lab.lab.ledger.run(Statements.requestReplay, request).first)
    }

    private static func read(_ id: UUID, _ lab: DispatcherLab) async throws -> EventReplay {
        try #require(try await lab.lab.ledger.run(Statements.readReplay, (id: id, apps: ["game"])).first)
    }

    /// Delivers so many events of each user, once.
    private static func deliver(_ count: Int, _ lab: DispatcherLab, _ receiver: EventReceiver) async throws {
        try await lab.tell(count, users: users)
        try await lab.untilTaken(count * users.count, by: receiver)
        try await lab.lab.until("each result is stored") {
            try await lab.lab.number("select coalesce(sum(last_sequence - done_sequence), 1)::int8 from deliveries")
                == 0
        }
    }

    @Test("everything comes once more, marked, with the ids of before, in order for each user; deliveries stay")
    func everything() async throws {
        try await DispatcherLab.with { lab, receiver in
            try await lab.run { _ in
                try await Self.deliver(5, lab, receiver)
                let before = try await lab.lab.texts("select d::text from deliveries d order by stream")
                let first = receiver.received
                let id = try await Self.replay(lab)
                try await lab.lab.until("the replay is done") { try await Self.read(id, lab).state == .done }
                let again = receiver.received.dropFirst(first.count)
                #expect(again.count == 100 && again.allSatisfy { $0.isReplay && $0.isTaken && $0.refusal == nil })
                #expect(again.allSatisfy { $0.attempt == 1 && $0.sequence == 0 && $0.previousID == nil })
                for user in Self.users {
                    #expect(
                        again.filter { $0.userID == user }.map(\.id) == first.filter { $0.userID == user }.map(\.id))
                }
                #expect(try await Self.read(id, lab).sent == 100)
                #expect(try await lab.lab.texts("select d::text from deliveries d order by stream") == before)
            }
            #expect(receiver.orderDefects == [])
        }
    }

    @Test("fresh events pass a replay that has much to send, and the replay has a quarter of the places")
    func freshFirst() async throws {
        try await DispatcherLab.with("concurrency: 8,") { lab, receiver in
            try await lab.run { _ in
                try await Self.deliver(10, lab, receiver)
                let count = receiver.received.count
                // 200 events on two places, 20 ms each: two seconds.
                receiver.answer { webhook, _ in .init(.status(200), after: .milliseconds(webhook.isReplay ? 20 : 1)) }
                let id = try await Self.replay(lab)
                try await lab.lab.until("the replay has begun") { receiver.received.count > count + 10 }
                try await lab.tell(2, users: Self.users)
                let told = ContinuousClock.now
                try await lab.untilTaken(240, by: receiver)
                #expect(try await Self.read(id, lab).state == .running, "the fresh ones came within the replay")
                let fresh = receiver.received.dropFirst(count).filter { !$0.isReplay }
                let last = try #require(fresh.last)
                #expect(fresh.count == 40)
                let between = receiver.received.count { $0.isReplay && $0.at > told && $0.at < last.at }
                #expect(between < 100, "\(between) of a replay between")
                try await lab.lab.until("the replay is done") { try await Self.read(id, lab).state == .done }
                #expect(receiver.received.count { $0.isReplay } == 200)
                #expect(receiver.repeats == 200)
            }
            #expect(receiver.orderDefects == [])
        }
    }

    @Test("a replay that the endpoint refuses waits with growing gaps; fresh events and the endpoint's health do not")
    func refused() async throws {
        try await DispatcherLab.with(script: { webhook, _ in webhook.isReplay ? .init(.status(400)) : .taken }) {
            lab, receiver in
            try await lab.run { _ in
                try await Self.deliver(2, lab, receiver)
                let id = try await Self.replay(lab)
                try await lab.lab.until("three attempts") { try await Self.read(id, lab).attempts >= 3 }
                let replay = try await Self.read(id, lab)
                #expect(replay.sent == 0 && replay.lastError == "status 400" && replay.nextAt != nil)
                try await lab.tell(users: Self.users)
                try await lab.untilTaken(60, by: receiver)
                #expect(try await lab.state() == "working")
                let failures = try await lab.lab.number("select failures from endpoints")
                #expect(failures == 0)
                receiver.answer { _, _ in .taken }
                try await lab.lab.run("update replays set due_at = now()")
                try await lab.lab.until("the replay is done") { try await Self.read(id, lab).state == .done }
                #expect(try await Self.read(id, lab).sent == 40)
                #expect(
                    receiver.received.contains { $0.isReplay && $0.isTaken && $0.attempt >= 4 },
                    "the event that was refused says which attempt it is")
            }
        }
    }

    @Test("a replay that is cancelled ends soon; two dispatchers, one of which ends, send what is left of another once")
    func cancelled() async throws {
        try await DispatcherLab.with("concurrency: 4,") { lab, receiver in
            try await lab.run(2) { groups in
                try await Self.deliver(5, lab, receiver)
                receiver.answer { _, _ in .init(.status(200), after: .milliseconds(20)) }
                let id = try await Self.replay(lab)
                try await lab.lab.until("the replay has begun") { receiver.received.contains { $0.isReplay } }
                let cancel = (id: id, apps: ["game"] as [String]?, actor: "test")
                #expect(try await lab.lab.ledger.run(Statements.cancelReplay, cancel) == [true])
                try await Task.sleep(for: .milliseconds(500))
                let count = receiver.received.count
                #expect(receiver.received.count { $0.isReplay } < 50)
                try await Task.sleep(for: .milliseconds(300))
                #expect(receiver.received.count == count)
                let next = try await Self.replay(lab)
                #expect(next != id)
                try await lab.lab.until("some came again") { receiver.received.count > count + 5 }
                await groups[0].triggerGracefulShutdown()
                try await lab.lab.until("the replay is done") { try await Self.read(next, lab).state == .done }
                #expect(receiver.received.count == count + 100)
            }
        }
    }
}
