import Encoding
package import Foundation
package import Postgres
package import Purchases

/// The question who owns a purchase, for one purchase of one receipt.
package struct EvidenceQuestion: Sendable {
    package let appID: String
    /// The poster.
    package let userID: String?
    package let namedOrderID: UUID?
    /// The installation of the token that the submission carries; never a client's text.
    package let installationID: String?
    /// The user whom the posted record names, where that is not the poster.
    package let recordUserID: String?
    package let transaction: Transaction
    /// Whether this receipt may have been given the purchase on trust: then the order that the purchase has bound must
    /// be found again.
    package let isOnTrust: Bool
    /// False: nobody posted it, so the evidence includes the users of its Apple customer.
    package let isPosted: Bool
    /// Whether the receipt has other purchases. Then a named order may belong to one of them, and the answer must say
    /// whether this purchase is granted.
    package let isOneOfSeveral: Bool
    /// The kind of its product by the configuration, where Apple does not say it.
    package let kind: Transaction.Kind?

    package init(
        appID: String, userID: String?, namedOrderID: UUID?, installationID: String?, recordUserID: String? = nil,
        transaction: Transaction, isOnTrust: Bool = false, isPosted: Bool = true, isOneOfSeveral: Bool = false,
        soldAs kind: Transaction.Kind? = nil
    ) {
        self.appID = appID
        self.userID = userID
        self.namedOrderID = namedOrderID
        self.installationID = installationID
        self.recordUserID = recordUserID
        self.transaction = transaction
        self.isOnTrust = isOnTrust
        self.isPosted = isPosted
        self.isOneOfSeveral = isOneOfSeveral
        self.kind = kind
    }
}

extension EvidenceQuestion {
    /// Whether a user posted the purchase, and no chain, no earlier grant and no newer facts can answer.
    private var isPlain: Bool {
        !transaction.isOfChain && !isOnTrust && isPosted && transaction.revokedAt == nil
    }

    /// Whether the order of its token may be the only answer: its token may be an order, and no other order is named.
    /// If that order is unbound, row 2 of Ownership decides by it alone.
    private var mayEndWithToken: Bool {
        guard let token = transaction.appAccountToken else { return false }
        return isPlain && !isOneOfSeveral && (namedOrderID == nil || namedOrderID == token)
    }

    /// Whether there may be no answer: it has no token and no named order, so only an open order or a support decision
    /// may answer.
    private var mayHaveNone: Bool {
        isPlain && transaction.appAccountToken == nil && namedOrderID == nil && recordUserID == nil
    }

    /// The evidence for each question, in order. The cheap statements come first: for the order of the token, and for
    /// questions without any evidence. Only the rest are asked for everything that could answer.
    package static func answers(
        to questions: [EvidenceQuestion], in database: Database
    ) async throws(PostgresError) -> [Evidence] {
        var answers = Array(repeating: Evidence?.none, count: questions.count)
        let short = questions.indices.filter { questions[$0].mayEndWithToken }
        if !short.isEmpty {
            for row in try await database.run(Statements.orderOfToken, short.map { questions[$0] }) {
                answers[short[row.question]] = row.evidence
            }
        }
        let tokenless = questions.indices.filter { questions[$0].mayHaveNone }
        if !tokenless.isEmpty {
            let known = Set(try await database.run(Statements.hasEvidence, tokenless.map { questions[$0] }))
            for (place, index) in tokenless.enumerated() where !known.contains(place) { answers[index] = Evidence.none }
        }
        let open = questions.indices.filter { answers[$0] == nil }
        if !open.isEmpty {
            let found = try await fullAnswers(to: open.map { questions[$0] }, in: database)
            for (index, evidence) in zip(open, found) { answers[index] = evidence }
        }
        return answers.map { $0 ?? .none }
    }

    /// The evidence for each question, in order, without the cheap statements: one snapshot for all questions.
    package static func fullAnswers(
        to questions: [EvidenceQuestion], in database: Database
    ) async throws(PostgresError) -> [Evidence] {
        try await database.transact("matching.evidence", isSnapshot: true) { transaction throws(PostgresError) in
            try EvidenceTransaction(questions, in: transaction).run()
        }
    }
}
