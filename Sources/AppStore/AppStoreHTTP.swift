import AsyncHTTPClient
import Encoding
package import Foundation
import NIOCore
import NIOHTTP1

/// Makes calls to Apple, each with a limit on time and size, one record, and one mapping of errors.
struct AppStoreHTTP: Sendable {
    let http: HTTPClient
    /// From the first byte sent to the last byte read.
    let timeout: Duration
    let now: @Sendable () -> Date
    /// Nil: every call is made at once.
    var limiter: (any CallLimiter)?

    private let metrics = CallMetrics()
    private let deadlines = Deadlines()

    init(http: HTTPClient, timeout: Duration, now: @escaping @Sendable () -> Date) {
        self.http = http
        self.timeout = timeout
        self.now = now
    }

    /// Bytes of an answer of the App Store Server API: a bound on memory, far above what a page lists.
    static let answerLimit = 8 * 1024 * 1024
    /// Bytes of verifyReceipt's answer, which lists each purchase of a receipt twice, in more words than the receipt, and
    /// holds a newer receipt: several times the receipt's size.
    static let receiptAnswerLimit = 48 * 1024 * 1024

    struct Answer: Sendable {
        let status: Int
        let body: [UInt8]

        /// The body, read as a JSON object. Nil: it is none. A byte order mark before it is passed over (F16).
        var object: [String: JSON]? {
            let mark: [UInt8] = [0xEF, 0xBB, 0xBF]
            return try? JSON(parsing: body.starts(with: mark) ? Array(body[mark.count...]) : body).object
        }
    }

    /// The result that was read from an answer, and the code for the record.
    struct Reading<Value> {
        var code: Int64?
        var result: Result<Value, AppStoreError>
    }

    /// - Parameter endpoint: of the App Store Server API; nil: verifyReceipt.
    /// - Throws: the limiter's error; then Apple was not asked. Apple's answer, or its failure, is in the result.
    func call<Value>(
        _ host: AppleHost, _ endpoint: ServerAPIClient.Endpoint?, _ request: HTTPClientRequest,
        reading: (Answer) -> Reading<Value>
    ) async throws(AppStoreError) -> CallAnswer<Value> {
        guard let limiter else { return await call(host, request, reading) }
        return try await limiter.pass(host, endpoint) { await call(host, request, reading) }
    }

    private func call<Value>(
        _ host: AppleHost, _ request: HTTPClientRequest, _ reading: (Answer) -> Reading<Value>
    ) async -> CallAnswer<Value> {
        let clock = ContinuousClock()
        let start = clock.now
        let status: Int?
        let read: Reading<Value>
        do throws(NoAnswer) {
            let limit = host.service == .verifyReceipt ? Self.receiptAnswerLimit : Self.answerLimit
            let answer = try await answer(to: request, by: start + timeout, upTo: limit)
            status = answer.status
            read = reading(answer)
        } catch {
            status = error.status
            read = Reading(code: nil, result: .failure(error.error))
        }
        let duration = clock.now - start
        let label = if case .failure(let error) = read.result { error.label } else { "ok" }
        metrics.record(host, outcome: label, duration: duration)
        let call = ServiceCall(
            service: host.service, environment: host.environment, httpStatus: status, code: read.code,
            duration: duration)
        return (read.result, call)
    }

    struct NoAnswer: Error {
        var error: AppStoreError
        var status: Int?
    }

    /// The answer that arrives by `deadline`, with a body of at most `limit` bytes.
    func answer(
        to request: HTTPClientRequest, by deadline: ContinuousClock.Instant, upTo limit: Int
    ) async throws(NoAnswer) -> Answer {
        let response: HTTPClientResponse
        do {
            response = try await http.execute(request, timeout: .nanoseconds(timeout.wholeNanoseconds))
        } catch {
            throw NoAnswer(error: Self.mapped(error))
        }
        let status = Int(response.status.code)
        if status == 429 {
            let header = response.headers.first(name: "retry-after")
            throw NoAnswer(
                error: .rateLimited(until: header.flatMap { RetryAfter.date($0, now: now()) }), status: status)
        }
        switch await body(of: response, by: deadline, upTo: limit) {
        case .success(let body): return Answer(status: status, body: body)
        case .failure(let error): throw NoAnswer(error: error, status: status)
        }
    }

    /// The client's own deadline ends with the response head, so a body that drips would hold a worker for ever.
    private func body(
        of response: HTTPClientResponse, by deadline: ContinuousClock.Instant, upTo limit: Int
    ) async -> Result<[UInt8], AppStoreError> {
        let (body, isLate) = await deadlines.run(by: deadline) {
            Array(try await response.body.collect(upTo: limit).readableBytesView)
        }
        return body.mapError { error in
            if error is NIOTooManyBytesError { return .garbage }
            // If the caller is cancelled at that moment, Apple is not to blame.
            return isLate && !Task.isCancelled ? .timedOut : Self.mapped(error)
        }
    }

    /// Time-outs before a connection was made are `unreachable`: Apple was not asked.
    private static func mapped(_ error: any Error) -> AppStoreError {
        if error is CancellationError { return .cancelled }
        switch error as? HTTPClientError {
        case .cancelled: return .cancelled
        case .deadlineExceeded, .readTimeout, .writeTimeout: return .timedOut
        default: return .unreachable
        }
    }
}

extension Duration {
    fileprivate var wholeNanoseconds: Int64 {
        let (seconds, attoseconds) = components
        return seconds * 1_000_000_000 + attoseconds / 1_000_000_000
    }
}

/// Apple's `Retry-After`: an absolute UNIX time in milliseconds, not HTTP's number of seconds (AppleFacts 3.8).
///
/// Read by size in case that ever changes: over 10^11 milliseconds, over 10^9 seconds, otherwise seconds from now. Held
/// within 1 s and 1 h of `now`, so that neither a wrong clock nor a wrong unit stops an app. nil if not a number.
package enum RetryAfter {
    package static func date(_ header: String, now: Date) -> Date? {
        let digits = header.utf8.drop { $0 == 0x20 }
        guard !digits.isEmpty, digits.allSatisfy({ (0x30...0x39).contains($0) }),
            let value = Double(String(decoding: digits, as: UTF8.self))
        else { return nil }
        let date =
            if value > 1e11 {
                Date(timeIntervalSince1970: value / 1000)
            } else if value > 1e9 {
                Date(timeIntervalSince1970: value)
            } else {
                now.addingTimeInterval(value)
            }
        return min(max(date, now.addingTimeInterval(1)), now.addingTimeInterval(3600))
    }
}
