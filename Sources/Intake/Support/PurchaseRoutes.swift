import Encoding
import Foundation
import Hummingbird
import Ledger
import Postgres
import Purchases
package import Service
package import Settings

/// `GET /v1/users/{id}/purchases`, a player's top-up list, and `GET /v1/users/{id}/spend?month=YYYY-MM`.
///
/// A gateway's token reads its own user's; a key with the scope `intake` or `support` any user's of its apps. An
/// unknown user has no purchases, so the caller does not learn whether the user exists.
package struct PurchaseRoutes: Sendable {
    package static let limitDefault = 50
    package static let limitMax = 200

    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let lists: ListReader

    package init(configuration: ConfigurationHolder, authenticator: Authenticator, lists: ListReader) {
        self.configuration = configuration
        self.authenticator = authenticator
        self.lists = lists
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/users/:id/purchases", [.get: Endpoint("appId", "after", "limit") { try await purchases($0, $1) }])
        router.serve("/v1/users/:id/spend", [.get: Endpoint("appId", "month") { try await spend($0, $1) }])
    }

    // MARK: Routes

    private func purchases(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let (user, id, caller) = try await user(request, context)
        let before = try request.cursor() ?? .newest
        let limit = try request.limit(Self.limitDefault, max: Self.limitMax)
        let list = try await lists.read(of: id, context.channel) { database throws(PostgresError) in
            let ids = try await caller.idsRead(of: user, database)
            return try await PurchaseList(
                of: .init(appID: user.appID, userIDs: ids, before: before, limit: limit), in: database)
        }
        var members: [JSONValue.Member] = [
            .init("appId", .string(user.appID)),
            .init("purchases", .array(list.topUps.map { $0.json(of: user.appID) })),
        ]
        if let next = list.next { members.append(.init("next", .string(next.text))) }
        return Response(json: .object(members))
    }

    private func spend(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let (user, id, caller) = try await user(request, context)
        guard let month = request.parameter("month").flatMap(Month.init) else {
            throw Problem.badParameter("month", "a month such as 2026-11")
        }
        let spendings = try await lists.read(of: id, context.channel) { database throws(PostgresError) in
            try await database.run(
                Statements.spending,
                .init(
                    appID: user.appID, userIDs: try await caller.idsRead(of: user, database), from: month.start,
                    to: month.end))
        }
        return Response(
            json: .object([
                .init("appId", .string(user.appID)), .init("month", .string(month.text)),
                .init("production", .array(spendings.filter(\.isProduction).map(\.json))),
                .init("sandbox", .array(spendings.filter { !$0.isProduction }.map(\.json))),
            ]))
    }

    // MARK: Parameters

    /// The user whose purchases are asked for, as the tables name the user and as the request does; and the caller.
    private func user(
        _ request: Request, _ context: HTTPContext
    ) async throws -> (UserName, id: String, caller: Caller) {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake, or: .support)
        let user = try caller.user(in: request, context, of: configuration.current, readsPlaceholder: true)
        return (UserName(appID: user.appID, key: user.key), user.id, caller)
    }
}

extension Spending {
    /// The amount in milliunits, as Apple gives it: 1.99 USD is 1990.
    fileprivate var json: JSONValue {
        var members: [JSONValue.Member] = []
        if let currency { members.append(.init("currency", .string(currency))) }
        members.append(.init("purchases", .integer(purchases)))
        if currency != nil { members.append(.init("paidMilliunits", .integer(paidMilliunits))) }
        members.append(.init("refundedPurchases", .integer(refundedPurchases)))
        if currency != nil { members.append(.init("refundedMilliunits", .integer(refundedMilliunits))) }
        return .object(members)
    }
}
