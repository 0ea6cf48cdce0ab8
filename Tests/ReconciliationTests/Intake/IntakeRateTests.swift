import Encoding
import Foundation
import HTTPTypes
import Intake
import Service
import Settings
import TestRandom
import TestServers
import Testing

/// Goal: one key cannot use up the server's capacity: a key has a rate, but none unless configured, and a stranger
/// cannot use up the rate of a key's owner. Method: the limiter against a bucket counted exactly, at random times; then
/// real requests.
@Suite(.migratedDatabase, .serialized) struct IntakeRateTests {
    /// A bucket in whole units: a request costs `unit`, and `perSecond` units come back each nanosecond.
    private struct Model {
        static let unit = 1_000_000_000
        let rate: Rate
        var level: Int
        var last = 0

        init(_ rate: Rate) {
            self.rate = rate
            level = rate.burst * Self.unit
        }

        private mutating func refill(at nanosecond: Int) {
            level = min(rate.burst * Self.unit, level + (nanosecond - last) * rate.perSecond)
            last = nanosecond
        }

        mutating func take(at nanosecond: Int) -> Bool {
            refill(at: nanosecond)
            guard level >= Self.unit else { return false }
            level -= Self.unit
            return true
        }

        /// Takes more from the bucket, which falls at most one batch below empty, however much was taken at once.
        mutating func owe(_ more: Int, at nanosecond: Int) {
            refill(at: nanosecond)
            level = max(level - more * Self.unit, min(level, -SubmissionBatch.entriesMax * Self.unit))
        }
    }

    @Test("Never more than the bucket holds, never less", arguments: [1, 2, SeededRandom(announcing: "rates").seed])
    func againstTheModel(seed: UInt64) throws {
        print("seed \(seed)")
        var random = SeededRandom(seed: seed)
        let start = ContinuousClock.now
        for _ in 0..<200 {
            // A second divided by each of these rates is a whole number of nanoseconds: the model is exact, so both
            // must agree.
            let rate = Rate(
                perSecond: [1, 2, 5, 10, 100, 1000].randomElement(using: &random)!,
                burst: .random(in: 1...20, using: &random))
            let limiter = RateLimiter()
            let share = RateLimiter.Share(.gateway, name: "test", rate)
            var model = Model(rate)
            var nanosecond = 0
            for step in 0..<100 {
                nanosecond += Int.random(in: 0...2_000_000_000, using: &random) / rate.perSecond
                let problem: Problem? = Result {
                    try limiter.take(share, at: start + .nanoseconds(nanosecond))
                }.problem
                let isAllowed = model.take(at: nanosecond)
                #expect((problem == nil) == isAllowed, "\(rate) step \(step)")
                guard let problem else {
                    let more = Bool.random(using: &random) ? 0 : Int.random(in: 1...150, using: &random)
                    // Some time passes until the body of the request has come.
                    nanosecond += Int.random(in: 0...2_000_000_000, using: &random) / rate.perSecond
                    limiter.owe(share, more, at: start + .nanoseconds(nanosecond))
                    model.owe(more, at: nanosecond)
                    continue
                }
                let wait = try #require(problem.headers[.retryAfter].flatMap { Int($0) })
                #expect(wait >= 1)
                // A caller that waits for the time in the answer is admitted.
                var later = model
                let comesIn = later.take(at: nanosecond + wait * 1_000_000_000)
                #expect(comesIn, "\(rate) step \(step)")
            }
        }
    }

