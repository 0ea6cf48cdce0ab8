import AppStoreSimulator
import FaultProxy
import Foundation
import Glibc
import Ledger

extension Drill {
    /// Drills in which Apple is down, slow or over its limit, or gives false answers.
    static let appleDrills: [Drill] = [
        Drill("23a", "Apple answers 5xx for 10 minutes", expected: "the breaker opens: probes only; then all granted") {
            stage in
            try await stage.outage { $0.status = 503 }
        },
        Drill(
            "23b", "Apple answers 429, Retry-After in milliseconds", expected: "nobody asks before; no attempt counts"
        ) {
            stage in
            try await stage.rateLimit(.milliseconds)
        },
        Drill("23c", "Apple answers 429, Retry-After in seconds", expected: "nobody asks before; no attempt counts") {
            stage in
            try await stage.rateLimit(.seconds)
        },
        Drill("23d", "Apple answers 429, Retry-After as a date", expected: "a pause of our own; no attempt counts") {
            stage in
            try await stage.rateLimit(.date)
        },
        Drill("23e", "Apple hangs for 30 s", expected: "signed transactions do not wait; then all granted") { stage in
            stage.allowAbandonedCalls(factor: 4)
            try stage.fault(.timeout) { $0.seconds = 30 }
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            try await stage.expectQuickGrant()
            stage.world.store.clearFaults()
            stage.expectAnswers()
        },
        Drill("23f", "Apple resets connections", expected: "tried again; all granted") { stage in
            try stage.fault(.reset) { $0.percent = 70 }
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            stage.world.appleProxy.breakConnections(reset: true)
            stage.expectMet(.reset)
            stage.world.store.clearFaults()
            stage.expectAnswers()
        },
        Drill("23g", "Apple's answers are cut off", expected: "never believed; all granted afterwards") { stage in
            try stage.fault(.garbage) { $0.form = .truncated }
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            stage.expectMet(.garbage)
            stage.world.store.clearFaults()
            stage.expectAnswers()
        },
        Drill(
            "23h", "Apple's API answers with a signature of another root",
            expected: "never granted on it; tried again, parked in the end; granted when it is right"
        ) { stage in
            try stage.fault(.foreignRoot, .transactionInfo)
            let since = try await stage.world.texts("select now()::text").first ?? ""
            let (post, id) = try await stage.buy(.identifier, user: "asker")
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            // The drill moves the receipt 25 hours into the past and makes the next attempt due.
            try await stage.world.execute(
                "update receipts set received_at = received_at - interval '25 hours' where id = '\(id)'")
            try await stage.expect("parked", within: .seconds(60)) {
                try await stage.world.execute(
                    """
                    with due as (update receipts set due_at = now()
                      where id = '\(id)' and state = 'received' and rescues = 0 returning id)
                    update attempts set at = at - interval '1 hour' where receipt_id in (select id from due)
                    """)
                return try await stage.world.texts("select state from receipts where id = '\(id)'") == ["parked"]
            }
            let fate = try await stage.world.texts(
                "select reason || ', ' || attempt || ' attempts' from receipts where id = '\(id)'")
            stage.expect("not for want of a worker", fate.first?.hasPrefix("never_worked") == false, fate.first ?? "")
            // The drill moved the hours, not the attempts: a worker asked Apple each time.
            let attempts = try await stage.world.count("select attempt from receipts where id = '\(id)'")
            let calls = stage.calls(about: post)
            stage.expect(
                "tried again until then", attempts >= 8 && calls >= attempts, "\(attempts) attempts, \(calls) calls")
            // This counts all receipts that came while Apple answered so, from the first to the last.
            let (asked, grants) = (
                try await stage.world.count(
                    "select count(*) from receipts where kind = 'identifier' and received_at > '\(since)'"),
                try await stage.world.count(
                    """
                    select count(*) from grants g join receipts r on r.id = g.receipt_id
                    where r.kind = 'identifier' and r.received_at > '\(since)'
                    """)
            )
            stage.expect("no bare id is granted on it", asked > 0 && grants == 0, "\(grants) of \(asked)")
            stage.world.store.clearFaults()
            try await stage.world.command(
                ["queue", "redrive", "--app", PurchaseGenerator.app, "--state", "parked"], as: .support)
            try await stage.expect("granted afterwards", within: .seconds(60)) { try await stage.isGranted(post) }
            // The invariants count the receipt on the day on which it came.
            try await stage.world.execute(
                "update receipts set received_at = received_at + interval '25 hours' where id = '\(id)'")
            stage.expectAnswers()
        },
        Drill("23i", "Apple sends one byte a second", expected: "signed transactions do not wait; then all granted") {
            stage in
            stage.allowAbandonedCalls(factor: 4)
            var slow = FaultProxy.Conditions()
            slow.toClient.bytesPerSecond = 1
            stage.world.appleProxy.set(slow)
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            try await stage.expectQuickGrant()
            stage.world.appleProxy.set(.forwarding)
            stage.world.appleProxy.breakConnections()
            stage.expectAnswers()
        },
        Drill("23j", "Apple's name cannot be resolved", expected: "tried again; all granted when it can") { stage in
            try stage.world.writeConfiguration(appleURL: "http://apple.invalid:1")
            try await stage.reload()
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            try await stage.expectQuickGrant()
            try stage.world.writeConfiguration()
            try await stage.reload()
            stage.expectAnswers()
        },
    ]
}

