import Encoding
import Foundation
import Purchases
import Testing

/// Goal: events, answers and lists tell the price, the end, the trial, the offer and the sharing of a purchase as Apple
/// says them, and nothing that Apple does not say. Method: Apple's facts and the members made of them, in a table.
struct PurchaseTermsTests {
    @Test(
        "what Apple says, and no more",
        arguments: [
            ("{}", nil, "{}"), ("{}", "PURCHASED", "{}"), ("{}", "FAMILY_SHARED", #"{"shared":true}"#),
            ("{}", "ASSIGNED", #"{"shared":true}"#),
            (
                #"{"price":1990,"currency":"USD","storefront":"USA"}"#, nil,
                #"{"priceMilliunits":1990,"currency":"USD"}"#
            ),
            (
                #"{"price":0,"currency":"CNY","offerType":1,"offerDiscountType":"FREE_TRIAL","offerPeriod":"P1W"}"#,
                nil,
                #"{"priceMilliunits":0,"currency":"CNY","trial":true,"#
                    + #""offer":{"type":"introductory","discount":"free_trial","period":"P1W"}}"#
            ),
            (#"{"offerType":3,"offerIdentifier":"spring"}"#, nil, #"{"offer":{"type":"code","id":"spring"}}"#),
            (#"{"offerType":99}"#, nil, "{}"), (#"{"price":"1990","currency":1}"#, nil, "{}"), ("no JSON", nil, "{}"),
        ] as [(String, String?, String)])
    func members(_ facts: String, _ ownership: String?, _ members: String) {
        let transaction = Transaction(
            id: "1", originalID: nil, productID: "coins", kind: nil, environment: "Production",
            purchasedAt: Date(timeIntervalSince1970: 0), ownership: ownership, facts: facts)
        #expect(JSONValue.object(PurchaseTerms(transaction).members).text == members)
    }

    @Test("the end of a period is in the one format of times")
    func end() {
        let period = Transaction(
            id: "1", originalID: nil, productID: "pass", kind: .autoRenewable, environment: "Production",
            purchasedAt: Date(timeIntervalSince1970: 0), expiresAt: Date(timeIntervalSince1970: 1.25))
        #expect(
            JSONValue.object(PurchaseTerms(period).members).text == #"{"expiresAt":"1970-01-01T00:00:01.250Z"}"#)
    }
}
