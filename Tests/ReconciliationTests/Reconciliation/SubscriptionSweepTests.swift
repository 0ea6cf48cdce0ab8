import AppStore
import AppStoreSimulator
import Foundation
import Postgres
import Purchases
import RabbitMQ
import Testing
import WorkQueue

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings

/// Goal: a worker finds what became of a subscription that nobody told it of, whatever Apple answers, and moves the
/// chain's position only by an answer (S3-54, S3-55). Method: a sweep between the simulator, whose subscriptions live by
/// themselves, and a real ledger, round by round; the store's own record says which calls came.
@Suite(.timeLimit(.minutes(8))) struct SubscriptionSweepTests {
    @Test("a renewal that nobody told is one receipt of the sweep, and the chain rests until the new end")
    func renewal() async throws {
        try await VerifyLab.with { lab in
            let sweep = try await lab.sweep()
            var rests = SweepRests<String>()
            _ = try await lab.subscribe(periods: 1)
            await sweep.round(&rests)
            #expect(try await lab.unposted() == ["signed_transaction sweep unposted received"])
            #expect(try await lab.chain("asks, ask_failures, ask_until is null, apple_state") == "1 0 t active")
            let waits = "extract(epoch from ask_at - asked_end) between 30 and 150 and asked_end > now()"
            #expect(try await lab.chain(waits) == "t")
            #expect(
                try await lab.lab.texts("select concat_ws(' ', kind, net) from net_catches") == [
                    "purchase subscription"
                ])
            #expect(try await lab.lab.number("select count(*) from chains where renewal is not null") == 1)
            #expect(try await lab.lab.number("select count(*) from history_walks where wanted_by is not null") == 0)
            // It is not due any more. A question too many changes nothing.
            await sweep.round(&rests)
            #expect(lab.store.calls().map(\.service) == [.subscriptionStatuses])
            try await lab.dueAgain()
            await sweep.round(&rests)
            #expect(try await lab.unposted().count == 1)
            #expect(try await lab.chain("asks") == "2")
            #expect(lab.store.calls().count == 2)
        }
    }

    @Test("P39: where periods are missing, or another product came, the customer's history is asked for")
    func missing() async throws {
        try await VerifyLab.with { lab in
            let sweep = try await lab.sweep()
            var rests = SweepRests<String>()
            _ = try await lab.subscribe(periods: 2)
            await sweep.round(&rests)
            let wanted = "select wanted_by from history_walks where wanted_by is not null"
            #expect(try await lab.lab.texts(wanted) == ["missing_periods"])
            try await lab.lab.run("update history_walks set wanted_by = null")

            let upgraded = try await lab.subscribe(periods: 1)
            var change = SubscriptionRequest()
            (change.nextProductId, change.change) = ("gold", .upgrade)
            try lab.store.change(change, of: upgraded)
            await sweep.round(&rests)
            #expect(try await lab.lab.texts(wanted) == ["missing_periods"])
            #expect(
                try await lab.lab.texts(
                    "select product_id from transactions where original_transaction_id = '\(upgraded)' order by purchased_at"
                )
                    == ["pass", "gold"])
        }
    }

    @Test("an answer that nobody can verify, that is none, or that knows no such id moves nothing but the next try")
    func badAnswers() async throws {
        try await VerifyLab.with { lab in
            let sweep = try await lab.sweep()
            var rests = SweepRests<String>()
            _ = try await lab.subscribe(periods: 1)
            let kinds: [FaultRequest.Kind] = [.foreignRoot, .garbage, .notFound]
            for (tries, kind) in kinds.enumerated() {
                try lab.store.fault(FaultRequest(kind, on: .subscriptionStatuses, count: 1))
                await sweep.round(&rests)
                #expect(
                    try await lab.chain("asks, ask_failures, ask_until is null, asked_at is null")
                        == "0 \(tries + 1) t t")
                #expect(try await lab.chain("ask_at > now() + interval '2 s'") == "t", "\(kind)")
                #expect(try await lab.unposted() == [])
                try await lab.dueAgain()
            }
            await sweep.round(&rests)
            #expect(try await lab.chain("asks, ask_failures") == "1 0")
            #expect(try await lab.unposted().count == 1)
        }
    }

    @Test(
        "after 429 the app's chains rest; where Apple refuses the key, the app is halted; no failure is written",
        arguments: [429, 401])
    func refused(status: Int) async throws {
        try await VerifyLab.with { lab in
            let sweep = try await lab.sweep()
            var rests = SweepRests<String>()
            _ = try await lab.subscribe(periods: 1)
            var fault = FaultRequest(.status, on: .subscriptionStatuses, count: 1)
            fault.status = status
            try lab.store.fault(fault)
            await sweep.round(&rests)
            #expect(try await lab.chain("asks, ask_failures, ask_until > now()") == "0 0 t")
            try await lab.dueAgain()
            await sweep.round(&rests)
            #expect(lab.store.calls().count == 1)
            #expect(try await lab.chain("ask_at <= now()") == "t")
            #expect(try await lab.lab.texts("select service from halts") == (status == 401 ? ["serverApi"] : []))
            #expect(try await lab.unposted() == [])
        }
    }

    @Test("S3-54: without credentials verifyReceipt is asked with the stored receipt, and a newer one is judged")
    func byReceipt() async throws {
        try await VerifyLab.with { lab in
            let sweep = try await lab.sweep(hasServerAPI: false)
            var rests = SweepRests<String>()
            let chain = try await lab.subscribe(periods: 1, byReceipt: true)
            await sweep.round(&rests)
            #expect(lab.store.calls().map(\.service) == [.verifyReceipt])
            #expect(try await lab.unposted() == ["receipt sweep unposted received"])
            #expect(try await lab.chain("asks, apple_state is null, asked_end > now()") == "1 t t")
            #expect(
                try await lab.lab.texts("select concat_ws(' ', kind, net) from net_catches") == [
                    "purchase subscription"
                ])
            #expect(try await lab.chain("renewal ->> 'renewsAutomatically'") == "true")
            // The receipt was judged. The same list again is no news, and the stored facts stay as they are.
            let found = try #require(
                try await lab.lab.texts(
                    "select transaction_id from transactions where transaction_id <> '\(chain)'"
                ).first)
            let receipt = try await lab.lab.texts("select id::text from receipts where source = 'sweep'")
            let entry = Verdict.Entry(
                transaction: try await lab.transaction(lab.store.sign(found)), decision: .held(.productUnknown))
            try await lab.lab.settle(
                Posted(id: try #require(receipt.first.flatMap(UUID.init)), userID: nil, appID: VerifyLab.appID), entry)
            let signed = "select max(signed_at)::text from transactions"
            let before = try await lab.lab.texts(signed)
            try await lab.dueAgain()
            await sweep.round(&rests)
            #expect(lab.store.calls().count == 2)
            #expect(try await lab.unposted().count == 1)
            #expect(try await lab.lab.texts(signed) == before)
        }
    }

    @Test("without credentials and without a stored receipt nothing can be asked, until new facts come")
    func noReceipt() async throws {
        try await VerifyLab.with { lab in
            let sweep = try await lab.sweep(hasServerAPI: false)
            var rests = SweepRests<String>()
            _ = try await lab.subscribe(periods: 1)
            await sweep.round(&rests)
            #expect(lab.store.calls().isEmpty)
            #expect(try await lab.chain("ask_at, ask_until is null") == "infinity t")
        }
    }
}

