import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Intake
@testable import Ledger
@testable import MovingIn
@testable import Support

/// Goal: `explain` tells what happened, where the purchase stands and what comes next, in order and from stored rows
/// alone, and a player learns nothing about others or about the inside of the server (B14). Method: histories of
/// verdicts on real PostgreSQL, each read by support, by every player in it, and by strangers.
@Suite(.timeLimit(.minutes(8))) struct TimelineTests {
    private static let support = TimelineReader.support(apps: ["game"])
    private static func player(_ user: String) -> TimelineReader { .player(["game": user]) }

    private static func entry(_ id: String, _ decision: Decision? = nil) -> Verdict.Entry {
        .purchase(id, decision ?? .grant(goods: Verdict.Entry.coins, source: .poster)) {
            $0.purchasedAt = .now.addingTimeInterval(-60)
            $0.signedAt = .now.addingTimeInterval(-50)
            $0.facts = #"{"price":1990,"currency":"USD"}"#
        }
    }

    /// The machine-readable name of each line, in order.
    private static func words(_ timeline: Timeline) -> [String] { timeline.lines.map(\.what.rawValue) }

    @Test("B14: a granted purchase, by its receipt and by its transaction; another's post of it shows no user")
    func grantedAndClaimedByAnother() async throws {
        try await LedgerLab.with { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let first = try await lab.post("owner-1", kind: .signedTransaction, transactionID: "t1")
            try await lab.settle(first, Self.entry("t1"))
            let second = try await lab.post("claimant-2", kind: .signedTransaction)
            #expect(try await lab.settle(second, Self.entry("t1")) == .alreadyGranted)

            let whole = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.support))
            // Both users are told of the dispute: only the first post speaks for the owner.
            #expect(Self.words(whole) == ["bought", "posted", "granted", "told", "posted", "decided", "told", "told"])
            #expect(whole.standing.state == "granted" && whole.standing.reason == nil)
            #expect(whole.next == .nothing)
            #expect(whole.text.contains("granted to owner-1: 60 coin; who posted it showed"))
            #expect(whole.text.contains("for 1.99 USD"))
            #expect(whole.text.contains("transaction t1: already_granted, because owned_by_another_user, to owner-1"))
            #expect(whole.text.contains(PlayerSentence(.granted, nil).zh))

            let own = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.player("owner-1")))
            #expect(Self.words(own) == ["bought", "posted", "granted"])
            #expect(own.json.text.contains("granted to you"))
            for word in ["claimant-2", "owner-1", "bindingSource", "lane", "poster", "eventId"] {
                #expect(!own.json.text.contains(word), "\(word)")
            }

            for subject in [TimelineSubject.transaction("t1"), .receipt(second.id)] {
                let masked = try #require(try await explainer.timeline(of: subject, for: Self.player("claimant-2")))
                #expect(masked.standing.state == "already_granted")
                #expect(masked.standing.reason == "owned_by_another_user")
                #expect(Self.words(masked) == ["bought", "posted", "decided"])
                #expect(!masked.json.text.contains("owner-1") && !masked.json.text.contains("goods"))
                #expect(masked.standing.sentence == PlayerSentence(.alreadyGranted, .ownedByAnotherUser))
            }
            for subject in [TimelineSubject.transaction("t1"), .receipt(first.id), .receipt(second.id)] {
                #expect(try await explainer.timeline(of: subject, for: Self.player("stranger")) == nil)
                #expect(try await explainer.timeline(of: subject, for: .player(["other": "owner-1"])) == nil)
                #expect(try await explainer.timeline(of: subject, for: .support(apps: ["other"])) == nil)
            }
            #expect(try await explainer.timeline(of: .receipt(first.id), for: Self.player("claimant-2")) == nil)
            // A guest's timeline belongs to the account that the guest became part of, and to nobody else.
            #expect(try await lab.merge("owner-1", into: "account") == .merged)
            for reader in ["owner-1", "account"] {
                for subject in [TimelineSubject.transaction("t1"), .receipt(first.id)] {
                    let guests = try #require(try await explainer.timeline(of: subject, for: Self.player(reader)))
                    #expect(Self.words(guests) == ["bought", "posted", "granted"] && guests.text.contains("to you"))
                }
            }
            #expect(try await explainer.timeline(of: .transaction("t1"), for: Self.player("stranger")) == nil)
            #expect(try await explainer.timeline(of: .receipt(first.id), for: Self.player("claimant-2")) == nil)
            for id in ["t1", first.id.uuidString, second.id.uuidString.lowercased()] {
                #expect(try await explainer.timeline(ofAny: id, for: .people) != nil)
            }
            for id in ["t2", UUID().uuidString, "", "\u{0}", String(repeating: "1", count: 65)] {
                #expect(try await explainer.timeline(ofAny: id, for: .people) == nil)
            }
        }
    }

    @Test("B14: refunded after it was granted: the receipt has ended, and the timeline says what holds now")
    func refunded() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post(kind: .signedTransaction)
            try await lab.settle(posted, Self.entry("t1"))
            let later = try await lab.post(kind: .signedTransaction)
            var refunded = Self.entry("t1").transaction
            refunded.revokedAt = .now.addingTimeInterval(3600)
            refunded.signedAt = .now
            try await lab.settle(later, Verdict.Entry(transaction: refunded, decision: .rejected(.refunded)))
            for reader in [Self.support, Self.player("u1")] {
                for subject in [TimelineSubject.receipt(posted.id), .transaction("t1")] {
                    let timeline = try #require(
                        try await Explainer(database: lab.database, keys: nil).timeline(of: subject, for: reader))
                    #expect(timeline.standing.state == "granted" && timeline.standing.reason == "refunded")
                    #expect(Self.words(timeline).last == "refunded")
                    #expect(timeline.standing.sentence.en.contains("refunded"))
                }
            }
        }
    }

    @Test("B14: Apple was away until the receipt was parked: every try, the commands, and when it goes on")
    func parked() async throws {
        var parking = Parking()
        parking.after = .zero
        try await LedgerLab.with(parking: parking) { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let posted = try await lab.post(kind: .receipt)
            let fresh = try #require(try await explainer.timeline(of: .receipt(posted.id), for: Self.support))
            #expect(fresh.next.by == .makegood && fresh.next.text.contains("a worker judges it"))
            for attempt in 0..<8 {
                let call = Verdict.Call(
                    service: "verifyReceipt", environment: "Production", httpStatus: attempt == 0 ? nil : 500,
                    code: nil,
                    milliseconds: 34)
                try await lab.settle(
                    lab.verdict(posted, attempt: attempt, .receipt(.open(.appleUnavailable)), call: call))
            }
            #expect(try await lab.state(posted) == "parked apple_unavailable")
            let repairs = Repairs(database: lab.database, actor: "ann")
            #expect(try await repairs.redrive([.parked], appID: nil, reason: nil) == 1)
            try await repairs.pause("game")

            let timeline = try #require(try await explainer.timeline(of: .receipt(posted.id), for: Self.support))
            let words = Self.words(timeline)
            #expect(words.first == "posted")
            #expect(words.count { $0 == "attempt" } == 8)
            #expect(words.suffix(3).sorted() == ["command", "command", "halted"])
            #expect(
                timeline.text.contains(
                    "try 8 brought nothing: apple_unavailable, verifyReceipt, Production, HTTP 500, 34 ms"))
            #expect(timeline.text.contains("ann ran queue.redrive"))
            #expect(timeline.next.by == .operator && timeline.next.text.contains("makegood queue resume --app game"))
            #expect(timeline.standing.state == "parked")
            _ = try await repairs.resume("game")
            let resumed = try #require(try await explainer.timeline(of: .receipt(posted.id), for: Self.support))
            #expect(resumed.next.by == .makegood && resumed.next.at != nil)
            #expect(resumed.next.text.contains("makegood queue redrive --app game --state parked"))

            let told = try #require(try await explainer.timeline(of: .receipt(posted.id), for: Self.player("u1")))
            #expect(Self.words(told) == ["posted", "decided"])
            #expect(told.standing.sentence == PlayerSentence(.parked, .appleUnavailable))
            for word in ["ann", "verifyReceipt", "HTTP", "makegood queue", "attempts"] {
                #expect(!told.json.text.contains(word), "\(word)")
            }
        }
    }

    @Test("B14: held and rejected ones say what helps; a bare id shows nothing of the purchase behind it")
    func heldAndRejected() async throws {
        try await LedgerLab.with { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let owner = try await lab.post("owner-1", kind: .signedTransaction)
            try await lab.settle(owner, Self.entry("t1", .held(.productUnknown)))
            let held = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.support))
            #expect(Self.words(held) == ["bought", "posted", "decided"])
            #expect(held.standing.state == "held" && held.next.by == .operator)
            #expect(held.next.text.contains("add the product") && held.next.at != nil)
            let told = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.player("owner-1")))
            #expect(told.json["next"]?["by"] == nil && told.json["next"]?["at"] != nil)
            #expect(told.json["next"]?["what"] == nil)

            let asker = try await lab.post("asker-2", kind: .identifier, transactionID: "t1")
            try await lab.settle(lab.verdict(asker, .identifier("t1", .possessionMissing)))
            let hint = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.player("asker-2")))
            #expect(Self.words(hint) == ["posted", "decided"])
            #expect(hint.standing.reason == "possession_missing" && hint.next.by == .player)
            #expect(!hint.json.text.contains("coins") && !hint.json.text.contains("owner-1"))
            let both = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.support))
            #expect(both.json.text.contains("owner-1") && both.json.text.contains("asker-2"))

            let forged = try await lab.post()
            try await lab.settle(lab.verdict(forged, .receipt(.rejected(.wrongApp))))
            let rejected = try #require(try await explainer.timeline(of: .receipt(forged.id), for: Self.support))
            #expect(rejected.next.by == .nobody && rejected.next.at == nil)
            #expect(rejected.next.text.contains("makegood support rejudge --app game --reason wrong_app"))
            #expect(rejected.next.text.contains("compare bundleId"))
        }
    }

    @Test("5.1 row 6: granted to its owner because another posted it: each is told what concerns that user")
    func postedForAnother() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let posted = try await lab.post("poster-2", kind: .signedTransaction)
            try await lab.settle(posted, Self.entry("t1"))
            // The rows are set as such a verdict leaves them.
            try await lab.run("update grants set user_id = 'owner-1'")
            try await lab.run("update outcomes set reason = 'owned_by_another_user'")
            try await lab.run("update receipts set reason = 'owned_by_another_user'")
            for subject in [TimelineSubject.receipt(posted.id), .transaction("t1")] {
                let poster = try #require(try await explainer.timeline(of: subject, for: Self.player("poster-2")))
                #expect(poster.standing == .init(.alreadyGranted, Reason.ownedByAnotherUser.rawValue))
                #expect(Self.words(poster) == ["bought", "posted", "decided"])
                #expect(!poster.json.text.contains("owner-1") && !poster.json.text.contains("goods"))
                let whole = try #require(try await explainer.timeline(of: subject, for: Self.support))
                #expect(whole.text.contains("poster-2 posted") && whole.text.contains("granted to owner-1"))
            }
            let owner = try #require(try await explainer.timeline(of: .transaction("t1"), for: Self.player("owner-1")))
            #expect(owner.standing == .init(.granted, nil) && Self.words(owner) == ["bought", "granted"])
            #expect(!owner.json.text.contains("poster-2"))
            #expect(try await explainer.timeline(of: .receipt(posted.id), for: Self.player("owner-1")) == nil)

            for (user, words) in [
                ("owner-1", ["t1 granted -"]), ("poster-2", ["t1 already_granted owned_by_another_user"]),
            ] {
                let page = Statements.PurchasePage(appID: "game", userIDs: [user], before: .newest, limit: 9)
                let lists = try await PurchaseLists.read(page, in: lab.database)
                #expect(
                    (lists.granted + lists.posted).flatMap(\.topUps).map {
                        "\($0.transactionId ?? "-") \($0.state.rawValue) \($0.reason ?? "-")"
                    } == words)
            }
        }
    }

    @Test("B14, S1-31: what the former system gave is listed and explained to its user, once, posted here or not")
    func imported() async throws {
        try await LedgerLab.with { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            _ = try await ImporterTests.run(
                .grants, ImporterTests.grants("1 1 owner-1 coins", "2 2 owner-1 coins", "3 3 owner-2 coins"), in: lab)
            func listed(_ user: String, before: ListCursor = .newest, limit: Int = 9) async throws -> PurchaseList {
                let page = Statements.PurchasePage(appID: "game", userIDs: [user], before: before, limit: limit)
                return try await PurchaseList(of: page, in: lab.database)
            }
            func words(_ list: PurchaseList) -> [String] {
                list.topUps.map {
                    [
                        $0.transactionId ?? "-", $0.state.rawValue, $0.reason ?? "-", $0.productId ?? "-",
                        $0.refundedAt == nil ? "" : "refunded",
                    ].joined(separator: " ")
                }
            }
            let both = ["2 already_granted imported coins ", "1 already_granted imported coins "]
            #expect(words(try await listed("owner-1")) == both)
            let first = try await listed("owner-1", limit: 1)
            #expect(words(first) == [both[0]])
            let last = try await listed("owner-1", before: try #require(first.next), limit: 1)
            #expect(words(last) == [both[1]] && last.next == nil)
            for reader in [Self.support, Self.player("owner-1")] {
                let timeline = try #require(try await explainer.timeline(of: .transaction("1"), for: reader))
                #expect(
                    timeline.standing == .init(.alreadyGranted, Reason.imported.rawValue) && timeline.next == .nothing)
                #expect(timeline.standing.sentence.en.contains("given by our former system"))
                #expect(Self.words(timeline) == ["imported"])
                #expect(timeline.text.contains("by the former system"))
            }
            #expect(try await explainer.timeline(of: .transaction("1"), for: Self.player("owner-2")) == nil)
            #expect(try await explainer.timeline(of: .transaction("1"), for: .support(apps: ["other"])) == nil)

            // The purchase is also posted, by two users, and Apple has taken it back.
            let refund = Self.entry("1", .rejected(.refunded))
            var taken = refund.transaction
            taken.revokedAt = taken.purchasedAt + 60
            for user in ["owner-1", "owner-2"] {
                try await lab.settle(
                    try await lab.post(user), Verdict.Entry(transaction: taken, decision: refund.decision))
            }
            #expect(words(try await listed("owner-1")).sorted() == [both[1] + "refunded", both[0]])
            #expect(
                words(try await listed("owner-2")).sorted() == [
                    "1 already_granted owned_by_another_user coins refunded", "3 already_granted imported coins ",
                ])
            let timeline = try #require(
                try await explainer.timeline(of: .transaction("1"), for: Self.player("owner-1")))
            #expect(Set(Self.words(timeline)) == ["bought", "posted", "decided", "refunded", "imported"])
            #expect(!timeline.json.text.contains("owner-2"))
        }
    }

    @Test("B14, S3-56: an order: what it promised, to what it was bound, who named it; a purchase that nobody posted")
    func orders() async throws {
        try await LedgerLab.with { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let (bound, open) = (UUID(), UUID())
            try await lab.run(
                """
                insert into orders (id, app_id, user_id, product_id, item, goods, price_milliunits, currency, placed_at)
                values ('\(bound)', 'game', 'owner-1', 'coins', 'sword', '[{"item": "coin", "amount": 60}]', 1990, 'USD',
                  now() - interval '1 hour'),
                  ('\(open)', 'game', 'owner-1', 'coins', null, null, null, null, now())
                """)
            // Only the order names the user.
            let submission = Submission(
                appID: "game", userID: nil, orderID: bound.uuidString, proof: .signedTransaction("a.b.c"))
            #expect(try await lab.ledger.insert(submission))
            let posted = Posted(id: submission.receiptID, userID: "owner-1", appID: "game")
            try await lab.settle(posted, Self.entry("t1"))
            try await lab.run("update grants set order_id = '\(bound)' where transaction_id = 't1'")

            for subject in [TimelineSubject.order(bound), .receipt(posted.id), .transaction("t1")] {
                for reader in [Self.support, Self.player("owner-1")] {
                    let timeline = try #require(try await explainer.timeline(of: subject, for: reader))
                    // The grant binds the order: both have the same time.
                    #expect(Self.words(timeline).prefix(4) == ["order_placed", "bought", "posted", "order_bound"])
                    #expect(Self.words(timeline).contains("granted"))
                    #expect(timeline.standing.state == "granted")
                    #expect(timeline.text.contains("1 × coins (sword), promised 60 coin if paid by "))
                    let name = reader == Self.support ? "owner-1" : "you"
                    #expect(timeline.text.contains("\(name) posted a signed transaction"))
                }
            }
            let waiting = try #require(try await explainer.timeline(of: .order(open), for: Self.player("owner-1")))
            #expect(waiting.standing.state == "ordered" && waiting.standing.sentence == .orderOpen)
            #expect(waiting.next.by == .player && Self.words(waiting) == ["order_placed"])
            #expect(try await explainer.timeline(of: .order(bound), for: Self.player("stranger")) == nil)
            #expect(try await explainer.timeline(of: .order(open), for: .support(apps: ["other"])) == nil)

            // The user names the order while it is open; the purchase is held, so nothing is bound.
            let named = Submission(
                appID: "game", userID: "owner-1", orderID: open.uuidString.lowercased(),
                proof: .signedTransaction("d.e.f"))
            #expect(try await lab.ledger.insert(named))
            try await lab.settle(
                Posted(id: named.receiptID, userID: "owner-1", appID: "game"), Self.entry("t2", .held(.review)))
            let held = try #require(try await explainer.timeline(of: .order(open), for: Self.support))
            #expect(held.standing.state == "held" && held.standing.reason == "review")
            #expect(Self.words(held) == ["bought", "order_placed", "posted", "decided"])

            // A post names this order, but its purchase was given by another order: this order stays open.
            let wrong = UUID()
            try await lab.run(
                "insert into orders (id, app_id, user_id, product_id) values ('\(wrong)', 'game', 'owner-1', 'coins')")
            let elsewhere = Submission(
                appID: "game", userID: "owner-1", orderID: wrong.uuidString, proof: .signedTransaction("g.h.i"))
            #expect(try await lab.ledger.insert(elsewhere))
            try await lab.settle(
                Posted(id: elsewhere.receiptID, userID: "owner-1", appID: "game"), Self.entry("t3"))
            let stillOpen = try #require(try await explainer.timeline(of: .order(wrong), for: Self.player("owner-1")))
            #expect(stillOpen.standing.state == "ordered" && stillOpen.standing.sentence == .orderOpen)

            // The purchase is known from Apple's history alone.
            let walk = Statements.Walk(appID: "game", environment: "Production", customer: "c")
            try await lab.database.run(
                Statements.claimWalk, .init(walk: walk, askedID: "t9", lease: .seconds(30), interval: .seconds(3600)))
            try await lab.database.run(
                Statements.storePage,
                .init(
                    walk: walk, reader: 1, transactions: [Self.entry("t9").transaction], revision: nil, lease: .zero))
            let unclaimed = try #require(try await explainer.timeline(of: .transaction("t9"), for: Self.support))
            #expect(unclaimed.standing.state == "unclaimed" && Self.words(unclaimed) == ["bought"])
            #expect(try await explainer.timeline(of: .transaction("t9"), for: Self.player("owner-1")) == nil)
        }
    }

    @Test("B10, B14: given on trust, and Apple's answer since, whichever it was")
    func trust() async throws {
        try await LedgerLab.with { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let given = Decision.provisional(goods: Verdict.Entry.coins, source: .poster)
            for (id, isConfirmed) in [("t1", true), ("t2", false)] {
                let posted = try await lab.post(kind: .signedTransaction)
                try await lab.database.run(
                    Statements.takePlaces,
                    .init(
                        receiptID: posted.id, appID: "game", transactions: [Self.entry(id).transaction],
                        limits: .init(perUserPerDay: 9, perAppPerDay: 9)))
                try await lab.settle(posted, Self.entry(id, given))
                let open = try #require(try await explainer.timeline(of: .transaction(id), for: Self.player("u1")))
                #expect(open.standing.reason == "unconfirmed" && Self.words(open).last == "given_on_trust")
                #expect(open.next.by == .makegood && open.next.at != nil)
                if isConfirmed {
                    try await lab.settle(posted, Self.entry(id))
                } else {
                    try await lab.settle(
                        posted,
                        .purchase(id, .rejected(.refunded)) {
                            $0.revokedAt = .now
                            $0.signedAt = .now
                        })
                }
                let ended = try #require(try await explainer.timeline(of: .transaction(id), for: Self.support))
                #expect(Self.words(ended).contains(isConfirmed ? "confirmed" : "taken_back"))
                #expect(ended.standing.reason == (isConfirmed ? nil : "refunded"))
                #expect(ended.next == .nothing)
                let told = ended.lines.filter { $0.what == .told }.map(\.text)
                #expect(told.count == 2)
                #expect(told.contains { $0.contains(isConfirmed ? "purchase.confirmed" : "purchase.revoked") })
            }
        }
    }

    @Test("B14: whose a chain was, what may be charged twice, what the app reported, and why it was matched so")
    func beside() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let explainer = Explainer(database: lab.database, keys: nil)
            let order = try await lab.place("owner-1")
            func settle(_ id: String, _ user: String, _ change: (inout Match) -> Void) async throws -> Posted {
                var match = Match(userID: user, source: .poster, reasons: [.ordersDiffer, .quantityDiffers])
                match.takesChain = true
                change(&match)
                let purchase = Verdict.Entry.purchase(id, of: "o", kind: .autoRenewable) {
                    $0.webOrderLineItemID = id
                    $0.purchasedAt += id == "p1" ? 0 : 60
                }
                let posted = try await lab.post(user, kind: .signedTransaction)
                let entry = Verdict.Entry(
                    transaction: purchase.transaction, decision: purchase.decision, match: match)
                #expect(try await lab.settle(posted, entry) == .granted)
                return posted
            }
            _ = try await settle("p1", "owner-1") { _ in }
            let posted = try await settle("p2", "heir-2") {
                $0.chainWasOf = "owner-1"
                $0.secondChargeOf = order
            }
            for (kind, orderID, transaction, user) in [
                (ClientReport.Kind.failed, order, nil, "owner-1"), (.paidWithoutProof, nil, "p2", "heir-2"),
                (.error, nil, "p9", "owner-1"),
            ] as [(ClientReport.Kind, UUID?, String?, String)] {
                try await lab.database.run(
                    Statements.storeReport,
                    ClientReport(
                        appID: "game", userID: user, orderID: orderID, transactionID: transaction, kind: kind,
                        message: "it broke", appVersion: "1.2", details: "{}"))
            }

            let whole = try #require(try await explainer.timeline(of: .transaction("p2"), for: Self.support))
            #expect(
                Self.words(whole).sorted() == [
                    "bought", "granted", "owned", "owned", "possible_double_charge", "posted", "reported", "told",
                    "told",
                    "told", "told",
                ])
            for type in ["purchase.granted", "ownership.gained", "ownership.lost", "purchase.possible_double_charge"] {
                #expect(whole.text.contains("the app backend may read \(type) of transaction p2"))
            }
            #expect(whole.text.contains("o is owner-1's from transaction p1 on; who posted it"))
            #expect(whole.text.contains("o is heir-2's from transaction p2 on, and was owner-1's"))
            #expect(
                whole.text.contains("transaction p2 may be a second charge on order \(order.uuidString.lowercased())"))
            #expect(whole.text.contains("the app 1.2 reported paid_without_proof for heir-2: it broke"))
            #expect(whole.text.contains("(orders_differ, quantity_differs)"))
            #expect(whole.json.text.contains(MatchReason.ordersDiffer.sentence.zh))
            let sentences = Dictionary(
                whole.lines.compactMap { line in line.sentence.map { (line.what, $0) } }, uniquingKeysWith: { $1 })
            #expect(sentences[.possibleDoubleCharge] == .possibleDoubleCharge && sentences[.reported] != nil)
            #expect(Set(whole.lines.filter { $0.what == .owned }.compactMap { $0.sentence?.en }).count == 2)

            // The order's timeline has the order's report, without the other report; the receipt's timeline tells the
            // purchase's events.
            let ofOrder = try #require(try await explainer.timeline(of: .order(order), for: Self.support))
            #expect(
                Self.words(ofOrder) == ["order_placed", "reported"]
                    || Self.words(ofOrder) == ["reported", "order_placed"])
            let ofReceipt = try #require(try await explainer.timeline(of: .receipt(posted.id), for: Self.support))
            #expect(Self.words(ofReceipt).contains("reported") && Self.words(ofReceipt).contains("owned"))

            // A player is told the player's own facts, and no other user's name.
            let own = try #require(try await explainer.timeline(of: .transaction("p2"), for: Self.player("heir-2")))
            #expect(
                Self.words(own).sorted() == [
                    "bought", "granted", "owned", "possible_double_charge", "posted", "reported",
                ])
            for word in ["owner-1", "heir-2", "it broke", "orders_differ", "poster"] {
                #expect(!own.json.text.contains(word), "\(word)")
            }
            let before = try #require(try await explainer.timeline(of: .transaction("p1"), for: Self.player("owner-1")))
            #expect(!before.json.text.contains("heir-2") && !Self.words(before).contains("possible_double_charge"))
            for kind in ClientReport.Kind.allCases {
                #expect(kind.sentence.zh.hasSuffix("。") && kind.sentence.en.hasSuffix("."))
                #expect(kind.sentence.en.allSatisfy(\.isASCII) && kind.sentence.en.filter { $0 == "." }.count == 1)
            }
        }
    }
}
