import AppStoreSimulator
import Encoding
import Foundation
import Purchases
import Testing

@testable import Intake
@testable import Ledger
@testable import MovingIn
@testable import Reconciliation
@testable import Support

/// Goal: in shadow, this server decides everything as if it counted, and grants nothing; going live takes over the
/// former system's grants, and loses no purchase that the former system missed. Method: a worker's processor between the
/// simulator over real HTTP and a real ledger, whose configuration goes from shadow to live.
@Suite(.timeLimit(.minutes(8))) struct ShadowTests {
    private static let shadow = "mode: shadow"

    @Test("in shadow a purchase is decided and held; nothing is granted, told or bound, and no client may finish")
    func decidesOnly() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(
                try lab.configuration(more: [Self.shadow, "finishAtApple: afterReceipt"]))
            let order = try await lab.lab.place("u1", minutesBefore: 0)
            let bought = try await lab.sell { $0.appAccountToken = order.uuidString }
            let posted = try await lab.post(bought, by: "u2")
            await processor.process(posted)
            #expect(try await lab.lab.state(posted) == "held shadow")
            #expect(
                try await lab.decisions() == [
                    "\(bought.purchase.transactionId) u1 order_token \(order.uuidString.lowercased())"
                ])
            #expect(
                try await lab.lab.texts("select goods::text from v_shadow_decisions")
                    == [#"[{"item": "coin", "amount": 60}]"#])
            // Rejected proofs and refunds are answered as always, and are still not safe to finish.
            let refused = try await lab.post("e30.e30.e30", by: "u1")
            await processor.process(refused)
            #expect(try await lab.lab.state(refused)?.hasPrefix("rejected") == true)
            for posted in [posted, refused] {
                let view = try #require(try await lab.lab.ledger.view(posted.id))
                #expect(!ReceiptAnswer(view, finishing: .never).safeToFinish)
            }
            // The receipt waits for a command, not for the scheduler; another configuration does not wake it either.
            #expect(
                try await lab.lab.number(
                    "select count(*) from receipts where reason = 'shadow' and due_at > now() + interval '5 days'") == 1
            )
            _ = try await lab.processor(
                try lab.configuration(more: [Self.shadow, "finishHeld: false"]))
            #expect(try await lab.lab.number("select count(*) from receipts where due_at < now()") == 0)
            #expect(try await lab.given() == 0)
        }
    }

    @Test("shadow decides as it would live: chains, orders and tokens are those of its own earlier decisions")
    func decidesAsLive() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: [Self.shadow]))
            // There is one open order and two purchases: the second is its poster's by row 10.
            let order = try await lab.lab.place("u1", minutesBefore: 0)
            try await lab.lab.run(
                "update orders set placed_at = now() - interval '1 minute', pay_by = now() + interval '1 day'")
            let (one, two) = (try await lab.sell(), try await lab.sell())
            for sale in [one, two] { await processor.process(try await lab.post(sale, by: "u1")) }
            #expect(
                try await lab.decisions().map { $0.split(separator: " ").dropFirst().joined(separator: " ") } == [
                    "u1 open_order \(order.uuidString.lowercased())", "u1 poster",
                ])
            // Another user posts the first purchase: the owner stays the same.
            await processor.process(try await lab.post(one, by: "thief"))
            #expect(try await lab.decisions().allSatisfy { $0.contains(" u1 ") })
            // A token that nobody registered is first used by u3.
            let token = UUID().uuidString
            let first = try await lab.sell { $0.appAccountToken = token }
            let second = try await lab.sell { $0.appAccountToken = token }
            await processor.process(try await lab.post(first, by: "u3"))
            // Another user's post of a purchase with that token waits, as it would live; u3's own post does not.
            await processor.process(try await lab.post(second, by: "u4"))
            #expect(try await lab.decisions().last?.hasSuffix("u3 poster") == true)
            await processor.process(try await lab.post(second, by: "u3"))
            #expect(
                try await lab.decisions().suffix(2).map { $0.split(separator: " ").dropFirst().joined(separator: " ") }
                    == ["u3 poster", "u3 remembered_token"])
            #expect(try await lab.given() == 0)
        }
    }

    @Test("a renewal in shadow is the chain's owner's: of an earlier decision, or as it was imported")
    func renewals() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(
                try lab.configuration(
                    more: [Self.shadow], products: "{id: pass, type: autoRenewable, goods: [{item: pass, amount: 1}]}"))
            let period = try await lab.sell {
                $0.productId = "pass"
                $0.type = .autoRenewable
            }
            let renewal = try await lab.sell {
                $0.productId = "pass"
                $0.type = .autoRenewable
                $0.originalTransactionId = period.purchase.transactionId
            }
            await processor.process(try await lab.post(period, by: "owner"))
            await processor.process(try await lab.post(renewal, by: "other"))
            #expect(
                try await lab.decisions().map { $0.split(separator: " ")[1...].joined(separator: " ") } == [
                    "owner poster", "owner chain",
                ])
        }
    }

    @Test("going live: what was imported is already granted, what was missed waits for a person, what comes is granted")
    func goesLive() async throws {
        try await VerifyLab.with { lab in
            let inShadow = try lab.configuration(more: [Self.shadow], grantFrom: nil)
            let processor = try await lab.processor(inShadow)
            #expect(try await lab.lab.texts("select coalesce(live_since::text, '-') from apps") == ["-"])
            let (given, missed) = (try await lab.sell(), try await lab.sell())
            let posts = [try await lab.post(given, by: "u1"), try await lab.post(missed, by: "u2")]
            for posted in posts {
                await processor.process(posted)
                #expect(try await lab.lab.state(posted) == "held shadow")
            }
            _ = try await ImporterTests.run(
                .grants,
                "transactionId,userId,productId,purchasedAt\n\(given.purchase.transactionId),u1,coins,"
                    + "\(Date.now.rfc3339)\n", in: lab.lab, now: .now)

            let live = try await lab.processor(try lab.configuration(grantFrom: nil))
            #expect(try await lab.lab.number("select count(*) from apps where live_since > first_started_at") == 1)
            let repairs = Repairs(database: lab.lab.database, actor: "ann")
            #expect(try await repairs.redrive([.held], appID: VerifyLab.appID, reason: "shadow") == 2)
            for posted in posts { await live.process(posted) }
            #expect(try await lab.lab.state(posts[0]) == "already_granted imported")
            #expect(try await lab.lab.state(posts[1]) == "held before_cutover")
            #expect(try await lab.given() == 0)
            let now = try await lab.post(try await lab.sell(), by: "u1")
            await live.process(now)
            #expect(try await lab.lab.state(now) == "granted")
            // The time of going live is stored once.
            let since = try await lab.lab.texts("select live_since::text from apps")
            _ = try await lab.processor(try lab.configuration(grantFrom: nil))
            #expect(try await lab.lab.texts("select live_since::text from apps") == since)
            // Nor is it reset by a process that does not judge and was started on yesterday's file.
            var stale = Statements.AppStart(appID: VerifyLab.appID, configurationHash: [1])
            (stale.isLive, stale.judges) = (false, false)
            _ = try await lab.lab.ledger.run(Statements.rememberApp, stale)
            #expect(try await lab.lab.texts("select live_since::text from apps") == since)
        }
    }

    @Test("live, shadow, live: what came in the second shadow waits for a person as in the first; what was given stays")
    func shadowAgain() async throws {
        try await VerifyLab.with { lab in
            let (inShadow, isLive) = (
                try lab.configuration(more: [Self.shadow], grantFrom: nil), try lab.configuration(grantFrom: nil)
            )
            let first = try await lab.processor(isLive)
            let given = try await lab.post(try await lab.sell(), by: "u1")
            await first.process(given)
            #expect(try await lab.lab.state(given) == "granted")

            let again = try await lab.processor(inShadow)
            #expect(try await lab.lab.texts("select coalesce(live_since::text, '-') from apps") == ["-"])
            let held = try await lab.post(try await lab.sell(), by: "u2")
            await again.process(held)
            #expect(try await lab.lab.state(held) == "held shadow")

            let live = try await lab.processor(isLive)
            let repairs = Repairs(database: lab.lab.database, actor: "ann")
            #expect(try await repairs.redrive([.held], appID: VerifyLab.appID, reason: "shadow") == 1)
            await live.process(held)
            #expect(try await lab.lab.state(held) == "held before_cutover")
            let now = try await lab.post(try await lab.sell(), by: "u2")
            await live.process(now)
            #expect(try await lab.lab.state(now) == "granted")
            #expect(try await lab.lab.number("select count(*) from grants") == 2)
        }
    }

    @Test("what shadow held for longer than a month, and nobody imported, waits for a person: it is not history")
    func longShadow() async throws {
        try await VerifyLab.with { lab in
            let products = """
                {id: season, type: nonRenewing, goods: [{item: season, amount: 1}]}, {id: pass, type: autoRenewable, \
                goods: [{item: pass, amount: 1}]}
                """
            let more = ["makeUp: {maxAge: 0}"]
            let inShadow = try lab.configuration(more: more + [Self.shadow], grantFrom: nil, products: products)
            _ = try await lab.processor(inShadow)
            try await lab.lab.run("update apps set first_started_at = now() - interval '60 days'")
            let processor = try await lab.processor(inShadow)
            let old = Int64(Date.now.addingTimeInterval(-45 * 86_400).timeIntervalSince1970 * 1000)
            var posts: [Posted] = []
            for (product, kind) in [("coins", nil), ("season", .nonRenewing)] as [(String, ProductType?)] {
                let sale = try await lab.sell {
                    $0.productId = product
                    $0.type = kind
                    $0.purchaseDate = old
                }
                posts.append(try await lab.post(sale, by: "u1"))
            }
            for posted in posts {
                await processor.process(posted)
                #expect(try await lab.lab.state(posted) == "held shadow")
            }
            let live = try await lab.processor(try lab.configuration(more: more, grantFrom: nil, products: products))
            let repairs = Repairs(database: lab.lab.database, actor: "ann")
            #expect(try await repairs.redrive([.held], appID: VerifyLab.appID, reason: "shadow") == 2)
            for posted in posts {
                await live.process(posted)
                #expect(try await lab.lab.state(posted) == "held before_cutover")
            }
            #expect(try await lab.given() == 0)
        }
    }

    @Test("a grantFrom that lies before the shadow makes good what the other system missed, and nothing else")
    func makesGood() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: [Self.shadow]))
            let (given, missed) = (try await lab.sell(), try await lab.sell())
            let posts = [try await lab.post(given, by: "u1"), try await lab.post(missed, by: "u2")]
            for posted in posts { await processor.process(posted) }
            _ = try await ImporterTests.run(
                .grants,
                "transactionId,userId,productId,purchasedAt\n\(given.purchase.transactionId),u1,coins,"
                    + "\(Date.now.rfc3339)\n", in: lab.lab, now: .now)
            let live = try await lab.processor(try lab.configuration())
            for posted in posts { await live.process(posted) }
            #expect(try await lab.lab.grants == ["\(missed.purchase.transactionId) u2"])
            #expect(try await lab.lab.state(posts[0]) == "already_granted imported")
        }
    }

    @Test("shadow diff of a live app: what was granted counts, and what was granted here alone is told")
    func liveDiff() async throws {
        try await LedgerLab.with { lab in
            for id in ["1", "2", "3", "4"] { try await lab.settle(try await lab.post("u1"), .purchase(id)) }
            try await lab.settle(
                try await lab.post("u1"), .purchase("5") { $0.purchasedAt = $0.purchasedAt.addingTimeInterval(-60) })
            var lines = "transactionId,userId,productId,purchasedAt\n"
            for line in ["1,u1,coins", "2,u2,coins", "9,u9,coins"] {
                lines += "\(line),\(Date(timeIntervalSince1970: 1_800_000_000).rfc3339)\n"
            }
            for (isLive, expected) in [
                (true, ["only_here 3", "only_here 4", "only_there 9", "other_user 2"]),
                // In shadow nothing is granted, so nothing is looked for among the grants.
                (false, ["only_there 9", "other_user 2"]),
            ] {
                var pieces = [Array(lines.utf8)]
                var file = ImportFile(.csv) { pieces.popLast() ?? [] }
                var told: [String] = []
                let diff = ShadowDiff(
                    database: lab.database, context: try ImportRowTests.context(), isLive: isLive)
                let report = try await diff.run(&file) { told.append("\($0.kind.rawValue) \($0.transactionID ?? "-")") }
                #expect(told.sorted() == expected && report.same == 1)
            }
        }
    }

    @Test("shadow diff: every way in which the two may differ, once; and nothing where they agree")
    func diff() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: [Self.shadow]))
            var sales: [Sale] = []
            for _ in 0..<6 { sales.append(try await lab.sell()) }
            let ids = sales.map(\.purchase.transactionId)
            for sale in sales.dropLast(2) { await processor.process(try await lab.post(sale, by: "u1")) }
            // One purchase is held for a person; another was never posted.
            let refused = try await lab.post(sales[4], by: nil)
            await processor.process(refused)
            #expect(try await lab.lab.state(refused) == "held order_unknown")
            let open = try await lab.post(sales[5], by: "u1")

            let now = Date.now.addingTimeInterval(60)
            let line = { (id: String, user: String, product: String) in "\(id),\(user),\(product),\(now.rfc3339)" }
            let header = "transactionId,userId,productId,purchasedAt"
            let (report, differences) = try await lab.diff(
                [
                    header, line(ids[0], "u1", "coins"), line(ids[1], "u2", "coins"), line(ids[2], "u1", "gems"),
                    line(ids[4], "u1", "coins"), line(ids[5], "u1", "coins"), line("77", "u7", "coins"),
                    "\(ids[0]),u1,coins,\(now.addingTimeInterval(-3600).rfc3339)", "1,2",
                ])
            #expect(
                differences
                    == [
                        "other_user \(ids[1])", "other_product \(ids[2])", "undecided \(ids[4]) held, order_unknown",
                        "only_there \(ids[5]) nobody posted it", "only_there 77 nobody posted it",
                        "only_here \(ids[3])",
                        "refused -",
                    ].sorted())
            #expect(report.same == 2 && report.lines == 8 && report.undecidedReceipts == 1 && !report.isSame)

            await processor.process(open)
            let all = [header] + ids.filter { $0 != ids[4] }.map { line($0, "u1", "coins") }
            let (agreed, none) = try await lab.diff(all, since: .distantPast)
            #expect(none == [] && agreed.isSame && agreed.same == 5)
            // Purchases from outside the time span are not compared.
            let (outside, _) = try await lab.diff([header, line(ids[0], "u1", "coins")], since: now)
            #expect(outside.isSame && outside.same == 1)
        }
    }
}

