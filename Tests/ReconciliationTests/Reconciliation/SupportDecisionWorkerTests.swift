import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Intake
@testable import Ledger
@testable import Reconciliation
@testable import Support

/// Goal: a support decision gives a held purchase as if it had never waited: by its proof, with the right goods, once,
/// whatever else the receipt holds, and Apple is told (B4, B5). Method: a worker's processor between the simulator over
/// real HTTP and a real ledger; the command between two of its rounds.
@Suite(.timeLimit(.minutes(8))) struct SupportDecisionWorkerTests {
    private struct Setup {
        let lab: VerifyLab
        let processor: ReceiptProcessor
        let apps: AppDirectory

        init(_ lab: VerifyLab, more: [String] = [], hasServerAPI: Bool = true) async throws {
            self.lab = lab
            apps = AppDirectory(http: lab.http)
            let configuration = try lab.configuration(hasServerAPI: hasServerAPI, legacyReceipts: "local", more: more)
            processor = try await lab.processor(configuration, apps: apps)
        }

        /// Posts the submission and lets a worker judge it.
        func post(_ submission: Submission) async throws -> UUID {
            #expect(try await lab.lab.ledger.insert(submission))
            try await work(submission.receiptID)
            return submission.receiptID
        }

        /// Judges the receipt as if the scheduler had published it, and once more if it turned out to need Apple.
        func work(_ id: UUID) async throws {
            let row = try #require(try await lab.lab.ledger.fetch(id))
            let message = Array(Pointer(receiptID: id, attempt: row.attempt).text.utf8)
            #expect(await processor.process(message, redelivered: false) == .done)
            if try await lab.lab.ledger.fetch(id)?.lane != row.lane { try await work(id) }
        }

        func state(_ id: UUID) async throws -> String? {
            try await lab.lab.texts("select concat_ws(' ', state, reason) from receipts where id = '\(id)'").first
        }

        func give(_ id: String, to user: String, item: String? = nil, writesBack: Bool = false) async throws {
            let supportDecision = Statements.SupportDecision(
                appID: VerifyLab.appID, transactionID: id, userID: user, item: item, because: "ticket 7",
                isWrittenBack: writesBack)
            let answer = try await Repairs(database: lab.lab.database, actor: "ann").give(supportDecision)
            #expect(answer.isDecided, "\(answer)")
        }

        func posting(_ sale: Sale, by user: String?, naming order: String? = nil) -> Submission {
            Submission(
                appID: VerifyLab.appID, userID: user, orderID: order, proof: .signedTransaction(sale.signedTransaction))
        }

        /// `user goods by` of this purchase's grant.
        func grant(_ id: String) async throws -> [String] {
            try await lab.lab.texts(
                """
                select concat_ws(' ', user_id, goods -> 0 ->> 'item', goods -> 0 ->> 'amount', binding_source) from grants
                where transaction_id = '\(id)'
                """)
        }
    }

    @Test("S1-25: posted with another user's order: held, not safe to finish; given to the poster, and it is")
    func foreignOrder() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            let order = UUID()
            try await lab.lab.run(
                """
                insert into orders (id, app_id, user_id, product_id, placed_at)
                values ('\(order)', 'game', 'u1', 'coins', now() - interval '20 minutes')
                """)
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let posted = try await setup.post(setup.posting(sale, by: "u2", naming: order.uuidString))
            #expect(try await setup.state(posted) == "held foreign_order")
            let held = try #require(try await lab.lab.ledger.view(posted))
            #expect(!ReceiptAnswer(held, finishing: .held).safeToFinish)
            try await setup.give(id, to: "u2")
            try await setup.work(posted)
            #expect(try await setup.state(posted) == "granted")
            #expect(try await setup.grant(id) == ["u2 coin 60 support"])
            let given = try #require(try await lab.lab.ledger.view(posted))
            #expect(ReceiptAnswer(given, finishing: .ended).safeToFinish)
            #expect(try await lab.lab.boundOrders() == [], "the other's order stays his")
        }
    }

    @Test("a bare id: Apple is asked for it; the poster learns no more of what another was given")
    func bareID() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            let id = try await lab.sell().purchase.transactionId
            let posted = try await setup.post(
                Submission(appID: VerifyLab.appID, userID: "u1", proof: .identifier, transactionID: id))
            #expect(try await setup.state(posted) == "held possession_missing")
            #expect(try await lab.lab.number("select count(*) from transactions") == 0)
            try await setup.give(id, to: "u7")
            try await setup.work(posted)
            #expect(try await setup.grant(id) == ["u7 coin 60 support"])
            let view = try #require(try await lab.lab.ledger.view(posted))
            #expect(view.transactions.map(\.isOwn) == [false])
            // A purchase that Apple has taken back has no owner, whatever a person decides.
            let refunded = try await lab.sell().purchase.transactionId
            let other = try await setup.post(
                Submission(appID: VerifyLab.appID, userID: "u1", proof: .identifier, transactionID: refunded))
            try lab.store.refund(refunded)
            try await setup.give(refunded, to: "u7")
            try await setup.work(other)
            #expect(try await setup.grant(refunded) == [])
            #expect(try await setup.state(other) == "held possession_missing")
        }
    }

    @Test("what waited for a person is confirmed by Apple: nothing is given against a refund that nobody told us of")
    func refunded() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let posted = try await setup.post(setup.posting(sale, by: nil, naming: "none"))
            #expect(try await setup.state(posted) == "held order_unknown")
            try lab.store.refund(id)
            try await setup.give(id, to: "u5")
            try await setup.work(posted)
            #expect(try await setup.state(posted) == "rejected refunded")
            #expect(try await setup.grant(id) == [])
        }
    }

    @Test("S3-14: the item that the person names; one that is not sold gives nothing, and the next decision counts")
    func item() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            let catalogue = Catalogue(
                products: [
                    .init(
                        id: "coins", kind: .consumable, defaultItem: nil,
                        items: [
                            .init(id: "sword", versions: [.init(goods: [.init(item: "sword", amount: 1)])]),
                            .init(id: "shield", versions: [.init(goods: [.init(item: "shield", amount: 1)])]),
                        ])
                ], revision: 1)
            try await setup.apps.sell(
                [VerifyLab.appID: catalogue], unreadable: [], wakes: true, ledger: lab.lab.ledger)
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let posted = try await setup.post(setup.posting(sale, by: "u1"))
            #expect(try await setup.state(posted) == "held item_unknown")
            for (item, state) in [("axe", "held item_unknown"), ("shield", "granted")] {
                try await setup.give(id, to: "u1", item: item)
                try await setup.work(posted)
                #expect(try await setup.state(posted) == state)
            }
            #expect(try await setup.grant(id) == ["u1 shield 1 support"])

            // The purchase's token is an order that does not name the item either: the purchase binds the order all the
            // same.
            let order = UUID().uuidString.lowercased()
            try await lab.lab.run(
                "insert into orders (id, app_id, user_id, product_id) values ('\(order)', 'game', 'u1', 'coins')")
            let ordered = try await lab.sell { $0.appAccountToken = order }
            let second = try await setup.post(setup.posting(ordered, by: "u1"))
            #expect(try await setup.state(second) == "held item_unknown")
            try await setup.give(ordered.purchase.transactionId, to: "u1", item: "sword")
            try await setup.work(second)
            #expect(try await setup.grant(ordered.purchase.transactionId) == ["u1 sword 1 support"])
            #expect(
                try await lab.lab.texts("select transaction_id from v_orders") == [ordered.purchase.transactionId])
        }
    }

    @Test("of a receipt with two purchases that nobody is named for one is given, and the other waits on")
    func neighbour() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab, hasServerAPI: false)
            let ids = try await lab.sell(2)
            let posted = try await setup.post(
                Submission(
                    appID: VerifyLab.appID, userID: nil, orderID: "none", proof: .receipt(try lab.receipt(ids))))
            #expect(try await setup.state(posted) == "held order_unknown")
            try await setup.give(ids[1], to: "u5")
            try await setup.work(posted)
            #expect(try await setup.grant(ids[0]) == [])
            #expect(try await setup.grant(ids[1]) == ["u5 coin 60 support"])
            #expect(try await setup.state(posted) == "held order_unknown")
            try await setup.give(ids[0], to: "u6")
            try await setup.work(posted)
            #expect(try await setup.grant(ids[0]) == ["u6 coin 60 support"])
            #expect(try await setup.state(posted)?.hasPrefix("granted") == true)
        }
    }

    @Test("B5: Apple is sent a token that leads to the user, and what is bought with it then is that user's")
    func writtenBack() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            let sale = try await lab.sell { $0.appAccountToken = UUID().uuidString.lowercased() }
            let id = sale.purchase.transactionId
            try await lab.lab.run("insert into user_tokens values ('game', '\(UUID())', 'u2', 'registered')")
            let posted = try await setup.post(setup.posting(sale, by: "u2"))
            #expect(try await setup.state(posted) == "held foreign_token")
            try await setup.give(id, to: "u3", writesBack: true)
            let issued = try await lab.lab.texts("select token::text from user_tokens where user_id = 'u3'")
            #expect(issued.count == 1)
            try await setup.work(posted)
            #expect(try await setup.grant(id) == ["u3 coin 60 support"])
            #expect(
                try await lab.lab.texts("select concat_ws(' ', transaction_id, kind, token) from apple_updates")
                    == ["\(id) set_token \(issued[0])"])
        }
    }

    @Test("in shadow an earlier support decision gives nothing; once the app is live again it does")
    func shadow() async throws {
        try await VerifyLab.with { lab in
            let setup = try await Setup(lab)
            let sale = try await lab.sell()
            let id = sale.purchase.transactionId
            let posted = try await setup.post(setup.posting(sale, by: nil, naming: "none"))
            try await setup.give(id, to: "u1")
            let shadow = try await Setup(lab, more: ["mode: shadow"])
            try await shadow.work(posted)
            #expect(try await setup.state(posted) == "held shadow")
            #expect(try await lab.lab.texts("select user_id from shadow_decisions") == ["u1"])
            try await setup.work(posted)
            #expect(try await setup.grant(id) == ["u1 coin 60 support"])
        }
    }
}
