import Crypto
import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import NIOCore
import Purchases
package import Service
package import Settings

/// `GET /v1/users/{id}/entitlements`: what a user may use now.
///
/// A gateway's token reads the entitlements of its own user. A key with the scope `intake` or `support` reads those of
/// any user of its apps. An unknown user has no entitlements, so the caller does not learn whether the user exists. An
/// answer is right at the moment after the commit of the facts that it follows from, so no cache may give the answer
/// without asking (`ETag`, `If-None-Match`).
package struct EntitlementRoutes: Sendable {
    private static let environments = [Transaction.production, Transaction.sandbox] + Transaction.unsignedEnvironments

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let catalogues: CatalogueRefresher
    private let authenticator: Authenticator

    package init(
        ledger: Ledger, configuration: ConfigurationHolder, catalogues: CatalogueRefresher, authenticator: Authenticator
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.catalogues = catalogues
        self.authenticator = authenticator
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/users/:id/entitlements", [.get: Endpoint("appId", "environment") { try await entitlements($0, $1) }])
    }

    private func entitlements(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake, or: .support)
        let configuration = configuration.current
        let user = try caller.user(in: request, context, of: configuration, readsPlaceholder: true)
        let environment = request.parameter("environment") ?? Transaction.production
        guard Self.environments.contains(environment) else {
            throw Problem.badParameter("environment", "one of \(Self.environments.joined(separator: ", "))")
        }
        guard let app = configuration.apps[user.appID] else { throw Problem.appNotAllowed }
        let catalogue = try await catalogues.catalogue(of: app)
        let chains = try await ledger.ownedChains(
            EntitlementQuestion(
                user: UserName(appID: user.appID, key: user.key), isOfPerson: caller.userID == nil,
                environment: environment))
        let list = Entitlements(of: chains, by: app.policy.subscriptions, catalogue).list
        return .revalidated(
            .object([
                .init("appId", .string(user.appID)), .init("environment", .string(environment)),
                .init("entitlements", .array(list.map(\.json))),
            ]), for: request)
    }
}

extension Response {
    /// The JSON with its strong `ETag`; 304 without a body where the request names the tag (RFC 9110, 13.1.2). Only a
    /// cache of the client may keep the answer, and such a cache asks before each use.
    static func revalidated(_ json: JSONValue, for request: Request) -> Response {
        let bytes = json.bytes
        let tag = "\"\(SHA256.hash(data: bytes).prefix(16).hexadecimal)\""
        let headers: HTTPFields = [.eTag: tag, .cacheControl: "private, no-cache"]
        guard request.headers[.ifNoneMatch]?.namesTag(tag) != true else {
            return Response(status: .notModified, headers: headers)
        }
        var response = Response(status: .ok, headers: headers, body: .init(byteBuffer: ByteBuffer(bytes: bytes)))
        response.headers[.contentType] = "application/json"
        return response
    }
}

extension String {
    /// Whether the value of `If-None-Match` names this tag. A proxy that compresses makes a tag weak (`W/"…"`).
    fileprivate func namesTag(_ tag: String) -> Bool {
        split(separator: ",").contains { part in
            let name = part.drop { $0 == " " || $0 == "\t" }.prefix { $0 != " " && $0 != "\t" }
            return name == "*" || name == tag || name == "W/\(tag)"
        }
    }
}

extension Entitlement {
    fileprivate var json: JSONValue {
        var members: [JSONValue.Member] = [
            .init("productId", .string(productID)), .init("type", .string(kind.settingName)),
            .init("state", .string(state.rawValue)), .init("isActive", .bool(isActive)),
            .init("isCurrent", .bool(isCurrent)),
        ]
        func add(_ name: String, _ value: JSONValue?) {
            if let value { members.append(.init(name, value)) }
        }
        add("until", until.map { .string($0.rfc3339) })
        add("group", group.map(JSONValue.string))
        add("level", level.map(JSONValue.integer))
        add("ownership", .string(isShared ? "shared" : "own"))
        add("willRenew", willRenew.map(JSONValue.bool))
        add("commitmentUntil", commitmentUntil.map { .string($0.rfc3339) })
        add("commitmentRenews", commitmentRenews.map(JSONValue.bool))
        add("nextProductId", nextProductID.map(JSONValue.string))
        add("purchases", .array(purchases.map { $0.json(in: environment) }))
        return .object(members)
    }
}

extension Entitlement.Purchase {
    fileprivate func json(in environment: String) -> JSONValue {
        .object([
            .init("transactionId", .string(Transaction.shownID(transactionID, in: environment))),
            .init("originalTransactionId", .string(Transaction.shownID(originalID, in: environment))),
        ])
    }
}
