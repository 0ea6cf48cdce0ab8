import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Settings
import Support
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: what a proof does not say is asked, or the decision says that nobody was asked; what a proof says in its own
/// way is read (F22, Ownership, notes 9 to 11). Method: the simulator over real HTTP, its list of calls, and a real
/// ledger.
@Suite(.timeLimit(.minutes(8))) struct ReceiptVerifierProofTests {
    private static let sword = AppPolicy.Product(
        id: "sword", kind: .nonConsumable, goods: [.init(item: "sword", amount: 1)])
    private static let pass = AppPolicy.Product(
        id: "pass", kind: .autoRenewable, goods: [.init(item: "pass", amount: 1)])

    private struct UnexpectedExamination: Error {}

    private static func entries(
        _ row: StoredReceipt, _ app: AppServices, _ lab: VerifyLab
    ) async throws -> [Verdict.Entry] {
        let examination = await lab.receiptVerifier().examine(row, for: app)
        guard case .decided(.transactions(let entries)) = examination else { throw UnexpectedExamination() }
        return entries
    }

    // MARK: What is shared

    @Test("note 9: before goods, Apple is asked whether a purchase is shared that a receipt alone lists; no other is")
    func sharing() async throws {
        try await VerifyLab.with { lab in
            func app(
                _ strategies: String, hasServerAPI: Bool = true, _ change: (inout AppPolicy) -> Void = { _ in }
            ) async throws -> AppServices {
                try await lab.app(hasServerAPI: hasServerAPI, legacyReceipts: strategies) {
                    $0.products["sword"] = Self.sword
                    change(&$0)
                }
            }
            let coins = try await lab.sell().purchase.transactionId
            let bought = try await lab.sell {
                $0.productId = "sword"
                $0.type = .nonConsumable
                $0.family = ["kid"]
            }
            let share = try #require(bought.family.first)
            let goods = Decision.grant(goods: Self.sword.goods, source: .poster)
            func row(_ sale: Sale, lane: Lane? = nil) throws -> StoredReceipt {
                let ids = [coins, sale.purchase.transactionId]
                return lab.row(
                    .receipt(try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))),
                    lane: lane)
            }
            for (sale, decision) in [(bought, goods), (share, .grant(goods: [], source: .shared))] {
                let before = lab.store.calls().count
                let id = sale.purchase.transactionId
                #expect(
                    Seen(await lab.receiptVerifier().examine(try row(sale), for: try await app("local")))
                        == .entries([coins: .coins, id: decision]))
                let calls = lab.store.calls(after: before)
                #expect(calls.map(\.service) == [.transactionInfo] && calls[0].transactionIds == [id])
            }
            // Only Apple's queue waits for Apple.
            let local = try await app("local")
            #expect(Seen(await lab.receiptVerifier().examine(try row(share, lane: .local), for: local)) == .reroute)
            let before = lab.store.calls().count
            // Nobody can be asked, and the decision says so.
            let entries = try await Self.entries(try row(share), try await app("local", hasServerAPI: false), lab)
            let unseen = try #require(entries.first { $0.transaction.id == share.purchase.transactionId })
            #expect(unseen.decision == goods && unseen.match?.reasons == [.sharingUnseen])
            let other = try #require(entries.first { $0.transaction.id == coins })
            #expect(other.match?.reasons == [])
            // A shared purchase gives as much as a bought one: there is nothing to ask.
            let generous = try await app("local") { $0.shared = .goods }
            #expect(try await Self.entries(try row(share), generous, lab).allSatisfy { $0.decision.gives })
            #expect(lab.store.calls().count == before)
            // Behind a service that is away, the receipt waits for that service.
            var fault = FaultRequest(.status, on: .transactionInfo)
            fault.status = 503
            try lab.store.fault(fault)
            let behind = try await app("[serverApi, local]")
            #expect(Seen(await lab.receiptVerifier().examine(try row(share), for: behind)) == .retry(.appleAnswer))
            #expect(
                Seen(await lab.receiptVerifier().examine(try row(share), for: local))
                    == .partly(
                        [
                            coins: .coins, share.purchase.transactionId: .open(.appleAnswer),
                        ], .appleAnswer))
        }
    }

    // MARK: Old signed transactions

    @Test(
        "note 11: an old signed transaction about which nobody asks says so; a fresh one, and one that Apple confirms, do not"
    )
    func unasked() async throws {
        try await VerifyLab.with { lab in
            let id = try await lab.sell().purchase.transactionId
            let hourAgo = Int64(Date.now.timeIntervalSince1970 - ReceiptVerifier.staleAfter - 60) * 1000
            let (old, fresh) = (try lab.store.sign(id, signedDate: hourAgo), try lab.store.sign(id))
            let asking = try await lab.app()
            let bare = try await lab.app(hasServerAPI: false)
            let never = try await lab.app { $0.confirmWithApple = .never }
            for (jws, app, isUnasked) in [
                (old, asking, false), (old, bare, true), (old, never, true), (fresh, bare, false),
                (fresh, never, false),
            ] {
                let row = lab.row(.signedTransaction(jws), lane: .apple)
                let entry = try #require(try await Self.entries(row, app, lab).first)
                #expect(entry.decision == .coins)
                #expect(entry.match?.reasons.contains(.appleUnasked) == isUnasked)
            }
            // It is the answer's to say.
            let posted = try await lab.lab.post("u1")
            let row = lab.row(.signedTransaction(old), lane: .apple)
            try await lab.lab.settle(posted, try #require(try await Self.entries(row, bare, lab).first))
            #expect(try await lab.lab.ledger.view(posted.id)?.transactions.first?.appleAsked == false)
        }
    }

    // MARK: Offers

    @Test(
        "note 10: verifyReceipt names offer codes and promotional offers",
        arguments: [
            (3, "SPRING", 3), (2, "loyal", 2), (1, nil, nil), (4, "back", nil), (nil, nil, nil),
        ] as [(Int?, String?, Int?)])
    func offers(type: Int?, name: String?, read: Int?) async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(hasServerAPI: false) { $0.products["pass"] = Self.pass }
            let sale = try await lab.sell {
                $0.productId = "pass"
                $0.type = .autoRenewable
                ($0.offerType, $0.offerIdentifier) = (type, name)
            }
            let entry = try #require(try await Self.entries(lab.row(.receipt(sale.receipt)), app, lab).first)
            #expect(entry.transaction.offerType == read && entry.decision.gives)
            #expect(entry.transaction.facts.contains("offerIdentifier") == (read != nil))
        }
    }

    // MARK: Other builds

    private static let catalyst = "maccatalyst.\(VerifyLab.bundleID)"
    private static let clip = "\(VerifyLab.bundleID).Clip"

    private static func listing(_ lab: VerifyLab, _ strategies: String) async throws -> AppServices {
        let configuration = try lab.configuration(
            legacyReceipts: strategies, more: ["bundleIdAliases: [\(catalyst)]"])
        return try await AppServices(try #require(configuration.apps[VerifyLab.appID]), http: lab.http)
    }

    @Test("F22: proofs of a listed build are the app's, and Apple is asked by the bundle id that sold the purchase")
    func listedBuilds() async throws {
        try await VerifyLab.with { lab in
            func sell() async throws -> Sale { try await lab.sell { $0.app = Self.catalyst } }
            for strategies in ["verifyReceipt", "serverApi", "local"] {
                let app = try await Self.listing(lab, strategies)
                let sale = try await sell()
                #expect(
                    Seen(await lab.receiptVerifier().examine(lab.row(.receipt(sale.receipt)), for: app))
                        == .entries([sale.purchase.transactionId: .coins]), "\(strategies)")
            }
            let app = try await Self.listing(lab, "serverApi")
            let id = try await sell().purchase.transactionId
            let hourAgo = Int64(Date.now.timeIntervalSince1970 - ReceiptVerifier.staleAfter - 60) * 1000
            let old = lab.row(.signedTransaction(try lab.store.sign(id, signedDate: hourAgo)), lane: .apple)
            #expect(Seen(await lab.receiptVerifier().examine(old, for: app)) == .entries([id: .coins]))
            // A bare id names no build.
            let asked = lab.row(.identifier, transactionID: id, isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(asked, for: app)) == .entries([id: .coins]))
            let unknown = lab.row(.identifier, transactionID: "999999999", isVouched: true)
            #expect(Seen(await lab.receiptVerifier().examine(unknown, for: app)) == .retry(.notFoundYet))
        }
    }

    @Test("F22: an alias that Apple refuses halts nothing, and no purchase is called unknown without its answer")
    func refusedBuild() async throws {
        try await VerifyLab.with { lab in
            let app = try await Self.listing(lab, "serverApi")
            let id = try await lab.sell { $0.app = Self.catalyst }.purchase.transactionId
            var refused = FaultRequest(.status, on: .transactionInfo, count: 1)
            refused.status = 401
            try lab.store.fault(refused)
            let hourAgo = Int64(Date.now.timeIntervalSince1970 - ReceiptVerifier.staleAfter - 60) * 1000
            let old = lab.row(.signedTransaction(try lab.store.sign(id, signedDate: hourAgo)), lane: .apple)
            #expect(Seen(await lab.receiptVerifier().examine(old, for: app)) == .retry(.appleAnswer))
            // The app's own bundle id comes first, then the alias.
            try lab.store.fault(FaultRequest(.notFound, on: .transactionInfo, count: 1))
            try lab.store.fault(refused)
            let asked = lab.row(
                .identifier, transactionID: id, isVouched: true, attempt: ReceiptVerifier.notFoundAttemptsMin,
                age: 2 * 86_400)
            #expect(Seen(await lab.receiptVerifier().examine(asked, for: app)) == .retry(.appleAnswer))
            #expect(Seen(await lab.receiptVerifier().examine(asked, for: app)) == .entries([id: .coins]))
            #expect(try await lab.lab.ledger.run(Statements.listHalts, ()).isEmpty)
        }
    }

    @Test("F22: a build that is not listed is another app's, and its bundle id is known by its form in every proof")
    func unlistedBuilds() async throws {
        try await VerifyLab.with { lab in
            for bundleID in [Self.clip, "com.example.other"] {
                let sale = try await lab.sell { $0.app = bundleID }
                let proofs = [Proof.signedTransaction(sale.signedTransaction), .receipt(sale.receipt)]
                for strategies in ["verifyReceipt", "serverApi", "local"] {
                    let app = try await Self.listing(lab, strategies)
                    for proof in proofs {
                        #expect(
                            Seen(await lab.receiptVerifier().examine(lab.row(proof), for: app))
                                == .whole(.rejected(.wrongApp)))
                        #expect(app.identity.variant(in: proof) == (bundleID == Self.clip ? bundleID : nil))
                    }
                    #expect(app.identity.variant(in: .identifier) == nil)
                    #expect(app.identity.variant(in: .receipt("bm8gcmVjZWlwdA==")) == nil)
                }
            }
            // The verdict stores it for support, and a later verdict forgets it.
            let posted = try await lab.lab.post("u1")
            var verdict = lab.lab.verdict(posted, .receipt(.rejected(.wrongApp)))
            verdict.variantBundleID = Self.clip
            try await lab.lab.settle(verdict)
            let explainer = Explainer(database: lab.lab.database, keys: nil)
            let timeline = try #require(try await explainer.timeline(of: .receipt(posted.id), for: .people))
            #expect(timeline.standing.reason == "wrong_app")
            #expect(timeline.next.text.contains(Self.clip) && timeline.next.text.contains("bundleIdAliases"))
        }
    }

    // MARK: Xcode

    @Test("an id of StoreKit's tests is stored behind its environment, and found by the bare id")
    func xcode() async throws {
        try await VerifyLab.with { lab in
            let configuration = try lab.configuration(
                environments: ["Xcode", "LocalTesting"],
                more: ["acceptUnsignedXcodeData: true", "sandboxPurchases: grant"])
            let app = try await AppServices(try #require(configuration.apps[VerifyLab.appID]), http: lab.http)
            for environment in ["Xcode", "LocalTesting"] {
                let row = lab.row(.signedTransaction(Self.unsigned("0", in: environment)), transactionID: "0")
                let entry = try #require(try await Self.entries(row, app, lab).first)
                #expect(entry.transaction.id == "\(environment)/0" && entry.transaction.isFirstOfChain)
                #expect(entry.decision == .coins)
                let posted = try await lab.lab.post("u1")
                #expect(try await lab.lab.settle(posted, entry) == .granted)
            }
            // Apple's transaction of the same number is another one.
            #expect(try await lab.lab.settle(try await lab.lab.post("u1"), .purchase("1")) == .granted)
            #expect(try await lab.lab.grants.count == 3)
            let explainer = Explainer(database: lab.lab.database, keys: nil)
            for (id, found) in [("0", "Xcode/0"), ("LocalTesting/0", "LocalTesting/0"), ("1", "1")] {
                let timeline = try await explainer.timeline(ofAny: id, for: .people)
                #expect(timeline?.subject == .transaction(found) && timeline?.standing.state == "granted", "\(id)")
            }
            #expect(try await explainer.timeline(ofAny: "2", for: .people) == nil)
        }
    }

    private static func unsigned(_ id: String, in environment: String) -> String {
        let now = Int64(Date.now.timeIntervalSince1970 * 1000)
        let header = #"{"alg":"ES256","kid":"Apple_Xcode_Key","typ":"JWT","x5c":["MIIB"]}"#
        let payload =
            #"{"transactionId":"\#(id)","originalTransactionId":"\#(id)","bundleId":"\#(VerifyLab.bundleID)","#
            + #""productId":"coins","type":"Consumable","quantity":1,"environment":"\#(environment)","#
            + #""purchaseDate":\#(now),"signedDate":\#(now)}"#
        return [header, payload, String(repeating: "s", count: 64)].map { part in
            Data(part.utf8).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_")
                .replacing("=", with: "")
        }.joined(separator: ".")
    }
}
