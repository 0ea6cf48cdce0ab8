import Crypto
import Foundation
import Service
import TestServers

/// A gateway whose tokens name users: holds its key, and runs an ingest server that trusts it for the app `game`.
struct TestGateway: Sendable {
    private let signer = P256.Signing.PrivateKey()

    /// - Parameters:
    ///   - claims: further ones, each after a comma.
    ///   - seconds: from now; negative: it has expired.
    func token(_ user: String, _ claims: String = "", validFor seconds: Int = 60) throws -> String {
        let header = Data(#"{"alg":"ES256"}"#.utf8).base64URL
        let expiry = Int(Date().timeIntervalSince1970) + seconds
        let claims = Data(
            #"{"iss":"gw","aud":"makegood","sub":"\#(user)","exp":\#(expiry)\#(claims)}"#.utf8
        ).base64URL
        let signature = try signer.signature(for: Data("\(header).\(claims)".utf8)).rawRepresentation.base64URL
        return "\(header).\(claims).\(signature)"
    }

    /// - Parameters:
    ///   - url: nil takes the suite's database.
    ///   - scopes: of the tokens, with commas.
    ///   - more: further members of `gatewayJwt`, each after a comma.
    ///   - limits: the section of one user's limits.
    static func run(
        url: String? = nil, scopes: String = "intake", more: String = "", limits: String = "{}",
        security: SecurityLog = .init(secret: [], logger: .silent),
        _ body: (RunningIntake, TestGateway) async throws -> Void
    ) async throws {
        let gateway = TestGateway()
        let directory = URL.temporaryDirectory.appending(
            path: "makegood-gateway-\(UUID().uuidString)", directoryHint: .isDirectory)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        try gateway.signer.publicKey.pemRepresentation.write(
            to: directory.appending(path: "gateway.pem"), atomically: true, encoding: .utf8)
        try await RunningIntake.run(
            url: url,
            gatewayJWT: """
                gatewayJwt: {issuer: gw, audience: makegood, keys: [gateway.pem], scopes: [\(scopes)], apps: [game]\(more)}
                limits: {user: \(limits)}
                """,
            directory: directory, security: security
        ) { try await body($0, gateway) }
    }
}
