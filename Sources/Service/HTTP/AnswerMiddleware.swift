import Encoding
import Foundation
package import HTTPTypes
package import Hummingbird
package import Logging
import NIOCore
import Purchases
import Synchronization

/// The outermost layer, through which every answer leaves.
///
/// It turns every error into a problem document, sets the headers that all answers have, counts, and closes connections
/// that must not go on (a body that was not read, a process that drains, other clients that wait for a connection).
package struct AnswerMiddleware: RouterMiddleware {
    private static let unreadBytesMax = 64 << 10

    private let health: Health
    private let connections: ConnectionLimit
    private let logger: Logger
    private let security: SecurityLog?
    private let metrics = HTTPMetrics()

    /// - Parameter security: told of every problem that bears on it; nil where callers need no credential.
    package init(health: Health, connections: ConnectionLimit, logger: Logger, security: SecurityLog? = nil) {
        self.health = health
        self.connections = connections
        self.logger = logger
        self.security = security
    }

    package func handle(
        _ request: Request, context: HTTPContext, next: @concurrent (Request, HTTPContext) async throws -> Response
    ) async throws -> Response {
        let start = ContinuousClock.now
        let requestID = Self.requestID(request.headers)
        let trace = TraceContext.of(request.headers)
        let requester = Requester(
            requestID: requestID, route: context.coreContext.endpointPath, channel: context.channel)
        var response: Response
        do {
            try Self.check(request)
            response = try await Requester.$current.withValue(requester) {
                if let trace {
                    try await TraceContext.$current.withValue(trace) { try await next(request, context) }
                } else {
                    try await next(request, context)
                }
            }
            if let limit = requester.limit {
                response.headers[.limit] = limit.rawValue
                security?.note(.limit(limit), by: requester)
            }
        } catch let broken as RequestBroken {
            throw broken.cause
        } catch {
            let problem = answer(error, requestID).to(request.method)
            if let event = problem.securityEvent { security?.note(event, by: requester) }
            response = problem.response
        }
        // No proxy may keep an answer: the next answer may be a different one (RFC 9111, 5.2.2.5). A route may let the
        // client keep one that it asks about again.
        if response.headers[.cacheControl] == nil { response.headers[.cacheControl] = "no-store" }
        // The answer is JSON or text, whatever its bytes look like.
        response.headers[.xContentTypeOptions] = "nosniff"
        response.headers[.requestID] = requestID
        response.headers[.traceparent] = trace?.traceparent
        if health.isDraining || connections.isCrowded
            || Self.leavesMuchUnread(request, response.status, requester)
        {
            response.headers[.connection] = "close"
            response.body = response.body.closing(context.channel)
        }
        metrics.count(
            route: context.endpointPath, method: request.method, status: response.status.code,
            // The duration of a long poll says only how long the caller wished to wait.
            duration: request.uri.queryParameters["wait"] == nil ? ContinuousClock.now - start : nil)
        return response
    }

    /// Refuses what the HTTP library lets pass.
    private static func check(_ request: Request) throws(Problem) {
        guard request.head.authority?.isEmpty == false, request.headers[.furtherHost] == nil else { throw .badHost }
        guard let expectation = request.headers[.expect] else { return }
        guard expectation.lowercased() == "100-continue" else { throw .unknownExpectation }
    }

    /// Whether much of the request's body is unread. The server reads a body to its end before the next request, which
    /// must not happen if the body may have no end.
    private static func leavesMuchUnread(
        _ request: Request, _ status: HTTPResponse.Status, _ requester: Requester
    ) -> Bool {
        if status == .contentTooLarge || status == .requestTimeout { return true }
        // A client that was not asked for its body may leave the body out; the server would then read the next head as
        // the body.
        if request.headers[.expect] != nil, !requester.wasAskedForBody || status.code >= 400 { return true }
        guard status.code >= 400 else { return false }
        return request.headers[.transferEncoding] != nil
            || request.headers[.contentLength].flatMap { Int($0) } ?? 0 > unreadBytesMax
    }

    private func answer(_ error: any Error, _ requestID: String) -> Problem {
        switch error {
        case let problem as Problem: return problem
        case let error as any StoreError:
            let problem = error.problem
            // The log gets codes and statement names only; see PostgresError. While the database is away every request
            // has such an error.
            let level: Logger.Level = problem == .internalError ? .error : .debug
            logger.log(
                level: level, "the database refused a request",
                metadata: ["error": "\(error)", "request.id": "\(requestID)"])
            return problem
        case let error as HTTPError: return Problem(error.status, headers: error.headers)
        case let error as any HTTPResponseError: return Problem(error.status, headers: [:])
        case is CancellationError: return .unavailable()
        default:
            // The log gets the type alone: a description may quote what was sent.
            logger.error(
                "a request failed", metadata: ["error.type": "\(type(of: error))", "request.id": "\(requestID)"])
            return .internalError
        }
    }

    /// The request's id: the client's if it is short and plain, a new one otherwise, because the id goes into logs and
    /// back into headers.
    static func requestID(_ headers: HTTPFields) -> String {
        guard let given = headers[.requestID], (1...128).contains(given.utf8.count), given.utf8.allSatisfy(isPlain)
        else { return nextRequestID().text }
        return given
    }

    /// A new request id: random once in a process, counted from there (RFC 9562, 5.8). The id tells requests apart and
    /// is no secret; with random ids the kernel would be asked for each.
    private static func nextRequestID() -> UUID {
        UUID(version: 8, high: processNumber, low: requestCount.add(1, ordering: .relaxed).newValue)
    }
    private static let processNumber = UInt64.random(in: 0 ... .max)
    private static let requestCount = Atomic<UInt64>(0)

    private static func isPlain(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."),
            UInt8(ascii: ":"), UInt8(ascii: "/"), UInt8(ascii: "+"), UInt8(ascii: "="), UInt8(ascii: "@"):
            true
        default: false
        }
    }
}

extension HTTPField.Name {
    package static let requestID = Self("X-Request-Id")!
    package static let traceparent = Self("traceparent")!
    /// Names the limit without which a successful answer would hold more. In a problem document `Problem.limit` names
    /// the limit.
    package static let limit = Self("Makegood-Limit")!
    /// A second Host; the HTTP library makes `authority` of the first.
    fileprivate static let furtherHost = Self("Host")!
}

extension ResponseBody {
    /// How long a client may go on sending after such an answer, although nobody reads. Closing at once would reset the
    /// connection and could take the answer with it (RFC 9112, 9.6).
    private static let linger: TimeAmount = .seconds(2)

    /// The same body, after which the server ends its side of the connection.
    fileprivate func closing(_ channel: any Channel) -> ResponseBody {
        let body = self
        return ResponseBody(contentLength: contentLength) { writer in
            try await body.write(writer)
            channel.close(mode: .output, promise: nil)
            channel.eventLoop.scheduleTask(in: Self.linger) { channel.close(promise: nil) }
        }
    }
}
