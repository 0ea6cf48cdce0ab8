import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import RabbitMQ
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings
@testable import WorkQueue

/// Goal: a purchase or an end of a known customer that nobody told is found in Apple's books, once, and no answer of
/// Apple's stops a sweep for good (B1, B2, S1-6, P32). Method: the sweeps between the simulator over real HTTP and a
/// real ledger, round by round; the simulator's list of calls is the witness.
@Suite(.timeLimit(.minutes(8))) struct CustomerSweepTests {
    @Test("what nobody told is found once, a finished consumable too; later only what has changed is read")
    func found() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            let known = try await lab.buyKnown()
            let lost = try await lab.sell { $0.customer = "one" }.purchase.transactionId
            let finished = try await lab.sell { $0.customer = "one" }.purchase.transactionId
            let api = try #require(sweeps.apps[VerifyLab.appID]?.serverAPI)
            try await api.finishTransaction(finished, in: [.production])
            try await lab.enter(sweeps)
            await CustomerSweep(sweeps).round()
            #expect(try await lab.unpostedReceipts() == [lost, finished].sorted().map { "\($0) received sweep" })
            #expect(
                try await lab.lab.texts("select concat_ws(' ', transaction_id, kind, net) from net_catches order by 1")
                    == [lost, finished].sorted().map { "\($0) purchase customer" })
            #expect(
                try await lab.lab.texts("select category || ' ' || subject from differences order by 1")
                    == [lost, finished].sorted().map { "purchase_missing \($0)" })
            #expect(try await lab.walks() == ["1 0 0 - t"])
            #expect(try await lab.lab.number("select count(*) from transactions where signed_at is not null") == 3)
            #expect(lab.historyCalls == 1)

            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(lab.historyCalls == 2)
            #expect(try await lab.lab.number("select count(*) from net_catches") == 2, "the page was empty")
            try lab.store.refund(known)
            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(
                try await lab.lab.texts("select transaction_id || ' ' || kind from net_catches where kind = 'end'")
                    == ["\(known) end"])
            try await lab.lab.followUp()
            #expect(try await lab.unpostedReceipts().count == 2)
            #expect(await !CustomerSweep(sweeps).round(), "nobody is due")
            #expect(lab.historyCalls == 3)
        }
    }

    @Test("no receipt is opened for what the former system gave, nor for what row 0c rejects")
    func givenBefore() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps(grantFrom: Date.now.formatted(.iso8601))
            _ = try await lab.buyKnown()
            let imported = try await lab.sell { $0.customer = "one" }.purchase.transactionId
            try await lab.importGrant(imported)
            _ = try await lab.sell {
                $0.customer = "one"
                $0.purchaseDate = lab.store.now - 400 * 86_400_000
            }
            try await lab.enter(sweeps)
            // Of the imported purchase alone, Apple's customer is not known before Apple is asked.
            for _ in 0..<3 {
                try await lab.makeDue()
                await CustomerSweep(sweeps).round()
            }
            #expect(try await lab.lab.number("select count(*) from transactions") == 3, "the facts are stored")
            #expect(try await lab.unpostedReceipts() == [])
            #expect(try await lab.lab.number("select count(*) from differences") == 0)
            #expect(
                try await lab.lab.texts("select customer from history_walks where due_at = 'infinity'") == [imported])
        }
    }

    @Test("a long history is read in parts, and others have their turn; two readers read each page once")
    func long() async throws {
        try await VerifyLab.with { lab in
            #expect(CustomerSweep.pagesMax * 20 >= 20_000, "a customer may have 20,000 transactions")
            let sweeps = try await lab.sweeps()
            let ids = try await lab.sell(21 * 20)
            try await lab.give(ids[0])
            let other = try await lab.sell { $0.customer = "two" }.purchase
            try await lab.give(other.transactionId, customer: other.appTransactionId)
            try await lab.enter(sweeps)
            let second = try await lab.sweeps()
            async let beside = CustomerSweep(second).round()
            await CustomerSweep(sweeps).round()
            _ = await beside
            #expect(lab.historyCalls == CustomerQuestion.pagesMax + 1)
            #expect(
                try await lab.lab.texts(
                    "select concat_ws(' ', swept_pages, swept_at is not null) from history_walks order by 1")
                    == ["1 t", "20 f"])
            #expect(
                try await lab.lab.number(
                    "select count(*) from history_walks where swept_at is null and due_at > now()") == 1, "it rests")
            try await lab.lab.run("update history_walks set due_at = now() where swept_at is null")
            await CustomerSweep(sweeps).round()
            #expect(try await lab.lab.number("select count(*) from history_walks where swept_at is not null") == 2)
            #expect(lab.historyCalls == CustomerQuestion.pagesMax + 2)
            #expect(try await lab.lab.number("select count(*) from transactions") == ids.count + 1)
            #expect(try await lab.unpostedReceipts().count == ids.count - 1)
        }
    }

    /// `deploy/nightly` reads 20,000.
    private static let transactions =
        ProcessInfo.processInfo.environment["MAKEGOOD_TEST_TRANSACTIONS"].flatMap { Int($0) } ?? 1000

    @Test("a customer with very many transactions is read to the end by two workers, each page once")
    func longest() async throws {
        try await VerifyLab.with { lab in
            let count = Self.transactions
            var ids: [String] = []
            while ids.count < count { ids += try await lab.sell(min(500, count - ids.count)) }
            try await lab.give(ids[0])
            let workers = [try await lab.sweeps(), try await lab.sweeps()]
            try await lab.enter(workers[0])
            let pages = (count + 19) / 20
            for turn in 0..<(pages + CustomerQuestion.pagesMax - 1) / CustomerQuestion.pagesMax {
                #expect(try await lab.lab.number("select count(*) from history_walks where swept_at is not null") == 0)
                await CustomerSweep(workers[turn % 2]).round()
                #expect(lab.historyCalls == min(pages, (turn + 1) * CustomerQuestion.pagesMax))
                try await lab.makeDue()
            }
            #expect(try await lab.walks() == ["\(pages) 0 0 - t"])
            #expect(try await lab.lab.number("select count(*) from transactions") == count)
            #expect(try await lab.unpostedReceipts().count == count - 1, "one receipt for each that nobody posted")
            // Later only what has changed is read.
            _ = try await lab.sell { $0.customer = "one" }
            await CustomerSweep(workers[0]).round()
            #expect(lab.historyCalls == pages + 1)
            #expect(try await lab.lab.number("select count(*) from transactions") == count + 1)
        }
    }

    @Test("a refused place is forgotten, and the list begins anew")
    func refusedRevision() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            _ = try await lab.buyKnown()
            try await lab.enter(sweeps)
            await CustomerSweep(sweeps).round()
            let lost = try await lab.sell { $0.customer = "one" }.purchase.transactionId
            var fault = FaultRequest(.error, on: .history, count: 1)
            fault.errorCode = 4_000_005
            try lab.store.fault(fault)
            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(try await lab.walks() == ["0 0 1 apple_answer t"])
            #expect(try await lab.lab.number("select count(*) from history_walks where swept_revision is null") == 1)
            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(try await lab.walks() == ["1 0 0 - t"])
            #expect(try await lab.unpostedReceipts() == ["\(lost) received sweep"])
        }
    }

    @Test("entries that do not verify are passed over, counted, and read again from the first page")
    func unverifiable() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            let known = try await lab.buyKnown()
            try await lab.enter(sweeps)
            try lab.store.fault(FaultRequest(.foreignRoot, on: .history))
            for failure in 1...CustomerQuestion.unverifiedMax {
                await CustomerSweep(sweeps).round()
                #expect(try await lab.walks() == ["0 0 \(failure) apple_answer f"])
                try await lab.makeDue()
            }
            await CustomerSweep(sweeps).round()
            #expect(try await lab.walks() == ["1 1 0 - t"], "it goes on behind the page, and is not complete")
            #expect(
                try await lab.lab.number(
                    "select count(*) from history_walks where due_at <= now() + interval '1 day'") == 1)
            lab.store.clearFaults()
            // One good entry beside one that is none.
            var part = FaultRequest(.status, on: .history, count: 1)
            part.status = 200
            let good = try lab.store.sign(known)
            part.body = #"{"signedTransactions": ["\#(good)", "a.b.c"], "revision": "r", "hasMore": false}"#
            try lab.store.fault(part)
            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(try await lab.walks() == ["1 1 0 - t"])
            let lost = try await lab.sell { $0.customer = "one" }.purchase.transactionId
            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(try await lab.walks() == ["1 0 0 - t"])
            #expect(try await lab.unpostedReceipts() == ["\(lost) received sweep"])
        }
    }

    @Test("a list that leads in a circle is a failure, keeps its facts, and begins anew")
    func circle() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            let known = try await lab.buyKnown()
            try await lab.enter(sweeps)
            let signed = try lab.store.sign(known)
            func answer(_ place: String, count: Int? = nil) throws {
                var page = FaultRequest(.status, on: .history, count: count)
                page.status = 200
                page.body = #"{"signedTransactions": ["\#(signed)"], "revision": "\#(place)", "hasMore": true}"#
                try lab.store.fault(page)
            }
            try answer("same")
            await CustomerSweep(sweeps).round()
            #expect(lab.historyCalls == 2)
            #expect(try await lab.walks() == ["1 0 1 apple_answer f"])
            #expect(try await lab.lab.number("select count(*) from transactions where signed_at is not null") == 1)
            lab.store.clearFaults()
            // A page that leads back to itself is asked for again; one that leads to an earlier page is not.
            #expect(try await lab.endless() == [])
            for place in ["a", "b", "a"] { try answer(place, count: 1) }
            try await lab.makeDue()
            await CustomerSweep(sweeps).round()
            #expect(try await lab.walks() == ["3 0 1 apple_answer f"])
            #expect(try await lab.endless() == ["customer t"])
            lab.store.clearFaults()
            for _ in 0..<2 {
                try await lab.makeDue()
                await CustomerSweep(sweeps).round()
            }
            #expect(try await lab.walks() == ["1 0 0 - t"])
            var state = CustomerRota.State()
            _ = await CustomerRota(sweeps).round(&state)
            #expect(try await lab.endless() == ["customer f"], "the list was read to its end")
        }
    }

    @Test("a list of refunds that leads in a circle is given up, also in one of more pages than a turn has")
    func refundCircle() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            let id = try await lab.buyKnown()
            try await lab.enter(sweeps)
            try lab.store.refund(id)
            let signed = try lab.store.sign(id)
            /// Has Apple answer pages with these places behind them, and reads what is due.
            func read(_ places: [Int], pages: Int? = nil) async throws {
                for place in places {
                    var page = FaultRequest(.status, on: .refundHistory, count: 1)
                    page.status = 200
                    page.body = #"{"signedTransactions": ["\#(signed)"], "revision": "r\#(place)", "hasMore": true}"#
                    try lab.store.fault(page)
                }
                try await lab.lab.run("update history_walks set refunds_due_at = now(), refunds_until = null")
                if let pages { try await lab.lab.run("update history_walks set refunds_pages = \(pages)") }
                await RefundSweep(sweeps).round()
            }
            func position() async throws -> [String] {
                try await lab.lab.texts(
                    """
                    select concat_ws(' ', coalesce(refunds_revision, '-'), refunds_failures, refunds_at is not null,
                      refunds_due_at > now() + interval '10 seconds')
                    from history_walks
                    """)
            }
            // A circle of 21 pages: no turn sees a place twice.
            try await read(Array(1...20))
            #expect(try await position() == ["r20 0 f f"])
            #expect(try await lab.lab.texts("select refunds_pages::text from history_walks") == ["20"])
            try await read([21] + Array(1...19), pages: CustomerSweep.pagesMax - 20)
            #expect(try await position() == ["r19 0 f f"] && lab.refundCalls == 40)
            #expect(try await lab.endless() == [])
            try await read([20])
            #expect(try await position().map { $0.prefix(5) } == ["- 1 f"] && lab.refundCalls == 41)
            #expect(try await lab.endless() == ["refund t"])
            // A short one, from the first page: pages of the list before do not count.
            try await read([7, 8, 7])
            #expect(try await position().map { $0.prefix(5) } == ["- 1 f"] && lab.refundCalls == 44)
            #expect(try await lab.endless() == ["refund t"])
            // A page that leads back to itself, until the tries are over.
            try await lab.lab.run("delete from differences")
            try await read([9, 9])
            #expect(try await position().map { $0.prefix(6) } == ["r9 1 f"] && lab.refundCalls == 46)
            #expect(try await lab.endless() == [])
            try await lab.lab.run("update history_walks set refunds_failures = \(CustomerQuestion.failuresMax)")
            try await read([9])
            #expect(try await position().map { $0.prefix(5) } == ["- 9 f"] && lab.refundCalls == 47)
            #expect(try await lab.endless() == ["refund t"])
            #expect(try await lab.lab.number("select count(*) from transactions where revoked_at is not null") == 1)
            lab.store.clearFaults()
            try await read([])
            #expect(try await position().map { $0.prefix(5) } == ["- 0 t"])
            var state = CustomerRota.State()
            _ = await CustomerRota(sweeps).round(&state)
            #expect(try await lab.endless() == ["refund f"])
        }
    }

    @Test("429 for hours counts no failure; refused credentials stop the sweep, and the row stays due")
    func noCalls() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            _ = try await lab.buyKnown()
            try await lab.enter(sweeps)
            var limit = FaultRequest(.status, on: .history)
            limit.status = 429
            limit.retryAfterMilliseconds = 3_600_000
            try lab.store.fault(limit)
            for _ in 0..<3 {
                var rests = SweepRests<String>()
                #expect(await !CustomerSweep(sweeps).round(&rests))
                #expect(rests.isResting(VerifyLab.appID) && !rests.isResting("other"), "other apps are asked")
                #expect(CustomerQuestion.places(sweeps, except: rests).isEmpty)
                try await lab.lab.run("update history_walks set swept_until = now()")
            }
            #expect(lab.historyCalls <= 2, "the governor keeps the stop")
            #expect(try await lab.walks() == ["0 0 0 - f"])
            #expect(try await lab.lab.number("select count(*) from history_walks where due_at <= now()") == 1)
        }
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            _ = try await lab.buyKnown()
            try await lab.enter(sweeps)
            var refusal = FaultRequest(.status, on: .all)
            refusal.status = 401
            try lab.store.fault(refusal)
            for _ in 0..<3 {
                await CustomerSweep(sweeps).round()
                try await lab.lab.run("update history_walks set swept_until = now()")
            }
            #expect(lab.historyCalls == 1)
            #expect(try await lab.walks() == ["0 0 0 - f"])
            #expect(try await lab.lab.number("select count(*) from history_walks where due_at <= now()") == 1)
            #expect(try await lab.lab.number("select count(*) from halts") == 1)
        }
    }

    @Test("of two apps the one without a budget rests, in each sweep, and the other's customers are read")
    func noBudget() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps(others: ["poor"])
            _ = try await lab.buyKnown()
            try await lab.enter(sweeps)
            try await lab.lab.run(
                "update history_walks set due_at = now() + interval '1 day', refunds_due_at = now() + interval '1 day'")
            // More than two claims take, and due for longer than anybody else.
            try await lab.lab.run(
                """
                insert into history_walks (app_id, environment, customer, asked_id, busy_until, due_at, refunds_due_at)
                select 'poor', 'Production', 'c' || n, '2000000000000001', now(), now() - interval '2 hours',
                  now() - interval '2 hours'
                from generate_series(1, 20) n
                """)
            var limit = FaultRequest(.status, on: .all)
            limit.status = 429
            limit.retryAfterMilliseconds = 3_600_000
            try lab.store.fault(limit)
            await CustomerSweep(sweeps).round()
            await RefundSweep(sweeps).round()
            lab.store.clearFaults()
            let refused = lab.store.calls().count
            #expect((2...2 * Statements.customersClaimedMax).contains(refused))

            try await lab.lab.run(
                """
                update history_walks set due_at = now() - interval '1 hour', refunds_due_at = now() - interval '1 hour'
                where app_id = 'game'
                """)
            try await lab.lab.run("update history_walks set swept_until = now(), refunds_until = now()")
            // A worker that knows of no rest: the first claim is the poor app's, and the second is not.
            let other = try await lab.sweeps(others: ["poor"])
            var (customers, refunds) = (SweepRests<String>(), SweepRests<String>())
            for _ in 0..<2 {
                await CustomerSweep(other).round(&customers)
                await RefundSweep(other).round(&refunds)
            }
            #expect(customers.isResting("poor") && refunds.isResting("poor"))
            #expect(!customers.isResting("game") && !refunds.isResting("game"))
            #expect(lab.store.calls().count == refused + 2, "one page of the customer, and one of refunds")
            #expect(
                try await lab.lab.texts(
                    """
                    select concat_ws(' ', app_id, count(*), count(swept_at), count(refunds_at), max(failures))
                    from history_walks group by app_id order by 1
                    """) == ["game 1 1 1 0", "poor 20 0 0 0"])
        }
    }

    @Test("P32: a refund that the list alone tells revokes once, and its reversal reinstates once")
    func refunds() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            let id = try await lab.buyKnown()
            try await lab.enter(sweeps)
            try await lab.lab.run("update history_walks set due_at = 'infinity', refunds_due_at = now()")
            await RefundSweep(sweeps).round()
            #expect(lab.refundCalls == 1)
            try lab.store.refund(id)
            for _ in 0..<2 {
                try await lab.lab.run("update history_walks set refunds_due_at = now()")
                await RefundSweep(sweeps).round()
                try await lab.lab.followUp()
            }
            #expect(try await lab.lab.texts("select kind from revocations order by ordinal") == ["revoked"])
            #expect(
                try await lab.lab.texts("select concat_ws(' ', kind, net) from net_catches") == ["end refund"])
            #expect(try await lab.lab.number("select count(*) from history_walks where wanted_by is not null") == 0)

            try lab.store.reverseRefund(id)
            for _ in 0..<2 {
                try await lab.lab.run("update history_walks set refunds_due_at = now()")
                await RefundSweep(sweeps).round()
                await CustomerSweep(sweeps).round()
                try await lab.lab.followUp()
            }
            #expect(
                try await lab.lab.texts("select kind from revocations order by ordinal") == ["revoked", "reinstated"])
            #expect(lab.historyCalls == 1, "only the missing refund asked for the history")
            #expect(try await lab.lab.number("select count(*) from differences where ended_at is null") == 2)
            var state = CustomerRota.State()
            _ = await CustomerRota(sweeps).round(&state)
            #expect(try await lab.lab.number("select count(*) from differences where ended_at is null") == 0)
        }
    }

    @Test("refunds of an imported purchase are asked for; those of a customer who bought long ago are not")
    func refundsOfOthers() async throws {
        try await VerifyLab.with { lab in
            let sweeps = try await lab.sweeps()
            let imported = try await lab.sell { $0.customer = "one" }.purchase.transactionId
            try await lab.importGrant(imported)
            let old = try await lab.sell { $0.customer = "two" }.purchase.transactionId
            try await lab.importGrant(old, "now() - interval '200 days'")
            try lab.store.refund(imported)
            try await lab.enter(sweeps)
            await RefundSweep(sweeps).round()
            #expect(lab.store.calls().map(\.transactionIds) == [[imported]])
            #expect(
                try await lab.lab.number("select count(*) from transactions where revoked_at is not null") == 1)
            #expect(try await lab.unpostedReceipts() == [])
        }
    }
}
