import TestRandom
import Testing

@testable import RabbitMQ

@Suite struct OutstandingConfirmsTests {
    private typealias Confirms = OutstandingConfirms<Int>
    private let start = ContinuousClock.now

    @Test func answersOneByOne() throws {
        var confirms = Confirms()
        expect(confirms.register(10, at: start), is: 1)
        expect(confirms.register(20, at: start + .seconds(1)), is: 2)
        #expect(confirms.unconfirmed == 2)
        #expect(confirms.oldest == start)
        let second = try confirms.settle(2, multiple: false, refused: false)
        #expect(second.map(\.ticket) == [20])
        #expect(confirms.oldest == start)
        let first = try confirms.settle(1, multiple: false, refused: true)
        #expect(first.map(\.answer) == [.refused])
        #expect(confirms.unconfirmed == 0)
        #expect(confirms.oldest == nil)
        expect(confirms.register(30, at: start), is: 3)
    }

    @Test func multipleSettlesEverythingBefore() throws {
        var confirms = Confirms()
        for ticket in 1...5 { _ = confirms.register(ticket, at: start) }
        _ = try confirms.settle(2, multiple: false, refused: false)
        expect(try confirms.settle(4, multiple: true, refused: false).map(\.ticket), is: [1, 3, 4])
        expect(try confirms.settle(0, multiple: true, refused: false).map(\.ticket), is: [5])
    }

    @Test func aReturnedMessageFailsWhenItIsAcknowledged() throws {
        var confirms = Confirms()
        for ticket in 1...3 { _ = confirms.register(ticket, at: start) }
        confirms.markReturned(2)
        confirms.markReturned(99)
        let settled = try confirms.settle(3, multiple: true, refused: false)
        #expect(settled.map(\.answer) == [.confirmed, .returned, .confirmed])
    }

    @Test func unknownAndRepeatedTagsAreViolations() throws {
        var confirms = Confirms()
        #expect(throws: RabbitMQError.protocolViolation) { try confirms.settle(1, multiple: false, refused: false) }
        for ticket in 1...3 { _ = confirms.register(ticket, at: start) }
        _ = try confirms.settle(2, multiple: false, refused: false)
        #expect(throws: RabbitMQError.protocolViolation) { try confirms.settle(2, multiple: false, refused: false) }
        #expect(throws: RabbitMQError.protocolViolation) { try confirms.settle(4, multiple: true, refused: false) }
        #expect(throws: RabbitMQError.protocolViolation) { try confirms.settle(0, multiple: false, refused: false) }
    }

    @Test func anAbandonedPublishStillCountsUntilTheBrokerAnswers() throws {
        var confirms = Confirms()
        for ticket in 1...3 { _ = confirms.register(ticket, at: start + .seconds(ticket)) }
        expect(confirms.abandon(sentBefore: start + .seconds(3)), is: [1, 2])
        #expect(confirms.open == 1)
        #expect(confirms.unconfirmed == 3)
        expect(try confirms.settle(2, multiple: true, refused: false).count, is: 0)
        #expect(confirms.unconfirmed == 1)
        confirms.restart(at: start + .seconds(60))
        #expect(confirms.oldest == start + .seconds(60))
        expect(confirms.removeAll().map(\.ticket), is: [3])
        expect(confirms.register(4, at: start), is: 1)
    }

    /// Goal: in whatever order answers come, every ticket is returned exactly once, with the right answer.
    /// Method: 2,000 random sequences of 60 commands against a naive model (a dictionary by tag).
    @Test func agreesWithANaiveModel() throws {
        var random = SeededRandom(announcing: "outstanding confirms")
        let seed = random.seed
        for _ in 0..<2_000 {
            var confirms = Confirms()
            var model: [UInt64: (ticket: Int, isOpen: Bool, isReturned: Bool, sentAt: Int)] = [:]
            var lastTag: UInt64 = 0
            for step in 0..<60 {
                let tags = model.keys.sorted()
                switch Int.random(in: 0..<10, using: &random) {
                case 0..<4:
                    lastTag += 1
                    let tag = confirms.register(step, at: start + .seconds(step))
                    #expect(tag == lastTag, "seed \(seed)")
                    model[lastTag] = (step, true, false, step)
                case 4:
                    guard let tag = tags.randomElement(using: &random) else { continue }
                    confirms.markReturned(tag)
                    model[tag]?.isReturned = true
                case 5:
                    let limit = Int.random(in: 0...step, using: &random)
                    let expected = tags.filter { model[$0]!.isOpen && model[$0]!.sentAt < limit }
                    let abandoned = confirms.abandon(sentBefore: start + .seconds(limit))
                    #expect(abandoned == expected.map { model[$0]!.ticket }, "seed \(seed)")
                    for tag in expected { model[tag]!.isOpen = false }
                default:
                    guard let tag = tags.randomElement(using: &random) else { continue }
                    let multiple = Bool.random(using: &random)
                    let refused = Bool.random(using: &random)
                    let expected = multiple ? tags.filter { $0 <= tag } : [tag]
                    let settled = try confirms.settle(tag, multiple: multiple, refused: refused)
                    let open = expected.filter { model[$0]!.isOpen }
                    #expect(settled.map(\.ticket) == open.map { model[$0]!.ticket }, "seed \(seed)")
                    #expect(
                        settled.map(\.answer)
                            == open.map { model[$0]!.isReturned ? .returned : refused ? .refused : .confirmed },
                        "seed \(seed)")
                    for tag in expected { model[tag] = nil }
                }
                #expect(confirms.unconfirmed == model.count, "seed \(seed)")
                #expect(confirms.open == model.values.count { $0.isOpen }, "seed \(seed)")
                #expect(
                    confirms.oldest == model.values.map(\.sentAt).min().map { start + .seconds($0) }, "seed \(seed)")
            }
            let rest = model.filter(\.value.isOpen).sorted { $0.key < $1.key }.map(\.value.ticket)
            let removed = confirms.removeAll().map(\.ticket)
            #expect(removed == rest, "seed \(seed)")
        }
    }
}

/// Compares two values: `#expect` cannot contain a mutating call.
func expect<Value: Equatable>(
    _ value: Value, is expected: Value, sourceLocation: SourceLocation = #_sourceLocation
) {
    #expect(value == expected, sourceLocation: sourceLocation)
}
