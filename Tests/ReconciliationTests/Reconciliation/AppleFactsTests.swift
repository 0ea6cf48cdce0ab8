import AppStore
import Encoding
import Foundation
import Purchases
import Testing

@testable import Reconciliation

/// Goal: the stored facts have every value that the follow-up of a chain needs, and no value that Apple did not say.
/// Method: transactions as Apple spells them, read and stored as text.
@Suite struct AppleFactsTests {
    private func facts(_ more: String) throws -> JSONValue {
        let text =
            #"{"transactionId":"2","bundleId":"b","productId":"p","purchaseDate":1779999000000,"#
            + #""environment":"Production"\#(more)}"#
        let payload = try #require(try JSON(parsing: Array(text.utf8)).object)
        let transaction = try #require(Transaction(try SignedTransaction(payload)))
        return try JSONValue(parsing: Array(transaction.facts.utf8))
    }

    @Test func `seats, groups and bundles are kept under Apple's names`() throws {
        let facts = try facts(
            #","webOrderLineItemId":"w","subscriptionGroupIdentifier":"g","additionalTransactionReason":"#
                + #""SEAT_ADDITION","multiSeatInfo":{"revokedSeatQuantity":2},"bundleProductId":"bp","bundleTransactionId":"bt","#
                + #""bundleOriginalTransactionId":"bo","bundleSubscriptionGroupIdentifier":"bg""#)
        for (name, value) in [
            ("webOrderLineItemId", "w"), ("subscriptionGroupIdentifier", "g"),
            ("additionalTransactionReason", "SEAT_ADDITION"), ("bundleProductId", "bp"), ("bundleTransactionId", "bt"),
            ("bundleOriginalTransactionId", "bo"), ("bundleSubscriptionGroupIdentifier", "bg"),
        ] {
            #expect(facts[name] == .string(value), "\(name)")
        }
        #expect(facts["revokedSeatQuantity"] == .integer(2))
    }

    @Test func `what is not there stays out`() throws { #expect(try facts("") == .object([])) }
}
