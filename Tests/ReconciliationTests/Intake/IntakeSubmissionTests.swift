import Crypto
import Encoding
import Foundation
import HTTPTypes
import Intake
import Purchases
import Service
import Settings
import Testing

/// Goal: ingest refuses exactly the submissions that nobody could store or attribute, and stores all others (S3-33).
/// Method: a table of bodies with status, code and field; the stored rows are compared field by field.
@Suite struct IntakeSubmissionTests {
    static let jws = IntakeFixture.signedTransaction("1")

    static func read(
        _ body: String, _ caller: Caller = IntakeFixture.caller, apps: Set<String> = IntakeFixture.apps
    ) throws(Problem) -> SubmissionRequest {
        try SubmissionRequest(body: Array(body.utf8), caller: caller, apps: apps)
    }

    struct Refusal: CustomTestStringConvertible, Sendable {
        let body: String
        let status: Int
        let code: String
        let field: String?
        var testDescription: String { "\(status) \(code) \(field ?? "") \(body.prefix(60))" }

        init(_ body: String, _ status: Int, _ code: String, _ field: String? = nil) {
            self.body = body
            self.status = status
            self.code = code
            self.field = field
        }
    }

    static let refusals: [Refusal] = [
        Refusal("", 400, "not_json"),
        Refusal("[]", 400, "not_json"),
        Refusal("\"text\"", 400, "not_json"),
        Refusal("{", 400, "not_json"),
        Refusal("a=b", 400, "not_json"),
        // Wrong types.
        Refusal(#"{"userId":1.0,"receipt":"QUJD"}"#, 400, "wrong_type", "userId"),
        Refusal(#"{"userId":4e7,"receipt":"QUJD"}"#, 400, "wrong_type", "userId"),
        Refusal(#"{"userId":-0,"receipt":"QUJD"}"#, 400, "wrong_type", "userId"),
        Refusal(#"{"appId":1E0,"userId":"u","receipt":"QUJD"}"#, 400, "wrong_type", "appId"),
        Refusal(#"{"userId":"u","originalTransactionId":1.5}"#, 400, "wrong_type", "originalTransactionId"),
        Refusal(#"{"userId":["u"],"receipt":"QUJD"}"#, 400, "wrong_type", "userId"),
        Refusal(#"{"appId":true,"userId":"u","receipt":"QUJD"}"#, 400, "wrong_type", "appId"),
        Refusal(#"{"userId":"u","receipt":{}}"#, 400, "wrong_type", "receipt"),
        Refusal(#"{"userId":"u","signedTransaction":1}"#, 400, "wrong_type", "signedTransaction"),
        Refusal(#"{"userId":"u","transactionId":2000000123.0}"#, 400, "wrong_type", "transactionId"),
        // A member stands twice: the user, the app, the proof itself, or an id without a proof.
        Refusal(#"{"userId":"u","userId":"u","receipt":"QUJD"}"#, 400, "duplicate_member", "userId"),
        Refusal(#"{"userId":"u","receipt":"QUJD","user\u0049d":"v"}"#, 400, "duplicate_member", "userId"),
        Refusal(#"{"appId":"game","userId":"u","receipt":"QUJD","a\u0070pId":null}"#, 400, "duplicate_member", "appId"),
        Refusal(#"{"userId":"u","receipt":"QUJD","receipt":""}"#, 400, "duplicate_member", "receipt"),
        Refusal(
            #"{"userId":"u","signedTransaction":null,"signedTransaction":"\#(jws)"}"#, 400, "duplicate_member",
            "signedTransaction"),
        Refusal(#"{"userId":"u","orderId":"a","orderId":"b","transactionId":"1"}"#, 400, "duplicate_member", "orderId"),
        Refusal(#"{"userId":"u","transactionId":"1","transactionId":"2"}"#, 400, "duplicate_member", "transactionId"),
        Refusal(
            #"{"userId":"u","originalTransactionId":"1","originalTransactionId":"1"}"#, 400, "duplicate_member",
            "originalTransactionId"),
        // The proof is not valid Base64, or not a JWS.
        Refusal(#"{"userId":"u","receipt":"QUJ"D}"#, 400, "not_json", nil),
        Refusal(#"{"userId":"u","receipt":"QU D"}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"QUJDR"}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"QUJD="}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"QUI==="}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"QU=JD"}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"Q+J_"}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"ÄÖÜ"}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","receipt":"\r\n"}"#, 400, "not_base64", "receipt"),
        Refusal(#"{"userId":"u","signedTransaction":"abc"}"#, 400, "not_jws", "signedTransaction"),
        Refusal(#"{"userId":"u","signedTransaction":"YWJj.YWJj"}"#, 400, "not_jws", "signedTransaction"),
        Refusal(#"{"userId":"u","signedTransaction":"YWJj.YWJj.YWJj.YWJj"}"#, 400, "not_jws", "signedTransaction"),
        Refusal(#"{"userId":"u","signedTransaction":"YWI=.YWJj.YWJj"}"#, 400, "not_jws", "signedTransaction"),
        Refusal(#"{"userId":"u","signedTransaction":"YW+j.YWJj.YWJj"}"#, 400, "not_jws", "signedTransaction"),
        Refusal(#"{"userId":"u","signedTransaction":".YWJj.YWJj"}"#, 400, "not_jws", "signedTransaction"),
        Refusal(#"{"userId":"u","signedTransaction":"YWJj.YWJjY.YWJj"}"#, 400, "not_jws", "signedTransaction"),
        // U+0000 anywhere, and half a surrogate pair.
        Refusal(#"{"userId":"u\u0000","receipt":"QUJD"}"#, 400, "zero_character", "userId"),
        Refusal(#"{"userId":"u","receipt":"QUJD","future":{"a":["\u0000"]}}"#, 400, "zero_character", "future"),
        Refusal(#"{"userId":"u","receipt":"QUJD","future":"\ud800"}"#, 400, "not_json", "future"),
        Refusal(#"{"userId":"u","receipt":"QUJD","future":1e9999}"#, 400, "number_range", "future"),
        // A value is over its limit.
        Refusal(
            #"{"userId":"u","receipt":"QUJD","appId":"\#(String(repeating: "a", count: 65))"}"#, 400, "too_long",
            "appId"),
        Refusal(#"{"userId":"\#(String(repeating: "é", count: 129))","receipt":"QUJD"}"#, 400, "too_long", "userId"),
        Refusal(
            #"{"userId":"u","transactionId":"\#(String(repeating: "1", count: 65))"}"#, 400, "too_long", "transactionId"
        ),
        Refusal(
            #"{"userId":"u","signedTransaction":"YWJj.\#(String(repeating: "YWJj", count: 16_384)).YWJj"}"#, 400,
            "too_long", "signedTransaction"),
        // The server can read the body, but cannot use it.
        Refusal(#"{"userId":"u","receipt":"QUJD","signedTransaction":"\#(jws)"}"#, 422, "two_proofs"),
        Refusal(#"{"userId":"u"}"#, 422, "no_proof"),
        Refusal(#"{"userId":"u","receipt":"","signedTransaction":null}"#, 422, "no_proof"),
        Refusal(#"{"receipt":"QUJD"}"#, 422, "no_user"),
        Refusal(#"{"receipt":"QUJD","orderId":""}"#, 422, "no_user"),
        // An order id of a wrong type names no user; a bare transaction id needs valid ids beside it.
        Refusal(#"{"receipt":"QUJD","orderId":7.5}"#, 422, "no_user"),
        Refusal(#"{"userId":"u","transactionId":"1","orderId":7.5}"#, 400, "wrong_type", "orderId"),
        // An app of another key and an app that does not exist get the same answer.
        Refusal(#"{"appId":"other","userId":"u","receipt":"QUJD"}"#, 403, "app_not_allowed", "appId"),
        Refusal(#"{"appId":"nobody","userId":"u","receipt":"QUJD"}"#, 403, "app_not_allowed", "appId"),
    ]

    @Test("submissions that ingest refuses", arguments: refusals)
    func refused(_ refusal: Refusal) throws {
        let problem = #expect(throws: Problem.self) { try Self.read(refusal.body) }
        #expect(problem?.status.code == refusal.status)
        #expect(problem?.code.rawValue == refusal.code)
        if refusal.field != nil || refusal.code != "not_json" { #expect(problem?.field == refusal.field) }
        #expect(problem?.document["safeToFinish"] == .bool(false))
    }

    @Test(
        "S3-33: beside a proof nothing is refused for what the post says of it: stored as it came, and named",
        arguments: [
            (#""quantity":0"#, ["quantity"]), (#""quantity":-1"#, ["quantity"]), (#""quantity":"2""#, ["quantity"]),
            (#""quantity":1.5"#, ["quantity"]), (#""quantity":99999999999999999999"#, ["quantity"]),
            (#""item":5"#, ["item"]), (#""item":"\#(String(repeating: "i", count: 257))""#, ["item"]),
            (#""productId":[]"#, ["productId"]), (#""priceMilliunits":-1"#, ["priceMilliunits"]),
            (#""priceMilliunits":"0.99""#, ["priceMilliunits"]), (#""currency":7"#, ["currency"]),
            (#""target":"s1""#, ["target"]), (#""target":{"role":[]}"#, ["target"]), (#""client":"ios""#, ["client"]),
            (#""vtime":{}"#, ["vtime"]), (#""token":["a"]"#, ["token"]), (#""orderId":7.5"#, ["orderId"]),
            (#""orderId":"\#(String(repeating: "o", count: 129))""#, ["orderId"]),
            (#""transactionId":2e9"#, ["transactionId"]),
            (#""originalTransactionId":{}"#, ["originalTransactionId"]),
            (#""quantity":0,"item":[],"quantity":-5"#, ["quantity", "item"]),
            (#""target":{"server":"s1"},"appsid":"s2""#, ["appsid"]),
            // Of two members with the same name neither counts.
            (#""quantity":1,"quantity":2"#, ["quantity"]), (#""item":"a","\u0069tem":"a""#, ["item"]),
            (#""orderId":"a","orderId":"b""#, ["orderId"]),
            (#""transactionId":"1","transactionId":"1""#, ["transactionId"]),
            (#""target":{"role":"a"},"target":{"role":"b"}"#, ["target"]),
            (#""target":{"role":"a","r\u006fle":"b"}"#, ["target"]),
            (#""uid":"v","uid":"u""#, ["uid"]), (#""appsid":"s1","appsid":"s2""#, ["appsid"]),
            // Values that fit count; empty values are absent.
            (#""quantity":10,"item":"","target":null,"token":null,"orderId":null,"appsid":"s1""#, []),
        ] as [(String, [String])])
    func disregarded(more: String, names: [String]) throws {
        for proof in [#""receipt":"QUJD""#, #""signedTransaction":"\#(Self.jws)""#] {
            // The order of the fields does not matter.
            for body in ["{\(more),\(proof),\"userId\":\"u\"}", "{\"userId\":\"u\",\(proof),\(more)}"] {
                let request = try Self.read(body)
                #expect(request.disregarded == names && request.ignored == [])
                #expect(request.submission.declared?.disregarded == (names.isEmpty ? nil : names))
                #expect(request.submission.orderID == nil && request.submission.transactionID == nil)
                for name in names where name != "token" {
                    #expect(request.submission.details.contains("\"\(name)\":"), "stored as it came")
                }
                #expect(request.submission.declared?.quantity == (names.isEmpty ? 10 : nil))
            }
        }
    }

    @Test("S0-8, S0-9, S3-14: what a post says of its purchase, by its own fields and by the old clients' columns")
    func declared() throws {
        let new = try Self.read(
            #"{"userId":"u","receipt":"QUJD","item":"sword","productId":"tier6","quantity":2,"priceMilliunits":990,"#
                + #""currency":"USD","installationId":"device-1","target":{"server":"s1"}}"#)
        #expect(new.ignored == [], "S3-14: all of them are known")
        #expect(
            new.submission.declared
                == Declaration(
                    item: "sword", productID: "tier6", quantity: 2, priceMilliunits: 990, currency: "USD"))
        #expect(new.submission.target == #"{"server":"s1"}"#)
        let old = try Self.read(
            #"{"userId":"u","receipt":"QUJD","item":"tier6","itemnum":6,"appsid":12,"ext":"r7","country":"CN","token":"x"}"#
        )
        #expect(old.submission.declared == Declaration(item: "tier6", quantity: 6))
        #expect(old.submission.target == #"{"country":"CN","role":"r7","server":12}"#)
        #expect(try Self.read(#"{"userId":"u","receipt":"QUJD"}"#).submission.declared == nil)
        #expect(try Self.read(#"{"userId":"u","receipt":"QUJD","target":{}}"#).submission.target == nil)
    }

    @Test func depthOfAnUnknownFieldIsBounded() {
        let body =
            #"{"userId":"u","receipt":"QUJD","future":"#
            + String(repeating: "[", count: 40) + String(repeating: "]", count: 40) + "}"
        #expect(throws: Problem.malformed(.tooDeep, "is nested deeper than 32", field: "future")) {
            try Self.read(body)
        }
    }

    @Test func aSignedTransactionOf64KiBIsTaken() throws {
        let jws = "YWJj." + String(repeating: "YWJj", count: 16_380) + ".YWJj"
        #expect(
            try Self.read(#"{"userId":"u","signedTransaction":"\#(jws)"}"#).submission.proof == .signedTransaction(jws))
    }

    @Test("S2-7: the usual body, with everything in it")
    func complete() throws {
        let request = try Self.read(
            """
            {"appId":"game","userId":"u1","orderId":"o-1","signedTransaction":"\(Self.jws)","transactionId":"2000",
             "originalTransactionId":"1000","item":"coins","quantity":2,"target":{"server":"s1","role":"r9"},
             "client":{"os":"17.4","build":112}}
            """)
        #expect(request.ignored == [])
        var expected = Submission(
            appID: "game", userID: "u1", orderID: "o-1", proof: .signedTransaction(Self.jws), transactionID: "2000",
            originalTransactionID: "1000",
            details: #"{"client":{"build":112,"os":"17.4"},"item":"coins","quantity":2,"#
                + #""target":{"role":"r9","server":"s1"}}"#,
            target: #"{"role":"r9","server":"s1"}"#, declared: Declaration(item: "coins", quantity: 2))
        expected.shownTransactionID = "1"
        #expect(request.submission == expected)
    }

    @Test("S1-18: order, receipt and transaction id, and no user")
    func orderNamesTheUser() throws {
        let submission = try Self.read(#"{"orderId":"o-1","receipt":"QUJD","transactionId":"1"}"#).submission
        #expect(submission.userID == nil)
        #expect(submission.orderID == "o-1")
        #expect(submission.appID == "game")
    }

    @Test("S0-1: the eleven columns are taken and stored, the token only as its SHA-256")
    func columns() throws {
        let request = try Self.read(
            """
            {"userId":"u1","token":"secret-session","uid":"8001","item":"coins","itemnum":6,"appsid":12,
             "vtime":1712000000,"country":"CN","ext":"role-7","transactionId":"2000","receipt":"QUJD",
             "finishTransaction":false}
            """)
        #expect(request.ignored == [])
        let hash = SHA256.hash(data: Data("secret-session".utf8)).map { String(format: "%02x", $0) }.joined()
        #expect(
            request.submission.details
                == #"{"appsid":12,"country":"CN","ext":"role-7","finishTransaction":false,"item":"coins","itemnum":6,"#
                + #""tokenSha256":"\#(hash)","uid":"8001","vtime":1712000000}"#)
    }

    @Test("Unknown fields are stored and named: a newer app loses nothing, a typo does not hide")
    func unknownFields() throws {
        let request = try Self.read(
            #"{"userId":"u","receipt":"QUJD","storefrontId":143465,"reciept":{"a":[1,2.50]},"target":{"zone":3}}"#)
        #expect(request.ignored == ["storefrontId", "reciept", "target.zone"])
        #expect(request.submission.details == #"{"reciept":{"a":[1,2.50]},"storefrontId":143465,"target":{"zone":3}}"#)
    }

    @Test func namesOfUnknownFieldsAreBounded() throws {
        let fields = (0..<500).map { "\"f\($0)\":1" }.joined(separator: ",")
        let request = try Self.read("{\"userId\":\"u\",\"receipt\":\"QUJD\",\(fields)}")
        #expect(request.ignored.count == SubmissionRequest.ignoredMax)
        #expect(request.submission.details.contains("\"f499\":1"))
    }

    @Test(
        "S1-19: one receipt in any spelling of base64 is one submission (S1-2)",
        arguments: [
            "+/8AAQ==", "-_8AAQ", "-_8AAQ==", "+/8AAQ", #"+/8A\r\nAQ==\r\n"#, #"+/8A\nAQ==\n"#,
        ])
    func spellings(_ receipt: String) throws {
        let submission = try Self.read(#"{"userId":"u","receipt":"\#(receipt)"}"#).submission
        #expect(submission.proof == .receipt("+/8AAQ=="))
    }

    @Test func anUnsignedTokenIsTheVerifiersBusiness() throws {
        #expect(
            try Self.read(#"{"userId":"u","signedTransaction":"YWJj.YWJj."}"#).submission.proof.kind
                == .signedTransaction)
    }

    @Test("A bare id proves nothing; only the scope claim gives possession")
    func identifiers() throws {
        let question = try Self.read(#"{"userId":"u","transactionId":"2000"}"#).submission
        #expect(question.proof == .identifier)
        #expect(!question.isVouched)
        #expect(try Self.read(#"{"userId":"u","originalTransactionId":"1000"}"#).submission.proof == .identifier)
        let vouching = Caller(name: "v", userID: nil, scopes: [.intake, .claim], apps: ["game"])
        #expect(try Self.read(#"{"userId":"u","transactionId":"2000"}"#, vouching).submission.isVouched)
        let user = Caller(name: "gatewayJwt", userID: "u", scopes: [.intake, .claim], apps: ["game"])
        #expect(!(try Self.read(#"{"transactionId":"2000"}"#, user).submission.isVouched))
    }

    @Test("S3-68: a promotion beside a purchase counts from a service key; from a user's token it is disregarded")
    func promotions() throws {
        for name in ["promotion", "collectionID"] {
            let body = #"{"userId":"u","receipt":"QUJD","\#(name)":"spring"}"#
            let service = try Self.read(body)
            #expect(service.submission.declared?.promotion == "spring" && service.disregarded == [])
            #expect(service.ignored == [])
            let token = Caller(
                name: "gatewayJwt", userID: "u", scopes: [.intake], apps: ["game"], promotions: ["spring"])
            let user = try Self.read(body, token)
            #expect(user.submission.declared?.promotion == nil && user.disregarded == ["promotion"])
            // A value of a wrong type refuses nothing.
            let wrong = try Self.read(body.replacing(#""spring""#, with: "[1]"))
            #expect(wrong.submission.declared?.promotion == nil && wrong.disregarded == [name])
        }
    }

    @Test("appId may be left out where there is one app")
    func oneApp() throws {
        let body = #"{"userId":"u","receipt":"QUJD"}"#
        let both = Caller(name: "both", userID: nil, scopes: [.intake], apps: ["game", "other"])
        #expect(try Self.read(body).submission.appID == "game")
        #expect(try Self.read(body, both, apps: ["other"]).submission.appID == "other")
        let problem = #expect(throws: Problem.self) { try Self.read(body, both) }
        #expect(problem?.status == .unprocessableContent)
        #expect(problem?.field == "appId")
    }

    @Test("an app is named by its bytes: the Kelvin sign is no K")
    func appBytes() throws {
        let caller = Caller(name: "k", userID: nil, scopes: [.intake], apps: ["Kite"])
        let body = #"{"appId":"Kite","userId":"u","receipt":"QUJD"}"#
        #expect(try Self.read(body, caller, apps: ["Kite"]).submission.appID == "Kite")
        #expect(throws: Problem.appNotAllowed) {
            try Self.read(body.replacing("Kite", with: "\u{212A}ite"), caller, apps: ["Kite"])
        }
    }

    @Test("S3-2: a token acts for its own user only")
    func tokensUser() throws {
        let user = Caller(name: "gatewayJwt", userID: "jos\u{e9}", scopes: [.intake], apps: ["game"])
        #expect(try Self.read(#"{"receipt":"QUJD"}"#, user).submission.userID == "jos\u{e9}")
        #expect(try Self.read("{\"receipt\":\"QUJD\",\"userId\":\"jos\u{e9}\"}", user).submission.userID == "jos\u{e9}")
        // The same letters in other bytes are another user for the database.
        for other in ["u2", "jose\u{301}"] {
            #expect(throws: Problem.otherUser) { try Self.read("{\"receipt\":\"QUJD\",\"userId\":\"\(other)\"}", user) }
        }
    }

    /// Marks that combine with one character, in an order that Unicode normalization has to sort.
    private static func marks(_ count: Int) -> String { String(repeating: "\u{301}\u{316}", count: count) }

    @Test("a megabyte of combining marks costs what a megabyte costs, as a field's name and inside of it")
    func combiningMarks() throws {
        let marks = Self.marks(200_000)
        let time = try ContinuousClock().measure {
            for body in [
                #"{"userId":"u","receipt":"QUJD","\#(marks)":1}"#,
                #"{"userId":"u","receipt":"QUJD","target":{"\#(marks)":1}}"#,
                #"{"userId":"u","receipt":"QUJD","client":{"\#(marks)":"\#(marks.prefix(1))"}}"#,
            ] {
                let request = try Self.read(body)
                #expect(request.submission.details.utf8.count > marks.utf8.count)
                #expect(request.ignored.allSatisfy { $0.utf8.count <= 1024 })
            }
        }
        // A canonical comparison of these would take hours.
        #expect(time < .seconds(60))
    }
}
