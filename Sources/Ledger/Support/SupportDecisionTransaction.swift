import Encoding
import Foundation
package import Postgres
package import Purchases

extension Database {
    /// `makegood support give`: stores a decision about the owner of a purchase, and makes the receipts due that hold
    /// it, in one transaction. A worker then grants the purchase, as it grants all. Returns whether the decision is
    /// stored or why not, and why the purchase is held or rejected.
    ///
    /// - Parameter actor: the person who decides, for the audit.
    package func give(
        _ decision: Statements.SupportDecision, by actor: String
    ) async throws(PostgresError) -> SupportDecisionAnswer {
        try await transact("repair.give") { transaction throws(PostgresError) in
            var rounds = SupportDecisionTransaction(decision, by: actor, in: transaction)
            return try rounds.run()
        }
    }
}

/// The rounds in which a support decision is answered and stored. `decision` names the purchase by the id by which it is
/// given, once the receipts are read.
struct SupportDecisionTransaction {
    private var decision: Statements.SupportDecision
    private let actor: String
    private let transaction: DatabaseTransaction

    init(_ decision: Statements.SupportDecision, by actor: String, in transaction: DatabaseTransaction) {
        self.decision = decision
        self.actor = actor
        self.transaction = transaction
    }

    /// Runs the rounds, and commits what is decided.
    mutating func run() throws(PostgresError) -> SupportDecisionAnswer {
        // The receipts first: a purchase that is granted between the two statements is found to be granted.
        let showings = transaction.queue(Statements.readShowings, decision)
        try transaction.exchange()
        var undecided = UndecidedPurchase(showings: showings.rows.map(\.showing))
        decision.transactionID = undecided.idToGive(decision.transactionID)
        let purchase = transaction.queue(Statements.readPurchaseToGive, decision)
        let user = UserName(appID: decision.appID, key: decision.userID)
        let token = decision.isWrittenBack ? transaction.queue(Statements.tokenOfUser, user) : nil
        try transaction.exchange()

        guard let read = purchase.rows.first else {
            // The statement always returns one row.
            return undecided.answer(namesItem: decision.item != nil, canAsk: decision.canAsk)
        }
        undecided.isGrantOfApp = read.isGrantOfApp
        undecided.isImported = read.isImported
        undecided.isTakenBack = read.isTakenBack
        undecided.isShared = read.isShared
        undecided.isForStranger = read.isForStranger
        let answer = undecided.answer(namesItem: decision.item != nil, canAsk: decision.canAsk)
        guard answer.isDecided, !decision.isDryRun else { return answer }
        try write(
            to: read.receiverID, knownToken: token?.rows.first,
            due: showings.rows.filter(\.showing.waitsForPerson).map(\.id))
        return answer
    }

    /// - Parameters:
    ///   - knownToken: leads to the receiver. Nil: one is issued, if Apple is to be told.
    ///   - receipts: those that hold the purchase.
    private func write(to receiverID: String, knownToken: UUID?, due receipts: [UUID]) throws(PostgresError) {
        let issued = decision.isWrittenBack && knownToken == nil ? UUID() : nil
        transaction.queue(
            Statements.writeDecision,
            .init(decision: decision, receiverID: receiverID, token: knownToken ?? issued))
        if let issued {
            transaction.queue(
                Statements.issueToken, .init(appID: decision.appID, userID: receiverID, token: issued))
        }
        var details: [JSONValue.Member] = [
            .init("app", .string(decision.appID)), .init("transaction", .string(decision.transactionID)),
            .init("receiver", .string(receiverID)), .init("because", .string(decision.because)),
        ]
        if let item = decision.item { details.append(.init("item", .string(item))) }
        transaction.queue(
            Statements.audit, .init(actor: actor, action: "support.give", details: JSONValue.object(details).text))
        transaction.queue(Statements.judgeAgain, receipts)
        try transaction.commit()
    }
}
