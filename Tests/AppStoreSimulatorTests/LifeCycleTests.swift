import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: a subscription goes through every state of its life on the store's clock (B13), each step is told with the
/// type and subtype of AppleFacts 4.3, and all of Apple's answers agree at every moment; refunds of every kind can be
/// simulated (S3-57). Method: real HTTP, the clock moved by the control API.
@Suite struct LifeCycleTests {
    fileprivate static let day: Int64 = 86_400_000

    /// A simulator with one app, and a subscription whose period is 30 days. Nothing is sent.
    private struct Life {
        let store: RunningSimulator
        let id: String
        let receipt: String
        let transaction: SignedTransaction

        static func with(
            _ fields: String = "", grace: GracePeriod? = nil, _ body: (Life) async throws -> Void
        ) async throws {
            try await RunningSimulator.with { store in
                try store.simulator.fault(NotificationFaultRequest(.lose))
                let grace = grace.map { #","gracePeriod":"\#($0.rawValue)""# } ?? ""
                try await store.control(
                    .POST, "apps", #"{"app":"com.example.game","notificationURL":"http://127.0.0.1:9/"\#(grace)}"#)
                let sale = try await store.sell(
                    #"{"app":"com.example.game","productId":"vip","type":"Auto-Renewable Subscription","#
                        + #""period":"P30D","customer":"ann"\#(fields.isEmpty ? "" : ",\(fields)")}"#)
                let life = Life(
                    store: store, id: sale.string("transactionId"), receipt: sale.string("receipt"),
                    transaction: try SignedTransaction(sale.string("signedTransaction")))
                try await body(life)
            }
        }

        var start: Int64 { transaction.int("purchaseDate") ?? 0 }

        /// The end of a period, from 1, if every charge succeeds.
        func end(_ period: Int64) -> Int64 { start + period * 30 * LifeCycleTests.day }

        func advance(_ days: Int) async throws {
            try await store.control(.POST, "clock", #"{"advance":"P\#(days)D"}"#)
        }

        @discardableResult
        func does(_ json: String) async throws -> RunningSimulator.Answer {
            try await store.control(.POST, "subscriptions/\(id)", "{\(json)}")
        }

        func picture(_ original: String? = nil) async throws -> SubscriptionPicture {
            try await SubscriptionPicture(store, original ?? id, receipt: receipt)
        }

        /// Types and subtypes of all notifications so far.
        var told: [String] {
            store.simulator.notifications.map {
                [$0.notificationType, $0.subtype].compactMap(\.self).joined(separator: " ")
            }
        }
    }

    @Test func `it renews by itself, with its family, and each step has its moment`() async throws {
        try await Life.with(#""family":["bob"]"#) { life in
            let plain = try await life.store.sold(#""type":"Auto-Renewable Subscription","customer":"cid""#)
            try await life.advance(95)
            let picture = try await life.picture()
            #expect(picture.status == 1)
            #expect(picture.history.count == 4)
            #expect(picture.expires == life.end(4))
            #expect(picture.renewal.int("recentSubscriptionStartDate") == life.start)
            let periods = life.store.simulator.ledger.filter { $0.originalTransactionId == life.id }
            #expect(periods.map(\.purchaseDate) == [life.start, life.end(1), life.end(2), life.end(3)])
            #expect(periods.map(\.transactionReason) == ["PURCHASE", "RENEWAL", "RENEWAL", "RENEWAL"])
            #expect(Set(periods.compactMap(\.webOrderLineItemId)).count == 4)
            let bobs = life.store.simulator.ledger.filter { $0.account == "bob" }
            #expect(bobs.count == 4 && Set(bobs.map(\.originalTransactionId)).count == 1)
            #expect(bobs.map(\.expiresDate) == periods.map(\.expiresDate))
            let first = ["SUBSCRIBED INITIAL_BUY", "SUBSCRIBED INITIAL_BUY", "SUBSCRIBED INITIAL_BUY"]
            #expect(life.told == first + Array(repeating: "DID_RENEW", count: 6))
            let moments = life.store.simulator.notifications.dropFirst(3).map(\.signedDate)
            let ends = [life.end(1), life.end(2), life.end(3)]
            #expect(moments == [ends[0], ends[0], ends[1], ends[1], ends[2], ends[2]])
            // A subscription that was sold without a period does not live.
            let cid = try await life.store.control(.GET, "subscriptions/\(plain.string("transactionId"))")
            #expect(cid.int("status") == 2 && cid.json["nextStep"] == nil)
        }
    }

    @Test func `it lapses when the customer cancels, and begins again`() async throws {
        try await Life.with { life in
            try await life.does(#""autoRenew":false"#)
            try await life.does(#""autoRenew":true"#)
            try await life.does(#""autoRenew":false"#)
            #expect(try await life.picture().autoRenew == 0)
            try await life.advance(29)
            #expect(try await life.picture().status == 1)
            try await life.advance(1)
            let over = try await life.picture()
            #expect(over.status == 2 && over.intent == 1 && over.autoRenew == 0)
            try await life.advance(90)
            #expect(try await life.picture().history.count == 1)
            let refused = try await life.store.call(
                .POST, "/control/subscriptions/\(life.id)", json: #"{"autoRenew":true}"#)
            #expect(refused.status == 400 && refused.string("field") == "autoRenew")
            try await life.does(#""resubscribe":true,"nextProductId":"pro""#)
            let again = try await life.picture()
            #expect(again.status == 1 && again.product == "pro" && again.autoRenew == 1 && again.intent == nil)
            #expect(again.transaction.string("transactionReason") == "PURCHASE")
            #expect(again.renewal.int("recentSubscriptionStartDate") == again.transaction.int("purchaseDate"))
            try await life.advance(30)
            #expect(try await life.picture().history.count == 3)
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "DID_CHANGE_RENEWAL_STATUS AUTO_RENEW_DISABLED",
                    "DID_CHANGE_RENEWAL_STATUS AUTO_RENEW_ENABLED",
                    "DID_CHANGE_RENEWAL_STATUS AUTO_RENEW_DISABLED", "EXPIRED VOLUNTARY", "SUBSCRIBED RESUBSCRIBE",
                    "DID_RENEW",
                ])
        }
    }

    @Test(arguments: [nil] + GracePeriod.allCases)
    func `a charge that fails: grace, retry for sixty days, the end`(grace: GracePeriod?) async throws {
        try await Life.with(grace: grace) { life in
            try await life.does(#""billing":"fails""#)
            try await life.advance(30)
            let end = life.end(1)
            let days =
                switch grace {
                case nil: 0
                case .threeDays: 3
                case .sixteenDays: 16
                case .twentyEightDays: 28
                }
            var told = ["SUBSCRIBED INITIAL_BUY"]
            if grace != nil {
                let inGrace = try await life.picture()
                #expect(inGrace.status == 4 && inGrace.intent == nil)
                #expect(inGrace.renewal.int("gracePeriodExpiresDate") == end + Int64(days) * Self.day)
                told.append("DID_FAIL_TO_RENEW GRACE_PERIOD")
                try await life.advance(days)
                told.append("GRACE_PERIOD_EXPIRED")
            } else {
                told.append("DID_FAIL_TO_RENEW")
            }
            let inRetry = try await life.picture()
            #expect(inRetry.status == 3 && inRetry.intent == 2)
            #expect(inRetry.renewal.payload["isInBillingRetryPeriod"] as? Bool == true)
            try await life.advance(59 - days)
            #expect(try await life.picture().status == 3)
            try await life.advance(1)
            let over = try await life.picture()
            #expect(over.status == 2 && over.intent == 2 && over.history.count == 1)
            #expect(over.renewal.payload["isInBillingRetryPeriod"] as? Bool == false)
            #expect(life.told == told + ["EXPIRED BILLING_RETRY"])
        }
    }

    @Test func `the charge succeeds later: in grace the renewal date stays, in retry it moves`() async throws {
        try await Life.with(grace: .sixteenDays) { life in
            try await life.does(#""billing":"fails""#)
            try await life.advance(35)
            #expect(try await life.picture().status == 4)
            try await life.does(#""billing":"recovers""#)
            let inGrace = try await life.picture()
            #expect(inGrace.status == 1 && inGrace.expires == life.end(2) && inGrace.intent == nil)
            #expect(inGrace.renewal.payload["isInBillingRetryPeriod"] == nil)
            try await life.does(#""billing":"fails""#)
            try await life.advance(50)
            #expect(try await life.picture().status == 3)
            try await life.does(#""billing":"recovers""#)
            let inRetry = try await life.picture()
            let paid = inRetry.transaction.int("purchaseDate") ?? 0
            #expect(inRetry.status == 1 && paid >= life.start + 85 * Self.day)
            #expect(inRetry.expires == paid + 30 * Self.day)
            // Who cancels in billing retry has nothing to wait for.
            try await life.does(#""billing":"fails""#)
            try await life.advance(50)
            try await life.does(#""autoRenew":false"#)
            let over = try await life.picture()
            #expect(over.status == 2 && over.intent == 1)
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "DID_FAIL_TO_RENEW GRACE_PERIOD", "DID_RENEW BILLING_RECOVERY",
                    "DID_FAIL_TO_RENEW GRACE_PERIOD", "GRACE_PERIOD_EXPIRED", "DID_RENEW BILLING_RECOVERY",
                    "DID_FAIL_TO_RENEW GRACE_PERIOD", "GRACE_PERIOD_EXPIRED",
                    "DID_CHANGE_RENEWAL_STATUS AUTO_RENEW_DISABLED", "EXPIRED VOLUNTARY",
                ])
        }
    }

    @Test func `who cancels in grace keeps access until its end`() async throws {
        try await Life.with(grace: .threeDays) { life in
            try await life.does(#""billing":"fails""#)
            try await life.advance(30)
            try await life.does(#""autoRenew":false"#)
            #expect(try await life.picture().status == 4)
            try await life.advance(3)
            let over = try await life.picture()
            #expect(over.status == 2 && over.intent == 1)
            #expect(life.told.last == "EXPIRED VOLUNTARY")
        }
    }

    @Test func `a price increase needs consent`() async throws {
        try await Life.with { life in
            try await life.does(#""priceIncrease":"pending","nextPrice":1490"#)
            #expect(try await life.picture().renewal.int("priceIncreaseStatus") == 0)
            try await life.does(#""priceIncrease":"accepted""#)
            #expect(try await life.picture().renewal.int("priceIncreaseStatus") == 1)
            try await life.advance(30)
            let dearer = try await life.picture()
            #expect(dearer.transaction.int("price") == 1490)
            #expect(dearer.renewal.payload["priceIncreaseStatus"] == nil)
            try await life.does(#""priceIncrease":"pending""#)
            try await life.advance(30)
            let over = try await life.picture()
            #expect(over.status == 2 && over.intent == 3)
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "PRICE_INCREASE PENDING", "PRICE_INCREASE ACCEPTED", "DID_RENEW",
                    "PRICE_INCREASE PENDING", "EXPIRED PRICE_INCREASE",
                ])
        }
    }

    @Test func `another product: at once, at the next renewal, and back`() async throws {
        try await Life.with(#""family":["bob"]"#) { life in
            try await life.advance(10)
            try await life.does(#""nextProductId":"pro","change":"upgrade","nextPrice":1990"#)
            let pro = try await life.picture()
            #expect(pro.product == "pro" && pro.status == 1 && pro.transaction.int("price") == 1990)
            let replaced = try await life.store.transactionInfo(life.id)
            let old = try SignedTransaction(replaced.string("signedTransactionInfo"))
            #expect(old.payload["isUpgraded"] as? Bool == true && old.int("revocationDate") == nil)
            let secret = life.store.simulator.credentials.sharedSecret
            let verified = try await life.store.verifyReceipt(life.receipt, password: secret)
            let entry = verified.objects("latest_receipt_info").first
            #expect(entry?["is_upgraded"] as? String == "true" && entry?["cancellation_date_ms"] != nil)
            #expect(life.store.simulator.ledger.filter { $0.account == "bob" }.map(\.productId) == ["vip", "pro"])

            try await life.does(#""nextProductId":"vip""#)
            #expect(try await life.picture().renewal.string("autoRenewProductId") == "vip")
            try await life.does(#""nextProductId":"pro""#)
            #expect(try await life.picture().renewal.string("autoRenewProductId") == "pro")
            try await life.does(#""nextProductId":"year","change":"crossgrade","nextPeriod":"P1Y","nextPrice":9990"#)
            #expect(try await life.picture().product == "pro")
            try await life.advance(30)
            let year = try await life.picture()
            #expect(year.product == "year" && year.transaction.int("price") == 9990)
            #expect(year.expires > life.start + 400 * Self.day)
            try await life.does(#""nextProductId":"other","change":"crossgrade""#)
            #expect(try await life.picture().product == "other")
            let bob = ["SUBSCRIBED INITIAL_BUY", "DID_CHANGE_RENEWAL_PREF UPGRADE", "DID_RENEW"]
            #expect(
                life.told.filter { !$0.isEmpty } == [
                    bob[0], bob[0], bob[1], bob[1], "DID_CHANGE_RENEWAL_PREF DOWNGRADE", "DID_CHANGE_RENEWAL_PREF",
                    "DID_CHANGE_RENEWAL_PREF DOWNGRADE", bob[2], bob[2], bob[1], bob[1],
                ])
        }
    }

    @Test func `an offer for the running product, for another one now, and for another one later`() async throws {
        try await Life.with { life in
            try await life.does(#""offerType":2,"offerIdentifier":"winter""#)
            let redeemed = try await life.picture()
            #expect(redeemed.product == "vip" && redeemed.renewal.int("offerType") == 2)
            #expect(redeemed.renewal.string("offerIdentifier") == "winter")
            try await life.does(#""nextProductId":"pro","change":"upgrade","offerType":3,"offerIdentifier":"code""#)
            let pro = try await life.picture()
            #expect(pro.product == "pro" && pro.transaction.int("offerType") == 3)
            try await life.does(#""nextProductId":"vip","offerType":3"#)
            #expect(try await life.picture().renewal.string("autoRenewProductId") == "vip")
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "OFFER_REDEEMED", "OFFER_REDEEMED UPGRADE", "OFFER_REDEEMED DOWNGRADE",
                ])
            let refused = try await life.store.call(
                .POST, "/control/subscriptions/\(life.id)", json: #"{"offerIdentifier":"alone"}"#)
            #expect(refused.status == 400 && refused.text.contains("offerType"))
        }
    }

    @Test func `a product that is no longer for sale`() async throws {
        try await Life.with { life in
            try await life.does(#""unavailable":true"#)
            try await life.advance(30)
            let over = try await life.picture()
            #expect(over.status == 2 && over.intent == 4)
            #expect(life.told.last == "EXPIRED PRODUCT_NOT_FOR_SALE")
        }
    }

    @Test func `into a bundle and out of it: new chains that know the old ones`() async throws {
        try await Life.with { life in
            let joined = try await life.does(#""bundle":"join","nextProductId":"suite","nextGroup":"20000002""#)
            #expect(joined.int("status") == 5)
            #expect(joined.objects("notifications").count == 2)
            let old = try await life.picture()
            #expect(old.status == 5 && old.transaction.int("revocationReason") == 2)
            let suite = try #require(life.store.simulator.ledger.last)
            #expect(suite.productId == "suite" && suite.previousOriginalTransactionId == life.id)
            #expect(suite.originalTransactionId == suite.transactionId && suite.account == "ann")
            try await life.advance(30)
            try await life.store.control(
                .POST, "subscriptions/\(suite.transactionId)", #"{"bundle":"leave","nextProductId":"vip"}"#)
            let back = try #require(life.store.simulator.ledger.last)
            #expect(back.previousOriginalTransactionId == suite.transactionId && back.productId == "vip")
            try await life.advance(30)
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "REVOKE", "SUBSCRIBED INITIAL_BUY", "DID_RENEW", "REVOKE",
                    "SUBSCRIBED INITIAL_BUY", "DID_RENEW",
                ])
        }
    }

    @Test func `seats are added, reduced and refunded`() async throws {
        try await Life.with(#""seats":5"#) { life in
            #expect(life.transaction.int("quantity") == 5)
            let info = life.transaction.payload["multiSeatInfo"] as? [String: Any]
            #expect((info?["priceTiers"] as? [[String: Any]])?.first?["quantity"] as? Int == 5)
            try await life.does(#""seats":8"#)
            let added = try await life.picture()
            #expect(added.transaction.int("quantity") == 3)
            #expect(added.transaction.string("additionalTransactionReason") == "SEAT_ADDITION")
            #expect(added.expires == life.end(1))
            #expect(added.renewal.int("renewalQuantity") == 8)
            let first = try await life.store.transactionInfo(life.id)
            let marked = try SignedTransaction(first.string("signedTransactionInfo"))
            #expect(marked.string("additionalTransactionReason") == "SEAT_ADDITION")
            try await life.does(#""revokedSeats":2"#)
            let refunded = try await life.picture()
            let seats = refunded.transaction.payload["multiSeatInfo"] as? [String: Any]
            #expect(refunded.status == 1 && seats?["revokedSeatQuantity"] as? Int == 2)
            #expect(refunded.renewal.int("renewalQuantity") == 6)
            try await life.does(#""nextSeats":4"#)
            try await life.advance(30)
            let next = try await life.picture()
            #expect(next.transaction.int("quantity") == 4)
            #expect(next.transaction.string("additionalTransactionReason") == nil)
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "DID_CHANGE_RENEWAL_PREF INCREASE_QUANTITY", "REFUND SEATS",
                    "DID_CHANGE_RENEWAL_PREF DECREASE_QUANTITY", "DID_RENEW",
                ])
        }
    }

    @Test func `S3-57: refunds: full, prorated, reversed, declined, and what a family loses`() async throws {
        try await Life.with(#""family":["bob"]"#) { life in
            let bob = try #require(life.store.simulator.ledger.last).transactionId
            try await life.store.control(
                .POST, "purchases/\(life.id)/consumption-request", #"{"consumptionRequestReason":"LEGAL"}"#)
            try await life.store.control(
                .POST, "purchases/\(life.id)/refund",
                #"{"revocationType":"REFUND_PRORATED","revocationPercentage":50000}"#)
            let prorated = try await life.picture()
            #expect(prorated.status == 5 && prorated.transaction.int("revocationPercentage") == 50_000)
            // A refunded subscription does not renew; after the reversal it goes on where it was.
            try await life.advance(40)
            #expect(try await life.picture().history.count == 1)
            try await life.store.control(.DELETE, "purchases/\(life.id)/refund")
            let back = try await life.picture()
            #expect(back.status == 1 && back.history.count == 2 && back.expires == life.end(2))
            let latest = back.transaction.string("transactionId") ?? ""
            try await life.store.control(.POST, "purchases/\(latest)/refund-decline")
            try await life.store.control(.POST, "purchases/\(bob)/refund", #"{"revocationType":"FAMILY_REVOKE"}"#)
            try await life.store.control(.POST, "purchases/\(latest)/refund", #"{"notify":false}"#)
            #expect(
                life.told == [
                    "SUBSCRIBED INITIAL_BUY", "SUBSCRIBED INITIAL_BUY", "CONSUMPTION_REQUEST", "REFUND", "REVOKE",
                    "REFUND_REVERSED", "REFUND_REVERSED", "DID_RENEW", "DID_RENEW", "REFUND_DECLINED", "REVOKE",
                ])
            let coins = try await life.store.sold(#""notify":true"#).string("transactionId")
            _ = try await life.store.sold()
            try await life.store.control(.POST, "purchases/\(coins)/refund", #"{"revocationType":"REFUND_FULL"}"#)
            // A one-time product is told only where its sale says so.
            #expect(life.told.suffix(2) == ["ONE_TIME_CHARGE", "REFUND"])
        }
    }

    @Test func `whatever is wrong is named`() async throws {
        try await Life.with { life in
            for (body, field) in [
                (#"{"name":"x"}"#, "name"), (#"{"billing":"stops"}"#, "billing"), (#"{"period":"PT1S"}"#, "period"),
                (#"{"nextPeriod":"1M"}"#, "nextPeriod"), (#"{"bundle":"join"}"#, "nextProductId"),
                (#"{"change":"upgrade"}"#, "change"), (#"{"seats":0}"#, "seats"), (#"{"seats":2}"#, "seats"),
                (#"{"nextSeats":2}"#, "nextSeats"), (#"{"revokedSeats":1}"#, "revokedSeats"),
                (#"{"resubscribe":true}"#, "resubscribe"), (#"{"resubscribe":false}"#, "resubscribe"),
                (#"{"nextGroup":"1"}"#, "nextGroup"), (#"{"nextPrice":-1}"#, "nextPrice"),
            ] {
                let answer = try await life.store.call(.POST, "/control/subscriptions/\(life.id)", json: body)
                #expect(answer.status == 400 && answer.string("field") == field, "\(body) \(answer.text)")
            }
            let unknown = try await life.store.call(.POST, "/control/subscriptions/1", json: #"{"autoRenew":true}"#)
            #expect(unknown.status == 404 && unknown.string("field") == "id")
            let plain = try await life.store.sold(#""type":"Auto-Renewable Subscription""#).string("transactionId")
            let lifeless = try await life.store.call(
                .POST, "/control/subscriptions/\(plain)", json: #"{"billing":"fails"}"#)
            #expect(lifeless.status == 400 && lifeless.string("field") == "period")
            for (body, field) in [
                (#""period":"P1M""#, "period"), (#""type":"Auto-Renewable Subscription","period":"1""#, "period"),
                (#""seats":2"#, "seats"),
            ] {
                let answer = try await life.store.call(
                    .POST, "/control/purchases", json: #"{"app":"a","productId":"p",\#(body)}"#)
                #expect(answer.status == 400 && answer.string("field") == field, "\(body) \(answer.text)")
            }
            let grace = try await life.store.call(.POST, "/control/apps", json: #"{"app":"a","gracePeriod":"TEN"}"#)
            #expect(grace.status == 400 && grace.string("field") == "gracePeriod")
        }
    }
}
