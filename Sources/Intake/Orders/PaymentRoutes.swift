import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import Metrics
import Purchases
package import Service
package import Settings

/// `POST /v1/orders/{id}/payment`: what the service of another way of payment than Apple's reports of its order (S3-70).
///
/// Makegood verifies nothing here: the key with the scope `orders` speaks for the other service. A user's own token
/// speaks for no service, whatever its scopes say, or each user could pay by a report. An order of Apple's ends by its
/// purchase alone.
package struct PaymentRoutes: Sendable {
    private static let referenceBytesMax = 128

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
        router.serve("/v1/orders/:id/payment", [.post: Endpoint { try await report($0, $1) }])
    }

    /// Answers 200 with the order, even if the same state was reported before. Answers 409 for an order of Apple's, and
    /// for a state that does not follow from the order's.
    private func report(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.orders)
        guard caller.userID == nil else { throw Problem.missingScope(.orders) }
        let (ending, reference) = try await bodies.withBody(of: request, context, from: caller) { try Self.read($0) }
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)),
            let order = try await ledger.order(id),
            caller.mayRead(appID: order.appID, userID: order.userID, configuration.current.userKeys)
        else { throw Problem.notFound }
        guard !NewOrder.channelsOfApple.contains(order.channel.lowercased()) else {
            throw Problem.conflict(.orderOfApple, "an order of Apple's ends by its purchase")
        }
        let end = Statements.OrderEnd(order, ending, reference: reference)
        guard let word = try await ledger.run(Statements.endOrder, end).first else { throw Problem.unavailable() }
        switch word {
        case "ended":
            Counter(label: "makegood_orders_ended_total", dimensions: [("state", ending.rawValue)]).increment()
        case "known": break
        case "unknown": throw Problem.notFound
        default: throw Problem.conflict(.orderEnded, "the order is \(word)", field: "state")
        }
        let view = try await ledger.order(id) ?? order
        return Response(json: view.json(isRepeated: word == "known"))
    }

    private static func read(_ body: [UInt8]) throws(Problem) -> (OrderEnding, reference: String?) {
        let value: JSONValue
        do {
            value = try JSONValue(parsing: body)
        } catch {
            throw Problem(error)
        }
        guard case .object = value else { throw .malformed(.notJSON, "the body must be a JSON object", field: nil) }
        try value.refuseDuplicates(of: ["state", "reference"])
        guard case .string(let word)? = value["state"], let ending = OrderEnding(rawValue: word) else {
            let words = OrderEnding.allCases.map(\.rawValue).joined(separator: ", ")
            throw .incomplete(.kind, "must be one of \(words)", field: "state")
        }
        switch value["reference"] {
        case nil, .null?, .string("")?: return (ending, nil)
        case .string(let text)?:
            guard text.utf8.count <= referenceBytesMax else {
                throw .tooLong("reference", bytesMax: referenceBytesMax)
            }
            return (ending, text)
        default: throw .wrongType("reference", "a string")
        }
    }
}
