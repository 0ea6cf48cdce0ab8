package import Encoding
import Foundation
package import Ledger
package import Postgres
import Purchases
package import Settings

/// A page of the receipts that are held or parked, the oldest first, for support.
package struct WaitingList: Sendable {
    package let receipts: [WaitingReceipt]
    /// Where the next page begins; nil where nothing follows.
    package let next: ListCursor?
    private let users: [UserName: RevealedUser]

    /// - Parameter keys: open the ids of protected users; nil: ids are shown as in the tables.
    /// - Throws: the database's error, retryable as it says.
    package init(
        of question: Statements.WaitingQuestion, keys: UserKeys?, in database: Database
    ) async throws(PostgresError) {
        var question = question
        question.limit += 1
        let found = try await database.run(Statements.waitingReceipts, question)
        receipts = Array(found.prefix(question.limit - 1))
        next = found.count > receipts.count ? receipts.last?.place : nil
        let names = Set(receipts.compactMap(\.user))
        guard let keys, !names.isEmpty else {
            users = [:]
            return
        }
        users = UserRegister.reveal(try await database.run(Statements.registeredUsers, Array(names)), keys)
    }

    /// As JSON: `GET /v1/receipts/waiting` and `makegood support waiting --json`.
    package var json: JSONValue {
        var members: [JSONValue.Member] = [.init("receipts", .array(receipts.map(json)))]
        if let next { members.append(.init("next", .string(next.text))) }
        return .object(members)
    }

    /// A line for each receipt, for a terminal.
    package var lines: [String] {
        receipts.map { receipt in
            let purchases = receipt.purchases.map { purchase in
                purchase.transactionId + (purchase.productId.map { " (\($0))" } ?? "")
            }
            return [
                receipt.receivedAt.rfc3339, Self.text(receipt.age), receipt.id.text, receipt.appID,
                user(of: receipt) ?? "-",
                receipt.state.rawValue, receipt.reason ?? "-",
                purchases.isEmpty ? "-" : purchases.joined(separator: ", "),
            ].joined(separator: "  ")
        }
    }

    private func json(_ receipt: WaitingReceipt) -> JSONValue {
        let reason = receipt.reason.flatMap(Reason.init(rawValue:))
        var members: [JSONValue.Member] = [
            .init("id", .string(receipt.id.text)), .init("appId", .string(receipt.appID)),
        ]
        if let user = user(of: receipt) { members.append(.init("userId", .string(user))) }
        if let order = receipt.orderID { members.append(.init("orderId", .string(order))) }
        members.append(.init("state", .string(receipt.state.rawValue)))
        if let reason = receipt.reason { members.append(.init("reason", .string(reason))) }
        if let reason { members.append(.init("what", .string(reason.remedy))) }
        members += [
            .init("receivedAt", .string(receipt.receivedAt.rfc3339)),
            .init("ageSeconds", .integer(Int(receipt.age.components.seconds))),
            .init("attempts", .integer(receipt.attempt)),
        ]
        if let dueAt = receipt.dueAt { members.append(.init("nextAttemptAt", .string(dueAt.rfc3339))) }
        members += [
            .init("purchases", .array(receipt.purchases.map(Self.json))),
            .init("sentence", PlayerSentence(receipt.state, reason).json),
        ]
        return .object(members)
    }

    private static func json(_ purchase: WaitingReceipt.Purchase) -> JSONValue {
        var members: [JSONValue.Member] = [.init("transactionId", .string(purchase.transactionId))]
        if let product = purchase.productId { members.append(.init("productId", .string(product))) }
        if purchase.unverified == true { members.append(.init("unverified", .bool(true))) }
        return .object(members)
    }

    private func user(of receipt: WaitingReceipt) -> String? {
        guard let name = receipt.user else { return nil }
        if case .id(let id)? = users[name] { return id }
        return name.key
    }

    /// In the largest unit that fits, rounded down: `3 d`.
    private static func text(_ age: Duration) -> String {
        let seconds = Int(age.components.seconds)
        for (unit, length) in [("d", 86_400), ("h", 3600), ("min", 60)] where seconds >= length {
            return "\(seconds / length) \(unit)"
        }
        return "\(seconds) s"
    }
}

extension WaitingReceipt {
    fileprivate var user: UserName? { userID.map { UserName(appID: appID, key: $0) } }
}
