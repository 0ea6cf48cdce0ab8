import Foundation
import HTTPTypes
import Hummingbird
import Purchases
import Support
import TestRandom
import Testing

@testable import Encoding
@testable import Intake
@testable import Ledger
@testable import Service

/// Goal: a client may finish a transaction exactly when nothing more can come of the client's copy (P2), and learns
/// nothing about other users. Method: receipts as the database would show them, and the JSON that is made of each.
@Suite struct IntakeAnswerTests {
    private static func transaction(
        _ id: String, _ state: String, reason: String? = nil, facts: Bool = true, isOwn: Bool? = nil,
        safeAt: String? = nil, isDisputed: Bool? = nil
    ) throws -> ReceiptView.TransactionView {
        var members: [JSONValue.Member] = [.init("transactionId", .string(id)), .init("state", .string(state))]
        if let reason { members.append(.init("reason", .string(reason))) }
        if facts {
            members.append(.init("originalTransactionId", .string(id)))
            members.append(.init("productId", .string("com.example.game.coins6")))
            members.append(.init("quantity", .number("1")))
            members.append(.init("environment", .string("Sandbox")))
            members.append(.init("purchasedAt", .string("2026-03-01T00:00:00.000Z")))
        }
        if let isOwn { members.append(.init("isOwn", .bool(isOwn))) }
        if let safeAt { members.append(.init("safeAt", .string(safeAt))) }
        if let isDisputed { members.append(.init("isDisputed", .bool(isDisputed))) }
        if isOwn == true {
            members.append(
                .init("goods", .array([.object([.init("item", .string("coins")), .init("amount", .number("6000"))])])))
        }
        return try JSONDecoder().decode(
            ReceiptView.TransactionView.self, from: Data(JSONValue.object(members).bytes))
    }

    private static func view(
        _ state: ReceiptState, reason: String? = nil, named: String? = nil,
        of userID: String? = "u1", _ transactions: [ReceiptView.TransactionView] = []
    ) -> ReceiptView {
        ReceiptView(
            id: UUID(uuidString: "00000000-0000-8000-8000-000000000001")!, appID: "game", userID: userID,
            kind: .signedTransaction, state: state, reason: reason, transactionID: named,
            receivedAt: Date(timeIntervalSince1970: 1_772_323_200.25),
            dueAt: state.isEnded ? nil : Date(timeIntervalSince1970: 1_772_323_210), transactions: transactions)
    }

    @Test(
        "F9: what waits in a post of nobody is never safe to finish, whatever it waits for; what has ended is",
        arguments: [
            ("held", "user_placeholder", false), ("held", "order_unknown", false), ("held", "before_cutover", false),
            ("held", "product_unknown", false), ("granted", nil, true), ("rejected", "refunded", true),
        ] as [(String, String?, Bool)])
    func nobody(_ state: String, _ reason: String?, _ isSafe: Bool) throws {
        let view = Self.view(.held, of: nil, [try Self.transaction("1", state, reason: reason)])
        #expect(ReceiptAnswer(view, finishing: .held).safeToFinish == isSafe)
    }

    @Test(
        "P2: per transaction",
        arguments: [
            ("granted", nil, true, true), ("already_granted", nil, true, true),
            ("already_granted", "owned_by_another_user", true, true), ("rejected", "refunded", true, true),
            ("rejected", "historical", true, true), ("rejected", "signature", false, false),
            ("rejected", "wrong_app", true, false), ("rejected", "wrong_environment", true, false),
            ("rejected", "untrusted_root", false, false), ("held", "product_unknown", true, true),
            ("held", "product_unknown", false, false), ("held", "possession_missing", true, false),
            ("held", "foreign_order", true, false), ("held", "foreign_record", true, false),
            ("held", "foreign_token", true, false), ("held", "token_disputed", true, false),
            ("open", "apple_unavailable", false, false), ("open", nil, true, false),
        ] as [(String, String?, Bool, Bool)])
    func transactions(_ state: String, _ reason: String?, _ facts: Bool, _ isSafe: Bool) throws {
        let view = Self.view(.held, [try Self.transaction("1", state, reason: reason, facts: facts)])
        let answer = ReceiptAnswer(view, finishing: .held)
        #expect(answer.safeToFinish == isSafe)
        guard case .array(let list)? = answer.json["transactions"] else { Issue.record("no list"); return }
        #expect(list.first?["safeToFinish"] == .bool(isSafe))
    }

