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

    @Test func `a new field of another type than documented costs nobody a purchase`() async throws {
        let fields =
            #","offerPeriod":1,"billingPlanType":{},"previousOriginalTransactionId":[],"commitmentInfo":"x","#
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
        #expect(commitment?.billingPeriodNumber == nil && commitment?.expiresDate == nil)
    }

    @Test(arguments: ["1e300", "-1e300", "253402300800000", "-62167219200001", "9223372036854775807"])
    func `a date that no calendar or no database knows is malformed, and no crash`(_ date: String) async throws {
        for field in ["expiresDate", "revocationDate", "originalPurchaseDate"] {
            let jws = try authority.sign(Payload.transaction(extra: #","\#(field)":\#(date)"#))
            #expect(await verifier.refusal(of: jws) == .malformed)
        }
        let fields = try JSON(parsing: Array(#"{"a":"\#(date)"}"#.utf8)).object
        #expect(throws: FieldMismatch.self) { try fields?.lenientDate("a") }
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

    @Test(arguments: [
        #""transactionId":1"#, #""productId":null"#, #""productId":[]"#, #""quantity":"1""#, #""quantity":1.5"#,
        #""quantity":1e30"#, #""purchaseDate":"1780000000000""#, #""signedDate":{}"#, #""isUpgraded":"true""#,
        #""appAccountToken":7"#, #""price":"1990""#, #""bundleId":true"#, #""environment":0"#,
    ])
    func `a field of the wrong type is malformed, not a crash`(_ field: String) async throws {
        let key = String(field.dropFirst().prefix { $0 != "\"" })
        var payload = #"{"bundleId":"com.example.game","environment":"Production"}"#
        let fields = ["transactionId", "productId", "bundleId", "environment"].filter { $0 != key }.map { name in
            #""\#(name)":"\#(name == "bundleId" ? Payload.bundleId : name == "environment" ? "Production" : "1")""#
        }
        payload = "{\((fields + [field]).joined(separator: ","))}"
        #expect(await verifier.refusal(of: try authority.sign(payload)) == .malformed)
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

    @Test func `each of the four subjects names the app, and none is no notification of ours`() async throws {
        let app = #""bundleId":"com.example.game","appAppleId":1234567890"#
        for (data, environment) in [
            (#""summary":{\#(app),"environment":"Sandbox"}"#, StoreEnvironment.sandbox),
            (#""appData":{\#(app),"environment":"Production"}"#, .production),
            (#""externalPurchaseToken":{\#(app),"externalPurchaseId":"SANDBOX_1"}"#, .sandbox),
            (#""externalPurchaseToken":{\#(app),"externalPurchaseId":"1"}"#, .production),
        ] {
            #expect(try await verifier.notification(try sign(data)).environment == environment)
        }
        #expect(await verifier.refusal(ofNotification: try sign(#""version2":1"#)) == .wrongApp)
        #expect(
            await verifier.refusal(ofNotification: try sign(#""data":{"bundleId":"x","environment":"Sandbox"}"#))
                == .wrongApp)
        #expect(await verifier.refusal(ofNotification: try sign(#""data":7"#)) == .malformed)
    }
}