extension DrillContext {
    /// Expects that a call met the fault: a fault that no call has met shows nothing.
    fileprivate func expectMet(_ kind: FaultRequest.Kind) {
        let met = world.store.calls().count { $0.faults.contains(kind.rawValue) }
        expect("it happened", met > 0, "\(met) times")
    }

    /// Expects that a signed transaction posted now is granted while Apple cannot be used.
    fileprivate func expectQuickGrant() async throws {
        let (post, _) = try await buy(.signed, user: "quick")
        try await expect("a signed transaction is granted at once", within: .seconds(3)) { try await isGranted(post) }
    }

    fileprivate func outage(_ change: (inout FaultRequest) -> Void) async throws {
        try fault(.status, .all, change)
        var mix = PurchaseGenerator.Mix()
        mix.receipt = 40
        world.traffic.set(mix)
        try await expect("the breaker opens", within: .seconds(20)) {
            for worker in workers {
                let state = await world.metric(
                    "makegood_apple_breaker_state", "service=\"verifyReceipt\"", of: worker)
                guard let state, state > 0 else { return false }
            }
            return true
        }
        // Counts the calls to the host that every worker knows to be down; the API's host gets fewer.
        func calls() -> Int { world.store.calls().count { $0.service == .verifyReceipt } }
        let before = calls()
        let time = scaled(.seconds(600), min: .seconds(10))
        try await sleep(time)
        let probed = calls() - before
        // One probe per worker and pause. The pauses grow from 5 s to a minute, scaled.
        let probes = workers.count * (5 + Int(time / (.seconds(30) * world.shape.scale)))
        expect("probes only", probed <= probes, "\(probed) calls in \(time.short), at most \(probes)")
        try await expectQuickGrant()
        world.store.clearFaults()
        expectAnswers()
    }

    /// The tries of all receipts. Wakes and reopenings begin an attempt too, and are no tries.
    private static let tries = "select count(*) from attempts"

    fileprivate func rateLimit(_ form: FaultRequest.RetryAfterForm) async throws {
        let counted = try await world.count(Self.tries)
        let wait = scaled(.seconds(30), min: .seconds(4))
        if form != .date { retryAfter = wait }
        try fault(.status) {
            $0.status = 429
            $0.retryAfterMilliseconds = Int64(wait / .milliseconds(1))
            $0.retryAfterForm = form
        }
        try await sleep(scaled(.seconds(60), min: .seconds(8)))
        let after = try await world.count(Self.tries)
        expect("no attempt was counted", after == counted, "\(after - counted)")
        expectMet(.status)
        world.store.clearFaults()
        expectAnswers()
    }

    /// Sends SIGHUP to every process and expects that each takes the configuration.
    func reload() async throws {
        let before = world.members.map { $0.process?.log.ranges(of: "configuration taken").count ?? 0 }
        for member in world.members { member.process?.send(SIGHUP) }
        try await expect("every process took the configuration", within: .seconds(20)) {
            zip(world.members, before).allSatisfy {
                ($0.process?.log.ranges(of: "configuration taken").count ?? 0) > $1
            }
        }
    }
}
