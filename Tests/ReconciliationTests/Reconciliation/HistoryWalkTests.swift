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

/// Goal: a receipt with hundreds of purchases causes few calls (B9), from any poster and however often, and
/// nothing in it is granted without Apple's answer. Method: receipts of up to a thousand purchases of one customer, the
/// simulator's list of calls, and the real ledger that all workers share.
@Suite(.timeLimit(.minutes(8))) struct HistoryWalkTests {
    private static let page = 20

    @Test("B9: a thousand purchases that were granted before cost no call, from any poster")
    func granted() async throws {
        try await VerifyLab.with { lab in
            let ids = try await lab.sell(1000)
            let owner = try await lab.lab.post("u0")
            try await lab.lab.settle(lab.lab.verdict(owner, .transactions(ids.map { .purchase($0) })))
            let receipt = try lab.receipt(ids)
            let app = try await lab.app(legacyReceipts: "serverApi")
            let examination = await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app)
            #expect(lab.store.calls().isEmpty)
            guard case .decided(.transactions(let entries)) = examination else {
                Issue.record("not judged: \(examination)")
                return
            }
            #expect(Set(entries.map(\.transaction.id)) == Set(ids) && entries.count == 1000)
            // Later posts are answered by the grants, for the owner and for any other user.
            for (user, expected) in [
                ("u0", Set(["already_granted"])), ("u1", ["already_granted owned_by_another_user"]),
            ] {
                let posted = try await lab.lab.post(user)
                let states = try await lab.lab.settle(lab.lab.verdict(posted, .transactions(entries)))
                #expect(states[posted.id] == .alreadyGranted)
                #expect(Set(try await lab.lab.outcomes(posted).values) == expected)
            }
        }
    }

    @Test("300 unknown purchases: five are looked up, the rest is read 20 to a call, and nobody asks again")
    func unknown() async throws {
        try await VerifyLab.with { lab in
            let ids = try await lab.sell(300)
            let app = try await lab.app(legacyReceipts: "serverApi")
            let row = lab.row(.receipt(try lab.receipt(ids)), transactionID: ids[7])
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries(.all(ids, .coins)))
            let calls = lab.store.calls()
            #expect(calls.count { $0.service == .transactionInfo } == ReceiptPlan.lookUpsMax)
            #expect(calls.contains { $0.transactionIds == [ids[7]] }, "the one that the poster means comes first")
            #expect(calls.count { $0.service == .history } == 300 / Self.page)
            #expect(calls.count == 300 / Self.page + ReceiptPlan.lookUpsMax)
            // It is another receipt, another user and another worker: the facts are stored, and fresh. (The purchases
            // that were looked up by their ids were in the history as well.)
            let other = lab.row(.receipt(try lab.receipt(ids.reversed())))
            #expect(Seen(await lab.receiptVerifier().examine(other, for: app)) == .entries(.all(ids, .coins)))
            #expect(lab.store.calls().count == calls.count)
            #expect(try await lab.lab.number("select count(*) from transactions where customer_id is not null") == 300)
        }
    }

    @Test("one walk per customer and hour: what came after it waits for the next, but the newest and the named")
    func interval() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "serverApi")
            let first = try await lab.sell(40)
            _ = await lab.receiptVerifier().examine(lab.row(.receipt(try lab.receipt(first))), for: app)
            let later = try await lab.sell(30)
            let before = lab.store.calls().count
            let row = lab.row(.receipt(try lab.receipt(first + later)), transactionID: later[0])
            let examination = await lab.receiptVerifier().examine(row, for: app)
            #expect(lab.store.calls(after: before).map(\.service) == Array(repeating: .transactionInfo, count: 5))
            guard case .partly(let entries, .postpone(.historyPending, let until?)) = examination else {
                Issue.record("not partly judged: \(examination)")
                return
            }
            let granted = entries.filter { $0.decision == .coins }.map(\.transaction.id)
            #expect(granted.count == 45 && granted.contains(later[0]) && Set(first).isSubset(of: granted))
            #expect(entries.count { $0.decision == .open(.historyPending) } == 25)
            #expect(abs(until.timeIntervalSinceNow - 3600) < 60, "an hour after the first walk began")

            try await lab.lab.run("update history_walks set begun_at = begun_at - interval '1 hour'")
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries(.all(first + later, .coins)))
            #expect(try await lab.lab.number("select count(*) from history_walks") == 1)
        }
    }

    @Test("many receipts of one customer at once: one reads, the others wait for what it stores")
    func together() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "serverApi")
            let ids = try await lab.sell(100)
            let receipt = try lab.receipt(ids)
            await withTaskGroup(of: Void.self) { group in
                for _ in 0..<6 {
                    group.addTask { _ = await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app) }
                }
            }
            #expect(lab.store.calls().count { $0.service == .history } == 100 / Self.page)
            #expect(lab.store.calls().count { $0.service == .transactionInfo } <= 6 * ReceiptPlan.lookUpsMax)
            let before = lab.store.calls().count
            #expect(
                Seen(await lab.receiptVerifier().examine(lab.row(.receipt(receipt)), for: app))
                    == .entries(.all(ids, .coins)))
            #expect(lab.store.calls().count == before)
        }
    }

    @Test("a long history is read in parts, and a walk that Apple breaks off goes on where it was")
    func resumed() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "serverApi")
            let ids = try await lab.sell(500)
            let row = lab.row(.receipt(try lab.receipt(ids)))
            // The limiter breaks the walk off after three pages.
            let left = Mutex(3)
            let dry = Governor(
                lease: { question in
                    let isHistory = question.budget.endpoint == ServerAPIClient.Endpoint.transactionHistory.rawValue
                    let mayCall =
                        !isHistory
                        || left.withLock { left in
                            left -= 1
                            return left >= 0
                        }
                    // The answer grants a whole slice: a busy machine may find the end of a shorter one before it makes
                    // the call.
                    let calls = isHistory ? (mayCall ? 1 : 0) : question.wanted
                    return .init(calls: calls, endsIn: .milliseconds(250), stoppedFor: .zero)
                }, stop: { _, _ in }, logger: .silent)
            let receiptVerifier = lab.receiptVerifier(AppleGateway(halts: lab.halts, governor: dry))
            guard case .partly(let entries, .postpone(.appleBudget, nil)) = await receiptVerifier.examine(row, for: app)
            else {
                Issue.record("not partly judged")
                return
            }
            #expect(lab.store.calls().count { $0.service == .history } == 3)
            #expect(entries.count { $0.decision == .coins } >= 3 * Self.page)
            #expect(entries.count { $0.decision == .open(.historyPending) } >= 500 - 3 * Self.page - 5)
            // Until its lease ends, nobody knows that the reader is gone.
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)).waitsForHistory)
            try await lab.lab.run("update history_walks set busy_until = now()")
            let before = lab.store.calls().count
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)).waitsForHistory)
            let pages = lab.store.calls(after: before).count { $0.service == .history }
            #expect(pages == HistoryWalk.pagesMax, "then it is the turn of others")
            #expect(Seen(await lab.receiptVerifier().examine(row, for: app)) == .entries(.all(ids, .coins)))
            #expect(lab.store.calls().count { $0.service == .history && $0.status == 200 } == 500 / Self.page)
        }
    }

    @Test("what the history does not list is asked for by its id, a few at a time")
    func unlisted() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app(legacyReceipts: "serverApi")
            // Each purchase is of another customer: no history has more than one.
            var ids: [String] = []
            for _ in 0..<12 { ids.append(try await lab.sell().purchase.transactionId) }
            let posted = try await lab.lab.post()
            let row = lab.row(.receipt(try lab.receipt(ids)), id: posted.id)
            for _ in 0..<2 {
                let examination = await lab.receiptVerifier().examine(row, for: app)
                guard case .partly(let entries, .postpone(.historyPending, let until?)) = examination else {
                    Issue.record("not partly judged: \(examination)")
                    return
                }
                #expect(until.timeIntervalSince(row.readAt) <= 6, "soon: the history has been read to its end")
                #expect(entries.count { $0.decision == .coins } >= 5)
                try await lab.lab.settle(lab.lab.verdict(posted, .transactions(entries)))
            }
            let seen = Seen(await lab.receiptVerifier().examine(row, for: app))
            guard case .entries = seen else {
                Issue.record("not judged: \(seen)")
                return
            }
            #expect(lab.store.calls().count { $0.service == .transactionInfo } <= 12)
            #expect(lab.store.calls().count { $0.service == .history } <= 2)
        }
    }

    @Test("a history that cannot be believed proves nothing, and a page counts only with its facts")
    func unbelievable() async throws {
        try await VerifyLab.with { lab in
            let ids = try await lab.sell(30)
            let row = lab.row(.receipt(try lab.receipt(ids)))
            let app = try await lab.app(legacyReceipts: "serverApi")
            for kind in [FaultRequest.Kind.garbage, .foreignRoot] {
                try lab.store.fault(FaultRequest(kind, on: .history, count: 1))
                guard
                    case .partly(let entries, .retry(.appleAnswer, _)) = await lab.receiptVerifier().examine(
                        row, for: app)
                else {
                    Issue.record("not partly judged: \(kind)")
                    continue
                }
                #expect(entries.count { $0.decision == .coins } == 5)
                #expect(entries.count { $0.decision == .open(.appleAnswer) } == 25, "a try")
                try await lab.lab.run("update history_walks set busy_until = now()")
            }
            #expect(try await lab.lab.texts("select coalesce(revision, 'none') from history_walks") == ["none"])
            #expect(try await lab.lab.number("select count(*) from transactions") == 0)
        }
    }

    @Test("a reader that lost its lease keeps its facts, stores nothing over the next reader's place, and stops")
    func lostLease() async throws {
        try await VerifyLab.with { lab in
            let walk = Statements.Walk(appID: "game", environment: "Production", customer: "c")
            let claim = Statements.WalkClaim(walk: walk, askedID: "a", lease: .seconds(30), interval: .seconds(3600))
            var readers: [Int] = []
            for _ in 0..<2 {
                guard
                    case .claimed(_, _, _, let reader) = try await lab.lab.ledger.run(Statements.claimWalk, claim).first
                else {
                    Issue.record("not claimed")
                    return
                }
                readers.append(reader)
                try await lab.lab.run("update history_walks set busy_until = now()")
            }
            for (reader, id, revision) in [(readers[1], "t2", "r2"), (readers[0], "t1", nil)] {
                let page = Statements.WalkPage(
                    walk: walk, reader: reader, transactions: [Verdict.Entry.purchase(id).transaction],
                    revision: revision, lease: .seconds(30))
                let stored = try await lab.lab.ledger.run(Statements.storePage, page)
                #expect(stored == (reader == readers[1] ? [reader] : []))
            }
            #expect(
                try await lab.lab.texts("select revision || ' ' || (ended_at is null) from history_walks") == [
                    "r2 true"
                ])
            #expect(try await lab.lab.number("select count(*) from transactions") == 2)

            // The page comes when another worker already reads on.
            try await lab.lab.run("delete from history_walks")
            let row = lab.row(.receipt(try lab.receipt(try await lab.sell(50))))
            let app = try await lab.app(legacyReceipts: "serverApi")
            var slow = FaultRequest(.latency, on: .history)
            slow.milliseconds = 3000
            try lab.store.fault(slow)
            async let seen = Seen(await lab.receiptVerifier().examine(row, for: app))
            try await lab.lab.until("nobody reads") {
                try await lab.lab.number("select count(*) from history_walks") == 1
            }
            try await lab.lab.run("update history_walks set reader = reader + 1")
            #expect(await seen.waitsForHistory)
            #expect(lab.store.calls().count { $0.service == .history } == 1)
            #expect(try await lab.lab.number("select count(*) from history_walks where revision is null") == 1)
        }
    }

    // MARK: The verdict

    @Test("what waits for the history is open and no attempt; what was tried is one; parking counts tries alone")
    func attempts() async throws {
        // The test moves the receipt back in time, past the day that has counted it.
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post()
            let pending = Verdict.Entry.purchase("t2", .open(.historyPending))
            let states = try await lab.settle(
                lab.verdict(posted, .transactions([.purchase("t1"), pending]), dueIn: .seconds(1234)))
            #expect(states[posted.id] == .received)
            #expect(try await lab.state(posted) == "received history_pending")
            #expect(try await lab.outcomes(posted) == ["t1": "granted", "t2": "open history_pending"])
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.number("select attempt from receipts") == 0)
            #expect(try await lab.number("select count(*) from attempts") == 0)
            #expect(try await lab.number("select round(extract(epoch from due_at - now()))::int from receipts") == 1234)

            try await lab.run("update receipts set received_at = now() - interval '30 hours', attempt = 9")
            try await lab.settle(posted, attempt: 9, .purchase("t1"), pending)
            #expect(try await lab.state(posted) == "received history_pending")
            let tried = Verdict.Entry.purchase("t3", .open(.appleUnavailable))
            try await lab.settle(posted, attempt: 9, .purchase("t1"), pending, tried)
            #expect(try await lab.number("select attempt from receipts") == 10)
            #expect(try await lab.texts("select reason from attempts") == ["apple_unavailable"])
            #expect(try await lab.texts("select state from receipts") == ["parked"])
            try await lab.settle(posted, attempt: 10, .purchase("t1"), .purchase("t2"), .purchase("t3"))
            #expect(try await lab.state(posted) == "granted")
        }
    }
}

extension VerifyLab {
    /// Purchases of one customer, in the order they were bought.
    func sell(_ count: Int, _ change: (inout SaleRequest) -> Void = { _ in }) async throws -> [String] {
        var request = SaleRequest(app: Self.bundleID, productId: "coins")
        request.customer = "one"
        request.receipts = false
        request.count = count
        change(&request)
        return try await store.sell(request).map(\.purchase.transactionId)
    }

    func receipt(_ ids: [String]) throws -> String {
        try store.receipt(ReceiptRequest(app: Self.bundleID, transactionIds: ids))
    }
}

extension Seen {
    fileprivate var waitsForHistory: Bool { if case .partly(_, .historyPending) = self { true } else { false } }
}
