import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: a legacy receipt is judged by the app's strategies, in order; a forged receipt causes no call to Apple, and a
/// service that cannot answer does not stop the next one. Method: the simulator over real HTTP, its list of calls, and
/// a real ledger.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierStrategyTests {
    @Test("the Server API: one purchase, one call about it, and Apple's answer of today counts")
    func serverAPI() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "serverApi")
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let row = lab.row(.receipt(sale.receipt))
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries([id: .coins]))
            #expect(lab.store.calls().map(\.service) == [.transactionInfo])
            // The receipt cannot know of a refund that came later (AppleFacts 6.2).
            try lab.store.refund(id)
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries([id: .rejected(.refunded)]))
        }
    }

    @Test("of two purchases the refunded one is rejected, the other granted; without credentials nobody is asked")
    func refundedNeighbour() async throws {
        try await VerifyLab.with { lab in
            let (one, two) = (try await lab.sell(), try await lab.sell())
            let ids = [one, two].map(\.purchase.transactionId)
            let receipt = try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))
            try lab.store.refund(ids[0])
            let app = try await lab.app(legacyReceipts: "serverApi")
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app))
                    == .entries([ids[0]: .rejected(.refunded), ids[1]: .coins]))
            let calls = lab.store.calls().count
            let bare = try await lab.app(hasServerAPI: false, hasVerifyReceipt: false)
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: bare))
                    == .whole(.held(.credentialsMissing)))
            #expect(lab.store.calls().count == calls)
        }
    }

    @Test("P17: what is no receipt, or not Apple's, or not ours is rejected with its reason, and costs no call")
    func forged() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            var bytes = try #require(Data(base64Encoded: sale.receipt))
            bytes[bytes.count - 1] ^= 1
            var other = ReceiptRequest(app: VerifyLab.bundleID, transactionIds: [sale.purchase.transactionId])
            other.bundleId = "com.example.other"
            let sandbox = try await lab.sell { $0.environment = .sandbox }
            let table: [(String, Reason)] = [
                (bytes.base64EncodedString(), .signature), ("bm8gcmVjZWlwdA==", .malformed), ("%%%", .malformed),
                (String(sale.receipt.prefix(400)), .malformed), (try lab.store.receipt(other), .wrongApp),
                (sandbox.receipt, .wrongEnvironment),
            ]
            for strategies in ["serverApi", "local", "[serverApi, verifyReceipt]", "[local, serverApi]"] {
                let app = try await lab.app(legacyReceipts: strategies)
                for (text, reason) in table {
                    #expect(
                        Seen(await lab.receiptVerifier().examine(lab.row(.receipt(text)), for: app))
                            == .whole(.rejected(reason)), "\(strategies) \(reason)")
                }
                let stranger = try await lab.app(legacyReceipts: strategies, hasRoot: false)
                #expect(
                    Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: stranger))
                        == .whole(.rejected(.untrustedRoot)))
            }
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("P19: genuine and empty is held by every strategy, and costs no call")
    func empty() async throws {
        try await VerifyLab.with { lab in
            let receipt = try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: []))
            for strategies in ["serverApi", "local", "[serverApi, verifyReceipt]"] {
                let app = try await lab.app(legacyReceipts: strategies)
                #expect(
                    Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app))
                        == .whole(.held(.noTransactionYet)))
                #expect(
                    Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt), isTakenOver: true), for: app))
                        == .whole(.rejected(.takenOver)))
            }
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("a sandbox receipt asks the sandbox alone, for one purchase and for a history")
    func sandbox() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(environments: ["Production", "Sandbox"], legacyReceipts: "serverApi") {
                $0.testers = ["u1"]
            }
            let ids = try await lab.sell(10) { $0.environment = .sandbox }
            var request = ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids)
            request.environment = .sandbox
            let row = lab.row(.receipt(try lab.store.receipt(request)))
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries(.all(ids, .coins)))
            let calls = lab.store.calls()
            #expect(Set(calls.map(\.environment)) == [.sandbox])
            #expect(calls.count { $0.service == .history } == 1)
        }
    }

    @Test("local: the receipt's own facts decide, without a call; a clock that is ahead is waited for")
    func local() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "local")
            let (sale, refunded) = (try await lab.sell(), try await lab.sell())
            try lab.store.refund(refunded.purchase.transactionId)
            let ids = [sale, refunded].map(\.purchase.transactionId)
            let receipt = try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))
            let expected = Seen.entries([ids[0]: .coins, ids[1]: .rejected(.refunded)])
            #expect(Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app)) == expected)
            // The receipt waits in the queue that does not depend on Apple.
            #expect(app.policy.lane(of: .receipt(receipt), isAwaited: false) == .local)
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt), lane: .local), for: app))
                    == expected)
            let early = lab.row(.receipt(receipt), readAgo: ReceiptVerifier.clockAheadMax + 60)
            #expect(Seen(await lab.receiptVerifier().examine(early, for: app)) == .retry(.clockAhead))
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("what was bought before grantFrom, is no product or belongs to a tester needs no call")
    func nothingToGrant() async throws {
        try await VerifyLab.with { lab in
            let old = try await lab.sell(300) { $0.purchaseDate = 1_500_000_000_000 }
            let unsold = try await lab.sell { $0.productId = "other" }.purchase.transactionId
            let receipt = try lab.store.receipt(
                ReceiptRequest(app: VerifyLab.bundleID, transactionIds: old + [unsold]))
            let app = try await lab.app(legacyReceipts: "serverApi")
            var expected = [String: Decision].all(old, .rejected(.historical))
            expected[unsold] = .held(.productUnknown)
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app)) == .entries(expected))
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("a big receipt that brings nothing new does not go to Apple, whatever is asked first; else it does, unasked")
    func bigReceiptOfThePast() async throws {
        try await VerifyLab.with { lab in
            let old = try await lab.sell(40) { $0.purchaseDate = 1_500_000_000_000 }
            let new = try await lab.sell().purchase.transactionId
            let month = try await lab.sell {
                $0.productId = "month"
                $0.type = .autoRenewable
                $0.purchaseDate = 1_500_000_000_000
            }.purchase.transactionId
            let unsold = try await lab.sell { $0.productId = "other" }.purchase.transactionId
            let past = Seen.entries(.all(old, .rejected(.historical)))
            func row(_ ids: [String], _ lane: Lane = .bulk) throws -> StoredReceipt {
                lab.row(
                    .receipt(try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))),
                    lane: lane)
            }
            for strategies in ["verifyReceipt", "[verifyReceipt, serverApi]", "serverApi"] {
                let app = try await lab.app(legacyReceipts: strategies)
                #expect(Seen(await lab.receiptVerifier().examine(try row(old), for: app)) == past, "\(strategies)")
                #expect(
                    Seen(await lab.receiptVerifier().examine(try row(old + [new]), for: app)) == .reroute,
                    "\(strategies)")
            }
            let app = try await lab.app(legacyReceipts: "verifyReceipt")
            // verifyReceipt may know more than the receipt about a subscription, and about a held purchase, for example
            // that it is shared.
            for more in [month, unsold] {
                #expect(Seen(await lab.receiptVerifier().examine(try row(old + [more]), for: app)) == .reroute)
            }
            // A receipt with a purchase on trust waits for Apple's answer.
            let given = lab.row(try row(old).proof, lane: .bulk, isOnTrust: true)
            #expect(Seen(await lab.receiptVerifier().examine(given, for: app)) == .reroute)
            // A receipt that cannot be verified here goes to Apple.
            let blind = try await lab.app(legacyReceipts: "verifyReceipt", hasRoot: false)
            #expect(Seen(await lab.receiptVerifier().examine(try row(old), for: blind)) == .reroute)
            #expect(
                Seen(await lab.receiptVerifier().examine(try row(old, .apple), for: app)) == past, "in whatever lane")
            #expect(lab.store.calls().isEmpty)
        }
    }

    // MARK: Lists

    @Test("a service that cannot answer leaves it to the next; one that answers decides")
    func lists() async throws {
        try await VerifyLab.with { lab in
            let down = { (endpoint: FaultRequest.Endpoint) in
                var fault = FaultRequest(.status, on: endpoint)
                fault.status = 503
                return fault
            }
            var twentyOneTwo = FaultRequest(.receiptStatus, on: .verifyReceipt)
            twentyOneTwo.status = 21002
            let table: [(String, [FaultRequest], [SimulatedService])] = [
                ("[serverApi, verifyReceipt]", [down(.transactionInfo)], [.transactionInfo, .verifyReceipt]),
                ("[serverApi, verifyReceipt]", [], [.transactionInfo]),
                ("[verifyReceipt, serverApi]", [down(.verifyReceipt)], [.verifyReceipt, .transactionInfo]),
                // P15: if the receipt verifies here, this answer counts as trouble at Apple.
                ("[verifyReceipt, serverApi]", [twentyOneTwo], [.verifyReceipt, .transactionInfo]),
                ("[verifyReceipt, local]", [twentyOneTwo], [.verifyReceipt]),
                ("[verifyReceipt, serverApi]", [], [.verifyReceipt]),
                ("[serverApi, local]", [down(.transactionInfo)], [.transactionInfo]),
                (
                    "[serverApi, verifyReceipt, local]", [down(.transactionInfo), down(.verifyReceipt)],
                    [.transactionInfo, .verifyReceipt]
                ),
                ("[local, serverApi]", [], []),
            ]
            for (strategies, faults, services) in table {
                let sale = try await lab.sell()
                let app = try await lab.app(legacyReceipts: strategies)
                for fault in faults { try lab.store.fault(fault) }
                let before = lab.store.calls().count
                let seen = Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: app))
                #expect(seen == .entries([sale.purchase.transactionId: .coins]), "\(strategies)")
                #expect(lab.store.calls(after: before).map(\.service) == services, "\(strategies)")
                lab.store.clearFaults()
            }
        }
    }

    @Test("with nobody left to ask it is a try, with the call's figures; 21002 is never final (P15)")
    func nobodyAnswers() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            var fault = FaultRequest(.status, on: .all)
            fault.status = 503
            try lab.store.fault(fault)
            let app = try await lab.app(legacyReceipts: "[serverApi, verifyReceipt]")
            for (age, attempt) in [(0.0, 0), (864_000, 100)] {
                let row = lab.row(.receipt(sale.receipt), attempt: attempt, age: age)
                guard case .retry(.appleAnswer, let call?) = await lab.receiptVerifier().examine(row, for: app) else {
                    Issue.record("not tried again")
                    continue
                }
                #expect(call.service == "serverApi" && call.httpStatus == 503)
            }
        }
    }

    @Test("a halt of the Server API leaves receipts to verifyReceipt, and asks with the refused key no more")
    func halted() async throws {
        try await VerifyLab.with { lab in
            var refused = FaultRequest(.status, on: .transactionInfo)
            refused.status = 401
            try lab.store.fault(refused)
            let app = try await lab.app(legacyReceipts: "[serverApi, verifyReceipt]")
            let receiptVerifier = lab.receiptVerifier()
            for number in 0..<3 {
                let sale = try await lab.sell()
                let before = lab.store.calls().count
                #expect(
                    Seen(await receiptVerifier.examine(lab.row(.receipt(sale.receipt)), for: app))
                        == .entries([sale.purchase.transactionId: .coins]))
                #expect(
                    lab.store.calls(after: before).map(\.service)
                        == (number == 0 ? [.transactionInfo, .verifyReceipt] : [.verifyReceipt]))
            }
            let alone = try await lab.app(legacyReceipts: "serverApi")
            let sale = try await lab.sell()
            #expect(
                Seen(await receiptVerifier.examine(lab.row(.receipt(sale.receipt)), for: alone)) == .postpone(.halted))
        }
    }

    @Test("a limit of ours is a wait, and so is a time that Apple names: neither sends the load elsewhere")
    func limits() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let app = try await lab.app(legacyReceipts: "[serverApi, verifyReceipt]")
            let dry = Governor(
                lease: { _ in .init(calls: 0, endsIn: .milliseconds(250), stoppedFor: .zero) }, stop: { _, _ in },
                logger: .silent)
            let receiptVerifier = lab.receiptVerifier(AppleGateway(halts: lab.halts, governor: dry))
            #expect(
                Seen(await receiptVerifier.examine(lab.row(.receipt(sale.receipt)), for: app))
                    == .postpone(.appleBudget))
            #expect(lab.store.calls().isEmpty)
            var limited = FaultRequest(.error, on: .all)
            limited.errorCode = 4_290_000
            limited.retryAfterMilliseconds = 90_000
            try lab.store.fault(limited)
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: app))
                    == .postpone(.appleUnavailable))
            #expect(lab.store.calls().map(\.service) == [.transactionInfo])
        }
    }

    @Test("P14: a purchase Apple signed is not found yet, however long ago: never not found")
    func notFoundYet() async throws {
        try await VerifyLab.with { lab in
            let late = try await lab.sell { $0.visibleAfterMilliseconds = 86_400_000 }
            let app = try await lab.app(legacyReceipts: "[serverApi, verifyReceipt]")
            for (age, attempt) in [(0.0, 0), (864_000, 100)] {
                let row = lab.row(.receipt(late.receipt), attempt: attempt, age: age)
                #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .retry(.notFoundYet))
            }
            // The other purchase does not wait for it.
            let sale = try await lab.sell()
            let ids = [late, sale].map(\.purchase.transactionId)
            let receipt = try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app))
                    == .partly([ids[0]: .open(.notFoundYet), ids[1]: .coins], .notFoundYet))
        }
    }

    // MARK: Tokens that a receipt does not show

    @Test("5.1 note 2: where a token may say whose it is, a local proof waits with the service that is away")
    func localBehindOthers() async throws {
        try await VerifyLab.with { lab in
            let app = { try await lab.app(legacyReceipts: $0) }
            for strategies in ["[verifyReceipt, local]", "[serverApi, local]"] {
                lab.store.clearFaults()
                let sale = try await lab.sell()
                let id = sale.purchase.transactionId
                let row = lab.rowAmongOrders(sale)
                var fault = FaultRequest(.status, on: .transactionInfo)
                fault.status = 503
                try lab.store.fault(fault)
                let seen = { try await lab.receiptVerifier().seen($0, for: $1) }
                #expect(try await seen(row, try await app(strategies)) == .retry(.appleAnswer), "\(strategies)")
                // Trust is a policy of its own, and is asked as in any outage (B10).
                let trusting = try await lab.app(legacyReceipts: strategies) {
                    $0.provisional = .init(perUserPerDay: 1, perAppPerDay: 1, purchasesMin: 0)
                    $0.products["coins"]?.isProvisional = true
                }
                #expect(
                    try await seen(row, trusting) == .provisional([id: .coins], .retry(.appleAnswer)), "\(strategies)")
                // A purchase that needs no answer of Apple's does not wait, whichever service is down.
                fault.endpoint = .all
                try lab.store.fault(fault)
                try await lab.lab.settle(try await lab.lab.post("u2"), .purchase(id))
                #expect(
                    try await seen(row, try await app(strategies)) == .entries([id: .held(.review)]), "\(strategies)")
            }
            let sale = try await lab.sell()
            let calls = lab.store.calls().count
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.rowAmongOrders(sale), for: try await app("local")))
                    == .entries([sale.purchase.transactionId: .coins]), "it has nobody to wait for")
            #expect(lab.store.calls().count == calls)
        }
    }

    @Test("P14: what verifyReceipt confirms and the Server API never finds is judged by verifyReceipt in the end")
    func neverShown() async throws {
        try await VerifyLab.with { lab in
            try await lab.lab.place("u1")
            try await lab.lab.run("update orders set placed_at = now() - interval '1 minute'")
            let app = try await lab.app(legacyReceipts: "verifyReceipt")
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            var fault = FaultRequest(.error, on: .transactionInfo)
            fault.errorCode = 4_040_010
            try lab.store.fault(fault)
            for (attempt, age) in [(0, 0.0), (100, 3600), (ReceiptVerifier.notFoundAttemptsMin - 2, 90_000)] {
                #expect(
                    Seen(
                        await lab.receiptVerifier().examine(
                            lab.rowAmongOrders(sale, attempt: attempt, age: age), for: app))
                        == .retry(.notFoundYet))
            }
            let old = lab.rowAmongOrders(sale, attempt: ReceiptVerifier.notFoundAttemptsMin - 1, age: 90_000)
            guard case .decided(.transactions(let entries)) = await lab.receiptVerifier().examine(old, for: app) else {
                Issue.record("not decided")
                return
            }
            #expect(entries.map(\.transaction.id) == [id] && entries[0].decision.gives)
            #expect(entries[0].match?.source == .openOrder && entries[0].match?.reasons.contains(.tokenUnseen) == true)
            // The receipt's own data is from the day on which it was made.
            let api = try await lab.app(legacyReceipts: "serverApi")
            #expect(Seen(await lab.receiptVerifier().examine(old, for: api)) == .retry(.notFoundYet))
            lab.store.clearFaults()
            var down = FaultRequest(.status, on: .transactionInfo)
            down.status = 503
            try lab.store.fault(down)
            #expect(Seen(await lab.receiptVerifier().examine(old, for: app)) == .retry(.appleAnswer), "not an answer")
        }
    }

    // MARK: The local lane

    @Test(
        "in the local lane nothing waits for Apple: what needs a call goes to the other one, or on while Apple is away")
    func localLane() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "[serverApi, verifyReceipt, local]")
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let row = lab.row(.receipt(sale.receipt), lane: .local)
            let scale = 0.5
            let appleGateway = AppleGateway(halts: lab.halts, governor: lab.governor(scale: scale))
            let receiptVerifier = lab.receiptVerifier(appleGateway)
            #expect(Seen(await receiptVerifier.examine(row, for: app)) == .reroute)
            #expect(lab.store.calls().isEmpty)
            var fault = FaultRequest(.status, on: .all)
            fault.status = 503
            try lab.store.fault(fault)
            let signed = lab.row(.signedTransaction(sale.signedTransaction), lane: .apple)
            let asking = try await lab.app { $0.confirmWithApple = .always }
            let legacy = try await lab.app(legacyReceipts: "verifyReceipt")
            for _ in 0..<Breaker.callsMin {
                _ = await receiptVerifier.examine(signed, for: asking)
                _ = await receiptVerifier.examine(lab.row(.receipt(sale.receipt)), for: legacy)
            }
            #expect(appleGateway.absence(of: .serverApi, for: app) != nil)
            let calls = lab.store.calls().count
            #expect(Seen(await receiptVerifier.examine(row, for: app)) == .entries([id: .coins]))
            #expect(lab.store.calls().count == calls)
        }
    }

    // MARK: iOS 6 style receipts

    @Test("P20: anybody can write an iOS 6 style receipt: no possession, unless Apple or a trusted backend says so")
    func transactionReceipts() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let text = Self.transactionReceipt(id)
            let app = try await lab.app(legacyReceipts: "[serverApi, local]")
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(text)), for: app))
                    == .whole(.held(.possessionMissing)))
            #expect(lab.store.calls().isEmpty)
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(text), isVouched: true), for: app))
                    == .entries([id: .coins]))
            #expect(lab.store.calls().map(\.service) == [.transactionInfo])
            // Where verifyReceipt may be asked, it checks the signature that only Apple can check.
            let both = try await lab.app(legacyReceipts: "[serverApi, verifyReceipt]")
            let before = lab.store.calls().count
            _ = await lab.receiptVerifier().examine(lab.row(.receipt(text)), for: both)
            #expect(lab.store.calls(after: before).map(\.service) == [.verifyReceipt])
            let unknown = lab.row(.receipt(Self.transactionReceipt("999999999")), isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(unknown, for: app)) == .retry(.notFoundYet))
            let sandbox = lab.row(.receipt(Self.transactionReceipt(id, environment: "Sandbox")), isVouched: true)
            #expect(
                Seen(await lab.receiptVerifier().examine(sandbox, for: app)) == .whole(.rejected(.wrongEnvironment)))
        }
    }

    private static func transactionReceipt(_ id: String, environment: String? = nil) -> String {
        let info = Data("{\n\t\"transaction-id\" = \"\(id)\";\n\t\"bid\" = \"\(VerifyLab.bundleID)\";\n}".utf8)
        let sandbox = environment.map { "\t\"environment\" = \"\($0)\";\n" } ?? ""
        return Data("{\n\t\"purchase-info\" = \"\(info.base64EncodedString())\";\n\(sandbox)}".utf8)
            .base64EncodedString()
    }
}

extension VerifyLab {
    /// A receipt of `u1` to an app with orders: the purchase may be another user's by a token.
    fileprivate func rowAmongOrders(_ sale: Sale, attempt: Int = 0, age: TimeInterval = 0) -> StoredReceipt {
        var row = row(.receipt(sale.receipt), attempt: attempt, age: age)
        row.appHasOrders = true
        return row
    }
}

extension [String: Decision] {
    static func all(_ ids: [String], _ decision: Decision) -> [String: Decision] {
        Dictionary(ids.map { ($0, decision) }, uniquingKeysWith: { first, _ in first })
    }
}
