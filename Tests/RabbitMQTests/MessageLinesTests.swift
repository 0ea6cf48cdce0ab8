import TestRandom
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: bodies that share a message are as safe as bodies in messages of their own: each is delivered, and none is
/// forgotten before it is settled. Method: the pure part against a set as model; the rest with the real broker.
@Suite struct MessageLinesTests {
    @Test func settledWhenAllAre() {
        var random = SeededRandom(announcing: "message lines")
        for _ in 0..<2_000 {
            let count = Int.random(in: 1...MessageLines.max, using: &random)
            var (lines, open, isRejected) = (MessageLines(count: count), Set(0..<count), false)
            while !open.isEmpty {
                #expect(!lines.isSettled)
                let line = Int.random(in: -2...MessageLines.max + 1, using: &random)
                let rejects = Int.random(in: 0..<50, using: &random) == 0
                let isNew = open.remove(line) != nil
                if isNew, rejects { isRejected = true }
                #expect(lines.settle(line, isRejected: rejects) == isNew)
                #expect(lines.isRejected == isRejected)
            }
            #expect(lines.isSettled)
        }
    }

    @Test(arguments: [1, 2, 63, 64, 65, 100])
    func moreThanTravelTogetherIsOneBody(count: Int) {
        let bodies = (0..<count).map { "receipt \($0) 0" }
        let split = MessageLines.split(Array(MessageLines.join(bodies).utf8))
        #expect(split.count == (count <= MessageLines.max ? count : 1))
        if count <= MessageLines.max { #expect(split == bodies.map { Array($0.utf8) }) }
    }

    @Test func offersTravelTogetherAndAreSettledOneByOne() async throws {
        let counters = CountedMetrics.shared
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work", bodiesPerMessage: 8)
            let bodies = (0..<1_000).map { "receipt \($0) 0" }
            for body in bodies { lab.publisher.offer(body, to: lab.queue) }
            // A publish that waits for a confirm has a message of its own.
            try await lab.publisher.publish("receipt alone 0", to: lab.queue)
            try await eventually(within: .seconds(20)) { counters.published(lab.queue, "confirmed") == 1_001 }
            let depth = try await lab.publisher.depth(of: lab.queue)
            #expect((126..<501).contains(depth))

            let first = lab.consumer(prefetch: 1_000)
            await first.start()
            let taken = try await first.take(1_001)
            #expect(Set(taken.map { String(decoding: $0.body, as: UTF8.self) }) == Set(bodies + ["receipt alone 0"]))
            // A line among the last, so that one command settles most: RabbitMQ forgets some of a hundred when a
            // connection closes.
            let kept = try #require(taken.last { $0.line == 3 })
            first.acknowledge(taken.filter { $0.tag != kept.tag || $0.line != kept.line }.shuffled())
            // Its neighbours are acknowledged a second time: that does not settle it.
            first.acknowledge(taken.filter { $0.tag == kept.tag && $0.line != kept.line })
            await first.close()
            let second = lab.consumer(prefetch: 10)
            await second.start()
            let neighbours = taken.filter { $0.tag == kept.tag }
            let again = try await second.take(neighbours.count)
            #expect(again.allSatisfy { $0.redelivered })
            #expect(again.map(\.body) == neighbours.map(\.body))
            second.acknowledge(again)
            await second.close()
            #expect(try await lab.publisher.depth(of: lab.queue) == 0)
            await lab.close()
        }
    }

    @Test func oneThatIsRejectedGoesToTheDeadLettersWhenTheOthersAreSettled() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work", bodiesPerMessage: 8)
            try await lab.publisher.publish("a\nb\nc", to: lab.queue)
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            let taken = try await consumer.take(3)
            #expect(taken.map { String(decoding: $0.body, as: UTF8.self) } == ["a", "b", "c"])
            consumer.reject(taken[1])
            consumer.acknowledge([taken[0]])
            #expect(try await lab.publisher.depth(of: lab.dead) == 0)
            consumer.acknowledge([taken[2]])
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.dead) == 1 }
            await consumer.close()
            #expect(try await lab.publisher.depth(of: lab.queue) == 0)
            await lab.close()
        }
    }

    @Test func elsewhereALineBreakMeansNothing() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            for body in ["a\nb", "c"] { lab.publisher.offer(body, to: lab.queue) }
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            let taken = try await consumer.take(2)
            #expect(taken.map { String(decoding: $0.body, as: UTF8.self) } == ["a\nb", "c"])
            consumer.acknowledge(taken)
            await consumer.close()
            await lab.close()
        }
    }

    /// Each body keeps its trace, alone and among others, with a trace and without; a message without any trace has no
    /// header.
    @Test func tracesTravelBesideTheirBodies() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work", bodiesPerMessage: 8)
            func trace(of number: Int) -> String? {
                number.isMultiple(of: 3)
                    ? nil : "00-4bf92f3577b34da6a3ce929d0e0e4736-\(1_000_000_000_000_000 + number)-01"
            }
            for number in 0..<300 {
                lab.publisher.offer("receipt \(number) 0", to: lab.queue, traceparent: trace(of: number))
            }
            try await lab.publisher.publish("receipt 301 0", to: lab.queue, traceparent: trace(of: 301))
            try await lab.publisher.publish("receipt 303 0", to: lab.queue)
            let consumer = lab.consumer(prefetch: 1_000)
            await consumer.start()
            let taken = try await consumer.take(302)
            #expect(taken.contains { $0.line > 0 }, "none shared a message")
            for delivery in taken {
                let number = try #require(Int(String(decoding: delivery.body, as: UTF8.self).split(separator: " ")[1]))
                #expect(delivery.traceparent == trace(of: number))
                #expect(delivery.death == nil)
            }
            consumer.acknowledge(taken)
            await consumer.close()
            await lab.close()
        }
    }

    @Test(
        arguments: [
            (nil, 2, []), ("a\nb", 2, ["a", "b"]), ("a\n", 2, ["a", nil]), ("\n", 2, [nil, nil]), ("a", 1, ["a"]),
            // A trace that belongs to no body.
            ("a", 2, []), ("a\nb\nc", 2, []),
        ] as [(String?, Int, [String?])])
    func tracesOfBodies(_ header: String?, _ bodies: Int, _ traces: [String?]) {
        #expect(MessageHeaders(traceparent: header).traceparents(of: bodies) == traces)
        if traces.contains(where: { $0 != nil }) { #expect(MessageHeaders.join(traces) == header) }
    }

    @Test func aDeadLetterSaysWhyItIsOne() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work", bodiesPerMessage: 8)
            let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            try await lab.publisher.publish("poison", to: lab.queue, traceparent: traceparent)
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            consumer.reject(try await consumer.take(1)[0])
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.dead) == 1 }
            let reader = lab.consumer(of: [Subscription(queue: lab.dead, prefetch: 10)])
            await reader.start()
            let letter = try #require(try await reader.take(1).first)
            #expect(letter.death?.queue == lab.queue)
            #expect(letter.death?.reason == "rejected")
            #expect(try #require(letter.death?.at) > 1_700_000_000)
            #expect(letter.traceparent == traceparent)
            await reader.close()
            await consumer.close()
            #expect(try await lab.publisher.depth(of: lab.dead) == 1, "looking takes nothing")
            await lab.close()
        }
    }
}
