import Foundation
import Testing

@testable import AppStore

// Goal: work that takes too long ends at its deadline, and no other work ends with it; work that ends in time never
// waits for a deadline (P15).

@Suite(.timeLimit(.minutes(1))) struct DeadlinesTests {
    private static let farAway: Duration = .seconds(3600)

    private static func forever() async throws {
        try await Task.sleep(for: farAway)
    }

    @Test func `work in time ends with its value or its own error`() async throws {
        let deadlines = Deadlines()
        let done = await deadlines.run(by: .now + Self.farAway) { 7 }
        #expect(try done.result.get() == 7)
        #expect(!done.isLate)
        struct Own: Error {}
        let failed = await deadlines.run(by: .now + Self.farAway) { throw Own() }
        #expect(throws: Own.self) { try failed.result.get() }
        #expect(!failed.isLate)
    }

    @Test func `of many the late ones end at their deadline, and they alone`() async throws {
        let deadlines = Deadlines()
        let start = ContinuousClock.now
        let late = await withTaskGroup(of: (Int, Bool).self, returning: [Int].self) { group in
            for number in 0..<200 {
                group.addTask {
                    let isSlow = number % 4 == 0
                    let limit: Duration = .milliseconds(200 + number)
                    let (_, isLate) = await deadlines.run(by: start + limit) {
                        if isSlow { try await Self.forever() }
                    }
                    if isLate { #expect(ContinuousClock.now >= start + limit) }
                    return (number, isLate)
                }
            }
            return await group.reduce(into: []) { if $1.1 { $0.append($1.0) } }
        }
        // On a busy machine work whose task had no turn within its time is late as well.
        #expect(Set(late).isSuperset(of: stride(from: 0, to: 200, by: 4)))
        // The watcher stops while nothing runs, and watches again when the next work begins.
        try await Task.sleep(for: .milliseconds(500))
        let again = await deadlines.run(by: .now + .milliseconds(50)) { try await Self.forever() }
        #expect(again.isLate)
    }

    @Test func `a deadline that comes later and is nearer is kept`() async throws {
        let deadlines = Deadlines()
        let far = Task { await deadlines.run(by: .now + Self.farAway) { try await Self.forever() } }
        try await Task.sleep(for: .milliseconds(100))
        let start = ContinuousClock.now
        let near = await deadlines.run(by: start + .milliseconds(200)) { try await Self.forever() }
        #expect(near.isLate)
        #expect(ContinuousClock.now - start < .seconds(20))
        far.cancel()
        #expect(await !far.value.isLate)
    }

    @Test func `a caller that is cancelled ends its work, and that is not late`() async {
        let deadlines = Deadlines()
        let caller = Task { await deadlines.run(by: .now + Self.farAway) { try await Self.forever() } }
        caller.cancel()
        let (result, isLate) = await caller.value
        #expect(throws: CancellationError.self) { try result.get() }
        #expect(!isLate)
    }
}
