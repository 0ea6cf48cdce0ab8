import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: a signed transaction is believed if Apple signed it, is confirmed if the app wants that, and every defect has
/// its reason. Method: the simulated App Store signs, forges and is asked; its call log says how often.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierSignedTests {
    @Test("P26: a signed transaction is granted without a call")
    func granted() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell { $0.quantity = 3 }
            let app = try await lab.app()
            let seen = Seen(
                await lab.receiptVerifier().examine(lab.row(.signedTransaction(sale.signedTransaction)), for: app))
            let goods = [AppPolicy.Goods(item: "coin", amount: 180)]
            #expect(seen == .entries([sale.purchase.transactionId: .grant(goods: goods, source: .poster)]))
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("Apple's facts arrive whole")
    func facts() async throws {
        try await VerifyLab.with { lab in
            let token = UUID()
            let sale = try await lab.sell {
                $0.type = .autoRenewable
                $0.appAccountToken = token.uuidString
                $0.price = 4_990
            }
            let examination = await lab.receiptVerifier().examine(
                lab.row(.signedTransaction(sale.signedTransaction)), for: try await lab.app())
            guard case .decided(.transactions(let entries)) = examination, let transaction = entries.first?.transaction
            else {
                Issue.record("\(Seen(examination))")
                return
            }
            let purchase = sale.purchase
            #expect(transaction.kind == .autoRenewable && transaction.appAccountToken == token)
            #expect(transaction.webOrderLineItemID == purchase.webOrderLineItemId)
            #expect(transaction.purchasedAt == Date(timeIntervalSince1970: Double(purchase.purchaseDate) / 1000))
            #expect(transaction.environment == "Production" && transaction.ownership == "PURCHASED")
            #expect(transaction.signedAt != nil && transaction.expiresAt != nil && transaction.revokedAt == nil)
            #expect(transaction.facts.contains("4990") && transaction.facts.contains("USD"))
        }
    }

    @Test(
        "text that is no signed transaction is rejected as malformed",
        arguments: ["", "a.b.c", "a.b", "{}", "..", "ä.ö.ü"])
    func malformed(text: String) async throws {
        try await VerifyLab.with { lab in
            let seen = Seen(
                await lab.receiptVerifier().examine(lab.row(.signedTransaction(text)), for: try await lab.app()))
            #expect(seen == .whole(.rejected(.malformed)))
        }
    }

    @Test("P17: without the root nothing is believed; an environment that is not served is not granted (P12)")
    func rootAndEnvironment() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell { $0.environment = .sandbox }
            let row = lab.row(.signedTransaction(sale.signedTransaction))
            let id = sale.purchase.transactionId
            let receiptVerifier = lab.receiptVerifier()
            let both = ["Production", "Sandbox"]
            for (app, expected) in [
                (try await lab.app(hasRoot: false), Seen.whole(.rejected(.untrustedRoot))),
                (try await lab.app(), .whole(.rejected(.wrongEnvironment))),
                (try await lab.app(environments: both), .entries([id: .held(.sandbox)])),
                (try await lab.app(environments: both) { $0.testers = ["u1"] }, .entries([id: .coins])),
                (try await lab.app(environments: both) { $0.sandboxPurchases = .grant }, .entries([id: .coins])),
                (
                    try await lab.app(environments: both) { $0.sandboxPurchases = .hold },
                    .entries([id: .held(.sandbox)])
                ),
            ] {
                #expect(Seen(await receiptVerifier.examine(row, for: app)) == expected)
            }
        }
    }

    @Test("P16: a revoked certificate rejects, a silent responder never does; off asks nobody")
    func revocation() async throws {
        try await VerifyLab.with(namesResponder: true) { lab in
            let sale = try await lab.sell()
            let row = lab.row(.signedTransaction(sale.signedTransaction))
            let granted = Seen.entries([sale.purchase.transactionId: .coins])
            let receiptVerifier = lab.receiptVerifier()
            for (mode, request, expected) in [
                (.off, .init(leaf: .revoked, manner: .signed), granted),
                (.soft, .init(leaf: .revoked, manner: .signed), .whole(.rejected(.certificateRevoked))),
                (.hard, .init(leaf: .revoked, manner: .signed), .whole(.rejected(.certificateRevoked))),
                (.soft, .init(leaf: .good, manner: .error), granted),
                (.hard, .init(leaf: .good, manner: .error), .retry(.certificateStatusUnknown)),
                (.hard, .init(leaf: .good, manner: .signed), granted),
            ] as [(OCSPMode, ResponderRequest, Seen)] {
                try lab.store.set(request)
                // Each app is new and has no answer of a responder yet.
                let app = try await lab.app(ocsp: mode)
                #expect(Seen(await receiptVerifier.examine(row, for: app)) == expected, "\(mode)")
            }
        }
    }

    @Test("a signedDate more than five minutes ahead is a retry, never a rejection")
    func clockAhead() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app()
            for (ahead, expected) in [
                (3600, Seen.retry(.clockAhead)), (330, .retry(.clockAhead)),
                (240, .entries([sale.purchase.transactionId: .coins])),
            ] as [(TimeInterval, Seen)] {
                let date = Int64((Date.now.timeIntervalSince1970 + ahead) * 1000)
                let jws = try lab.store.sign(sale.purchase.transactionId, signedDate: date)
                let row = lab.row(.signedTransaction(jws))
                #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == expected, "\(ahead) s")
            }
        }
    }

    @Test("confirmWithApple always: to the other queue first, there one call")
    func always() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            let proof = Proof.signedTransaction(sale.signedTransaction)
            #expect(Seen(await lab.receiptVerifier().examine(lab.row(proof), for: app)) == .reroute)
            #expect(lab.store.calls().isEmpty)
            let seen = Seen(await lab.receiptVerifier().examine(lab.row(proof, lane: .apple), for: app))
            #expect(seen == .entries([sale.purchase.transactionId: .coins]))
            #expect(lab.store.calls().map(\.transactionIds) == [[sale.purchase.transactionId]])
            // A purchase that is not granted anyway needs no call.
            let unknown = try await lab.sell { $0.productId = "unknown" }
            let held = Seen(
                await lab.receiptVerifier().examine(lab.row(.signedTransaction(unknown.signedTransaction)), for: app))
            #expect(held == .entries([unknown.purchase.transactionId: .held(.productUnknown)]))
            #expect(lab.store.calls().count == 1)
        }
    }

    @Test("P32: refunded since it was signed: rejected as refunded, never granted from an old proof")
    func refundedMeanwhile() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            try lab.store.refund(sale.purchase.transactionId)
            let row = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple)
            #expect(
                Seen(await lab.receiptVerifier().examine(row, for: app))
                    == .entries([sale.purchase.transactionId: .rejected(.refunded)]))
        }
    }

    @Test("stale is judged at the time it was posted; time in our queue does not count")
    func stale() async throws {
        try await VerifyLab.with { lab in
            let bought = Int64((Date.now.timeIntervalSince1970 - 100_000) * 1000)
            let sale = try await lab.sell { $0.purchaseDate = bought }
            let app = try await lab.app()
            let blind = try await lab.app(hasServerAPI: false)
            let never = try await lab.app { $0.confirmWithApple = .never }
            let granted = Seen.entries([sale.purchase.transactionId: .coins])
            func sign(_ secondsAgo: TimeInterval) throws -> Proof {
                let date = Int64((Date.now.timeIntervalSince1970 - secondsAgo) * 1000)
                return .signedTransaction(try lab.store.sign(sale.purchase.transactionId, signedDate: date))
            }
            for (signedAgo, receivedAgo, app, expected) in [
                (3500.0, 0.0, app, granted), (3700, 0, app, .reroute), (7200, 7000, app, granted),
                (7200, 0, blind, granted), (7200, 0, never, granted), (90_000, 86_000, app, .reroute),
            ] as [(TimeInterval, TimeInterval, AppServices, Seen)] {
                let row = lab.row(try sign(signedAgo), age: receivedAgo)
                #expect(
                    Seen(await lab.receiptVerifier().examine(row, for: app)) == expected, "\(signedAgo) \(receivedAgo)")
            }
        }
    }

    @Test("P14: confirmed but not found yet is retried for ever: a valid proof never ends in not_found")
    func notFoundYet() async throws {
        try await VerifyLab.with { lab in
            let bought = Int64((Date.now.timeIntervalSince1970 - 2_592_000) * 1000)
            let sale = try await lab.sell { $0.purchaseDate = bought }
            let app = try await lab.app {
                $0.confirmWithApple = .always
                $0.makeUpMaxAge = .zero
            }
            try lab.store.fault(FaultRequest(.notFound, on: .transactionInfo))
            for (age, attempt) in [(0.0, 0), (2_592_000, 200)] {
                let row = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple, attempt: attempt, age: age)
                #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .retry(.notFoundYet))
            }
        }
    }

    @Test("P14: Apple signed the id, so no answer about it is a proof against the purchase")
    func noAnswerRejects() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            let row = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple, attempt: 200, age: 2_592_000)
            for code in [4_000_006, 4_000_048, 4_000_000, 4_040_001, 4_040_003, 4_040_005, 4_040_010, 4_000_185] {
                lab.store.clearFaults()
                var fault = FaultRequest(.error, on: .transactionInfo)
                fault.errorCode = code
                try lab.store.fault(fault)
                guard case .retry(_, let call?) = await lab.receiptVerifier().examine(row, for: app) else {
                    Issue.record("\(code) was not retried")
                    continue
                }
                #expect(call.code == code)
            }
        }
    }

    @Test("a payload that is gone waits for a person")
    func payloadGone() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            let row = lab.row(.signedTransaction(""), hasPayload: false)
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .whole(.held(.review)))
        }
    }
}
