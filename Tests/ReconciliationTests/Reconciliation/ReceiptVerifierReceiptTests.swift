import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import TestRandom
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: a legacy receipt is judged entry by entry, whatever its shape, and a bare id proves nothing unless a trusted
/// backend vouches for it.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierReceiptTests {
    @Test("S2-16, P21: 40 old entries and one fresh purchase grant exactly one, in any order")
    func manyEntries() async throws {
        try await VerifyLab.with { lab in
            var ids: [String] = []
            for _ in 0..<40 {
                ids.append(try await lab.sell { $0.purchaseDate = 1_500_000_000_000 }.purchase.transactionId)
            }
            let fresh = try await lab.sell().purchase.transactionId
            let refunded = try await lab.sell().purchase.transactionId
            try lab.store.refund(refunded)
            let app = try await lab.app()
            var expected = Dictionary(ids.map { ($0, Decision.rejected(.historical)) }) { first, _ in first }
            expected[fresh] = .coins
            expected[refunded] = .rejected(.refunded)
            var random = SeededRandom(seed: 7)
            for _ in 0..<3 {
                let receipt = try lab.store.receipt(
                    ReceiptRequest(
                        app: VerifyLab.bundleID, transactionIds: (ids + [fresh, refunded]).shuffled(using: &random)))
                #expect(
                    Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app))
                        == .entries(expected))
            }
        }
    }

    @Test("P19: genuine and empty, or without in_app: held, asked to refresh", arguments: [true, false])
    func empty(omitsInApp: Bool) async throws {
        try await VerifyLab.with { lab in
            var request = ReceiptRequest(app: VerifyLab.bundleID, transactionIds: [])
            request.omitInApp = omitsInApp
            let receipt = try lab.store.receipt(request)
            let app = try await lab.app()
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app))
                    == .whole(.held(.noTransactionYet)))
            let taken = Seen(
                await lab.receiptVerifier().examine(lab.row(.receipt(receipt), isTakenOver: true), for: app))
            #expect(taken == .whole(.rejected(.takenOver)))
            #expect(lab.store.calls().count == 1, "what is taken over needs no call")
        }
    }

    @Test("another app's receipt is rejected; a sandbox receipt follows the policy, asked of production first (P12)")
    func bundleAndEnvironment() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            var other = ReceiptRequest(app: VerifyLab.bundleID, transactionIds: [sale.purchase.transactionId])
            other.bundleId = "com.example.other"
            let app = try await lab.app()
            let foreign = lab.row(.receipt(try lab.store.receipt(other)))
            #expect(Seen(await lab.receiptVerifier().examine(foreign, for: app)) == .whole(.rejected(.wrongApp)))

            let sandbox = try await lab.sell { $0.environment = .sandbox }
            let row = lab.row(.receipt(sandbox.receipt))
            let before = lab.store.calls().count
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .whole(.rejected(.wrongEnvironment)))
            #expect(lab.store.calls(after: before).map(\.environment) == [.production, .sandbox])
            for (policy, expected) in [
                (AppPolicy.SandboxPurchases.testers, Decision.held(.sandbox)), (.grant, .coins),
                (.hold, .held(.sandbox)),
            ] {
                let both = try await lab.app(environments: ["Production", "Sandbox"]) { $0.sandboxPurchases = policy }
                #expect(
                    Seen(await lab.receiptVerifier().examine(row, for: both))
                        == .entries([sandbox.purchase.transactionId: expected]))
            }
        }
    }

    @Test("a subscription's periods come from latest_receipt_info, each its own purchase")
    func subscription() async throws {
        try await VerifyLab.with { lab in
            let first = try await lab.sell {
                $0.type = .autoRenewable
                $0.productId = "pass"
            }
            let renewal = try await lab.sell {
                $0.type = .autoRenewable
                $0.productId = "pass"
                $0.originalTransactionId = first.purchase.transactionId
            }
            let app = try await lab.app {
                $0.products["pass"] = .init(id: "pass", kind: .autoRenewable, goods: [.init(item: "pass", amount: 1)])
            }
            let seen = Seen(await lab.receiptVerifier().examine(lab.row(.receipt(first.receipt)), for: app))
            let granted = Decision.grant(goods: [.init(item: "pass", amount: 1)], source: .poster)
            #expect(
                seen == .entries([first.purchase.transactionId: granted, renewal.purchase.transactionId: granted]))
        }
    }

    @Test("a receipt that Apple cannot authenticate is rejected; text that is none is retried (P15)")
    func notAuthentic() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            let sale = try await lab.sell()
            var bytes = try #require(Data(base64Encoded: sale.receipt))
            bytes[bytes.count - 1] ^= 1
            for (text, expected) in [
                (bytes.base64EncodedString(), [Seen.whole(.rejected(.notAuthenticated)), .retry(.appleAnswer)]),
                ("bm8gcmVjZWlwdA==", [.retry(.appleAnswer)]),
            ] {
                #expect(expected.contains(Seen(await lab.receiptVerifier().examine(lab.row(.receipt(text)), for: app))))
            }
        }
    }

    @Test("P15: 21002 on a good receipt is trouble of Apple's, however old it is and however often it was said")
    func malformedReceipt() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            let sale = try await lab.sell()
            var fault = FaultRequest(.receiptStatus, on: .verifyReceipt)
            fault.status = 21002
            try lab.store.fault(fault)
            for (age, attempt) in [(0.0, 0), (86_500, 7), (2_592_000, 200)] {
                let row = lab.row(.receipt(sale.receipt), attempt: attempt, age: age)
                #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .retry(.appleAnswer))
            }
        }
    }

    @Test("without credentials a receipt waits for a person, and nobody is asked")
    func noCredentials() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app(hasServerAPI: false, hasVerifyReceipt: false)
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: app))
                    == .whole(.held(.credentialsMissing)))
            let question = lab.row(.identifier, transactionID: sale.purchase.transactionId, isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(question, for: app)) == .whole(.held(.credentialsMissing)))
            #expect(lab.store.calls().isEmpty)
        }
    }

    // MARK: Bare ids

    @Test(
        "note 5, S3-60: a bare id is no possession and costs no call; from a key with the scope claim, Apple answers it"
    )
    func bareID() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let app = try await lab.app()
            let plain = lab.row(.identifier, transactionID: id)
            #expect(Seen(await lab.receiptVerifier().examine(plain, for: app)) == .identifier(id, .possessionMissing))
            let original = lab.row(.identifier, originalTransactionID: id)
            #expect(
                Seen(await lab.receiptVerifier().examine(original, for: app)) == .identifier(id, .possessionMissing))
            #expect(lab.store.calls().isEmpty)
            let vouched = lab.row(.identifier, transactionID: id, isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(vouched, for: app)) == .entries([id: .coins]))
            #expect(lab.store.calls().count == 1)
            // StoreKit 2 names the purchase by two ids: each alone, both, and a wrong one beside the right one.
            let later = try await lab.sell { $0.originalTransactionId = id }.purchase.transactionId
            for (named, original, found) in [
                (nil, id, id), (later, nil, later), (later, id, later), (later, "888888888888888", later),
            ] as [(String?, String?, String)] {
                let row = lab.row(
                    .identifier, transactionID: named, originalTransactionID: original, isVouched: true)
                let seen = Seen(await lab.receiptVerifier().examine(row, for: app))
                guard case .entries(let entries) = seen else {
                    Issue.record("\(named ?? "-") \(original ?? "-"): \(seen)")
                    continue
                }
                #expect(Array(entries.keys) == [found])
            }
            try lab.store.refund(id)
            #expect(
                Seen(await lab.receiptVerifier().examine(vouched, for: app)) == .entries([id: .rejected(.refunded)]))
        }
    }

    @Test("P13, P14: not found is tried in both environments, for 24 hours and eight times, then ends")
    func notFound() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(environments: ["Production", "Sandbox"])
            for (age, attempt, wakes, expected) in [
                (0.0, 0, 0, Seen.retry(.notFoundYet)), (86_000, 100, 0, .retry(.notFoundYet)),
                // After a day of halts or of an outage of this server, Apple was hardly asked.
                (86_500, 0, 0, .retry(.notFoundYet)), (864_000, 6, 0, .retry(.notFoundYet)),
                (86_500, 7, 0, .whole(.rejected(.notFound))), (864_000, 100, 0, .whole(.rejected(.notFound))),
                // A wake is no question to Apple.
                (864_000, 8, 8, .retry(.notFoundYet)), (864_000, 15, 8, .whole(.rejected(.notFound))),
            ] {
                let before = lab.store.calls().count
                var row = lab.row(
                    .identifier, transactionID: "999999999999999", isVouched: true, attempt: attempt, age: age)
                row.wakes = wakes
                #expect(
                    Seen(await lab.receiptVerifier().examine(row, for: app)) == expected, "\(age) \(attempt) \(wakes)")
                #expect(lab.store.calls(after: before).map(\.environment) == [.production, .sandbox])
            }
            let sandbox = try await lab.sell { $0.environment = .sandbox }
            let row = lab.row(.identifier, transactionID: sandbox.purchase.transactionId, isVouched: true)
            #expect(
                Seen(await lab.receiptVerifier().examine(row, for: app))
                    == .entries([sandbox.purchase.transactionId: .held(.sandbox)]))
        }
    }

    @Test("an id that Apple does not know: the history of the original answers, in either environment, once an hour")
    func originalAnswers() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(environments: ["Production", "Sandbox"]) { $0.sandboxPurchases = .grant }
            let unknown = "999999999999999"
            let bought = try await lab.sell(3)
            let sandbox = try await lab.sell { $0.environment = .sandbox }.purchase.transactionId
            for (original, user, expected) in [
                (bought[1], true, Seen.entries([bought[1]: .coins])), (sandbox, true, .entries([sandbox: .coins])),
                ("888888888888888", true, .retry(.notFoundYet)), (unknown, true, .retry(.notFoundYet)),
                // Nobody vouches for the user, and no order or token names one: no hint.
                (bought[1], false, .identifier(unknown, .possessionMissing)),
            ] {
                let row = lab.row(
                    .identifier, transactionID: unknown, originalTransactionID: original, isVouched: user)
                #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == expected, "\(original)")
            }
            // The history is stored: a second question reads no page.
            let before = lab.store.calls().count
            let row = lab.row(.identifier, transactionID: unknown, originalTransactionID: bought[1], isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries([bought[1]: .coins]))
            #expect(lab.store.calls(after: before).allSatisfy { $0.service == .transactionInfo })
            // A bare id whose original is another user's purchase by an order leads to that user, as its own id would.
            let order = try await lab.placeOrder("owner")
            let ordered = try await lab.sell { $0.appAccountToken = order.uuidString.lowercased() }
            var bare = lab.row(
                .identifier, transactionID: unknown, originalTransactionID: ordered.purchase.transactionId)
            bare.appHasOrders = true
            guard
                case .decided(.transactions(let entries)) = await lab.receiptVerifier().examine(bare, for: app)
            else {
                Issue.record("the history did not answer")
                return
            }
            #expect(entries.map(\.transaction.id) == [ordered.purchase.transactionId])
            #expect(entries.first?.match?.userID == "owner")
            // Beside a purchase that is given to its owner, the poster learns nothing of the others of its chain.
            let another = try await lab.placeOrder("another")
            let first = try await lab.sell { $0.appAccountToken = another.uuidString.lowercased() }
                .purchase.transactionId
            let second = try await lab.sell { $0.originalTransactionId = first }.purchase.transactionId
            try lab.store.refund(second)
            bare = lab.row(.identifier, transactionID: unknown, originalTransactionID: first)
            bare.appHasOrders = true
            guard case .decided(.transactions(let chain)) = await lab.receiptVerifier().examine(bare, for: app) else {
                Issue.record("the history did not answer")
                return
            }
            #expect(chain.first { $0.transaction.id == first }?.match?.userID == "another")
            #expect(chain.first { $0.transaction.id == second }?.decision == .held(.possessionMissing))
        }
    }

    @Test("P13: an app never released: production says 401, the sandbox answers, nothing is halted or rejected")
    func neverReleased() async throws {
        try await VerifyLab.with { lab in
            var unreleased = FaultRequest(.status, on: .transactionInfo)
            unreleased.status = 401
            unreleased.environment = .production
            try lab.store.fault(unreleased)
            let app = try await lab.app(environments: ["Production", "Sandbox"]) { $0.testers = ["u1"] }
            let sale = try await lab.sell { $0.environment = .sandbox }
            let id = sale.purchase.transactionId
            let row = lab.row(.identifier, transactionID: id, isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries([id: .coins]))
            #expect(lab.store.calls().map(\.environment) == [.production, .sandbox])
            // Production did not look the id up, so the sandbox's answer is not final, however old the question is.
            let unknown = lab.row(
                .identifier, transactionID: "999999999999999", isVouched: true, attempt: 100, age: 864_000)
            #expect(Seen(await lab.receiptVerifier().examine(unknown, for: app)) == .retry(.notFoundYet))
            #expect(try await lab.lab.ledger.run(Statements.listHalts, ()) == [])
        }
    }

    @Test("an id that is none is rejected by Apple's answer; no id at all is malformed")
    func invalidID() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            let row = lab.row(.identifier, transactionID: "no number", isVouched: true)
            #expect(
                Seen(await lab.receiptVerifier().examine(row, for: app)) == .whole(.rejected(.invalidTransactionID)))
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.identifier, isVouched: true), for: app))
                    == .whole(.rejected(.malformed)))
        }
    }
}
