import AppStore
import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Reconciliation

/// Goal: whatever the rules say about a refund can be sent to Apple, in both versions, and says what it means. Method:
/// every statement that the rules may make is made into a body; a table of whole bodies.
@Suite struct ConsumptionBodyTests {
    private static func statement(
        _ apiVersion: Int, _ delivery: RefundStatement.Delivery = .delivered, _ percentage: Int? = nil,
        _ preference: RefundStatement.Preference = .unsaid, isAutoRenewable: Bool = false, token: UUID? = nil
    ) -> RefundStatement {
        RefundStatement(
            apiVersion: apiVersion, isAutoRenewable: isAutoRenewable, providesSample: false, delivery: delivery,
            percentage: percentage, preference: preference, appAccountToken: token)
    }

    @Test("every statement has a body that Apple's rules allow")
    func all() throws {
        for apiVersion in [1, 2] {
            for delivery in RefundStatement.Delivery.allCases {
                let percentages: [Int?] = delivery == .delivered ? [nil, 0, 1, 50_000, 99_999, 100_000] : [0]
                for percentage in percentages {
                    for preference in RefundStatement.Preference.allCases {
                        let isPart = percentage.map { (1..<100_000).contains($0) } ?? false
                        if preference == .grantProrated, !isPart { continue }
                        let made = try ConsumptionBody(Self.statement(apiVersion, delivery, percentage, preference))
                        #expect(made.json.contains(#""customerConsented":true"#))
                    }
                }
            }
            for preference in RefundStatement.Preference.allCases {
                _ = try ConsumptionBody(
                    Self.statement(apiVersion, .delivered, nil, preference, isAutoRenewable: true))
            }
        }
    }

    @Test("the bodies, whole")
    func bodies() throws {
        let token = try #require(UUID(uuidString: "A0B1C2D3-0000-4000-8000-000000000001"))
        for (statement, json) in [
            (
                Self.statement(2, .delivered, 40_000, .grantProrated),
                #"{"consumptionPercentage":40000,"customerConsented":true,"deliveryStatus":"DELIVERED","#
                    + #""refundPreference":"GRANT_PRORATED","sampleContentProvided":false}"#
            ),
            (
                Self.statement(2, .other, 0),
                #"{"consumptionPercentage":0,"customerConsented":true,"deliveryStatus":"UNDELIVERED_OTHER","#
                    + #""sampleContentProvided":false}"#
            ),
            (
                Self.statement(2, .delivered, nil, .decline, isAutoRenewable: true),
                #"{"customerConsented":true,"deliveryStatus":"DELIVERED","refundPreference":"DECLINE","#
                    + #""sampleContentProvided":false}"#
            ),
            (
                Self.statement(1, .delivered, 100_000, .decline, token: token),
                #"{"accountTenure":0,"appAccountToken":"a0b1c2d3-0000-4000-8000-000000000001","consumptionStatus":3,"#
                    + #""customerConsented":true,"deliveryStatus":0,"lifetimeDollarsPurchased":0,"#
                    + #""lifetimeDollarsRefunded":0,"platform":0,"playTime":0,"refundPreference":2,"#
                    + #""sampleContentProvided":false,"userStatus":0}"#
            ),
            (
                Self.statement(1, .serverOutage, 0, .grantFull),
                #"{"accountTenure":0,"appAccountToken":"","consumptionStatus":1,"customerConsented":true,"#
                    + #""deliveryStatus":3,"lifetimeDollarsPurchased":0,"lifetimeDollarsRefunded":0,"platform":0,"#
                    + #""playTime":0,"refundPreference":1,"sampleContentProvided":false,"userStatus":0}"#
            ),
        ] {
            #expect(try ConsumptionBody(statement).json == json)
        }
        for (percentage, status) in [(nil, 0), (0, 1), (1, 2), (99_999, 2), (100_000, 3)] as [(Int?, Int)] {
            let json = try ConsumptionBody(Self.statement(1, .delivered, percentage)).json
            #expect(json.contains(#""consumptionStatus":\#(status)"#))
        }
    }
}