extension VerifyLab {
    fileprivate func post(_ sale: Sale, by userID: String?) async throws -> Posted {
        try await post(sale.signedTransaction, by: userID)
    }

    fileprivate func post(_ jws: String, by userID: String?) async throws -> Posted {
        let submission = Submission(
            appID: Self.appID, userID: userID, orderID: userID == nil ? "o1" : nil, proof: .signedTransaction(jws))
        #expect(try await lab.ledger.insert(submission))
        return Posted(id: submission.receiptID, userID: userID, appID: Self.appID)
    }

    /// `transaction user rule order`, in the order they were decided in.
    fileprivate func decisions() async throws -> [String] {
        try await lab.texts(
            """
            select concat_ws(' ', transaction_id, user_id, binding_source, order_id) from shadow_decisions
            order by decided_at, transaction_id
            """)
    }

    /// How many grants, events, bindings, tokens and Apple updates were really written.
    fileprivate func given() async throws -> Int {
        try await lab.number(
            """
            select (select count(*) from grants) + (select count(*) from events) + (select count(*) from ownerships)
              + (select count(*) from grants where order_id is not null) + (select count(*) from granted_tokens)
              + (select count(*) from apple_updates)
            """)
    }

    /// `kind transaction why`, sorted.
    fileprivate func diff(_ lines: [String], since: Date? = nil) async throws -> (ShadowDiff.Report, [String]) {
        var pieces = [Array(lines.joined(separator: "\n").utf8)]
        var file = ImportFile(.csv) { pieces.popLast() ?? [] }
        var told: [String] = []
        let context = try ImportRowTests.context(now: .now.addingTimeInterval(120))
        let report = try await ShadowDiff(database: lab.database, context: context).run(&file, since: since) {
            let why = $0.kind == .refused ? nil : $0.why
            told.append(
                [$0.kind.rawValue, $0.transactionID ?? "-", why].compactMap(\.self).joined(separator: " "))
        }
        return (report, told.sorted())
    }
}

extension ReceiptProcessor {
    /// Processes the receipt as if its message had come.
    fileprivate func process(_ posted: Posted) async {
        let message = Array(Pointer(receiptID: posted.id, attempt: 0).text.utf8)
        #expect(await process(message, redelivered: false) == .done)
    }
}
