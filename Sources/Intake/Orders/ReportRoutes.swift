import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import Metrics
import Purchases
package import Service
package import Settings

/// `POST /v1/orders/{id}/reports` and `POST /v1/client-reports`: errors that an app saw (S0-20).
///
/// Ingest stores a report and closes nothing: Apple reports failures of purchases that were paid (P3, S4-21).
package struct ReportRoutes: Sendable {
    private static let retryAfterSeconds = 3600

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let users: UserRegister
    private let bodies: BodyReader

    package init(ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator, bodies: BodyReader) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        users = UserRegister(ledger: ledger)
        self.bodies = bodies
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/orders/:id/reports", [.post: Endpoint { try await postOfOrder($0, $1) }])
        router.serve("/v1/client-reports", [.post: Endpoint { try await post($0, $1) }])
    }

    private func postOfOrder(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)),
            let order = try await ledger.order(id)
        else { throw Problem.notFound }
        guard
            try await caller.mayRead(
                appID: order.appID, userID: order.userID, configuration.current.userKeys, ledger)
        else { throw Problem.notYours }
        let fields = try await fields(request, context, from: caller)
        // The path names the order and its user; the body's fields for these are not used.
        let owner = try await clearUser(of: order)
        let report = try report(
            fields, appID: order.appID, clearUserID: owner ?? caller.userID, userID: order.userID, orderID: id)
        return try await store(report, fields)
    }

    private func post(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let fields = try await fields(request, context, from: caller)
        let configuration = configuration.current
        let appID = try caller.app(fields.appID, of: configuration.appIDs)
        let userID = try caller.user(fields.userID, orNobody: configuration.placeholders)
        let key = userID.map { configuration.userKeys?.key(of: $0, app: appID) ?? $0 }
        let orderID = fields.orderID.map { number in
            OrderID.named(
                configuration.userKeys?.protecting(message: number, of: userID, app: appID) ?? number, of: appID)
        }
        var owner = userID
        if owner == nil, configuration.userKeys != nil, let orderID, let order = try await ledger.order(orderID),
            order.appID == appID
        {
            owner = try await clearUser(of: order)
        }
        let report = try report(fields, appID: appID, clearUserID: owner, userID: key, orderID: orderID)
        if let keys = configuration.userKeys, let userID, let key {
            try await users.enter(userID, key: key, app: appID, keys)
        }
        return try await store(report, fields)
    }

    /// The user who placed an order, where the tables hold keys: the report stores no id, even if that user sends it.
    private func clearUser(of order: OrderView) async throws -> String? {
        guard let keys = configuration.current.userKeys else { return nil }
        let name = UserName(appID: order.appID, key: order.userID)
        guard case .id(let id)? = try await users.reveal([name], keys)[name] else { return nil }
        return id
    }

    private func fields(
        _ request: Request, _ context: HTTPContext, from caller: Caller
    ) async throws -> IntakeFields {
        try await bodies.withBody(of: request, context, from: caller) { try IntakeFields(body: $0, of: .report) }
    }

    private func report(
        _ fields: IntakeFields, appID: String, clearUserID: String?, userID: String?, orderID: UUID?
    ) throws(Problem) -> ClientReport {
        guard let kind = fields.kind.flatMap(ClientReport.Kind.init(rawValue:)) else {
            let kinds = ClientReport.Kind.allCases.map(\.rawValue).joined(separator: ", ")
            throw .incomplete(.kind, "must be one of \(kinds)", field: "kind")
        }
        let keys = configuration.current.userKeys
        return ClientReport(
            appID: appID, userID: userID, orderID: orderID, transactionID: fields.transactionID, kind: kind,
            message: keys?.protecting(message: fields.message, of: clearUserID, app: appID) ?? fields.message,
            appVersion: fields.appVersion,
            details: keys?.protecting(fields.details, of: clearUserID, app: appID) ?? fields.details)
    }

    /// Answers 201 for a new report, 200 for one that was sent before.
    private func store(_ report: ClientReport, _ fields: IntakeFields) async throws -> Response {
        guard let stored = try await ledger.run(Statements.storeReport, report).first else {
            throw Problem(
                .tooManyRequests, .tooManyReports,
                """
                \(Statements.reportsPerUserMax) reports of this user came within a day, or \(Statements.reportsOfNobodyMax) \
                that name no user
                """,
                limit: .userReports, headers: [.retryAfter: String(Self.retryAfterSeconds)])
        }
        if stored.isNew {
            Counter(label: "makegood_client_reports_total", dimensions: [("kind", report.kind.rawValue)]).increment()
        }
        var members: [JSONValue.Member] = [
            .init("id", .string(report.id.text)), .init("kind", .string(report.kind.rawValue)),
        ]
        if let orderID = stored.orderID { members.append(.init("orderId", .string(orderID.text))) }
        // A person looks at the report; nothing else happens.
        if report.kind == .paidWithoutProof { members.append(.init("isHeld", .bool(true))) }
        if !fields.unknown.isEmpty {
            members.append(.init("ignored", .array(fields.unknown.map(JSONValue.string))))
        }
        return Response(json: .object(members), status: stored.isNew ? .created : .ok)
    }
}
