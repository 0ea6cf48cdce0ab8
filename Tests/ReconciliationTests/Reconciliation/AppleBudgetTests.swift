import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: no player can use up the calls to Apple: facts that the database holds, texts that are no proof and questions
/// that Apple has answered before cost no call, however often and under whatever names they are posted. Method: a
/// worker's processor between the simulator over real HTTP and a real ledger; each row is judged once an hour for a day,
/// and the simulator counts the calls.
@Suite(.timeLimit(.minutes(8))) struct AppleBudgetTests {
    enum Posts: String, CaseIterable, Sendable, CustomTestStringConvertible {
        case staleProofUnderManyOrders, confirmedProofUnderManyOrders, staleProofOfManyUsers
        case receiptUnderManyOrders, receiptOfThePast, emptyReceipt, garbage, forgedReceipt
        case unknownID, idOfPurchase, idOfGrantedPurchase, idOfOrderedPurchase, idInAppWithoutOrders

        var testDescription: String { rawValue }

        /// The calls of a day, and the final states of the receipts.
        fileprivate var expected: (calls: Int, states: [String]) {
            switch self {
            case .staleProofUnderManyOrders, .confirmedProofUnderManyOrders, .receiptUnderManyOrders: (1, ["granted"])
            case .staleProofOfManyUsers: (1, ["already_granted owned_by_another_user", "granted"])
            case .receiptOfThePast: (0, ["rejected historical"])
            case .emptyReceipt: (1, ["held no_transaction_yet"])
            case .garbage: (3, ["rejected malformed"])
            case .forgedReceipt: (1, ["rejected not_authenticated"])
            case .unknownID: (3, ["held possession_missing"])
            case .idOfPurchase: (1, ["held possession_missing"])
            case .idOfGrantedPurchase: (0, ["granted", "held possession_missing"])
            case .idOfOrderedPurchase: (1, ["granted owned_by_another_user"])
            case .idInAppWithoutOrders: (0, ["held possession_missing"])
            }
        }
    }

    @Test("posts, and the calls that they cost", arguments: Posts.allCases)
    func calls(_ kind: Posts) async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(
                try lab.configuration(
                    more: kind == .confirmedProofUnderManyOrders ? ["confirmWithApple: always"] : []))
            let posts = try await lab.posts(kind)
            for post in posts {
                let isNew = try await lab.lab.ledger.insert(post)
                if !isNew { #expect(try await lab.lab.ledger.say(post, linesMax: 16) == .taken) }
            }
            for hour in 0..<24 {
                for post in posts { try await lab.judge(post.receiptID, processor) }
                // A receipt that needs its payload stays on the payload's day.
                if posts.allSatisfy({ $0.proof == .identifier }), hour < 23 { try await lab.age(hours: 1) }
            }
            #expect(lab.store.calls().count == kind.expected.calls)
            #expect(
                try await lab.lab.texts("select distinct concat_ws(' ', state, reason) from receipts order by 1")
                    == kind.expected.states)
            if posts.allSatisfy({ $0.proof == .identifier }) { try await lab.age(hours: -23) }
        }
    }

    @Test("a bare id that is a day old waits for a post or a person, and is asked about once a day then")
    func oldID() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration())
            let post = try #require(try await lab.posts(.unknownID).first)
            #expect(try await lab.lab.ledger.insert(post))
            for _ in 0..<5 { try await lab.judge(post.receiptID, processor) }
            #expect(lab.store.calls().count == Statements.bareIDAnswersMax)
            #expect(try await lab.lab.number("select extract(epoch from due_at - now())::int from receipts") <= 3600)
            try await lab.age(hours: 30)
            for _ in 0..<3 { try await lab.judge(post.receiptID, processor) }
            #expect(lab.store.calls().count == Statements.bareIDAnswersMax + 1)
            #expect(
                try await lab.lab.number("select extract(epoch from due_at - now())::int from receipts") > 5 * 86_400)
            try await lab.age(hours: -30)
        }
    }

    @Test("an outage is no answer: a bare id is asked about until Apple has answered")
    func outage() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration())
            let order = try await lab.placeOrder("owner")
            let sale = try await lab.sell { $0.appAccountToken = order.uuidString.lowercased() }
            var down = FaultRequest(.status, on: .transactionInfo)
            down.status = 503
            try lab.store.fault(down)
            let post = Submission(
                appID: VerifyLab.appID, userID: "u1", proof: .identifier, transactionID: sale.purchase.transactionId)
            #expect(try await lab.lab.ledger.insert(post))
            for _ in 0..<5 { try await lab.judge(post.receiptID, processor) }
            #expect(try await lab.lab.grants == [])
            lab.store.clearFaults()
            // Another worker's breaker knows of no outage.
            try await lab.judge(post.receiptID, try await lab.processor(try lab.configuration()))
            #expect(try await lab.lab.grants == ["\(sale.purchase.transactionId) owner"])
        }
    }

    @Test("S3-46: receipts that nobody posted leave places to notifications while Apple is slow, and come back soon")
    func unposted() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration())
            var slow = FaultRequest(.latency, on: .verifyReceipt)
            slow.milliseconds = 3000
            try lab.store.fault(slow)
            var submissions: [Submission] = []
            for number in 0..<VerifyWorker.unpostedInFlight {
                let sale = try await lab.sell { $0.customer = "customer \(number)" }
                submissions.append(
                    Submission(unposted: sale.receipt, hintedID: nil, of: VerifyLab.appID, source: .notification))
            }
            let pointers = try await lab.lab.hear(submissions: submissions)
            await withTaskGroup(of: Void.self) { group in
                for pointer in pointers {
                    group.addTask {
                        #expect(await processor.process(Array(pointer.text.utf8), redelivered: false) == .done)
                    }
                }
            }
            #expect(pointers.count == submissions.count)
            #expect(lab.store.calls().count <= VerifyWorker.unpostedAskingMax)
            #expect(
                try await lab.lab.number(
                    """
                    select count(*) from receipts
                    where reason = 'apple_budget' and due_at < now() + interval '1 minute' and attempt = 0
                    """) >= VerifyWorker.unpostedInFlight - VerifyWorker.unpostedAskingMax)
        }
    }

    @Test("a user's receipts take ten fresh calls a minute; the rest go with what comes again, others' stay fresh")
    func share() async throws {
        try await VerifyLab.with { lab in
            let appleGateway = AppleGateway(halts: lab.halts, governor: lab.governor())
            let again = lab.row(.identifier, attempt: 1)
            for _ in 0..<20 { #expect(appleGateway.lane(of: again) == .repair) }
            let lanes = (0..<15).map { _ in appleGateway.lane(of: lab.row(.identifier)) }
            #expect(lanes == Array(repeating: .fresh, count: 10) + Array(repeating: .repair, count: 5))
        }
    }
}

