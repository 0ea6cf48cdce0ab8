import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import Logging
import Metrics
import Purchases
package import Service
package import Settings

/// `POST /v1/users/{id}/merge {"into": "…"}`: makes an account a part of another one, for ever, for example when a
/// guest registers. From then on the other account has the first one's orders, tokens, subscriptions and purchases, and
/// all later posts under the first one's id.
///
/// A merge gives one user everything of another and cannot be undone. So it needs a scope of its own, which neither a
/// gateway's token nor a key that posts purchases has.
package struct MergeRoutes: Sendable {
    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let users: UserRegister
    private let bodies: BodyReader
    private let security: SecurityLog

    package init(
        ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator, bodies: BodyReader,
        security: SecurityLog
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        users = UserRegister(ledger: ledger)
        self.bodies = bodies
        self.security = security
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/users/:id/merge", [.post: Endpoint("appId") { try await merge($0, $1) }])
    }

    /// Answers 200, even if the merge was done before. Answers 409 where the merge would lead in a circle, the account
    /// is part of a third one, one of the two was erased, or the person has too many ids.
    private func merge(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.merge)
        let configuration = configuration.current
        let user = try caller.user(in: request, context, of: configuration)
        let into = try await bodies.withBody(of: request, context, from: caller) { try Self.into($0) }
        guard !configuration.placeholders.contains(into) else { throw Problem.userPlaceholder("into") }
        guard !into.isSameText(as: user.id) else {
            throw Problem.incomplete(.sameUser, "is this account itself", field: "into")
        }
        let key = configuration.userKeys?.key(of: into, app: user.appID) ?? into
        // The register gets the user before the merge, so that a worker can give nothing to a key that nobody can read.
        if let keys = configuration.userKeys { try await users.enter(into, key: key, app: user.appID, keys) }
        let question = Statements.Merge(
            UserName(appID: user.appID, key: user.key), into: key, actor: caller.name)
        guard let outcome = try await ledger.run(Statements.mergeUsers, question).first else {
            throw Problem.unavailable()
        }
        try Self.check(outcome)
        if outcome == .merged {
            Counter(label: "makegood_users_merged_total").increment()
            security.note(
                .merged, user: user.key, ["app.id": "\(user.appID)", "into.hash": "\(security.hash(key))"])
        }
        return Response(
            json: .object([
                .init("userId", .string(user.id)), .init("into", .string(into)),
                .init("isRepeated", .bool(outcome == .known)),
            ]))
    }

    private static func into(_ body: [UInt8]) throws(Problem) -> String {
        let value: JSONValue
        do {
            value = try JSONValue(parsing: body)
        } catch {
            throw Problem(error)
        }
        guard case .object = value else { throw .wrongType("(body)", "an object") }
        try value.refuseDuplicates(of: ["into"])
        let into = value["into"]
        switch into?.wholeNumber.map({ .string($0) }) ?? into {
        case .string(let id)? where !id.isEmpty:
            guard id.utf8.count <= IntakeFields.userBytesMax else {
                throw .tooLong("into", bytesMax: IntakeFields.userBytesMax)
            }
            return id
        case nil, .null?, .string?: throw .incomplete(.noUser, "must be there", field: "into")
        default: throw .wrongType("into", "a text or a whole number")
        }
    }

    private static func check(_ outcome: MergeOutcome) throws(Problem) {
        switch outcome {
        case .merged, .known: break
        case .cycle: throw .conflict(.mergeCycle, "is part of this account", field: "into")
        case .elsewhere: throw .conflict(.mergedElsewhere, "this account is part of another one")
        case .erased: throw .conflict(.userErased, "one of the two was erased")
        case .tooMany:
            throw .conflict(.tooManyAccounts, "one person has \(Statements.idsPerPersonMax) accounts at most")
        }
    }
}
