import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a view that says "money waits" says so when money waits and only then, and shows no user. Method: purchases
/// written by the real statements on a database of its own and moved back in time by SQL, then the rows of each view.
@Suite(.timeLimit(.minutes(4))) struct DashboardViewTests {
    @Test("S1-1: paid and not granted: what Apple confirmed and nobody got, until it is granted or refunded")
    func paidNotGranted() async throws {
        // After the rows are moved back in time, they no longer lie on the day that has counted them.
        try await LedgerLab.with(endsSound: false) { lab in
            let seen = "select concat_ws(' ', transaction_id, state, reason) from v_paid_not_granted order by 1"
            let (held, refunded, granted) = (
                try await lab.post("u1"), try await lab.post("u2"), try await lab.post("u3")
            )
            try await lab.settle(held, .purchase("t1", .held(.productUnknown)))
            try await lab.settle(refunded, .purchase("t2", .held(.review)))
            try await lab.settle(granted, .purchase("t3"))
            #expect(try await lab.texts(seen) == [], "not yet older than the limit")
            // All receipts move by the same time, so that a purchase that was granted at once took these six minutes,
            // however slow the test is.
            try await lab.run("update receipts set received_at = received_at - interval '6 minutes'")
            #expect(try await lab.texts(seen) == ["t1 held product_unknown", "t2 held review"])
            try await lab.run("update transactions set revoked_at = now() where transaction_id = 't2'")
            #expect(try await lab.texts(seen) == ["t1 held product_unknown"])
            try await lab.settle(held, .purchase("t1"))
            #expect(try await lab.texts(seen) == [])
            // The view shows that time to the second, by product and by hour.
            let slow = "select count(*) from v_grant_times where seconds between 359 and 420"
            #expect(try await lab.number(slow) == 2)
            #expect(
                try await lab.number("select sum(grants)::bigint from v_time_to_grant where p50_seconds > 359") == 2)
            // The view also shows receipts that were posted long before.
            try await lab.run("update receipts set received_at = received_at - interval '3 days'")
            #expect(
                try await lab.number("select sum(grants)::bigint from v_time_to_grant where p50_seconds > 259200") == 2)
            try await lab.run("update receipts set received_at = received_at + interval '3 days'")
            #expect(
                try await lab.texts("select concat_ws(' ', product_id, granted, units, revoked) from v_goods_by_day")
                    == ["coins 2 2 1"])
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', state, reason, age, receipts) from v_open_receipts")
                    == ["held review 2: under 10 minutes 1"])
        }
    }

    @Test("S1-1: what an app in shadow holds is another system's to give, until the app is live")
    func paidInShadow() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let seen = "select concat_ws(' ', transaction_id, state, reason) from v_paid_not_granted order by 1"
            for isLive in [false, true, false] {
                _ = try await lab.ledger.run(
                    Statements.rememberApp, .init(appID: "game", configurationHash: [1], isLive: isLive))
                try await lab.settle(
                    try await lab.post("u1"), .purchase(isLive ? "t2" : "t1", .held(isLive ? .review : .shadow)))
                try await lab.run("update receipts set received_at = now() - interval '6 minutes'")
                #expect(try await lab.texts(seen) == (isLive ? ["t1 held shadow", "t2 held review"] : []))
            }
        }
    }

    @Test("A customer who buys for many accounts and a user with refunds are shown, without their ids")
    func customersAndRefunds() async throws {
        try await LedgerLab.with { lab in
            for (number, user) in ["anna", "bert", "anna", "carl"].enumerated() {
                try await lab.settle(try await lab.post(user), .purchase("t\(number)"))
            }
            let customers = "select concat_ws(' ', users, grants) from v_customers_by_users"
            try await lab.run("update grants set customer_id = 'apple-1' where user_id = 'anna'")
            #expect(try await lab.texts(customers) == [], "one account")
            try await lab.run("update grants set customer_id = 'apple-1' where user_id = 'bert'")
            #expect(try await lab.texts(customers) == ["2 3"])
            try await lab.run("insert into merges (app_id, user_id, into_user_id) values ('game', 'bert', 'anna')")
            #expect(try await lab.texts(customers) == [], "two accounts of one person")
            try await lab.run("delete from merges")

            try await lab.run("update transactions set revoked_at = now() where transaction_id = 't0'")
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', refunds, purchases, refund_rate) from v_refund_rate_by_user") == ["1 2 0.5"])
            for view in ["v_customers_by_users", "v_refund_rate_by_user"] {
                let rows = try await lab.texts("select to_json(v)::text from \(view) v")
                #expect(rows.count == 1)
                #expect(rows.allSatisfy { !$0.contains("anna") && !$0.contains("apple-1") }, "\(rows)")
            }
            // The purchase of one user was posted by another user.
            try await lab.run("update grants set binding_source = 'record' where transaction_id = 't0'")
            #expect(try await lab.number("select count(*) from v_refund_rate_by_user") == 0)
        }
    }

    @Test("B15: time to grant by app version and country, and nothing else of what was sent or said")
    func byClient() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            try await lab.run(
                #"update receipts set details = '{"uid": "secret-1", "client": {"appVersion": "1.4.2", "ip": "secret-2"}}'"#
            )
            try await lab.run(#"update transactions set facts = '{"storefront": "DEU", "price": 4242}'"#)
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', app_version, country, grants) from v_time_to_grant_by_client")
                    == ["1.4.2 DEU 1"])
            let rows = try await lab.texts("select to_json(v)::text from v_grant_times v")
            #expect(rows.count == 1)
            #expect(rows.allSatisfy { !$0.contains("secret") && !$0.contains("4242") && !$0.contains("u1") }, "\(rows)")
        }
    }

    @Test("Where Apple sold against the order's country: what was placed within a day, bound or not counted")
    func storefronts() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            for (number, storefront) in ["DEU", "DEU", "TUR", "DEU", "DEU"].enumerated() {
                let user = "u\(number)"
                try await lab.settle(try await lab.post(user), .purchase("t\(number)"))
                try await lab.run(
                    "update transactions set facts = '{\"storefront\": \"\(storefront)\"}' where transaction_id = 't\(number)'"
                )
                // The fourth was placed the day before, the fifth is not bound.
                try await lab.run(
                    """
                    with placed as (
                      insert into orders (id, app_id, user_id, product_id, target, placed_at)
                      values (gen_random_uuid(), 'game', '\(user)', 'coins', '{"country": "DE"}',
                        now() - interval '\(number == 3 ? 25 : 1) hours') returning id)
                    update grants set order_id = (select id from placed)
                    where transaction_id = 't\(number)' and \(number) <> 4
                    """)
            }
            let rows = try await lab.texts(
                """
                select concat_ws(' ', order_country, storefront, purchases, is_usual) from v_storefronts
                order by purchases desc
                """)
            #expect(rows == ["DE DEU 2 t", "DE TUR 1 f"])
        }
    }

    @Test("Every view says in its comment what a row of it is")
    func comments() async throws {
        try await LedgerLab.with { lab in
            let silent = try await lab.texts(
                """
                select relname::text from pg_class where relkind = 'v' and relname like 'v\\_%'
                  and obj_description(oid, 'pg_class') is null
                """)
            #expect(silent == [])
        }
    }
}
