import Encoding
import Foundation
package import Postgres
import Purchases

extension Database {
    /// `makegood support own`: decides the owner of a subscription or non-consumable, in one transaction, and returns
    /// the owner until now. Nil: nothing of the kind was granted under this id, or another person decides at this
    /// moment. If the owner changes, both users are told.
    ///
    /// Apple is told by a token that leads to the new owner (``Statements/tokenOfUser``), or else by a token that is
    /// issued now.
    package func decideOwner(_ decision: Statements.OwnerDecision) async throws(PostgresError) -> String? {
        try await transact("repair.own") { transaction throws(PostgresError) in
            try OwnerDecisionTransaction(decision, in: transaction).run()
        }
    }
}

/// The two rounds in which an owner is decided.
struct OwnerDecisionTransaction {
    private let decision: Statements.OwnerDecision
    private let transaction: DatabaseTransaction

    init(_ decision: Statements.OwnerDecision, in transaction: DatabaseTransaction) {
        self.decision = decision
        self.transaction = transaction
    }

    /// Runs the rounds, and commits what is decided.
    func run() throws(PostgresError) -> String? {
        let user = UserName(appID: decision.appID, key: decision.userID)
        let decided = transaction.queue(Statements.decideOwner, decision)
        let ids = transaction.queue(Statements.idsOfPerson, user)
        let token = decision.isWrittenBack ? transaction.queue(Statements.tokenOfUser, user) : nil
        try transaction.exchange()

        guard let grant = decided.rows.first else { return nil }
        if grant.purchase.moves(to: decision.userID) {
            transaction.queue(Statements.writeEvents, events(of: grant))
        }
        if decision.isWrittenBack, grant.purchase.needsToken(of: ids.rows) {
            writeToken(token?.rows.first, of: grant)
        }
        let details = JSONValue.object([
            .init("app", .string(decision.appID)), .init("transaction", .string(decision.transactionID)),
        ])
        transaction.queue(
            Statements.audit, .init(actor: decision.actor, action: "support.own", details: details.text))
        transaction.queue(Statements.judgeClaims, decision)
        try transaction.commit()
        return grant.purchase.holderID
    }

    /// - Parameter known: leads to the new owner. Nil: one is issued.
    private func writeToken(_ known: UUID?, of grant: Statements.DecidedGrant) {
        let token = known ?? UUID()
        if known == nil {
            transaction.queue(
                Statements.issueToken, .init(appID: decision.appID, userID: decision.userID, token: token))
        }
        guard token != grant.purchase.token else { return }
        transaction.queue(
            Statements.writeOwnersToken, .init(decision: decision, grant: grant, token: token))
    }

    private func events(of grant: Statements.DecidedGrant) -> [SettledEvent] {
        let body = JSONValue.object([
            .init("productId", .string(grant.productID)), .init("originalTransactionId", .string(grant.originalID)),
            .init("bindingSource", .string(BindingSource.support.rawValue)),
        ])
        return [(EventType.ownershipLost, grant.purchase.holderID), (.ownershipGained, decision.userID)].map {
            type, userID in
            SettledEvent(
                id: DerivedID.event(
                    appID: decision.appID, transactionID: decision.transactionID, type: type,
                    distinction: ".\(decision.id)"),
                appID: decision.appID, type: type, userID: userID,
                transactionID: decision.transactionID, receiptID: grant.receiptID, body: body.text)
        }
    }
}
