import Foundation
import NIOHTTP1
import NIOSSL
import Testing

@testable import Delivery
@testable import Settings

/// Goal: each way in which an endpoint may answer, or not, is one answer with a word that stays, within the endpoint's
/// time and memory, and no request reaches an address that was not checked. Method: a real server on loopback that
/// answers with the bytes of each case.
@Suite(.timeLimit(.minutes(2))) struct WebhookSenderTests {
    private static let eventID = "0198a5c0-0000-7000-8000-000000000001"
    private static let body = Array(#"{"id":"0198a5c0-0000-7000-8000-000000000001","data":{"ü":1}}"#.utf8)
    /// Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
    private static let now = Date(timeIntervalSince1970: 784_111_777)

    private static func send(
        _ endpoint: EndpointSettings, trustRoots: NIOSSLTrustRoots = .default, times: Int = 1
    ) async -> WebhookAnswer {
        let sender = WebhookSender(endpoint, trustRoots: trustRoots)
        var answer = WebhookAnswer.failed(reason: .init(.stopped, "nothing was sent"))
        for _ in 0..<times { answer = await sender.send(eventID: eventID, body: body, now: now) }
        await sender.shutDown()
        return answer
    }

    /// What one webhook comes to if the receiver answers so, and the receiver.
    private static func answer(
        _ answer: TestReceiver.Answer, _ members: String = "allowPrivate: ['127.0.0.1']"
    ) async throws -> (answer: WebhookAnswer, receiver: TestReceiver) {
        let receiver = TestReceiver { _ in answer }
        return try await receiver.serve { port in
            let endpoint = try EndpointSamples.endpoint("http://127.0.0.1:\(port)/in?a=b", members)
            return (await send(endpoint), receiver)
        }
    }

    private static func word(_ answer: WebhookAnswer) -> WebhookFailure.Word? {
        if case .failed(let reason) = answer { reason.word } else { nil }
    }

    @Test("a webhook is one POST with the event's id, the time, the body as it is, and a signature for each secret")
    func request() async throws {
        let receiver = TestReceiver { _ in .status("200 OK", body: #"{"handled":true}"#) }
        let secrets = "\(EndpointSamples.secret) \(EndpointSamples.newSecret)"
        let answer = try await receiver.serve { port in
            await Self.send(try EndpointSamples.endpoint("http://127.0.0.1:\(port)/in?a=b", secrets: secrets))
        }
        #expect(answer == .status(200, retryAfter: nil, body: Array(#"{"handled":true}"#.utf8)) && answer.isTaken)
        let request = try #require(receiver.requests.first)
        #expect(receiver.requests.count == 1 && request.head.method == .POST && request.head.uri == "/in?a=b")
        #expect(request.body == Self.body)
        #expect(request.head.headers["content-type"] == ["application/json"])
        #expect(request.head.headers["webhook-id"] == [Self.eventID])
        #expect(request.head.headers["webhook-timestamp"] == ["784111777"])
        for secret in [EndpointSamples.secret, EndpointSamples.newSecret] {
            let secret = try #require(WebhookSecret(secret))
            #expect(throws: Never.self) {
                try WebhookSignature.verify(
                    body: request.body, secrets: [secret], now: Self.now,
                    header: { request.head.headers.first(name: $0) })
            }
        }
    }

    @Test("each status is told with its body and Retry-After; 2xx alone is taken")
    func statuses() async throws {
        let date = "Retry-After: Sun, 06 Nov 1994 08:51:37 GMT\r\n"
        for (answer, status, retryAfter, body) in [
            (.status("200 OK"), 200, nil, ""), (.bytes("HTTP/1.1 204 No Content\r\n\r\n"), 204, nil, ""),
            (.status("202 Accepted", "Content-Type: text/html\r\n", body: "<html>"), 202, nil, "<html>"),
            (.status("200 OK", "Content-Encoding: gzip\r\n", body: "no gzip"), 200, nil, "no gzip"),
            (.last("HTTP/1.0 200 OK\r\n\r\nold"), 200, nil, "old"), (.status("410 Gone"), 410, nil, ""),
            (.status("400 Bad Request", body: "{"), 400, nil, "{"), (.status("500 Oops", body: "x"), 500, nil, "x"),
            (.status("429 Slow", "Retry-After: 120\r\n"), 429, .seconds(120), ""),
            (.status("503 Away", date), 503, .seconds(120), ""),
            (.status("503 Away", "Retry-After: soon\r\n"), 503, nil, ""),
        ] as [(TestReceiver.Answer, Int, Duration?, String)] {
            let (found, receiver) = try await Self.answer(answer)
            #expect(found == .status(status, retryAfter: retryAfter, body: Array(body.utf8)), "\(answer)")
            #expect(found.isTaken == (200..<300).contains(status) && receiver.requests.count == 1)
        }
    }

    @Test("Retry-After is seconds or a date, at most a day, and nothing else")
    func retryAfter() {
        for (header, expected) in [
            ("0", nil), ("1", .seconds(1)), (" 30 ", .seconds(30)), ("86400", .seconds(86_400)),
            ("86401", .seconds(86_400)), (String(repeating: "9", count: 400), .seconds(86_400)),
            ("Sun, 06 Nov 1994 08:49:38 GMT", .seconds(1)), ("Sun, 06 Nov 1994 08:49:37 GMT", nil),
            ("Sat, 05 Nov 1994 08:49:37 GMT", nil), ("Thu, 01 Jan 2099 00:00:00 GMT", .seconds(86_400)),
            ("Sun, 06 Now 1994 08:49:38 GMT", nil), ("Sun, 31 Feb 1995 08:49:38 GMT", nil),
            ("Sun, 06 Nov 1994 25:49:38 GMT", nil), ("Sun, 06 Nov 1994 08:49:38 CET", nil), ("", nil), (" ", nil),
            ("-5", nil), ("+5", nil), ("1e3", nil), ("1.5", nil), ("30s", nil), ("soon", nil), ("٣", nil),
        ] as [(String, Duration?)] {
            #expect(WebhookAnswer.retryAfter(header, now: Self.now) == expected, "\(header)")
        }
    }

    @Test("a redirect is a failure, and nobody follows it", arguments: [301, 302, 303, 307, 308, 300, 304])
    func redirect(status: Int) async throws {
        let receiver = TestReceiver { number in
            number == 0 ? .status("\(status) Elsewhere", "Location: /elsewhere\r\n") : .status("200 OK")
        }
        let answer = try await receiver.serve { port in
            await Self.send(try EndpointSamples.endpoint("http://127.0.0.1:\(port)/in"))
        }
        #expect(Self.word(answer) == .redirect && !answer.isTaken)
        #expect(receiver.requests.map(\.head.uri) == ["/in"])
    }

    @Test(
        "of an endless answer 64 KiB are read, and its status counts", arguments: ["Content-Length: 268435456", "X: y"])
    func flood(header: String) async throws {
        let (answer, receiver) = try await Self.answer(
            .flood("HTTP/1.1 200 OK\r\n\(header)\r\n\r\n", mebibytes: 256))
        let body = [UInt8](repeating: 0x78, count: WebhookAnswer.bodyMax)
        #expect(answer == .status(200, retryAfter: nil, body: body))
        // The system's buffers have taken some of it.
        #expect(receiver.mebibytesTaken < 32)
    }

    @Test("an answer that is no HTTP, or ends or goes on too early, has its own word")
    func brokenAnswers() async throws {
        let fields = String(repeating: "X: \(String(repeating: "y", count: 1000))\r\n", count: 3000)
        for (answer, words) in [
            (.last("SSH-2.0-OpenSSH_9.2\r\n"), [.malformedAnswer]), (.last("\u{0}\u{1}\u{2}"), [.malformedAnswer]),
            (.last("HTTP/1.1 2000 OK\r\n\r\n"), [.malformedAnswer]),
            (.bytes("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), [.malformedAnswer]),
            (.bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), [.malformedAnswer]),
            (.bytes("HTTP/1.1 200 OK\r\n\(fields)\r\n"), [.malformedAnswer]),
            (.last("HTTP/1.1 200 OK\r\nContent-Le"), [.reset, .malformedAnswer]),
            (.last("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), [.reset, .malformedAnswer]),
            (.last(""), [.reset]), (.reset, [.reset]),
        ] as [(TestReceiver.Answer, [WebhookFailure.Word])] {
            let (found, receiver) = try await Self.answer(answer)
            let word = try #require(Self.word(found), "\(answer): \(found)")
            #expect(words.contains(word), "\(answer): \(found)")
            #expect(receiver.requests.count == 1, "\(answer)")
        }
    }

    @Test("silence before, in and after the head ends with the endpoint's time")
    func silence() async throws {
        for answer in [
            .silence, .bytes("HTTP/1.1 200 OK\r\nContent-Le"), .bytes("HTTP/1.1 100 Continue\r\n\r\n"),
            .bytes("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"),
        ] as [TestReceiver.Answer] {
            let start = ContinuousClock.now
            let (found, _) = try await Self.answer(answer, "timeout: 1s, allowPrivate: ['127.0.0.0/8']")
            #expect(Self.word(found) == .timeout, "\(answer): \(found)")
            #expect((.seconds(1) ... .seconds(15)).contains(ContinuousClock.now - start))
        }
    }

    @Test("sends at the same time use no more connections than the endpoint may have at a time, and keep them")
    func connections() async throws {
        let receiver = TestReceiver { _ in .status("200 OK") }
        try await receiver.serve { port in
            let endpoint = try EndpointSamples.endpoint(
                "http://127.0.0.1:\(port)/", "concurrency: 3, allowPrivate: ['127.0.0.1']")
            let sender = WebhookSender(endpoint)
            let taken = await withTaskGroup(of: Bool.self) { group in
                for _ in 0..<60 {
                    group.addTask { await sender.send(eventID: Self.eventID, body: Self.body, now: Self.now).isTaken }
                }
                return await group.reduce(into: 0) { count, isTaken in count += isTaken ? 1 : 0 }
            }
            #expect(taken == 60)
            await sender.shutDown()
            let after = await sender.send(eventID: Self.eventID, body: Self.body, now: Self.now)
            #expect(Self.word(after) == .stopped)
        }
        #expect(receiver.requests.count == 60 && receiver.connections <= 3)
    }

    @Test("a task that is cancelled waits for no answer")
    func cancelled() async throws {
        let (asked, wasAsked) = AsyncStream<Void>.makeStream()
        let receiver = TestReceiver { _ in
            wasAsked.yield()
            return .silence
        }
        try await receiver.serve { port in
            let endpoint = try EndpointSamples.endpoint(
                "http://127.0.0.1:\(port)/", "timeout: 60s, allowPrivate: ['127.0.0.1']")
            let task = Task { await Self.send(endpoint) }
            for await _ in asked { break }
            let start = ContinuousClock.now
            task.cancel()
            let answer = await task.value
            #expect(Self.word(answer) == .stopped && ContinuousClock.now - start < .seconds(30))
        }
    }
}
