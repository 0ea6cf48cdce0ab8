import AppleGateway
import TestRandom
import Testing

/// Goal: the breaker opens when calls are in vain, finds out with one call whether they succeed again, and never stays
/// open longer than its pause. Method: a table of histories; then random ones against a second, slow version of the
/// rule. Time is a parameter.
@Suite struct BreakerTests {
    private static let start = ContinuousClock.now

    private static func after(_ seconds: Double) -> ContinuousClock.Instant { start + .seconds(seconds) }

    /// `.` a call that went well, `x` one that failed, each a tenth of a second after the other.
    private static func breaker(_ calls: String, from second: Double = 0) -> Breaker {
        var breaker = Breaker()
        for (number, call) in calls.enumerated() {
            breaker.record(failed: call == "x", at: after(second) + .milliseconds(number * 100))
        }
        return breaker
    }

    @Test(
        "half or more of at least twenty calls",
        arguments: [
            (String(repeating: "x", count: 19), false), (String(repeating: "x", count: 20), true),
            (String(repeating: ".", count: 10) + String(repeating: "x", count: 10), true),
            (String(repeating: ".", count: 11) + String(repeating: "x", count: 10), false),
            (String(repeating: "x", count: 10) + String(repeating: ".", count: 10), true),
            (String(repeating: ".", count: 100), false), ("", false),
        ])
    func opens(calls: String, isOpen: Bool) {
        #expect(Self.breaker(calls).isOpen == isOpen)
    }

    @Test("calls older than ten seconds do not count")
    func window() {
        var breaker = Self.breaker(String(repeating: "x", count: 18))
        breaker.record(failed: false, at: Self.after(2))
        breaker.record(failed: true, at: Self.after(12.1))
        #expect(breaker.state == .closed)
        var dense = Self.breaker(String(repeating: "x", count: 19))
        dense.record(failed: true, at: Self.after(9.9))
        #expect(dense.isOpen)
    }

    @Test("a host that hangs: eight in a row, and nothing that went well for ten seconds, however rarely it is asked")
    func hanging() {
        for (count, last, isOpen) in [(8, 20.0, true), (7, 20, false), (8, 9.9, false)] {
            var breaker = Breaker()
            breaker.tick(Self.start)
            for _ in 0..<count { breaker.record(failed: true, at: Self.after(last)) }
            #expect(breaker.isOpen == isOpen, "\(count) after \(last) s")
        }
        var rare = Breaker()
        for call in 1...7 { rare.record(failed: true, at: Self.after(Double(call) * 20)) }
        #expect(!rare.isOpen)
        rare.record(failed: false, at: Self.after(150))
        for call in 8...14 { rare.record(failed: true, at: Self.after(Double(call) * 20)) }
        #expect(!rare.isOpen)
        rare.record(failed: true, at: Self.after(300))
        #expect(rare.isOpen)
    }

    @Test("open for 5 s, then one probe; each failed probe doubles the pause to at most a minute; success closes")
    func pauses() {
        var breaker = Self.breaker(String(repeating: "x", count: 20))
        var now = Self.start + .milliseconds(1900)
        #expect(breaker.state == .open(until: now + .seconds(5)))
        for pause in [5, 10, 20, 40, 60, 60] {
            breaker.tick(now + .seconds(pause) - .milliseconds(1))
            #expect(breaker.state == .open(until: now + .seconds(pause)))
            now += .seconds(pause)
            breaker.tick(now)
            #expect(breaker.state == .halfOpen && !breaker.isOpen)
            breaker.record(failed: true, at: now)
            #expect(breaker.isOpen)
        }
        breaker.tick(now + .seconds(60))
        breaker.record(failed: false, at: now + .seconds(60))
        #expect(breaker.state == .closed)
        // The outage is forgotten: opening takes twenty calls again, and the first pause is the shortest.
        let again = now + .seconds(61)
        for _ in 0..<19 { breaker.record(failed: true, at: again) }
        #expect(breaker.state == .closed)
        breaker.record(failed: true, at: again)
        #expect(breaker.state == .open(until: again + .seconds(5)))
    }

    @Test("the answer to a call from before changes nothing while open")
    func lateAnswers() {
        var breaker = Self.breaker(String(repeating: "x", count: 20))
        let state = breaker.state
        for failed in [true, false] { breaker.record(failed: failed, at: Self.after(3)) }
        #expect(breaker.state == state)
    }

    @Test("pauses are scaled", arguments: [1.0, 0.1, 0.01])
    func scale(factor: Double) {
        var breaker = Breaker(scale: factor)
        for _ in 0..<20 { breaker.record(failed: true, at: Self.start) }
        #expect(breaker.state == .open(until: Self.start + .seconds(5) * factor))
    }

    @Test("property: a random history reads as the rule says", arguments: [1, 2, 3, 4, 5] as [UInt64])
    func property(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var breaker = Breaker()
        var history: [(at: ContinuousClock.Instant, failed: Bool)] = []
        var now = Self.start
        var opened = 0
        for _ in 0..<5000 {
            now += .milliseconds(Int.random(in: 0...900, using: &random))
            breaker.tick(now)
            let failed = Int.random(in: 0..<100, using: &random) < 50
            let before = breaker.state
            breaker.record(failed: failed, at: now)
            switch before {
            case .open(let until):
                #expect(now < until, "an open breaker whose pause is over")
                #expect(until - now <= Breaker.pauseMax)
                #expect(breaker.state == before)
            case .halfOpen:
                history = []
                #expect(breaker.isOpen == failed, "seed \(seed)")
            case .closed:
                history.append((now, failed))
                history.removeAll { now - $0.at > Breaker.window }
                let failures = history.count { $0.failed }
                let shouldOpen = history.count >= Breaker.callsMin && failures * 2 >= history.count
                #expect(breaker.isOpen == shouldOpen, "seed \(seed)")
                if breaker.isOpen {
                    history = []
                    opened += 1
                }
            }
        }
        #expect(opened > 10, "the history never opened it: the property was not tried")
    }
}
