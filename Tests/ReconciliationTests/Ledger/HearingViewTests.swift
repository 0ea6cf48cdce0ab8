import Foundation
import Postgres
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: the views, metrics and statements about notifications, subscriptions and revocations say what the rows say.
/// Method: rows written by SQL on a database of its own.
@Suite(.timeLimit(.minutes(4))) struct HearingViewTests {
    private static let place = Statements.NotificationPlace(appID: "game", environment: "Production")

    private static func notification(
        _ type: String = "DID_RENEW", app: String = "'game'", state: String = "received", due: String = "now()",
        at: String = "now()", repeats: Int = 0
    ) -> String {
        """
        insert into notifications (id, version, app_id, bundle_id, environment, type, transaction_id, payload,
          payload_sha256, state, reason, due_at, settled_at, received_at, repeats)
        values (gen_random_uuid(), 2, \(app), 'com.example.game', 'Production', '\(type)', 't1', 'secret', '', '\(state)',
          \(state == "held" ? "'unknown'" : "null"), \(state == "ended" ? "null" : due),
          \(state == "ended" ? "now()" : "null"), \(at), \(repeats))
        """
    }

    private static func start(_ lab: LedgerLab) async throws {
        _ = try await lab.ledger.run(
            Statements.rememberApp, .init(appID: "game", configurationHash: [1], isLive: true))
    }

    @Test("S3-52: notifications with their states, and how many are open; of another's app too, and no payload")
    func notifications() async throws {
        try await LedgerLab.with { lab in
            try await Self.start(lab)
            for sql in [
                Self.notification(due: "now() - interval '90 seconds'", repeats: 2), Self.notification(state: "ended"),
                Self.notification(state: "held"), Self.notification("NEW", app: "null", state: "held"),
            ] { try await lab.run(sql) }
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', coalesce(app_id, '-'), type, state, nullif(reason, ''), repeats)
                    from v_notifications order by 1
                    """) == [
                        "- NEW held unknown 0", "game DID_RENEW ended 0", "game DID_RENEW held unknown 0",
                        "game DID_RENEW received 2",
                    ])
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', coalesce(app_id, '-'), state, notifications, overdue_seconds between 90 and 150)
                    from v_open_notifications order by 1
                    """) == ["- held 1 f", "game held 1 f", "game received 1 t"])
            let rows = try await lab.texts("select to_json(v)::text from v_notifications v")
            #expect(rows.count == 4 && rows.allSatisfy { !$0.contains("secret") })

            let registry = PrometheusRegistry()
            let watch = Watch(ledger: lab.ledger, logger: .silent, metrics: registry)
            try await watch.measureNotifications()
            for line in [
                #"{app="game",state="received"} 1"#, #"{app="game",state="held"} 1"#, #"{app="game",state="parked"} 0"#,
                #"{app="unknown",state="held"} 1"#,
            ] {
                #expect(registry.text.contains("makegood_open_notifications\(line)"), "\(registry.text)")
            }
        }
    }

    @Test("P38: what is usual comes from the days that are over, without tests; the row of a test says who asks")
    func health() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            let health = """
                select concat_ws(' ', environment, health, coalesce(last_type, '-'), usual_gap_seconds::int, days, due)
                from v_notification_health order by 1
                """
            #expect(try await lab.texts(health) == ["Production never - 0 0", "Sandbox never - 0 0"])
            // Two a day, six hours apart, for forty days, and a test between them.
            try await lab.run(
                """
                insert into notifications (id, version, app_id, environment, type, payload_sha256, due_at, received_at)
                select gen_random_uuid(), 2, 'game', 'Production', type, '', now(),
                  (date_trunc('day', now() at time zone 'UTC') - make_interval(days => d, hours => -h)) at time zone 'UTC'
                from generate_series(1, 40) d, (values ('DID_RENEW', 3), ('TEST', 6), ('DID_RENEW', 9)) v(type, h)
                """)
            for _ in 0..<2 { _ = try await lab.ledger.run(Statements.countNotificationDays, Self.place) }
            #expect(try await lab.number("select count(*) from notification_days") == 30)
            #expect(
                try await lab.texts("select distinct received || ' ' || longest_gap_seconds from notification_days")
                    == ["2 64800"])
            #expect(try await lab.texts(health).first == "Production heard DID_RENEW 64800 30 120")

            #expect(try await lab.ledger.run(Statements.claimNotificationTest, Self.place) == [true])
            #expect(try await lab.ledger.run(Statements.claimNotificationTest, Self.place) == [], "another one asks")
            #expect(try await lab.texts(health).first?.hasPrefix("Production heard") == true)
            _ = try await lab.ledger.run(Statements.noteNotificationTest, .init(place: Self.place, token: "t"))
            #expect(try await lab.texts(health).first?.hasPrefix("Production asked DID_RENEW") == true)
            try await lab.run("update notification_tests set asked_at = now() - interval '11 minutes'")
            #expect(try await lab.texts(health).first?.hasPrefix("Production silent") == true)
            let facts = try #require(
                try await lab.ledger.run(Statements.notificationHealth, ()).first { $0.heardAt != nil })
            #expect(facts.place == Self.place && facts.usualGap == 64_800 && facts.days == 30)
            #expect(facts.testProblem == nil && facts.heardType == "DID_RENEW")

            let since = Date.now.addingTimeInterval(-60)
            #expect(try await lab.ledger.run(Statements.arrivedNotificationTest, (Self.place, since)).isEmpty)
            try await lab.run(Self.notification("TEST"))
            #expect(
                try await lab.ledger.run(Statements.arrivedNotificationTest, (Self.place, since)).map(\.state)
                    == ["received"])
            #expect(try await lab.texts(health).first?.hasPrefix("Production heard TEST") == true)
            _ = try await lab.ledger.run(Statements.noteNotificationTest, .init(place: Self.place, token: nil))
            #expect(
                try await lab.texts("select test_problem from v_notification_health order by 1 desc").first == "no_url")
        }
    }

    @Test("A subscription as it was told last, and what Apple took back, with the goods and what was consumed")
    func subscriptionsAndRevocations() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, renewal, renewal_signed_at, state,
                  product_id, transaction_id, expires_at, told_user_id, steps)
                values ('game', 'Production', 'o1',
                  '{"renewsAutomatically": false, "nextProductID": "gold", "priceConsent": "pending"}', now(), 'in_grace',
                  'silver', 't1', now() + interval '1 day', 'u1', 2),
                  ('game', 'Production', 'o2', null, null, null, null, null, null, null, 0)
                """)
            try await lab.run(
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                select gen_random_uuid(), 'game', type, 'u1', 't1', receipt_id, '{}'
                from grants, (values ('subscription.renewed'), ('subscription.in_grace')) v(type)
                """)
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', original_transaction_id, user_id, product_id, state, renews, next_product_id,
                      price_consent, events, last_event) from v_subscriptions
                    """) == ["o1 u1 silver in_grace f gold pending 2 subscription.in_grace"])

            try await lab.run(
                """
                insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason, takes_back,
                  percentage, goods, at)
                values ('t1', 1, 'game', 'Production', 'u1', 'revoked', 'refunded', true, 50000,
                    '[{"item": "coin", "amount": 30}]', now()),
                  ('t1', 2, 'game', 'Production', 'u1', 'reinstated', 'refunded', true, 0,
                    '[{"item": "coin", "amount": 30}]', now())
                """)
            try await lab.run(
                """
                insert into consumption_reports (transaction_id, reported_at, app_id, percentage, at)
                values ('t1', now() - interval '1 hour', 'game', 10000, now()), ('t1', now(), 'game', 25500, now())
                """)
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', ordinal, product_id, kind, percentage::float8, goods #>> '{0,amount}',
                      consumed::float8, is_last) from v_revocations order by ordinal
                    """) == ["1 coins revoked 50 30 25.5 f", "2 coins reinstated 0 30 25.5 t"])

            let registry = PrometheusRegistry()
            try await Watch(ledger: lab.ledger, logger: .silent, metrics: registry).measureRevocations()
            #expect(registry.text.contains(#"makegood_recent_revocations{app="game",reason="refunded"} 1"#))
            #expect(registry.text.contains(#"makegood_recent_revocations{app="game",reason="upgraded"} 0"#))
        }
    }
}
