import Adversary
import AppStoreSimulator
import Crypto
import Foundation
import Glibc
import Testing

extension EndToEnd {
    /// Apple tells of purchases by itself, and the owner's own post may come before, beside or after. Real processes,
    /// and notifications that the App Store of the test has signed.
    @Suite struct NotificationTests {
        /// Goal: a purchase that Apple tells of goes to its owner in whatever order notification and post come, and a
        /// post within a day wins against what is known of the Apple customer (P11). Method: of Apple customers whose
        /// only known user is ann, Apple tells of several purchases. Bob posts two within the day, before or after the
        /// notification; nobody posts another, and bob posts it later. A purchase of an unknown customer waits for its
        /// first poster, and one with an order's token waits for nobody.
        @Test func theOwnersPostWinsInEitherOrder() async throws {
            try await System.run { system in
                try await system.startAll()
                func sell(_ customer: String, token: String? = nil) async throws -> Sale {
                    try await system.appStore.sell {
                        $0.customer = customer
                        $0.appAccountToken = token
                    }
                }
                for customer in ["phone", "tablet"] {
                    let known = try await sell(customer)
                    system.owe(known, to: "ann")
                    #expect(try await system.submit(known, user: "ann", wait: 20).state == "granted")
                }
                let (toldFirst, postedFirst, nobodys, strangers) = (
                    try await sell("tablet"), try await sell("tablet"), try await sell("phone"),
                    try await sell("stranger")
                )
                system.owe([toldFirst, postedFirst], to: "bob")
                for sale in [toldFirst, nobodys, strangers] {
                    try await system.notify("ONE_TIME_CHARGE", about: sale)
                    try await system.wait(unposted: sale, toBe: "received unclaimed_yet")
                }
                #expect(try await system.submit(toldFirst, user: "bob", wait: 20).state == "granted")
                try await system.wait(unposted: toldFirst, toBe: "already_granted")
                #expect(try await system.submit(postedFirst, user: "bob", wait: 20).state == "granted")
                try await system.notify("ONE_TIME_CHARGE", about: postedFirst)
                try await system.hearAll()
                #expect(try await system.unposted(postedFirst) == nil, "it was granted when Apple told of it")

                let order = try await system.place("dora")
                let ordered = try await sell("deleted", token: order)
                system.owe(ordered, to: "dora")
                try await system.notify("ONE_TIME_CHARGE", about: ordered)
                try await system.wait(unposted: ordered, toBe: "granted")
                #expect(try await system.order(of: ordered) == "\(order) order_token")
                #expect(
                    try await system.unposted(nobodys) == "received unclaimed_yet", "only proof gives within the day")

                try await system.passADay()
                system.owe(nobodys, to: "ann")
                try await system.wait(unposted: nobodys, toBe: "granted")
                #expect(try await system.order(of: nobodys) == "- customer")
                let late = try await system.submit(nobodys, user: "bob", wait: 20)
                #expect(late.state == "already_granted" && late.reason == "owned_by_another_user")
                #expect(late.safeToFinish == false, "ann has it by less than proof")
                try await system.wait(unposted: strangers, toBe: "held unclaimed")
                system.owe(strangers, to: "carol")
                #expect(try await system.submit(strangers, user: "carol", wait: 20).state == "granted")
                try await system.wait(unposted: strangers, toBe: "already_granted")
                let lanes = try await system.texts(
                    "select distinct lane from receipts where source <> 'post'")
                #expect(lanes == ["unposted"])
            }
        }

