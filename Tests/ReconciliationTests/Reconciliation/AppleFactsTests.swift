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

    @Test func `a commitment is kept, of the period and of the renewal`() throws {
        let facts = try facts(
            #","commitmentInfo":{"billingPeriodNumber":3,"totalBillingPeriods":12,"commitmentExpiresDate":1800000000000}"#
        )
        #expect(facts["billingPeriodNumber"] == .integer(3) && facts["totalBillingPeriods"] == .integer(12))
        #expect(facts["commitmentExpiresDate"] == .integer(1_800_000_000_000))
        let text =
            #"{"originalTransactionId":"1","autoRenewStatus":1,"signedDate":1779999000000,"environment":"Production","#
            + #""commitmentInfo":{"commitmentAutoRenewStatus":0,"commitmentRenewalDate":1800000000000}}"#
        let payload = try #require(try JSON(parsing: Array(text.utf8)).object)
        let renewal = try #require(Renewal(try SignedRenewalInfo(payload), from: nil))
        #expect(renewal.renewsAutomatically == true)
        #expect(
            renewal.commitment
                == Renewal.Commitment(
                    renewsAutomatically: false, renewsAt: Date(timeIntervalSince1970: 1_800_000_000)))
    }

    @Test func `what is not there stays out`() throws { #expect(try facts("") == .object([])) }
}
