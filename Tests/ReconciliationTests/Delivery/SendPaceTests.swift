import Foundation
import Settings
import TestRandom
import Testing

@testable import Delivery

/// Goal: an endpoint gets no more webhooks than its rate allows, also where dispatchers take turns, and none while its
/// receiver asks to be left alone. Method: a clock of the test's own.
@Suite struct SendPaceTests {
    private static let start = ContinuousClock.now

    @Test("No rate is no limit")
    func unlimited() {
        var pace = SendPace(now: Self.start)
        #expect((0..<1000).allSatisfy { _ in pace.take(nil, now: Self.start) })
    }

    @Test("In no span more than the burst and what the rate allows; in the whole as much as the rate allows")
    func rate() {
        var random = SeededRandom(announcing: "send pace")
        let seed = random.seed
        let rate = Rate(perSecond: 50, burst: 5)
        var pace = SendPace(now: Self.start)
        var now = Self.start
        var sent: [ContinuousClock.Instant] = []
        for _ in 0..<3000 {
            now += .milliseconds(Int.random(in: 0...20, using: &random))
            while pace.take(rate, now: now) { sent.append(now) }
        }
        for (index, first) in sent.enumerated() {
            for span in [0.1, 1, 5] {
                let count = sent[index...].prefix { $0 - first <= .seconds(span) }.count
                #expect(Double(count) <= 5 + 50 * span + 0.001, "seed \(seed)")
            }
        }
        let whole = (now - Self.start) / .seconds(1) * 50
        #expect(abs(Double(sent.count) - whole) < 10, "seed \(seed)")
    }

    @Test("A new pace sends nothing at once: dispatchers that take turns send no more than one")
    func turns() {
        let rate = Rate(perSecond: 10, burst: 10)
        var pace = SendPace(now: Self.start)
        let tooEarly = pace.take(rate, now: Self.start + .milliseconds(99))
        let first = pace.take(rate, now: Self.start + .milliseconds(101))
        let second = pace.take(rate, now: Self.start + .milliseconds(102))
        #expect(!tooEarly && first && !second)
    }

    @Test("Nothing is sent while the receiver rests, and the longest of its wishes counts")
    func rest() {
        var pace = SendPace(now: Self.start)
        pace.rest(until: Self.start + .seconds(60))
        pace.rest(until: Self.start + .seconds(5))
        let early = pace.take(nil, now: Self.start + .seconds(59))
        let late = pace.take(nil, now: Self.start + .seconds(60))
        #expect(!early && late)
    }
}

/// Goal: no ring is lost: the task that serves an endpoint looks after each ring, and one ring serves it once.
@Suite struct TurnsTests {
    @Test("The first ring begins a turn, later ones go to it, and a ring at the end begins another")
    func rings() {
        let (turns, id) = (Turns(), UUID())
        #expect(turns.ring(id) != nil)
        turns.begin(id)
        #expect(turns.ring(id) == nil)
        #expect(!turns.end(id), "a ring has come since")
        turns.begin(id)
        #expect(turns.end(id))
        #expect(turns.ring(id) != nil, "it is served no more")
        #expect(turns.ring(UUID()) != nil, "each endpoint has its own")
    }

    @Test("Rings wake whoever serves")
    func wakes() async throws {
        let (turns, id) = (Turns(), UUID())
        let turn = try #require(turns.ring(id))
        var signals = turn.signals.makeAsyncIterator()
        _ = turns.ring(id)
        await signals.next()
        turns.wakeAll()
        await signals.next()
    }
}
