import Encoding
import Foundation
import Hummingbird
package import Ledger
import Purchases
package import Service
import Settings

/// `POST /v1/grants/{transactionId}/consumption {"percentage": 40}` or `{"units": 2400}`, with `at` where the report
/// was made earlier: how much of a granted purchase its user has used, as the app's backend reports it (B11).
///
/// The report with the newest `at` counts when Apple asks about a refund. A report that comes after the refund is
/// recorded too.
package struct ConsumptionRoutes: Sendable {
    /// How far ahead the clock of the app's backend may be.
    private static let aheadMax: TimeInterval = 300
    private static let idBytesMax = 64

    private let ledger: Ledger
    private let authenticator: Authenticator
    private let bodies: BodyReader

    package init(ledger: Ledger, authenticator: Authenticator, bodies: BodyReader) {
        self.ledger = ledger
        self.authenticator = authenticator
        self.bodies = bodies
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/grants/:id/consumption", [.post: Endpoint { try await report($0, $1) }])
    }

    private enum Used: Equatable {
        /// In thousandths of a percent.
        case percentage(Int)
        case units(Int)

        var units: Int? {
            if case .units(let count) = self { count } else { nil }
        }
    }

    private struct Report {
        let used: Used
        let at: Date?
        let body: ClosedBody
    }

    /// Answers 200, even if the same was reported before; `isRefunded` says that Apple has given money back. Answers
    /// 404 for a purchase of another app, one that nobody was granted, and one that another customer shares.
    private func report(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        guard caller.userID == nil else { throw Problem.missingScope(.events) }
        let report = try await bodies.withBody(of: request, context, from: caller) { try Self.read($0) }
        guard let id = context.parameters.get("id")?.percentDecoded, !id.utf8.contains(0),
            id.utf8.count <= Self.idBytesMax,
            let purchase = try await ledger.run(Statements.consumedPurchase, id).first,
            caller.apps.contains(purchase.appID)
        else { throw Problem.notFound }
        guard !purchase.isShared else {
            throw Problem(.notFound, .sharedPurchase, "another customer bought it and shares it")
        }
        guard let granted = purchase.transactionID else {
            throw Problem(.notFound, .notGranted, "nobody was granted it")
        }
        let percentage = try Self.percentage(report.used, purchase)
        let stored = try await ledger.run(
            Statements.reportConsumption,
            .init(
                transactionID: granted, appID: purchase.appID, percentage: percentage, units: report.used.units,
                at: report.at)
        ).first
        guard let stored else { throw Problem.unavailable() }
        return Response(
            json: .object(
                [
                    .init("transactionId", .string(granted)),
                    .init("percentage", Self.percent(percentage)),
                    .init("at", .string(stored.at.rfc3339)), .init("isRepeated", .bool(stored.isRepeated)),
                    .init("isRefunded", .bool(purchase.isRefunded)),
                ] + report.body.ignoredMember))
    }

    // MARK: The body

    private static func read(_ bytes: [UInt8]) throws(Problem) -> Report {
        let body = try ClosedBody(bytes, members: ["percentage", "units", "at"])
        let used: Used
        switch (body["percentage"], body["units"]) {
        case (let percentage?, nil):
            guard case .number(let text) = percentage, let value = Double(text), (0...100).contains(value) else {
                throw .wrongType("percentage", "a number from 0 to 100")
            }
            used = .percentage(Int((value * 1000).rounded()))
        case (nil, let units?):
            guard let count = units.wholeNumber.flatMap({ Int($0) }), count >= 0 else {
                throw .wrongType("units", "a whole number from 0 to what was granted")
            }
            used = .units(count)
        default: throw .wrongType("percentage", "there, or units, and not both")
        }
        guard let at = body["at"] else { return Report(used: used, at: nil, body: body) }
        guard case .string(let text) = at, let date = Date(rfc3339: text), date.timeIntervalSinceNow <= aheadMax else {
            throw .wrongType("at", "a time that has come, such as 2026-11-30T12:00:00Z")
        }
        return Report(used: used, at: date, body: body)
    }

    /// The share in thousandths of a percent, rounded down, so that a purchase that is not quite used up has less than
    /// everything.
    private static func percentage(
        _ used: Used, _ purchase: Statements.ConsumedPurchase
    ) throws(Problem) -> Int {
        switch used {
        case .percentage(let percentage): return percentage
        case .units(let units):
            guard units <= purchase.units else {
                throw .wrongType("units", "at most \(purchase.units), which were granted")
            }
            guard purchase.units > 0 else { return 0 }
            let (high, low) = units.multipliedFullWidth(by: Revocation.whole)
            return purchase.units.dividingFullWidth((high, low)).quotient
        }
    }

    /// Thousandths of a percent as percent.
    private static func percent(_ thousandths: Int) -> JSONValue {
        let (whole, rest) = thousandths.quotientAndRemainder(dividingBy: 1000)
        guard rest > 0 else { return .integer(whole) }
        var digits = String(rest)
        while digits.count < 3 { digits = "0" + digits }
        while digits.hasSuffix("0") { digits.removeLast() }
        return .number("\(whole).\(digits)")
    }
}
