import AsyncHTTPClient
import Commands
import Foundation
import NIOCore
import NIOHTTP1
import Settings

/// An address on which load may be put.
struct LoadAddress {
    /// Scheme, host, port and path, without a slash at the end. Built from the checked parts, so that nobody reads the
    /// address in another way than this check did.
    let base: String
    let isSecure: Bool
    let host: String
    let port: Int
    /// Host and port as in the Host header.
    let authority: String
    /// The path without a slash at the end.
    let path: String

    /// - Throws: if the text is no http or https address, or has credentials, a query or a fragment; without
    ///   `allowsRemote` also if the host is not this machine.
    init(_ text: String, option: String, allowsRemote: Bool) throws(UnusableInput) {
        guard let url = URL(string: text), let scheme = url.scheme?.lowercased(), ["http", "https"].contains(scheme),
            let host = url.host(percentEncoded: false), !host.isEmpty, url.user == nil, url.password == nil,
            url.query == nil, url.fragment == nil
        else { throw UnusableInput("\(option) must be an address such as http://127.0.0.1:8080") }
        guard allowsRemote || Settings.isLoopback(host) else {
            throw UnusableInput(
                "\(option) is not on this machine; --allow-remote must be written to put load on \(host)")
        }
        let bracketed = host.contains(":") ? "[\(host)]" : host
        self.host = host
        isSecure = scheme == "https"
        port = url.port ?? (isSecure ? 443 : 80)
        authority = bracketed + (url.port.map { ":\($0)" } ?? "")
        path = url.path().hasSuffix("/") ? String(url.path().dropLast()) : url.path()
        base = "\(scheme)://\(authority)\(path)"
    }
}

/// The deployment under load, for requests that are not part of the load itself.
struct LoadTarget: Sendable {
    private static let timeout = TimeAmount.seconds(30)
    /// The limit on an answer's bytes: one receipt with a thousand transactions takes less.
    private static let answerBytesMax = 1 << 20

    let http: HTTPClient
    let base: String
    let key: String

    struct Answer: Sendable {
        let status: Int
        let body: [UInt8]
    }

    /// - Parameter wait: how long the deployment may wait for the receipt's verdict, in seconds.
    func receipt(_ id: String, wait: Int) async throws -> Answer {
        try await answer(to: "/v1/receipts/\(id)?wait=\(wait)")
    }

    /// Asks for the health of the deployment.
    ///
    /// - Throws: if no server answers there.
    func checkHealth() async throws {
        _ = try await answer(to: "/health/live")
    }

    private func answer(to path: String) async throws -> Answer {
        var request = HTTPClientRequest(url: base + path)
        request.headers.add(name: "Authorization", value: "Bearer \(key)")
        let response = try await http.execute(request, timeout: Self.timeout)
        let body = try await response.body.collect(upTo: Self.answerBytesMax)
        return Answer(status: Int(response.status.code), body: Array(body.readableBytesView))
    }
}
