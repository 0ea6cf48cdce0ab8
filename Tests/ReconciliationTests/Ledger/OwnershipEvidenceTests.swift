import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: an installation, a token or a record that a client names is evidence only as far as this server or Apple's own
/// data confirms it. Method: rows of each kind in a real database, queried as a worker queries them.
@Suite(.timeLimit(.minutes(4))) struct OwnershipEvidenceTests {
    private static func transaction(_ change: (inout Transaction) -> Void = { _ in }) -> Transaction {
        var transaction = Verdict.Entry.purchase("t1").transaction
        change(&transaction)
        return transaction
    }

    @Test(
        "row 6: an installation counts while it is of this app, not revoked, and of one Apple customer of the environment"
    )
    func installations() async throws {
        try await LedgerLab.with { lab in
            try await lab.place("u2", installation: "device")
            func isProven(app: String = "game") async throws -> Bool? {
                try await lab.evidence(lab.question(Self.transaction(), installation: "device", app: app))[0].orders
                    .first?
                    .isOnProvenInstallation
            }
            func show(_ customer: String, _ environment: String = "Production") async throws {
                let shown = Statements.ShownCustomer(
                    installationID: "device", environment: environment, customerID: customer)
                _ = try await lab.ledger.run(Statements.showCustomers, [shown, shown])
            }
            #expect(try await isProven() == true)
            try await show("c1")
            try await show("c2", "Sandbox")
            #expect(try await isProven() == true, "another environment's customers are others")
            try await show("c2")
            #expect(try await isProven() == false, "seen with two")
            try await lab.run("delete from installation_customers where customer_id = 'c2'")
            #expect(try await isProven() == true)
            try await lab.run("update installations set revoked_at = now()")
            #expect(try await isProven() == false)
            try await lab.run("update installations set revoked_at = null, app_id = 'other'")
            #expect(try await isProven() == false)
            // An id that is no installation of this server is noted for no user, and proves nothing: it is a client's
            // text from before.
            try await lab.run("delete from installation_customers")
            try await lab.run("delete from installations")
            try await show("c1")
            #expect(try await lab.number("select count(*) from installation_customers") == 0)
            #expect(try await isProven() == false)
        }
    }

    @Test(
        "installations: tokens are stored hashed; the next one leaves the one before a week, and no more than four count"
    )
    func tokens() async throws {
        try await LedgerLab.with { lab in
            func issue(_ byte: UInt8, shown: UInt8? = nil, app: String = "game") async throws {
                let token = { (byte: UInt8) in Array(repeating: byte, count: 32) }
                _ = try await lab.ledger.run(
                    Statements.issueInstallationToken,
                    Statements.InstallationRequest(
                        appID: app, id: "i\(byte)", token: token(byte), shown: shown.map(token))
                )
            }
            func installation(_ byte: UInt8) async throws -> String {
                try await lab.texts(
                    """
                    select installation_id || ' ' || (expires_at is null) from installation_tokens
                    where token_sha256 = decode(repeat('\(String(format: "%02x", byte))', 32), 'hex')
                    """
                ).first ?? ""
            }
            try await issue(1)
            try await issue(2, shown: 1)
            #expect(try await installation(1) == "i1 false")
            #expect(try await installation(2) == "i1 true")
            try await issue(3, shown: 1)
            #expect(try await installation(3) == "i1 true")
            try await issue(4, shown: 9)
            #expect(try await installation(4) == "i4 true", "an unknown one begins anew")
            try await issue(5, shown: 1, app: "other")
            #expect(try await installation(5) == "i5 true", "so does another app's")
            try await issue(6, shown: 3)
            try await issue(7, shown: 6)
            let live =
                "select count(*) from installation_tokens where installation_id = 'i1' and (expires_at is null or expires_at > now())"
            #expect(try await lab.number(live) == Statements.installationTokensMax)
            #expect(
                try await lab.ledger.run(
                    Statements.revokeInstallation, (appID: "game", token: Array(repeating: 7, count: 32))) == ["i1"])
            try await issue(8, shown: 7)
            #expect(try await installation(8) == "i8 true", "a revoked one is not continued")
        }
    }

    @Test(
        "row 6: a token counts for what is stored after it was issued; orders and posts of before have no installation")
    func issuedAfterwards() async throws {
        try await LedgerLab.with { lab in
            let token = [UInt8](repeating: 7, count: 32)
            func place(_ number: Int) async throws -> UUID {
                var order = NewOrder.example(number)
                (order.userID, order.installationTokenSHA256) = ("ann-\(number)", token)
                return try #require(try await lab.ledger.place(order)).view.id
            }
            func installationOfPost(app: String = "game") async throws -> String? {
                var submission = Submission(
                    appID: app, userID: "bob", proof: Proof(kind: .receipt, payload: UUID().uuidString))
                submission.installationTokenSHA256 = token
                #expect(try await lab.ledger.insert(submission))
                return try await lab.ledger.fetch(submission.receiptID)?.installationID
            }
            let early = try await place(1)
            #expect(try await installationOfPost() == nil)
            _ = try await lab.ledger.run(
                Statements.issueInstallationToken,
                Statements.InstallationRequest(appID: "game", id: "device", token: token))
            let late = try await place(2)
            #expect(try await installationOfPost() == "device")
            #expect(try await installationOfPost(app: "other") == nil, "the token is not that app's")
            // The installation's token has expired.
            try await lab.run("update installation_tokens set expires_at = now()")
            let tooLate = try await place(3)
            #expect(try await installationOfPost() == nil)

            let bought = Self.transaction { $0.purchasedAt = .now.addingTimeInterval(5) }
            let orders = try await lab.evidence(lab.question(bought, by: "bob", installation: "device"))[0].orders
            #expect(orders.map(\.id) == [late] && orders.first?.isOnProvenInstallation == true)
            #expect(
                try await lab.texts("select id::text from orders where installation_id is null order by 1")
                    == [early, tooLate].map { $0.uuidString.lowercased() }.sorted())
        }
    }

    @Test("S2: a token is remembered by purchases of Production that stand, and by nothing else")
    func rememberedTokens() async throws {
        try await LedgerLab.with { lab in
            let token = UUID()
            func buy(_ id: String, by user: String, in environment: String = "Production") async throws {
                let purchase = Verdict.Entry.purchase(id, in: environment) { $0.appAccountToken = token }
                try await lab.settle(try await lab.post(user), purchase)
            }
            func remembered(_ environment: String = "Production") async throws -> [String] {
                let asked = Self.transaction {
                    $0.appAccountToken = token
                    $0.environment = environment
                }
                return try await lab.evidence(lab.question(asked, by: "u9"))[0].rememberedUserIDs.sorted()
            }
            try await buy("free", by: "thief", in: "Sandbox")
            #expect(try await remembered() == [])
            try await buy("a", by: "thief")
            #expect(try await remembered() == ["thief"])
            #expect(try await remembered("Sandbox") == [], "nor does it speak of the sandbox")
            try await lab.run("update transactions set revoked_at = now() where transaction_id = 'a'")
            #expect(try await remembered() == [])
            try await buy("b", by: "thief")
            #expect(try await remembered() == ["thief"], "it stands on the one that stands")
            try await buy("c", by: "u1")
            #expect(try await remembered() == ["thief", "u1"])
            #expect(
                try await lab.texts("select user_id || ' ' || transaction_id from granted_tokens order by 1")
                    == ["thief b", "u1 c"])
            // The row is from a time before the purchase was stored with it.
            try await lab.run("update granted_tokens set transaction_id = null")
            #expect(try await remembered() == [])
        }
    }

    @Test("S0-24: the user whom a record names is looked for among known users; a merged one is the user of today")
    func records() async throws {
        try await LedgerLab.with { lab in
            func ask(_ record: String?, app: String = "game") async throws -> Evidence {
                try await lab.evidence(lab.question(Self.transaction(), by: "u1", record: record, app: app))[0]
            }
            let order = try await lab.place("ann")
            try await lab.settle(try await lab.post("bought"), .purchase("t0"))
            try await lab.run(
                "insert into user_tokens (app_id, token, user_id, source) values ('game', gen_random_uuid(), 'token', 'issued')"
            )
            #expect(try await ask("ann").recordUserID == "ann")
            #expect(try await ask("ann").orders.map(\.id) == [order], "with his orders")
            for known in ["bought", "token"] { #expect(try await ask(known).recordUserID == known) }
            #expect(try await ask("ann", app: "other") == .none)
            #expect(try await ask("nobody") == .none, "in this app a uid may mean anything")
            _ = try await lab.ledger.run(Statements.noteRecordApp, "game")
            _ = try await lab.ledger.run(Statements.noteRecordApp, "game")
            #expect(try await ask("nobody").isRecordOfUnknown)
            #expect(try await ask(nil) == .none)
            #expect(try await lab.merge("ann", into: "u1") == .merged)
            #expect(try await ask("ann").recordUserID == "u1")
        }
    }

    @Test("rows 3, 8, 11: a post is waited for if it shows possession; a bare id is anybody's")
    func postsOfOthers() async throws {
        try await LedgerLab.with { lab in
            func isPosted(_ id: String) async throws -> Bool {
                let question = lab.question(Verdict.Entry.purchase(id).transaction, by: nil, isPosted: false)
                return try await lab.evidence(question)[0].isPostedByUser
            }
            for (id, kind, isVouched, counts) in [
                ("bare", .identifier, false, false), ("vouched", .identifier, true, true),
                ("signed", .signedTransaction, false, true),
            ] as [(String, Proof.Kind, Bool, Bool)] {
                let post = try await lab.post(kind: kind, transactionID: id, isVouched: isVouched)
                #expect(try await isPosted(id) == counts, "\(id), before a worker has it")
                let decisions: Verdict.Decisions =
                    counts
                    ? .transactions([.purchase(id, .held(.productUnknown))]) : .identifier(id, .possessionMissing)
                #expect(try await lab.settle(lab.verdict(post, decisions))[post.id] == .held)
                #expect(try await isPosted(id) == counts, "\(id), held")
                try await lab.run("update receipts set shown_transaction_id = null where id = '\(post.id)'")
                #expect(try await isPosted(id) == counts, "\(id), by its outcome")
            }
        }
    }

    @Test("S14: what goes to another by less than proof is not safe for a day since its poster was first told so")
    func disputes() async throws {
        try await LedgerLab.with { lab in
            func entry(_ id: String, _ owner: String, _ source: BindingSource) -> Verdict.Entry {
                Verdict.Entry(
                    transaction: Verdict.Entry.purchase(id).transaction,
                    decision: .grant(goods: Verdict.Entry.coins, source: source),
                    match: Match(userID: owner, source: source))
            }
            let told =
                "select user_id || ' ' || (body ->> 'isOwner') from events where type = 'ownership.disputed' and transaction_id = "
            for (number, source) in BindingSource.allCases.enumerated() where source != .transfer {
                let id = "t\(number)"
                try await lab.settle(try await lab.post("holder"), entry(id, "holder", source))
                for _ in 0..<2 {
                    let shown = try await lab.post("claimant")
                    #expect(try await lab.settle(shown, entry(id, "claimant", .poster)) == .alreadyGranted)
                    let view = try #require(try await lab.ledger.view(shown.id)?.transactions.first)
                    #expect(view.isDisputed == (source.isProof ? nil : true), "\(source)")
                    #expect((view.safeAt == nil) == source.isProof, "\(source)")
                }
                // The day is counted from the first time that the purchase was shown, and each of the two users is told
                // once.
                #expect(
                    try await lab.number("select count(distinct safe_at) from outcomes where transaction_id = '\(id)'")
                        == (source.isProof ? 0 : 1), "\(source)")
                let isTold = !source.isProof && source != .shared
                #expect(
                    try await lab.texts(told + "'\(id)' order by 1")
                        == (isTold ? ["claimant false", "holder true"] : []),
                    "\(source)")
            }
            // Without possession nobody is told anything.
            try await lab.settle(try await lab.post("holder"), entry("bare", "holder", .poster))
            let bare = try await lab.post("claimant", kind: .identifier, transactionID: "bare")
            try await lab.settle(lab.verdict(bare, .identifier("bare", .possessionMissing)))
            #expect(
                try await lab.number(
                    "select count(*) from outcomes where transaction_id = 'bare' and safe_at is not null") == 0)
            // The purchase is held because its token is another user's: both users are told, and nobody owns it.
            let waiting = try await lab.post("claimant")
            let held = Verdict.Entry(
                transaction: Verdict.Entry.purchase("held").transaction, decision: .held(.tokenDisputed),
                heldBy: .init(.rememberedToken), rival: "holder")
            #expect(try await lab.settle(waiting, held) == .held)
            #expect(try await lab.texts(told + "'held' order by 1") == ["claimant false", "holder false"])
            #expect(
                try await lab.texts("select claimant || ' ' || reason from v_disputes where state = 'held'")
                    == ["claimant token_disputed"])
        }
    }
}
