import Encoding
import Foundation
import Purchases
import Service
import Settings
import Testing

@testable import Intake
@testable import Ledger

/// Goal: a post with a placeholder in the user's place is stored and names nobody (F9); what would give a placeholder
/// something to keep is refused, and the answer names the field. Method: bodies with the submission that they come to;
/// real HTTP, then the rows.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct IntakePlaceholderTests {
    private static let jws = IntakeFixture.signedTransaction("placeholder")

    private static func read(_ members: String, as user: String? = nil) throws -> SubmissionRequest {
        let caller = Caller(name: "gateway", userID: user, scopes: [.intake], apps: ["game"])
        return try IntakeSubmissionTests.read("{\"signedTransaction\":\"\(jws)\",\(members)}", caller)
    }

    @Test(
        "F9: stored as nobody's, with the text as it came; one proof of nobody is one receipt",
        arguments: [
            (#""userId":"undefined""#, #"{"userId":"undefined"}"#), (#""userId":" NULL ""#, #"{"userId":" NULL "}"#),
            (#""userId":"""#, #"{"userId":""}"#), (#""userId":null"#, #"{"userId":null}"#),
            (#""userId":"0","client":{"os":"17"}"#, #"{"client":{"os":"17"},"userId":"0"}"#),
            (#""userId":"undefined","orderId":"null""#, #"{"orderId":"null","userId":"undefined"}"#),
            (#""orderId":"undefined""#, #"{"orderId":"undefined"}"#),
        ])
    func nobody(_ members: String, details: String) throws {
        let submission = try Self.read(members).submission
        #expect(submission.userID == nil && submission.orderID == nil && !submission.showsRecordOfUser)
        #expect(submission.declared?.isOfPlaceholder == true && submission.details == details)
        #expect(submission.receiptID == (try Self.read(#""userId":"(null)""#).submission.receiptID))
        #expect(submission.receiptID != (try Self.read(#""userId":"u""#).submission.receiptID))
    }

    @Test("F9: an order names the user of a backend's post; an empty user beside it is an empty column")
    func orders() throws {
        let named = try Self.read(#""userId":"undefined","orderId":"o-1""#)
        #expect(named.submission.userID == nil && named.submission.orderID == "o-1" && named.disregarded == [])
        #expect(named.submission.declared?.isOfPlaceholder == true)
        let empty = try Self.read(#""userId":"","orderId":"o-1""#).submission
        #expect(empty.declared == nil && empty.details == "{}" && empty.receiptID == named.submission.receiptID)
        // Of a user who is somebody, such an order is none.
        let somebody = try Self.read(#""userId":"u","orderId":"null""#)
        #expect(somebody.submission.userID == "u" && somebody.submission.orderID == nil)
        #expect(somebody.disregarded == ["orderId"])
        #expect(somebody.submission.declared?.isOfPlaceholder == nil)
    }

    @Test("F9: the token of a gateway names the user; a token of nobody lets the body name nobody either")
    func tokens() throws {
        let own = try Self.read(#""userId":"undefined","orderId":"o-1""#, as: "u")
        #expect(own.submission.userID == "u" && own.submission.orderID == "o-1" && own.disregarded == ["userId"])
        #expect(own.submission.details == #"{"userId":"undefined"}"#)
        let nobody = try Self.read(#""userId":"victim","orderId":"o-1""#, as: "undefined")
        #expect(nobody.submission.userID == nil && nobody.submission.orderID == nil)
        #expect(nobody.disregarded == ["userId", "orderId"] && !nobody.submission.isVouched)
        #expect(nobody.submission.details == #"{"orderId":"o-1","userId":"undefined"}"#)
        #expect(nobody.submission.declared?.isOfPlaceholder == true)
        #expect(throws: Problem.otherUser) { try Self.read(#""userId":"victim""#, as: "u") }
    }

    @Test("F9: a record whose uid is a placeholder names no other user")
    func records() throws {
        for uid in ["\"undefined\"", "0", "\"-1\"", "\" \""] {
            #expect(try Self.read("\"userId\":\"u\",\"uid\":\(uid)").submission.declared == nil)
        }
        #expect(try Self.read(#""userId":"u","uid":"8001""#).submission.declared?.uid == "8001")
        #expect(
            try Self.read(#""userId":"null","uid":"8001""#).submission.declared == Declaration(isOfPlaceholder: true))
    }

    @Test("F9, F10: what a placeholder may not have, and a token that is none; nothing of it is stored")
    func refusals() async throws {
        try await RunningIntake.run { intake in
            let body = #"{"userId":"undefined","productId":"com.example.game.coins6"}"#
            let order = try await intake.send("POST", "/v1/orders", body: body)
            #expect(order.status == 422 && order["code"] == .string("user_placeholder"))
            #expect(order["field"] == .string("userId"))
            let installation = try await intake.send(
                "POST", "/v1/installations", body: #"{"userId":"(null)"}"#)
            #expect(installation.status == 422 && installation["code"] == .string("user_placeholder"))
            for (method, path) in [
                ("PUT", "/v1/users/undefined/tokens/\(UUID())"), ("POST", "/v1/users/%5Bobject%20Object%5D/token"),
            ] {
                let answer = try await intake.send(method, path)
                #expect(answer.status == 422 && answer["code"] == .string("user_placeholder"), "\(path)")
                #expect(answer["field"] == .string("id"))
            }
            for token in ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"] {
                let answer = try await intake.send("PUT", "/v1/users/u1/tokens/\(token)")
                #expect(answer.status == 422 && answer["code"] == .string("token_placeholder"))
                #expect(answer["field"] == .string("token"))
            }
            #expect(
                try await intake.count(
                    """
                    select (select count(*) from orders where user_id = 'undefined')
                      + (select count(*) from user_tokens where user_id in ('undefined', '[object Object]')
                          or token in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
                    """) == 0)
        }
    }
}
