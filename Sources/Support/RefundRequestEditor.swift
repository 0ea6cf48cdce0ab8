import Encoding
import Foundation
package import Ledger
package import Postgres
package import Purchases

/// Support's editor of Apple's questions about refunds, until they are answered (B11).
package struct RefundRequestEditor: Sendable {
    package static let listMax = 500

    private let database: Database
    private let actor: String

    /// - Parameter actor: who edits, for the request and the audit.
    package init(database: Database, actor: String) {
        self.database = database
        self.actor = actor
    }

    /// The reason why an edit was not taken.
    package enum Refusal: Error, Equatable, CustomStringConvertible {
        case unknown
        /// The request was answered or has ended; nobody can change it any more.
        case ended(state: String, reason: String?)
        /// A worker answers it at this moment.
        case underWay
        /// Apple would not take the edited answer.
        case objection(String)
        case appUnknown(String)

        package var description: String {
            switch self {
            case .unknown: "Apple asked nothing under this id"
            case .ended("answered", _): "it was answered, and an answer that was sent cannot be changed"
            case .ended(_, let reason): "it has ended without an answer (\(reason ?? "unknown")) and cannot be changed"
            case .underWay:
                "a worker answers it at this moment, so nothing was changed: look again in a few minutes (show)"
            case .objection(let text): text
            case .appUnknown(let app): "the file names no app \(app)"
            }
        }
    }

    /// Apple's questions, the newest first, at most ``listMax``.
    ///
    /// - Parameter state: `open`, `answered` or `unanswered`; nil: all.
    package func list(app: String?, state: String?) async throws(PostgresError) -> [ListedRefundRequest] {
        try await database.run(Statements.searchRefundRequests, .init(appID: app, state: state, limit: Self.listMax))
    }

    /// The requests that an id leads to, the newest first: those of the case of a request's or a case's UUID, or those
    /// about one of Apple's transactions.
    package func requests(of id: String) async throws(PostgresError) -> [ListedRefundRequest] {
        var search = Statements.RefundSearch(limit: Self.listMax)
        if let uuid = UUID(uuidString: id) { search.id = uuid } else { search.transactionID = id }
        return try await database.run(Statements.searchRefundRequests, search)
    }

    /// What would become of a request if it were answered now.
    package func answer(
        to listed: ListedRefundRequest, by policy: AppPolicy
    ) async throws(PostgresError) -> (answer: RefundAnswer, facts: RefundFacts)? {
        guard let facts = try await database.run(Statements.refundFacts, .init(listed.request)).first else {
            return nil
        }
        return (policy.answer(to: listed.request, facts, edit: listed.edit, age: listed.age), facts)
    }

    /// Changes the answer to the newest request of a case. A value that the change leaves out stays as an earlier edit
    /// of the case has it.
    ///
    /// - Parameters:
    ///   - change: `withhold` and `sendNow` hold for this edit alone.
    ///   - policies: of all apps of the configuration.
    /// - Throws: ``Refusal``, and the database's own error.
    package func edit(
        _ id: String, _ change: RefundEdit, policies: [String: AppPolicy]
    ) async throws -> ListedRefundRequest {
        guard let listed = try await requests(of: id).first else { throw Refusal.unknown }
        guard listed.state == "open" else { throw Refusal.ended(state: listed.state, reason: listed.reason) }
        guard let policy = policies[listed.request.appID] else { throw Refusal.appUnknown(listed.request.appID) }
        guard let facts = try await database.run(Statements.refundFacts, .init(listed.request)).first else {
            throw Refusal.unknown
        }
        let edit = RefundEdit(
            delivery: change.delivery ?? listed.edit?.delivery,
            percentage: change.percentage ?? listed.edit?.percentage,
            preference: change.preference ?? listed.edit?.preference, withhold: change.withhold,
            sendNow: change.sendNow)
        if let objection = policy.objection(to: edit, facts) { throw Refusal.objection(objection) }
        let editing = Statements.RefundEditing(id: listed.request.notificationID, edit: edit, actor: actor)
        guard try await database.run(Statements.editRefundRequest, editing).first != nil else {
            let now = try await requests(of: listed.request.notificationID.text)
                .first { $0.request.notificationID == listed.request.notificationID }
            guard let now, now.state != "open" else { throw Refusal.underWay }
            throw Refusal.ended(state: now.state, reason: now.reason)
        }
        return try await requests(of: listed.request.notificationID.text).first ?? listed
    }
}
