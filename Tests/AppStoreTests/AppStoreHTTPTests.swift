import AsyncHTTPClient
import Foundation
import NIOSSL
import Synchronization
import Testing

@testable import AppStore
@testable import Encoding

// Goal: every way in which Apple can fail to answer becomes one case of the closed enum, with its record (requirements
// P15, P16). Method: a real HTTP server on a port of its own.

private let receipt = "TUlJ"

private func client(
    _ http: HTTPClient, _ url: String, timeout: Duration = .seconds(20), now: Date = .now
) -> VerifyReceiptClient {
    VerifyReceiptClient(
        http: http,
        credentials: .init(
            sharedSecret: "se\"cret", productionURL: "\(url)/production", sandboxURL: "\(url)/sandbox"),
        timeout: timeout, now: { now })
}

private func failure(_ client: VerifyReceiptClient) async -> AppStoreFailure? {
    do throws(AppStoreFailure) {
        _ = try await client.verify(receipt)
        return nil
    } catch {
        return error
    }
}

@Suite struct AppStoreHTTPTests {
    @Test func `silence and a body that stalls are time-outs, and the record says how far Apple came`() async throws {
        // The head of an answer must have time to arrive on a busy machine too.
        for (answer, status, timeout) in [
            (.silence, nil, .milliseconds(300)), (.stall, 200, .seconds(3)),
        ] as [(LocalApple.Answer, Int?, Duration)] {
            try await LocalApple.serving({ _ in answer }) { apple, http in
                let failure = try #require(await failure(client(http, apple.url, timeout: timeout)))
                #expect(failure.error == .timedOut)
                #expect(failure.isRetryable)
                #expect(failure.calls.map(\.httpStatus) == [status])
                #expect(failure.calls.map(\.environment) == [.production])
                #expect(failure.calls[0].duration >= timeout)
            }
        }
    }

    @Test func `no listener is unreachable`() async throws {
        try await LocalApple.serving({ _ in .silence }) { _, http in
            // Port 1 is reserved (tcpmux) and served by nobody.
            let failure = try #require(await failure(client(http, "http://127.0.0.1:1")))
            #expect(failure.error == .unreachable)
            #expect(failure.calls.map(\.httpStatus) == [nil])
        }
    }

