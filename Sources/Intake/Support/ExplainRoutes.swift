import Foundation
import Hummingbird
package import Ledger
import Postgres
package import Service
package import Settings
import Support

/// `GET /v1/receipts/{id}/explain`, `/v1/transactions/{id}/explain?appId=`, `/v1/orders/{id}/explain`: the timeline of
/// one purchase, from stored rows.
///
/// A key with the scope `support` reads all of it, for its apps; Apple is then asked soon for the customer's history
/// (Sweeps). A gateway's token reads its user's own timelines, without other users and without anything internal. A
/// timeline that the caller may not read is 404, as if it did not exist. A transaction's id may have been posted in
/// several apps: `?appId=` names the one that is meant.
package struct ExplainRoutes: Sendable {
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let lists: ListReader
    private let ledger: Ledger

    package init(
        configuration: ConfigurationHolder, authenticator: Authenticator, lists: ListReader, ledger: Ledger
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        self.lists = lists
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/receipts/:id/explain",
            [.get: Endpoint { try await explain($0, $1, UUID(uuidString: Self.id($1)).map(TimelineSubject.receipt)) }])
        router.serve(
            "/v1/orders/:id/explain",
            [.get: Endpoint { try await explain($0, $1, UUID(uuidString: Self.id($1)).map(TimelineSubject.order)) }])
        router.serve(
            "/v1/transactions/:id/explain",
            [
                .get: Endpoint("appId") {
                    try await explain(
                        $0, $1, Self.id($1).percentDecoded.flatMap(TimelineSubject.init(transaction:)))
                }
            ])
    }

    private static func id(_ context: HTTPContext) -> String { context.parameters.get("id") ?? "" }

    private func explain(
        _ request: Request, _ context: HTTPContext, _ subject: TimelineSubject?
    ) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(caller.userID == nil ? .support : .intake)
        let keys = configuration.current.userKeys
        let apps = try caller.apps(request.parameter("appId"), of: configuration.current.appIDs)
        guard let subject else { throw Problem.notFound }
        let found = try await lists.read(of: caller.userID, context.channel) { database throws(PostgresError) in
            try await Explainer(database: database, keys: keys).timeline(
                of: subject, for: caller.reader(of: apps, keys))
        }
        guard let timeline = found else { throw Problem.notFound }
        if caller.userID == nil {
            // The answer needs nothing of this: Apple is asked later.
            _ = try? await ledger.run(
                Statements.wantLookedUp, (appID: timeline.appID, subject: timeline.subject))
        }
        return Response(json: timeline.json)
    }
}

extension Caller {
    /// The reader as whom this caller may see a timeline in these apps.
    fileprivate func reader(of apps: [String], _ keys: UserKeys?) -> TimelineReader {
        guard let userID else { return .support(apps: Set(apps)) }
        return .player(
            Dictionary(uniqueKeysWithValues: apps.map { ($0, keys?.key(of: userID, app: $0) ?? userID) }))
    }
}
