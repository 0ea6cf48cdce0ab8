import Encoding
import Foundation
import HTTPTypes
import Intake
import Purchases
import Service
import Settings
import TestServers
import Testing

/// Goal: a post in any wrapping is the same submission as the clean post, the answer names each repair, and what is
/// refused is refused with its field (F2, F3, F6, F7, F8, F16, F18). Method: bodies and their submissions side by side;
/// then real HTTP on a real database, without a broker. ProofReaderTests holds the kinds of wrappings.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(5))) struct IntakeWrappingTests {
    private static let jws = IntakeSubmissionTests.jws
    private static let other = IntakeFixture.signedTransaction("2")
    private static let receipt = ProofReaderTests.receipt

    private static func read(_ body: String) throws(Problem) -> SubmissionRequest {
        try IntakeSubmissionTests.read(body)
    }

    /// The repairs as `field repair`.
    private static func repairs(_ request: SubmissionRequest) -> [String] {
        request.repaired.map { "\($0.field) \($0.kind.rawValue)" }
    }

    static let bodies: [(String, [String])] = [
        (#""receipt":"\#(jws)""#, ["receipt other_field"]),
        (#""receipt":"\#(jws)","signedTransaction":"""#, ["receipt other_field"]),
        (#""receipt":"\#(jws)","signedTransaction":null"#, ["receipt other_field"]),
        (#""receipt":"\#(jws)","signedTransaction":"\#(jws)""#, ["receipt other_field"]),
        (#""signedTransaction":" \#(jws)\n","receipt":"""#, ["signedTransaction white_space"]),
        (#""signedTransaction":{"jwsRepresentation":"\#(jws)"}"#, ["signedTransaction wrapper"]),
        (#""receipt":{"purchaseToken":"\#(jws)"}"#, ["receipt wrapper", "receipt other_field"]),
        (#""jwsRepresentation":"\#(jws)""#, ["jwsRepresentation wrapper"]),
        (#""receipt":"","purchase":{"transactionReceipt":"\#(jws)"}"#, ["purchase wrapper"]),
    ]

    @Test("F2, F8: in another field, in an object, beside an empty field: the same receipt id", arguments: bodies)
    func sameSubmission(_ body: String, _ repairs: [String]) throws {
        let clean = try Self.read(#"{"userId":"u","signedTransaction":"\#(Self.jws)"}"#)
        #expect(clean.repaired == [])
        let request = try Self.read(#"{"userId":"u",\#(body)}"#)
        #expect(request.submission.proof == clean.submission.proof)
        #expect(request.submission.receiptID == clean.submission.receiptID)
        #expect(Self.repairs(request) == repairs && request.disregarded == [] && request.ignored == [])
        #expect(request.submission.details == "{}", "the proof is stored once")
    }

    @Test(
        "F2: beside a real proof a blank or unreadable field is stored, named, and refuses nothing",
        arguments: [
            #""  \r\n""#, #""null""#, #""undefined""#, #""(null)""#, #""[object Object]""#, "{}", "[]", "false", "7",
            #""not base64!""#, #"{"a":1}"#, #"{"Store":"GooglePlay","Payload":"x"}"#,
        ])
    func besideAProof(_ value: String) throws {
        for body in [
            #"{"userId":"u","signedTransaction":"\#(Self.jws)","receipt":\#(value)}"#,
            #"{"userId":"u","receipt":\#(value),"signedTransaction":"\#(Self.jws)"}"#,
        ] {
            let request = try Self.read(body)
            #expect(request.submission.proof == .signedTransaction(Self.jws))
            #expect(request.disregarded == ["receipt"] && request.repaired == [])
            #expect(request.submission.details.contains(#""receipt":"#))
        }
        let receipt = try Self.read(#"{"userId":"u","signedTransaction":\#(value),"receipt":"\#(Self.receipt)"}"#)
        #expect(receipt.submission.proof == .receipt(Self.receipt) && receipt.disregarded == ["signedTransaction"])
    }

    @Test("Two different proofs stay refused, in any wrapping; a blank field beside an id is a question")
    func twoProofs() throws {
        for body in [
            #""signedTransaction":"\#(Self.jws)","receipt":"\#(Self.receipt)""#,
            #""signedTransaction":"\#(Self.jws)","receipt":"\#(Self.other)""#,
            #""signedTransaction":"\#(Self.receipt)","receipt":{"receipt-data":"QUJD"}"#,
            #""receipt":[{"transactionReceipt":"\#(Self.jws)"},{"transactionReceipt":"\#(Self.other)"}]"#,
            #""transactionReceipt":"\#(Self.jws)","transactionReceipt":"\#(Self.other)""#,
            #""transaction_receipt":"\#(Self.jws)","transactionReceipt":"\#(Self.other)""#,
        ] {
            let problem = #expect(throws: Problem.self) { try Self.read(#"{"userId":"u",\#(body)}"#) }
            #expect(problem?.code == .twoProofs && problem?.status == .unprocessableContent)
        }
        let question = try Self.read(#"{"userId":"u","transactionId":"2000","receipt":"null"}"#)
        #expect(question.submission.proof == .identifier && question.disregarded == ["receipt"])
    }

    @Test(
        "F3: a whole number is its digits, exactly as written, and the same submission as the text",
        arguments: ["47", "2000000123456789", "9007199254740993", "18446744073709551617", "-17", "5"])
    func numbers(_ digits: String) throws {
        for (field, rest) in [
            ("userId", #""receipt":"QUJD""#), ("transactionId", #""userId":"u""#),
            ("originalTransactionId", #""userId":"u""#), ("orderId", #""receipt":"QUJD""#),
            ("transactionId", #""userId":"u","receipt":"QUJD""#),
        ] {
            let text = try Self.read(#"{"\#(field)":"\#(digits)",\#(rest)}"#)
            let number = try Self.read(#"{"\#(field)":\#(digits),\#(rest)}"#)
            #expect(number.submission == text.submission)
            #expect(Self.repairs(number) == ["\(field) number"] && text.repaired == [])
        }
        let caller = Caller(name: "n", userID: nil, scopes: [.intake], apps: [digits])
        let app = try IntakeSubmissionTests.read(
            #"{"appId":\#(digits),"userId":"u","receipt":"QUJD"}"#, caller, apps: [digits])
        #expect(app.submission.appID == digits)
    }

    @Test("The ids of a wrapper are hints where the post has none; a shared secret is stored nowhere")
    func hints() throws {
        let wrapper = #"{"Store":"AppleAppStore","TransactionID":"2000","Payload":"\#(Self.receipt)"}"#
        #expect(try Self.read(#"{"userId":"u","receipt":\#(wrapper)}"#).submission.transactionID == "2000")
        #expect(
            try Self.read(#"{"userId":"u","transactionId":"7","receipt":\#(wrapper)}"#).submission.transactionID == "7")
        let named = try Self.read(#"{"userId":"u","transactionId":null,"receipt":\#(wrapper)}"#)
        #expect(named.submission.transactionID == "2000")
        for body in [
            #""receipt-data":"\#(Self.receipt)","password":"secret""#,
            #""receipt":{"receipt-data":"\#(Self.receipt)","password":"secret","exclude-old-transactions":true}"#,
            #""receipt":"{\"receipt-data\":\"\#(Self.receipt)\",\"password\":\"secret\"}""#,
            #""receipt":"\#(Self.receipt)","password":"secret","verify":{"password":"secret"}"#,
            #""receipt":"\#(Self.receipt)","signedTransaction":"{\"receipt-data\":\"!\",\"password\":\"secret\"}""#,
        ] {
            let request = try Self.read(#"{"userId":"u",\#(body)}"#)
            #expect(request.submission.proof == .receipt(Self.receipt))
            #expect(!request.submission.details.contains("secret"), "\(body.prefix(40))")
        }
    }

    @Test("Members that are no proof make a question no receipt, and refuse no question")
    func questions() throws {
        for more in [
            #""payload":"test""#, #""data":{"receipt":"QUJD"}"#, #""platform":"android""#, #""store":"GooglePlay""#,
            #""signedPayload":"a.b.c""#,
        ] {
            let question = try Self.read(#"{"userId":"u","transactionId":"2000",\#(more)}"#)
            #expect(question.submission.proof == .identifier && question.repaired == [] && question.ignored.count == 1)
        }
    }

    // MARK: Over HTTP

    @Test("F6, F7, F8, F16: the answer names the repairs, the clean post none, alone and in a batch; one row")
    func answers() async throws {
        try await RunningIntake.run { intake in
            let user = "wrapped-\(UUID())"
            let jws = IntakeFixture.signedTransaction()
            let clean = try await intake.post(#"{"userId":"\#(user)","signedTransaction":"\#(jws)"}"#)
            #expect(clean.status == 202 && clean["repaired"] == nil)
            let bodies = [
                #""receipt":"\#(jws)""#, #""signedTransaction":" \#(jws) ""#,
                #""signedTransaction":"\#(Data(jws.utf8).base64EncodedString())""#,
                #""receipt":{"Store":"AppleAppStore","Payload":"{\"signedTransaction\":\"\#(jws)\"}"}"#,
            ]
            for body in bodies {
                let answer = try await intake.post("\u{FEFF}{\"userId\":\"\(user)\",\(body)}")
                #expect(answer["id"] == clean["id"] && answer["safeToFinish"] == .bool(false))
                guard case .array(let repairs)? = answer["repaired"], let first = repairs.first else {
                    Issue.record("no repair of \(body): \(answer.text)")
                    continue
                }
                #expect(first["field"] != nil && first["repair"] != nil)
            }
            let batch = try await intake.send(
                "POST", "/v1/receipts/batch",
                body:
                    "\u{FEFF}{\"userId\":\"\(user)\",\"receipts\":[\(bodies.map { "{\($0)}" }.joined(separator: ","))]}"
            )
            guard case .array(let answers)? = batch["receipts"] else {
                Issue.record("no batch: \(batch.text)")
                return
            }
            #expect(answers.count == bodies.count)
            #expect(answers.allSatisfy { $0["id"] == clean["id"] && $0["repaired"] != nil })
            #expect(try await intake.count("select count(*) from receipts where user_id = '\(user)'") == 1)
            let again = try await intake.post(#"{"userId":"\#(user)","signedTransaction":"\#(jws)"}"#)
            #expect(again["repaired"] == nil && again["id"] == clean["id"])
        }
    }

    @Test("F8, F18: another store's purchase and other signed data are refused by what they are, and nothing is stored")
    func refusals() async throws {
        func signed(_ payload: String) -> String {
            "eyJhbGciOiJFUzI1NiJ9.\(Data(payload.utf8).base64URL).c2lnbmF0dXJl"
        }
        let app = signed(#"{"receiptType":"Sandbox","bundleId":"b"}"#)
        let renewal = signed(#"{"autoRenewStatus":1}"#)
        let test = signed(#"{"notificationType":"TEST"}"#)
        try await RunningIntake.run { intake in
            let before = try await intake.count("select count(*) from receipts")
            for (body, code, field, word) in [
                (#""receipt":"{\"packageName\":\"p\",\"purchaseToken\":\"t\"}""#, "other_store", "receipt", "store"),
                (#""receipt":{"Store":"AmazonAppStore","Payload":"x"}"#, "other_store", "receipt", "store"),
                (#""packageName":"p","purchaseToken":"t""#, "other_store", nil, "store"),
                (#""signedTransaction":"\#(app)""#, "other_signed_data", "signedTransaction", "app transaction"),
                (#""receipt":"\#(renewal)""#, "other_signed_data", "receipt", "renewal info"),
                (#""signedPayload":"\#(test)""#, "other_signed_data", nil, "notification"),
            ] as [(String, String, String?, String)] {
                let answer = try await intake.post(#"{"userId":"u1",\#(body)}"#)
                #expect(answer.status == 422 && answer["code"] == .string(code), "\(answer.text)")
                #expect(answer["field"] == field.map { .string($0) } && answer["safeToFinish"] == .bool(false))
                guard case .string(let detail)? = answer["detail"] else {
                    Issue.record("no detail: \(answer.text)")
                    continue
                }
                #expect(detail.contains(word))
            }
            #expect(try await intake.count("select count(*) from receipts") == before)
        }
    }

    @Test("F3: orders, reports and installations take numbers as ids too")
    func numbersElsewhere() async throws {
        try await RunningIntake.run { intake in
            let order = try await intake.send(
                "POST", "/v1/orders", body: #"{"userId":9007199254740993,"productId":"com.example.game.coins6"}"#)
            #expect(order.status == 201, "\(order.text)")
            #expect(try await intake.count("select count(*) from orders where user_id = '9007199254740993'") == 1)
            let report = try await intake.send(
                "POST", "/v1/client-reports", body: #"{"userId":9007199254740993,"kind":"failed","transactionId":2000}"#
            )
            #expect(report.status == 201, "\(report.text)")
            let token = try await intake.send("POST", "/v1/installations", body: #"{"userId":47}"#)
            #expect(token.status == 201, "\(token.text)")
            for path in ["/v1/orders", "/v1/client-reports", "/v1/installations"] {
                let answer = try await intake.send("POST", path, body: #"{"userId":4.7e1,"kind":"failed"}"#)
                #expect(answer.status == 400 && answer["field"] == .string("userId"), "\(path)")
            }
        }
    }
}
