import Crypto
import Encoding
import Foundation
import HTTPTypes
import Hummingbird
import Ledger
import Purchases
package import Service
import Settings

/// `POST /v1/installations` and `DELETE /v1/installations`: the token by which a copy of the app on a device identifies
/// itself.
///
/// The token is a secret of 256 random bits. The client keeps it with its records and sends it with orders and posts
/// (`installationToken`). If one installation places an order and later posts the purchase, the order may say who the
/// owner is, even after a change of accounts (row 6). The database keeps only the token's SHA-256, which needs no salt:
/// nobody finds 256 random bits by trying.
package struct InstallationRoutes: Sendable {
    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let bodies: BodyReader

    init(ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator, bodies: BodyReader) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        self.bodies = bodies
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/installations",
            [.post: Endpoint { try await issue($0, $1) }, .delete: Endpoint { try await revoke($0, $1) }])
    }

    /// Answers 201 with a token: for the installation whose token the body shows, or for a new one.
    private func issue(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let (appID, userID, shown) = try await read(request, context)
        let token = Base64URL.encode((0..<32).map { _ in UInt8.random(in: .min ... .max) })
        let issued = try await ledger.run(
            Statements.issueInstallationToken,
            Statements.InstallationRequest(
                appID: appID, id: UUID.random().text, token: Array(SHA256.hash(data: Data(token.utf8))), shown: shown,
                userID: userID.map { configuration.current.userKeys?.key(of: $0, app: appID) ?? $0 }))
        guard !issued.isEmpty else { throw Problem.tooManyInstallations }
        return Response(json: .object([.init("installationToken", .string(token))]), status: .created)
    }

    /// Answers 200 whether or not the token was known, so the caller learns nothing.
    private func revoke(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let (appID, _, shown) = try await read(request, context)
        guard let shown else { throw Problem.incomplete(.noToken, "must be there", field: "installationToken") }
        _ = try await ledger.run(Statements.revokeInstallation, (appID: appID, token: shown))
        return Response(json: .object([]), status: .ok)
    }

    private func read(
        _ request: Request, _ context: HTTPContext
    ) async throws -> (appID: String, userID: String?, shown: [UInt8]?) {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let current = configuration.current
        return try await bodies.withBody(of: request, context, from: caller) { body in
            let fields = try IntakeFields(body: body.isEmpty ? Array("{}".utf8) : body, of: .installation)
            let userID = try caller.user(fields.userID, noneOf: current.placeholders)
            return (try caller.app(fields.appID, of: current.appIDs), userID, fields.installationTokenSHA256)
        }
    }
}

extension Problem {
    fileprivate static let tooManyInstallations = Problem(
        .tooManyRequests, .tooManyInstallations,
        "this user was issued \(Statements.installationTokensPerUserMax) installation tokens today",
        limit: .userInstallations, headers: [.retryAfter: "3600"])
}
