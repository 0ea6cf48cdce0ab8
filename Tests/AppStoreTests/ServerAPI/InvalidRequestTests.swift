import Foundation
import Testing

@testable import AppStore

// Goal: a request that Apple's rules forbid is refused before it is sent, and the refusal names the rule (AppleFacts
// 3.3 to 3.6). Method: each rule from both sides of its boundary.

@Suite struct InvalidRequestTests {
    private static func field(_ make: () throws(InvalidRequest) -> Void) -> String? {
        do throws(InvalidRequest) {
            try make()
            return nil
        } catch {
            #expect(error.description.hasPrefix(error.field))
            return error.field
        }
    }

    @Test func `3.5: consumption`() {
        typealias Information = ConsumptionInformation
        for isConsented in [true, false] {
            for status in Information.DeliveryStatus.allCases {
                for isAutoRenewable in [true, false] {
                    for percentage in [nil, -1, 0, 1, 99_999, 100_000, 100_001, .max, .min] as [Int?] {
                        for preference in [nil] + Information.RefundPreference.allCases.map(Optional.some) {
                            let isInRange = percentage.map { $0 >= 0 && $0 <= 100_000 } ?? true
                            let isPart = percentage.map { $0 > 0 && $0 < 100_000 } ?? false
                            let isAllowed =
                                isAutoRenewable
                                ? percentage == nil
                                : isInRange && (status == .delivered || percentage ?? 0 == 0)
                                    && (preference != .grantProrated || isPart)
                            let expected =
                                isConsented ? isAllowed ? nil : "consumptionPercentage" : "customerConsented"
                            let field = Self.field { () throws(InvalidRequest) in
                                _ = try Information(
                                    customerConsented: isConsented, sampleContentProvided: true, deliveryStatus: status,
                                    isAutoRenewable: isAutoRenewable, consumptionPercentage: percentage,
                                    refundPreference: preference)
                            }
                            #expect(
                                field == expected,
                                "\(status) \(isAutoRenewable) \(percentage as Any) \(preference as Any)")
                        }
                    }
                }
            }
            let field = Self.field { () throws(InvalidRequest) in
                _ = try ConsumptionInformationV1(
                    customerConsented: isConsented, sampleContentProvided: true, deliveryStatus: .delivered)
            }
            #expect(field == (isConsented ? nil : "customerConsented"))
        }
    }

    @Test func `3.5: version 1 counts as Apple does`() {
        #expect(ConsumptionInformationV1.ConsumptionStatus.allCases.map(\.rawValue) == Array(0...3))
        #expect(ConsumptionInformationV1.Platform.allCases.map(\.rawValue) == Array(0...2))
        #expect(ConsumptionInformationV1.DeliveryStatus.allCases.map(\.rawValue) == Array(0...5))
        #expect(ConsumptionInformationV1.AccountTenure.allCases.map(\.rawValue) == Array(0...7))
        #expect(ConsumptionInformationV1.PlayTime.allCases.map(\.rawValue) == Array(0...7))
        #expect(ConsumptionInformationV1.LifetimeDollars.allCases.map(\.rawValue) == Array(0...7))
        #expect(ConsumptionInformationV1.UserStatus.allCases.map(\.rawValue) == Array(0...4))
        #expect(ConsumptionInformationV1.RefundPreference.allCases.map(\.rawValue) == Array(0...3))
        #expect(RenewalExtension.Reason.allCases.map(\.rawValue) == Array(0...3))
    }

    @Test func `3.3: extensions`() throws {
        for (days, identifier, expected) in [
            (0, "q", "extendByDays"), (1, "q", nil), (90, "q", nil), (91, "q", "extendByDays"),
            (-1, "q", "extendByDays"),
            (1, "", "requestIdentifier"),
        ] as [(Int, String, String?)] {
            let field = Self.field { () throws(InvalidRequest) in
                _ = try RenewalExtension(days: days, reason: .other, requestIdentifier: identifier)
            }
            #expect(field == expected)
        }
        let days = try RenewalExtension(days: 1, reason: .other, requestIdentifier: "q")
        for (product, codes, expected) in [
            ("p", nil, nil), ("p", ["USA"], nil), ("", nil, "productId"), ("p", [], "storefrontCountryCodes"),
            ("p", ["USA", "DE"], "storefrontCountryCodes"), ("p", ["usa"], "storefrontCountryCodes"),
            ("p", [""], "storefrontCountryCodes"),
        ] as [(String, [String]?, String?)] {
            let field = Self.field { () throws(InvalidRequest) in
                _ = try MassRenewalExtension(days, productId: product, storefrontCountryCodes: codes)
            }
            #expect(field == expected)
        }
    }

    @Test func `3.4, 3.6: queries`() {
        let early = Date(timeIntervalSince1970: 1)
        let late = Date(timeIntervalSince1970: 2)
        let never = Date(timeIntervalSince1970: .infinity)
        for (from, before, product, expected) in [
            (early, late, "p", nil), (nil, nil, "p", nil), (late, early, "p", "startDate"),
            (late, late, "p", "startDate"),
            (nil, never, "p", "endDate"), (nil, nil, "", "productId"),
            (Date(timeIntervalSince1970: .nan), nil, "p", "startDate"), (.distantPast, .distantFuture, "p", nil),
        ] as [(Date?, Date?, String, String?)] {
            let field = Self.field { () throws(InvalidRequest) in
                _ = try HistoryQuery(purchasedFrom: from, purchasedBefore: before, productIds: [product])
            }
            #expect(field == expected)
        }
        for (from, to, filter, expected) in [
            (early, late, nil, nil), (late, late, nil, nil), (late, early, nil, "startDate"),
            (early, never, nil, "endDate"), (early, late, .type(""), "notificationType"),
            (early, late, .type("TEST", subtype: ""), "notificationSubtype"),
            (early, late, .transaction(id: ""), "transactionId"),
        ] as [(Date, Date, NotificationHistoryQuery.Filter?, String?)] {
            let field = Self.field { () throws(InvalidRequest) in
                _ = try NotificationHistoryQuery(from: from, to: to, filter: filter)
            }
            #expect(field == expected)
        }
        #expect(NotificationHistoryQuery.reach(in: .production) == .seconds(180 * 86_400))
        #expect(NotificationHistoryQuery.reach(in: .sandbox) == .seconds(30 * 86_400))
    }
}
