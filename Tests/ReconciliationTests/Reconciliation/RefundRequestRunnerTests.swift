import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings
@testable import Support

/// Goal: the runner answers Apple's questions about refunds from the ledger in time, once a case, only with consent,
/// and with support's edits (B11, P33, P41). Method: a runner between the simulator over real HTTP and a real ledger,
/// round by round; the store's own record says which calls came.
@Suite(.timeLimit(.minutes(8))) struct RefundRequestRunnerTests {
    @Test("with consent Apple is told what the ledger knows, once")
    func answered() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(["refunds: {preference: byConsumption, declineFrom: 50, grantUpTo: 10}"])
            let sale = try await lab.buy()
            try await lab.consent(true)
            try await lab.used(sale, 40_000)
            _ = try await lab.ask(sale, hoursAgo: 10.5)
            await runner.round()
            await runner.round()
            let filings = lab.store.filings
            #expect(filings.map(\.kind) == [.consumption] && filings[0].transactionId == sale)
            let body =
                #"{"consumptionPercentage":40000,"customerConsented":true,"deliveryStatus":"DELIVERED","#
                + #""refundPreference":"GRANT_PRORATED","sampleContentProvided":false}"#
            #expect(filings[0].consumption == body)
            #expect(try await lab.requests() == ["answered 202 1"])
            #expect(
                try await lab.lab.number("select count(*) from refund_requests where answer = '\(body)'::jsonb") == 1)
            #expect(
                try await lab.lab.texts(
                    """
                    select concat_ws(' ', is_granted, delivery_status, consumption_percentage, refund_preference, api_version,
                      hours_left is null) from v_refund_requests
                    """) == ["t DELIVERED 40000 GRANT_PRORATED 2 t"])
            // The calls for a fresh purchase come first.
            #expect(
                try await lab.lab.texts(
                    "select endpoint from call_budgets where repair_leased > 0 and fresh_leased = 0") == [
                        "sendConsumption"
                    ])
        }
    }

    @Test("without consent, and with one that was withdrawn after Apple asked, Apple is not called")
    func withoutConsent() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            _ = try await lab.ask(try await lab.buy(), hoursAgo: 10.5)
            await runner.round()
            #expect(try await lab.requests() == ["unanswered no_consent 0"])
            try await lab.consent(true)
            _ = try await lab.ask(try await lab.buy(), hoursAgo: 10.5)
            try await lab.consent(false)
            await runner.round()
            #expect(try await lab.requests() == ["unanswered no_consent 0", "unanswered no_consent 0"])
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("nothing is sent before its time; a request that was stored for later follows the app's setting")
    func itsTime() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.buy()
            try await lab.consent(true)
            _ = try await lab.ask(sale, hoursAgo: 3)
            await (try lab.runner([])).round()
            let isDueAtTen = """
                select count(*) from refund_requests where state = 'open' and attempt = 0
                  and due_at - asked_at between interval '599 minutes' and interval '601 minutes'
                """
            #expect(try await lab.lab.number(isDueAtTen) == 1)
            #expect(lab.store.calls().isEmpty)
            // The setting is shorter now.
            let runner = try await lab.runner(["refunds: {answerAfter: 2h}"])
            await runner.round()
            await runner.round()
            #expect(lab.store.filings.map(\.kind) == [.consumption])
            #expect(try await lab.requests() == ["answered 202 1"])
        }
    }

    @Test(
        "P41: what Apple will never take ends with its code and is not tried again", arguments: [4_000_047, 4_000_185])
    func refused(code: Int) async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            let sale = try await lab.buy()
            try await lab.consent(true)
            _ = try await lab.ask(sale, hoursAgo: 10.5)
            try lab.fault(code)
            await runner.round()
            try await lab.passes()
            await runner.round()
            #expect(try await lab.requests() == ["unanswered refused 400 \(code) 1"])
            #expect(lab.store.calls().count == 1 && lab.store.filings.isEmpty)
        }
    }

    @Test("Apple is away: tried again with backoff, never beyond the twelfth hour, and too late after it")
    func away() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            try await lab.consent(true)
            let (early, late) = (try await lab.buy(), try await lab.buy())
            _ = try await lab.ask(early, hoursAgo: 10.5)
            try lab.fault(5_000_001)
            await runner.round()
            #expect(try await lab.requests() == ["open 500 5000001 1"])
            #expect(
                try await lab.lab.number(
                    "select count(*) from refund_requests where due_at between now() and now() + interval '6 s'") == 1)
            await runner.round()
            #expect(lab.store.filings.isEmpty, "not before its time")
            try await lab.passes()
            await runner.round()
            #expect(try await lab.requests() == ["answered 202 2"])

            _ = try await lab.ask(late, hoursAgo: 11.9)
            try await lab.lab.run("update refund_requests set attempt = 6 where state = 'open'")
            try lab.fault(5_000_000)
            await runner.round()
            #expect(
                try await lab.lab.number(
                    """
                    select count(*) from refund_requests where state = 'open' and attempt = 7
                      and due_at - asked_at = interval '12 hours'
                    """) == 1)
            try await lab.lab.run(
                """
                update refund_requests set asked_at = asked_at - interval '1 hour', due_at = now() where state = 'open'
                """)
            await runner.round()
            #expect(try await lab.requests() == ["unanswered too_late 500 5000000 7", "answered 202 2"])
        }
    }

    @Test("P26: Apple's 429 is waited for, and is no try")
    func limited() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            let sale = try await lab.buy()
            try await lab.consent(true)
            _ = try await lab.ask(sale, hoursAgo: 10.5)
            var fault = FaultRequest(.error, on: .consumption, count: 1)
            fault.errorCode = 4_290_000
            fault.retryAfterMilliseconds = 300_000
            try lab.store.fault(fault)
            await runner.round()
            await runner.round()
            #expect(lab.store.calls().count == 1)
            #expect(
                try await lab.lab.number(
                    """
                    select count(*) from refund_requests where state = 'open' and attempt = 0
                      and due_at > now() + interval '4 minutes'
                    """) == 1)
        }
    }

    @Test("several requests are one case: the newest is answered when the first is due, and the others are superseded")
    func oneCase() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            let sale = try await lab.buy()
            try await lab.consent(true)
            let first = try await lab.ask(sale, hoursAgo: 10.5)
            _ = try await lab.ask(sale, hoursAgo: 6, case: first)
            _ = try await lab.ask(sale, hoursAgo: 1, case: first)
            await runner.round()
            #expect(lab.store.filings.count == 1)
            #expect(
                try await lab.requests() == [
                    "unanswered superseded 0", "unanswered superseded 0", "answered 202 1",
                ])
            // The next request of the case is answered in its own time.
            _ = try await lab.ask(sale, hoursAgo: 0.5, case: first)
            await runner.round()
            #expect(lab.store.filings.count == 1)
        }
    }

    @Test("P33: what was not granted is answered as not delivered, and what is not known here is not answered")
    func notGranted() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(["refunds: {preference: decline}"])
            try await lab.consent(true)
            let sale = try await lab.sell().purchase.transactionId
            try await lab.lab.settle(try await lab.lab.post(), .purchase(sale, .held(.review)))
            _ = try await lab.ask(sale, hoursAgo: 10.5)
            _ = try await lab.ask("70000", hoursAgo: 10.4)
            await runner.round()
            #expect(
                lab.store.filings.compactMap(\.consumption) == [
                    #"{"consumptionPercentage":0,"customerConsented":true,"deliveryStatus":"UNDELIVERED_OTHER","#
                        + #""refundPreference":"GRANT_FULL","sampleContentProvided":false}"#
                ])
            #expect(try await lab.requests() == ["answered 202 1", "unanswered not_known 0"])
            #expect(try await lab.lab.grants.isEmpty, "a request grants nothing")
        }
    }

    @Test(
        "a shared purchase, an erased user, a refund that Apple gave meanwhile, and an app in shadow: Apple is not called"
    )
    func silences() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            try await lab.consent(true)
            for (change, reason) in [
                ("update transactions set ownership = 'FAMILY_SHARED' where transaction_id = '%'", "shared"),
                ("update transactions set revoked_at = now() where transaction_id = '%'", "decided"),
                (
                    "insert into users (app_id, user_key, erased_at) values ('game', 'u1', now()) on conflict do nothing",
                    "erased"
                ),
            ] {
                let sale = try await lab.buy()
                let id = try await lab.ask(sale, hoursAgo: 10.5)
                try await lab.lab.run(change.replacing("%", with: sale))
                await runner.round()
                #expect(
                    try await lab.lab.texts("select reason from refund_requests where notification_id = '\(id)'")
                        == [reason])
                // The invariants compare the facts with what followed from them.
                try await lab.lab.run(
                    "update transactions set ownership = null, revoked_at = null where transaction_id = '\(sale)'")
            }
            _ = try await lab.ask(try await lab.buy(), hoursAgo: 10.5)
            await (try lab.runner(["mode: shadow"])).round()
            #expect(
                try await lab.lab.number("select count(*) from refund_requests where reason = 'shadow'") == 1)
            #expect(lab.store.calls().isEmpty)
        }
    }

    @Test("a paused app and one without a key wait; version 1 is used where the app or the purchase needs it")
    func others() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.buy()
            try await lab.consent(true)
            _ = try await lab.ask(sale, hoursAgo: 10.5)
            await (try lab.runner([], hasServerAPI: false)).round()
            #expect(try await lab.requests() == ["open 0"])
            try await lab.passes()
            let pause = Halt(
                appID: VerifyLab.appID, service: Halt.everyService, environment: "*", credential: "*", reason: "paused")
            _ = try await lab.lab.ledger.run(Statements.halt, pause)
            await lab.halts.refresh()
            await (try lab.runner([])).round()
            #expect(try await lab.requests() == ["open 0"] && lab.store.calls().isEmpty)
            _ = try await lab.lab.ledger.run(Statements.endHalt, pause)
            await lab.halts.refresh()
            await (try lab.runner(["refunds: {apiVersion: 1}"])).round()
            #expect(lab.store.filings.map(\.kind) == [.consumptionV1])

            let bundle = try await lab.buy()
            try await lab.lab.run(
                """
                update transactions set facts = facts || '{"isAdvancedCommerce": true}' where transaction_id = '\(bundle)'
                """)
            _ = try await lab.ask(bundle, hoursAgo: 10.5)
            await (try lab.runner([])).round()
            #expect(lab.store.filings.map(\.kind) == [.consumptionV1, .consumptionV1])
            #expect(try await lab.requests() == ["answered 202 1", "answered 202 1"])
        }
    }

    // MARK: Support

    @Test("support changes an answer until it is sent, sends it at once or withholds it; the edit stays with its case")
    func edited() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            let policies = try lab.configuration().apps.mapValues(\.policy)
            let editor = RefundRequestEditor(database: lab.lab.database, actor: "ann")
            let sale = try await lab.buy()
            try await lab.consent(true)
            let first = try await lab.ask(sale, hoursAgo: 3)
            _ = try await editor.edit(sale, RefundEdit(percentage: 70_000), policies: policies)
            let edited = try await editor.edit(first.uuidString, RefundEdit(preference: .decline), policies: policies)
            #expect(edited.edit == RefundEdit(percentage: 70_000, preference: .decline) && edited.editedBy == "ann")
            await #expect(throws: RefundRequestEditor.Refusal.objection("percentage must be 0 to 100")) {
                try await editor.edit(sale, RefundEdit(percentage: 100_001), policies: policies)
            }
            await #expect(throws: RefundRequestEditor.Refusal.unknown) {
                try await editor.edit("70000", RefundEdit(percentage: 1), policies: policies)
            }
            _ = try await editor.edit(sale, RefundEdit(withhold: true), policies: policies)
            await runner.round()
            #expect(try await lab.requests() == ["open 0"], "it may still be changed")
            // The next request of the case has what was said of the first one.
            _ = try await lab.ask(sale, hoursAgo: 2, case: first)
            _ = try await editor.edit(sale, RefundEdit(sendNow: true), policies: policies)
            await runner.round()
            #expect(
                lab.store.filings.compactMap(\.consumption) == [
                    #"{"consumptionPercentage":70000,"customerConsented":true,"deliveryStatus":"DELIVERED","#
                        + #""refundPreference":"DECLINE","sampleContentProvided":false}"#
                ])
            #expect(try await lab.requests() == ["unanswered superseded 0", "answered 202 1"])
            await #expect(throws: RefundRequestEditor.Refusal.ended(state: "answered", reason: nil)) {
                try await editor.edit(sale, RefundEdit(percentage: 1), policies: policies)
            }
            #expect(
                try await lab.lab.texts(
                    "select distinct concat_ws(' ', actor, action, details ->> 'transaction') from audits")
                    == ["ann support.refund_request \(sale)"])

            let other = try await lab.buy()
            _ = try await lab.ask(other, hoursAgo: 10.5)
            _ = try await editor.edit(other, RefundEdit(withhold: true), policies: policies)
            await runner.round()
            #expect(lab.store.filings.count == 1)
            #expect(
                try await lab.lab.number("select count(*) from refund_requests where reason = 'withheld'") == 1)
        }
    }

    @Test("no edit is taken while a worker answers; an edit after its lease is answered, whatever it reports")
    func editedUnderWay() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            let policies = try lab.configuration().apps.mapValues(\.policy)
            let editor = RefundRequestEditor(database: lab.lab.database, actor: "ann")
            let sale = try await lab.buy()
            try await lab.consent(true)
            let id = try await lab.ask(sale, hoursAgo: 10.5)
            let claim = Statements.RefundClaim(
                apps: [(id: VerifyLab.appID, answerAfter: .zero)], limit: 1, lease: .seconds(60))
            let claimed = try #require(try await lab.lab.ledger.run(Statements.claimRefundRequests, claim).first)
            await #expect(throws: RefundRequestEditor.Refusal.underWay) {
                try await editor.edit(sale, RefundEdit(percentage: 70_000), policies: policies)
            }
            #expect(try await lab.lab.number("select count(*) from audits") == 0)
            // The worker hangs for longer than its lease.
            try await lab.lab.run("update refund_requests set claimed_until = now(), due_at = now()")
            _ = try await editor.edit(sale, RefundEdit(percentage: 70_000), policies: policies)
            var result = RefundRequestResult(claimed)
            result.state = .answered
            #expect(try await lab.lab.ledger.run(Statements.reportRefundRequests, [result]) == [])
            #expect(try await lab.requests() == ["open 0"])
            await runner.round()
            #expect(lab.store.filings.map { $0.consumption?.contains("70000") } == [true])
            #expect(try await lab.requests() == ["answered 202 1"])
            #expect(
                try await lab.lab.number(
                    "select count(*) from refund_requests where notification_id = '\(id)' and claimed_until is null")
                    == 1)
        }
    }

    @Test(
        "S3-45, S3-64: the app's report and Apple's request are one case, and a request that is open for long is counted"
    )
    func reported() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.buy()
            let report = ClientReport(
                appID: VerifyLab.appID, userID: "u1", transactionID: sale, kind: .refundRequested, details: "{}")
            _ = try await lab.lab.ledger.run(Statements.storeReport, report)
            _ = try await lab.ask(sale, hoursAgo: 11.5)
            #expect(
                try await lab.lab.number(
                    "select count(*) from v_refund_requests where user_reported_at is not null and hours_left < 0.6")
                    == 1)
            let listed = try await RefundRequestEditor(database: lab.lab.database, actor: "ann").requests(of: sale)
            #expect(listed.count == 1 && listed[0].reportedAt != nil && listed[0].productID == "coins")
            _ = try await lab.runner([])
            let late = try await lab.lab.ledger.run(Statements.lateRefundRequests, ())
            #expect(late.map { "\($0.appID) \($0.requests)" } == ["game 1"])
        }
    }
}

