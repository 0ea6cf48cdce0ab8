import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import Reconciliation

/// Goal: policy is asked about trust when Apple cannot be reached, and then only (B10). Method: faults of the simulator
/// over real HTTP, with the policy on and off.
@Suite(.timeLimit(.minutes(8))) struct ExaminerTrustTests {
    private static let limits = AppPolicy.Provisional(perUserPerDay: 1, perAppPerDay: 1, purchasesMin: 0)

    private static func app(_ lab: VerifyLab, isOn: Bool = true) async throws -> AppServices {
        try await lab.app {
            $0.confirmWithApple = .always
            $0.provisional = isOn ? limits : nil
            $0.products["coins"]?.isProvisional = isOn
        }
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
                let seen = Seen(await lab.examiner().examine(row, for: try await Self.app(lab)))
                #expect(seen == .bridge([id: .coins], .retry(reason)), "\(fault)")
                let off = Seen(await lab.examiner().examine(row, for: try await Self.app(lab, isOn: false)))
                #expect(off == .retry(reason))
                let again = lab.row(
                    .signedTransaction(sale.signedTransaction), lane: .apple, attempt: 1, reason: .unconfirmed)
                let second = Seen(await lab.examiner().examine(again, for: try await Self.app(lab)))
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
                Seen(await lab.examiner().examine(refunded, for: app))
                    == .entries([taken.purchase.transactionId: .rejected(.refunded)]))
            for (fault, expected) in [
                (Self.fault(.error) { $0.errorCode = 4_040_010 }, Seen.retry(.notFoundYet)),
                (Self.fault(.error) { $0.errorCode = 4_000_006 }, .retry(.appleAnswer)),
                (Self.fault(.status) { $0.status = 403 }, .retry(.appleAnswer)),
                (Self.fault(.status) { $0.status = 401 }, .postpone(.halted)),
                // Last, for then our own limiter holds back.
                (Self.fault(.error) { $0.errorCode = 4_290_000 }, .postpone(.appleUnavailable)),
            ] as [(FaultRequest, Seen)] {
                lab.store.clearFaults()
                try lab.store.fault(fault)
                #expect(Seen(await lab.examiner().examine(row, for: app)) == expected, "\(fault)")
                try await lab.lab.run("delete from halts")
                await lab.halts.refresh()
            }
            #expect(Seen(await lab.examiner().examine(row, for: app)) == .postpone(.appleBudget))
        }
    }

    @Test("while the breaker is open, nobody is asked: trust is given in Apple's queue, where the local one sends it")
    func breakerOpen() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let proof = Proof.signedTransaction(sale.signedTransaction)
            let app = try await Self.app(lab)
            let examiner = lab.examiner()
            #expect(Seen(await examiner.examine(lab.row(proof), for: app)) == .reroute)
            try lab.store.fault(Self.fault(.status) { $0.status = 503 })
            for _ in 0..<Breaker.callsMin { _ = await examiner.examine(lab.row(proof, lane: .apple), for: app) }
            let calls = lab.store.calls().count
            let id = sale.purchase.transactionId
            #expect(Seen(await examiner.examine(lab.row(proof), for: app)) == .reroute)
            #expect(
                Seen(await examiner.examine(lab.row(proof, lane: .apple), for: app))
                    == .bridge([id: .coins], .postpone(.appleUnavailable)))
            #expect(lab.store.calls().count == calls, "nobody was asked")
            #expect(Seen(await examiner.examine(lab.row(proof, reason: .unconfirmed), for: app)) == .reroute)
        }
    }
}
