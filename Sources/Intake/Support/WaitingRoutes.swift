import Encoding
import Foundation
import Hummingbird
import Ledger
import Postgres
import Purchases
package import Service
package import Settings
import Support

/// `GET /v1/receipts/waiting?state=&reason=&appId=&limit=&after=`: the receipts that are held or parked, the oldest first,
/// with their users, reasons and ages. For keys with the scope `support`.
package struct WaitingRoutes: Sendable {
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
            "/v1/receipts/waiting",
            [.get: Endpoint("appId", "state", "reason", "after", "limit") { try await get($0, $1) }])
    }

    private func get(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.support)
        let configuration = configuration.current
        let question = Statements.WaitingQuestion(
            apps: try caller.apps(request.parameter("appId"), of: configuration.appIDs), state: try Self.state(request),
            reason: try Self.reason(request), after: try request.cursor() ?? .oldest,
            limit: try request.limit(Self.limitDefault, max: Self.limitMax))
        let list = try await lists.read(of: nil, context.channel) { database throws(PostgresError) in
            try await WaitingList(of: question, keys: configuration.userKeys, in: database)
        }
        return Response(json: list.json)
    }

    private static func state(_ request: Request) throws(Problem) -> ReceiptState? {
        guard let text = request.parameter("state") else { return nil }
        guard let state = ReceiptState(rawValue: text), [.held, .parked].contains(state) else {
            throw .badParameter("state", "held or parked")
        }
        return state
    }

    /// A reason that this version does not know may be that of a newer one.
    private static func reason(_ request: Request) throws(Problem) -> String? {
        guard let text = request.parameter("reason") else { return nil }
        let isWord = text.utf8.allSatisfy {
            $0 == UInt8(ascii: "_") || (UInt8(ascii: "a")...UInt8(ascii: "z")).contains($0)
        }
        guard isWord, (1...64).contains(text.utf8.count) else {
            throw .badParameter("reason", "a reason such as product_unknown")
        }
        return text
    }
}