    @Test("what another one has by less than proof is not finished for a day, and the answer says until when")
    func disputed() throws {
        for isDisputed in [true, false] {
            let transaction = try Self.transaction(
                "1", "already_granted", reason: "owned_by_another_user", isOwn: false,
                safeAt: "2026-03-02T00:00:00.000Z", isDisputed: isDisputed)
            let answer = ReceiptAnswer(
                Self.view(.alreadyGranted, reason: "owned_by_another_user", [transaction]), finishing: .held)
            #expect(answer.safeToFinish == !isDisputed)
            #expect(answer.json["nextAttemptAt"] == (isDisputed ? .string("2026-03-02T00:00:00.000Z") : nil))
        }
    }

    @Test("finishHeld: false keeps held purchases unfinished")
    func finishHeld() throws {
        let view = Self.view(.held, [try Self.transaction("1", "held", reason: "product_unknown")])
        #expect(ReceiptAnswer(view, finishing: .held).safeToFinish)
        #expect(!ReceiptAnswer(view, finishing: .ended).safeToFinish)
    }

    @Test("The receipt's own value is that of the named transaction, else of all")
    func named() throws {
        let list = [
            try Self.transaction("1", "granted", isOwn: true),
            try Self.transaction("2", "open", reason: "apple_answer"),
        ]
        #expect(ReceiptAnswer(Self.view(.received, named: "1", list), finishing: .held).safeToFinish)
        #expect(!ReceiptAnswer(Self.view(.received, named: "2", list), finishing: .held).safeToFinish)
        #expect(!ReceiptAnswer(Self.view(.received, named: "9", list), finishing: .held).safeToFinish)
        #expect(!ReceiptAnswer(Self.view(.received, list), finishing: .held).safeToFinish)
        #expect(ReceiptAnswer(Self.view(.granted, Array(list.prefix(1))), finishing: .held).safeToFinish)
    }

    @Test(
        "Without transactions the receipt's own state decides",
        arguments: [
            (.received, nil, false), (.parked, "apple_unavailable", false), (.rejected, "signature", false),
            (.rejected, "malformed", false), (.held, "no_transaction_yet", false), (.held, "app_unknown", false),
        ] as [(ReceiptState, String?, Bool)])
    func empty(_ state: ReceiptState, _ reason: String?, _ isSafe: Bool) {
        #expect(ReceiptAnswer(Self.view(state, reason: reason), finishing: .held).safeToFinish == isSafe)
    }

    @Test("P19: an empty receipt asks for a fresh one")
    func refresh() {
        let answer = ReceiptAnswer(Self.view(.held, reason: "no_transaction_yet"), finishing: .held).json
        #expect(answer["refreshReceipt"] == .bool(true))
        #expect(ReceiptAnswer(Self.view(.held, reason: "review"), finishing: .held).json["refreshReceipt"] == nil)
    }

    @Test("The whole document")
    func document() throws {
        let view = Self.view(.granted, [try Self.transaction("2000", "granted", isOwn: true)])
        let credited = PlayerSentence(.granted, nil).json.text
        #expect(
            ReceiptAnswer(view, finishing: .held, ignored: ["zone"]).json.text
                == #"{"id":"00000000-0000-8000-8000-000000000001","state":"granted","safeToFinish":true,"#
                + #""receivedAt":"2026-03-01T00:00:00.250Z","transactions":[{"transactionId":"2000","#
                + #""originalTransactionId":"2000","productId":"com.example.game.coins6","quantity":1,"#
                + #""environment":"Sandbox","purchasedAt":"2026-03-01T00:00:00.000Z","state":"granted","#
                + #""safeToFinish":true,"owner":"you","goods":[{"item":"coins","amount":6000}],"#
                + #""sentence":\#(credited)}],"sentence":\#(credited),"ignored":["zone"]}"#)
        let open = ReceiptAnswer(Self.view(.received), finishing: .held).json
        #expect(open["nextAttemptAt"] == .string("2026-03-01T00:00:10.000Z"))
    }

