import AppleGateway
import TestRandom
import Testing

/// Goal: a host gets as many calls at once as it can take: it soon gets many if all is well, it gets few if it is in
/// trouble, and Apple's daily errors cost nothing. Method: tables of answers, a small model of a host in rounds, random
/// histories.
@Suite struct ConcurrencyLimitTests {
    /// `.` went well, `x` failed; the limit is used to the full.
    private static func limit(_ answers: String, from limit: ConcurrencyLimit = .init(callsMax: 64)) -> ConcurrencyLimit
    {
        var limit = limit
        for answer in answers { limit.record(failed: answer == "x", inFlight: limit.calls) }
        return limit
    }

    private static func times(_ count: Int, _ answer: String) -> String { String(repeating: answer, count: count) }

    private static let ends: [(answers: String, calls: Int)] = [
        ("", 8), (".", 11), ("..", 14), (times(19, "."), 64), (times(500, "."), 64),
        ("x", 7), (".x", 9), ("x.......", 8), ("x......", 7), (times(30, "x"), 1),
        ("\(times(19, "."))xxx", 64), ("\(times(19, "."))xxxx", 57),
        ("\(times(19, "."))xxxx\(times(57, "."))", 58),
        ("\(times(30, "x")).", 2), ("\(times(30, "x"))...", 3),
    ]

    @Test("answers and the limit after them", arguments: ends)
    func table(answers: String, calls: Int) {
        #expect(Self.limit(answers).calls == calls)
    }

    @Test("2,000 at once after four answers' time, 500 after three: as long as nothing fails it grows fourfold")
    func ramp() {
        for (callsMax, rounds) in [(2000, 4), (500, 3), (64, 2), (8, 0), (3, 0)] {
            var limit = ConcurrencyLimit(callsMax: callsMax)
            var took = 0
            while limit.calls < callsMax {
                took += 1
                for _ in 0..<limit.calls { limit.record(failed: false, inFlight: limit.calls) }
            }
            #expect(took == rounds && !limit.isRamping, "\(callsMax)")
        }
    }

    @Test("success while less than half is used says nothing")
    func unused() {
        var limit = ConcurrencyLimit(callsMax: 64)
        for _ in 0..<100 { limit.record(failed: false, inFlight: 3) }
        #expect(limit.calls == 8)
        limit.record(failed: false, inFlight: 4)
        #expect(limit.calls == 11)
    }

    @Test(
        "one error in a hundred costs nothing; a host that bears 20 calls gets about 20",
        arguments: [1, 2, 3] as [UInt64])
    func finds(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var limit = ConcurrencyLimit(callsMax: 64)
        for _ in 0..<20_000 {
            limit.record(failed: Int.random(in: 0..<100, using: &random) == 0, inFlight: limit.calls)
        }
        #expect(limit.calls >= 40, "seed \(seed): \(limit.calls)")
        // Beyond 20 at once every call fails.
        var sum = 0
        for round in 0..<2000 {
            let calls = limit.calls
            for number in 0..<calls { limit.record(failed: number >= 20, inFlight: calls) }
            if round >= 1000 { sum += limit.calls }
        }
        #expect((15...21).contains(sum / 1000), "seed \(seed): \(sum / 1000)")
    }

    @Test(
        "property: never below one nor above the most, and never cut by success", arguments: [1, 2, 3, 4] as [UInt64])
    func property(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        for callsMax in [1, 2, 7, 64, 2000] {
            var limit = ConcurrencyLimit(callsMax: callsMax)
            for _ in 0..<5000 {
                let (before, failed) = (limit, Int.random(in: 0..<10, using: &random) == 0)
                limit.record(failed: failed, inFlight: Int.random(in: 1...before.calls, using: &random))
                #expect((1...callsMax).contains(limit.calls))
                #expect(failed || limit.calls >= before.calls)
                #expect(!limit.isRamping || before.isRamping)
            }
        }
    }
}
