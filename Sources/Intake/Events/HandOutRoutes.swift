import Encoding
import Foundation
import Hummingbird
package import Ledger
import Metrics
import Purchases
package import Service
package import Settings

/// `POST /v1/events/{id}/handled {"transactionId": …, "outcome": "handed_out"}`: what the app's backend did with the
/// goods of an event (S0-23).
///
/// The body names the event's transaction, or the order of an event of an order: events are found by these, because an
/// index by their ids alone would cost each grant a page. The same report may be sent again.
package struct HandOutRoutes: Sendable {
    private static let idBytesMax = 256

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
        router.serve("/v1/events/:id/handled", [.post: Endpoint { try await report($0, $1) }])
    }

    /// Answers 200, even if the same was reported before. Answers 404 for an event of another app, 409 for an outcome
    /// that contradicts the stored one, and 422 for an event whose goods do not go this way.
    private func report(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        // A user's own token speaks for no backend, whatever its scopes say.
        guard caller.userID == nil else { throw Problem.missingScope(.events) }
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)) else {
            throw Problem.badParameter("id", "the id of an event, a UUID")
        }
        let (subject, handOut, body) = try await bodies.withBody(of: request, context, from: caller) {
            try Self.read($0)
        }
        let apps = try caller.apps(nil, of: configuration.current.appIDs)
        let report = HandOutReport(apps: apps, transactionID: subject.id, eventID: id, handOut)
        guard let stored = try await ledger.run(Statements.handleEvent, report).first else {
            throw Problem.unavailable()
        }
        switch stored.word {
        case .unknown:
            throw Problem(.notFound, .notFound, "no such event of this \(subject.kind)", field: subject.field)
        case .noGoods: throw Problem.incomplete(.noGoods, "is an event without goods", field: "id")
        case .otherWay:
            throw Problem.incomplete(
                .contradiction,
                handOut.outcome == .takenBack
                    ? "taken_back is for events that take goods back"
                    : "must be taken_back: the event takes goods back",
                field: "outcome")
        case .conflict:
            throw Problem(
                .conflict, .otherOutcome, "another outcome was reported before, which stays", field: "outcome",
                stored: stored.outcome)
        case .stored:
            Counter(label: "makegood_hand_outs_total", dimensions: [("outcome", handOut.outcome.rawValue)]).increment()
        case .repeated: break
        }
        var members: [JSONValue.Member] = [
            .init("eventId", .string(id.text)), .init(subject.field, .string(subject.id)),
            .init("outcome", .string(stored.outcome ?? handOut.outcome.rawValue)),
        ]
        if let at = stored.at { members.append(.init("at", .string(at.rfc3339))) }
        members += [
            .init("isRepeated", .bool(stored.word == .repeated)), .init("failures", .integer(stored.failures)),
        ]
        return Response(json: .object(members + body.ignoredMember))
    }

    /// What an event is about, as the event names it.
    private struct Subject {
        let field: String
        let id: String

        var kind: String { field == "orderId" ? "order" : "transaction" }
    }

    private static func read(_ bytes: [UInt8]) throws(Problem) -> (Subject, HandOut, ClosedBody) {
        let body = try ClosedBody(bytes, members: HandOut.members + ["transactionId", "orderId"])
        let subject: Subject
        switch (body["transactionId"], body["orderId"]) {
        case (.string(let id)?, nil) where (1...idBytesMax).contains(id.utf8.count):
            subject = Subject(field: "transactionId", id: id)
        case (nil, .string(let text)?):
            guard let id = UUID(uuidString: text) else { throw .wrongType("orderId", "a UUID") }
            subject = Subject(field: "orderId", id: id.text)
        case (nil, _?): throw .wrongType("orderId", "a UUID")
        case (_?, _?): throw .wrongType("orderId", "left out beside transactionId")
        default:
            throw .wrongType("transactionId", "the event's transactionId; of an event of an order, orderId instead")
        }
        do throws(HandOut.Invalid) {
            return (subject, try HandOut(body.value), body)
        } catch {
            throw .wrongType(error.field, error.wanted)
        }
    }
}