    @Test("An id of StoreKit's tests is shown as the app knows it; an old proof that nobody asked about says so")
    func shownID() throws {
        let stored = try JSONDecoder().decode(
            ReceiptView.TransactionView.self,
            from: Data(
                (#"{"transactionId":"Xcode/0","originalTransactionId":"Xcode/0","productId":"p","quantity":1,"#
                    + #""environment":"Xcode","state":"granted","isOwn":true,"appleAsked":false}"#).utf8))
        let open = try Self.transaction("1", "open")
        let answer = ReceiptAnswer(Self.view(.granted, named: "0", [stored, open]), finishing: .held)
        #expect(answer.safeToFinish, "the named one")
        guard case .array(let list)? = answer.json["transactions"] else { throw Unexpected() }
        #expect(
            list.first?.text
                == #"{"transactionId":"0","originalTransactionId":"0","productId":"p","quantity":1,"#
                + #""environment":"Xcode","state":"granted","appleAsked":false,"safeToFinish":true,"owner":"you","#
                + #""sentence":"# + PlayerSentence(.granted, nil).json.text + "}")
        #expect(list.last?["appleAsked"] == nil)
    }

    private struct Unexpected: Error {}

    @Test("Who only knows an id gets no hint, and another's grant shows no goods")
    func hints() throws {
        let question = Self.view(.held, [try Self.transaction("1", "held", reason: "possession_missing")])
        guard case .array(let asked)? = ReceiptAnswer(question, finishing: .held).json["transactions"] else { return }
        #expect(
            asked.first?.text
                == #"{"transactionId":"1","state":"held","reason":"possession_missing","safeToFinish":false,"#
                + #""sentence":\#(PlayerSentence(.held, .possessionMissing).json.text)}"#)
        let foreign = Self.view(
            .alreadyGranted,
            [try Self.transaction("1", "already_granted", reason: "owned_by_another_user", isOwn: false)])
        guard case .array(let list)? = ReceiptAnswer(foreign, finishing: .held).json["transactions"] else { return }
        #expect(list.first?["owner"] == .string("another"))
        #expect(list.first?["goods"] == nil)
    }

    // MARK: Problems

    @Test("RFC 9457: every refusal is a problem document")
    func problems() {
        #expect(
            Problem.tooLong("userId", bytesMax: 256).document.text
                == #"{"type":"urn:makegood:problem:too_long","title":"Bad Request","status":400,"#
                + #""detail":"is longer than 256 bytes","code":"too_long","field":"userId","safeToFinish":false}"#)
        #expect(Problem.notFound.response.headers[.contentType] == "application/problem+json")
        #expect(LedgerError.busy.problem.status == .serviceUnavailable)
        #expect(Problem(.forbidden, .otherUser, field: String(repeating: "f", count: 500)).field?.count == 128)
    }

    @Test("Retry-After is spread over 1 to 5 s")
    func jitter() {
        let seconds = Set((0..<200).compactMap { _ in Problem.unavailable().headers[.retryAfter] })
        #expect(seconds == ["1", "2", "3", "4", "5"])
    }

    @Test(
        "Cursors",
        arguments: [
            ("0-0", true), ("12-34", true), ("", false), ("1", false), ("1-", false), ("-1-1", false), ("1-2-3", false),
            ("a-b", false), ("1 -2", false), ("99999999999999999999-1", false),
        ])
    func cursors(_ text: String, _ isGood: Bool) {
        #expect((EventCursor(text) != nil) == isGood)
        if isGood { #expect(EventCursor(text)?.text == text) }
    }

    /// The reference is Foundation's own formatter, which the server does not use because of its cost.
    @Test func timesAreWrittenAsFoundationWritesThem() {
        let style = Date.ISO8601FormatStyle(includingFractionalSeconds: true)
        var random = SeededRandom(announcing: "timesAreWrittenAsFoundationWritesThem")
        for _ in 0..<5000 {
            // The range is 1900 to 2096: outside it a double does not hold milliseconds. A little is added, because
            // Foundation rounds down a time just below its millisecond.
            let milliseconds = Int64.random(in: -2_208_988_800_000...4_000_000_000_000, using: &random)
            let date = Date(timeIntervalSince1970: Double(milliseconds) / 1000)
            #expect(date.rfc3339 == (date + 0.0001).formatted(style), "\(milliseconds)")
            // The range is 1600, when Foundation's calendar is the Gregorian one, to 9999.
            let seconds = Int64.random(in: -11_676_096_000...253_402_300_799, using: &random)
            let far = Date(timeIntervalSince1970: Double(seconds))
            #expect(far.rfc3339 == far.formatted(style), "\(seconds)")
        }
        for date in [Date.distantPast, Date(timeIntervalSince1970: 253_402_300_800)] {
            #expect(date.rfc3339 == date.formatted(style))
        }
        #expect(Date(timeIntervalSince1970: 951_782_399.999).rfc3339 == "2000-02-28T23:59:59.999Z")
        #expect(Date(timeIntervalSince1970: 951_782_400).rfc3339 == "2000-02-29T00:00:00.000Z")
        #expect(Date(timeIntervalSince1970: 951_868_800.25).rfc3339 == "2000-03-01T00:00:00.250Z")
    }
}
