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

/// Goal: the policy on trust is asked if Apple cannot be reached, and only then (B10). Method: faults of the simulator
/// over real HTTP, with the policy on and off.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierTrustTests {
    private static let limits = AppPolicy.Provisional(perUserPerDay: 1, perAppPerDay: 1, purchasesMin: 0)

    private static func app(
        _ lab: VerifyLab, isOn: Bool = true, legacyReceipts: String? = nil
    ) async throws -> AppServices {
        try await lab.app(legacyReceipts: legacyReceipts) {
            $0.confirmWithApple = .always
            $0.provisional = isOn ? limits : nil
            $0.products["coins"]?.isProvisional = isOn
        }
    }

    /// Gives a purchase on trust.
    private static func give(_ id: String, by posted: Posted, _ lab: VerifyLab) async throws {
        _ = try await lab.lab.ledger.run(
            Statements.takePlaces,
            .init(
                receiptID: posted.id, appID: posted.appID, transactions: [Verdict.Entry.purchase(id).transaction],
                limits: .init(perUserPerDay: 9, perAppPerDay: 9)))
        let trust = Decision.provisional(goods: Verdict.Entry.coins, source: .poster)
        #expect(try await lab.lab.settle(posted, .purchase(id, trust)) == .received)
    }

    private static func fault(_ kind: FaultRequest.Kind, _ change: (inout FaultRequest) -> Void) -> FaultRequest {
        var fault = FaultRequest(kind, on: .all)
        change(&fault)
        return fault
    }

    @Test("B10: an outage of Apple, in every form; the receipt goes on as it would have")
    func outages() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let row = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple)
            for (fault, reason) in [
                (Self.fault(.status) { $0.status = 500 }, Reason.appleAnswer),
                (Self.fault(.status) { $0.status = 503 }, .appleAnswer),
                (Self.fault(.reset) { _ in }, .appleUnavailable),
                (Self.fault(.timeout) { $0.seconds = 0.1 }, .appleUnavailable),
                (Self.fault(.error) { $0.errorCode = 5_000_000 }, .appleAnswer),
            ] {
                lab.store.clearFaults()
                try lab.store.fault(fault)
                let seen = try await lab.receiptVerifier().seen(row, for: try await Self.app(lab))
                #expect(seen == .provisional([id: .coins], .retry(reason)), "\(fault)")
                let off = try await lab.receiptVerifier().seen(row, for: try await Self.app(lab, isOn: false))
                #expect(off == .retry(reason))
                let again = lab.row(
                    .signedTransaction(sale.signedTransaction), lane: .apple, attempt: 1, isOnTrust: true)
                let second = try await lab.receiptVerifier().seen(again, for: try await Self.app(lab))
                #expect(second == .retry(reason), "given before: the rest is up to Apple")
            }
        }
    }

    @Test("B10: what Apple says of the purchase, of its limits or of our credentials is no outage")
    func noOutages() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let row = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple)
            let app = try await Self.app(lab)
            let taken = try await lab.sell()
            try lab.store.refund(taken.purchase.transactionId)
            let refunded = lab.row(.signedTransaction(taken.signedTransaction), lane: .apple)
            #expect(
                try await lab.receiptVerifier().seen(refunded, for: app)
                    == .entries([taken.purchase.transactionId: .rejected(.refunded)]))
            for (fault, expected) in [
                (Self.fault(.error) { $0.errorCode = 4_040_010 }, Seen.retry(.notFoundYet)),
                (Self.fault(.error) { $0.errorCode = 4_000_006 }, .retry(.appleAnswer)),
                (Self.fault(.status) { $0.status = 403 }, .retry(.appleAnswer)),
                (Self.fault(.status) { $0.status = 401 }, .postpone(.halted)),
                // This fault is the last, because after it our own limiter holds calls back.
                (Self.fault(.error) { $0.errorCode = 4_290_000 }, .postpone(.appleUnavailable)),
            ] as [(FaultRequest, Seen)] {
                lab.store.clearFaults()
                try lab.store.fault(fault)
                #expect(try await lab.receiptVerifier().seen(row, for: app) == expected, "\(fault)")
                try await lab.lab.run("delete from halts")
                await lab.halts.refresh()
            }
            #expect(try await lab.receiptVerifier().seen(row, for: app) == .postpone(.appleBudget))
        }
    }

    @Test("while the breaker is open, nobody is asked: trust is given in Apple's queue, where the local one sends it")
    func breakerOpen() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let proof = Proof.signedTransaction(sale.signedTransaction)
            let app = try await Self.app(lab)
            let receiptVerifier = lab.receiptVerifier()
            #expect(try await receiptVerifier.seen(lab.row(proof), for: app) == .reroute)
            try lab.store.fault(Self.fault(.status) { $0.status = 503 })
            for _ in 0..<Breaker.callsMin { _ = await receiptVerifier.examine(lab.row(proof, lane: .apple), for: app) }
            let calls = lab.store.calls().count
            let id = sale.purchase.transactionId
            #expect(try await receiptVerifier.seen(lab.row(proof), for: app) == .reroute)
            #expect(
                try await receiptVerifier.seen(lab.row(proof, lane: .apple), for: app)
                    == .provisional([id: .coins], .postpone(.appleUnavailable)))
            #expect(lab.store.calls().count == calls, "nobody was asked")
            #expect(try await receiptVerifier.seen(lab.row(proof, isOnTrust: true), for: app) == .reroute)
        }
    }

    @Test("B10: what was given on trust waits for Apple's answer, also where a rule of ours would hold it by now")
    func heldSince() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "serverApi") {
                $0.confirmWithApple = .always
                $0.products = [:]
            }
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            try lab.store.refund(id)
            let posted = try await lab.lab.post()
            for (isOnTrust, expected) in [
                (false, Seen.entries([id: .held(.productUnknown)])), (true, .entries([id: .rejected(.refunded)])),
            ] {
                if isOnTrust { try await Self.give(id, by: posted, lab) }
                for proof in [Proof.signedTransaction(sale.signedTransaction), .receipt(sale.receipt)] {
                    let row = lab.row(proof, lane: .apple, id: posted.id, isOnTrust: isOnTrust)
                    #expect(
                        try await lab.receiptVerifier().seen(row, for: app) == expected,
                        "\(proof.kind) \(isOnTrust)")
                }
            }
        }
    }

    // MARK: Legacy receipts

    private static let down = fault(.status) { $0.status = 503 }

    @Test("B10: a legacy receipt, by whatever strategy; what a service refuses in another way is no outage")
    func strategies() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let row = lab.row(.receipt(sale.receipt))
            let given = Seen.provisional([id: .coins], .retry(.appleAnswer))
            var refusesUs = FaultRequest(.receiptStatus, on: .verifyReceipt)
            refusesUs.status = 21004
            for (strategies, faults, expected) in [
                ("serverApi", [Self.down], given),
                ("verifyReceipt", [Self.down], given),
                ("[serverApi, verifyReceipt]", [Self.down], given),
                ("[verifyReceipt, serverApi]", [Self.down], given),
                ("[verifyReceipt, serverApi]", [refusesUs, Self.down], .retry(.appleAnswer)),
                ("[serverApi, verifyReceipt]", [refusesUs, Self.down], .retry(.appleAnswer)),
            ] as [(String, [FaultRequest], Seen)] {
                lab.store.clearFaults()
                for fault in faults { try lab.store.fault(fault) }
                let seen =
                    try await lab.receiptVerifier().seen(row, for: try await Self.app(lab, legacyReceipts: strategies))
                #expect(seen == expected, "\(strategies) \(faults.count)")
                let off = try await Self.app(lab, isOn: false, legacyReceipts: strategies)
                let otherwise = try await lab.receiptVerifier().seen(row, for: off)
                #expect(otherwise == .retry(.appleAnswer) || otherwise == .postpone(.halted))
                try await lab.lab.run("delete from halts")
                await lab.halts.refresh()
            }
        }
    }

    @Test("B10: of many purchases only what nothing is known of: not granted, held, refunded, given before, or unsold")
    func unreached() async throws {
        try await VerifyLab.with { lab in
            let ids = try await lab.sell(5)
            let (granted, held, refunded, given, fresh) = (ids[0], ids[1], ids[2], ids[3], ids[4])
            let unsold = try await lab.sell { $0.productId = "other" }.purchase.transactionId
            let posted = try await lab.lab.post()
            try await lab.lab.settle(try await lab.lab.post("u2"), .purchase(granted))
            // A date long before the receipt was made.
            let past = Date(timeIntervalSince1970: 1_600_000_000)
            try await lab.lab.settle(
                try await lab.lab.post("u2"),
                .purchase(refunded, signedAt: past, .rejected(.refunded)) { $0.revokedAt = past })
            try await Self.give(given, by: posted, lab)
            #expect(try await lab.lab.settle(posted, .purchase(held, .held(.review))) == .held)
            try lab.store.fault(Self.down)
            let row = lab.row(.receipt(try lab.receipt(ids + [unsold])), id: posted.id, isOnTrust: true)
            for strategies in ["serverApi", "verifyReceipt"] {
                let app = try await Self.app(lab, legacyReceipts: strategies)
                #expect(
                    try await lab.receiptVerifier().seen(row, for: app)
                        == .provisional([fresh: .coins], .retry(.appleAnswer)), "\(strategies)")
            }
            // Apple is asked about the purchase on trust, and Apple's answer is the receipt's verdict.
            lab.store.clearFaults()
            let app = try await Self.app(lab, legacyReceipts: "serverApi")
            guard case .entries(let entries) = try await lab.receiptVerifier().seen(row, for: app) else {
                Issue.record("not judged")
                return
            }
            #expect(entries[given] == .coins && entries[fresh] == .coins && entries[granted] == .held(.review))
        }
    }

    @Test("B10: each purchase by its own refusal: what Apple answers, limits or was not asked about is not given")
    func each() async throws {
        try await VerifyLab.with { lab in
            let ids = try await lab.sell(2)
            let row = lab.row(.receipt(try lab.receipt(ids)))
            let app = try await Self.app(lab, legacyReceipts: "serverApi")
            // Apple answers about one purchase and not about the other.
            var once = Self.down
            once.count = 1
            try lab.store.fault(once)
            let partly = try await lab.receiptVerifier().seen(row, for: app)
            guard case .provisional(let given, .partly(let entries, .appleAnswer)) = partly, let id = given.keys.first
            else {
                Issue.record("not given on trust: \(partly)")
                return
            }
            #expect(given == [id: .coins] && entries.count == 2)
            for other in ids { #expect(entries[other] == (other == id ? .open(.appleAnswer) : .coins)) }
            // Apple does not answer about one purchase, and no call is left for the other.
            try lab.store.fault(Self.down)
            let calls = Mutex(1)
            let dry = Governor(
                lease: { _ in
                    let isLast = calls.withLock { left in
                        left -= 1
                        return left >= 0
                    }
                    // The answer grants a whole slice: a busy machine may find the end of a shorter one before it makes
                    // the call.
                    return .init(calls: isLast ? 1 : 0, endsIn: .milliseconds(250), stoppedFor: .zero)
                }, stop: { _, _ in }, logger: .silent)
            let limited =
                try await lab.receiptVerifier(AppleGateway(halts: lab.halts, governor: dry)).seen(row, for: app)
            guard case .provisional(let one, _) = limited else {
                Issue.record("not given on trust: \(limited)")
                return
            }
            #expect(one.count == 1)
            // More purchases than may be looked up: Apple was not asked about the rest.
            let many = lab.row(.receipt(try lab.receipt(ids + (try await lab.sell(6)))))
            guard case .provisional(let few, _) = try await lab.receiptVerifier().seen(many, for: app) else {
                Issue.record("not given on trust")
                return
            }
            #expect(few.count == ReceiptPlan.lookUpsMax)
            // In turn: an answer, a halt, a limit of Apple's.
            let single = lab.row(.receipt(try lab.receipt([ids[0]])))
            for (fault, expected) in [
                (Self.fault(.error) { $0.errorCode = 4_040_010 }, Seen.retry(.notFoundYet)),
                (Self.fault(.status) { $0.status = 401 }, .postpone(.halted)),
                (Self.fault(.error) { $0.errorCode = 4_290_000 }, .postpone(.appleUnavailable)),
            ] {
                lab.store.clearFaults()
                try lab.store.fault(fault)
                #expect(try await lab.receiptVerifier().seen(single, for: app) == expected, "\(fault)")
                try await lab.lab.run("delete from halts")
                await lab.halts.refresh()
            }
        }
    }

    @Test("B10: a legacy receipt in the local lane, while the breaker is open: given without a call")
    func localLane() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            for strategies in ["serverApi", "verifyReceipt"] {
                let app = try await Self.app(lab, legacyReceipts: strategies)
                let receiptVerifier = lab.receiptVerifier()
                #expect(
                    try await receiptVerifier.seen(lab.row(.receipt(sale.receipt), lane: .local), for: app)
                        == .reroute)
                try lab.store.fault(Self.down)
                for _ in 0..<Breaker.callsMin {
                    _ = await receiptVerifier.examine(lab.row(.receipt(sale.receipt), lane: .apple), for: app)
                }
                let calls = lab.store.calls().count
                #expect(
                    try await receiptVerifier.seen(lab.row(.receipt(sale.receipt), lane: .local), for: app)
                        == .provisional([id: .coins], .postpone(.appleUnavailable)), "\(strategies)")
                #expect(lab.store.calls().count == calls, "nobody was asked")
                lab.store.clearFaults()
            }
        }
    }
}