extension VerifyLab {
    fileprivate func runner(_ more: [String], hasServerAPI: Bool = true) async throws -> RefundRequestRunner {
        let apps = AppDirectory(http: http)
        try await apps.update(try configuration(hasServerAPI: hasServerAPI, more: more), ledger: lab.ledger)
        return RefundRequestRunner(
            ledger: lab.ledger, apps: apps, halts: halts,
            appleGateway: AppleGateway(halts: halts, governor: governor()), logger: .silent)
    }

    /// A purchase that the store sold and that `u1` was granted.
    fileprivate func buy() async throws -> String {
        let id = try await sell().purchase.transactionId
        try await lab.settle(try await lab.post(), .purchase(id))
        return id
    }

    fileprivate func consent(_ isGiven: Bool) async throws {
        let consent = Statements.Consent(UserName(appID: Self.appID, key: "u1"), isGiven: isGiven)
        #expect(try await lab.ledger.run(Statements.giveConsent, consent).map(\.isRepeated) == [false])
    }

    fileprivate func used(_ transactionID: String, _ percentage: Int) async throws {
        _ = try await lab.ledger.run(
            Statements.reportConsumption,
            .init(transactionID: transactionID, appID: Self.appID, percentage: percentage, units: nil, at: nil))
    }

    /// Stores a request of Apple's, due now. Returns its id.
    fileprivate func ask(_ transactionID: String, hoursAgo: Double, case caseID: UUID? = nil) async throws -> UUID {
        let id = UUID()
        try await lab.run(
            """
            insert into refund_requests (notification_id, case_id, app_id, environment, transaction_id,
              original_transaction_id, request_reason, asked_at, due_at)
            values ('\(id)', '\(caseID ?? id)', '\(Self.appID)', 'Production', '\(transactionID)', '\(transactionID)', 'OTHER',
              now() - make_interval(secs => \(hoursAgo) * 3600), now())
            """)
        return id
    }

    fileprivate func fault(_ code: Int) throws {
        var fault = FaultRequest(.error, on: .consumption, count: 1)
        fault.errorCode = code
        try store.fault(fault)
    }

    /// Makes the open requests due.
    fileprivate func passes() async throws {
        try await lab.run("update refund_requests set due_at = now() where due_at is not null")
    }

    /// `state reason status code tries`, in the order in which Apple asked.
    fileprivate func requests() async throws -> [String] {
        try await lab.texts(
            "select concat_ws(' ', state, reason, http_status, code, attempt) from refund_requests order by asked_at")
    }
}
