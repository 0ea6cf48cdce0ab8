import Crypto
import Foundation
import Postgres
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Intake
@testable import Ledger

/// Goal: a reader of a timeline or a list of purchases reads the reader's own and nothing else, with and without the
/// protection of users; errors in the input are named. Method: real HTTP on a real database, verdicts written as
/// workers write them, every kind of caller.
@Suite(.timeLimit(.minutes(8))) struct TimelineHTTPTests {
    /// A gateway that signs for its users.
    private struct Gateway {
        private let signer = P256.Signing.PrivateKey()
        var publicPEM: String { signer.publicKey.pemRepresentation }

        func token(_ user: String) throws -> String {
            let claims =
                #"{"iss":"gw","aud":"makegood","sub":"\#(user)","exp":\#(Int(Date().timeIntervalSince1970) + 600)}"#
            let signed = "\(Data(#"{"alg":"ES256"}"#.utf8).base64URL).\(Data(claims.utf8).base64URL)"
            return "\(signed).\(try signer.signature(for: Data(signed.utf8)).rawRepresentation.base64URL)"
        }
    }

    private static let otherSupport = "support-key-of-another-app"

    private static func withIntake(
        isProtected: Bool = false, _ body: @escaping (RunningIntake, Gateway) async throws -> Void
    ) async throws {
        let directory = URL.temporaryDirectory.appending(
            path: "makegood-timeline-\(UUID().uuidString)", directoryHint: .isDirectory)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        let gateway = Gateway()
        try gateway.publicPEM.write(to: directory.appending(path: "gateway.pem"), atomically: true, encoding: .utf8)
        try "0123456789abcdef0123456789abcdef\n".write(
            to: directory.appending(path: "users.key"), atomically: true, encoding: .utf8)
        let section = """
            gatewayJwt: {issuer: gw, audience: makegood, keys: [gateway.pem], scopes: [intake], apps: [game]}
            \(isProtected ? "users: {protect: users.key}" : "")
            """
        let database = try await TestDatabase.migrated()
        do {
            try await RunningIntake.run(
                url: database.url, access: IntakeFixture.entry("desk", otherSupport, "support", "other"),
                gatewayJWT: section, directory: directory
            ) { intake in try await body(intake, gateway) }
        } catch {
            await database.drop()
            throw error
        }
        await database.drop()
    }

    /// A purchase that was bought a moment ago for 1.99 USD.
    private static func entry(
        _ id: String, _ decision: Decision? = nil, _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        .purchase(id, decision ?? .grant(goods: Verdict.Entry.coins, source: .poster)) {
            $0.purchasedAt = .now.addingTimeInterval(-1)
            $0.signedAt = $0.purchasedAt
            $0.facts = #"{"price":1990,"currency":"USD"}"#
            change(&$0)
        }
    }

    // MARK: Stories

    @Test(
        "B14: support reads all of its apps, a player only that player's, nobody else anything",
        arguments: [false, true])
    func whoReads(isProtected: Bool) async throws {
        try await Self.withIntake(isProtected: isProtected) { intake, gateway in
            let (owner, claimant) = ("player-one-1", "player-two-2")
            let first = try await intake.post(owner, [Self.entry("t1")])
            let second = try await intake.post(claimant, [Self.entry("t1")])
            for path in ["/v1/receipts/\(first)/explain", "/v1/transactions/t1/explain"] {
                let whole = try await intake.get(path, key: IntakeFixture.supportKey)
                #expect(whole.status == 200 && whole["state"] == .string("granted"))
                #expect(whole.text.contains(owner), "support sees who it is")
                #expect(whole["sentence"]?["zh"] == .string(PlayerSentence(.granted, nil).zh))
                #expect(whole["next"]?["by"] == .string("nobody"))
                #expect(whole.text.contains(#""what":"granted""#) && whole.text.contains("bindingSource"))

                let own = try await intake.get(path, key: try gateway.token(owner))
                #expect(own.status == 200 && own.text.contains("granted to you"))
                for word in [owner, claimant, "user_", "bindingSource", "lane"] {
                    #expect(!own.text.contains(word), "\(word)")
                }

                #expect(try await intake.get(path).status == 403)
                #expect(try await intake.get(path, key: IntakeFixture.backendKey)["code"] == .string("missing_scope"))
                #expect(try await intake.get(path, key: nil).status == 401)
                let none = try await intake.get("/v1/receipts/\(UUID())/explain", key: IntakeFixture.supportKey)
                #expect(none.status == 404)
                for key in [Self.otherSupport, try gateway.token("stranger-3")] {
                    let answer = try await intake.get(path, key: key)
                    #expect(answer.status == 404 && answer.text == none.text)
                }
            }
            let masked = try await intake.get("/v1/transactions/t1/explain", key: try gateway.token(claimant))
            #expect(masked["state"] == .string("already_granted"))
            #expect(masked["reason"] == .string("owned_by_another_user"))
            for word in [owner, claimant, "user_", "goods"] { #expect(!masked.text.contains(word), "\(word)") }
            #expect(
                try await intake.get("/v1/receipts/\(first)/explain", key: try gateway.token(claimant)).status == 404)
            let told = try await intake.get("/v1/receipts/\(second)/explain", key: IntakeFixture.supportKey)
            #expect(told.text.contains(owner) && told.text.contains(claimant))
            for path in [
                "/v1/receipts/no-uuid/explain", "/v1/orders/t1/explain", "/v1/transactions/t2/explain",
                "/v1/transactions/%00/explain", "/v1/transactions/%zz/explain",
                "/v1/transactions/\(String(repeating: "1", count: 65))/explain",
            ] {
                let answer = try await intake.get(path, key: IntakeFixture.supportKey)
                #expect(answer.status == 404 && answer["code"] == .string("not_found"), "\(path)")
            }
            let wrong = try await intake.send("POST", "/v1/transactions/t1/explain", key: IntakeFixture.supportKey)
            #expect(wrong.status == 405)
        }
    }

    // MARK: Purchases

    @Test("the list: newest first, each with its state and sentence, page by page the same", arguments: [false, true])
    func purchases(isProtected: Bool) async throws {
        try await Self.withIntake(isProtected: isProtected) { intake, gateway in
            let (user, other) = ("player-one-1", "player/two")
            try await intake.post(other, [Self.entry("theirs")])
            try await intake.post(user, [Self.entry("t1"), Self.entry("t2")])
            try await intake.post(user, [Self.entry("t3", .held(.productUnknown))])
            // The same purchase again is listed once, at its last post.
            let again = try await intake.post(user, [Self.entry("t3", .held(.productUnknown))])
            try await intake.post(user, [Self.entry("theirs")])
            try await intake.post(user, [Self.entry("t4")])
            try await intake.post(
                user,
                [
                    Self.entry("t4", .rejected(.refunded)) {
                        $0.revokedAt = .now; $0.signedAt = .now
                    }
                ])
            let waiting = try await intake.post(user, [], proof: IntakeFixture.signedTransaction("t5"))
            // A bare id of another user's purchase shows nothing of it.
            try await intake.ask(user, "theirs2", [Self.entry("theirs2")], owner: other)

            let list = try await intake.get("/v1/users/\(user)/purchases", key: try gateway.token(user))
            #expect(list.status == 200 && list["next"] == nil && list["appId"] == .string("game"))
            let listed = Self.purchases(list)
            #expect(
                listed.map { $0.words } == [
                    "theirs2 held possession_missing", "t5 received -", "t4 granted refunded",
                    "theirs already_granted owned_by_another_user", "t3 held product_unknown", "t2 granted -",
                    "t1 granted -",
                ])
            #expect(listed[0].json["productId"] == nil)
            #expect(listed[1].json["receiptId"] == .string(waiting))
            #expect(listed[1].json["unverified"] == .bool(true) && listed[2].json["unverified"] == nil)
            #expect(listed[1].json["sentence"]?["en"] == .string(PlayerSentence(.received, nil).en))
            #expect(listed[2].json["refundedAt"] != nil && listed[2].json["priceMilliunits"] == .integer(1990))
            #expect(listed[3].json["goods"] == nil)
            #expect(listed[4].json["receiptId"] == .string(again))
            #expect(
                listed[5].json["goods"]
                    == .array([.object([.init("item", .string("coin")), .init("amount", .integer(60))])]))
            #expect(!list.text.contains("user_") && !list.text.contains(other))

            for limit in 1...8 {
                var (pages, cursor): ([JSONValue], String?) = ([], nil)
                repeat {
                    let page = try await intake.get(
                        "/v1/users/\(user)/purchases?limit=\(limit)" + (cursor.map { "&after=\($0)" } ?? ""))
                    let entries = Self.purchases(page).map(\.json)
                    #expect(page.status == 200 && !entries.isEmpty)
                    pages += entries
                    if case .string(let next)? = page["next"] {
                        cursor = next
                        #expect(entries.count >= limit, "a page that others follow is full")
                    } else {
                        cursor = nil
                    }
                } while cursor != nil
                #expect(pages == listed.map(\.json), "pages of \(limit)")
            }

            let encoded = "/v1/users/player%2Ftwo/purchases"
            let theirs = try await intake.get(encoded, key: IntakeFixture.supportKey)
            #expect(Self.purchases(theirs).map(\.words) == ["theirs2 granted -", "theirs granted -"])
            #expect(try await intake.get(encoded, key: try gateway.token(user)).status == 404)
            #expect(try await intake.get(encoded, key: IntakeFixture.backendKey).status == 403)
            #expect(try await intake.get("/v1/users/nobody/purchases")["purchases"] == .array([]))
        }
    }

    @Test("a bad parameter is named")
    func badParameters() async throws {
        try await Self.withIntake { intake, _ in
            for (path, key, field) in [
                ("/v1/users/u1/purchases?limit=0", IntakeFixture.key, "limit"),
                ("/v1/users/u1/purchases?limit=201", IntakeFixture.key, "limit"),
                ("/v1/users/u1/purchases?limit=many", IntakeFixture.key, "limit"),
                ("/v1/users/u1/purchases?after=yesterday", IntakeFixture.key, "after"),
                ("/v1/users/u1/purchases?after=1-%00", IntakeFixture.key, "after"),
                ("/v1/users/u1/purchases?after=-5-a", IntakeFixture.key, "after"),
                ("/v1/users/%00/purchases", IntakeFixture.key, "id"),
                ("/v1/users/\(String(repeating: "u", count: 257))/purchases", IntakeFixture.key, "id"),
                ("/v1/users/u1/purchases?limit=1&limit=1", IntakeFixture.key, "limit"),
                ("/v1/users/u1/purchases?appId=game&appId=other", IntakeFixture.key, "appId"),
                ("/v1/users/u1/spend?month=2026-11&month=2026-12", IntakeFixture.key, "month"),
                ("/v1/users/u1/spend", IntakeFixture.key, "month"),
                ("/v1/users/u1/spend?month=2026-13", IntakeFixture.key, "month"),
                ("/v1/users/u1/spend?month=2026-1", IntakeFixture.key, "month"),
                ("/v1/users/u1/spend?month=2026-00", IntakeFixture.key, "month"),
                ("/v1/users/u1/spend?month=2026-11-01", IntakeFixture.key, "month"),
                ("/v1/users/u1/spend?month=1999-01", IntakeFixture.key, "month"),
            ] {
                let answer = try await intake.get(path, key: key)
                #expect(answer.status == 400 && answer["field"] == .string(field), "\(path): \(answer.text)")
                #expect(answer["code"] == .string("bad_parameter"))
            }
            for path in ["/v1/users/u1/purchases", "/v1/users/u1/spend?month=2026-11", "/v1/orders?userId=u1"] {
                let answer = try await intake.get(path, key: IntakeFixture.bothAppsKey)
                #expect(answer.status == 422 && answer["code"] == .string("no_app"), "\(path): \(answer.text)")
            }
            let nobody = try await intake.get("/v1/orders")
            #expect(nobody.status == 422 && nobody["code"] == .string("no_user"), "\(nobody.text)")
            let foreign = try await intake.get("/v1/users/u1/spend?month=2026-11&appId=other")
            #expect(foreign.status == 403 && foreign["field"] == .string("appId"))
            let named = try await intake.get("/v1/users/u1/purchases?appId=other", key: IntakeFixture.bothAppsKey)
            #expect(named.status == 200 && named["appId"] == .string("other"))
        }
    }

    @Test(
        "what was paid in a month, by currency and environment, and what Apple gave back of it",
        arguments: [false, true])
    func spend(isProtected: Bool) async throws {
        try await Self.withIntake(isProtected: isProtected) { intake, gateway in
            let user = "player-one-1"
            func facts(_ price: Int, _ currency: String, _ more: String = "") -> String {
                #"{"price":\#(price),"currency":"\#(currency)"\#(more)}"#
            }
            // All purchases share one moment, so that no month begins between two of them.
            let now = Date.now.addingTimeInterval(-1)
            func bought(_ id: String, _ facts: String, _ change: @escaping (inout Transaction) -> Void = { _ in })
                -> Verdict.Entry
            {
                Self.entry(id) {
                    $0.purchasedAt = now
                    $0.facts = facts
                    change(&$0)
                }
            }
            try await intake.post(
                user,
                [
                    bought("t1", facts(1990, "USD")), bought("t2", facts(4990, "USD")),
                    bought("t3", facts(6000, "CNY")),
                    bought("t4", "{}"), bought("t5", facts(300, "USD")) { $0.environment = Transaction.sandbox },
                    bought("t6", facts(990, "USD")) { $0.purchasedAt = now.addingTimeInterval(-40 * 86_400) },
                ])
            try await intake.post("player-two-2", [bought("t7", facts(99_990, "USD"))])
            // Two purchases were refunded in the meantime, one of them by half.
            for (id, facts) in [
                ("t1", facts(1990, "USD", #","revocationPercentage":50000"#)), ("t3", facts(6000, "CNY")),
            ] {
                var refunded = bought(id, facts).transaction
                refunded.revokedAt = now
                refunded.signedAt = .now
                try await intake.post(user, [.init(transaction: refunded, decision: .rejected(.refunded))])
            }
            let month = String(now.rfc3339.prefix(7))
            for key in [IntakeFixture.key, IntakeFixture.supportKey, try gateway.token(user)] {
                let answer = try await intake.get("/v1/users/\(user)/spend?month=\(month)", key: key)
                #expect(
                    answer.text
                        == #"{"appId":"game","month":"\#(month)","production":[{"currency":"CNY","purchases":1,"paidMilliunits":6000,"refundedPurchases":1,"refundedMilliunits":6000},{"currency":"USD","purchases":2,"paidMilliunits":6980,"refundedPurchases":1,"refundedMilliunits":995},{"purchases":1,"refundedPurchases":0}],"sandbox":[{"currency":"USD","purchases":1,"paidMilliunits":300,"refundedPurchases":0,"refundedMilliunits":0}]}"#
                )
            }
            let before = try await intake.get("/v1/users/\(user)/spend?month=2019-01")
            #expect(before["production"] == .array([]) && before["sandbox"] == .array([]))
            #expect(
                try await intake.get("/v1/users/\(user)/spend?month=\(month)", key: try gateway.token("player-two-2"))
                    .status
                    == 404)
        }
    }

    @Test("what waits is found by Apple's id from the first second; forged proofs of others only stand beside it")
    func waiting() async throws {
        try await Self.withIntake { intake, gateway in
            let (buyer, thief, number) = ("player-one-1", "player-two-2", "2000000000000077")
            func explained(_ key: String) async throws -> RunningIntake.Answer {
                try await intake.get("/v1/transactions/\(number)/explain", key: key)
            }
            func receipts(_ answer: RunningIntake.Answer) -> Set<String> {
                guard case .array(let list)? = answer["receipts"] else { return [] }
                return Set(list.compactMap { if case .string(let id)? = $0["id"] { id } else { nil } })
            }
            let payload = #"{"transactionId":"\#(number)","productId":"coins"}"#
            let proof = "eyJhbGciOiJFUzI1NiJ9.\(Data(payload.utf8).base64URL).c2lnbmF0dXJl"
            let posted = try await intake.post(buyer, [], proof: proof)
            for key in [IntakeFixture.supportKey, try gateway.token(buyer)] {
                let found = try await explained(key)
                #expect(found["state"] == .string("received") && receipts(found) == [posted], "\(found.text)")
                #expect(found.text.contains(#""shownTransactionId":"\#(number)","shownProductId":"coins""#))
            }
            #expect(try await explained(try gateway.token(thief)).status == 404)
            let list = try await intake.get("/v1/users/\(buyer)/purchases")
            #expect(Self.purchases(list).map(\.words) == ["\(number) received -"])
            #expect(Self.purchases(list)[0].json["productId"] == .string("coins"))

            // Many forged proofs of the same number, from before and after, leave the buyer's post in its place.
            var forged: Set<String> = []
            for signature in 0..<Statements.timelineReceiptsMax + 1 {
                let proof = proof + Data("\(signature)".utf8).base64URL
                forged.insert(try await intake.post(thief, [], proof: proof))
            }
            let flooded = try await explained(IntakeFixture.supportKey)
            #expect(receipts(flooded).contains(posted) && !receipts(flooded).isDisjoint(with: forged))
            for id in forged {
                try await intake.execute(
                    """
                    update receipts set state = 'rejected', reason = 'signature', settled_at = now(), due_at = null
                    where id = '\(id)'
                    """)
            }
            #expect(try await explained(IntakeFixture.supportKey)["state"] == .string("received"))
            #expect(try await explained(try gateway.token(thief))["state"] == .string("unclaimed"))

            // Held and parked receipts are listed with their users, the oldest first.
            try await intake.execute(
                "update receipts set state = 'parked', reason = 'never_worked' where id = '\(posted)'")
            let held = try await intake.post(thief, [Self.entry("t9", .held(.productUnknown))])
            func waiting(_ query: String) async throws -> [JSONValue] {
                let answer = try await intake.get("/v1/receipts/waiting\(query)", key: IntakeFixture.supportKey)
                guard case .array(let list)? = answer["receipts"] else { throw PostgresError.unavailable }
                return list
            }
            let all = try await waiting("")
            #expect(all.map { $0["id"] } == [.string(posted), .string(held)])
            #expect(all.map { $0["userId"] } == [.string(buyer), .string(thief)])
            #expect(all.map { $0["reason"] } == [.string("never_worked"), .string("product_unknown")])
            #expect(all.allSatisfy { $0["ageSeconds"] != nil && $0["sentence"]?["en"] != nil && $0["what"] != nil })
            let named = JSONValue.object([
                .init("transactionId", .string(number)), .init("productId", .string("coins")),
                .init("unverified", .bool(true)),
            ])
            #expect(all[0]["purchases"] == .array([named]))
            for (query, ids) in [
                ("?state=held", [held]), ("?reason=never_worked", [posted]), ("?reason=sandbox", []),
                ("?appId=game&limit=1", [posted]),
            ] { #expect(try await waiting(query).map { $0["id"] } == ids.map { .string($0) }, "\(query)") }
            let first = try await intake.get("/v1/receipts/waiting?limit=1", key: IntakeFixture.supportKey)
            guard case .string(let next)? = first["next"] else { throw PostgresError.unavailable }
            let last = try await intake.get("/v1/receipts/waiting?limit=1&after=\(next)", key: IntakeFixture.supportKey)
            #expect(last.text.contains(held) && last["next"] == nil)
            for (query, status) in [("?state=granted", 400), ("?reason=No", 400), ("?appId=other", 403)] {
                let answer = try await intake.get("/v1/receipts/waiting\(query)", key: IntakeFixture.supportKey)
                #expect(answer.status == status, "\(query)")
            }
            for key in [IntakeFixture.key, try gateway.token(buyer)] {
                #expect(try await intake.get("/v1/receipts/waiting", key: key).status == 403)
            }
        }
    }

    @Test("a month is a month of the calendar, in UTC")
    func months() throws {
        let december = try #require(Month("2026-12"))
        #expect(
            december.start.rfc3339 == "2026-12-01T00:00:00.000Z" && december.end.rfc3339 == "2027-01-01T00:00:00.000Z")
        let february = try #require(Month("2028-02"))
        #expect(february.end.timeIntervalSince(february.start) == 29 * 86_400)
        for text in ["", "2026", "2026-0", "2026/12", "+026-12", "2026-1２", "12-2026", "2026-12 "] {
            #expect(Month(text) == nil, "\(text)")
        }
    }

    // MARK: Tools

    private struct Listed {
        let json: JSONValue

        /// Texts like `t1 held product_unknown`.
        var words: String {
            ["transactionId", "state", "reason"].map {
                if case .string(let text)? = json[$0] { text } else { "-" }
            }.joined(separator: " ")
        }
    }

    private static func purchases(_ answer: RunningIntake.Answer) -> [Listed] {
        guard case .array(let list)? = answer["purchases"] else {
            Issue.record("no list: \(answer.text)")
            return []
        }
        return list.map(Listed.init)
    }
}

