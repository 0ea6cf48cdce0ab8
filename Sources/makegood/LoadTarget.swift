import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1

/// An address that load may be put on.
struct LoadAddress {
    /// Scheme, host, port and path, without a slash at the end; built from the parts that were judged, so that nobody
    /// reads the address in another way than we did.
    let base: String

    /// - Throws: if it is no plain http address, or, without `allowsRemote`, not on this machine.
    init(_ text: String, option: String, allowsRemote: Bool) throws(UnusableInput) {
        guard let url = URL(string: text), let scheme = url.scheme?.lowercased(), ["http", "https"].contains(scheme),
            let host = url.host(percentEncoded: false), !host.isEmpty, url.user == nil, url.password == nil,
            url.query == nil, url.fragment == nil
        else { throw UnusableInput("\(option) must be an address such as http://127.0.0.1:8080") }
        guard allowsRemote || Self.isLoopback(host) else {
            throw UnusableInput(
                "\(option) is not on this machine; --allow-remote must be written to put load on \(host)")
        }
        let bracketed = host.contains(":") ? "[\(host)]" : host
        let path = url.path().hasSuffix("/") ? String(url.path().dropLast()) : url.path()
        base = "\(scheme)://\(bracketed)\(url.port.map { ":\($0)" } ?? "")\(path)"
    }

    /// `localhost`, `::1` and 127.0.0.0/8 (RFC 6761, RFC 4291, RFC 1122). A name that merely begins so is none of
    /// them.
    static func isLoopback(_ host: String) -> Bool {
        let host = host.lowercased()
        if host == "localhost" || host == "::1" || host == "[::1]" { return true }
        let parts = host.split(separator: ".", omittingEmptySubsequences: false)
        // Leading zeros are octal to some resolvers: not taken.
        return parts.count == 4 && parts[0] == "127"
            && parts.allSatisfy { part in UInt8(part).map { String($0) == part } ?? false }
    }
}

/// The deployment under load, as a caller with one key sees it.
struct LoadTarget: Sendable {
    /// From the first byte sent to the last byte read; longer than any gateway waits.
    private static let timeout = TimeAmount.seconds(30)
    /// Bytes of an answer: one receipt with a thousand transactions takes less.
    private static let answerBytesMax = 1 << 20

    let http: HTTPClient
    let base: String
    let key: String
    /// Ends inside the JSON text, where the user's number follows.
    private let beforeUser: String

    struct Answer: Sendable {
        let status: Int
        let body: [UInt8]
    }

    init(http: HTTPClient, address: LoadAddress, key: String, appId: String?) throws {
        self.http = http
        base = address.base
        self.key = key
        let app = try appId.map { "\"appId\":\(String(decoding: try JSONEncoder().encode($0), as: UTF8.self))," } ?? ""
        beforeUser = "{\(app)\"userId\":\"load-"
    }

    /// Posts a signed transaction (``TokenFile`` saw to it that it needs no escaping).
    func post(_ token: String, user: Int) async throws -> Answer {
        var request = request(.POST, "/v1/receipts")
        request.headers.add(name: "Content-Type", value: "application/json")
        request.body = .bytes(ByteBuffer(string: "\(beforeUser)\(user)\",\"signedTransaction\":\"\(token)\"}"))
        return try await answer(to: request)
    }

    func receipt(_ id: String) async throws -> Answer {
        try await answer(to: request(.GET, "/v1/receipts/\(id)"))
    }

    /// Asks for anything at all.
    ///
    /// - Throws: if nobody answers there.
    func knock() async throws {
        _ = try await answer(to: request(.GET, "/health/live"))
    }

    private func request(_ method: HTTPMethod, _ path: String) -> HTTPClientRequest {
        var request = HTTPClientRequest(url: base + path)
        request.method = method
        request.headers.add(name: "Authorization", value: "Bearer \(key)")
        return request
    }

    private func answer(to request: HTTPClientRequest) async throws -> Answer {
        let response = try await http.execute(request, timeout: Self.timeout)
        let body = try await response.body.collect(upTo: Self.answerBytesMax)
        return Answer(status: Int(response.status.code), body: Array(body.readableBytesView))
    }
}
