import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: a field of Apple's with another type, or none, costs nobody a purchase, and gives no other one (F15, F23).
/// Method: the simulated App Store signs its own payloads with one field changed.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierFieldTests {
    /// The sale's signed data with one field changed, or left out for nil.
    private func signed(_ sale: Sale, _ field: String, _ value: JSON?, in lab: VerifyLab) throws -> Proof {
        let parts = sale.signedTransaction.utf8.split(separator: UInt8(ascii: "."))
        let bytes = try #require(Base64.decodeURL(Array(parts[1])[...]))
        var payload = try #require(try JSON(parsing: bytes).object)
        payload[field] = value
        return .signedTransaction(try lab.store.sign(JSON.object(payload).bytes))
    }

    @Test("F15: a field of another type is read or unknown; without an id or a date the purchase is asked for again")
    func otherTypes() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let granted = Seen.entries([id: .coins])
            let number = try #require(Int64(id))
            for (field, value, expected) in [
                ("transactionId", .integer(number), granted), ("originalTransactionId", .integer(number), granted),
                ("quantity", .string("1"), granted), ("quantity", .object([:]), granted),
                ("purchaseDate", .string(String(sale.purchase.purchaseDate)), granted),
                ("price", .bool(true), granted), ("storefrontId", .integer(143_441), granted),
                ("isUpgraded", .integer(0), granted), ("type", .integer(7), granted),
                ("expiresDate", .string(""), granted),
                ("revocationDate", .null, granted), ("revocationDate", .string(""), granted),
                ("revocationDate", .string("1780000000000"), .entries([id: .rejected(.refunded)])),
                ("revocationDate", .object([:]), .retry(.appleAnswer)),
                ("transactionId", .number(0.5), .retry(.appleAnswer)), ("productId", .array([]), .retry(.appleAnswer)),
                ("bundleId", .bool(true), .retry(.appleAnswer)), ("bundleId", nil, .retry(.appleAnswer)),
                ("bundleId", .string("com.example.other"), .whole(.rejected(.wrongApp))),
                ("purchaseDate", .object([:]), .retry(.appleAnswer)), ("purchaseDate", nil, .retry(.appleAnswer)),
                ("environment", .string("Moon"), .whole(.rejected(.wrongEnvironment))),
            ] as [(String, JSON?, Seen)] {
                let row = lab.row(try signed(sale, field, value, in: lab))
                #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == expected, "\(field)")
            }
            #expect(lab.store.calls().isEmpty)
            // Other signed data in a transaction's place is no purchase at all.
            let renewal = #"{"originalTransactionId":"1","environment":"Production","autoRenewStatus":1}"#
            let other = lab.row(.signedTransaction(try lab.store.sign(Array(renewal.utf8))))
            #expect(Seen(await lab.receiptVerifier().examine(other, for: app)) == .whole(.rejected(.wrongApp)))
        }
    }

    @Test("F23: a transaction that names no environment is of the host that knows it, and never rejected unasked")
    func noEnvironment() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            let both = try await lab.app(environments: ["Production", "Sandbox"])
            let sale = try await lab.sell()
            let sandbox = try await lab.sell { $0.environment = .sandbox }
            let production = ["Production"]
            let asked = ["Production", "Sandbox"]
            for (sale, app, expected, calls) in [
                (sale, app, .entries([sale.purchase.transactionId: .coins]), production),
                (sandbox, app, .whole(.rejected(.wrongEnvironment)), asked),
                (sandbox, both, .entries([sandbox.purchase.transactionId: .held(.sandbox)]), asked),
                (sale, try await lab.app(hasServerAPI: false), .whole(.held(.credentialsMissing)), []),
            ] as [(Sale, AppServices, Seen, [String])] {
                for value in [nil, JSON.null, .object([:])] {
                    let before = lab.store.calls().count
                    let proof = try signed(sale, "environment", value, in: lab)
                    if !calls.isEmpty {
                        let local = await lab.receiptVerifier().examine(lab.row(proof), for: app)
                        #expect(Seen(local) == .reroute)
                    }
                    let seen = Seen(await lab.receiptVerifier().examine(lab.row(proof, lane: .apple), for: app))
                    #expect(seen == expected)
                    #expect(lab.store.calls(after: before).map(\.environment.rawValue) == calls)
                }
            }
            var unknown = FaultRequest(.notFound, on: .transactionInfo)
            unknown.count = 2
            try lab.store.fault(unknown)
            let row = lab.row(try signed(sale, "environment", nil, in: lab), lane: .apple, attempt: 100, age: 864_000)
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .retry(.notFoundYet))
        }
    }
}
