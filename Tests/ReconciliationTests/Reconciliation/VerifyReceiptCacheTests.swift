import Foundation
import Testing

@testable import AppStore
@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: the cache keeps an answer of verifyReceipt for as long as the answer is valid, within bounds. Method: a clock
/// that the test moves.
@Suite struct VerifyReceiptCacheTests {
    private static func receipt(entries: Int = 1, in environment: StoreEnvironment = .production) throws
        -> VerifiedReceipt
    {
        let list = (0..<entries).map { #"{"transaction_id": "\#($0)", "product_id": "coins"}"# }.joined(separator: ",")
        let text = #"{"receipt": {"bundle_id": "b", "in_app": [\#(list)]}, "latest_receipt": "QUJD"}"#
        return try VerifiedReceipt(try #require(try JSON(parsing: Array(text.utf8)).object), askedIn: environment)
    }

    @Test("remembered for ten minutes from the first answer on, without the receipt's own bytes; then asked anew")
    func time() throws {
        let (answers, id, start) = (VerifyReceiptCache(), UUID(), ContinuousClock.now)
        #expect(answers.answer(about: id, at: start) == nil)
        answers.note(try Self.receipt(), about: id, at: start)
        let answer = try #require(answers.answer(about: id, at: start + .seconds(599)))
        #expect(answer.bundleId == "b" && answer.entries.count == 1 && answer.latestReceipt == nil)
        answers.note(try Self.receipt(in: .sandbox), about: id, at: start + .seconds(599))
        #expect(answers.answer(about: id, at: start + .seconds(600)) == nil, "coming again makes it no younger")
        answers.note(try Self.receipt(in: .sandbox), about: id, at: start + .seconds(600))
        #expect(answers.answer(about: id, at: start + .seconds(601))?.environment == .sandbox)
        answers.forget(id)
        #expect(answers.answer(about: id, at: start + .seconds(601)) == nil)
    }

    @Test("no more receipts than the bound, and no large one; what is too old is dropped")
    func bounds() throws {
        let (answers, start) = (VerifyReceiptCache(), ContinuousClock.now)
        answers.note(try Self.receipt(entries: VerifyReceiptCache.entriesMax + 1), about: UUID(), at: start)
        let ids = (0...VerifyReceiptCache.receiptsMax).map { _ in UUID() }
        let receipt = try Self.receipt(entries: VerifyReceiptCache.entriesMax)
        for id in ids { answers.note(receipt, about: id, at: start) }
        #expect(ids.count { answers.answer(about: $0, at: start) != nil } == VerifyReceiptCache.receiptsMax)
        answers.note(receipt, about: ids[ids.count - 1], at: start + VerifyReceiptCache.keptFor)
        #expect(answers.answer(about: ids[ids.count - 1], at: start + VerifyReceiptCache.keptFor) != nil)
        #expect(ids.dropLast().allSatisfy { answers.answer(about: $0, at: start) == nil }, "the others made room")
    }
}
