import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Orders of a ledger's lab, as rows.
extension LedgerLab {
    /// Places an order, `minutesBefore` the purchases of ``Verdict/Entry/purchase(_:of:kind:in:signedAt:_:_:)``.
    @discardableResult
    func place(
        _ userID: String, app: String = "game", product: String = "coins", minutesBefore: Double = 5,
        installation: String? = nil, reservedFor: String? = nil, goods: String? = nil, id: UUID = UUID()
    ) async throws -> UUID {
        let placedAt = LedgerLab.bought.addingTimeInterval(-minutesBefore * 60)
        if let installation { try await issue(installation, app: app) }
        try await database.run(
            Statement<Void, Void>(
                "test.place",
                """
                insert into orders (id, app_id, user_id, product_id, placed_at, pay_by, installation_id, reserved_for, goods)
                values ($1, $2, $3, $4, $5, $5 + interval '48 hours', $6, $7, $8)
                """,
                bind: {
                    [
                        .uuid(id), .text(app), .text(userID), .text(product), .date(placedAt), .text(installation),
                        .text(reservedFor), .json(goods),
                    ]
                }))
        return id
    }

    /// An installation that this server knows.
    func issue(_ installation: String, app: String = "game") async throws {
        try await run(
            "insert into installations (id, app_id) values ('\(installation)', '\(app)') on conflict do nothing")
    }

    static let bought = Date(timeIntervalSince1970: 1_800_000_000)

    func question(
        _ transaction: Transaction, by userID: String? = "u1", named: UUID? = nil, installation: String? = nil,
        record: String? = nil, app: String = "game", isOnTrust: Bool = false, isPosted: Bool = true,
        isOneOfSeveral: Bool = true
    ) -> EvidenceQuestion {
        EvidenceQuestion(
            appID: app, userID: userID, namedOrderID: named, installationID: installation, recordUserID: record,
            transaction: transaction,
            isOnTrust: isOnTrust, isPosted: isPosted, isOneOfSeveral: isOneOfSeveral)
    }

    func evidence(_ questions: EvidenceQuestion...) async throws -> [Evidence] {
        try await EvidenceQuestion.answers(to: questions, in: database)
    }

    /// A purchase that is granted by an order, matched by the evidence in the database.
    func matched(
        _ id: String, by userID: String, order: UUID, _ change: (inout Match) -> Void = { _ in }
    ) async throws -> Verdict.Entry {
        let purchase = Verdict.Entry.purchase(id)
        let found = try #require(
            try await evidence(question(purchase.transaction, by: userID, named: order))[0].orders.first {
                $0.id == order
            })
        var match = Match(userID: userID, source: .namedOrder, order: found, reasons: [.orderNamed])
        change(&match)
        return Verdict.Entry(
            transaction: purchase.transaction, decision: .grant(goods: Verdict.Entry.coins, source: match.source),
            match: match)
    }

    /// `order transaction user product` of each bound order, by transaction.
    func boundOrders() async throws -> [String] {
        try await texts(
            """
            select concat_ws(' ', id, transaction_id, user_id, product_id) from v_orders
            where transaction_id is not null order by transaction_id
            """)
    }
}
