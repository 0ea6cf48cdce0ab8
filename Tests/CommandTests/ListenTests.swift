import AsyncHTTPClient
import Crypto
import Encoding
import Foundation
import NIOCore
import NIOHTTP1
import Testing

@testable import makegood

/// Goal: a developer sees each webhook that arrives, and why one is not believed (B8). Method: the built program, and
/// webhooks over HTTP with one defect each.
@Suite(.timeLimit(.minutes(2))) struct ListenTests {
    private static let key = SymmetricKey(data: Data(repeating: 7, count: 32))
    private static let secret = "whsec_" + Data(repeating: 7, count: 32).base64EncodedString()

    private static func body(_ id: String, previous: String? = nil, type: String = "purchase.granted") -> String {
        let before = previous.map { #", "previousId": "\#($0)""# } ?? ""
        return #"""
            {"id": "\#(id)", "type": "\#(type)", "appId": "game", "userId": "u\u001b[2J1", "transactionId": "2000000123",
             "data": {"goods": [{"item": "coins", "amount": 6000}], "orderId": "o1"},
             "delivery": {"endpoint": "shop", "sequence": 7\#(before), "cursor": "1-1", "attempt": 2}}
            """#
    }

    /// - Returns: the status of the answer.
    private static func send(
        _ body: String, to url: String, id: String = "e", key: SymmetricKey = key, age: Int = 0,
        change: (inout HTTPClientRequest) -> Void = { _ in }
    ) async throws -> UInt {
        let time = "\(Int(Date().timeIntervalSince1970) - age)"
        let code = HMAC<SHA256>.authenticationCode(for: Data("\(id).\(time).\(body)".utf8), using: key)
        var request = HTTPClientRequest(url: url)
        request.method = .POST
        request.headers.add(contentsOf: [
            "webhook-id": id, "webhook-timestamp": time,
            "webhook-signature": "v1,\(Data(code).base64EncodedString())",
        ])
        request.body = .bytes(ByteBuffer(string: body))
        change(&request)
        return try await HTTPClient.shared.execute(request, timeout: .seconds(10)).status.code
    }

    private static func expect(
        _ status: UInt, _ body: String, to url: String, key: SymmetricKey = key, age: Int = 0,
        change: (inout HTTPClientRequest) -> Void = { _ in }
    ) async throws {
        let answered = try await send(body, to: url, key: key, age: age, change: change)
        #expect(answered == status, "\(body.prefix(20))")
    }

    private static func listen(
        _ more: String..., whileRunning: @escaping (String) async throws -> Void
    ) async throws -> BuiltProgram.Outcome {
        try await withFolder { folder in
            let file = try (secret + "\n").written(to: folder, as: "endpoint.secret")
            let port = try #require(try freePort())
            let program = BuiltProgram(
                arguments: ["events", "listen", "--port", "\(port)", "--secret-file", file] + more)
            return try await program.run { running in
                let url = "http://127.0.0.1:\(port)/some/path"
                for _ in 0..<200 {
                    if (try? await HTTPClient.shared.execute(.init(url: url), timeout: .seconds(1))) != nil { break }
                    try await Task.sleep(for: .milliseconds(50))
                }
                try await whileRunning(url)
                running.terminate()
            }
        }
    }

    private static func freePort() throws -> Int? {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        defer { close(descriptor) }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = inet_addr("127.0.0.1")
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        return withUnsafeMutablePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
                guard bind(descriptor, pointer, length) == 0, getsockname(descriptor, pointer, &length) == 0 else {
                    return nil
                }
                return pointer.withMemoryRebound(to: sockaddr_in.self, capacity: 1) { pointer in
                    Int(UInt16(bigEndian: pointer.pointee.sin_port))
                }
            }
        }
    }

    @Test("a webhook is printed and taken; one that comes again, and one before which another is missing, say so")
    func taken() async throws {
        let outcome = try await Self.listen { url in
            try await Self.expect(204, Self.body("e1"), to: url)
            try await Self.expect(204, Self.body("e1"), to: url)
            try await Self.expect(204, Self.body("e2", previous: "e1"), to: url)
            try await Self.expect(204, Self.body("e4", previous: "e3"), to: url)
        }
        #expect(outcome.status == 0)
        let lines = outcome.output.split(separator: "\n")
        try #require(lines.count == 4, "\(outcome.output)")
        #expect(
            lines[0].hasSuffix(
                "204  purchase.granted  game/u?[2J1  transaction 2000000123  order o1  6000 coins  number 7  try 2"))
        #expect(lines[1].hasSuffix("came before: hand nothing out"))
        #expect(lines[2].hasSuffix("try 2"))
        #expect(lines[3].hasSuffix("after e3, which never came here"))
        #expect(outcome.complaint.contains("took 3 events, 1 again; refused 0, failed 0 on purpose"))
    }

    @Test("what nobody signed, and what is old, too long or no JSON, is refused with its reason")
    func refused() async throws {
        let outcome = try await Self.listen("--json") { url in
            let other = SymmetricKey(size: .bits256)
            try await Self.expect(401, Self.body("e1"), to: url, key: other)
            try await Self.expect(401, Self.body("e1"), to: url, age: 400)
            try await Self.expect(401, Self.body("e1"), to: url) { $0.headers.remove(name: "webhook-id") }
            try await Self.expect(400, "hello", to: url)
            try await Self.expect(413, String(repeating: "x", count: 9 << 20), to: url)
            try await Self.expect(405, Self.body("e1"), to: url) { $0.method = .GET }
            try await Self.expect(204, #"{"id":"e1"}"#, to: url)
        }
        #expect(outcome.output == #"{"id":"e1"}"# + "\n")
        for reason in [
            "401  refused: no signature is by a secret of the file",
            "401  refused: its time is more than five minutes from this clock",
            "401  refused: the header webhook-id is missing", "400  refused: the body is no JSON object",
            "413  refused: the body has more than", "took 1 event, 0 again; refused 5",
        ] { #expect(outcome.complaint.contains(reason), "\(reason): \(outcome.complaint)") }
    }

    @Test("a share fails on purpose, and a failed event is not taken")
    func failing() async throws {
        let outcome = try await Self.listen("--fail", "100%") { url in
            try await Self.expect(500, Self.body("e1"), to: url)
        }
        #expect(outcome.output.contains("500  purchase.granted"))
        #expect(outcome.complaint.contains("took 0 events, 0 again; refused 0, failed 1 on purpose"))
    }

    @Test("options that nobody can work with are named")
    func options() async throws {
        try await withFolder { folder in
            let good = try Self.secret.written(to: folder, as: "good")
            let short = try "whsec_AAAA".written(to: folder, as: "short")
            for (arguments, words) in [
                (["--secret-file", short], "must hold secrets of the form whsec_"),
                (["--secret-file", "\(folder)/none"], "cannot read"), ([], "--secret-file"),
                (["--secret-file", good, "--fail", "120%"], "--fail"),
                (["--secret-file", good, "--port", "x"], "--port"),
                (["--secret-file", good, "--port", "65536"], "--port must be 0 to 65535"),
            ] as [([String], String)] {
                let outcome = try await BuiltProgram(arguments: ["events", "listen"] + arguments).run()
                #expect(outcome.status != 0 && outcome.output.isEmpty)
                #expect(outcome.complaint.contains(words), "\(arguments): \(outcome.complaint)")
            }
        }
    }

    @Test("no more ids are remembered than the newest, and those are")
    func bounded() throws {
        var received = ReceivedWebhooks()
        for number in 0..<(ReceivedWebhooks.eventsMax + 5) {
            _ = received.take(try JSONValue(parsing: Array(#"{"id":"e\#(number)"}"#.utf8)))
        }
        #expect(received.known.count == ReceivedWebhooks.eventsMax && received.repeated == 0)
        #expect(received.known.contains("e5") && !received.known.contains("e4"))
        let again = received.take(try JSONValue(parsing: Array(#"{"id":"e5"}"#.utf8)))
        #expect(received.repeated == 1 && again.contains("came before"))
    }
}
