import TestRandom
import Testing

@testable import RabbitMQ

/// Goal: in whatever valid order a broker sends frames, every publish that waits for a confirm is answered once, with
/// the broker's own answer. Where a stream cannot be followed, an error says so, and no publish is lost either.
/// Method: random streams of a broker that keeps to AMQP, and of one that does not, through the dispatcher into the
/// outstanding confirms, as in a publisher.
@Suite struct FrameDispatcherTests {
    private typealias Frame = FrameDispatcher.Frame

    /// The publisher's part: it applies events to its outstanding confirms.
    private struct Listener {
        var dispatcher = FrameDispatcher()
        var confirms = OutstandingConfirms<UInt64>()
        private(set) var published: UInt64 = 0
        /// Every answer that was given, by tag.
        private(set) var answers: [UInt64: [OutstandingConfirms<UInt64>.Answer]] = [:]
        private(set) var others: [BrokerEvent] = []

        mutating func publish() {
            published += 1
            #expect(confirms.register(published, at: .now) == published)
        }

        mutating func hear(_ frame: Frame) throws {
            guard let event = try dispatcher.take(frame) else { return }
            switch event {
            case .confirmed(let tag, let multiple): try settle(tag, multiple, refused: false)
            case .refused(let tag, let multiple): try settle(tag, multiple, refused: true)
            case .returned(let tag?): confirms.markReturned(tag)
            case .returned(nil): throw RabbitMQError.protocolViolation
            default: others.append(event)
            }
        }

        private mutating func settle(_ tag: UInt64, _ multiple: Bool, refused: Bool) throws {
            for settled in try confirms.settle(tag, multiple: multiple, refused: refused) {
                answers[settled.ticket, default: []].append(settled.answer)
            }
        }
    }

    /// A broker that keeps to AMQP: the publishes that it must still answer, and the message that it is just sending.
    private struct Broker {
        var unanswered: [UInt64] = []
        var returned: Set<UInt64> = []
        var content: [Frame] = []
        var answers: [UInt64: OutstandingConfirms<UInt64>.Answer] = [:]
        var others: [BrokerEvent] = []
        /// The event that `content` becomes when it is complete.
        var announced: BrokerEvent?

        /// The next frame; nil if the broker has nothing to send now.
        mutating func frame(_ random: inout SeededRandom) -> Frame? {
            switch Int.random(in: 0..<12, using: &random) {
            case 0:
                others.append(.blocked)
                return .block
            case 1:
                others.append(.unblocked)
                return .unblock
            case 2:
                others.append(.cancelled(consumer: "c"))
                return .cancel(consumer: "c")
            case 3..<5 where content.isEmpty: return beginReturn(&random)
            case 5 where content.isEmpty: return beginDelivery(&random)
            case 6..<9: return answer(&random)
            default:
                guard !content.isEmpty else { return nil }
                let frame = content.removeFirst()
                if content.isEmpty, let announced { others.append(announced) }
                return frame
            }
        }

        private mutating func beginReturn(_ random: inout SeededRandom) -> Frame? {
            guard let tag = unanswered.randomElement(using: &random), !returned.contains(tag) else { return nil }
            returned.insert(tag)
            let body = (0..<Int.random(in: 0...200, using: &random)).map { _ in
                UInt8.random(in: 0...255, using: &random)
            }
            content = [.header(bodyBytes: UInt64(body.count), messageID: String(tag))] + Self.pieces(body, &random)
            announced = nil
            return .giveBack
        }

        private mutating func beginDelivery(_ random: inout SeededRandom) -> Frame {
            let isTooLarge = Int.random(in: 0..<8, using: &random) == 0
            let count =
                isTooLarge ? FrameDispatcher.incomingBodyLimitBytes + 1 : Int.random(in: 0...300, using: &random)
            let body = [UInt8](repeating: UInt8.random(in: 0...255, using: &random), count: count)
            let tag = random.next()
            content = [.header(bodyBytes: UInt64(count), messageID: nil)] + Self.pieces(body, &random)
            announced = .delivered(consumer: "c", tag: tag, redelivered: true, body: isTooLarge ? nil : body)
            return .deliver(consumer: "c", tag: tag, redelivered: true)
        }

        private mutating func answer(_ random: inout SeededRandom) -> Frame? {
            // A message is acknowledged after it was returned, not in the middle of its return.
            let open = content.isEmpty ? unanswered : unanswered.filter { !returned.contains($0) }
            guard let tag = open.randomElement(using: &random) else { return nil }
            let covered = unanswered.filter { $0 <= tag }
            let isMultiple = Bool.random(using: &random) && Set(covered).isSubset(of: open)
            let isRefused = Int.random(in: 0..<4, using: &random) == 0
            for tag in isMultiple ? covered : [tag] {
                answers[tag] = returned.contains(tag) ? .returned : isRefused ? .refused : .confirmed
            }
            unanswered.removeAll { isMultiple ? $0 <= tag : $0 == tag }
            return isRefused ? .nack(tag: tag, multiple: isMultiple) : .ack(tag: tag, multiple: isMultiple)
        }

