import AppleGateway
import TestRandom
import Testing

/// Goal: one probe at a time finds out whether a host is back, no probe is lost, and calls from before an outage do not
/// count after it. Method: histories by hand, then random ones. Time is a parameter.
@Suite struct AppleHostStateTests {
    private static let start = ContinuousClock.now

    /// A host whose breaker is open, with `out` calls under way from before the outage.
    private static func open(out: Int = 0) -> (AppleHostState, [Int]) {
        var host = AppleHostState(callsMax: 100, scale: 1)
        let left = (0..<out).map { _ in host.begin() }
        for _ in 0..<Breaker.callsMin { host.end(host.begin(), .failed, at: start) }
        return (host, left)
    }

    @Test("calls allowed: the limit less those under way; none while open; while half-open one, the probe")
    func room() {
        var host = AppleHostState(callsMax: 100, scale: 1)
        #expect(host.room(Self.start) == 8)
        let calls = (0..<8).map { _ in host.begin() }
        #expect(host.room(Self.start) == 0 && !host.isDown(Self.start))
        for call in calls { host.end(call, .answered, at: Self.start) }
        #expect(host.room(Self.start) > 8)

        var (down, _) = Self.open()
        let back = Self.start + Breaker.pauseMin
        #expect(down.room(back - .milliseconds(1)) == 0 && down.isDown(back - .milliseconds(1)))
        #expect(down.room(back) == 1 && !down.isDown(back))
        let probe = down.begin()
        #expect(down.room(back) == 0 && down.isDown(back))
        down.end(probe, .none, at: back)
        #expect(down.room(back) == 1, "a probe that was not made is left to the next")
        down.end(down.begin(), .limited, at: back)
        #expect(down.breaker.state == .closed, "429 is an answer")
    }

    @Test("calls from before an outage neither end it nor prolong it, nor stand before the probe")
    func before() {
        for outcome in [AppleHostState.Outcome.answered, .failed, .limited, .none] {
            var (host, left) = Self.open(out: 3)
            let back = Self.start + Breaker.pauseMin
            #expect(host.room(back) == 1)
            let probe = host.begin()
            for call in left { host.end(call, outcome, at: back) }
            #expect(host.breaker.state == .halfOpen && host.inFlight == 1, "\(outcome)")
            host.end(probe, .answered, at: back)
            #expect(host.breaker.state == .closed)
        }
    }

    @Test("after an outage it is learned again how much the host bears")
    func after() {
        var (host, _) = Self.open()
        #expect(host.limit.calls < 8)
        let back = Self.start + Breaker.pauseMin
        _ = host.room(back)
        host.end(host.begin(), .answered, at: back)
        #expect(host.limit.calls == 8 && host.limit.isRamping)
    }

    @Test(
        "property: what is out never exceeds the limit, and a host that answers again is found out",
        arguments: [1, 2, 3] as [UInt64])
    func property(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var host = AppleHostState(callsMax: 32, scale: 1)
        var out: [Int] = []
        var (now, isUp, closed) = (Self.start, true, 0)
        for step in 0..<20_000 {
            now += .milliseconds(Int.random(in: 0...200, using: &random))
            if step % 1000 == 0 { isUp.toggle() }
            let room = host.room(now)
            #expect(room >= 0 && (room == 0 || host.breaker.state != .closed || out.count + room <= host.limit.calls))
            if room > 0, Bool.random(using: &random) {
                out.append(host.begin())
            } else if !out.isEmpty {
                let call = out.remove(at: Int.random(in: 0..<out.count, using: &random))
                let isLost = Int.random(in: 0..<20, using: &random) == 0
                host.end(call, isLost ? .none : isUp ? .answered : .failed, at: now)
            }
            #expect(host.inFlight == out.count)
            if step % 1000 == 999, isUp, host.breaker.state == .closed { closed += 1 }
        }
        #expect(closed >= 9, "seed \(seed): \(closed) of 10")
    }
}
