import HTTPTypes
package import Hummingbird
import Metrics
import NIOCore
import NIOHTTP1
import Synchronization

/// Reads the bodies of requests within bounds: bytes of one, bytes of all at once, and time (`RequestClock`).
///
/// Memory: bodies count inflated and as they arrive, so a body that a client only announces takes none. Judging and
/// storing a body makes copies of it; of large bodies only `judgedBytesMax` are judged and stored at one time, and the
/// others wait as they came. A body is large if it has more than `smallBytesMax`; a notification, if it has more than
/// version 2 may have. One large notification is judged and stored at a time.
package final class BodyReader: Sendable {
    /// Bytes of all large bodies that are being read, judged or stored: 64 of 8 MiB. A body beyond that is answered
    /// 503.
    package static let largeBytesInFlightMax = 512 << 20
    /// The same for all others, so that signed transactions and orders have room beside large bodies.
    package static let smallBytesInFlightMax = 32 << 20
    /// The same for Apple's notifications of whatever size. Their senders have no key, so their bodies must take no
    /// room from others.
    package static let notificationBytesInFlightMax = 32 << 20
    private static let smallBytesMax = 64 << 10
    /// A larger notification waits for its turn beside large bodies. Only version 1 has such ones.
    package static let smallNotificationBytesMax = 256 << 10
    private static let judgedBytesMax = 16 << 20
    /// A body that waited longer for its turn is answered 503: the database does not keep up.
    private static let turnWaitMax: Duration = .seconds(20)

    package let bytesMax: Int
    private let clock: RequestClock
    private let small = Room(bytesMax: smallBytesInFlightMax, name: "small")
    private let large = Room(bytesMax: largeBytesInFlightMax, name: "large")
    private let notifications = Room(bytesMax: notificationBytesInFlightMax, name: "notification")
    private let turns = AsyncSemaphore(judgedBytesMax)
    /// Large posts wait behind one notification at most, however many a stranger sends.
    private let largeNotifications = AsyncSemaphore(1)
    private let ofUsers = UserBytes()
    private let refused = Counter(label: "makegood_http_bodies_refused_total")

    package init(bytesMax: Int, clock: RequestClock) {
        self.bytesMax = bytesMax
        self.clock = clock
    }

    /// Reads a body whole and lends it to `use` as UTF-8, inflated; the body counts as memory in use until `use` ends.
    /// What the head alone decides is refused before a byte of the body is read. A client that waits to be asked for
    /// its body (`Expect: 100-continue`) is asked when all else is known to be right.
    ///
    /// - Parameters:
    ///   - caller: the sender; a gateway's user may have few slow bodies at one time.
    ///   - bytes: the route's own limit, where it is lower than that of all bodies.
    ///   - isNotification: whether the body counts among Apple's notifications. If it is not large, it waits here for
    ///     no turn: `use` bounds how many are judged at one time.
    /// - Throws: `Problem` 413, 415, 408, 429, 400 (cut, or not to be inflated) or 503; `RequestBroken` where its HTTP
    ///   is broken.
    package func withBody<Result>(
        of request: Request, _ context: HTTPContext, from caller: Caller, atMost bytes: Int = .max,
        isNotification: Bool = false, _ use: ([UInt8]) async throws -> Result
    ) async throws -> Result {
        let bytesMax = min(bytes, self.bytesMax)
        let form = try BodyForm(request.headers)
        let announced = try Self.announcedBytes(request.headers)
        if let announced, announced > bytesMax { throw Problem.bodyTooLarge(bytesMax: bytesMax) }
        try ofUsers.check(caller)
        let room = isNotification ? notifications : announced ?? 0 > Self.smallBytesMax ? large : small
        guard room.isOpen else { throw tooMuch() }
        let arrival = RequestClock.Arrival(context.channel, of: caller.userID)
        // A body counts as small until it is larger.
        var body = Body(room: isNotification ? notifications : small)
        defer {
            body.room.add(-body.counted)
            ofUsers.note(max(arrival.bytes, body.bytes.count), of: caller)
        }
        try await read(request, form, arrival, announced, upTo: bytesMax, into: &body)
        let text = try form.text(body.bytes)
        guard text.count > (isNotification ? Self.smallNotificationBytesMax : Self.smallBytesMax) else {
            return try await use(text)
        }
        let weight = min(text.count, Self.judgedBytesMax)
        let start = ContinuousClock.now
        if isNotification { await largeNotifications.enter() }
        defer { if isNotification { largeNotifications.leave() } }
        await turns.enter(weight)
        defer { turns.leave(weight) }
        guard ContinuousClock.now - start < Self.turnWaitMax else { throw tooMuch() }
        return try await use(text)
    }

    /// Whether a body is in flight that is no notification.
    package var hasPosts: Bool { !small.isEmpty || !large.isEmpty }

    /// Room for the bodies of one kind.
    private final class Room: Sendable {
        private let bytesMax: Int
        private let used = Mutex(0)
        private let gauge: Gauge

        init(bytesMax: Int, name: String) {
            self.bytesMax = bytesMax
            gauge = Gauge(label: "makegood_http_body_bytes", dimensions: [("size", name)])
        }

        var isOpen: Bool { used.withLock { $0 < bytesMax } }
        var isEmpty: Bool { used.withLock { $0 == 0 } }

        /// - Returns: whether all of it fits; it counts in any case.
        @discardableResult
        func add(_ bytes: Int) -> Bool {
            used.withLock { used in
                used += bytes
                gauge.record(used)
                return used <= bytesMax
            }
        }
    }

    /// A body as far as it is there.
    private struct Body {
        var bytes: [UInt8] = []
        var inflater: Inflater?
        var room: Room
        /// Its bytes in `room`.
        var counted = 0

        init(room: Room) { self.room = room }

        /// Makes room for `count` more bytes of a body that has `expected` bytes in the end, or fewer.
        ///
        /// Two steps lead from 64 KiB to 8 MiB. More steps would leave freed pieces of memory between the bodies that
        /// arrive beside this one: with doubling 64 bodies of 8 MiB take 830 MiB, with these steps 550 MiB. Memory that
        /// was never written costs no page, so a client that sends little holds little.
        mutating func makeRoom(for count: Int, of expected: Int) {
            let needed = bytes.count + count
            guard needed > bytes.capacity else { return }
            bytes.reserveCapacity(expected <= 16 * needed ? max(expected, needed) : 8 * needed)
        }
    }

    private func read(
        _ request: Request, _ form: BodyForm, _ arrival: RequestClock.Arrival, _ announced: Int?, upTo bytesMax: Int,
        into body: inout Body
    ) async throws {
        clock.start(arrival)
        defer { clock.stop(arrival) }
        if request.headers[.expect] != nil {
            Requester.current?.askForBody()
            arrival.channel.triggerUserOutboundEvent(RequestHeadTimeout.Raw.goOn, promise: nil)
        }
        do {
            for try await buffer in request.body {
                let before = arrival.bytes
                guard arrival.add(buffer.readableBytes) <= bytesMax else {
                    throw Problem.bodyTooLarge(bytesMax: bytesMax)
                }
                try take(buffer, isFirst: before == 0, form, announced, upTo: bytesMax, into: &body)
            }
        } catch let problem as Problem {
            throw problem
        } catch let error as HTTPParserError {
            throw RequestBroken(cause: error)
        } catch let error as CancellationError {
            throw error
        } catch {
            throw Problem.bodyCut
        }
        // A post may be cut at any byte (S1-2), and half of a post is not what the client sent.
        if let announced, arrival.bytes != announced { throw Problem.bodyCut }
        if body.inflater?.isComplete == false { throw Problem.bodyCut }
        body.inflater = nil
    }

    /// Appends a piece of the body, inflated, and counts it.
    private func take(
        _ buffer: ByteBuffer, isFirst: Bool, _ form: BodyForm, _ announced: Int?, upTo bytesMax: Int,
        into body: inout Body
    ) throws(Problem) {
        do throws(Inflater.Failure) {
            if isFirst, let first = buffer.readableBytesView.first { body.inflater = try form.inflater(first: first) }
            if let inflater = body.inflater {
                // Few JSON texts become less than a quarter by compression.
                body.makeRoom(for: 4 * buffer.readableBytes, of: bytesMax)
                try inflater.inflate(buffer, onto: &body.bytes, upTo: bytesMax)
            } else {
                body.makeRoom(for: buffer.readableBytes, of: announced ?? bytesMax)
                body.bytes.append(contentsOf: buffer.readableBytesView)
            }
        } catch {
            switch error {
            case .tooLarge: throw .bodyTooLarge(bytesMax: bytesMax)
            case .corrupt: throw .badEncoding
            case .noMemory: throw tooMuch()
            }
        }
        if body.room === small, body.bytes.count > Self.smallBytesMax {
            small.add(-body.counted)
            (body.room, body.counted) = (large, 0)
        }
        let bytes = body.bytes.count + (body.inflater == nil ? 0 : Inflater.bytes)
        let more = bytes - body.counted
        body.counted = bytes
        guard body.room.add(more) else { throw tooMuch() }
    }

    private func tooMuch() -> Problem {
        refused.increment()
        return .unavailable(limit: .bodies)
    }

    private static func announcedBytes(_ headers: HTTPFields) throws(Problem) -> Int? {
        guard let text = headers[.contentLength] else { return nil }
        guard let bytes = Int(text), bytes >= 0 else {
            throw .malformed(.badRequest, "Content-Length must be a number", field: nil)
        }
        return bytes
    }
}

/// The bytes that came are no HTTP. The server below answers, as it does for a head that is no HTTP.
struct RequestBroken: Error {
    let cause: HTTPParserError
}
