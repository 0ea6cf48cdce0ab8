import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: due Apple updates are sent, through the governor, again until Apple accepts them or gives a final reason, and
/// none is sent that an app has switched off (B3, B5). Method: a runner between the simulator over real HTTP and a real
/// ledger, round by round; the store's own record says which calls came.
@Suite(.timeLimit(.minutes(8))) struct AppleUpdateRunnerTests {
    private static let finishing = ["finishAtApple: afterGrant"]

    @Test("both are told to Apple as they stand, once, and what Apple has taken is not told again")
    func told() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(Self.finishing)
            let sale = try await lab.sell().purchase.transactionId
            let token = UUID()
            try await lab.owe(sale, .finish)
            try await lab.owe(sale, .setToken, token)
            await runner.round()
            await runner.round()
            let filings = lab.store.filings
            #expect(Set(filings.map(\.kind)) == [.finish, .appAccountToken] && filings.count == 2)
            #expect(filings.allSatisfy { $0.transactionId == sale && $0.environment == .production })
            #expect(filings.compactMap(\.appAccountToken) == [token.uuidString.lowercased()])
            #expect(try await lab.appleUpdates() == ["finish done 1", "set_token done 1"])
            // These calls are repairs: calls for a fresh purchase come first.
            #expect(
                try await lab.lab.texts(
                    "select endpoint from call_budgets where repair_leased > 0 and fresh_leased = 0 order by 1")
                    == ["finishTransaction", "setAppAccountToken"])
        }
    }

    @Test("Apple is away, then it is back: tried again with backoff, and every try is counted")
    func away() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(Self.finishing)
            let sale = try await lab.sell().purchase.transactionId
            try await lab.owe(sale, .finish)
            try lab.fault(5_000_001, on: .finish, count: 1)
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish open apple_answer 1"])
            #expect(
                try await lab.lab.texts(
                    "select concat_ws(' ', http_status, code, due_at between now() and now() + interval '6 s') from apple_updates"
                )
                    == ["500 5000001 t"])
            await runner.round()
            #expect(lab.store.filings.isEmpty, "not before its time")
            try await lab.passes()
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish done 2"] && lab.store.filings.count == 1)
        }
    }

    @Test(
        "what Apple will never take ends with its code, at once, and delays no other update",
        arguments: [4_000_006, 4_000_048, 4_000_185, 4_000_187])
    func refused(code: Int) async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner([])
            let sale = try await lab.sell().purchase.transactionId
            try await lab.owe(sale, .setToken, UUID())
            try lab.fault(code, on: .appAccountToken, count: 1)
            await runner.round()
            try await lab.passes()
            await runner.round()
            #expect(try await lab.appleUpdates() == ["set_token refused apple_refused 1"] && lab.store.filings.isEmpty)
            #expect(try await lab.lab.texts("select code::text from v_apple_updates") == ["\(code)"])
        }
    }

    @Test("an id that Apple does not know is tried for an hour and then believed")
    func unknown() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(Self.finishing)
            try await lab.owe("70000", .finish)
            for attempt in 1...6 {
                await runner.round()
                #expect(try await lab.appleUpdates() == ["finish open not_found_yet \(attempt)"])
                try await lab.passes()
            }
            try await lab.lab.run("update apple_updates set created_at = now() - interval '61 minutes'")
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish refused not_found 7"])
        }
    }

    @Test("after a day and eight tries a person should look; it is tried on, and done when Apple takes it")
    func parked() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(Self.finishing)
            let sale = try await lab.sell().purchase.transactionId
            try await lab.owe(sale, .finish)
            try await lab.lab.run("update apple_updates set attempt = 7, created_at = now() - interval '25 hours'")
            try lab.fault(5_000_000, on: .finish, count: 1)
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish parked apple_answer 8"])
            #expect(
                try await lab.lab.number(
                    "select count(*) from apple_updates where due_at > now() + interval '59 minutes'")
                    == 1)
            try await lab.passes()
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish done 9"])
        }
    }

    @Test("what an app has switched off, or somebody paused, is not told, and waits; nor what has no key")
    func switchedOff() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell().purchase.transactionId
            try await lab.owe(sale, .finish)
            try await lab.owe(sale, .setToken, UUID())
            await (try lab.runner(["writeBackTokens: false"])).round()
            await (try lab.runner([], hasServerAPI: false)).round()
            let pause = Halt(
                appID: VerifyLab.appID, service: Halt.everyService, environment: "*", credential: "*", reason: "paused")
            _ = try await lab.lab.ledger.run(Statements.halt, pause)
            await lab.halts.refresh()
            await (try lab.runner(Self.finishing)).round()
            #expect(lab.store.calls().isEmpty)
            #expect(try await lab.appleUpdates() == ["finish open 0", "set_token open 0"])
        }
    }

    @Test("B3: what was held when policy finished that too is not told under a narrower one before it is granted")
    func narrowed() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(Self.finishing)
            let sale = try await lab.sell().purchase.transactionId
            try await lab.owe(sale, .finish, isHeld: true)
            await runner.round()
            #expect(lab.store.calls().isEmpty)
            #expect(try await lab.appleUpdates() == ["finish open 0"])
            try await lab.lab.settle(try await lab.lab.post(), .purchase(sale))
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish done 1"])
            let other = try await lab.sell().purchase.transactionId
            try await lab.owe(other, .finish, isHeld: true)
            await (try lab.runner(["finishAtApple: afterReceipt"])).round()
            #expect(lab.store.filings.compactMap(\.transactionId) == [sale, other])
        }
    }

    @Test("P26: Apple's 429 is waited for as long as it says, and is no try")
    func limited() async throws {
        try await VerifyLab.with { lab in
            let runner = try await lab.runner(Self.finishing)
            let sale = try await lab.sell().purchase.transactionId
            try await lab.owe(sale, .finish)
            var fault = FaultRequest(.error, on: .finish, count: 1)
            fault.errorCode = 4_290_000
            fault.retryAfterMilliseconds = 30_000
            try lab.store.fault(fault)
            await runner.round()
            #expect(try await lab.appleUpdates() == ["finish open apple_unavailable 0"])
            #expect(
                try await lab.lab.number(
                    "select count(*) from apple_updates where due_at > now() + interval '25 seconds'")
                    == 1)
            try await lab.passes()
            await runner.round()
            #expect(lab.store.calls().count == 1, "nobody calls there until then")
        }
    }
}

