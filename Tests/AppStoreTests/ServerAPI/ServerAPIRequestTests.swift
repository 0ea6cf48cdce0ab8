import Foundation
import Testing

@testable import AppStore

// Goal: a request is exactly what Apple documents, to the byte: method, path, query, headers, body (AppleFacts 3.2 to
// 3.6). Method: every method of the client against a real HTTP server, the expected request written down as Apple has
// it.

@Suite struct ServerAPIRequestTests {
    struct Exchange: Sendable, CustomTestStringConvertible {
        let endpoint: ServerAPIClient.Endpoint
        let method: String
        let path: String
        var body: String?
        var answer = "{}"
        var status = 200
        let ask: @Sendable (ServerAPIClient) async throws -> Void

        var testDescription: String { "\(method) \(path)" }
    }

    private static let production: [StoreEnvironment] = [.production]
    private static let token = UUID(uuidString: "7E3FB204-6E3A-4C5E-9F0A-0123456789AB")!
    private static func date(_ seconds: TimeInterval) -> Date { Date(timeIntervalSince1970: seconds) }

    static let exchanges: [Exchange] = [
        Exchange(
            endpoint: .transactionInfo, method: "GET", path: "/inApps/v1/transactions/2000000000000001",
            answer: #"{"signedTransactionInfo":"a.b.c"}"#
        ) {
            let answer = try await $0.transactionInfo("2000000000000001", in: production)
            #expect(answer.value == "a.b.c")
        },
        Exchange(
            endpoint: .appTransactionInfo, method: "GET", path: "/inApps/v1/transactions/appTransactions/71",
            answer: #"{"signedAppTransactionInfo":"a.b.c"}"#
        ) {
            let answer = try await $0.appTransactionInfo(ofCustomerWith: "71", in: production)
            #expect(answer.value == "a.b.c")
        },
        Exchange(
            endpoint: .finishTransaction, method: "POST", path: "/inApps/v1/transactions/1/finish", answer: ""
        ) { try await $0.finishTransaction("1", in: production) },
        Exchange(
            endpoint: .setAppAccountToken, method: "PUT", path: "/inApps/v1/transactions/1/appAccountToken",
            body: #"{"appAccountToken":"7e3fb204-6e3a-4c5e-9f0a-0123456789ab"}"#, answer: ""
        ) { try await $0.setAppAccountToken(token, ofPurchase: "1", in: production) },
        Exchange(
            endpoint: .orderLookUp, method: "GET", path: "/inApps/v1/lookup/MQ3X5ABCD",
            answer: #"{"status":0,"signedTransactions":["a.b.c"]}"#
        ) {
            let order = try await $0.lookUpOrder("MQ3X5ABCD").value
            #expect(order.status == .valid && order.signedTransactions == ["a.b.c"])
        },

        // History: the first page, a page after it, and every filter.
        Exchange(
            endpoint: .transactionHistory, method: "GET", path: "/inApps/v2/history/1",
            answer: #"{"signedTransactions":[],"hasMore":false}"#
        ) { for try await _ in $0.transactionHistory(ofCustomerWith: "1", in: production) {} },
        Exchange(
            endpoint: .transactionHistory, method: "GET",
            path: "/inApps/v2/history/1?startDate=1780000000123&endDate=1790000000000&productId=com.example.a"
                + "&productId=b%26c&productType=AUTO_RENEWABLE&productType=CONSUMABLE&subscriptionGroupIdentifier=g"
                + "&inAppOwnershipType=FAMILY_SHARED&revoked=false&sort=DESCENDING&revision=r%2B1%3D",
            answer: #"{"signedTransactions":[],"hasMore":false}"#
        ) {
            let query = try HistoryQuery(
                purchasedFrom: date(1_780_000_000.123), purchasedBefore: date(1_790_000_000),
                productIds: ["com.example.a", "b&c"], productTypes: [.autoRenewable, .consumable],
                subscriptionGroupIdentifiers: ["g"], ownershipType: "FAMILY_SHARED", revoked: false, sort: .descending)
            for try await _ in $0.transactionHistory(ofCustomerWith: "1", query, after: "r+1=", in: production) {}
        },
        Exchange(
            endpoint: .refundHistory, method: "GET", path: "/inApps/v2/refund/lookup/1",
            answer: #"{"signedTransactions":[],"hasMore":false,"revision":"r"}"#
        ) { for try await _ in $0.refundHistory(ofCustomerWith: "1", in: production) {} },
        Exchange(
            endpoint: .refundHistory, method: "GET", path: "/inApps/v2/refund/lookup/1?revision=r",
            answer: #"{"signedTransactions":[],"hasMore":false}"#
        ) { for try await _ in $0.refundHistory(ofCustomerWith: "1", after: "r", in: production) {} },

        // Subscriptions.
        Exchange(endpoint: .subscriptionStatuses, method: "GET", path: "/inApps/v1/subscriptions/1") {
            let answer = try await $0.subscriptionStatuses(ofCustomerWith: "1", in: production)
            #expect(answer.value.groups.isEmpty)
        },
        Exchange(
            endpoint: .subscriptionStatuses, method: "GET", path: "/inApps/v1/subscriptions/1?status=1&status=4"
        ) {
            _ = try await $0.subscriptionStatuses(ofCustomerWith: "1", only: [.active, .gracePeriod], in: production)
        },
        Exchange(
            endpoint: .extendRenewalDate, method: "PUT", path: "/inApps/v1/subscriptions/extend/1",
            body: #"{"extendByDays":90,"extendReasonCode":3,"requestIdentifier":"q"}"#
        ) {
            let days = try RenewalExtension(days: 90, reason: .serviceIssue, requestIdentifier: "q")
            _ = try await $0.extendRenewalDate(ofSubscription: "1", days, in: production)
        },
        Exchange(
            endpoint: .extendRenewalDates, method: "POST", path: "/inApps/v1/subscriptions/extend/mass",
            body: #"{"extendByDays":1,"extendReasonCode":0,"productId":"pass","requestIdentifier":"q"}"#,
            answer: #"{"requestIdentifier":"q"}"#
        ) {
            let days = try RenewalExtension(days: 1, reason: .undeclared, requestIdentifier: "q")
            let all = try MassRenewalExtension(days, productId: "pass")
            let answer = try await $0.extendRenewalDates(all, in: .production)
            #expect(answer.value == "q")
        },
        Exchange(
            endpoint: .extendRenewalDates, method: "POST", path: "/inApps/v1/subscriptions/extend/mass",
            body: #"{"extendByDays":1,"extendReasonCode":1,"productId":"pass","requestIdentifier":"q","#
                + #""storefrontCountryCodes":["USA","DEU"]}"#
        ) {
            let days = try RenewalExtension(days: 1, reason: .customerSatisfaction, requestIdentifier: "q")
            let some = try MassRenewalExtension(days, productId: "pass", storefrontCountryCodes: ["USA", "DEU"])
            let answer = try await $0.extendRenewalDates(some, in: .production)
            #expect(answer.value == nil)
        },
        Exchange(
            endpoint: .renewalDateExtension, method: "GET",
            path: "/inApps/v1/subscriptions/extend/mass/com.example.pass/q-1"
        ) {
            _ = try await $0.massRenewalExtensionStatus(
                ofProduct: "com.example.pass", requestIdentifier: "q-1", in: .production)
        },

        // Consumption.
        Exchange(
            endpoint: .sendConsumption, method: "PUT", path: "/inApps/v2/transactions/consumption/1",
            body: #"{"consumptionPercentage":67932,"customerConsented":true,"deliveryStatus":"DELIVERED","#
                + #""refundPreference":"GRANT_PRORATED","sampleContentProvided":false}"#,
            answer: "", status: 202
        ) {
            let information = try ConsumptionInformation(
                customerConsented: true, sampleContentProvided: false, deliveryStatus: .delivered,
                isAutoRenewable: false, consumptionPercentage: 67_932, refundPreference: .grantProrated)
            try await $0.sendConsumption(of: "1", information, in: production)
        },
        Exchange(
            endpoint: .sendConsumption, method: "PUT", path: "/inApps/v2/transactions/consumption/1",
            body: #"{"consumptionPercentage":0,"customerConsented":true,"deliveryStatus":"UNDELIVERED_SERVER_OUTAGE","#
                + #""sampleContentProvided":true}"#,
            answer: "", status: 202
        ) {
            let information = try ConsumptionInformation(
                customerConsented: true, sampleContentProvided: true, deliveryStatus: .serverOutage,
                isAutoRenewable: false)
            try await $0.sendConsumption(of: "1", information, in: production)
        },
        Exchange(
            endpoint: .sendConsumption, method: "PUT", path: "/inApps/v2/transactions/consumption/1",
            body: #"{"customerConsented":true,"deliveryStatus":"UNDELIVERED_OTHER","#
                + #""refundPreference":"GRANT_PRORATED","sampleContentProvided":true}"#,
            answer: "", status: 202
        ) {
            let information = try ConsumptionInformation(
                customerConsented: true, sampleContentProvided: true, deliveryStatus: .other, isAutoRenewable: true,
                refundPreference: .grantProrated)
            try await $0.sendConsumption(of: "1", information, in: production)
        },
        Exchange(
            endpoint: .sendConsumptionV1, method: "PUT", path: "/inApps/v1/transactions/consumption/1",
            body: #"{"accountTenure":0,"appAccountToken":"","consumptionStatus":0,"customerConsented":true,"#
                + #""deliveryStatus":0,"lifetimeDollarsPurchased":0,"lifetimeDollarsRefunded":0,"platform":0,"#
                + #""playTime":0,"refundPreference":0,"sampleContentProvided":false,"userStatus":0}"#,
            answer: "", status: 202
        ) {
            let information = try ConsumptionInformationV1(
                customerConsented: true, sampleContentProvided: false, deliveryStatus: .delivered)
            try await $0.sendConsumption(of: "1", information, in: production)
        },
        Exchange(
            endpoint: .sendConsumptionV1, method: "PUT", path: "/inApps/v1/transactions/consumption/1",
            body: #"{"accountTenure":7,"appAccountToken":"7e3fb204-6e3a-4c5e-9f0a-0123456789ab","#
                + #""consumptionStatus":3,"customerConsented":true,"deliveryStatus":5,"lifetimeDollarsPurchased":7,"#
                + #""lifetimeDollarsRefunded":1,"platform":1,"playTime":6,"refundPreference":2,"#
                + #""sampleContentProvided":true,"userStatus":4}"#,
            answer: "", status: 202
        ) {
            var information = try ConsumptionInformationV1(
                customerConsented: true, sampleContentProvided: true, deliveryStatus: .other)
            information.accountTenure = .longer
            information.appAccountToken = token
            information.consumptionStatus = .fullyConsumed
            information.lifetimeDollarsPurchased = .atLeast2000
            information.lifetimeDollarsRefunded = .none
            information.platform = .apple
            information.playTime = .upTo16Days
            information.refundPreference = .decline
            information.userStatus = .limited
            try await $0.sendConsumption(of: "1", information, in: production)
        },

        // Notifications.
        Exchange(
            endpoint: .requestTestNotification, method: "POST", path: "/inApps/v1/notifications/test",
            answer: #"{"testNotificationToken":"t_1"}"#
        ) {
            let answer = try await $0.requestTestNotification(in: .production)
            #expect(answer.value == "t_1")
        },
        Exchange(
            endpoint: .testNotification, method: "GET",
            path: "/inApps/v1/notifications/test/ce3af791-365e-4c60-841b-1674b43c1609_1609709489000"
        ) {
            _ = try await $0.testNotification(
                "ce3af791-365e-4c60-841b-1674b43c1609_1609709489000", in: .production)
        },
        Exchange(
            endpoint: .notificationHistory, method: "POST", path: "/inApps/v1/notifications/history",
            body: #"{"endDate":1780000001000,"startDate":1780000000000}"#
        ) {
            let query = try NotificationHistoryQuery(from: date(1_780_000_000), to: date(1_780_000_001))
            for try await _ in $0.notificationHistory(query, in: .production) {}
        },
        Exchange(
            endpoint: .notificationHistory, method: "POST",
            path: "/inApps/v1/notifications/history?paginationToken=p%2F1",
            body: #"{"endDate":1780000001000,"notificationSubtype":"VOLUNTARY","notificationType":"EXPIRED","#
                + #""onlyFailures":true,"startDate":1780000000000}"#
        ) {
            let query = try NotificationHistoryQuery(
                from: date(1_780_000_000), to: date(1_780_000_001), filter: .type("EXPIRED", subtype: "VOLUNTARY"),
                onlyFailures: true)
            for try await _ in $0.notificationHistory(query, after: "p/1", in: .production) {}
        },
        Exchange(
            endpoint: .notificationHistory, method: "POST", path: "/inApps/v1/notifications/history",
            body: #"{"endDate":1780000001000,"startDate":1780000000000,"transactionId":"1"}"#
        ) {
            let query = try NotificationHistoryQuery(
                from: date(1_780_000_000), to: date(1_780_000_001), filter: .transaction(id: "1"))
            for try await _ in $0.notificationHistory(query, in: .production) {}
        },
    ]