    @Test func `Apple is asked by TLS 1.2 at least, and no redirect is followed`() async throws {
        let configuration = HTTPClient.Configuration.apple(inFlight: 2)
        #expect(configuration.tlsConfiguration?.minimumTLSVersion == .tlsv12)
        #expect(configuration.tlsConfiguration?.certificateVerification == .fullVerification)
        try await LocalApple.serving({ asked in
            asked.path == "/elsewhere"
                ? .json(#"{"status":0,"environment":"Production","receipt":{}}"#)
                : .json("", status: 307, headers: ["Location": "/elsewhere"])
        }) { apple, _ in
            let http = HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
            let failure = await failure(client(http, apple.url))
            try await http.shutdown()
            #expect(failure?.error == .httpStatus(307))
            #expect(apple.requests.map(\.path) == ["/production"])
        }
    }

    @Test func `cancelling is not Apple's fault`() async throws {
        let (asked, wasAsked) = AsyncStream<Void>.makeStream()
        try await LocalApple.serving({ _ in
            wasAsked.yield()
            return .silence
        }) { apple, http in
            let task = Task { await failure(client(http, apple.url)) }
            for await _ in asked { break }
            task.cancel()
            #expect(await task.value?.error == .cancelled)
        }
    }

    @Test(arguments: [100_000, AppStoreHTTP.receiptAnswerLimit])
    func `an answer over the size limit is garbage`(_ filler: Int) async throws {
        let text = #"{"status":0,"receipt":{},"x":"\#(String(repeating: "x", count: filler))"}"#
        try await LocalApple.serving({ _ in .json(text) }) { apple, http in
            let failure = await failure(client(http, apple.url))
            #expect(failure?.error == (text.utf8.count > AppStoreHTTP.receiptAnswerLimit ? .garbage : nil))
        }
    }

    @Test func `P15: HTTP statuses are retried, and 429 says until when`() async throws {
        let now = Date(timeIntervalSince1970: 1_780_000_000)
        for (status, header, expected) in [
            (500, nil, .httpStatus(500)), (503, nil, .httpStatus(503)), (404, nil, .httpStatus(404)),
            (302, nil, .httpStatus(302)), (401, nil, .httpStatus(401)), (429, nil, .rateLimited(until: nil)),
            (429, "1780000030000", .rateLimited(until: now.addingTimeInterval(30))),
        ] as [(Int, String?, AppStoreError)] {
            let headers = header.map { ["Retry-After": $0] } ?? [:]
            try await LocalApple.serving({ _ in .json("<html>", status: status, headers: headers) }) { apple, http in
                let failure = try #require(await failure(client(http, apple.url, now: now)))
                #expect(failure.error == expected)
                #expect(failure.isRetryable)
                #expect(failure.calls.map(\.httpStatus) == [status])
            }
        }
    }

    @Test func `Retry-After is read by its size and held within an hour`() {
        let now = Date(timeIntervalSince1970: 1_780_000_000)
        for (header, seconds) in [
            ("1780000030000", 30.0), ("1780000030", 30), ("30", 30), (" 30", 30), ("0", 1), ("1779999999000", 1),
            ("1780000000500", 1), ("1790000000000", 3600), ("86400", 3600), ("99999999999999999999", 3600),
        ] {
            #expect(RetryAfter.date(header, now: now) == now.addingTimeInterval(seconds), "\(header)")
        }
        for header in ["", " ", "-5", "soon", "1e3", "30s", "Fri, 21 Nov 2026 07:28:00 GMT", "٣"] {
            #expect(RetryAfter.date(header, now: now) == nil, "\(header)")
        }
    }
}

@Suite struct VerifyReceiptClientTests {
    private static func answer(_ status: String, _ rest: String = "") -> LocalApple.Answer {
        .json(#"{"status":\#(status)\#(rest)}"#)
    }

    private static let genuine = answer(
        "0", #","environment":"Production","receipt":{"bundle_id":"com.example.game","in_app":[]}"#)
    private static let sandboxGenuine = answer("0", #","environment":"Sandbox","receipt":{"bundle_id":"b"}"#)

    @Test func `the request is one JSON object, encoded and not joined from texts`() async throws {
        try await LocalApple.serving({ _ in Self.genuine }) { apple, http in
            let verified = try await client(http, apple.url).verify(receipt)
            #expect(verified.environment == .production)
            #expect(verified.bundleId == "com.example.game")
            #expect(verified.calls.map(\.code) == [0])
            #expect(verified.calls.map(\.service) == [.verifyReceipt])
            let asked = try #require(apple.requests.first)
            #expect(apple.requests.count == 1)
            #expect(asked.method == "POST")
            #expect(asked.path == "/production")
            #expect(asked.headers["content-type"] == "application/json")
            #expect(
                try JSON(parsing: asked.body)
                    == .object(["receipt-data": .string(receipt), "password": .string("se\"cret")]))
        }
    }

    @Test func `P12: production first, the sandbox on 21007 only, and never in circles`() async throws {
        for (production, sandbox, paths, outcome) in [
            ([Self.genuine], [], ["/production"], nil),
            ([Self.answer("21007")], [Self.sandboxGenuine], ["/production", "/sandbox"], nil),
            (
                [Self.answer("21007"), Self.genuine], [Self.answer("21008")],
                ["/production", "/sandbox", "/production"],
                nil
            ),
            (
                [Self.answer("21007"), Self.answer("21007")], [Self.answer("21008")],
                ["/production", "/sandbox", "/production"], .receiptStatus(code: 21007, retryable: nil)
            ),
            ([Self.answer("21008")], [], ["/production"], .receiptStatus(code: 21008, retryable: nil)),
            (
                [Self.answer("21007")], [Self.answer("21007")], ["/production", "/sandbox"],
                .receiptStatus(code: 21007, retryable: nil)
            ),
            ([Self.answer("21003")], [], ["/production"], .receiptStatus(code: 21003, retryable: nil)),
            ([.json("x", status: 500)], [], ["/production"], .httpStatus(500)),
            ([Self.answer("21007")], [.json("x", status: 503)], ["/production", "/sandbox"], .httpStatus(503)),
        ] as [([LocalApple.Answer], [LocalApple.Answer], [String], AppStoreError?)] {
            let script = Script(["/production": production, "/sandbox": sandbox])
            try await LocalApple.serving({ script.next($0.path) }) { apple, http in
                let failure = await failure(client(http, apple.url))
                #expect(failure?.error == outcome)
                #expect(apple.requests.map(\.path) == paths)
                if let failure { #expect(failure.calls.count == paths.count) }
            }
        }
    }

    @Test func `P15: each status is classified, with Apple's hint in any spelling`() async throws {
        for (body, code, hint, retryable) in [
            ("21000", 21000, nil, false), ("21001", 21001, nil, false), ("21002", 21002, nil, true),
            ("21003", 21003, nil, false), ("21004", 21004, nil, false), ("21005", 21005, nil, true),
            ("21006", 21006, nil, false), ("21009", 21009, nil, true), ("21010", 21010, nil, false),
            ("21100", 21100, nil, true), (#"21150,"is_retryable":true"#, 21150, true, true),
            (#"21150,"is_retryable":0"#, 21150, false, false), (#"21199,"is-retryable":"1""#, 21199, true, true),
            (#"21199,"is-retryable":"false""#, 21199, false, false), (#""21005""#, 21005, nil, true),
            (#"21003,"is_retryable":true"#, 21003, true, false), ("21200", 21200, nil, true), ("-1", -1, nil, true),
        ] as [(String, Int, Bool?, Bool)] {
            try await LocalApple.serving({ _ in Self.answer(body) }) { apple, http in
                let failure = try #require(await failure(client(http, apple.url)))
                #expect(failure.error == .receiptStatus(code: code, retryable: hint))
                #expect(failure.isRetryable == retryable, "\(body)")
                #expect(failure.calls.map(\.code) == [Int64(code)])
            }
        }
    }

    @Test func `F16: a byte order mark before an answer is passed over`() async throws {
        try await LocalApple.serving({ _ in
            .json("\u{FEFF}" + #"{"status":0,"receipt":{"bundle_id":"b","in_app":[]}}"#)
        }) { apple, http in
            let verified = try await client(http, apple.url).verify(receipt)
            #expect(verified.bundleId == "b")
        }
        try await LocalApple.serving({ _ in .json("\u{FEFF}\u{FEFF}{}") }) { apple, http in
            #expect(await failure(client(http, apple.url))?.error == .garbage, "one mark, not two")
        }
    }

    @Test func `21006 with the receipt's data is an answer, and so is its label`() async throws {
        let flat = #","receipt":{"bid":"b","transaction_id":"1","product_id":"p","purchase_date_ms":"1000"}"#
        let latest =
            #","latest_expired_receipt_info":{"transaction_id":"2","product_id":"p","purchase_date_ms":"2000"}"#
        try await LocalApple.serving({ _ in Self.answer("21006", flat + latest) }) { apple, http in
            let verified = try await client(http, apple.url).verify(receipt)
            #expect(verified.entries.map(\.transactionId) == ["1", "2"] && verified.bundleId == "b")
            #expect(verified.calls.map(\.code) == [21006])
        }
        for rest in ["", #","receipt":{"bid":"b"}"#, #","receipt":7"#] {
            try await LocalApple.serving({ _ in Self.answer("21006", rest) }) { apple, http in
                #expect(
                    await failure(client(http, apple.url))?.error == .receiptStatus(code: 21006, retryable: nil))
            }
        }
    }

    @Test func `a status that Apple does not document, or that speaks of our request, has a label of its own`() {
        for code in [21000, 21001, 20999, 21011, 21099, 21200, 1, -1, 99_999] {
            #expect(
                AppStoreError.receiptStatus(code: code, retryable: nil).label == "receipt_status_unknown", "\(code)")
        }
        for code in Array(21002...21010) + [21100, 21199] {
            #expect(AppStoreError.receiptStatus(code: code, retryable: nil).label == "receipt_status", "\(code)")
        }
    }

    @Test(arguments: [
        "", "not json", "[]", "{}", #"{"status":null}"#, #"{"status":"x"}"#, #"{"status":0}"#,
        #"{"status":0,"receipt":[]}"#, #"{"status":0,"receipt":{"in_app":7}}"#, #"{"status":0,"receipt":null}"#,
        #"{"status":0,"receipt":{"bid":"b","transaction_id":"1"}}"#, #"{"status":true,"receipt":{}}"#,
        #"{"status":0,"receipt":{},"latest_receipt_info":"soon"}"#,
        #"{"status":0,"receipt":{"in_app":["x"]}}"#, #"{"status":0,"receipt":{"in_app":[{"product_id":"p"}]}}"#,
        #"{"status":0,"receipt":{"in_app":[{"transaction_id":"1"}]}}"#,
        #"{"status":0,"receipt":{"in_app":[{"transaction_id":"","product_id":"p"}]}}"#,
        #"{"status":0,"receipt":{},"latest_receipt_info":[{"transaction_id":"1"}]}"#,
        #"{"status":0,"receipt":{"in_app":[{"transaction_id":"1","product_id":"p","cancellation_date_ms":"?"}]}}"#,
    ])
    func `what cannot be read is garbage, to be asked again, and no entry is dropped`(_ body: String) async throws {
        try await LocalApple.serving({ _ in .json(body) }) { apple, http in
            let failure = try #require(await failure(client(http, apple.url)))
            #expect(failure.error == .garbage)
            #expect(failure.isRetryable)
        }
    }
}

/// Answers by path, one after the other. A path without answers left gets a status that no case expects.
final class Script: Sendable {
    private let remaining: Mutex<[String: [LocalApple.Answer]]>

    init(_ answers: [String: [LocalApple.Answer]]) { remaining = Mutex(answers) }

    func next(_ path: String) -> LocalApple.Answer {
        remaining.withLock { remaining in
            guard remaining[path]?.isEmpty == false, let answer = remaining[path]?.removeFirst() else {
                return .json("nothing left to say", status: 599)
            }
            return answer
        }
    }
}
