import AsyncHTTPClient
import Crypto
import Foundation
import Glibc
import NIOCore
import NIOHTTP1
import Settings
import Synchronization

/// One player with a gateway's token who uses as much of every ingest as possible, and what the answers say.
final class Flooder: Sendable {
    struct Seen: Sendable {
        var statuses: [Int: Int] = [:]
        /// The limits that answers named.
        var limits: Set<String> = []
        /// Connections that the server closed without an answer.
        var closed = 0

        var answers: Int { statuses.filter { $0.key != 0 }.values.reduce(closed, +) }
        var text: String {
            var counts = statuses.sorted { $0.key < $1.key }.map { "\($0.value)× \($0.key)" }
            if closed > 0 { counts.append("\(closed)× closed") }
            return (counts + limits.sorted()).joined(separator: ", ")
        }
    }

    let userID: String
    let token: String
    private let world: TestDeployment
    private let client: HTTPClient
    private let seenSoFar = Mutex(Seen())

    init(_ userID: String, in world: TestDeployment, client: HTTPClient) {
        self.userID = userID
        token = Access.token(of: userID)
        self.world = world
        self.client = client
    }

    var seen: Seen { seenSoFar.withLock { $0 } }

    /// Sends one request and returns its status and body; the status is 0 where no answer came. The journal keeps the
    /// answer for the invariants.
    @discardableResult
    func send(
        _ method: HTTPMethod, _ path: String, _ body: [UInt8]? = nil, of post: PurchaseGenerator.Post? = nil
    ) async -> (status: Int, json: [String: Any]) {
        guard let address = world.traffic.openAddresses.randomElement() else { return (0, [:]) }
        var request = HTTPClientRequest(url: address + path)
        request.method = method
        request.headers.add(name: "Content-Type", value: "application/json")
        request.headers.add(name: "Authorization", value: "Bearer \(token)")
        if let body { request.body = .bytes(ByteBuffer(bytes: body)) }
        var status = 0
        var json: [String: Any] = [:]
        if let response = try? await client.execute(request, timeout: .seconds(30)) {
            status = Int(response.status.code)
            if let bytes = try? await response.body.collect(upTo: 8 << 20) {
                json = (try? JSONSerialization.jsonObject(with: Data(bytes.readableBytesView))) as? [String: Any] ?? [:]
            }
        }
        note(status, json["limit"] as? String)
        for entry in json["receipts"] as? [[String: Any]] ?? [] {
            if let limit = entry["limit"] as? String { note(nil, limit) }
        }
        if let post {
            let id = (json["id"] as? String).flatMap(UUID.init(uuidString:))
            world.traffic.journal.record(post, status: status, receiptID: id, seconds: 0, isOfLoad: false)
        }
        return (status, json)
    }

    /// Opens a connection of its own, sends only the start of a request, or nothing, and closes the connection after a
    /// while.
    ///
    /// - Returns: the status of an answer that came meanwhile; nil: none came.
    func hold(_ start: String, for time: Duration) async -> Int? {
        guard let url = world.traffic.openAddresses.randomElement().flatMap({ URLComponents(string: $0) }),
            let port = url.port, let socket = Self.connect(port: UInt16(port))
        else { return nil }
        defer { close(socket) }
        _ = start.withCString { Glibc.send(socket, $0, strlen($0), Int32(MSG_NOSIGNAL)) }
        let end = ContinuousClock.now + time
        var answer: [UInt8] = []
        var isClosed = false
        while ContinuousClock.now < end, !Task.isCancelled {
            var buffer = [UInt8](repeating: 0, count: 4096)
            let count = recv(socket, &buffer, buffer.count, Int32(MSG_DONTWAIT))
            if count > 0 { answer += buffer.prefix(count) }
            isClosed = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)
            if isClosed { break }
            try? await Task.sleep(for: .milliseconds(100))
        }
        let text = String(decoding: answer, as: UTF8.self)
        guard let status = text.split(separator: " ").dropFirst().first.flatMap({ Int($0) }) else {
            if isClosed { seenSoFar.withLock { $0.closed += 1 } }
            return nil
        }
        note(status, text.firstMatch(of: #/"limit":"([^"]*)"/#).map { String($0.1) })
        return status
    }

    private func note(_ status: Int?, _ limit: String?) {
        seenSoFar.withLock { seen in
            if let status { seen.statuses[status, default: 0] += 1 }
            if let limit { seen.limits.insert(limit) }
        }
    }

    private static func connect(port: UInt16) -> Int32? {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        guard descriptor >= 0 else { return nil }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        let result = withUnsafePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                Glibc.connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
        guard result == 0 else {
            close(descriptor)
            return nil
        }
        return descriptor
    }
}

extension HTTPClient {
    /// Lends a client with as many connections to each ingest as there are players.
    static func lend<Result>(
        to players: Int, _ body: (HTTPClient) async throws -> Result
    ) async throws -> Result {
        var configuration = Configuration()
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = players
        let client = HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
        do {
            let result = try await body(client)
            try await client.shutdown()
            return result
        } catch {
            try? await client.shutdown()
            throw error
        }
    }
}

extension Access {
    /// The gateway's signing key, made anew for each run.
    private static let gateway = P256.Signing.PrivateKey()
    static var gatewayPEM: String { gateway.publicKey.pemRepresentation }

    /// The token that the gateway gives to a player who is logged in.
    static func token(of user: String) -> String {
        func encode(_ data: some DataProtocol) -> String {
            Data(data).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing(
                "=", with: "")
        }
        let claims =
            #"{"iss":"drill","aud":"makegood","sub":"\#(user)","exp":\#(Int(Date.now.timeIntervalSince1970) + 3600)}"#
        let input = encode(Data(#"{"alg":"ES256"}"#.utf8)) + "." + encode(Data(claims.utf8))
        // Signing cannot fail: the key was just made.
        let signature = try? gateway.signature(for: Data(input.utf8))
        return input + "." + encode(signature?.rawRepresentation ?? Data())
    }
}