extension RunningIntake {
    /// Posts a proof and writes the verdict as a worker does, or none if there are no entries. Returns the receipt's
    /// id.
    @discardableResult
    fileprivate func post(
        _ user: String, _ entries: [Verdict.Entry], proof: String = IntakeFixture.signedTransaction()
    ) async throws -> String {
        let id = try await posted(#"{"userId":"\#(user)","signedTransaction":"\#(proof)"}"#)
        if !entries.isEmpty { try await settle(id, .transactions(entries)) }
        return id.uuidString.lowercased()
    }

    /// Posts a bare id, after the purchase's owner has posted the purchase.
    fileprivate func ask(_ user: String, _ transaction: String, _ entries: [Verdict.Entry], owner: String) async throws
    {
        try await post(owner, entries)
        let id = try await posted(#"{"userId":"\#(user)","transactionId":"\#(transaction)"}"#)
        try await settle(id, .identifier(transaction, .possessionMissing))
    }

    private func posted(_ body: String) async throws -> UUID {
        let answer = try await post(body)
        #expect(answer.status == 202)
        guard case .string(let text)? = answer["id"] else { throw PostgresError.unavailable }
        return try #require(UUID(uuidString: text))
    }

    private func settle(_ id: UUID, _ decisions: Verdict.Decisions) async throws {
        let row = try #require(try await ledger.fetch(id))
        let verdict = Verdict(
            receiptID: id, attempt: row.attempt, appID: row.appID,
            claim: Claim(userID: row.userID, hasPossession: row.proof.kind != .identifier, receivedAt: row.receivedAt),
            decisions: decisions, dueIn: .seconds(600))
        #expect(try await ledger.settle(verdict) != nil)
    }
}
