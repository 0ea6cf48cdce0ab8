import FaultProxy
import Foundation
import Ledger
import Synchronization

/// A process's work in flight: requests that its servers have not answered yet, and messages that it has received and
/// not settled yet. The proxies read it from the connections, so a test knows from the outside whether a kill
/// interrupted something.
final class WorkInFlight: Sendable {
    struct Counts: Sendable {
        /// The number of connections to PostgreSQL with an unanswered question.
        var questions = 0
        /// The number of messages delivered and not acknowledged.
        var unacked = 0
        /// The number of messages published and not confirmed.
        var unconfirmed = 0

        var isWorking: Bool { questions + unacked + unconfirmed > 0 }
    }

    /// The proxy keeps the ledger alive as long as the connection stands.
    private struct Link {
        weak var ledger: (any Ledger)?
    }

    private let links = Mutex<[Link]>([])

    /// The counts of the connections that stand.
    var counts: Counts {
        links.withLock { links in
            links.removeAll { $0.ledger == nil }
            return links.reduce(into: Counts()) { $1.ledger?.add(to: &$0) }
        }
    }

    func observePostgres() -> FaultProxy.Observer { observe(PostgresLink()) }
    func observeBroker() -> FaultProxy.Observer { observe(BrokerLink()) }

    private func observe(_ link: some Ledger) -> FaultProxy.Observer {
        links.withLock { $0.append(Link(ledger: link)) }
        return { direction, bytes in link.saw(bytes, direction) }
    }

    private protocol Ledger: AnyObject, Sendable {
        func saw(_ bytes: ArraySlice<UInt8>, _ direction: FaultProxy.Direction)
        func add(to counts: inout Counts)
    }

    /// Counts a question as answered when its answer ends in ReadyForQuery: `Z`, length 5, a state (PostgreSQL manual,
    /// 55.7).
    private final class PostgresLink: Ledger {
        /// Messages that ask nothing: Terminate, and the empty Query that serves as a keep-alive (PostgreSQL manual,
        /// 55.7).
        private static let idle: [[UInt8]] = [[0x58, 0, 0, 0, 4], [0x51, 0, 0, 0, 5, 0]]
        private let state = Mutex((isAsked: false, tail: [UInt8]()))

        func saw(_ bytes: ArraySlice<UInt8>, _ direction: FaultProxy.Direction) {
            state.withLock { state in
                switch direction {
                case .toServer:
                    if !Self.idle.contains(where: { bytes.elementsEqual($0) }) { state.isAsked = true }
                    state.tail = []
                case .toClient:
                    state.tail = Array((state.tail + bytes.suffix(6)).suffix(6))
                    if state.tail.prefix(5).elementsEqual([0x5A, 0, 0, 0, 5]) { state.isAsked = false }
                }
            }
        }

        func add(to counts: inout Counts) { if state.withLock({ $0.isAsked }) { counts.questions += 1 } }
    }

    /// Counts methods of class basic (60) in the frames of AMQP 0-9-1 (specification, 2.3 and 4.2.3).
    private final class BrokerLink: Ledger {
        private struct State {
            var frames: [FaultProxy.Direction: Frames] = [:]
            var published: UInt64 = 0
            var unconfirmed: Set<UInt64> = []
            var unacked: Set<UInt64> = []

            mutating func apply(_ method: BasicMethod, _ direction: FaultProxy.Direction) {
                switch (method.number, direction) {
                case (40, .toServer):  // publish
                    published += 1
                    unconfirmed.insert(published)
                case (60, .toClient):  // deliver: consumer tag (short string), delivery tag
                    unacked.insert(method.tag(at: 1 + Int(method.arguments.first ?? 0)))
                case (80, _), (90, .toServer), (120, _):  // ack, reject, nack
                    let tag = method.tag()
                    let isMultiple = method.number != 90 && method.isMultiple
                    func settle(_ open: inout Set<UInt64>) {
                        if isMultiple { open = open.filter { $0 > tag } } else { open.remove(tag) }
                    }
                    if direction == .toServer { settle(&unacked) } else { settle(&unconfirmed) }
                default: break
                }
            }
        }

        private let state = Mutex(State())

        func saw(_ bytes: ArraySlice<UInt8>, _ direction: FaultProxy.Direction) {
            state.withLock { state in
                var frames = state.frames[direction] ?? Frames(hasGreeting: direction == .toServer)
                for method in frames.methods(in: bytes) { state.apply(method, direction) }
                state.frames[direction] = frames
            }
        }

        func add(to counts: inout Counts) {
            state.withLock { state in
                counts.unacked += state.unacked.count
                counts.unconfirmed += state.unconfirmed.count
            }
        }
    }
}

/// One method of class basic: its number and its arguments.
private struct BasicMethod {
    let number: UInt16
    let arguments: ArraySlice<UInt8>

    /// The delivery tag at this offset.
    func tag(at offset: Int = 0) -> UInt64 {
        arguments.dropFirst(offset).prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
    }

    /// Whether the `multiple` bit after the tag is set: the tag stands for this message and all before it.
    var isMultiple: Bool { (arguments.dropFirst(8).first ?? 0) & 1 == 1 }
}

/// The frames of one direction, cut out of the arriving bytes.
private struct Frames {
    private var rest: [UInt8] = []
    private var greeting: Int

    init(hasGreeting: Bool) { greeting = hasGreeting ? 8 : 0 }

    mutating func methods(in bytes: ArraySlice<UInt8>) -> [BasicMethod] {
        let skipped = min(greeting, bytes.count)
        greeting -= skipped
        rest += bytes.dropFirst(skipped)
        var methods: [BasicMethod] = []
        var at = 0
        // Type, channel, size, payload, end mark.
        while rest.count - at >= 8 {
            let size = rest[at + 3..<at + 7].reduce(0) { $0 << 8 | Int($1) }
            guard rest.count - at >= size + 8 else { break }
            let payload = rest[at + 7..<at + 7 + size]
            if rest[at] == 1, payload.prefix(2).elementsEqual([0, 60]) {
                let number = payload.dropFirst(2).prefix(2).reduce(0) { $0 << 8 | UInt16($1) }
                methods.append(BasicMethod(number: number, arguments: ArraySlice(Array(payload.dropFirst(4)))))
            }
            at += size + 8
        }
        rest.removeFirst(at)
        return methods
    }
}
