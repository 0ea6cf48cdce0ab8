import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: the contract of `GET /v1/users/{id}/entitlements`: who may ask about whom, which members the answer has, and
/// when a client may keep its copy. Method: real HTTP on a real database, verdicts written as workers write them.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct EntitlementHTTPTests {
    private static let pass = "com.example.game.pass"

    /// Grants a non-consumable to a new user as a worker writes it; returns user and transaction.
    private static func grant(
        _ name: String, in intake: RunningIntake, environment: String = Transaction.production
    ) async throws -> (user: String, transaction: String) {
        let user = "\(name)-\(UUID().uuidString.prefix(8))"
        let posted = try await intake.post(
            #"{"userId":"\#(user)","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#)
        guard case .string(let id)? = posted["id"] else { throw Missing(answer: posted.text) }
        let receiptID = try #require(UUID(uuidString: id))
        let row = try #require(try await intake.ledger.fetch(receiptID))
        let bought = Verdict.Entry.purchase("t-\(user)", kind: .nonConsumable, in: environment) {
            $0.productID = pass
            $0.purchasedAt = .now.addingTimeInterval(-1)
            $0.signedAt = $0.purchasedAt
        }
        var match = Match(userID: user, source: .poster)
        match.takesChain = true
        let entry = Verdict.Entry(transaction: bought.transaction, decision: bought.decision, match: match)
        let verdict = Verdict(
            receiptID: row.id, attempt: row.attempt, appID: row.appID,
            claim: Claim(userID: row.userID, hasPossession: true, receivedAt: row.receivedAt),
            decisions: .transactions([entry]), dueIn: .seconds(600))
        #expect(try await intake.ledger.settle(verdict)?.state == .granted)
        return (user, "t-\(user)")
    }

    private struct Missing: Error {
        let answer: String
    }

    private static func path(_ user: String) -> String { "/v1/users/\(user)/entitlements" }

    private static func none(in environment: String = "Production") -> String {
        #"{"appId":"game","environment":"\#(environment)","entitlements":[]}"#
    }

    @Test("what is told of a non-consumable, whole; of an unknown user an empty list; the sandbox apart")
    func answers() async throws {
        try await RunningIntake.run { intake in
            let (user, transaction) = try await Self.grant("one", in: intake)
            let answer = try await intake.get(Self.path(user))
            #expect(answer.status == 200)
            #expect(
                answer.text == #"{"appId":"game","environment":"Production","entitlements":["#
                    + #"{"productId":"\#(Self.pass)","type":"nonConsumable","state":"active","isActive":true,"#
                    + #""isCurrent":true,"ownership":"own","#
                    + #""purchases":[{"transactionId":"\#(transaction)","originalTransactionId":"\#(transaction)"}]}]}"#
            )
            #expect(try await intake.get(Self.path("nobody")).text == Self.none())
            let sandbox = try await Self.grant("two", in: intake, environment: Transaction.sandbox)
            #expect(try await intake.get(Self.path(sandbox.user)).text == Self.none())
            let apart = try await intake.get(Self.path(sandbox.user) + "?environment=Sandbox&appId=game")
            #expect(apart.status == 200 && apart.text.contains(sandbox.transaction))
            for (query, code) in [
                ("environment=sandbox", "bad_parameter"), ("environment=", "bad_parameter"),
                ("limit=1", "bad_parameter"),
            ] {
                let refused = try await intake.get(Self.path(user) + "?" + query)
                #expect(refused.status == 400 && refused["code"] == .string(code), "\(query): \(refused.text)")
            }
        }
    }

    @Test("a client that names the tag of what it has is answered 304 without a body until something changes")
    func revalidation() async throws {
        try await RunningIntake.run { intake in
            let (user, transaction) = try await Self.grant("kept", in: intake)
            let first = try await intake.get(Self.path(user))
            let tag = try #require(first.headers["etag"])
            #expect(tag.wholeMatch(of: /"[0-9a-f]{32}"/) != nil)
            #expect(first.headers["cache-control"] == "private, no-cache")
            for named in [tag, "W/\(tag)", "\"other\", \(tag)", "*"] {
                let same = try await intake.send("GET", Self.path(user), headers: [("If-None-Match", named)])
                #expect(same.status == 304 && same.text.isEmpty, "\(named)")
                #expect(same.headers["etag"] == tag && same.headers["cache-control"] == "private, no-cache")
            }
            for named in ["\"other\"", String(tag.dropLast()), "", tag.uppercased() + "x"] {
                let whole = try await intake.send("GET", Self.path(user), headers: [("If-None-Match", named)])
                #expect(whole.status == 200 && whole.text == first.text, "\(named)")
            }
            // Right at the moment after the commit: a refund, as a worker stores it.
            try await intake.execute(
                "update transactions set revoked_at = now(), signed_at = now() where transaction_id = '\(transaction)'")
            let changed = try await intake.send("GET", Self.path(user), headers: [("If-None-Match", tag)])
            #expect(changed.status == 200 && changed.headers["etag"] != tag)
            #expect(changed.text.contains(#""state":"revoked","isActive":false,"isCurrent":false,"until":""#))
            let head = try await intake.send("HEAD", Self.path(user))
            #expect(head.status == 200 && head.headers["etag"] == changed.headers["etag"])
            // Every other answer is kept by nobody.
            #expect(try await intake.get("/v1/users/\(user)/purchases").headers["cache-control"] == "no-store")
        }
    }

    @Test("a player's token reads its own user's alone; a key needs the scope and the app")
    func rights() async throws {
        try await TestGateway.run { intake, gateway in
            let (user, transaction) = try await Self.grant("own", in: intake)
            let token = try gateway.token(user)
            let own = try await intake.get(Self.path(user), key: token)
            #expect(own.status == 200 && own.text.contains(transaction))
            let other = try await intake.get(Self.path("somebody"), key: token)
            let purchases = try await intake.get("/v1/users/somebody/purchases", key: token)
            #expect(other.status == purchases.status)
            #expect(other.status == 403 || other.status == 404, "\(other.text)")
            #expect(try await intake.get(Self.path(user), key: nil).status == 401)
            #expect(try await intake.get(Self.path(user), key: IntakeFixture.supportKey).status == 200)
            #expect(try await intake.get(Self.path(user), key: IntakeFixture.backendKey).status == 403)
            #expect(try await intake.get(Self.path(user), key: IntakeFixture.bothAppsKey).status == 422)
            #expect(try await intake.get(Self.path(user) + "?appId=other").status == 403)
            #expect(try await intake.send("POST", Self.path(user), body: "{}").status == 405)
        }
    }

    @Test("a merged account is asked by either name; a guest's token reads the guest's alone")
    func merged() async throws {
        try await TestGateway.run { intake, gateway in
            let (guest, account) = (
                try await Self.grant("guest", in: intake), try await Self.grant("account", in: intake)
            )
            try await intake.execute("select merge_users('game', '\(guest.user)', '\(account.user)', 64, 'ann')")
            for (reader, key, isWhole) in [
                (guest, IntakeFixture.key, true), (account, IntakeFixture.key, true),
                (account, try gateway.token(account.user), true), (guest, try gateway.token(guest.user), false),
            ] {
                let text = try await intake.get(Self.path(reader.user), key: key).text
                #expect(text.contains(reader.transaction), "\(text)")
                for user in [guest, account] where user.user != reader.user {
                    #expect(text.contains(user.transaction) == isWhole, "\(text)")
                }
            }
        }
    }
}