    @Test(arguments: exchanges) func `a request is exactly Apple's`(_ exchange: Exchange) async throws {
        try await LocalApple.serving({ _ in .json(exchange.answer, status: exchange.status) }) { apple, http in
            try await exchange.ask(try await ServerAPILab.client(http, apple.url))
            #expect(apple.requests.count == 1)
            let asked = try #require(apple.requests.first)
            #expect(asked.method == exchange.method)
            #expect(asked.path == "/production\(exchange.path)")
            #expect(String(decoding: asked.body, as: UTF8.self) == exchange.body ?? "")
            #expect(asked.headers["authorization"]?.hasPrefix("Bearer ") == true)
            #expect(asked.headers["accept"] == "application/json")
            #expect(asked.headers["user-agent"] == "makegood")
            #expect(asked.headers["content-type"] == (exchange.body == nil ? nil : "application/json"))
            // A POST without a body states its length, or a proxy between us and Apple may wait for a body.
            let length = exchange.method == "GET" ? nil : "\(exchange.body?.utf8.count ?? 0)"
            #expect(asked.headers["content-length"] == length)
        }
    }

    @Test func `3.1: the hosts are Apple's`() {
        let credentials = ServerAPIClient.Credentials(issuerId: "i", keyId: "k", privateKeyPEM: "p", bundleId: "b")
        #expect(credentials.productionURL == "https://api.storekit.apple.com")
        #expect(credentials.sandboxURL == "https://api.storekit-sandbox.apple.com")
    }

