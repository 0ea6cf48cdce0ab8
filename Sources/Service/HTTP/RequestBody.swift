import HTTPTypes
package import Hummingbird
import Metrics
import NIOHTTP1
import Synchronization

/// Reads the bodies of requests within bounds: bytes of one, bytes of all at once, and time (`RequestClock`).
package final class BodyReader: Sendable {
    /// Bytes of all bodies that are being read or judged, counted as they arrive: a body that a client only announces
    /// takes no memory. A hundred callers of 1 MiB fit; a body beyond that is answered 503.
    package static let bytesInFlightMax = 256 << 20
    /// The most memory that is set aside for a body before it arrives.
    private static let bytesExpectedMax = 64 << 10

    package let bytesMax: Int
    private let clock: RequestClock
    private let inFlight = Atomic<Int>(0)
    private let ofUsers = UserBytes()
    private let refused = Counter(label: "makegood_http_bodies_refused_total")

    package init(bytesMax: Int, clock: RequestClock) {
        self.bytesMax = bytesMax
        self.clock = clock
    }

    /// Reads a body whole and lends it to `use`. A body that is announced as too large is refused before a byte of it
    /// is read. A client that waits to be asked for its body (`Expect: 100-continue`) is asked when all else is known
    /// to be right.
    ///
    /// - Parameters:
    ///   - caller: the sender; a gateway's user may have few slow bodies at one time.
    ///   - bytesMin: a route's own bound, where that is higher than the general one.
    /// - Throws: `Problem` 413, 408, 429, 400 (cut) or 503; `RequestBroken` where its HTTP is broken.
    package func withBody<Result>(
        of request: Request, _ context: HTTPContext, from caller: Caller, bytesMin: Int = 0,
        _ use: ([UInt8]) async throws -> Result
    ) async throws -> Result {
        let bytesMax = max(bytesMax, bytesMin)
        let announced = try Self.announcedBytes(request.headers)
        if let announced, announced > bytesMax { throw Problem.bodyTooLarge(bytesMax: bytesMax) }
        try ofUsers.check(caller)
        guard inFlight.load(ordering: .relaxed) < Self.bytesInFlightMax else { throw tooMuch() }
        let arrival = RequestClock.Arrival(context.channel, of: caller.userID)
        defer {
            inFlight.wrappingSubtract(arrival.bytes, ordering: .relaxed)
            ofUsers.note(arrival.bytes, of: caller)
        }
        return try await use(read(request, arrival, announced, bytesMax))
    }

    private func read(
        _ request: Request, _ arrival: RequestClock.Arrival, _ announced: Int?, _ bytesMax: Int
    ) async throws -> [UInt8] {
        clock.start(arrival)
        defer { clock.stop(arrival) }
        if request.headers[.expect] != nil {
            arrival.channel.triggerUserOutboundEvent(RequestHeadTimeout.Raw.goOn, promise: nil)
        }
        var body: [UInt8] = []
        body.reserveCapacity(min(announced ?? 0, Self.bytesExpectedMax))
        do {
            for try await buffer in request.body {
                let bytes = buffer.readableBytes
                let inFlight = inFlight.wrappingAdd(bytes, ordering: .relaxed).newValue
                guard arrival.add(bytes) <= bytesMax else { throw Problem.bodyTooLarge(bytesMax: bytesMax) }
                guard inFlight <= Self.bytesInFlightMax else { throw tooMuch() }
                body.append(contentsOf: buffer.readableBytesView)
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
        if let announced, body.count != announced { throw Problem.bodyCut }
        return body
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
