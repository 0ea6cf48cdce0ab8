import AppStore
import AppStoreSimulator
import AsyncHTTPClient
import Crypto
import Foundation
import HTTPTypes
import Logging
import NIOCore
import NIOHTTP1
import TestServers
import Testing

/// A simulator that listens on a port of its own, and a client for it.
struct RunningSimulator {
    let simulator: AppStoreSimulator
    let base: String

    /// Runs `body` against a fresh simulator and stops it afterwards.
    static func with(
        _ configuration: SimulatorConfiguration = .init(seed: 1),
        _ body: (RunningSimulator) async throws -> Void
    ) async throws {
        var logger = Logger(label: "test")
        logger.logLevel = .error
        let simulator = try AppStoreSimulator(configuration, logger: logger)
        try await RunningService.with(simulator) {
            let port = try await simulator.boundPort
            try await body(RunningSimulator(simulator: simulator, base: "http://127.0.0.1:\(port)"))
        }
    }

    struct Answer {
        let status: Int
        let headers: HTTPHeaders
        let body: Data

        /// The body as a JSON object; empty if it is none.
        var json: [String: Any] { (try? JSONSerialization.jsonObject(with: body)) as? [String: Any] ?? [:] }
        func string(_ key: String) -> String { json[key] as? String ?? "" }
        func int(_ key: String) -> Int? { json[key] as? Int }
        func objects(_ key: String) -> [[String: Any]] { json[key] as? [[String: Any]] ?? [] }
        /// The payloads of an array of signed transactions.
        func payloads(_ key: String = "signedTransactions") throws -> [SignedTransaction] {
            try (json[key] as? [String] ?? []).map { try SignedTransaction($0) }
        }
        /// HTTP status and `errorCode`, as `404 4040010`.
        var refusal: String { "\(status) \(int("errorCode").map(String.init) ?? "-")" }
        var text: String { String(decoding: body, as: UTF8.self) }
    }

    func call(
        _ method: HTTPMethod,
        _ path: String,
        json: String? = nil,
        token: String? = nil,
        timeoutSeconds: Int64 = 120
    ) async throws -> Answer {
        var request = HTTPClientRequest(url: base + path)
        request.method = method
        if let token { request.headers.add(name: "Authorization", value: "Bearer \(token)") }
        if let json {
            request.headers.add(name: "Content-Type", value: "application/json")
            request.body = .bytes(ByteBuffer(string: json))
        }
        let response = try await HTTPClient.shared.execute(request, timeout: .seconds(timeoutSeconds))
        let body = try await response.body.collect(upTo: 64 << 20)
        return Answer(
            status: Int(response.status.code), headers: response.headers, body: Data(body.readableBytesView))
    }

    /// Sells through the control API.
    func sell(_ json: String) async throws -> Answer {
        let answer = try await call(.POST, "/control/purchases", json: json)
        try #require(answer.status == 201, "\(answer.text)")
        return answer
    }

    func verifyReceipt(
        _ receipt: String,
        _ environment: String = "production",
        password: String? = nil,
        excludeOld: Bool? = nil
    ) async throws -> Answer {
        var fields = ["\"receipt-data\":\"\(receipt)\""]
        if let password { fields.append("\"password\":\"\(password)\"") }
        if let excludeOld { fields.append("\"exclude-old-transactions\":\(excludeOld)") }
        return try await call(
            .POST, "/\(environment)/verifyReceipt", json: "{\(fields.joined(separator: ","))}")
    }

    func transactionInfo(
        _ id: String,
        _ environment: String = "production",
        bundleId: String = "com.example.game",
        token: String? = nil
    ) async throws -> Answer {
        try await call(
            .GET, "/\(environment)/inApps/v1/transactions/\(id)", token: try token ?? bearer(bundleId: bundleId))
    }

    /// A call of the App Store Server API; `path` goes on after `/inApps/`.
    func api(
        _ method: HTTPMethod,
        _ path: String,
        _ environment: String = "production",
        json: String? = nil,
        bundleId: String = "com.example.game"
    ) async throws -> Answer {
        try await call(
            method, "/\(environment)/inApps/\(path)", json: json, token: try bearer(bundleId: bundleId))
    }

    /// Sells one purchase of `com.example.game`; `fields` are more members of the request's JSON.
    func sold(_ fields: String = "") async throws -> Answer {
        try await sell(#"{"app":"com.example.game","productId":"coins6""# + (fields.isEmpty ? "}" : ",\(fields)}"))
    }

    /// Makes a change over the control API; it must succeed.
    @discardableResult
    func control(_ method: HTTPMethod, _ path: String, _ json: String? = nil) async throws -> Answer {
        let answer = try await call(method, "/control/\(path)", json: json)
        try #require((200..<300).contains(answer.status), "\(answer.text)")
        return answer
    }

    /// A token of the App Store Server API, made by hand; each parameter can be made wrong.
    func bearer(
        bundleId: String,
        issuer: String? = nil,
        keyId: String? = nil,
        audience: String = "appstoreconnect-v1",
        issuedAt: Int = Int(Date().timeIntervalSince1970),
        lifetime: Int = 300,
        hasIssuedAt: Bool = true,
        key: P256.Signing.PrivateKey? = nil
    ) throws -> String {
        let credentials = simulator.credentials
        let key = try key ?? P256.Signing.PrivateKey(pemRepresentation: credentials.privateKeyPEM)
        let header = #"{"alg":"ES256","kid":"\#(keyId ?? credentials.keyId)","typ":"JWT"}"#
        let issued = hasIssuedAt ? #""iat":\#(issuedAt),"# : ""
        let claims =
            #"{"iss":"\#(issuer ?? credentials.issuerId)",\#(issued)"exp":\#(issuedAt + lifetime),"#
            + #""aud":"\#(audience)","bid":"\#(bundleId)"}"#
        let input = base64URL(Data(header.utf8)) + "." + base64URL(Data(claims.utf8))
        return input + "." + base64URL(try key.signature(for: Data(input.utf8)).rawRepresentation)
    }
}

func base64URL(_ data: Data) -> String {
    data.base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
}

func base64URLDecoded(_ text: some StringProtocol) throws -> Data {
    var standard = String(text).replacing("-", with: "+").replacing("_", with: "/")
    standard += String(repeating: "=", count: (4 - standard.count % 4) % 4)
    return try #require(Data(base64Encoded: standard))
}

/// Runs `body` with a new folder, which is removed afterwards.
func withFolder(_ body: (String) async throws -> Void) async throws {
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("simulator-\(UUID().uuidString)").path
    defer { try? FileManager.default.removeItem(atPath: path) }
    try await body(path)
}
