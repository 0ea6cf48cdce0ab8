import Foundation
import Testing

@testable import AppStore
@testable import Encoding

// Goal: a value that Apple adds tomorrow costs nobody a purchase, and no payload crashes the process (AppleFacts 0).
// Method: signed payloads with one oddity each, through the whole verifier.

@Suite struct SignedModelTests {
    let authority: TestAuthority
    let verifier: SignedDataVerifier

    init() throws {
        authority = try TestAuthority()
        verifier = try authority.verifier(environments: [.production, .sandbox, .xcode])
    }

    @Test func `every documented field is read`() async throws {
        let fields = #"""
            ,"webOrderLineItemId":"w","subscriptionGroupIdentifier":"g","originalPurchaseDate":1000,"expiresDate":2000,
            "appAccountToken":"7E3FB204-6E3A-4C5E-9F0A-0123456789AB","inAppOwnershipType":"PURCHASED",
            "revocationDate":3000,"revocationReason":1,"revocationType":"REFUND_PRORATED","revocationPercentage":67932,
            "isUpgraded":true,"offerType":2,"offerIdentifier":"o","offerDiscountType":"ONE_TIME","storefront":"USA",
            "storefrontId":"143441","transactionReason":"RENEWAL","currency":"USD","price":9007199254740993,
            "appTransactionId":"a"
            """#
        let transaction = try await verifier.transaction(try authority.sign(Payload.transaction(extra: fields)))
        #expect(transaction.originalTransactionId == "2000000000000001")
        #expect(transaction.webOrderLineItemId == "w")
        #expect(transaction.subscriptionGroupIdentifier == "g")
        #expect(transaction.type == "Consumable")
        #expect(transaction.purchaseDate == Date(timeIntervalSince1970: 1_779_999_000))
        #expect(transaction.originalPurchaseDate == Date(timeIntervalSince1970: 1))
        #expect(transaction.expiresDate == Date(timeIntervalSince1970: 2))
        #expect(transaction.appAccountToken == UUID(uuidString: "7e3fb204-6e3a-4c5e-9f0a-0123456789ab"))
        #expect(transaction.inAppOwnershipType == "PURCHASED")
        #expect(transaction.revocationDate == Date(timeIntervalSince1970: 3))
        #expect(transaction.revocationReason == 1)
        #expect(transaction.revocationType == "REFUND_PRORATED")
        #expect(transaction.revocationPercentage == 67932)
        #expect(transaction.isUpgraded == true)
        #expect(transaction.offerType == 2)
        #expect(transaction.offerIdentifier == "o")
        #expect(transaction.offerDiscountType == "ONE_TIME")
        #expect(transaction.storefront == "USA")
        #expect(transaction.storefrontId == "143441")
        #expect(transaction.transactionReason == "RENEWAL")
        #expect(transaction.currency == "USD")
        #expect(transaction.price == 9_007_199_254_740_993, "beyond what a Double can hold")
        #expect(transaction.appTransactionId == "a")
    }

    @Test func `fields of 2025 and 2026 are read`() async throws {
        let fields = #"""
            ,"offerPeriod":"P1M","billingPlanType":"MONTHLY","previousOriginalTransactionId":"9","currency":"USD",
            "commitmentInfo":{"billingPeriodNumber":3,"totalBillingPeriods":12,"commitmentExpiresDate":5000,
            "commitmentPrice":119880},"advancedCommerceInfo":{"taxRate":"0.2","items":[{"SKU":"s","price":1}]}
            """#
        let transaction = try await verifier.transaction(try authority.sign(Payload.transaction(extra: fields)))
        #expect(transaction.offerPeriod == "P1M")
        #expect(transaction.billingPlanType == "MONTHLY")
        #expect(transaction.previousOriginalTransactionId == "9")
        #expect(transaction.commitment?.billingPeriodNumber == 3)
        #expect(transaction.commitment?.totalBillingPeriods == 12)
        #expect(transaction.commitment?.expiresDate == Date(timeIntervalSince1970: 5))
        #expect(transaction.commitment?.price == 119_880)
        #expect(transaction.advancedCommerceInfo == #"{"items":[{"SKU":"s","price":1}],"taxRate":"0.2"}"#)

        let payload = #"""
            {"originalTransactionId":"1","environment":"Production","signedDate":1780000000000,"priceIncreaseStatus":1,
            "offerType":4,"offerIdentifier":"o","offerDiscountType":"FREE_TRIAL","offerPeriod":"P3D",
            "renewalPrice":4990,"currency":"EUR","eligibleWinBackOfferIds":["a","b"],
            "renewalBillingPlanType":"BILLED_UPFRONT","commitmentInfo":{"commitmentAutoRenewProductId":"p",
            "commitmentAutoRenewStatus":0,"commitmentRenewalBillingPlanType":"MONTHLY","commitmentRenewalDate":6000,
            "commitmentRenewalPrice":59880},"advancedCommerceInfo":{"period":"P1M"}}
            """#
        let renewal = try await verifier.renewalInfo(try authority.sign(payload))
        #expect(renewal.priceIncreaseStatus == 1)
        #expect(renewal.offerType == 4)
        #expect(renewal.offerIdentifier == "o")
        #expect(renewal.offerDiscountType == "FREE_TRIAL")
        #expect(renewal.offerPeriod == "P3D")
        #expect(renewal.renewalPrice == 4990)
        #expect(renewal.currency == "EUR")
        #expect(renewal.eligibleWinBackOfferIds == ["a", "b"])
        #expect(renewal.renewalBillingPlanType == "BILLED_UPFRONT")
        #expect(renewal.commitment?.autoRenewProductId == "p")
        #expect(renewal.commitment?.autoRenewStatus == 0)
        #expect(renewal.commitment?.renewalBillingPlanType == "MONTHLY")
        #expect(renewal.commitment?.renewalDate == Date(timeIntervalSince1970: 6))
        #expect(renewal.commitment?.renewalPrice == 59_880)
        #expect(renewal.advancedCommerceInfo == #"{"period":"P1M"}"#)
    }

    @Test func `seats and bundles are read, under the server's names and StoreKit's`() async throws {
        let fields = #"""
            ,"quantity":12,"additionalTransactionReason":"SEAT_ADDITION","invitationManagement":"APPLE",
            "multiSeatInfo":{"revokedSeatQuantity":2,"priceTiers":[{"price":990,"quantity":10},
            {"price":500,"quantity":2}]},
            "bundleProductId":"b","bundleTransactionID":"3","bundleOriginalTransactionId":"2"
            """#
        let body = Payload.transaction(extra: fields).replacing(#""quantity":1,"#, with: "")
        let transaction = try await verifier.transaction(try authority.sign(body))
        #expect(transaction.quantity == 12)
        #expect(transaction.additionalTransactionReason == "SEAT_ADDITION")
        #expect(transaction.multiSeatInfo?.revokedSeatQuantity == 2)
        #expect(transaction.multiSeatInfo?.invitationManagement == "APPLE")
        #expect(transaction.multiSeatInfo?.priceTiers?.map(\.quantity) == [10, 2])
        #expect(transaction.multiSeatInfo?.priceTiers?.first?.price == 990)
        #expect(transaction.bundle?.productId == "b" && transaction.bundle?.transactionId == "3")
        #expect(transaction.bundle?.originalTransactionId == "2")
        #expect(transaction.bundle?.subscriptionGroupIdentifier == nil)
        let plain = try await verifier.transaction(try authority.sign(Payload.transaction()))
        #expect(plain.bundle == nil && plain.multiSeatInfo == nil && plain.additionalTransactionReason == nil)
        let odd = #","multiSeatInfo":{"priceTiers":[1],"revokedSeatQuantity":"2"},"additionalTransactionReason":{}"#
        let read = try await verifier.transaction(try authority.sign(Payload.transaction(extra: odd)))
        #expect(read.multiSeatInfo?.priceTiers == nil && read.multiSeatInfo?.revokedSeatQuantity == 2)
        #expect(read.additionalTransactionReason == nil)

        let renewal = try await verifier.renewalInfo(
            try authority.sign(
                #"{"originalTransactionId":"1","environment":"Production","signedDate":1780000000000,"#
                    + #""renewalQuantity":10,"multiSeatInfo":{"renewalPriceTiers":[{"price":990,"quantity":10}]},"#
                    + #""bundleSubscriptionGroupID":"g","willUnbundle":true}"#))
        #expect(renewal.renewalQuantity == 10)
        #expect(renewal.renewalPriceTiers?.first?.quantity == 10)
        #expect(renewal.bundle?.subscriptionGroupIdentifier == "g" && renewal.willUnbundle == true)
    }

    @Test func `a new field of another type than documented costs nobody a purchase`() async throws {
        let fields =
            #","offerPeriod":[],"billingPlanType":{},"previousOriginalTransactionId":[],"commitmentInfo":"x","#
            + #""advancedCommerceInfo":[1]"#
        let transaction = try await verifier.transaction(try authority.sign(Payload.transaction(extra: fields)))
        #expect(transaction.offerPeriod == nil && transaction.billingPlanType == nil)
        #expect(transaction.previousOriginalTransactionId == nil && transaction.commitment == nil)
        #expect(transaction.advancedCommerceInfo == nil)
        let inner =
            #","commitmentInfo":{"billingPeriodNumber":"3","commitmentExpiresDate":1e300,"totalBillingPeriods":2}"#
        let commitment = try await verifier.transaction(try authority.sign(Payload.transaction(extra: inner)))
            .commitment
        #expect(commitment?.totalBillingPeriods == 2)
        #expect(commitment?.billingPeriodNumber == 3 && commitment?.expiresDate == nil)
    }

    @Test(arguments: ["1e300", "-1e300", "253402300800000", "-62167219200001", "9223372036854775807"])
    func `a date that no calendar or no database knows is unknown, and no crash`(_ date: String) async throws {
        for field in ["expiresDate", "originalPurchaseDate"] {
            let jws = try authority.sign(Payload.transaction(extra: #","\#(field)":\#(date)"#))
            let transaction = try await verifier.transaction(jws)
            #expect(transaction.expiresDate == nil && transaction.originalPurchaseDate == nil)
        }
        // That Apple took the purchase back cannot be passed over.
        let revoked = try authority.sign(Payload.transaction(extra: #","revocationDate":\#(date)"#))
        await #expect(throws: VerificationFailure(.malformed, isGenuine: true)) {
            try await verifier.transaction(revoked)
        }
        #expect(AppleFields(["a": .string(date)]).date("a") == nil)
    }

    @Test func `unknown values and fields, fractions, negative dates and odd tokens decode`() async throws {
        let jws = try authority.sign(
            Payload.transaction(
                extra: #","inAppOwnershipType":"BORROWED","transactionReason":"GIFT","offerType":99,"new":{"a":[1]},"#
                    + #""expiresDate":1780000000123.4567,"originalPurchaseDate":-62135769600000,"#
                    + #""appAccountToken":"not a uuid","isUpgraded":null,"revocationReason":7.0"#))
        let transaction = try await verifier.transaction(jws)
        #expect(transaction.inAppOwnershipType == "BORROWED")
        #expect(transaction.transactionReason == "GIFT")
        #expect(transaction.offerType == 99)
        #expect(transaction.appAccountToken == nil)
        #expect(transaction.isUpgraded == nil)
        #expect(transaction.revocationReason == 7)
        #expect(abs((transaction.expiresDate?.timeIntervalSince1970 ?? 0) - 1_780_000_000.1234567) < 0.000_01)
        #expect((transaction.originalPurchaseDate ?? .now) < Date(timeIntervalSince1970: 0))
    }

    /// Other JSON types than documented, by field, and what the field then says; nil: unknown.
    private static let otherTypes: [(field: String, value: String, read: String?)] =
        [
            ("transactionId", "9007199254740993", "9007199254740993"), ("productId", "7", "7"),
            ("originalTransactionId", "2000000000000001", "2000000000000001"), ("originalTransactionId", "1.5", nil),
            // The digits of a number beyond 64 bits are lost when it is read: it becomes no id.
            ("originalTransactionId", "20000000000000000001", nil), ("originalTransactionId", "{}", nil),
            ("webOrderLineItemId", "7", "7"), ("webOrderLineItemId", "true", nil), ("type", "3", "3"),
            ("quantity", #""3""#, "3"), ("quantity", "3.0", "3"), ("quantity", "1.5", nil), ("quantity", "true", nil),
            ("quantity", #""three""#, nil), ("price", #""1990""#, "1990"), ("price", "[]", nil),
            ("storefrontId", "1", "1"),
            ("isUpgraded", #""true""#, "true"), ("isUpgraded", "1", "true"), ("isUpgraded", #""0""#, "false"),
            ("isUpgraded", #""False""#, "false"), ("isUpgraded", "2", nil), ("isUpgraded", "{}", nil),
            ("expiresDate", #""1780000000000""#, "1780000000000"), ("expiresDate", "{}", nil),
            ("expiresDate", #""2026-05-28T20:26:40Z""#, "1780000000000"), ("expiresDate", #""soon""#, nil),
            ("expiresDate", #""2026-05-28 20:26:40 Etc/GMT""#, "1780000000000"), ("expiresDate", "true", nil),
            ("revocationDate", #""1780000000000""#, "1780000000000"), ("revocationReason", #""1""#, "1"),
            ("revocationType", "7", "7"), ("revocationPercentage", #""50000""#, "50000"), ("offerType", #""3""#, "3"),
            ("appAccountToken", "7", nil), ("purchaseDate", #""1779999000000""#, "1779999000000"),
            ("purchaseDate", "{}", nil), ("signedDate", #""1780000000000""#, "1780000000000"),
            ("signedDate", "{}", nil),
            ("environment", "0", "0"), ("environment", "{}", nil),
            ("commitmentInfo", #""{\"billingPeriodNumber\":3}""#, "3"), ("commitmentInfo", "7", nil),
        ]

    @Test(arguments: otherTypes)
    func `F15: a field of another type is read or unknown`(_ field: String, _ value: String, _ read: String?) throws {
        let base = try JSON(parsing: Array(Payload.transaction().utf8)).object
        var payload = try #require(base)
        payload[field] = try JSON(parsing: Array(value.utf8))
        let transaction = try SignedTransaction(payload)
        func milliseconds(_ date: Date?) -> String? { date.map { String(Int64($0.timeIntervalSince1970 * 1000)) } }
        let seen: String? =
            switch field {
            case "transactionId": transaction.transactionId
            case "productId": transaction.productId
            case "originalTransactionId": transaction.originalTransactionId
            case "webOrderLineItemId": transaction.webOrderLineItemId
            case "type": transaction.type
            case "quantity": transaction.quantity.map { String($0) }
            case "price": transaction.price.map { String($0) }
            case "storefrontId": transaction.storefrontId
            case "isUpgraded": transaction.isUpgraded.map { String($0) }
            case "expiresDate": milliseconds(transaction.expiresDate)
            case "revocationDate": milliseconds(transaction.revocationDate)
            case "revocationReason": transaction.revocationReason.map { String($0) }
            case "revocationType": transaction.revocationType
            case "revocationPercentage": transaction.revocationPercentage.map { String($0) }
            case "offerType": transaction.offerType.map { String($0) }
            case "appAccountToken": transaction.appAccountToken?.uuidString
            case "purchaseDate": milliseconds(transaction.purchaseDate)
            case "signedDate": milliseconds(transaction.signedDate)
            case "environment": transaction.environment?.rawValue
            case "commitmentInfo": transaction.commitment?.billingPeriodNumber.map { String($0) }
            default: "no such field"
            }
        #expect(seen == read)
        // Nothing else has changed.
        var same = transaction
        let plain = try SignedTransaction(try #require(base))
        if field != "productId" { #expect(same.productId == plain.productId) }
        if field != "purchaseDate" { #expect(same.purchaseDate == plain.purchaseDate) }
        same.transactionId = plain.transactionId
        #expect(same.bundleId == plain.bundleId)
    }

    @Test(arguments: [
        #""transactionId":null"#, #""transactionId":1.5"#, #""transactionId":20000000000000000001"#,
        #""transactionId":"""#, #""productId":null"#, #""productId":[]"#, #""bundleId":true"#, #""bundleId":"""#,
        #""revocationDate":{}"#, #""revocationDate":"soon""#,
    ])
    func `a purchase that cannot be judged without a field is Apple's all the same`(_ field: String) async throws {
        let key = String(field.dropFirst().prefix { $0 != "\"" })
        let known: [(String, String)] = [
            ("transactionId", "1"), ("productId", "p"), ("bundleId", Payload.bundleId), ("environment", "Production"),
        ]
        let fields =
            known.filter { $0.0 != key }.map { #""\#($0.0)":"\#($0.1)""# }
            + [#""signedDate":1780000000000"#, field]
        let jws = try authority.sign("{\(fields.joined(separator: ","))}")
        await #expect(throws: VerificationFailure(.malformed, isGenuine: true)) { try await verifier.transaction(jws) }
        // What Apple did not sign is no such purchase.
        let forged = try TestAuthority().sign("{\(fields.joined(separator: ","))}")
        await #expect(throws: VerificationFailure(.untrustedRoot)) { try await verifier.transaction(forged) }
    }

    @Test func `F23: a transaction that names no environment is Apple's, of an unknown environment`() async throws {
        for environment in ["", #","environment":null"#, #","environment":{}"#, #","environment":"""#] {
            let payload =
                #"{"transactionId":"1","productId":"p","bundleId":"\#(Payload.bundleId)","#
                + #""purchaseDate":1779999000000,"signedDate":1780000000000\#(environment)}"#
            #expect(try await verifier.transaction(try authority.sign(payload)).environment == nil, "\(environment)")
        }
    }

    @Test func `renewal info and app transactions are verified by their own rules`() async throws {
        let renewal = try await verifier.renewalInfo(try authority.sign(Payload.renewalInfo()))
        #expect(renewal.autoRenewStatus == 1)
        #expect(renewal.environment == .production)

        let appTransaction = try await verifier.appTransaction(try authority.sign(Payload.appTransaction()))
        #expect(appTransaction.appAppleId == 1_234_567_890)
        #expect(appTransaction.environment == .production)
        for (payload, expected) in [
            (Payload.appTransaction(appAppleId: "1"), VerificationFailure.Reason.wrongApp),
            (Payload.appTransaction(appAppleId: "0", environment: "Nowhere"), .wrongEnvironment),
        ] {
            let jws = try authority.sign(payload)
            await #expect(throws: VerificationFailure(expected)) { try await verifier.appTransaction(jws) }
        }
        let sandbox = try authority.sign(Payload.appTransaction(appAppleId: "0", environment: "Sandbox"))
        #expect(try await verifier.appTransaction(sandbox).environment == .sandbox)
    }
}

@Suite struct SignedNotificationTests {
    let authority: TestAuthority
    let verifier: SignedDataVerifier

    init() throws {
        authority = try TestAuthority()
        verifier = try authority.verifier()
    }

    private func sign(_ data: String) throws -> String { try authority.sign(Payload.notification(data: data)) }

    @Test func `a notification is verified with all it holds`() async throws {
        let jws = try sign(
            Payload.notificationData(
                transaction: try authority.sign(Payload.transaction()),
                renewalInfo: try authority.sign(Payload.renewalInfo())))
        let notification = try await verifier.notification(jws)
        #expect(notification.notificationType == "ONE_TIME_CHARGE")
        #expect(notification.notificationUUID == "u-1")
        #expect(notification.environment == .production)
        #expect(notification.transaction?.transactionId == "2000000000000001")
        #expect(notification.renewalInfo?.autoRenewProductId == "p")
        #expect(notification.appTransaction == nil)
        #expect(notification.signedTransactionInfo != nil)
    }

    @Test func `P18: forged or foreign data inside a genuine notification is refused`() async throws {
        let foreign = try TestAuthority().sign(Payload.transaction())
        let otherApp = try authority.sign(Payload.transaction(bundleId: "com.example.other"))
        for (inner, expected) in [
            (foreign, VerificationFailure.Reason.untrustedRoot), (otherApp, .wrongApp), ("x", .malformed),
        ] {
            let jws = try sign(Payload.notificationData(transaction: inner))
            #expect(await verifier.refusal(ofNotification: jws) == expected)
        }
    }

    @Test func `the app's number counts in production only`() async throws {
        for (id, environment, expected) in [
            ("1234567890", "Production", nil), ("1", "Production", .wrongApp), (nil, "Production", .wrongApp),
            ("1", "Sandbox", nil), (nil, "Sandbox", nil), ("1234567890", "Nowhere", .wrongEnvironment),
        ] as [(String?, String, VerificationFailure.Reason?)] {
            let jws = try sign(Payload.notificationData(appAppleId: id, environment: environment))
            #expect(await verifier.refusal(ofNotification: jws) == expected, "\(id ?? "-") \(environment)")
        }
        let numberless = try authority.verifier(appAppleId: nil)
        let jws = try sign(Payload.notificationData())
        #expect(await numberless.refusal(ofNotification: jws) == .wrongApp)
    }

    @Test func `each of the five objects names the app, and none is no notification of ours`() async throws {
        let app = #""bundleId":"com.example.game","appAppleId":1234567890"#
        for (data, environment) in [
            (#""summary":{\#(app),"environment":"Sandbox"}"#, StoreEnvironment.sandbox),
            (#""appData":{\#(app),"environment":"Production"}"#, .production),
            (#""externalPurchaseToken":{\#(app),"externalPurchaseId":"SANDBOX_1"}"#, .sandbox),
            (#""externalPurchaseToken":{\#(app),"externalPurchaseId":"1"}"#, .production),
            (#""unclaimInfo":{\#(app),"environment":"Production","unclaimSeatIds":[]}"#, .production),
            (#""unclaimInfo":{"unclaimSeatIds":[]},"data":{\#(app),"environment":"Sandbox"}"#, .sandbox),
        ] {
            #expect(try await verifier.notification(try sign(data)).environment == environment)
        }
        for data in [
            #""version2":1"#, #""data":{"bundleId":"x","environment":"Sandbox"}"#, #""data":7"#,
            #""externalPurchaseToken":{"externalPurchaseId":"1"}"#,
        ] {
            #expect(await verifier.refusal(ofNotification: try sign(data)) == .wrongApp, "\(data)")
        }
    }

    @Test func `P44: whatever Apple signed as a notification is read, whosever it is`() async throws {
        for (data, bundleId) in [
            (#""sixth":{"a":1}"#, nil), (#""data":7"#, nil), (#""unclaimInfo":{"unclaimSeatIds":["x"]}"#, nil),
            (#""data":{"bundleId":"com.example.other","environment":"Nowhere"}"#, "com.example.other"),
        ] as [(String, String?)] {
            let notification = try await verifier.notification(ofAnyApp: try sign(data))
            #expect(notification.notificationType == "ONE_TIME_CHARGE" && notification.bundleId == bundleId, "\(data)")
        }
        let nameless = try await verifier.notification(ofAnyApp: try authority.sign(#"{"notificationUUID":"u"}"#))
        #expect(nameless.notificationType.isEmpty && nameless.notificationUUID == "u")
        let idless = try await verifier.notification(ofAnyApp: try authority.sign(#"{"notificationType":"NEW"}"#))
        #expect(idless.notificationType == "NEW" && idless.notificationUUID.isEmpty)
    }

    @Test func `of the data inside, a forged one refuses all if it must hold itself, and a strange one is left out`()
        async throws
    {
        let forged = try TestAuthority().sign(Payload.transaction())
        let otherApp = try authority.sign(Payload.transaction(bundleId: "com.example.other"))
        let good = try authority.sign(Payload.transaction())
        for (inner, expected) in [
            (good, nil), (otherApp, nil), ("x", nil), (forged, .untrustedRoot),
            (String(good.dropLast(4)) + "AAAA", .signature),
        ] as [(String, VerificationFailure.Reason?)] {
            let jws = try sign(Payload.notificationData(transaction: inner))
            do throws(VerificationFailure) {
                let notification = try await verifier.notification(ofAnyApp: jws)
                #expect(expected == nil)
                #expect((notification.transaction == nil) == (inner != good))
            } catch {
                #expect(error.reason == expected)
            }
            // Apple's signature over the whole covers what is inside.
            let covered = try await verifier.notification(ofAnyApp: jws, verifiesInside: false)
            #expect((covered.transaction == nil) == (inner == otherApp || inner == "x"))
        }
    }

    @Test func `P18: a forged notification is refused, and other signed data is no notification`() async throws {
        let good = try sign(Payload.notificationData())
        let changed = String(good.dropLast(4)) + "AAAA"
        let other = try TestAuthority().sign(Payload.notification(data: Payload.notificationData()))
        for (jws, expected) in [
            (changed, VerificationFailure.Reason.signature), (other, .untrustedRoot), ("", .malformed),
            ("a.b.c", .malformed),
            (try authority.sign(Payload.transaction()), .malformed), (try authority.sign("[]"), .malformed),
        ] {
            for verifiesInside in [true, false] {
                await #expect(throws: VerificationFailure(expected)) {
                    try await verifier.notification(ofAnyApp: jws, verifiesInside: verifiesInside)
                }
            }
        }
    }

    @Test func `a notification may be four times as large as one transaction, and no larger`() async throws {
        let filler = String(repeating: "x", count: 150_000)
        let large = try sign(#""new":"\#(filler)","# + Payload.notificationData())
        #expect(large.utf8.count > 2 * CompactJWS.sizeLimit)
        #expect(try await verifier.notification(large).environment == .production)
        #expect(try await verifier.notification(ofAnyApp: large).environment == .production)
        let huge = try sign(#""new":"\#(filler)\#(filler)","# + Payload.notificationData())
        await #expect(throws: VerificationFailure(.malformed)) { try await verifier.notification(ofAnyApp: huge) }
    }
}
