import Foundation
import NIOHTTP1
import NIOSSL
import Testing

@testable import Delivery
@testable import Settings

/// Goal: the address that was checked is the one connected to, TLS still asks for the host of the URL, and a host that
/// may not be reached gets not even a connection. Method: a real server on loopback behind the name localhost.
@Suite(.timeLimit(.minutes(2))) struct WebhookAddressTests {
    private static func send(
        _ url: String, _ members: String, trustRoots: NIOSSLTrustRoots = .default
    ) async throws -> WebhookAnswer {
        let sender = WebhookSender(try EndpointSamples.endpoint(url, members), trustRoots: trustRoots)
        let answer = await sender.send(eventID: "event", body: Array("{}".utf8), now: .now)
        await sender.shutDown()
        return answer
    }

    private static func failure(_ answer: WebhookAnswer) -> WebhookFailure? {
        if case .failed(let reason) = answer { reason } else { nil }
    }

    @Test("a name that leads to a private address is refused before any connection")
    func privateName() async throws {
        let receiver = TestReceiver { _ in .status("200 OK") }
        try await receiver.serve { port in
            for members in ["timeout: 10s", "allowPrivate: [other.internal, 10.0.0.0/8]"] {
                let failure = Self.failure(try await Self.send("https://localhost:\(port)/", members))
                #expect(failure?.word == .refusedAddress)
                #expect(failure?.sentence.contains("allowPrivate") == true, "\(String(describing: failure))")
            }
        }
        #expect(receiver.connections == 0)
    }

    @Test("an allowed name is resolved here; its host stays in the request, also if one of its addresses is deaf")
    func allowedName() async throws {
        let receiver = TestReceiver { _ in .status("200 OK") }
        let port = try await receiver.serve { port in
            // Where localhost is ::1 first, nobody listens there.
            for members in ["allowPrivate: [localhost]", "allowPrivate: [LOCALHOST, '::1', 127.0.0.0/8]"] {
                let answer = try await Self.send("http://LocalHost:\(port)/in", members)
                #expect(answer.isTaken, "\(answer)")
            }
            return port
        }
        #expect(receiver.requests.map { $0.head.headers["host"] } == [["localhost:\(port)"], ["localhost:\(port)"]])
    }

    @Test("a name that nobody has, and a port on which nobody listens")
    func nobody() async throws {
        let missing = Self.failure(try await Self.send("https://no-such-host.invalid/", "timeout: 30s"))
        #expect(missing?.word == .nameNotFound, "\(String(describing: missing))")
        let port = try await TestReceiver { _ in .silence }.serve { $0 }
        for host in ["127.0.0.1", "localhost"] {
            let failure = Self.failure(try await Self.send("http://\(host):\(port)/", "allowPrivate: [\(host)]"))
            #expect(failure?.word == .connect, "\(String(describing: failure))")
        }
    }

    /// A certificate that names this host, signed by itself, and its key.
    private static func certificate(for name: String) throws -> (NIOSSLCertificate, NIOSSLPrivateKey) {
        let folder = FileManager.default.temporaryDirectory.appending(path: "makegood-hooks-\(UUID().uuidString)").path
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let openssl = Process()
        openssl.executableURL = URL(filePath: "/usr/bin/env")
        openssl.arguments = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=\(name)", "-addext", "subjectAltName=DNS:\(name)", "-keyout", "\(folder)/server.key", "-out",
            "\(folder)/server.pem",
        ]
        openssl.standardError = FileHandle.nullDevice
        try openssl.run()
        openssl.waitUntilExit()
        try #require(openssl.terminationStatus == 0)
        let certificate = try #require(try NIOSSLCertificate.fromPEMFile("\(folder)/server.pem").first)
        return (certificate, try NIOSSLPrivateKey(file: "\(folder)/server.key", format: .pem))
    }

    @Test("TLS asks for the host of the URL, not for the address; a wrong name or authority gets no request")
    func tls() async throws {
        for (name, isTrusted, word) in [
            ("localhost", true, nil), ("other.example.com", true, .tls), ("localhost", false, .tls),
        ] as [(String, Bool, WebhookFailure.Word?)] {
            let (certificate, key) = try Self.certificate(for: name)
            let context = try NIOSSLContext(
                configuration: .makeServerConfiguration(
                    certificateChain: [.certificate(certificate)], privateKey: .privateKey(key)))
            let receiver = TestReceiver { _ in .status("200 OK") }
            let answer = try await receiver.serve(tls: context) { port in
                try await Self.send(
                    "https://localhost:\(port)/", "allowPrivate: [localhost]",
                    trustRoots: isTrusted ? .certificates([certificate]) : .default)
            }
            #expect(Self.failure(answer)?.word == word, "\(name) \(isTrusted): \(answer)")
            #expect(receiver.requests.count == (word == nil ? 1 : 0))
        }
    }

    @Test("a server that speaks no TLS gets no request")
    func noTLS() async throws {
        let receiver = TestReceiver { _ in .status("200 OK") }
        let answer = try await receiver.serve { port in
            try await Self.send("https://localhost:\(port)/", "allowPrivate: [localhost], timeout: 3s")
        }
        let word = try #require(Self.failure(answer)?.word, "\(answer)")
        #expect([.tls, .reset].contains(word) && receiver.requests.isEmpty, "\(answer)")
    }
}
