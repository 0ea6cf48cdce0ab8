import AppStoreSimulator
import FaultProxy
import Foundation
import Glibc
import Ledger
import Service

extension Drill {
    /// Drills in which our own processes die, sleep, or die at the worst place.
    static let processDrills: [Drill] = [
        Drill("1", "ingest killed under load", expected: "clients retry with the same submission; no orphan") { stage in
            for round in 0..<4 {
                let ingest = stage.ingests[round % stage.ingests.count]
                await ingest.kill()
                try await stage.sleep(.milliseconds(200 + stage.random(600)))
                try await ingest.start()
                try await stage.sleep(.milliseconds(300))
            }
            stage.expectAnswers([0])
        },
        Drill(
            "2", "ingest dies after commit, before publish",
            expected: "the scheduler publishes it within the rescue delay",
            needs: .crashPoints
        ) { stage in
            let ingest = stage.ingests[0]
            func rescues() async -> Double {
                var count = 0.0
                for scheduler in stage.schedulers {
                    count += await stage.world.metric("makegood_rescues_total", "lane=\"local\"", of: scheduler) ?? 0
                }
                return count
            }
            let rescuesBefore = await rescues()
            for _ in 0..<3 {
                await ingest.kill()
                try await ingest.start(crash: "\(CrashPoint.afterCommitBeforePublish.rawValue)@\(1 + stage.random(20))")
                try await stage.expect("it died there", within: .seconds(20)) { ingest.process?.isRunning == false }
            }
            let waiting = try await stage.world.texts(
                "select id::text from receipts where state = 'received' order by received_at limit 200")
            try await ingest.start()
            let list = waiting.map { "'\($0)'" }.joined(separator: ",")
            if !waiting.isEmpty {
                // The limit is 40 s at scale 1, and at least five on a busy machine.
                try await stage.expect(
                    "rows without a message are settled", within: stage.scaled(.seconds(40), min: .seconds(5))
                ) {
                    try await stage.world.count(
                        "select count(*) from receipts where id in (\(list)) and lane = 'local' and settled_at is null")
                        == 0
                }
            }
            let rescued = await rescues() - rescuesBefore
            stage.expect("the scheduler has published some", rescued > 0, "\(Int(rescued)) times")
            stage.expectAnswers([0])
        },
        Drill(
            "3", "worker dies after Apple's answer, before commit",
            expected: "Apple is asked again, one grant", needs: .crashPoints
        ) { stage in
            try await stage.dieOnce(.afterAppleBeforeCommit) { post in
                try await stage.expect("granted by another", within: .seconds(30)) { try await stage.isGranted(post) }
                let calls = stage.calls(about: post, to: .verifyReceipt)
                stage.expect("a second call to Apple", calls == 2, "\(calls) calls")
            }
        },
        Drill(
            "4", "worker dies after commit, before ack", expected: "redelivered, found settled, acked",
            needs: .crashPoints
        ) { stage in
            try await stage.dieOnce(.afterCommitBeforeAck) { post in
                try await stage.expect("granted", within: .seconds(30)) { try await stage.isGranted(post) }
                try await stage.sleep(.seconds(1))
                let calls = stage.calls(about: post, to: .verifyReceipt)
                stage.expect("no second call to Apple", calls == 1, "\(calls) calls")
            }
        },
        Drill(
            "5", "worker stopped longer than the rescue delay, then woken",
            expected: "others finish its work; what it writes late changes nothing"
        ) { stage in
            let sleeper = stage.workers[stage.random(stage.workers.count)]
            try await stage.expect("it has work in flight", within: .seconds(20)) {
                sleeper.process?.send(SIGSTOP)
                if sleeper.work.counts.isWorking { return true }
                sleeper.process?.send(SIGCONT)
                return false
            }
            stage.interrupt()
            let held = sleeper.work.counts
            try await stage.sleep(stage.scaled(.seconds(120), min: .seconds(8)))
            let before = try await stage.world.texts(
                "select transaction_id || user_id from grants order by transaction_id")
            sleeper.process?.send(SIGCONT)
            try await stage.sleep(.seconds(3))
            let kept = Set(before).subtracting(
                try await stage.world.texts("select transaction_id || user_id from grants"))
            stage.expect(
                "no grant changed when it woke", kept.isEmpty,
                "it held \(held.unacked) messages; \(before.count) grants before, \(kept.count) changed")
            stage.expect("it lives", sleeper.process?.isRunning == true)
            stage.expectAnswers()
        },
        Drill(
            "5b", "ingest stopped longer than the rescue delay, then woken",
            expected: "clients go to another; what it takes up again is the same submission"
        ) { stage in
            let sleeper = stage.ingests[stage.random(stage.ingests.count)]
            let address = sleeper.address ?? ""
            try await stage.expect("it has requests in flight", within: .seconds(20)) {
                sleeper.process?.send(SIGSTOP)
                if stage.world.traffic.openRequests(at: address) > 0 { return true }
                sleeper.process?.send(SIGCONT)
                return false
            }
            let held = stage.world.traffic.openRequests(at: address)
            try await stage.sleep(stage.scaled(.seconds(120), min: .seconds(8)))
            let rows = try await stage.world.count("select count(*) from receipts")
            try await stage.expect("the others accept", within: .seconds(10)) {
                try await stage.world.count("select count(*) from receipts") > rows
            }
            sleeper.process?.send(SIGCONT)
            try await stage.expect("it answers again", within: .seconds(30)) {
                await stage.world.ask(sleeper, "/health/live")?.status == 200
            }
            stage.expect("it lives", sleeper.process?.isRunning == true, "it held \(held) requests")
            // A stopped process does not answer its clients; the clients post again.
            stage.expectAnswers([0])
        },
        Drill("6", "one of three workers killed every 3 s", expected: "at least 80 % of the rate before, afterwards") {
            stage in
            for round in 0..<stage.world.rounds(20, min: 4) {
                let worker = stage.workers[round % stage.workers.count]
                stage.interrupt(1)
                await worker.kill()
                try await worker.start()
                try await stage.sleep(stage.scaled(.seconds(3), min: .milliseconds(500)))
            }
            stage.expectAnswers()
        },
        Drill(
            "6b", "scheduler dies between its claim and its publish", expected: "the claim runs out, another claims",
            needs: .crashPoints
        ) { stage in
            // No message of ingest reaches the broker: only the schedulers publish.
            for ingest in stage.ingests { ingest.broker.set(.cut) }
            let scheduler = stage.schedulers[0]
            for _ in 0..<3 {
                await scheduler.kill()
                try await scheduler.start(crash: CrashPoint.afterClaimBeforePublish.rawValue)
                try await stage.expect("it died there", within: .seconds(20)) { scheduler.process?.isRunning == false }
            }
            try await scheduler.start()
            try await stage.sleep(.seconds(2))
            stage.expectAnswers()
        },
        Drill(
            "6c", "worker dies between the row of a retry and its message",
            expected: "the scheduler publishes the due row",
            needs: .crashPoints
        ) { stage in
            try stage.fault(.status, .verifyReceipt) {
                $0.status = 503
                $0.percent = 50
            }
            for worker in stage.workers {
                stage.interrupt()
                await worker.kill()
                try await worker.start(crash: CrashPoint.afterRowBeforeRetry.rawValue)
                try await stage.expect("it died there", within: .seconds(20)) { worker.process?.isRunning == false }
                try await worker.start()
            }
            stage.expectAnswers()
        },
        Drill(
            "17", "a receipt that kills every worker that judges it", expected: "parked never_worked; others granted",
            needs: .crashPoints
        ) { stage in
            let user = "killer"
            let supervisors = Task {
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for worker in stage.workers {
                        group.addTask {
                            await worker.kill()
                            while !Task.isCancelled {
                                try await worker.start(crash: "\(CrashPoint.judging.rawValue):\(user)")
                                while worker.process?.isRunning == true, !Task.isCancelled {
                                    try await Task.sleep(for: .milliseconds(20))
                                }
                                stage.interrupt(64)
                            }
                        }
                    }
                    try await group.waitForAll()
                }
            }
            try await stage.sleep(.seconds(1))
            let (post, id) = try await stage.buy(.signed, user: user)
            try await stage.expect("parked, never_worked", within: .seconds(60)) {
                // The drill makes the receipt due at once, as if hours had passed.
                try await stage.world.execute(
                    "update receipts set due_at = now() where id = '\(id)' and state = 'received'")
                return try await stage.world.texts("select reason from receipts where id = '\(id)'") == ["never_worked"]
            }
            let deaths = stage.workers.map(\.starts).reduce(0, +) - stage.workers.count
            supervisors.cancel()
            _ = await supervisors.result
            for worker in stage.workers {
                await worker.kill()
                try await worker.start()
            }
            try await stage.world.command(
                ["queue", "redrive", "--app", PurchaseGenerator.app, "--state", "parked"], as: .support)
            try await stage.expect("granted by a mended worker (\(deaths) starts)", within: .seconds(30)) {
                try await stage.isGranted(post)
            }
            stage.expectAnswers()
        },
    ]
}

