import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation

/// Goal: the App Store's answer about a purchase that it ended decides, in whatever form it comes (Ownership, rows 0a
/// and 0a'). Method: one subscription, ended in each of the ways that the App Store knows, by signed transaction and by
/// receipt.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierRevocationTests {
    private static let given = Decision.grant(goods: [.init(item: "pass", amount: 1)], source: .poster)

    private static func app(_ lab: VerifyLab) async throws -> AppServices {
        try await lab.app {
            for id in ["pass", "gold"] {
                $0.products[id] = .init(id: id, kind: .autoRenewable, goods: [.init(item: id, amount: 1)])
            }
        }
    }

    private static func entry(
        _ lab: VerifyLab, _ id: String, _ app: AppServices
    ) async throws -> Verdict.Entry {
        let row = lab.row(.signedTransaction(try lab.store.sign(id)))
        guard case .decided(.transactions(let entries)) = await lab.receiptVerifier().examine(row, for: app) else {
            throw UnexpectedExamination()
        }
        return try #require(entries.first)
    }

    private struct UnexpectedExamination: Error {}

    @Test("F4: each way to end a signed transaction")
    func signed() async throws {
        try await VerifyLab.with { lab in
            let app = try await Self.app(lab)
            for (type, percentage, isUpgraded, decision, reason) in [
                (nil, nil, nil, Decision.rejected(.refunded), nil),
                ("REFUND_FULL", 100_000, nil, .rejected(.refunded), nil),
                ("REFUND_PRORATED", 67_932, nil, Self.given, .refundProrated),
                ("REFUND_PRORATED", 100_000, nil, .rejected(.refunded), nil),
                ("FAMILY_REVOKE", nil, nil, .rejected(.withdrawn), nil),
                ("ASSIGNMENT_REVOKE", nil, nil, .rejected(.withdrawn), nil),
                ("REFUND_PRORATED", 100_000, true, Self.given, .endedByUpgrade),
                (nil, nil, true, Self.given, .endedByUpgrade),
                // A refund for a reason of its own, of a period that was upgraded.
                (nil, nil, false, .rejected(.refunded), nil), ("REFUND_FULL", nil, false, .rejected(.refunded), nil),
            ] as [(String?, Int?, Bool?, Decision, MatchReason?)] {
                let sale = try await lab.sell {
                    $0.type = .autoRenewable
                    $0.productId = "pass"
                    $0.isUpgraded = isUpgraded.map { _ in true }
                }
                var refund = RefundRequest()
                refund.isUpgrade = isUpgraded
                (refund.revocationType, refund.revocationPercentage) = (type, percentage)
                try lab.store.refund(sale.purchase.transactionId, refund)
                let entry = try await Self.entry(lab, sale.purchase.transactionId, app)
                #expect(entry.decision == decision, "\(type ?? "-") \(percentage ?? -1) \(isUpgraded ?? false)")
                #expect(
                    entry.match?.reasons.contains { [.refundProrated, .endedByUpgrade].contains($0) } ?? false
                        == (reason != nil))
                if let reason { #expect(entry.match?.reasons.contains(reason) == true) }
            }
        }
    }

    @Test(
        "F4: a receipt that marks no upgrade: the cancelled period is given where another product followed it at once")
    func legacy() async throws {
        try await VerifyLab.with { lab in
            let app = try await Self.app(lab)
            for seconds in [0, 3600] as [Int64] {
                let basic = try await lab.sell {
                    $0.type = .autoRenewable
                    $0.productId = "pass"
                }.purchase
                let plus = try await lab.sell {
                    $0.type = .autoRenewable
                    $0.productId = "gold"
                    $0.originalTransactionId = basic.transactionId
                    $0.transactionReason = "PURCHASE"
                }
                try lab.store.refund(
                    basic.transactionId,
                    RefundRequest(revocationDate: plus.purchase.purchaseDate + seconds * 1000))
                let row = lab.row(.receipt(plus.receipt))
                guard case .decided(.transactions(let entries)) = await lab.receiptVerifier().examine(row, for: app)
                else {
                    throw UnexpectedExamination()
                }
                let ended = try #require(entries.first { $0.transaction.id == basic.transactionId })
                #expect(ended.decision == (seconds == 0 ? Self.given : .rejected(.refunded)))
                #expect((ended.match?.reasons.contains(.endedByUpgrade) ?? false) == (seconds == 0))
                // Apple's signed transaction has a field for upgrades, which is not set here.
                #expect(try await Self.entry(lab, basic.transactionId, app).decision == .rejected(.refunded))
            }
        }
    }
}
