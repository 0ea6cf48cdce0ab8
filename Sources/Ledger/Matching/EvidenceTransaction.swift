import Encoding
import Foundation
import Postgres
import Purchases

/// The two rounds in which questions are answered that the cheap statements leave open. The first finds whom a purchase
/// names in any way, the second what these users ordered. A statement that no question needs is not sent.
struct EvidenceTransaction {
    typealias Part = Statement<[EvidenceQuestion], EvidencePart>

    /// The statements of the first round, in the order in which their rows are read, each with the questions that it is
    /// for.
    static let firstRound: [(statement: Part, isFor: @Sendable (EvidenceQuestion) -> Bool)] = [
        (Statements.namedOrders, { $0.namesOrder || $0.isOnTrust }),
        (Statements.decisionsOfSupport, { _ in true }),
        (Statements.usersOfToken, { $0.transaction.appAccountToken != nil }),
        (Statements.ownersOfChains, { $0.transaction.isOfChain }),
        (Statements.purchasesBefore, { $0.transaction.isOfChain && !$0.isPosted }),
        (Statements.grantsOfChains, { $0.transaction.isOfChain }),
        (Statements.takenBackUnderAnotherID, { $0.transaction.isOfChain }),
        (Statements.purchasesWithSuccessor, { $0.endedAt != nil }),
        (Statements.purchasesStandingAgain, { $0.transaction.revokedAt != nil }),
        (Statements.usersOfRecord, { $0.recordUserID != nil }),
        (Statements.usersOfCustomer, { $0.customerID != nil }),
        (Statements.postsOfPurchases, { !$0.isPosted }),
        (Statements.areGranted, { $0.isOneOfSeveral && $0.namedOrderID != nil }),
    ]

    private let questions: [EvidenceQuestion]
    private let transaction: DatabaseTransaction

    init(_ questions: [EvidenceQuestion], in transaction: DatabaseTransaction) {
        self.questions = questions
        self.transaction = transaction
    }

    /// The evidence for each question, in order. Runs the rounds and ends the transaction.
    func run() throws(PostgresError) -> [Evidence] {
        var searches = questions.map { EvidenceSearch(for: $0.transaction, by: $0.userID) }
        let first = Self.firstRound.map { part in
            ask(part.statement, of: questions.indices.filter { part.isFor(questions[$0]) })
        }
        try transaction.exchange()
        for asked in first { asked.report(to: &searches) }

        let open = questions.indices.filter { !searches[$0].endsWithToken }
        let onInstallation = open.filter { questions[$0].installationID != nil }
        let withForeignToken = open.filter {
            questions[$0].transaction.appAccountToken != nil && questions[$0].userID != nil
                && searches[$0].found.registeredUserID == nil
        }
        let users = open.flatMap { place in searches[place].users.map { (place: place, userID: $0) } }
        let second = [
            ask(
                Statements.ordersOfUsers,
                users.map { UserOfQuestion(question: questions[$0.place], userID: $0.userID) }, for: users.map(\.place)),
            ask(Statements.ordersNearby, of: onInstallation),
            ask(Statements.provenInstallations, of: onInstallation),
            ask(Statements.postersWithToken, of: withForeignToken),
        ]
        try transaction.commit()
        for asked in second { asked.report(to: &searches) }
        return searches.map(\.result)
    }

    private func ask(_ statement: Part, of places: [Int]) -> Asked {
        ask(statement, places.map { questions[$0] }, for: places)
    }

    private func ask<Element>(
        _ statement: Statement<[Element], EvidencePart>, _ elements: [Element], for places: [Int]
    ) -> Asked {
        Asked(reply: elements.isEmpty ? nil : transaction.queue(statement, elements), places: places)
    }

    /// A statement of a round, and the question that each of its elements is about.
    private struct Asked {
        /// Nil: not sent.
        let reply: DatabaseTransaction.Reply<EvidencePart>?
        let places: [Int]

        func report(to searches: inout [EvidenceSearch]) {
            for part in reply?.rows ?? [] { part.report(&searches[places[part.element]]) }
        }
    }
}

/// What one row says of one question.
struct EvidencePart: Sendable {
    /// The index, from 0, of the element that the statement was asked about.
    let element: Int
    let report: @Sendable (inout EvidenceSearch) -> Void

    init(of element: Int, _ report: @escaping @Sendable (inout EvidenceSearch) -> Void) {
        self.element = element
        self.report = report
    }
}

/// A user who may be the owner of a question's purchase.
struct UserOfQuestion: Sendable {
    let question: EvidenceQuestion
    let userID: String
}

extension EvidenceQuestion {
    fileprivate var namesOrder: Bool { transaction.appAccountToken != nil || namedOrderID != nil }
    /// When a purchase ended that another product of its chain may have replaced.
    var endedAt: Date? { transaction.mayHaveSuccessor ? transaction.revokedAt : nil }
    /// The Apple customer, where nobody posted the purchase.
    var customerID: String? { isPosted ? nil : transaction.customerID }
}

/// The columns of a question, by the names that the statements read them under.
extension Column<EvidenceQuestion> {
    static var app: Self { .text("app") { $0.appID } }
    static var poster: Self { .text("usr") { $0.userID } }
    static var installation: Self { .text("installation") { $0.installationID } }
    static var id: Self { .text("id") { $0.transaction.id } }
    static var idBehindEnvironment: Self { .text("apart_id") { $0.transaction.idBehindEnvironment } }
    static var purchaseKey: Self { .text("purchase_key") { $0.transaction.keyOfItsIDs } }
    static var environment: Self { .text("environment") { $0.transaction.environment } }
    static var original: Self { .text("original") { $0.transaction.originalID } }
    static var previous: Self { .text("previous") { $0.transaction.previousOriginalID } }
    static var product: Self { .text("product") { $0.transaction.productID } }
    static var purchasedAt: Self { .date("purchased_at") { $0.transaction.purchasedAt } }
    static var expiresAt: Self { .date("expires_at") { $0.transaction.expiresAt } }
    /// A text, because batches have no column for a UUID that may be missing.
    static var token: Self { .text("token_text") { $0.transaction.appAccountToken?.text } }
    static var isOfChain: Self { .bool("is_chain") { $0.transaction.isOfChain } }
    static var isPeriod: Self { .bool("is_period") { $0.transaction.isPeriod } }
}
