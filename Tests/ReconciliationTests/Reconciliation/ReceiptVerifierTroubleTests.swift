import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Synchronization
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: trouble at Apple is tried again with its numbers, a wrong secret of ours rejects no receipt and its halt ends
/// by itself, and no call goes to an Apple that is down. Method: faults of the simulator, answers counted on its side.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierTroubleTests {
    struct Trouble: Sendable, CustomTestStringConvertible {
        let name: String
        let fault: FaultRequest
        let reason: Reason
        let httpStatus: Int?
        let code: Int?
        var testDescription: String { name }

        init(
            _ name: String, _ kind: FaultRequest.Kind, _ reason: Reason, _ httpStatus: Int?, code: Int? = nil,
            _ change: (inout FaultRequest) -> Void = { _ in }
        ) {
            var fault = FaultRequest(kind, on: .all)
            change(&fault)
            self.name = name
            self.fault = fault
            self.reason = reason
            self.httpStatus = httpStatus
            self.code = code
        }
    }

    static let troubles =
        [500, 502, 503, 504, 403].map { (status: Int) in
            Trouble("HTTP \(status)", .status, .appleAnswer, status) { $0.status = status }
        }
        + FaultRequest.Form.allCases.map { (form: FaultRequest.Form) in
            Trouble("garbage: \(form.rawValue)", .garbage, .appleAnswer, 200) { $0.form = form }
        } + [
            Trouble("reset", .reset, .appleUnavailable, nil),
            Trouble("closed without an answer", .timeout, .appleUnavailable, nil) { $0.seconds = 0.1 },
        ]

    @Test("S1-3, S1-5, P15: what Apple does not explain is retried, with the call's figures", arguments: troubles)
    func retried(trouble: Trouble) async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            try lab.store.fault(trouble.fault)
            for (row, service) in [
                (lab.row(.receipt(sale.receipt)), "verifyReceipt"),
                (lab.row(.signedTransaction(sale.signedTransaction), lane: .apple), "serverApi"),
                (lab.row(.identifier, transactionID: sale.purchase.transactionId, isVouched: true), "serverApi"),
            ] {
                guard case .retry(let reason, let call?) = await lab.receiptVerifier().examine(row, for: app) else {
                    Issue.record("\(service) was not retried with a call")
                    continue
                }
                #expect(reason == trouble.reason)
                #expect(call.service == service && call.environment == "Production")
                #expect(call.httpStatus == trouble.httpStatus && call.code == trouble.code && call.milliseconds >= 0)
            }
            lab.store.clearFaults()
            let after = Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: app))
            #expect(after == .entries([sale.purchase.transactionId: .coins]), "then it is granted")
        }
    }

    @Test(
        "P15: Apple's own codes for trouble",
        arguments: [21002, 21005, 21009, 21100, 21199, 99_999, 5_000_000, 5_000_001, 4_040_002, 4_040_006, 4_999_999])
    func codes(code: Int) async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            let isReceipt = code < 1_000_000
            var fault = FaultRequest(
                isReceipt ? .receiptStatus : .error, on: isReceipt ? .verifyReceipt : .transactionInfo)
            if isReceipt { fault.status = code } else { fault.errorCode = code }
            try lab.store.fault(fault)
            let row =
                isReceipt
                ? lab.row(.receipt(sale.receipt)) : lab.row(.signedTransaction(sale.signedTransaction), lane: .apple)
            guard case .retry(.appleAnswer, let call?) = await lab.receiptVerifier().examine(row, for: app) else {
                Issue.record("\(code) was not retried")
                return
            }
            #expect(call.code == code)
        }
    }

    @Test("AppleFacts 3.8: 429 is no attempt; it waits until Apple's Retry-After")
    func rateLimited() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            var fault = FaultRequest(.error, on: .all)
            fault.errorCode = 4_290_000
            fault.retryAfterMilliseconds = 90_000
            try lab.store.fault(fault)
            for row in [
                lab.row(.receipt(sale.receipt)), lab.row(.signedTransaction(sale.signedTransaction), lane: .apple),
            ] {
                guard case .postpone(.appleUnavailable, let until?) = await lab.receiptVerifier().examine(row, for: app)
                else {
                    Issue.record("not postponed")
                    continue
                }
                #expect(abs(until.timeIntervalSinceNow - 90) < 10)
            }
        }
    }

    // MARK: Halts

    @Test("a wrong secret of ours halts, rejects no receipt, and ends with the first probe once mended")
    func wrongSecret() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let wrong = try await lab.app(secret: "0123456789abcdef0123456789abcdef")
            let row = lab.row(.receipt(sale.receipt))
            let receiptVerifier = lab.receiptVerifier()
            #expect(Seen(await receiptVerifier.examine(row, for: wrong)) == .postpone(.halted))
            let halts = try await lab.lab.ledger.run(Statements.listHalts, ())
            #expect(halts.map { "\($0.appID) \($0.service)" } == ["game verifyReceipt"])
            #expect(!"\(halts)".contains("0123456789abcdef0123456789abcdef"), "a hash, not the secret")

            let calls = lab.store.calls().count
            for _ in 0..<3 { #expect(Seen(await receiptVerifier.examine(row, for: wrong)) == .postpone(.halted)) }
            #expect(lab.store.calls().count == calls, "nobody asks with it before the probe")
            // A receipt that needs no call is judged, and the other service is asked.
            let signed = lab.row(.signedTransaction(sale.signedTransaction))
            #expect(
                Seen(await receiptVerifier.examine(signed, for: wrong))
                    == .entries([sale.purchase.transactionId: .coins]))
            let vouched = lab.row(.identifier, transactionID: sale.purchase.transactionId, isVouched: true)
            #expect(
                Seen(await receiptVerifier.examine(vouched, for: wrong))
                    == .entries([sale.purchase.transactionId: .coins]))
            // A corrected secret is another credential, which is used at once.
            let right = try await lab.app()
            #expect(
                Seen(await receiptVerifier.examine(row, for: right)) == .entries([sale.purchase.transactionId: .coins]))
            #expect(try await lab.lab.ledger.run(Statements.listHalts, ()).count == 1)
        }
    }

    @Test("a probe that Apple accepts ends the halt and frees the rows; one that Apple refuses does not")
    func probe() async throws {
        try await VerifyLab.with { lab in
            let secret = "0123456789abcdef0123456789abcdef"
            let sale = try await lab.sell()
            let app = try await lab.app(secret: secret)
            let row = lab.row(.receipt(sale.receipt))
            let receiptVerifier = lab.receiptVerifier()
            _ = await receiptVerifier.examine(row, for: app)
            let waiting = try await lab.lab.post()
            _ = try await lab.lab.ledger.postpone(
                Postponement(receiptID: waiting.id, attempt: 0, dueIn: .seconds(60), reason: .halted))
            for _ in 0..<2 {
                try await lab.lab.run("update halts set probe_at = now()")
                let before = lab.store.calls().count
                #expect(Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.halted))
                #expect(Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.halted))
                #expect(lab.store.calls().count == before + 1, "one probe a minute")
            }
            // The error was corrected at Apple: the same secret is right now.
            try lab.store.register(RegisteredApp(app: VerifyLab.bundleID, sharedSecret: secret))
            #expect(
                Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.halted), "not before the next probe")
            try await lab.lab.run("update halts set probe_at = now()")
            #expect(
                Seen(await receiptVerifier.examine(row, for: app)) == .entries([sale.purchase.transactionId: .coins]))
            #expect(try await lab.lab.ledger.run(Statements.listHalts, ()) == [])
            #expect(try await lab.lab.number("select count(*) from receipts where due_at <= now()") == 1)
            await lab.halts.refresh()
            #expect(
                Seen(await receiptVerifier.examine(row, for: app)) == .entries([sale.purchase.transactionId: .coins]))
        }
    }

    @Test("a probe that says nothing about our secret does not end the halt")
    func probeWithoutProof() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app(secret: "0123456789abcdef0123456789abcdef")
            let receiptVerifier = lab.receiptVerifier()
            _ = await receiptVerifier.examine(lab.row(.receipt(sale.receipt)), for: app)
            // Apple looks at the receipt before it looks at the secret.
            try await lab.lab.run("update halts set probe_at = now()")
            #expect(
                Seen(await receiptVerifier.examine(lab.row(.receipt("bm9uc2Vuc2U=")), for: app)) == .retry(.appleAnswer)
            )
            #expect(try await lab.lab.ledger.run(Statements.listHalts, ()).count == 1)
            for kind in [FaultRequest.Kind.reset, .garbage] {
                try await lab.lab.run("update halts set probe_at = now()")
                try lab.store.fault(FaultRequest(kind, on: .all, count: 1))
                _ = await receiptVerifier.examine(lab.row(.receipt(sale.receipt)), for: app)
                #expect(try await lab.lab.ledger.run(Statements.listHalts, ()).count == 1, "\(kind)")
            }
        }
    }

    @Test("P13: 401 of the API halts the API alone, seen by every process within a refresh")
    func unauthorized() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app { $0.confirmWithApple = .always }
            var fault = FaultRequest(.status, on: .transactionInfo, count: 1)
            fault.status = 401
            try lab.store.fault(fault)
            let row = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple)
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .postpone(.halted))
            let other = Halts(ledger: lab.lab.ledger, logger: .silent)
            #expect(other.halt(of: .serverApi, for: app) == nil)
            await other.refresh()
            #expect(other.halt(of: .serverApi, for: app) != nil)
            #expect(other.halt(of: .verifyReceipt, for: app) == nil)
            #expect(other.haltedApps == [VerifyLab.appID] && !other.isPaused(VerifyLab.appID))
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: app))
                    == .entries([sale.purchase.transactionId: .coins]))
        }
    }

    // MARK: The breaker

    private static let receipts = AppleHost(.verifyReceipt, .production)
    private static let sandbox = AppleHost(.serverApi, .sandbox)

    private static func breaker(_ host: AppleHost, _ governor: Governor) async -> AppleHostReport.BreakerState? {
        governor.report().first { $0.host == host }?.breaker
    }

    @Test("P1: an Apple that is down is not asked; a probe finds out when it is back")
    func breaker() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app()
            // The pause is a second: a busy machine may need a tenth of it to ask once more.
            let scale = 0.2
            let governor = lab.governor(scale: scale)
            let receiptVerifier = lab.receiptVerifier(governor: governor, scale: scale)
            let row = lab.row(.receipt(sale.receipt))
            var fault = FaultRequest(.status, on: .all)
            fault.status = 503
            try lab.store.fault(fault)
            for _ in 0..<Breaker.callsMin {
                #expect(Seen(await receiptVerifier.examine(row, for: app)) == .retry(.appleAnswer))
            }
            let calls = lab.store.calls().count
            #expect(calls == Breaker.callsMin)
            #expect(
                Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.appleUnavailable),
                "no attempt is counted")
            #expect(lab.store.calls().count == calls)
            lab.store.clearFaults()
            try await lab.lab.until("the breaker is half-open after its pause") {
                await Self.breaker(Self.receipts, governor) == .halfOpen
            }
            #expect(
                Seen(await receiptVerifier.examine(row, for: app)) == .entries([sale.purchase.transactionId: .coins]))
            #expect(await Self.breaker(Self.receipts, governor) == .closed)
        }
    }

    @Test("B9: an outage of the sandbox stops neither production nor the other service")
    func hostsApart() async throws {
        try await VerifyLab.with { lab in
            let (sale, test) = (try await lab.sell(), try await lab.sell { $0.environment = .sandbox })
            let app = try await lab.app(environments: ["Production", "Sandbox"]) {
                $0.confirmWithApple = .always
                $0.sandboxPurchases = .grant
            }
            let governor = lab.governor()
            let receiptVerifier = lab.receiptVerifier(governor: governor)
            var fault = FaultRequest(.status, on: .transactionInfo)
            fault.status = 503
            fault.environment = .sandbox
            try lab.store.fault(fault)
            let testRow = lab.row(.signedTransaction(test.signedTransaction), lane: .apple)
            for _ in 0..<Breaker.callsMin {
                #expect(Seen(await receiptVerifier.examine(testRow, for: app)) == .retry(.appleAnswer))
            }
            #expect(await Self.breaker(Self.sandbox, governor) == .open)
            let calls = lab.store.calls().count
            #expect(Seen(await receiptVerifier.examine(testRow, for: app)) == .postpone(.appleUnavailable))
            #expect(lab.store.calls().count == calls)
            for row in [
                lab.row(.signedTransaction(sale.signedTransaction), lane: .apple), lab.row(.receipt(sale.receipt)),
            ] {
                #expect(
                    Seen(await receiptVerifier.examine(row, for: app))
                        == .entries([sale.purchase.transactionId: .coins]))
            }
            #expect(governor.report().filter { $0.breaker == .closed }.count == 2)
        }
    }

    @Test("what our own limit holds back is no answer of Apple's, and uses up no probe: of a breaker, or of a halt")
    func heldBack() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app()
            let isDry = Mutex(true)
            let governor = Governor(
                scale: 0.02,
                lease: { question in
                    .init(
                        calls: isDry.withLock { $0 } ? 0 : question.wanted, endsIn: .milliseconds(250),
                        stoppedFor: .zero)
                }, stop: { _, _ in }, logger: .silent)
            let receiptVerifier = lab.receiptVerifier(governor: governor, scale: 0.02)
            let row = lab.row(.identifier, transactionID: sale.purchase.transactionId, isVouched: true)
            #expect(Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.appleBudget))
            var fault = FaultRequest(.status, on: .all)
            fault.status = 503
            try lab.store.fault(fault)
            isDry.withLock { $0 = false }
            for _ in 0..<Breaker.callsMin { _ = await receiptVerifier.examine(row, for: app) }
            isDry.withLock { $0 = true }
            lab.store.clearFaults()
            let host = AppleHost(.serverApi, .production)
            try await lab.lab.until("the breaker is half-open after its pause") {
                await Self.breaker(host, governor) == .halfOpen
            }
            // Calls that were leased and not used end with their slice.
            try await Task.sleep(for: .milliseconds(300))
            let calls = lab.store.calls().count
            #expect(Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.appleBudget))
            #expect(await Self.breaker(host, governor) == .halfOpen)
            #expect(lab.store.calls().count == calls)

            await lab.halts.raise(
                ServiceCall(
                    service: .serverApi, environment: .production, httpStatus: 401, code: nil, duration: .zero),
                for: app)
            try await lab.lab.run("update halts set probe_at = now()")
            #expect(Seen(await receiptVerifier.examine(row, for: app)) == .postpone(.appleBudget))
            #expect(try await lab.lab.number("select count(*) from halts where probe_at <= now()") == 1)
            isDry.withLock { $0 = false }
            try await Task.sleep(for: .milliseconds(300))
            #expect(
                Seen(await receiptVerifier.examine(row, for: app)) == .entries([sale.purchase.transactionId: .coins]),
                "the probe of both")
            #expect(await Self.breaker(host, governor) == .closed)
            #expect(try await lab.lab.ledger.run(Statements.listHalts, ()) == [])
        }
    }

    @Test("a call that waits for its turn is not made with a secret that is refused meanwhile")
    func haltedMeanwhile() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app()
            let governor = Governor(
                lease: { question in
                    try await Task.sleep(for: .milliseconds(300))
                    return .init(calls: question.wanted, endsIn: .seconds(1), stoppedFor: .zero)
                }, stop: { _, _ in }, logger: .silent)
            let row = lab.row(.identifier, transactionID: sale.purchase.transactionId, isVouched: true)
            async let waiting = lab.receiptVerifier(governor: governor).examine(row, for: app)
            try await Task.sleep(for: .milliseconds(100))
            await lab.halts.raise(
                ServiceCall(
                    service: .serverApi, environment: .production, httpStatus: 401, code: nil, duration: .zero),
                for: app)
            #expect(Seen(await waiting) == .postpone(.halted))
            #expect(lab.store.calls().isEmpty)
            #expect(governor.report().map(\.inFlight) == [0])
        }
    }
}