        /// Goal: each period of a subscription is granted once to its owner, by whichever way it is heard of first
        /// (S3-24, S3-47, S3-53, S3-55), and a renewal that Apple tells of before the first period waits seconds, not a
        /// day. Method: u1 posts the first period; nobody posts the second; the third comes at once by the client,
        /// twice by a notification, and in a receipt. Of another subscription Apple tells of the second period first.
        @Test func everyPeriodIsGivenOnce() async throws {
            try await System.run { system in
                try await system.startAll()
                func sell(_ number: Int, of chain: Sale? = nil) async throws -> Sale {
                    try await system.appStore.sell(ConfigurationFile.pass) {
                        $0.type = .autoRenewable
                        $0.originalTransactionId = chain?.purchase.transactionId
                        $0.purchaseDate = .minutesAgo(Double(240 - 60 * number))
                        $0.expiresDate = .minutesAgo(Double(180 - 60 * number))
                    }
                }
                let first = try await sell(1)
                system.owe(first, to: "u1")
                #expect(try await system.submit(first, user: "u1", wait: 20).state == "granted")
                let second = try await sell(2, of: first)
                system.owe(second, to: "u1")
                try await system.notify("DID_RENEW", about: second)
                try await system.wait(unposted: second, toBe: "granted")
                #expect(try await system.order(of: second) == "- chain")
                let posted = try await system.submit(second, user: "u1", wait: 20)
                #expect(posted.state == "already_granted" && posted.safeToFinish == true)

                let third = try await sell(3, of: first)
                system.owe(third, to: "u1")
                let notices = try (0..<2).map { _ in try system.appStore.notice("DID_RENEW", about: third) }
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for notice in notices { group.addTask { try await system.notify(notice) } }
                    group.addTask { try await system.submit(third, user: "u1") }
                    group.addTask { try await system.submitReceipt(third, user: "u1") }
                    try await group.waitForAll()
                }
                try await system.settleDebts()

                let other = try await sell(1)
                let renewal = try await sell(2, of: other)
                system.owe([other, renewal], to: "u2")
                try await system.notify("DID_RENEW", about: renewal)
                try await system.wait(unposted: renewal, toBe: "received unclaimed_yet")
                try await system.notify("SUBSCRIBED", "INITIAL_BUY", about: other)
                try await system.wait(unposted: other, toBe: "received unclaimed_yet")
                #expect(try await system.submit(other, user: "u2", wait: 20).state == "granted")
                // The day is 29 minutes here: the grant of the first period made the renewal due.
                try await system.wait(unposted: renewal, toBe: "granted")
                try await system.wait(unposted: other, toBe: "already_granted")
                try await system.hearAll()
            }
        }

        /// Goal: of version 1 the receipt inside is judged like a posted one, and gives each purchase to its owner; a
        /// renewal that is told before the first period is known waits seconds, not a day. A wrong password proves
        /// nothing: 401, and nothing is stored (S3-48).
        /// Method: a renewal before the post of the first period, and a subscription with the token of an order.
        @Test func versionOne() async throws {
            try await System.run { system in
                try await system.startAll()
                func period(_ number: Int, of chain: Sale? = nil) async throws -> Sale {
                    try await system.appStore.sell(ConfigurationFile.pass) {
                        $0.type = .autoRenewable
                        $0.originalTransactionId = chain?.purchase.transactionId
                        $0.purchaseDate = .minutesAgo(Double(240 - 60 * number))
                        $0.expiresDate = .minutesAgo(Double(180 - 60 * number))
                    }
                }
                func standing(_ receipt: String) async throws -> String? {
                    let hash = SHA256.hash(data: Data(receipt.utf8)).map { String(format: "%02x", $0) }.joined()
                    return try await system.texts(
                        """
                        select concat_ws(' ', lane, source, state, reason) from receipts
                        where payload_sha256 = decode('\(hash)', 'hex')
                        """
                    ).first
                }
                let first = try await period(1)
                let second = try await period(2, of: first)
                system.owe([first, second], to: "u1")
                let renewed = try system.appStore.store.receipt(
                    ReceiptRequest(app: "game", transactionIds: [second.purchase.transactionId]))
                let refused = try system.appStore.noticeV1("DID_RENEW", of: first, renewed, password: "not the secret")
                #expect(try await system.postAsApple(refused, "/v1/apple/notifications/v1") == 401)
                #expect(try await system.count("select count(*) from notifications") == 0)
                let notice = try system.appStore.noticeV1("DID_RENEW", of: first, renewed)
                #expect(try await system.postAsApple(notice, "/v1/apple/notifications/v1") == 200)
                try await system.wait("the renewal to wait for its owner") {
                    try await standing(renewed) == "unposted notification received unclaimed_yet"
                }
                #expect(try await system.submit(first, user: "u1", wait: 20).state == "granted")
                // The day is 29 minutes here: the grant of the first period made the receipt due. The sweep of
                // subscriptions asks for the chain of that grant too, and may find the renewal before the receipt's turn.
                try await system.wait("the renewal to be granted") {
                    ["granted", "already_granted"].map { "unposted notification \($0)" }
                        .contains(try await standing(renewed))
                }
                let owners = "select user_id from grants where transaction_id = '\(second.purchase.transactionId)'"
                #expect(try await system.texts(owners) == ["u1"])

                let order = try await system.place("u2")
                let sale = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.appAccountToken = order
                }
                system.owe(sale, to: "u2")
                // The receipt of years of renewals: Apple's body has the limit of a client's.
                var years = ReceiptRequest(app: "game", transactionIds: [sale.purchase.transactionId])
                years.paddingBytes = 1 << 20
                let bought = try system.appStore.store.receipt(years)
                #expect(
                    try await system.postAsApple(
                        try system.appStore.noticeV1("INITIAL_BUY", of: sale, bought), "/v1/apple/notifications/v1")
                        == 200)
                try await system.wait("the order to be fulfilled") {
                    try await standing(bought) == "unposted notification granted"
                }
                #expect(try await system.order(of: sale) == "\(order) order_token")
                try await system.hearAll()
                #expect(
                    try await system.count("select count(*) from notifications where payload like '%password%'") == 0)
            }
        }

        /// Goal: a refund that Apple tells of takes back what was granted, once however often Apple tells it, and a
        /// reversal gives it back. A refund of a purchase that nobody has seen answers its late post, and the reversal
        /// grants it (P32).
        /// Method: notifications about a granted purchase, one of them six times; then a refund before the only post.
        @Test func refundsAreHeard() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                #expect(try await system.submit(sale, user: "u1", wait: 20).state == "granted")
                try system.appStore.store.refund(sale.purchase.transactionId)
                let refund = try await system.notify("REFUND", about: sale)
                for _ in 0..<5 { try await system.notify(refund) }
                try await system.wait("the refund to be told") {
                    try await system.events("purchase.revoked", about: sale).count == 1
                }
                let told = try #require(try await system.events("purchase.revoked", about: sale).first)
                let body = try #require(told["data"] as? [String: Any])
                #expect(told["userId"] as? String == "u1")
                #expect(body["reason"] as? String == "refunded" && body["takeBack"] as? Bool == true)
                #expect(
                    try await system.texts(
                        "select state || ' ' || repeats from notifications where id = '\(refund.id)'")
                        == ["ended 5"])

                _ = try system.appStore.store.reverseRefund(sale.purchase.transactionId)
                try await system.notify("REFUND_REVERSED", about: sale)
                try await system.wait("the reversal to be told") {
                    try await system.events("purchase.reinstated", about: sale).count == 1
                }
                // The refund once more, late: what Apple signed before says nothing any more (P22).
                try await system.notify(refund)
                try await system.hearAll()
                #expect(try await system.events("purchase.revoked", about: sale).count == 1)

                let unseen = try await system.appStore.sell()
                try system.appStore.store.refund(unseen.purchase.transactionId)
                try await system.notify("REFUND", about: unseen)
                try await system.hearAll()
                #expect(try await system.unposted(unseen) == nil)
                // The client's copy is from before the refund.
                let late = try await system.submit(unseen, user: "u2", wait: 20)
                #expect(late.state == "rejected" && late.reason == "refunded" && late.safeToFinish == true)
                system.owe(unseen, to: "u2")
                _ = try system.appStore.store.reverseRefund(unseen.purchase.transactionId)
                try await system.notify("REFUND_REVERSED", about: unseen)
                try await system.settleDebts()
                #expect(try await system.client.receipt(late.id, wait: 20).state == "granted")
            }
        }

        /// Goal: content that this version does not know is kept and judged again by command, and the facts that Apple
        /// signed inside count at once. A notification of an app that is not configured waits for its configuration
        /// (P25). Method: a type from the future about a purchase with an order's token; a notification of a third app,
        /// which is then an alias of the game.
        @Test func whatIsUnknownIsJudgedAgain() async throws {
            try await System.run { system in
                try await system.startAll()
                let order = try await system.place("u1")
                let sale = try await system.appStore.sell { $0.appAccountToken = order }
                system.owe(sale, to: "u1")
                let strange = try system.appStore.strange("PURCHASE_BLESSED", about: sale)
                try await system.notify(strange)
                func standing(_ notice: AppleNotice) async throws -> String? {
                    try await system.texts(
                        "select concat_ws(' ', state, reason, attempt) from notifications where id = '\(notice.id)'"
                    ).first
                }
                try await system.wait("the type to be unknown") {
                    try await standing(strange) == "held type_unknown 0"
                }
                try await system.wait(unposted: sale, toBe: "granted")

                let clip = "com.example.game.Clip"
                try system.appStore.store.register(
                    RegisteredApp(app: "clip", bundleId: clip, appAppleId: 1_234_567_890))
                let other = try await system.place("u2")
                let ofClip = try await system.appStore.sell(app: "clip") { $0.appAccountToken = other }
                system.owe(ofClip, to: "u2")
                let unknown = try system.appStore.notice("ONE_TIME_CHARGE", about: ofClip, app: "clip")
                try await system.notify(unknown)
                #expect(try await standing(unknown) == "held app_unknown 0")
                let test = try await system.notify("TEST")
                try await system.wait("the test to be heard") { try await standing(test) == "ended 0" }

                let counted = try await system.command("notifications", "rejudge", "--dry-run")
                #expect(counted.contains("game PURCHASE_BLESSED type_unknown: 1"))
                #expect(counted.contains("no app ONE_TIME_CHARGE app_unknown: 1"))
                #expect(counted.contains("2 notifications would be judged again"))
                try system.configureGame { $0.bundleIdAliases = [clip] }
                try await system.reload()
                try await system.wait("the app to be known") { try await standing(unknown) == "ended 1" }
                #expect(try await system.command("notifications", "rejudge") == "1 notification is judged again\n")
                try await system.wait("the type to be unknown still") {
                    try await standing(strange) == "held type_unknown 1"
                }
                try await system.wait(unposted: ofClip, toBe: "granted")
            }
        }

        /// Goal: each notification is sent on to the app's other URL as Apple sent it, until that URL has the
        /// notification or a day is over. The notification's effects here do not wait for the other URL. Method: the
        /// other URL is ingest itself, which counts the repeat; then a port where nobody listens. No
        /// scheduler runs at first, because a scheduler has no way out in a closed network.
        @Test func notificationsAreSentOn() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                try await system.start(.worker)
                let url = try system.client.url
                func forward(to address: String) async throws {
                    try system.configureGame { $0.notifications = .init(forwardTo: address) }
                    try await system.reload()
                }
                func forwarding(_ notice: AppleNotice) async throws -> String? {
                    try await system.texts(
                        """
                        select concat_ws(' ', repeats, least(forward_attempts, 2), forward_due_at is null)
                        from notifications where id = '\(notice.id)'
                        """
                    ).first
                }
                try await forward(to: "\(url)/v1/apple/notifications")
                let sent = try await system.notify("TEST")
                try await system.wait("it to be sent on") { try await forwarding(sent) == "1 1 t" }
                try await system.start(.scheduler)

                try await forward(to: "http://127.0.0.1:9/")
                let kept = try await system.notify("TEST")
                try await system.wait("two tries") { try await forwarding(kept) == "0 2 f" }
                try await system.hearAll()
                try await system.execute(
                    "update notifications set received_at = received_at - interval '1 day', forward_due_at = now()"
                        + " where forward_due_at is not null")
                try await system.wait("it to be given up") { try await forwarding(kept) == "0 2 t" }
            }
        }

        /// Goal: a worker that dies between hearing a notification and its ack hears it once, and the purchase is
        /// granted once. Method: a debug hook kills -9 the worker right there; a second worker and a scheduler go on.
        @Test func aWorkerKilledAfterHearingHearsOnce() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let crashing = try await system.start(.worker, ["MAKEGOOD_TEST_CRASH": "after_commit_before_ack"])
                let order = try await system.place("u1")
                let sale = try await system.appStore.sell { $0.appAccountToken = order }
                system.owe(sale, to: "u1")
                let notice = try await system.notify("ONE_TIME_CHARGE", about: sale)
                #expect(try await crashing.end(within: .seconds(30)) == .signal(SIGKILL))
                #expect(
                    try await system.texts("select state from notifications where id = '\(notice.id)'") == ["ended"])
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.settleDebts()
                try await system.wait(unposted: sale, toBe: "granted")
                #expect(try await system.count("select count(*) from receipts") == 1)
            }
        }
    }
}
