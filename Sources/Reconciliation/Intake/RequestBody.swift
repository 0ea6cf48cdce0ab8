import HTTPTypes
import Hummingbird
import Metrics
import NIOCore
import NIOHTTP1
import Synchronization

/// Reads the bodies of requests within three bounds: bytes of one, bytes of all at once, and time.
package final class BodyReader: Sendable {
    /// All bodies that are being read or judged. A hundred callers of 1 MiB fit; what is beyond is answered 503.
    package static let bytesInFlightMax = 256 << 20

    package let bytesMax: Int
    private let clock: RequestClock
    private let inFlight = Atomic<Int>(0)
    private let refused = Counter(label: "makegood_http_bodies_refused_total")

    package init(bytesMax: Int, clock: RequestClock) {
        self.bytesMax = bytesMax
        self.clock = clock
    }

    /// Lends the whole body. One that announces too much is refused before a byte of it is read.
    ///
    /// - Parameter bytesMin: a route's own bound, where that is higher than everybody's.
    /// - Throws: `Problem` 413, 408, 400 (cut) or 503; `RequestBroken` where its HTTP is broken.
    func withBody<Result>(
        of request: Request, _ context: HTTPContext, bytesMin: Int = 0, _ use: ([UInt8]) async throws -> Result
    ) async throws -> Result {
        let bytesMax = max(bytesMax, bytesMin)
        let announced = try Self.announcedBytes(request.headers)
        if let announced, announced > bytesMax { throw Problem.bodyTooLarge(bytesMax: bytesMax) }
        let reserved = announced ?? bytesMax
        guard inFlight.wrappingAdd(reserved, ordering: .relaxed).newValue <= Self.bytesInFlightMax else {
            inFlight.wrappingSubtract(reserved, ordering: .relaxed)
            refused.increment()
            throw Problem.unavailable()
        }
        defer { inFlight.wrappingSubtract(reserved, ordering: .relaxed) }
        return try await use(read(request, context, announced, bytesMax))
    }

    private func read(
        _ request: Request, _ context: HTTPContext, _ announced: Int?, _ bytesMax: Int
    ) async throws -> [UInt8] {
        let ticket = clock.start(context.channel)
        defer { clock.stop(ticket) }
        var body: [UInt8] = []
        body.reserveCapacity(min(announced ?? 0, bytesMax))
        do {
            for try await buffer in request.body {
                guard body.count + buffer.readableBytes <= bytesMax else {
                    throw Problem.bodyTooLarge(bytesMax: bytesMax)
                }
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
        // A post may be cut at any byte (S1-2): half of it is not what was sent.
        if let announced, body.count != announced { throw Problem.bodyCut }
        return body
    }

    private static func announcedBytes(_ headers: HTTPFields) throws(Problem) -> Int? {
        guard let text = headers[.contentLength] else { return nil }
        guard let bytes = Int(text), bytes >= 0 else {
            throw .malformed("bad_request", "Content-Length must be a number", field: nil)
        }
        return bytes
    }
}

/// What came is no HTTP: for the server below to answer, as a head that is none.
struct RequestBroken: Error {
    let cause: HTTPParserError
}

/// A request must arrive within 30 s: who sends byte by byte must not hold a place for ever.
///
/// One task looks at all running bodies each second, so a request costs a dictionary entry and no timer of its own.
package final class RequestClock: Sendable {
    package static let limit: Duration = .seconds(30)

    private struct State {
        var running: [Int: (deadline: ContinuousClock.Instant, channel: any Channel)] = [:]
        var lastTicket = 0
    }

    private let limit: Duration
    private let state = Mutex(State())

    package init(limit: Duration = RequestClock.limit) {
        self.limit = limit
    }

    func start(_ channel: any Channel) -> Int {
        state.withLock { state in
            state.lastTicket += 1
            state.running[state.lastTicket] = (.now + limit, channel)
            return state.lastTicket
        }
    }

    func stop(_ ticket: Int) {
        state.withLock { state in state.running[ticket] = nil }
    }

    package func run() async {
        while !Task.isCancelled {
            try? await Task.sleep(for: min(limit / 4, .seconds(1)))
            let now = ContinuousClock.now
            let late = state.withLock { state in
                let late = state.running.filter { $0.value.deadline <= now }
                for ticket in late.keys { state.running[ticket] = nil }
                return late.values.map(\.channel)
            }
            // The error travels down the pipeline to whoever reads the body.
            for channel in late { channel.pipeline.fireErrorCaught(Problem.tooSlow) }
        }
    }
}
