import Encoding
import Foundation
import Hummingbird
package import Ledger
package import Service
package import Settings

/// `PUT /v1/users/{id}/consent {"consented": true}`: whether a user agrees that Apple is told how much of a purchase
/// was used when the user asks Apple for the money back (B11).
///
/// The app's backend asks its user and posts the answer here. Without consent Makegood tells Apple nothing.
package struct ConsentRoutes: Sendable {
    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let bodies: BodyReader

    package init(
        ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator, bodies: BodyReader
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        self.bodies = bodies
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/users/:id/consent", [.put: Endpoint("appId") { try await put($0, $1) }])
    }

    /// Answers 200, even if the user had said the same before. Answers 409 for a user who was erased.
    private func put(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        guard caller.userID == nil else { throw Problem.missingScope(.events) }
        let user = try caller.user(in: request, context, of: configuration.current)
        let (isGiven, body) = try await bodies.withBody(of: request, context, from: caller) { try Self.read($0) }
        let consent = Statements.Consent(UserName(appID: user.appID, key: user.key), isGiven: isGiven)
        guard let stored = try await ledger.run(Statements.giveConsent, consent).first else {
            throw Problem.conflict(.userErased, "the user was erased")
        }
        return Response(
            json: .object(
                [
                    .init("userId", .string(user.id)), .init("consented", .bool(isGiven)),
                    .init("at", .string(stored.at.rfc3339)), .init("isRepeated", .bool(stored.isRepeated)),
                ] + body.ignoredMember))
    }

    private static func read(_ bytes: [UInt8]) throws(Problem) -> (isGiven: Bool, ClosedBody) {
        let body = try ClosedBody(bytes, members: ["consented"])
        guard case .bool(let isGiven)? = body["consented"] else { throw .wrongType("consented", "true or false") }
        return (isGiven, body)
    }
}