        private static func pieces(_ body: [UInt8], _ random: inout SeededRandom) -> [Frame] {
            var rest = body[...]
            var frames: [Frame] = []
            while !rest.isEmpty {
                let piece = rest.prefix(Int.random(in: 1...max(1, body.count / 2), using: &random))
                frames.append(.body(Array(piece)))
                rest = rest.dropFirst(piece.count)
            }
            return frames
        }
    }

    @Test func everyPromiseIsKeptOnce() throws {
        var random = SeededRandom(announcing: "frames")
        let seed = random.seed
        for _ in 0..<2_000 {
            var listener = Listener()
            var broker = Broker()
            for _ in 0..<60 {
                if Bool.random(using: &random) {
                    listener.publish()
                    broker.unanswered.append(listener.published)
                }
                if let frame = broker.frame(&random) { try listener.hear(frame) }
            }
            while !broker.unanswered.isEmpty || !broker.content.isEmpty {
                if let frame = broker.frame(&random) { try listener.hear(frame) }
            }
            #expect(listener.confirms.open == 0 && listener.confirms.unconfirmed == 0, "seed \(seed)")
            #expect(listener.answers == broker.answers.mapValues { [$0] }, "seed \(seed)")
            #expect(listener.answers.count == listener.published, "seed \(seed)")
            #expect(listener.others == broker.others, "seed \(seed)")
        }
    }

    @Test func anyOrderOfFramesLosesNoPromise() {
        var random = SeededRandom(announcing: "frames in any order")
        let seed = random.seed
        var followed = 0
        for _ in 0..<5_000 {
            var listener = Listener()
            for _ in 0..<40 {
                if Int.random(in: 0..<3, using: &random) > 0 { listener.publish() }
                do {
                    try listener.hear(anyFrame(upTo: listener.published, &random))
                    followed += 1
                } catch {
                    break
                }
            }
            // As the publisher does when the connection can no longer be used.
            let lost = listener.confirms.removeAll().map(\.ticket)
            let all = lost + listener.answers.keys
            #expect(Set(all) == Set(listener.published == 0 ? [] : Array(1...listener.published)), "seed \(seed)")
            #expect(all.count == Int(listener.published), "answered twice, seed \(seed)")
            #expect(listener.answers.values.allSatisfy { $0.count == 1 }, "seed \(seed)")
        }
        #expect(followed > 2_000, "the streams end before they begin, seed \(seed)")
    }

    private func anyFrame(upTo tag: UInt64, _ random: inout SeededRandom) -> Frame {
        let tag = UInt64.random(in: 0...tag, using: &random)
        let size = Int.random(in: 0...3, using: &random)
        switch Int.random(in: 0..<24, using: &random) {
        case 0..<6: return .ack(tag: tag, multiple: .random(using: &random))
        case 6..<8: return .nack(tag: tag, multiple: .random(using: &random))
        case 8..<11: return .giveBack
        case 11..<13: return .deliver(consumer: "c", tag: tag, redelivered: false)
        case 13..<16:
            let id = Bool.random(using: &random) ? String(tag) : random.text(0...3)
            return .header(bodyBytes: UInt64(size), messageID: id)
        case 16..<19: return .body([UInt8](repeating: 0, count: size))
        case 19: return .cancel(consumer: "")
        case 20: return .block
        case 21: return .unblock
        case 22: return .close
        default: return .unknown
        }
    }

    @Test func whatCannotBeFollowedIsSaid() throws {
        let broken: [[Frame]] = [
            [.header(bodyBytes: 0, messageID: nil)], [.body([1])], [.giveBack, .giveBack], [.giveBack, .body([1])],
            [.giveBack, .header(bodyBytes: 1, messageID: "1"), .header(bodyBytes: 1, messageID: "1")],
            [.giveBack, .header(bodyBytes: 1, messageID: "1"), .body([1, 2])],
            [.deliver(consumer: "c", tag: 1, redelivered: false), .giveBack], [.unknown],
        ]
        for frames in broken {
            var dispatcher = FrameDispatcher()
            for frame in frames.dropLast() { #expect(try dispatcher.take(frame) == nil) }
            #expect(throws: FrameDispatcher.Failure.outOfOrder) { try dispatcher.take(frames.last!) }
        }
        var dispatcher = FrameDispatcher()
        #expect(throws: FrameDispatcher.Failure.closed) { try dispatcher.take(.close) }
    }
}