extension VerifyLab {
    fileprivate func posts(_ kind: AppleBudgetTests.Posts) async throws -> [Submission] {
        func named(_ proof: Proof) -> [Submission] {
            (0..<5).map { Submission(appID: Self.appID, userID: "u1", orderID: "order-\($0)", proof: proof) }
        }
        func asked(_ id: String) -> Submission {
            Submission(appID: Self.appID, userID: "thief", proof: .identifier, transactionID: id)
        }
        switch kind {
        case .staleProofUnderManyOrders: return named(try await staleProof())
        case .confirmedProofUnderManyOrders:
            return named(.signedTransaction(try await sell().signedTransaction))
        case .staleProofOfManyUsers:
            let proof = try await staleProof()
            return (0..<5).map { Submission(appID: Self.appID, userID: "u\($0)", proof: proof) }
        case .receiptUnderManyOrders: return named(.receipt(try await sell().receipt))
        case .receiptOfThePast:
            return named(.receipt(try await sell { $0.purchaseDate = 1_500_000_000_000 }.receipt))
        case .emptyReceipt:
            let receipt = try store.receipt(ReceiptRequest(app: Self.bundleID, transactionIds: []))
            return [Submission(appID: Self.appID, userID: "u1", proof: .receipt(receipt))]
        case .garbage: return [Submission(appID: Self.appID, userID: "u1", proof: .receipt("bm8gcmVjZWlwdA=="))]
        case .forgedReceipt:
            var bytes = try #require(Data(base64Encoded: try await sell().receipt))
            bytes[bytes.count - 1] ^= 1
            return [Submission(appID: Self.appID, userID: "u1", proof: .receipt(bytes.base64EncodedString()))]
        case .unknownID:
            try await placeOrder("somebody")
            return [asked("999999999999999")]
        case .idOfPurchase:
            try await placeOrder("somebody")
            return [asked(try await sell().purchase.transactionId)]
        case .idOfGrantedPurchase:
            try await placeOrder("somebody")
            let sale = try await sell()
            let own = Submission(
                appID: Self.appID, userID: "u1", proof: .signedTransaction(sale.signedTransaction))
            return [own, asked(sale.purchase.transactionId)]
        case .idOfOrderedPurchase:
            let order = try await placeOrder("owner")
            let sale = try await sell { $0.appAccountToken = order.uuidString.lowercased() }
            return [asked(sale.purchase.transactionId)]
        case .idInAppWithoutOrders: return [asked(try await sell().purchase.transactionId)]
        }
    }

    /// Places an order, a minute ago.
    @discardableResult
    func placeOrder(_ user: String) async throws -> UUID {
        let id = try await lab.place(user)
        try await lab.run("update orders set placed_at = now() - interval '1 minute'")
        return id
    }

    /// A proof that was signed two hours ago.
    private func staleProof() async throws -> Proof {
        let milliseconds = { (ago: TimeInterval) in Int64((Date.now.timeIntervalSince1970 - ago) * 1000) }
        let sale = try await sell { $0.purchaseDate = milliseconds(7300) }
        return .signedTransaction(try store.sign(sale.purchase.transactionId, signedDate: milliseconds(7200)))
    }

    /// Judges the receipt as if its message had come, and then the message of the queue to which the receipt is moved.
    fileprivate func judge(_ id: UUID, _ processor: ReceiptProcessor) async throws {
        for _ in 0..<2 {
            let row = try #require(try await lab.ledger.fetch(id))
            guard !row.state.isEnded else { return }
            let message = Array(Pointer(receiptID: id, attempt: row.attempt).text.utf8)
            #expect(await processor.process(message, redelivered: false) == .done)
            // If the receipt was moved to another lane, it is judged again.
            guard try await lab.ledger.fetch(id)?.lane != row.lane else { return }
        }
    }

    fileprivate func age(hours: Int) async throws {
        try await lab.run("update receipts set received_at = received_at - interval '\(hours) hours'")
    }
}