    @Test("A reload changes the rate: nobody waits for what the old one owed, and nobody starts full again")
    func changedRate() throws {
        let limiter = RateLimiter()
        let now = ContinuousClock.now
        func isRefused(_ rate: Rate, after seconds: Int) -> Int? {
            let problem: Problem? = Result {
                try limiter.take(.init(.gateway, name: "test", rate), at: now + .seconds(seconds))
            }.problem
            return problem?.headers[.retryAfter].flatMap { Int($0) }
        }
        // The burst takes a quarter of an hour to come back.
        for _ in 0..<1000 { #expect(isRefused(Rate(perSecond: 1, burst: 1000), after: 0) == nil) }
        #expect(isRefused(Rate(perSecond: 1, burst: 1000), after: 0) == 1)
        #expect(isRefused(Rate(perSecond: 2, burst: 4), after: 0) == 1)
        #expect(isRefused(Rate(perSecond: 2, burst: 4), after: 1) == nil)
        limiter.owe(.init(.gateway, name: "test", Rate(perSecond: 2, burst: 4)), 199, at: now + .seconds(1))
        #expect(isRefused(Rate(perSecond: 2, burst: 4), after: 1) == 100)
        #expect(isRefused(Rate(perSecond: 1, burst: 4), after: 1) == 1)
    }

    @Test("A batch counts as many as it has entries, and is not refused for it: who comes after it waits")
    func batch() async throws {
        let access = IntakeFixture.entry("slow", "slow-key", "intake", "game", ", rate: {perSecond: 2, burst: 5}")
        try await RunningIntake.run(access: access) { intake in
            let entries = (0..<40).map { #"{"userId":"b\#($0)","receipt":"QUJD"}"# }
            let batch = #"{"receipts":[\#(entries.joined(separator: ","))]}"#
            #expect(try await intake.send("POST", "/v1/receipts/batch", key: "slow-key", body: batch).status == 200)
            #expect(try await intake.count("select count(*) from receipts where user_id like 'b%'") == 40)
            let refused = try await intake.post(#"{"userId":"b","receipt":"QUJD"}"#, key: "slow-key")
            #expect(refused.status == 429)
            // Five of the 41 were there; the others come back at two a second.
            let wait = try #require(refused.headers["retry-after"].flatMap { Int($0) })
            #expect((15...18).contains(wait))
        }
    }

    @Test("429 with Retry-After, for that key alone; tries without the key do not count; later the key is served again")
    func overHTTP() async throws {
        let access = IntakeFixture.entry(
            "slow", "slow-key", "intake, events", "game", ", rate: {perSecond: 2, burst: 5}")
        try await RunningIntake.run(access: access) { intake in
            for _ in 0..<50 { #expect(try await intake.get("/v1/events", key: "slow-key-").status == 401) }
            let statuses = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                for index in 0..<30 {
                    group.addTask {
                        try await intake.post(#"{"userId":"r\#(index)","receipt":"QUJD"}"#, key: "slow-key")
                    }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            let accepted = statuses.filter { $0.status == 202 }
            let refused = statuses.filter { $0.status == 429 }
            #expect(accepted.count + refused.count == 30)
            // Five are accepted at once, and two more for each second of this test; it took less than five seconds.
            #expect((5...15).contains(accepted.count))
            #expect(try await intake.count("select count(*) from receipts where user_id like 'r%'") == accepted.count)
            for answer in refused {
                #expect(answer.headers["content-type"] == "application/problem+json")
                #expect(answer.headers["retry-after"] == "1")
                #expect(answer["code"] == .string("too_many_requests"))
                #expect(answer["safeToFinish"] == .bool(false))
            }
            // Other keys are not held up; they have no limit.
            for _ in 0..<20 { #expect(try await intake.get("/v1/receipts/\(UUID())").status == 404) }
            try await Task.sleep(for: .seconds(1.1))
            #expect(try await intake.get("/v1/events", key: "slow-key").status == 200)
        }
    }

    @Test(
        "A rate is read strictly",
        arguments: [
            ("rate: {}", "access[5].rate.perSecond"), ("rate: {perSecond: 0}", "access[5].rate.perSecond"),
            ("rate: {perSecond: many}", "access[5].rate.perSecond"), ("rate: {burst: 5}", "access[5].rate.perSecond"),
            ("rate: {perSecond: 1, burst: 0}", "access[5].rate.burst"),
            ("rate: {perSecond: 1, bursts: 2}", "access[5].rate.bursts"), ("rate: 5", "access[5].rate"),
        ])
    func configuration(_ text: String, _ key: String) throws {
        let error = #expect(throws: ConfigurationError.self) {
            try IntakeFixture.configuration(access: IntakeFixture.entry("k", "k", "intake", "game", ", \(text)"))
        }
        #expect(error?.key == key)
    }

    @Test func withoutABurstASecondsWorth() throws {
        let access = IntakeFixture.entry("k", "k", "intake", "game", ", rate: {perSecond: 7}")
        let keys = try IntakeFixture.configuration(access: access).access
        #expect(keys.last?.rate == Rate(perSecond: 7, burst: 7))
        #expect(keys.first?.rate == nil)
    }
}

extension Result where Success == Void, Failure == any Error {
    fileprivate var problem: Problem? {
        if case .failure(let error) = self { error as? Problem } else { nil }
    }
}
