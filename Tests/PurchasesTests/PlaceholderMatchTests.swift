import Foundation
import Testing

@testable import Purchases

/// Goal: a post that names a placeholder owns nothing (F9), and proof names the owner all the same. Method: each row
/// of Ownership, judged for a poster whom nobody names.
@Suite struct PlaceholderMatchTests {
    private static func judged(
        possession: Bool = true, placeholder: Bool = true, userID: String? = nil,
        _ change: (inout Transaction, inout Evidence) -> Void = { _, _ in }
    ) -> Verdict.Entry {
        var evidence = Evidence()
        var transaction = DecisionTests.transaction { $0.showsToken = true }
        change(&transaction, &evidence)
        let claim = Claim(
            userID: userID, hasPossession: possession, receivedAt: DecisionTests.received,
            declared: Declaration(isOfPlaceholder: placeholder ? true : nil))
        return DecisionTests.policy().judge(transaction, claim: claim, evidence: evidence)
    }

    @Test("F9: what is nobody's is held for the user's own post, and its app keeps it")
    func held() {
        let nobody = Self.judged()
        #expect(nobody.decision == .held(.userPlaceholder) && nobody.match == nil)
        #expect(Self.judged(placeholder: false).decision == .held(.orderUnknown), "an unknown order is another thing")
        #expect(Self.judged(possession: false).decision == .held(.possessionMissing), "a bare id learns nothing more")
        #expect(Self.judged(userID: "me").match?.userID == "me", "the order that the post names has named the user")
        let shared = Self.judged { transaction, _ in transaction.ownership = "FAMILY_SHARED" }
        #expect(shared.decision == .held(.userPlaceholder))
        let reason = Reason.userPlaceholder
        #expect(reason.isSettledByAnotherPost && !reason.holdsFacts && !reason.waitsForConfiguration)
        #expect(Reason.givenByPerson.contains(reason))
        #expect(!SafeToFinish.judge(state: "held", reason: reason.rawValue, hasFacts: true))
    }

    @Test("F9: an order, a token, a chain or an installation names the owner")
    func proof() {
        let order = MatcherTableTests.order("owner", 5, product: "coins")
        let byOrder = Self.judged { transaction, evidence in
            transaction.appAccountToken = order.id
            evidence.orders = [order]
        }
        #expect(byOrder.match?.userID == "owner" && byOrder.match?.source == .orderToken)
        let byToken = Self.judged { transaction, evidence in
            transaction.appAccountToken = UUID()
            evidence.registeredUserID = "owner"
        }
        #expect(byToken.match?.userID == "owner" && byToken.match?.source == .userToken)
        let byChain = Self.judged { transaction, evidence in
            (transaction.productID, transaction.kind, transaction.originalID) = ("sword", .nonConsumable, "first")
            evidence.chain = .init(userID: "owner")
        }
        #expect(byChain.match?.userID == "owner" && byChain.match?.source == .chain)
        let byDevice = Self.judged { _, evidence in
            var order = order
            order.isOnProvenInstallation = true
            evidence.orders = [order]
        }
        #expect(byDevice.match?.userID == "owner" && byDevice.match?.source == .orderOfAnother)
    }

    @Test("F9: a claim names nobody: an open order, an order that is named, a token that was only used")
    func claims() {
        let order = MatcherTableTests.order("owner", 5, product: "coins")
        let claims: [(inout Transaction, inout Evidence) -> Void] = [
            { _, evidence in evidence.orders = [order] },
            { _, evidence in
                evidence.orders = [order]
                evidence.namedOrderID = order.id
            },
            { transaction, evidence in
                transaction.appAccountToken = UUID()
                evidence.rememberedUserIDs = ["owner"]
            },
        ]
        for claim in claims {
            let entry = Self.judged(claim)
            #expect(entry.decision == .held(.userPlaceholder) && entry.rival == nil, "nobody is told of a dispute")
        }
    }

    @Test("F9: of several purchases each waits for the user's own post, not only the one that the post means")
    func several() {
        let (meant, other) = (DecisionTests.transaction(), DecisionTests.transaction { $0.id = "1001" })
        let used = DecisionTests.transaction {
            $0.id = "1002"
            $0.appAccountToken = UUID()
        }
        var remembered = Evidence()
        remembered.rememberedUserIDs = ["owner"]
        let judge = Judge(
            policy: DecisionTests.policy(),
            claim: Claim(
                userID: nil, hasPossession: true, receivedAt: DecisionTests.received,
                declared: Declaration(isOfPlaceholder: true)),
            evidence: [used.id: remembered], meantID: meant.id)
        for entry in judge.judge([meant, other, used]) {
            #expect(entry.decision == .held(.userPlaceholder) && entry.rival == nil, "\(entry.transaction.id)")
        }
    }

    @Test("F9: who has it already is no news to anybody, and the app keeps its copy for a day")
    func granted() {
        let transaction = DecisionTests.transaction()
        for (source, isProof) in [(BindingSource.poster, false), (.userToken, true)] {
            let verdict = Verdict(
                receiptID: UUID(), attempt: 0, appID: "game",
                claim: Claim(
                    userID: nil, hasPossession: true, receivedAt: DecisionTests.received,
                    declared: Declaration(isOfPlaceholder: true)),
                decisions: .transactions([Verdict.Entry(transaction: transaction, decision: .held(.userPlaceholder))]),
                dueIn: .seconds(60))
            var standing = Standing()
            standing.holding = Standing.Holding(
                receiptID: UUID(), transactionID: transaction.id, userID: "owner", appID: "game",
                environment: transaction.environment, source: source, purchasedAt: transaction.purchasedAt)
            let outcome = VerdictRow.rows(of: [verdict])[0].outcome(
                .held(.userPlaceholder), behind: Gate(), isWon: false, standing: standing, transfer: nil, now: .now,
                disputedFor: 86_400)
            #expect(outcome.state == .alreadyGranted && outcome.reason == "owned_by_another_user")
            #expect((outcome.keepsCopyUntil == nil) == isProof)
            #expect(outcome.rival == nil)
        }
    }

    @Test("F11: a token that is derived from the poster's own name raises no doubt against the poster")
    func ownToken() {
        let own = AccountToken.Derivation(.md5).token(of: "me")
        let other = AccountToken.Derivation(.md5).token(of: "you")
        for (token, isOwn) in [(own, true), (other, false), (UUID(), false)] {
            let unknown = Self.judged(placeholder: false, userID: "me") { transaction, evidence in
                transaction.appAccountToken = token
                evidence.posterHasToken = true
            }
            #expect((unknown.match?.source == .poster) == isOwn)
            #expect((unknown.decision == .held(.foreignToken)) == !isOwn)
            let used = Self.judged(placeholder: false, userID: "me") { transaction, evidence in
                transaction.appAccountToken = token
                evidence.rememberedUserIDs = ["you"]
            }
            #expect((used.match?.source == .poster) == isOwn)
            #expect((used.decision == .held(.tokenDisputed)) == !isOwn)
            // It is no proof: what another user has by proof stays that user's.
            let registered = Self.judged(placeholder: false, userID: "me") { transaction, evidence in
                transaction.appAccountToken = token
                evidence.registeredUserID = "you"
            }
            #expect(registered.match?.userID == "you")
            let chain = Self.judged(placeholder: false, userID: "me") { transaction, evidence in
                transaction.appAccountToken = token
                (transaction.productID, transaction.kind, transaction.originalID) = ("sword", .nonConsumable, "first")
                evidence.chain = .init(userID: "you")
                evidence.posterHasToken = true
            }
            if isOwn { #expect(chain.match?.userID == "you") }
        }
    }
}
