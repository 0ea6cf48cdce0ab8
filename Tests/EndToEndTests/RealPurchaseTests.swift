import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// What real purchases look like: ends that are no refunds, one purchase under several ids, other builds of an app,
    /// offers, family members, old proofs. Over HTTP, with real processes.
    @Suite struct RealPurchases {
        private static let catalyst = "maccatalyst.com.example.game"
        private static let clip = "com.example.game.Clip"
        private static let club = "com.example.puzzle.club"
        private static let hat = "com.example.puzzle.hat"

        /// Goal: each is judged as what it is: granted once, held with its facts stored, or rejected with a reason; and
        /// nothing that was rejected for its wrapping is safe to finish (F4, F12, F13, F22).
        /// Method: one deployment. `game` may ask Apple and lists its Mac Catalyst build; `puzzle` has no credentials
        /// for the App Store Server API. Each case has users of its own.
        @Test func eachIsJudgedAsWhatItIs() async throws {
            try await System.run { system in
                try system.configure { file in
                    file.apps[0].bundleIdAliases = [Self.catalyst]
                    file.apps[1].serverApi = nil
                    file.apps[1].writeBackTokens = nil
                    file.apps[1].products += [
                        .init(id: Self.club, type: "autoRenewable", goods: [.init(item: "club", amount: 1)]),
                        .init(id: Self.hat, type: "nonConsumable", goods: [.init(item: "hat", amount: 1)]),
                    ]
                }
                for (app, bundleID, number) in [("catalyst", Self.catalyst, 7), ("clip", Self.clip, 8)] {
                    try system.appStore.store.register(
                        RegisteredApp(app: app, bundleId: bundleID, appAppleId: Int64(number)))
                }
                try await system.startAll()
                try await periodsThatEnded(system)
                try await onePeriodUnderTwoIDs(system)
                try await consumablesUnderOneOriginalID(system)
                try await oldProofs(system)
                try await offersInReceipts(system)
                try await otherBuilds(system)
                try await redeemedWinBackOffer(system)
                try system.configure { file in
                    file.apps[0].legacyReceipts = ["local"]
                    file.apps[1].legacyReceipts = ["local"]
                }
                try await system.reload()
                try await familyInReceipts(system)
            }
        }

        // MARK: F4

        private func periodsThatEnded(_ system: System) async throws {
            let store = system.appStore.store
            func period(
                _ product: String = ConfigurationFile.pass, of original: Sale? = nil, isUpgraded: Bool? = nil
            ) async throws -> Sale {
                try await system.appStore.sell(product) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = original?.purchase.transactionId
                    if original != nil { $0.transactionReason = "PURCHASE" }
                    $0.isUpgraded = isUpgraded
                }
            }
            func signed(_ sale: Sale, _ user: String) async throws -> Client.Answer {
                let jws = try store.sign(sale.purchase.transactionId)
                return try await system.submit(.init(userId: user, signedTransaction: jws), wait: 20)
            }
            // Upgraded: in signed data with a revocation date and without one, and in a receipt with the reason 0. The
            // other product of the chain came an hour before the end or after it: the marks alone tell of the upgrade.
            for (number, hasDate) in [true, false].enumerated() {
                let user = "upgrader-\(number)"
                let basic = try await period(isUpgraded: true)
                let plus = try await period(ConfigurationFile.gold, of: basic)
                if hasDate { try store.refund(basic.purchase.transactionId, Self.upgrade()) }
                system.owe([basic, plus], to: user)
                let old = try await signed(basic, user)
                #expect(old.state == "granted" && old.reason == nil && old.safeToFinish == true, "\(old.text)")
                #expect(try await system.reasons(of: basic)?.contains("ended_by_upgrade") == true)
                #expect(try await signed(plus, user).state == "granted")
                #expect(try await system.reasons(of: plus)?.contains("ended_by_upgrade") != true)
            }
            let listed = try await period()
            try store.refund(listed.purchase.transactionId, Self.upgrade())
            system.owe(listed, to: "upgrader-2")
            let receipt = try await system.submitReceipt(listed, user: "upgrader-2", wait: 20)
            #expect(receipt.state == "granted" && receipt.reason == nil, "\(receipt.text)")
            #expect(try await system.reasons(of: listed)?.contains("ended_by_upgrade") == true)

            // A refund: without the mark, and of an upgraded period for a reason of its own.
            let cancelled = try await period()
            try store.refund(cancelled.purchase.transactionId)
            let refunded = try await system.submitReceipt(cancelled, user: "refunded-1", wait: 20)
            #expect(refunded.state == "rejected" && refunded.reason == "refunded", "\(refunded.text)")
            #expect(refunded.safeToFinish == true)
            for (number, reason) in [0, 1].enumerated() {
                let both = try await period(isUpgraded: true)
                try store.refund(both.purchase.transactionId, RefundRequest(revocationReason: reason))
                let answer = try await signed(both, "refunded-2-\(number)")
                #expect(answer.state == "rejected" && answer.reason == "refunded", "\(answer.text)")
            }
            #expect(try await system.texts("select user_mask from v_refund_rate_by_user") == [])
            #expect(
                try await system.texts(
                    "select ending || ' ' || count(*) from v_ended_purchases group by ending order by 1")
                    == ["refunded 3", "upgraded 2"])
            #expect(try await system.count("select sum(revoked)::bigint from v_goods_by_day") == 3)
        }

        /// An hour after the purchase: no successor explains it.
        private static func upgrade() -> RefundRequest {
            var upgrade = RefundRequest(revocationDate: .minutesAgo(-60))
            upgrade.isUpgrade = true
            return upgrade
        }

        // MARK: F12

        private func onePeriodUnderTwoIDs(_ system: System) async throws {
            let start = Int64.minutesAgo(20) / 1000 * 1000
            /// The same period under an id of its own; Apple names the billing event only where the test says so.
            func period(_ original: Sale?, isNamed: Bool, minutes: Int64) async throws -> Sale {
                try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = original?.purchase.transactionId
                    $0.transactionReason = "PURCHASE"
                    ($0.purchaseDate, $0.expiresDate) = (start, start + minutes * 60_000)
                    if !isNamed { $0.webOrderLineItemId = "" }
                }
            }
            for isNamedFirst in [true, false] {
                let user = "period-\(isNamedFirst)"
                let first = try await period(nil, isNamed: isNamedFirst, minutes: 60)
                let second = try await period(first, isNamed: !isNamedFirst, minutes: 60)
                system.owe(first, to: user)
                #expect(try await system.submit(first, user: user, wait: 20).state == "granted")
                let again = try await system.submit(second, user: user, wait: 20)
                #expect(again.state == "already_granted" && again.safeToFinish == true, "\(again.text)")
            }
            // At the same moment.
            let first = try await period(nil, isNamed: true, minutes: 60)
            let second = try await period(first, isNamed: false, minutes: 60)
            async let one = system.submit(first, user: "period-both", wait: 20)
            async let other = system.submit(second, user: "period-both", wait: 20)
            let states = try await [one.state, other.state]
            #expect(states.sorted() == ["already_granted", "granted"])
            system.owe(states[0] == "granted" ? first : second, to: "period-both")
            // The sandbox renews every few minutes: each end is a period of its own, and two customers may share an end.
            for number in 0..<2 {
                var original: Sale?
                for minutes in [3, 6] as [Int64] {
                    let sale = try await system.appStore.sell(ConfigurationFile.pass) {
                        $0.type = .autoRenewable
                        $0.environment = .sandbox
                        $0.customer = "fast-\(number)"
                        $0.originalTransactionId = original?.purchase.transactionId
                        $0.purchaseDate = start + (minutes - 3) * 60_000
                        $0.expiresDate = start + minutes * 60_000
                        $0.webOrderLineItemId = ""
                    }
                    original = original ?? sale
                    system.owe(sale, to: "tester")
                    // Or the sweep of subscriptions was first: the periods have ended.
                    let state = try await system.submit(sale, user: "tester", wait: 20).state
                    #expect(state == "granted" || original?.purchase != sale.purchase && state == "already_granted")
                }
            }
        }

        // MARK: F13

        private func consumablesUnderOneOriginalID(_ system: System) async throws {
            let start = Int64.minutesAgo(30) / 1000 * 1000
            func coins(_ original: Sale?, milliseconds: Int64) async throws -> Sale {
                try await system.appStore.sell {
                    $0.originalTransactionId = original?.purchase.transactionId
                    $0.purchaseDate = start + milliseconds
                }
            }
            let first = try await coins(nil, milliseconds: 0)
            system.owe(first, to: "collector")
            #expect(try await system.submit(first, user: "collector", wait: 20).state == "granted")
            for isReceipt in [false, true] {
                // A receipt says whole seconds, signed data milliseconds.
                let same = try await coins(first, milliseconds: 900)
                let other = try await coins(first, milliseconds: 60_000)
                func post(_ sale: Sale) async throws -> Client.Answer {
                    try await isReceipt
                        ? system.submitReceipt(sale, user: "collector", wait: 20)
                        : system.submit(sale, user: "collector", wait: 20)
                }
                let again = try await post(same)
                #expect(again.state == "already_granted", "\(again.text)")
                let held = try await post(other)
                #expect(held.state == "held" && held.reason == "review" && held.safeToFinish == true, "\(held.text)")
                let id = other.purchase.transactionId
                #expect(
                    try await system.texts(
                        "select array_to_string(reasons, ',') from outcomes where transaction_id = '\(id)'")
                        == ["key_in_use"])
                #expect(try await system.count("select count(*) from transactions where transaction_id = '\(id)'") == 1)
            }
        }

        // MARK: Old proofs

        private func oldProofs(_ system: System) async throws {
            let store = system.appStore.store
            for (app, product, ago, isAsked) in [
                ("puzzle", ConfigurationFile.riddle, 120.0, false), ("puzzle", ConfigurationFile.riddle, 0, nil),
                ("game", ConfigurationFile.coins, 120, nil),
            ] as [(String, String, Double, Bool?)] {
                let sale = try await system.appStore.sell(product, app: app)
                system.owe(sale, to: "patient")
                let jws = try store.sign(sale.purchase.transactionId, signedDate: .minutesAgo(ago))
                let answer = try await system.submit(
                    .init(appId: app, userId: "patient", signedTransaction: jws), wait: 20)
                #expect(answer.state == "granted", "\(answer.text)")
                #expect(answer.transactions.first?["appleAsked"] as? Bool == isAsked)
                #expect(try await system.reasons(of: sale)?.contains("apple_unasked") ?? false == (isAsked == false))
            }
        }

        // MARK: Offers

        private func offersInReceipts(_ system: System) async throws {
            for (type, isBound) in [(3, false), (2, true)] {
                let user = "subscriber-\(type)"
                let order = try await place(user, Self.club, app: "puzzle", in: system)
                let sale = try await system.appStore.sell(Self.club, app: "puzzle") {
                    $0.type = .autoRenewable
                    ($0.offerType, $0.offerIdentifier) = (type, "SPRING")
                }
                system.owe(sale, to: user)
                let answer = try await system.submitReceipt(sale, user: user, app: "puzzle", wait: 20)
                #expect(answer.state == "granted", "\(answer.text)")
                #expect(try await system.order(of: sale) == (isBound ? "\(order) open_order" : "- poster"))
                #expect(try await system.reasons(of: sale)?.contains("offer_code") == !isBound)
            }
        }

        private func redeemedWinBackOffer(_ system: System) async throws {
            let order = try await place("returner", ConfigurationFile.pass, app: "game", in: system)
            let sale = try await system.appStore.sell(ConfigurationFile.pass) {
                $0.type = .autoRenewable
                ($0.offerType, $0.offerIdentifier) = (4, "BACK")
            }
            system.owe(sale, to: "returner")
            #expect(try await system.submit(sale, user: "returner", wait: 20).state == "granted")
            #expect(try await system.reasons(of: sale) == "win_back_offer")
            #expect(try await system.isOpen(order))
        }

        private func place(
            _ user: String, _ product: String, app: String, in system: System
        ) async throws -> String {
            let id = UUID().uuidString.lowercased()
            try await system.execute(
                """
                insert into orders (id, app_id, user_id, product_id, placed_at, pay_by)
                select '\(id)', '\(app)', '\(user)', '\(product)', at, at + interval '2 days'
                from (select now() - interval '1 minute' as at) t
                """)
            return id
        }

        // MARK: F22

        private func otherBuilds(_ system: System) async throws {
            let store = system.appStore.store
            let (signed, listed, old) = (
                try await system.appStore.sell(app: "catalyst"), try await system.appStore.sell(app: "catalyst"),
                try await system.appStore.sell(app: "catalyst")
            )
            system.owe([signed, listed, old], to: "mac")
            #expect(try await system.submit(signed, user: "mac", wait: 20).state == "granted")
            #expect(try await system.submitReceipt(listed, user: "mac", wait: 20).state == "granted")
            let jws = try store.sign(old.purchase.transactionId, signedDate: .minutesAgo(120))
            #expect(
                try await system.submit(.init(userId: "mac", signedTransaction: jws), wait: 20).state == "granted")
            #expect(system.appStore.calls(about: old).map(\.service) == [.transactionInfo])

            // Not listed: another app's, and support learns what it looks like.
            let clip = try await system.appStore.sell(app: "clip")
            let foreign = try await system.appStore.sell(ConfigurationFile.riddle, app: "puzzle")
            var rejected: [String] = []
            for (sale, looksLikeOne) in [(clip, true), (foreign, false)] {
                for answer in [
                    try await system.submit(sale, user: "clipper", wait: 20),
                    try await system.submitReceipt(sale, user: "clipper", wait: 20),
                ] {
                    #expect(answer.state == "rejected" && answer.reason == "wrong_app", "\(answer.text)")
                    #expect(answer.safeToFinish == false)
                    let told = try await system.client.with(.support).get("/v1/receipts/\(answer.id)/explain")
                    let next = (told.json["next"] as? [String: Any])?["what"] as? String ?? ""
                    #expect(next.contains("its bundle id \(Self.clip) looks like") == looksLikeOne, "\(next)")
                    #expect(next.contains("bundleIdAliases"))
                    if looksLikeOne { rejected.append(answer.id) }
                }
            }
            try system.configureGame { $0.bundleIdAliases?.append(Self.clip) }
            try await system.reload()
            system.owe(clip, to: "clipper")
            try await system.command("support", "rejudge", "--app", "game", "--reason", "wrong_app")
            try await system.wait("the App Clip's purchase to be granted") {
                var states: [String] = []
                for id in rejected { states.append(try await system.client.receipt(id).state) }
                return states.sorted() == ["already_granted", "granted"]
            }
            #expect(
                try await system.texts("select distinct coalesce(variant_bundle_id, '-') from receipts") == ["-"])
        }

        // MARK: Families

        private func familyInReceipts(_ system: System) async throws {
            func sell(_ product: String, app: String = "game", family: String) async throws -> (Sale, Sale) {
                let sale = try await system.appStore.sell(product, app: app) {
                    $0.type = .nonConsumable
                    $0.family = [family]
                }
                return (sale, try #require(sale.family.first))
            }
            let (bought, shared) = try await sell(ConfigurationFile.sword, family: "kid's account")
            system.owe(bought, to: "parent")
            system.owe(shared, promised: 0, to: "kid")
            #expect(try await system.submitReceipt(bought, user: "parent", wait: 20).state == "granted")
            let copy = try await system.submitReceipt(shared, user: "kid", wait: 20)
            #expect(
                copy.state == "granted" && (copy.transactions[0]["goods"] as? [Any])?.isEmpty == true, "\(copy.text)")
            for sale in [bought, shared] {
                #expect(system.appStore.calls(about: sale).map(\.service) == [.transactionInfo])
            }
            // No family shares a consumable: nobody is asked.
            let coins = try await system.appStore.sell()
            system.owe(coins, to: "parent")
            #expect(try await system.submitReceipt(coins, user: "parent", wait: 20).state == "granted")
            #expect(system.appStore.calls(about: coins).isEmpty)
            // Where Apple cannot be asked, the decision says what it does not know.
            let (_, unseen) = try await sell(Self.hat, app: "puzzle", family: "kid's other account")
            system.owe(unseen, to: "kid")
            #expect(
                try await system.submitReceipt(unseen, user: "kid", app: "puzzle", wait: 20).state == "granted")
            #expect(try await system.reasons(of: unseen)?.contains("sharing_unseen") == true)
        }
    }
}
