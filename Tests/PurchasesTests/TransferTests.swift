import Foundation
import Purchases
import Testing

/// Goal: the transfer policy applies only to subscriptions and non-consumables that are shown with Apple's own data and
/// are not shared (P10). Method: the cross product of policy, kind, possession, sharing and decision through the judge.
@Suite struct TransferTests {
    private static let kinds: [Transaction.Kind] = [.consumable, .nonConsumable, .autoRenewable, .nonRenewing]

    @Test("P10: row 1 moves subscriptions and non-consumables, by policy, from any owner", arguments: kinds)
    func scope(kind: Transaction.Kind) {
        for policy in AppPolicy.Transfer.allCases {
            for hasPossession in [true, false] {
                for isShared in [true, false] {
                    let transaction = DecisionTests.transaction(kind: kind) {
                        if isShared { $0.ownership = "FAMILY_SHARED" }
                    }
                    let app = DecisionTests.policy { $0.transfer = policy }
                    let entry = app.judge(
                        transaction,
                        claim: Claim(userID: "me", hasPossession: hasPossession, receivedAt: DecisionTests.received),
                        evidence: .none)
                    let moves = policy != .keep && hasPossession && !isShared
                    let runsOn = kind == .nonConsumable || kind == .autoRenewable
                    #expect(entry.transfer == (moves && runsOn ? policy : nil))
                    #expect(entry.with(.open(.appleAnswer)).transfer == entry.transfer)
                }
            }
        }
    }

    @Test("a restore of long ago is no make-up order to be reviewed; what is refunded or held moves nothing")
    func decisions() {
        let app = DecisionTests.policy { $0.transfer = .transfer }
        func transfer(_ change: (inout Transaction) -> Void) -> AppPolicy.Transfer? {
            app.judge(
                DecisionTests.transaction("sword", kind: .nonConsumable, change),
                claim: Claim(userID: "me", hasPossession: true, receivedAt: DecisionTests.received), evidence: .none
            ).transfer
        }
        #expect(transfer { $0.purchasedAt -= 8 * 86_400 } == .transfer)
        #expect(transfer { $0.revokedAt = $0.purchasedAt } == nil)
        #expect(transfer { $0.environment = Transaction.sandbox } == nil, "of who is no tester")
    }
}
