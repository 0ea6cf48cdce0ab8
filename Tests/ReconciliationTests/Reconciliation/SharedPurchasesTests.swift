import Encoding
import Foundation
import Testing

@testable import AppStore
@testable import Reconciliation

/// Goal: a purchase that very many users show raises one alarm and costs hardly a call (F20). Method: a clock that the
/// test moves.
@Suite struct SharedPurchasesTests {
    @Test("one line at twenty users, and one each time the number has doubled; each purchase and hour by itself")
    func alarm() {
        let (shared, start) = (SharedPurchases(), ContinuousClock.now)
        let lines = (1...1000).filter { _ in shared.record("1", at: start) }
        #expect(lines == [20, 40, 80, 160, 320, 640])
        #expect((1..<20).allSatisfy { _ in !shared.record("2", at: start) })
        let later = start + SharedPurchases.window + .seconds(1)
        #expect((1...20).filter { _ in shared.record("1", at: later) } == [20])
        #expect((1..<20).allSatisfy { _ in !shared.record("2", at: later) }, "an hour ago is long ago")
    }

    @Test("eight users' receipts are asked about, and all others get their answer; after ten minutes anew")
    func answers() throws {
        let (answers, start) = (SharedAnswers(), ContinuousClock.now)
        let proof = SharedAnswers.PostedBytes(appID: "game", sha256: [1])
        let asking = (0..<SharedAnswers.askingMax).map { _ in UUID() }
        for id in asking { #expect(Self.word(answers.leave(toAskAbout: proof, for: id, at: start)) == "ask") }
        #expect(Self.word(answers.leave(toAskAbout: proof, for: UUID(), at: start)) == "wait")
        #expect(
            Self.word(answers.leave(toAskAbout: proof, for: asking[0], at: start)) == "ask", "as ever, for its poster")
        let other = SharedAnswers.PostedBytes(appID: "other", sha256: [1])
        #expect(Self.word(answers.leave(toAskAbout: other, for: UUID(), at: start)) == "ask")
        // A call without an answer makes room for another one.
        answers.asked(about: proof, for: asking[7], nil)
        #expect(Self.word(answers.leave(toAskAbout: proof, for: asking[7], at: start)) == "ask")
        answers.asked(about: proof, for: asking[1], try Self.receipt())
        for _ in 0..<1000 {
            #expect(Self.word(answers.leave(toAskAbout: proof, for: UUID(), at: start + .seconds(599))) == "answer")
        }
        #expect(Self.word(answers.leave(toAskAbout: proof, for: UUID(), at: start + SharedAnswers.keptFor)) == "ask")
    }

    private static func word(_ leave: SharedAnswers.Leave) -> String {
        switch leave {
        case .ask: "ask"
        case .wait: "wait"
        case .answer(let verified): verified.latestReceipt == nil ? "answer" : "with the receipt's bytes"
        }
    }

    private static func receipt() throws -> VerifiedReceipt {
        let text = #"{"receipt": {"bundle_id": "b", "in_app": []}, "latest_receipt": "QUJD"}"#
        return try VerifiedReceipt(try #require(try JSON(parsing: Array(text.utf8)).object), askedIn: .production)
    }
}