extension VerifyLab {
    private static let products =
        "{id: pass, type: autoRenewable, goods: [{item: pass, amount: 1}]}, "
        + "{id: gold, type: autoRenewable, goods: [{item: gold, amount: 1}]}"

    /// A worker's subscription sweep. Its broker is away.
    fileprivate func sweep(hasServerAPI: Bool = true) async throws -> SubscriptionSweep {
        let apps = AppDirectory(http: http)
        try await apps.update(
            try configuration(hasServerAPI: hasServerAPI, products: Self.products), ledger: lab.ledger)
        await halts.refresh()
        let queues = Queues()
        let publisher = Publisher(
            try BrokerConfiguration(url: "amqp://127.0.0.1:1"), topology: queues.topology, logger: .silent)
        await publisher.close()
        return SubscriptionSweep(
            Sweeps(
                ledger: lab.ledger, apps: apps, halts: halts,
                appleGateway: AppleGateway(halts: halts, governor: governor()),
                workQueue: WorkQueue(publisher: publisher, queues: queues), followUps: FollowUpSignal(), logger: .silent
            ))
    }

    /// A subscription with periods of an hour, of which `u1` was granted the first one. So many ended unheard of; the
    /// last one runs. Returns the id of the chain.
    fileprivate func subscribe(periods: Int, byReceipt: Bool = false) async throws -> String {
        let sale = try await sell {
            ($0.productId, $0.type, $0.period) = ("pass", .autoRenewable, "PT1H")
            let now = Int64(Date().timeIntervalSince1970 * 1000)
            $0.purchaseDate = now - Int64(40 + 60 * periods) * 60_000
            $0.expiresDate = now - Int64(40 + 60 * (periods - 1)) * 60_000
        }
        let submission = Submission(
            appID: Self.appID, userID: "u1",
            proof: byReceipt ? .receipt(sale.receipt) : .signedTransaction(sale.signedTransaction))
        #expect(try await lab.ledger.insert(submission))
        let posted = Posted(id: submission.receiptID, userID: "u1", appID: Self.appID)
        let entry = Verdict.Entry(
            transaction: try await transaction(sale.signedTransaction),
            decision: .grant(goods: Verdict.Entry.coins, source: .poster))
        try await lab.settle(posted, entry)
        try await lab.followUp()
        return sale.purchase.transactionId
    }

    fileprivate func transaction(_ jws: String) async throws -> Transaction {
        try #require(Transaction(try await app().verifier.transaction(jws)))
    }

    fileprivate func dueAgain() async throws {
        try await lab.run("update chains set ask_at = now(), ask_until = null")
    }

    /// These columns of the only chain, one behind the other.
    fileprivate func chain(_ columns: String) async throws -> String? {
        try await lab.texts("select concat_ws(' ', \(columns)) from chains").first
    }

    /// `kind source lane state` of the receipts that nobody posted.
    fileprivate func unposted() async throws -> [String] {
        try await lab.texts(
            "select concat_ws(' ', kind, source, lane, state) from receipts where source <> 'post' order by received_at"
        )
    }
}