extension TestDeployment {
    /// The number of rounds at this scale; `count` is the number at scale 1.
    func rounds(_ count: Int, min least: Int) -> Int { max(least, Int((Double(count) * shape.scale).rounded())) }
}

extension DrillContext {
    /// Lets workers die at a crash point under load. Then one worker dies there with a single legacy receipt, which
    /// `check` examines.
    fileprivate func dieOnce(_ point: CrashPoint, _ check: (PurchaseGenerator.Post) async throws -> Void) async throws {
        let crashing = workers[0]
        for _ in 0..<2 {
            interrupt(64)
            await crashing.kill()
            try await crashing.start(crash: "\(point.rawValue)@\(1 + random(5))")
            try await expect("died under load", within: .seconds(30)) { crashing.process?.isRunning == false }
        }
        try await crashing.start()
        world.traffic.pause()
        try await expect("at rest", within: .seconds(60)) {
            guard world.traffic.journal.open == 0, workers.allSatisfy({ $0.work.counts.unacked == 0 }) else {
                return false
            }
            return try await world.count("select count(*) from receipts where state = 'received'") == 0
        }
        for worker in workers { await worker.kill() }
        try await crashing.start(crash: point.rawValue)
        let (post, _) = try await buy(.receipt, user: "late")
        try await expect("died of one legacy receipt", within: .seconds(30)) { crashing.process?.isRunning == false }
        for worker in workers { try await worker.start() }
        try await check(post)
        world.traffic.resume()
    }
}
