import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: a notification that Apple could not bring is found in Apple's history, stored as ingest would store it, once,
/// and nothing on Apple's side or ours makes the sweep lose an entry (B2, S1-6). Method: workers between the simulator
/// over real HTTP and a real database, round by round; time passes in the rows.
@Suite(.timeLimit(.minutes(8))) struct NotificationSweepTests {
    @Test("failures of three pages are stored once, as history, not sent on; a test and what arrived are not")
    func failures() async throws {
        let forwarded = ["notifications: {forwardTo: 'https://other.example.com/notifications'}"]
        try await NotificationSweepLab.with(forwarded) { bench in
            try await bench.holdMany(45)
            try bench.hold("TEST")
            try bench.hold(about: try await bench.lab.sell(), arrived: true)
            await bench.sweep()
            #expect(try await bench.stored == 45)
            #expect(
                try await bench.lab.lab.texts(
                    "select distinct concat_ws(' ', came_by, app_id, environment, state) from notifications") == [
                        "notification_history game Production received"
                    ])
            #expect(
                try await bench.lab.lab.number(
                    "select count(*) from notifications where forward_due_at is not null or type = 'TEST'") == 0)
            #expect(try await bench.windows == 0)
            #expect(
                try await bench.lab.lab.texts(
                    "select concat_ws(' ', found, completed_at is not null) from notification_sweeps") == ["45 t"])
            // 180 days in windows of 30, and two pages more.
            #expect(bench.calls == 8)
            #expect(await bench.round() == false)
            #expect(bench.calls == 8, "nothing is due")

            try await bench.anHourPasses()
            try bench.hold(about: try await bench.lab.sell())
            await bench.sweep()
            #expect(try await bench.stored == 46)
            #expect(try await bench.lab.lab.texts("select found::text from notification_sweeps") == ["46"])
        }
    }

    @Test(
        "v_nets: the sweep caught it, alone until Apple brings it; the health of the URL counts what Apple sent alone")
    func nets() async throws {
        try await NotificationSweepLab.with { bench in
            let (told, refunded) = (try await bench.lab.sell(), try await bench.lab.sell())
            let id = try bench.hold(about: told).id
            try bench.lab.store.refund(refunded.purchase.transactionId)
            try bench.hold("REFUND", about: refunded)
            await bench.sweep()
            try await bench.hearAll()
            let nets = "select concat_ws(' ', net, kind, told, caught, alone) from v_nets order by kind"
            #expect(
                try await bench.lab.lab.texts(nets) == [
                    "notification_history end 1 1 1", "notification_history purchase 1 1 1",
                ])
            #expect(
                try await bench.lab.lab.number(
                    "select count(*) from receipts where transaction_id = '\(told.purchase.transactionId)'") == 1)
            let health = "select health from v_notification_health where environment = 'Production'"
            #expect(try await bench.lab.lab.texts(health) == ["never"], "the URL brought nothing")

            let uuid = try #require(UUID(uuidString: id))
            _ = try await bench.lab.lab.ledger.run(Statements.countNotificationRepeats, [uuid])
            #expect(
                try await bench.lab.lab.texts(nets) == [
                    "notification_history end 1 1 1", "notification_history purchase 1 1 0",
                ])
            #expect(try await bench.lab.lab.texts(health) == ["heard"])

            // A day of which only the sweep told is no day of the URL's.
            try await bench.lab.lab.run(
                "update notifications set repeats = 0, received_at = received_at - interval '2 days'")
            let place = Statements.NotificationPlace(appID: VerifyLab.appID, environment: "Production")
            try await bench.lab.lab.run(
                """
                insert into notifications (id, version, app_id, environment, type, payload_sha256, state, settled_at,
                  received_at)
                values (gen_random_uuid(), 2, 'game', 'Production', 'DID_RENEW', '', 'ended', now(), now() - interval '1 day')
                """)
            _ = try await bench.lab.lab.ledger.run(Statements.countNotificationDays, place)
            #expect(
                try await bench.lab.lab.texts(
                    "select concat_ws(' ', received, longest_gap_seconds is null) from notification_days") == ["1 t"])
        }
    }

    @Test(
        "what does not verify is passed over and counted, an operator sees it, and it is read again until it verifies")
    func unverifiable() async throws {
        try await NotificationSweepLab.with { bench in
            try await bench.holdMany(3)
            try bench.lab.store.fault(FaultRequest(.foreignRoot, on: .notificationHistory))
            await bench.sweep()
            #expect(try await bench.windows == 1)
            #expect(try await bench.passedOver == 0, "a page of which nothing verifies is a failure")
            for _ in 1..<NotificationHistorySweep.failuresMax {
                try await bench.passes()
                await bench.sweep()
            }
            #expect(try await bench.passedOver == 3)
            try await bench.measure()
            let series =
                #"makegood_sweep_passed_over{app="game",environment="Production",sweep="notification_history"} 3"#
            #expect(bench.registry.text.split(separator: "\n").contains { $0 == series })
            let unread = "sweep = 'notification_history' and last_complete_at is null"
            #expect(try await bench.lab.lab.number("select count(*) from v_sweeps where \(unread)") == 1)
            #expect(
                try await bench.lab.lab.number(
                    "select count(*) from notification_windows where due_at > now() + interval '50 minutes'") == 1)

            // The failures of the next hour do not wait for it.
            bench.lab.store.clearFaults()
            try await bench.anHourPasses()
            try bench.hold(about: try await bench.lab.sell())
            await bench.sweep()
            #expect(try await bench.stored == 4)
            try await bench.passes()
            await bench.sweep()
            #expect(try await bench.windows == 0)
            #expect(try await bench.passedOver == 0)
            #expect(try await bench.lab.lab.number("select count(*) from v_sweeps where \(unread)") == 0)
        }
    }

    @Test("an entry about whose certificate no responder answers is passed over after five tries, and read again later")
    func unknownStatus() async throws {
        try await NotificationSweepLab.with(namesResponder: true, ocsp: .hard) { bench in
            try await bench.holdMany(2)
            try bench.lab.store.set(ResponderRequest(leaf: .good, manner: .error))
            for failures in 1..<NotificationHistorySweep.failuresMax {
                await bench.sweep()
                #expect(try await bench.lab.lab.number("select max(attempts) from notification_windows") == failures)
                try await bench.passes()
            }
            #expect(try await bench.passedOver == 0)
            await bench.sweep()
            #expect(try await bench.passedOver == 2)
            #expect(try await bench.stored == 0)
            // The failures of the next hour do not wait for it.
            try await bench.anHourPasses()
            #expect(Set(try await bench.plan()) == ["hourly"])

            try bench.lab.store.set(ResponderRequest(leaf: .good, manner: .signed))
            var later = try await NotificationSweepLab(bench.lab, ocsp: .hard)
            try await bench.passes()
            await later.sweep()
            #expect(try await bench.stored == 2)
            #expect(try await bench.windows == 0)
        }
    }

    @Test("a daily question waits while yesterday's is unread, stays due, and then leaves out no time")
    func lateDays() async throws {
        try await NotificationSweepLab.with { bench in
            await bench.sweep()
            let lab = bench.lab.lab
            try await lab.run("update notification_sweeps set all_due_at = now() - interval '1 minute'")
            #expect(try await bench.plan() == ["daily", "daily"])
            #expect(try await lab.number("select count(*) from notification_sweeps where all_due_at > now()") == 1)
            try await lab.run("update notification_sweeps set all_due_at = now() - interval '1 minute'")
            #expect(try await bench.plan() == [], "yesterday is unread")
            #expect(try await lab.number("select count(*) from notification_sweeps where all_due_at > now()") == 0)
            // The failures of the hour are asked for, and the day stays due.
            try await bench.anHourPasses()
            #expect(Set(try await bench.plan()) == ["hourly"])
            #expect(try await lab.number("select count(*) from notification_sweeps where all_due_at > now()") == 0)

            try await lab.run("delete from notification_windows")
            try await lab.run("update notification_sweeps set all_due_at = now() - interval '4 days'")
            #expect(try await bench.plan() == Array(repeating: "daily", count: 6))
            let span = "select (extract(epoch from now() - min(start_at)) / 3600)::int from notification_windows"
            #expect(try await lab.number(span) == 4 * 24 + 39)
            let gaps = """
                select count(*) from notification_windows w where end_at < now() - interval '1 minute'
                  and not exists (select from notification_windows n where n.start_at = w.end_at)
                """
            #expect(try await lab.number(gaps) == 0)
        }
    }

    @Test("a token that lapsed and a page that leads back to itself: the list begins anew in halves, and all is found")
    func badPages() async throws {
        try await NotificationSweepLab.with { bench in
            try await bench.holdMany(45)
            #expect(await bench.round() == true)
            #expect(await bench.round() == true, "the first page of the last window")
            #expect(try await bench.stored == 20)
            var lapsed = FaultRequest(.error, on: .notificationHistory, count: 1)
            lapsed.errorCode = 4_000_017
            try bench.lab.store.fault(lapsed)
            await bench.sweep()
            #expect(
                try await bench.lab.lab.number("select count(*) from notification_windows where page is null") == 2,
                "halves")
            try await bench.passes()
            await bench.sweep()
            #expect(try await bench.stored == 45)
            #expect(try await bench.windows == 0)

            try await bench.anHourPasses()
            try await bench.holdMany(2)
            var circle = FaultRequest(.status, on: .notificationHistory)
            circle.status = 200
            circle.body = #"{"notificationHistory":[],"hasMore":true,"paginationToken":"x"}"#
            try bench.lab.store.fault(circle)
            for _ in 0...NotificationHistorySweep.failuresMax {
                await bench.sweep()
                try await bench.passes()
            }
            #expect(try await bench.windows > 2, "halved")
            bench.lab.store.clearFaults()
            // The token of the circle is none of Apple's.
            for _ in 0..<2 {
                await bench.sweep()
                try await bench.passes()
            }
            await bench.sweep()
            #expect(try await bench.stored == 47)
            #expect(try await bench.windows == 0)

            // An entry that comes twice is stored once.
            let again = try bench.hold(about: try await bench.lab.sell()).signedPayload
            try await bench.anHourPasses()
            var repeated = FaultRequest(.status, on: .notificationHistory, count: 1)
            repeated.status = 200
            repeated.body =
                #"{"notificationHistory":[{"signedPayload":"\#(again)"},{"signedPayload":"\#(again)"}],"hasMore":false}"#
            try bench.lab.store.fault(repeated)
            await bench.sweep()
            #expect(try await bench.stored == 48)
            #expect(try await bench.lab.lab.texts("select found::text from notification_sweeps") == ["48"])
        }
    }

    @Test("a page that never comes in time: after five tries the list begins anew in halves, and all is found")
    func latePages() async throws {
        try await NotificationSweepLab.with { bench in
            await bench.sweep()
            try await bench.anHourPasses()
            try await bench.holdMany(3)
            #expect(try await bench.plan() == ["hourly", "hourly"])
            try await bench.lab.lab.run(
                "delete from notification_windows where end_at < (select max(end_at) from notification_windows)")
            let whole = try await bench.lab.lab.texts("select end_at::text from notification_windows")
            var impatient = try await NotificationSweepLab(bench.lab, scale: 0.01)
            // The worker asks for failures at its start, which wait until those of this hour are read.
            var silence = FaultRequest(.timeout, on: .notificationHistory)
            silence.seconds = 5
            try bench.lab.store.fault(silence)
            await impatient.round()
            #expect(try await bench.lab.lab.texts("select attempts::text from notification_windows") == ["1"])
            try await bench.passes()
            // Three more tries would take a second each.
            try await bench.lab.lab.run(
                "update notification_windows set attempts = \(NotificationHistorySweep.failuresMax - 1)")
            await impatient.round()
            #expect(
                try await bench.lab.lab.texts(
                    "select concat_ws(' ', attempts, page is null) from notification_windows order by start_at")
                    == ["\(NotificationHistorySweep.failuresMax) t", "0 t"])
            #expect(
                try await bench.lab.lab.number(
                    """
                    select count(*) from notification_windows w where exists (select from notification_windows n
                      where n.start_at = w.end_at and n.end_at = '\(whole.joined())')
                    """) == 1, "two halves of the same span")
            #expect(try await bench.stored == 0)
            bench.lab.store.clearFaults()
            try await bench.passes()
            await bench.sweep()
            #expect(try await bench.stored == 3)
            #expect(try await bench.windows == 0)
        }
    }

    @Test("P26: 429 for hours: the sweep rests, writes nothing, and goes on behind the same page")
    func limited() async throws {
        try await NotificationSweepLab.with { bench in
            try await bench.holdMany(25)
            await bench.round()
            await bench.round()
            #expect(try await bench.stored == 20)
            var fault = FaultRequest(.error, on: .notificationHistory)
            fault.errorCode = 4_290_000
            fault.retryAfterMilliseconds = 3_600_000
            try bench.lab.store.fault(fault)
            let before = bench.calls
            for _ in 0..<5 {
                await bench.round()
                try await bench.passes()
            }
            #expect(bench.calls == before + 1)
            #expect(
                try await bench.lab.lab.texts(
                    "select concat_ws(' ', attempts, page is not null) from notification_windows")
                    == ["0 t"])
            // The hours pass: another worker, and a budget that is not stopped any more.
            bench.lab.store.clearFaults()
            try await bench.lab.lab.run("delete from call_budgets")
            var other = try await NotificationSweepLab(bench.lab)
            try await bench.passes()
            await other.sweep()
            #expect(try await bench.stored == 25)
            #expect(try await bench.windows == 0)
        }
    }

    @Test("credentials refused in the middle: the app is halted, no call is made, and the rows stay due until it ends")
    func refused() async throws {
        try await NotificationSweepLab.with { bench in
            try await bench.holdMany(25)
            await bench.round()
            await bench.round()
            var fault = FaultRequest(.status, on: .notificationHistory)
            fault.status = 401
            try bench.lab.store.fault(fault)
            // A worker to which Apple has not proven the key within the last minutes.
            var other = try await NotificationSweepLab(bench.lab)
            await other.round()
            await bench.lab.halts.refresh()
            #expect(bench.lab.halts.haltedApps == [VerifyLab.appID])
            let before = bench.calls
            try await bench.passes()
            await other.round()
            await bench.round()
            #expect(bench.calls == before)
            #expect(
                try await bench.lab.lab.texts(
                    "select concat_ws(' ', attempts, page is not null) from notification_windows")
                    == ["0 t"])
            bench.lab.store.clearFaults()
            try await bench.lab.lab.run("delete from halts")
            await bench.lab.halts.refresh()
            var mended = try await NotificationSweepLab(bench.lab)
            await mended.sweep()
            #expect(try await bench.stored == 25)
            #expect(try await bench.windows == 0)
        }
    }

    @Test("two readers: each page is kept once, and a reader that lost its claim moves nothing")
    func twoReaders() async throws {
        try await NotificationSweepLab.with { bench in
            try await bench.holdMany(70)
            let other = try await NotificationSweepLab(bench.lab)
            await withDiscardingTaskGroup { group in
                for worker in [bench, other] {
                    group.addTask {
                        var worker = worker
                        await worker.sweep()
                    }
                }
            }
            await bench.sweep()
            #expect(try await bench.stored == 70)
            #expect(try await bench.lab.lab.texts("select found::text from notification_sweeps") == ["70"])
            #expect(try await bench.windows == 0)

            try await bench.anHourPasses()
            let ledger = bench.lab.lab.ledger
            #expect(try await bench.plan() == ["hourly", "hourly"])
            let claim = Statements.WindowClaim(builds: [NotificationSweepLab.build], limit: 1, lease: .zero)
            let first = try #require(try await ledger.run(Statements.claimNotificationWindows, claim).first)
            try await bench.lab.lab.run(
                "update notification_windows set due_at = now() - interval '1 s' where id = \(first.id)")
            let second = try #require(try await ledger.run(Statements.claimNotificationWindows, claim).first)
            #expect(second.id == first.id && second.reader == first.reader + 1)
            let sale = try await bench.lab.sell()
            let held = try bench.hold(about: sale)
            let notification = NewNotification(
                id: try #require(UUID(uuidString: held.id)), version: 2, appID: VerifyLab.appID,
                bundleID: VerifyLab.bundleID, environment: "Production", type: "ONE_TIME_CHARGE",
                payload: held.signedPayload, payloadSHA256: [1])
            let late = ReadHistoryPage(
                first, notifications: [notification], next: nil, passedOver: 0, againAfter: .seconds(3600))
            #expect(try await ledger.store(late).count == 1, "what was read is kept")
            #expect(
                try await bench.lab.lab.texts(
                    "select concat_ws(' ', reader, pages) from notification_windows where id = \(first.id)") == [
                        "\(second.reader) 0"
                    ])
            _ = try await ledger.run(Statements.endNotificationWindow, first)
            #expect(
                try await bench.lab.lab.number("select count(*) from notification_windows where id = \(first.id)") == 1)
        }
    }

    /// Goal: a gateway that answered 200 in the place of ingest, an outage of ours, and a database restored to
    /// yesterday lose nothing, though Apple has no failure.
    @Test(
        "all of it is asked for each day, after an outage, and where the database is another server than before",
        arguments: [
            ("daily", "all_due_at = now()"),
            ("outage", "failures_due_at = now() - interval '3 days', asked_until = asked_until - interval '3 days'"),
            (
                "outage",
                "failures_due_at = now(), asked_until = asked_until - interval '1 day', server = '1/00000001'"
            ),
        ])
    func whole(purpose: String, change: String) async throws {
        try await NotificationSweepLab.with { bench in
            await bench.sweep()
            try bench.hold(about: try await bench.lab.sell(), arrived: true)
            try await bench.anHourPasses()
            await bench.sweep()
            #expect(try await bench.stored == 0, "Apple says that it arrived")
            try await bench.lab.lab.run("update notification_sweeps set \(change)")
            #expect(Set(try await bench.plan()) == [purpose])
            await bench.sweep()
            #expect(try await bench.stored == 1)
            #expect(try await bench.windows == 0)
        }
    }

    @Test("an operator has a span asked for; a window that Apple has forgotten ends")
    func byCommand() async throws {
        try await NotificationSweepLab.with { bench in
            await bench.sweep()
            try bench.hold(about: try await bench.lab.sell(), arrived: true)
            let asked = try await bench.lab.lab.ledger.run(
                Statements.askNotificationHistory,
                .init(appID: VerifyLab.appID, since: .now.addingTimeInterval(-3 * 86_400 + 60)))
            #expect(asked.map(\.environment) == ["Production", "Production", "Production"])
            #expect(
                try await bench.lab.lab.ledger.run(Statements.askNotificationHistory, .init(appID: "none", since: nil))
                    .isEmpty)
            try await bench.lab.lab.run(
                """
                insert into notification_windows (app_id, environment, bundle_id, purpose, only_failures, start_at, end_at)
                values ('game', 'Production', '\(VerifyLab.bundleID)', 'command', false, now() - interval '182 days',
                  now() - interval '181 days')
                """)
            await bench.sweep()
            #expect(try await bench.stored == 1)
            #expect(try await bench.windows == 0)

            // What Apple has forgotten was not read: that is no complete sweep.
            try await bench.lab.lab.run("update notification_sweeps set completed_at = null")
            try await bench.lab.lab.run(
                """
                insert into notification_windows (app_id, environment, bundle_id, purpose, only_failures, start_at, end_at)
                values ('game', 'Production', '\(VerifyLab.bundleID)', 'command', false, now() - interval '182 days',
                  now() - interval '181 days')
                """)
            await bench.sweep()
            #expect(try await bench.windows == 0)
            #expect(
                try await bench.lab.lab.number(
                    "select count(*) from notification_sweeps where completed_at is not null") == 0)
        }
    }
}
