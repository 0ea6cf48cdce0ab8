import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Intake
@testable import Ledger
@testable import Settings

/// Goal: an account that became part of another account counts as that account everywhere, whether rows are written
/// before, during or after the merge. Method: merges one by one and many at once, then the meaning of orders, tokens,
/// chains, grants and posts of the old id; every test ends with all invariants.
@Suite(.timeLimit(.minutes(8))) struct MergeTests {
    @Test("once, again, in a row, in a circle, elsewhere: each merge has its own answer, and is audited once")
    func words() async throws {
        try await LedgerLab.with { lab in
            let first = try await lab.merge("a", into: "b")
            #expect(first == .merged)
            #expect(try await lab.merge("a", into: "b") == .known)
            #expect(try await lab.merge("b", into: "a") == .cycle)
            #expect(try await lab.merge("a", into: "c") == .elsewhere)
            #expect(try await lab.merge("b", into: "c") == .merged)
            #expect(try await lab.merge("a", into: "b") == .known, "by way of b")
            #expect(try await lab.merge("a", into: "c") == .known)
            #expect(try await lab.merge("c", into: "a") == .cycle)
            #expect(try await lab.merge("d", into: "a") == .merged, "the last of the row")
            #expect(
                try await lab.texts("select user_id || ' ' || into_user_id from merges order by 1")
                    == ["a c", "b c", "d c"])
            #expect(try await lab.number("select count(*) from audits where action = 'users.merge'") == 3)
            #expect(try await lab.ids("b") == ["a", "b", "c", "d"])
            #expect(try await lab.ids("e") == ["e"])
            #expect(try await lab.merge("a", into: "x", app: "other") == .merged, "another app's user")
            // The ids of one person are looked up one by one.
            for number in 4..<Statements.idsPerPersonMax {
                #expect(try await lab.merge("m\(number)", into: "c") == .merged)
            }
            #expect(try await lab.merge("one", into: "c") == .tooMany)
        }
    }

    @Test("many at once, in all directions: no circle, and every id leads to one that leads nowhere else")
    func race() async throws {
        try await LedgerLab.with(connections: 8) { lab in
            await withTaskGroup(of: Void.self) { group in
                for one in 0..<8 {
                    for other in 0..<8 where other != one {
                        group.addTask {
                            _ = try? await lab.merge("u\(one)", into: "u\(other)", on: lab.ledger.database)
                        }
                    }
                }
            }
            let further = try await lab.number(
                "select count(*) from merges m where exists (select from merges n where n.user_id = m.into_user_id)")
            #expect(further == 0)
            #expect(try await lab.number("select count(distinct into_user_id) from merges") == 1)
            #expect(try await lab.number("select count(*) from merges") == 7)
        }
    }

    @Test("what was the guest's is the account's: purchases, orders, tokens, chains, lists and sums")
    func follows() async throws {
        try await LedgerLab.with { lab in
            let token = UUID()
            try await lab.run(
                """
                insert into user_tokens (app_id, token, user_id, source) values ('game', '\(token)', 'guest', 'registered')
                """)
            let order = try await lab.place("guest")
            try await lab.settle(
                try await lab.post("guest"), .purchase("t1") { $0.productID = "gems" })
            var match = Match(userID: "guest", source: .poster)
            match.takesChain = true
            let first = Verdict.Entry.purchase("p1", of: "chain", kind: .autoRenewable) { $0.productID = "pass" }
            try await lab.settle(
                try await lab.post("guest"),
                Verdict.Entry(transaction: first.transaction, decision: first.decision, match: match))
            #expect(try await lab.merge("guest", into: "account") == .merged)

            // Row 1: the purchase is the poster's own, whichever of the two ids posts it.
            for user in ["account", "guest"] {
                let posted = try await lab.post(user)
                let row = try #require(try await lab.ledger.fetch(posted.id))
                #expect(row.userID == "account")
                #expect(try await lab.write(row, .purchase("t1")) == .alreadyGranted)
                #expect(try await lab.outcomes(posted) == ["t1": "already_granted"])
            }
            #expect(try await lab.grants == ["p1 guest", "t1 guest"], "grants never change")
            // The guest's order, token and subscription count for the account.
            func ask(_ id: String, _ change: (inout Transaction) -> Void = { _ in }) async throws -> Evidence {
                try await lab.evidence(
                    lab.question(Verdict.Entry.purchase(id, .held(.review), change).transaction, by: "account"))[0]
            }
            let open = try await ask("t2")
            #expect(open.orders.map(\.id) == [order] && open.orders.map(\.userID) == ["account"])
            #expect(try await ask("t3") { $0.appAccountToken = token }.registeredUserID == "account")
            #expect(try await ask("t4") { $0.appAccountToken = UUID() }.posterHasToken)
            let period = try await ask("p2") {
                $0.originalID = "chain"
                $0.kind = .autoRenewable
            }
            #expect(period.chain == .init(userID: "account"))
            // A later purchase, posted by the old id, is the account's and binds the guest's order.
            let late = try await lab.post("guest")
            let row = try #require(try await lab.ledger.fetch(late.id))
            let entry = try await lab.matched("t2", by: "account", order: order)
            #expect(try await lab.write(row, entry) == .granted)
            #expect(try await lab.texts("select user_id from grants where transaction_id = 't2'") == ["account"])
            #expect(try await lab.texts("select user_id from events where transaction_id = 't2'") == ["account"])
            #expect(try await lab.boundOrders() == ["\(order.uuidString.lowercased()) t2 guest coins"])
            // The lists and sums of the account include the guest.
            let ids = try await lab.ids("guest")
            let page = Statements.PurchasePage(appID: "game", userIDs: ids, before: .newest, limit: 10)
            let list = try await PurchaseList(of: page, in: lab.database)
            #expect(Set(list.topUps.compactMap(\.transactionId)) == ["t1", "p1", "t2"])
            let search = Statements.OrderSearch(appID: "game", userIDs: ids, limit: 10)
            #expect(try await lab.database.run(Statements.searchOrders, search).map(\.id) == [order])
            for (other, isSame) in [("guest", true), ("account", true), ("else", false)] {
                #expect(
                    try await lab.database.run(
                        Statements.isSamePerson, (user: UserName(appID: "game", key: "guest"), other: other)) == [
                            isSame
                        ])
            }
        }
    }

    @Test(
        "a verdict under way: written before, it is found; written after, it is no verdict, and the next is the account's"
    )
    func inFlight() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post("guest")
            let (early, late) = (try await lab.post("guest"), try await lab.post("other"))
            let before = try #require(try await lab.ledger.fetch(early.id))
            var match = Match(userID: "guest", source: .userToken)
            match.takesChain = true
            let owned = Verdict.Entry(
                transaction: Verdict.Entry.purchase("p1", of: "chain", kind: .autoRenewable).transaction,
                decision: .grant(goods: Verdict.Entry.coins, source: .userToken), match: match)
            try await lab.withSession { session in
                try await session.run(.begin)
                // The session has not committed when the merge commits.
                try await lab.settle(lab.verdict(posted, .transactions([owned])), on: session)
                #expect(try await lab.merge("guest", into: "account") == .merged)
                try await session.run(.commit)
            }
            #expect(try await lab.grants == ["p1 guest"])
            let next = Verdict.Entry.purchase("p2", of: "chain", kind: .autoRenewable).transaction
            #expect(try await lab.evidence(lab.question(next, by: "x"))[0].chain?.userID == "account")
            // Both verdicts were matched before the merge: one by its poster, the other by its owner.
            #expect(try await lab.write(before, .purchase("t1")) == nil)
            let anothers = Verdict.Entry(
                transaction: Verdict.Entry.purchase("t2").transaction,
                decision: .grant(goods: Verdict.Entry.coins, source: .userToken),
                match: Match(userID: "guest", source: .userToken))
            #expect(try await lab.settle(late, anothers) == nil)
            let after = try #require(try await lab.ledger.fetch(early.id))
            #expect(after.userID == "account" && after.attempt == before.attempt)
            #expect(try await lab.write(after, .purchase("t1")) == .granted)
            #expect(try await lab.grants == ["p1 guest", "t1 account"])
            // The row keeps the user who posted it.
            #expect(try await lab.texts("select user_id from receipts where id = '\(early.id)'") == ["guest"])
        }
    }

    @Test("who was erased is merged with nobody; erasing an account erases what became part of it")
    func erasure() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("guest"), .purchase("t1"))
            try await lab.settle(try await lab.post("account"), .purchase("t2"))
            #expect(try await lab.merge("guest", into: "account") == .merged)
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            // The guest's purchases belong to the account by now.
            let guest = erasure.name(of: "guest", app: "game")
            #expect(try await !erasure.erase(guest))
            #expect(try await erasure.account(of: guest) == "account")
            #expect(try await lab.grants == ["t1 guest", "t2 account"])
            #expect(try await lab.ids("account") == ["account", "guest"])
            #expect(try await erasure.account(of: erasure.name(of: "account", app: "game")) == nil)
            #expect(try await erasure.erase(erasure.name(of: "account", app: "game")))
            let owners = Set(try await lab.texts("select user_id from grants"))
            let tombstone = try #require(owners.first)
            #expect(owners.count == 1 && tombstone.hasPrefix("erased_"))
            #expect(try await lab.number("select count(*) from merges") == 0)
            #expect(
                try await lab.number("select count(*) from audits where details::text ~ 'guest|account'") == 0)
            #expect(try await lab.merge("new", into: tombstone) == .erased)
            #expect(try await lab.merge(tombstone, into: "new") == .erased)
            // A user who comes back after the erasure is again the same user.
            let again = try await lab.post("guest")
            #expect(try await lab.ledger.fetch(again.id)?.userID == "guest")

            try await lab.run(
                """
                insert into users (app_id, user_key, erased_at) values ('game', 'user_gone', now())
                """)
            #expect(try await lab.merge("user_gone", into: "new") == .erased)
            #expect(try await lab.merge("new", into: "user_gone") == .erased)
        }
    }

    @Test("a protected guest is not erased alone either, and the guest's account is named by its id")
    func protectedErasure() async throws {
        try await LedgerLab.with { lab in
            let keys = try #require(UserKeys(file: String(repeating: "k", count: UserKeys.secretBytesMin)))
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "ann")
            let (guest, account) = (erasure.name(of: "guest", app: "game"), erasure.name(of: "account", app: "game"))
            let register = UserRegister(ledger: lab.ledger)
            for (id, name) in [("guest", guest), ("account", account)] {
                try await register.enter(id, key: name.key, app: "game", keys)
            }
            #expect(try await lab.merge(guest.key, into: account.key) == .merged)
            #expect(try await erasure.account(of: guest) == "account")
            #expect(try await !erasure.erase(guest))
            #expect(try await erasure.look(guest).standing == .known)
            #expect(try await erasure.erase(account))
            #expect(try await erasure.look(guest).standing == .erased)
        }
    }

    @Test("over HTTP: its own scope, 422 into itself, 409 in a circle, and the account's list has it all")
    func http() async throws {
        let access = IntakeFixture.entry("backend-of-accounts", "merge-key", "merge", "game")
        try await RunningIntake.onDatabase(access: access) { intake in
            let posted = try await intake.post(#"{"userId":"guest/1","receipt":"QUJD"}"#)
            #expect(posted.status == 202)
            func merge(_ id: String, _ body: String, key: String = "merge-key") async throws -> RunningIntake.Answer {
                try await intake.send("POST", "/v1/users/\(id)/merge", key: key, body: body)
            }
            for key in [IntakeFixture.key, IntakeFixture.supportKey, IntakeFixture.claimKey] {
                #expect(try await merge("guest%2F1", #"{"into":"account"}"#, key: key).status == 403)
            }
            let merged = try await merge("guest%2F1", #"{"into":"account"}"#)
            #expect(merged.status == 200 && merged["isRepeated"] == .bool(false))
            #expect(merged["userId"] == .string("guest/1") && merged["into"] == .string("account"))
            #expect(try await merge("guest%2F1", #"{"into":"account"}"#)["isRepeated"] == .bool(true))
            for (id, body, status, code) in [
                ("a", #"{"into":"a"}"#, 422, "same_user"), ("a", "{}", 422, "no_user"),
                ("a", #"{"into":""}"#, 422, "no_user"),
                ("a", #"{"into":7.5}"#, 400, "wrong_type"), ("a", "[]", 400, "wrong_type"), ("a", "{", 400, "not_json"),
                ("a", #"{"into":"b","into":"c"}"#, 400, "duplicate_member"),
                ("a", "{\"into\":\"\(String(repeating: "x", count: 257))\"}", 400, "too_long"),
                ("account", #"{"into":"guest/1"}"#, 409, "merge_cycle"),
                ("guest%2F1", #"{"into":"third"}"#, 409, "merged_elsewhere"),
                ("a", #"{"into":"erased_\#(UUID().uuidString.lowercased())"}"#, 409, "user_erased"),
            ] {
                let answer = try await merge(id, body)
                #expect(answer.status == status && answer["code"] == .string(code), "\(body): \(answer.text)")
            }
            #expect(try await intake.count("select count(*) from merges") == 1)
            #expect(
                try await intake.count("select count(*) from audits where actor = 'backend-of-accounts'") == 1)
            // The account's list shows what the guest posted.
            let list = try await intake.get("/v1/users/account/purchases")
            #expect(list.text.contains(try #require(posted["id"]?.text)))
        }
    }
}

extension LedgerLab {
    func merge(
        _ old: String, into new: String, app: String = "game", on other: Database? = nil
    ) async throws -> MergeOutcome? {
        let merge = Statements.Merge(UserName(appID: app, key: old), into: new, actor: "backend")
        return try await (other ?? database).run(Statements.mergeUsers, merge).first
    }

    fileprivate func ids(_ user: String) async throws -> [String] {
        try await database.run(Statements.idsOfPerson, UserName(appID: "game", key: user)).sorted()
    }

    /// A verdict as a worker writes it.
    fileprivate func verdict(of row: StoredReceipt, _ entry: Verdict.Entry) -> Verdict {
        verdict(Posted(id: row.id, userID: row.userID, appID: row.appID), .transactions([entry]))
    }

    /// Returns nil if no verdict was written.
    fileprivate func write(_ row: StoredReceipt, _ entry: Verdict.Entry) async throws -> ReceiptState? {
        try await settle(verdict(of: row, entry))[row.id]
    }
}

extension RunningIntake {
    fileprivate static func onDatabase(access: String, _ body: (RunningIntake) async throws -> Void) async throws {
        try await LedgerLab.with { lab in try await RunningIntake.run(url: lab.url, access: access, body) }
    }
}

extension JSONValue {
    fileprivate var text: String? { if case .string(let text) = self { text } else { nil } }
}