    @Test func `no endpoint is without its request`() {
        #expect(Set(Self.exchanges.map(\.endpoint)) == Set(ServerAPIClient.Endpoint.allCases))
    }

    @Test func `AppleFacts 3.8: the calls per second of each endpoint, a tenth in the sandbox`() {
        let perSecond: [ServerAPIClient.Endpoint: Double] = [
            .finishTransaction: 50, .appTransactionInfo: 50, .transactionInfo: 50, .transactionHistory: 50,
            .subscriptionStatuses: 50, .sendConsumption: 50, .sendConsumptionV1: 50, .notificationHistory: 50,
            .extendRenewalDate: 20, .setAppAccountToken: 20, .orderLookUp: 10, .refundHistory: 10,
            .extendRenewalDates: 1, .requestTestNotification: 1, .testNotification: 1, .renewalDateExtension: 1,
        ]
        for endpoint in ServerAPIClient.Endpoint.allCases {
            let limit = perSecond[endpoint] ?? .nan
            #expect(endpoint.callsPerSecond(in: .production) == limit, "\(endpoint)")
            #expect(
                endpoint.callsPerSecond(in: .sandbox) == (endpoint == .orderLookUp ? nil : limit / 10), "\(endpoint)")
            #expect(endpoint.callsPerSecond(in: .xcode) == nil)
        }
    }

    @Test func `an id cannot leave its place in the path`() async throws {
        try await LocalApple.serving({ _ in .json(#"{"signedTransactionInfo":"a.b.c"}"#) }) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            for (id, path) in [
                ("a/../b?c#d", "a%2F%2E%2E%2Fb%3Fc%23d"), ("..", "%2E%2E"), (".", "%2E"), ("1 2%", "1%202%25"),
                ("é", "%C3%A9"), ("A-z_9", "A-z_9"), ("com.example", "com.example"), (".a.", "%2Ea%2E"),
                ("a..b", "a%2E%2Eb"),
            ] {
                #expect(id.percentEncoded == path)
                _ = try await client.transactionInfo(id, in: [.production])
                #expect(apple.requests.last?.path == "/production/inApps/v1/transactions/\(path)")
            }
        }
    }

    /// Without its id the path would be another endpoint's.
    @Test func `an empty id is refused as Apple refuses one that is none, and nobody is asked`() async throws {
        try await LocalApple.serving({ _ in .json("{}") }) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            let days = try RenewalExtension(days: 1, reason: .other, requestIdentifier: "q")
            let asks: [(Int64, () async throws(AppStoreFailure) -> Void)] = [
                (
                    4_000_006,
                    { () throws(AppStoreFailure) in _ = try await client.transactionInfo("", in: ServerAPILab.both) }
                ),
                (4_000_006, { () throws(AppStoreFailure) in try await client.finishTransaction("", in: [.sandbox]) }),
                (4_000_000, { () throws(AppStoreFailure) in _ = try await client.lookUpOrder("") }),
                (
                    4_000_008,
                    { () throws(AppStoreFailure) in
                        _ = try await client.extendRenewalDate(ofSubscription: "", days, in: [.sandbox])
                    }
                ),
                (
                    4_000_011,
                    { () throws(AppStoreFailure) in
                        _ = try await client.massRenewalExtensionStatus(
                            ofProduct: "p", requestIdentifier: "", in: .production)
                    }
                ),
                (4_000_020, { () throws(AppStoreFailure) in _ = try await client.testNotification("", in: .sandbox) }),
            ]
            for (code, ask) in asks {
                guard case .failure(let failure) = await ServerAPILab.outcome(ask) else {
                    Issue.record("\(code) was not refused")
                    continue
                }
                #expect(failure == AppStoreFailure(.api(code: APIErrorCode(rawValue: code), httpStatus: 400)))
            }
            #expect(apple.requests.isEmpty)
        }
    }

    @Test func `3.3: what the sandbox does not offer is not asked there`() async throws {
        try await LocalApple.serving({ _ in ServerAPILab.error(4_040_010) }) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            _ = await ServerAPILab.outcome { () throws(AppStoreFailure) in try await client.lookUpOrder("M1") }
            #expect(apple.requests.map(\.path) == ["/production/inApps/v1/lookup/M1"])
        }
    }
}
