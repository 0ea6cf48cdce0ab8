import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Intake
@testable import Ledger
@testable import Reconciliation

/// Goal: if a store product is sold as several items, its purchase waits until somebody names the item, and nothing is
/// given by a catalogue that the worker does not know (S3-14). Method: a worker's processor between the simulator and a
/// real ledger; submissions stored as ingest stores them.
@Suite(.timeLimit(.minutes(8))) struct DeclaredItemTests {
    private static func catalogue(default item: String? = nil) -> Catalogue {
        Catalogue(
            products: [
                .init(
                    id: "coins", kind: .consumable, defaultItem: item,
                    items: [
                        .init(id: "sword", versions: [.init(goods: [.init(item: "sword", amount: 1)])]),
                        .init(id: "shield", versions: [.init(goods: [.init(item: "shield", amount: 1)])]),
                    ])
            ], revision: 1)
    }

    private struct Setup {
        let lab: VerifyLab
        let apps: AppDirectory
        let processor: ReceiptProcessor

        init(_ lab: VerifyLab, more: [String] = []) async throws {
            self.lab = lab
            apps = AppDirectory(http: lab.http)
            processor = try await lab.processor(try lab.configuration(more: more), apps: apps)
        }

        func sell(_ catalogue: Catalogue?, unreadable: Set<String> = []) async throws {
            let changed = catalogue.map { [VerifyLab.appID: $0] } ?? [:]
            try await apps.sell(changed, unreadable: unreadable, wakes: true, ledger: lab.lab.ledger)
        }

        func submission(_ jws: String, _ declared: Declaration? = nil, target: String? = nil) -> Submission {
            Submission(
                appID: VerifyLab.appID, userID: "u1", proof: .signedTransaction(jws), target: target,
                declared: declared)
        }

        func settle(_ id: UUID) async throws {
            let attempt = try #require(try await lab.lab.ledger.fetch(id)).attempt
            #expect(
                await processor.process(
                    Array(Pointer(receiptID: id, attempt: attempt).text.utf8), redelivered: false) == .done)
        }

        func state(_ submission: Submission) async throws -> String? {
            try await lab.lab.texts(
                "select concat_ws(' ', state, reason) from receipts where id = '\(submission.receiptID)'"
            ).first
        }

        var goods: [String] {
            get async throws { try await lab.lab.texts("select goods -> 0 ->> 'item' from grants order by granted_at") }
        }
    }

    @Test(
        "S3-14: pay first, then say what for: the item, target and country of the post are those of the make-up order")
    func flowB() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            try await setup.sell(Self.catalogue())
            let jws = try await lab.sell().signedTransaction
            let posted = setup.submission(
                jws, Declaration(item: "shield", quantity: 7), target: #"{"server":"s1","country":"CN"}"#)
            #expect(try await lab.lab.ledger.insert(posted))
            try await setup.settle(posted.receiptID)
            #expect(try await setup.state(posted) == "granted")
            #expect(try await setup.goods == ["shield"])
            #expect(
                try await lab.lab.texts("select (body -> 'target')::text from events")
                    == [#"{"server": "s1", "country": "CN"}"#])
            #expect(
                try await lab.lab.texts("select array_to_string(reasons, ',') from outcomes") == ["quantity_differs"])
        }
    }

    @Test("S3-14: without an item it is held item_unknown; the next post of the proof with one settles it")
    func heldThenNamed() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            try await setup.sell(Self.catalogue())
            let posted = setup.submission(try await lab.sell().signedTransaction)
            #expect(try await lab.lab.ledger.insert(posted))
            try await setup.settle(posted.receiptID)
            #expect(try await setup.state(posted) == "held item_unknown")
            // P9: the row of Ownership that found the owner is stored, though the purchase is held.
            #expect(try await lab.lab.texts("select binding_source from outcomes") == ["poster"])
            let held = try #require(try await lab.lab.ledger.view(posted.receiptID))
            #expect(ReceiptAnswer(held, finishing: .held).safeToFinish, "P2: the facts are stored, the debt is ours")
            // An item that is not sold there does not free the purchase, and does not stand in the way of the next
            // item.
            for (item, state) in [("axe", "held item_unknown"), ("sword", "granted")] {
                let again = Submission(
                    appID: VerifyLab.appID, userID: "u1", proof: posted.proof, declared: Declaration(item: item))
                #expect(try await lab.lab.ledger.say(again, linesMax: 16) == .taken)
                // The first item makes the receipt due at once; the next item within a minute waits for that minute.
                #expect(
                    try await lab.lab.number(
                        "select ceil(extract(epoch from due_at - now()) / 60)::int from receipts where state = 'held'")
                        <= (item == "axe" ? 0 : 1))
                try await setup.settle(posted.receiptID)
                #expect(try await setup.state(posted) == state)
            }
            #expect(try await setup.goods == ["sword"])
            #expect(try await lab.lab.texts("select item from grants") == ["sword"])
            let late = Submission(
                appID: VerifyLab.appID, userID: "u1", proof: posted.proof, declared: Declaration(item: "shield"))
            #expect(try await lab.lab.ledger.say(late, linesMax: 16) == .same, "it has ended")
        }
    }

    @Test("a default for the product settles what is held; of what is said the newest counts")
    func defaults() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            try await setup.sell(Self.catalogue())
            let posted = setup.submission(try await lab.sell().signedTransaction)
            #expect(try await lab.lab.ledger.insert(posted))
            try await setup.settle(posted.receiptID)
            try await setup.sell(Self.catalogue(default: "sword"))
            #expect(
                try await lab.lab.number("select count(*) from receipts where state = 'held' and due_at <= now()") == 1)
            try await setup.settle(posted.receiptID)
            #expect(try await setup.goods == ["sword"])

            let said = setup.submission(try await lab.sell().signedTransaction, Declaration(item: "shield"))
            #expect(try await lab.lab.ledger.insert(said))
            let corrected = Submission(
                appID: VerifyLab.appID, userID: "u1", proof: said.proof, declared: Declaration(item: "sword"))
            #expect(try await lab.lab.ledger.say(corrected, linesMax: 16) == .taken)
            try await setup.settle(said.receiptID)
            #expect(try await setup.goods == ["sword", "sword"])
        }
    }

    @Test(
        "of a queue that is posted with one app receipt each post is about its own purchase, said before or after a verdict"
    )
    func queueOfOneReceipt() async throws {
        for isJudgedBetween in [false, true] {
            try await VerifyLab.with { lab in
                let setup = try await Setup(lab)
                try await setup.sell(Self.catalogue())
                let ids = [try await lab.sell(), try await lab.sell()].map(\.purchase.transactionId)
                let receipt = try lab.store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))
                func post(_ id: String, _ item: String, _ server: String) -> Submission {
                    Submission(
                        appID: VerifyLab.appID, userID: "u1", proof: .receipt(receipt), transactionID: id,
                        target: #"{"server":"\#(server)"}"#, declared: Declaration(item: item))
                }
                let first = post(ids[0], "sword", "s1")
                #expect(try await lab.lab.ledger.insert(first))
                if isJudgedBetween {
                    for _ in 0..<2 { try await setup.settle(first.receiptID) }
                    #expect(try await setup.state(first) == "held item_unknown")
                }
                #expect(try await lab.lab.ledger.say(post(ids[1], "shield", "s2"), linesMax: 16) == .taken)
                for _ in 0..<3 where try await setup.state(first) != "granted" {
                    try await setup.settle(first.receiptID)
                }
                #expect(try await setup.state(first) == "granted")
                let given = try await lab.lab.texts(
                    """
                    select g.transaction_id || ' ' || g.item || ' ' || (e.body -> 'target' ->> 'server')
                    from grants g join events e using (transaction_id)
                    where e.type = 'purchase.granted' order by g.transaction_id
                    """)
                #expect(given == zip(ids, ["sword s1", "shield s2"]).map { "\($0) \($1)" }.sorted())
            }
        }
    }

    @Test(
        "a line that comes while Apple is asked counts: the verdict about the older line is judged anew, without a call"
    )
    func saidInFlight() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab, more: ["confirmWithApple: always"])
            try await setup.sell(Self.catalogue())
            let said = setup.submission(try await lab.sell().signedTransaction, Declaration(item: "shield"))
            #expect(try await lab.lab.ledger.insert(said))
            // Moves the receipt to Apple's queue.
            try await setup.settle(said.receiptID)
            var slow = FaultRequest(.latency, on: .transactionInfo)
            slow.milliseconds = 2000
            try lab.store.fault(slow)
            async let judged: Void = setup.settle(said.receiptID)
            try await lab.lab.until("Apple was not asked") { lab.store.openCalls.now > 0 }
            let corrected = Submission(
                appID: VerifyLab.appID, userID: "u1", proof: said.proof, declared: Declaration(item: "sword"))
            #expect(try await lab.lab.ledger.say(corrected, linesMax: 16) == .taken)
            try await judged
            lab.store.clearFaults()
            #expect(try await setup.state(said) == "granted")
            #expect(try await setup.goods == ["sword"])
            #expect(lab.store.calls().count == 1)
        }
    }

    @Test("a catalogue that the worker cannot read: no verdict, no attempt, and it goes on when one can be read")
    func unreadable() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            try await setup.sell(nil, unreadable: [VerifyLab.appID])
            let posted = setup.submission(try await lab.sell().signedTransaction)
            #expect(try await lab.lab.ledger.insert(posted))
            try await setup.settle(posted.receiptID)
            #expect(try await setup.state(posted) == "received catalogue_unknown")
            #expect(try await lab.lab.number("select attempt from receipts") == 0)
            #expect(
                try await lab.lab.number("select count(*) from receipts where due_at <= now() + interval '8 minutes'")
                    == 1)
            // A new configuration does not make the catalogue readable.
            try await setup.apps.update(try lab.configuration(), ledger: lab.lab.ledger)
            try await setup.settle(posted.receiptID)
            #expect(try await lab.lab.grants == [])
            try await setup.sell(Self.catalogue(default: "sword"))
            try await setup.settle(posted.receiptID)
            #expect(try await setup.goods == ["sword"])
        }
    }

    @Test("the order of another app, or of nobody, binds nothing and loses nothing; it is noted")
    func orderOfAnotherApp() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            try await lab.lab.place("u1", minutesBefore: 0)
            let foreign = try await lab.lab.place("u1", app: "other", minutesBefore: 0)
            for (index, named) in [foreign.uuidString, UUID().uuidString, "no-uuid"].enumerated() {
                let submission = Submission(
                    appID: VerifyLab.appID, userID: "u\(index + 7)", orderID: named,
                    proof: .signedTransaction(try await lab.sell().signedTransaction))
                #expect(try await lab.lab.ledger.insert(submission))
                try await setup.settle(submission.receiptID)
                #expect(try await setup.state(submission) == "granted")
                let reasons = try await lab.lab.texts(
                    "select coalesce(array_to_string(reasons, ','), '-') from outcomes where receipt_id = '\(submission.receiptID)'"
                )
                #expect(reasons == ["order_aside"])
            }
            #expect(try await lab.lab.boundOrders() == [])
        }
    }
}
