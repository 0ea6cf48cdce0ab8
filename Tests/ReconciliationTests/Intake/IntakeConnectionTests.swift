import Encoding
import Foundation
import TestServers
import Testing

@testable import Intake
@testable import Ledger
@testable import Service

/// Goal: a client that sends nothing, half a request, or one too slowly takes no place from other clients, and the
/// server keeps HTTP's own rules about a request. Method: raw connections beside honest clients.
@Suite(.migratedDatabase, .serialized) struct IntakeConnectionTests {
    private static let good = #"{"userId":"u1","receipt":"QUJD"}"#

    private static func head(
        _ path: String = "/v1/receipts", key: String = IntakeFixture.key, bytes: Int, _ more: String = ""
    ) -> String {
        "POST \(path) HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \(key)\r\nContent-Length: \(bytes)\r\n\(more)\r\n"
    }

    /// Runs `body` while so many clients have sent `text` and wait. Returns the answers to these clients.
    private static func beside(
        _ count: Int, _ text: String, _ intake: RunningIntake, _ body: () async throws -> Void
    ) async throws -> [String] {
        let port = intake.port
        let others = Task {
            try await withThrowingTaskGroup(of: String.self) { clients in
                for _ in 0..<count {
                    clients.addTask { (try? await RawConnection.exchange(port, text)) ?? "" }
                }
                return try await clients.reduce(into: [String]()) { $0.append($1) }
            }
        }
        try await Task.sleep(for: .milliseconds(500))
        try await body()
        return try await others.value
    }

    // MARK: Bodies

    @Test("What is only announced takes nothing from others")
    func announced() async throws {
        try await RunningIntake.run { intake in
            // 640 MB, more than all bodies together may have.
            let head = Self.head("/v1/receipts/batch", bytes: 8_000_000)
            _ = try await Self.beside(80, head + "{", intake) {
                for _ in 0..<5 {
                    let answer = try await intake.post(Self.good)
                    #expect(answer.status == 202)
                }
            }
        }
    }

    @Test("A body that stands still is refused in seconds, by name")
    func rate() async throws {
        try await RunningIntake.run { intake in
            let start = ContinuousClock.now
            let text = try await RawConnection.exchange(
                intake.port, Self.head(bytes: 100) + "{\"userId\":", seconds: 12)
            #expect(text.hasPrefix("HTTP/1.1 408"))
            #expect(text.contains("request_timeout") && text.contains(#""limit":"request.bodyRate""#))
            #expect((.seconds(5)..<Duration.seconds(10)).contains(ContinuousClock.now - start))
        }
    }

    @Test("Of one user's half bodies two go on, the others are refused by name; other users post meanwhile")
    func slowBodies() async throws {
        try await TestGateway.run { intake, gateway in
            let head = Self.head(key: try gateway.token("slow"), bytes: 100)
            let answers = try await Self.beside(5, head + "{", intake) {
                let honest = try gateway.token("honest")
                for _ in 0..<5 {
                    #expect(try await intake.post(#"{"receipt":"QUJD"}"#, key: honest).status == 202)
                    try await Task.sleep(for: .milliseconds(300))
                }
            }
            let refused = answers.filter { $0.contains(#""limit":"user.bodies""#) }
            #expect(refused.count == 3 && refused.allSatisfy { $0.hasPrefix("HTTP/1.1 408") })
        }
    }

    // MARK: Connections

    @Test("Silent connections in all of the places: a real request is answered all the same")
    func silent() async throws {
        try await RunningIntake.run(connectionsMax: 16) { intake in
            let port = intake.port
            let answers = try await Self.beside(16, "", intake) {
                let start = ContinuousClock.now
                for _ in 0..<4 {
                    let text = try await RawConnection.exchange(
                        port, "GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    #expect(text.hasPrefix("HTTP/1.1 200"))
                }
                #expect(ContinuousClock.now - start < .seconds(4))
            }
            #expect(answers.allSatisfy { $0 == "" })
        }
    }

    @Test("A client that waits for an answer is not taken for idle, however many connections there are")
    func waiting() async throws {
        try await RunningIntake.run(connectionsMax: 4) { intake in
            let body = #"{"userId":"u-crowd","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
            async let waiting = intake.post(body, wait: "4")
            _ = try await Self.beside(4, "", intake) { try await Task.sleep(for: .seconds(2)) }
            let answer = try await waiting
            #expect(answer.status == 202 && answer["state"] == .string("received"))
        }
    }

    // MARK: HTTP

    @Test("Exactly one Host", arguments: ["", "Host: x\r\nHost: x\r\n", "Host:\r\n", "Host: x\r\nhost: y\r\n"])
    func host(lines: String) async throws {
        try await RunningIntake.run { intake in
            let text = try await RawConnection.exchange(
                intake.port, "GET /health/live HTTP/1.1\r\n\(lines)Connection: close\r\n\r\n")
            #expect(text.hasPrefix("HTTP/1.1 400"))
            #expect(text.contains("bad_request") && text.contains("application/problem+json"))
        }
    }

    @Test(
        "F19: Expect: 100-continue is answered before the body, once for each request",
        arguments: ["100-continue", "100-Continue"])
    func expectation(word: String) async throws {
        try await RunningIntake.run { intake in
            let bytes = Self.good.utf8.count
            let head = Self.head(bytes: bytes, "Expect: \(word)\r\n")
            let last = Self.head(bytes: bytes, "Expect: \(word)\r\nConnection: close\r\n")
            let one = try await RawConnection.exchange(intake.port, last, then: Self.good)
            #expect(one.hasPrefix("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202"))
            let two = try await RawConnection.exchange(intake.port, head + Self.good + last + Self.good)
            let statuses = two.split(separator: "HTTP/1.1 ").map { String($0.prefix(3)) }
            #expect(statuses == ["100", "202", "100", "202"])
        }
    }

    @Test("F19: a body that is not wanted is not asked for, and the connection ends")
    func notExpected() async throws {
        try await RunningIntake.run { intake in
            for (head, status) in [
                (Self.head(key: "wrong", bytes: 100, "Expect: 100-continue\r\n"), 401),
                (Self.head(key: IntakeFixture.backendKey, bytes: 100, "Expect: 100-continue\r\n"), 403),
                (Self.head(bytes: 100_000_000, "Expect: 100-continue\r\n"), 413),
                (Self.head(bytes: 100, "Expect: tea\r\n"), 417),
                (Self.head(bytes: 100, "Expect: 100-continue\r\nContent-Encoding: br\r\n"), 415),
                (Self.head("/v1/nothing", bytes: 100, "Expect: 100-continue\r\n"), 404),
                (Self.head("/v1/events", bytes: 100, "Expect: 100-continue\r\n"), 405),
                // The route reads no body, so the client is not asked for one.
                (Self.head("/v1/users/u-expect/token", bytes: 100, "Expect: 100-continue\r\n"), 201),
            ] {
                let text = try await RawConnection.exchange(intake.port, head)
                #expect(text.hasPrefix("HTTP/1.1 \(status)"), "\(text.prefix(60))")
                #expect(text.lowercased().contains("connection: close"), "\(status)")
            }
        }
    }
}