extension VerifyLab {
    fileprivate func runner(_ more: [String], hasServerAPI: Bool = true) async throws -> AppleUpdateRunner {
        let apps = AppDirectory(http: http)
        try await apps.update(try configuration(hasServerAPI: hasServerAPI, more: more), ledger: lab.ledger)
        return AppleUpdateRunner(
            ledger: lab.ledger, apps: apps, halts: halts,
            appleGateway: AppleGateway(halts: halts, governor: governor()),
            callsMax: 16, logger: .silent)
    }

    /// Writes an Apple update as a verdict leaves it, beside its grant or its held purchase.
    fileprivate func owe(
        _ transactionID: String, _ kind: AppleUpdate.Kind, _ token: UUID? = nil, isHeld: Bool = false
    ) async throws {
        let decision = isHeld ? Decision.held(.review) : .grant(goods: Verdict.Entry.coins, source: .poster)
        try await lab.settle(try await lab.post(), .purchase(transactionID, decision))
        try await lab.run(
            """
            insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
            values ('\(transactionID)', '\(kind.rawValue)', '\(Self.appID)', 'Production', '\(transactionID)', now(),
              \(token.map { "'\($0)'" } ?? "null"))
            """)
    }

    fileprivate func fault(_ code: Int, on endpoint: FaultRequest.Endpoint, count: Int) throws {
        var fault = FaultRequest(.error, on: endpoint, count: count)
        fault.errorCode = code
        try store.fault(fault)
    }

    /// Makes the open Apple updates due.
    fileprivate func passes() async throws {
        try await lab.run("update apple_updates set due_at = now() where due_at is not null")
    }

    /// `kind state reason tries`, in order.
    fileprivate func appleUpdates() async throws -> [String] {
        try await lab.texts("select concat_ws(' ', kind, state, reason, attempt) from v_apple_updates order by 1")
    }
}
