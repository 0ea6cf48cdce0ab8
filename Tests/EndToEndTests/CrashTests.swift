import Adversary
import AppStoreSimulator
import FaultProxy
import Foundation
import Glibc
import Purchases
import Testing
import WorkQueue

extension EndToEnd {
    /// kill -9 at the worst places, messages lost, queues emptied: nothing is lost and nothing is doubled.
    @Suite struct Crashes {
        /// Goal: a worker that dies between its commit and its ack leaves one grant, and Apple is not asked again.
        /// Method: a debug hook kills -9 the worker right there; the message comes back to a second worker, which finds
        /// the row settled and only acknowledges. No scheduler runs, so that nothing else can have helped.
        @Test func aWorkerKilledBetweenCommitAndAckGrantsOnce() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let crashing = try await system.start(.worker, ["MAKEGOOD_TEST_CRASH": "after_commit_before_ack"])
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                try await system.submitReceipt(sale, user: "u1")
                #expect(try await crashing.end(within: .seconds(30)) == .signal(SIGKILL))
                let queue = system.queues.verify(.apple)
                try await system.wait("the message to come back") { try await system.depth(of: queue) == 1 }
                #expect(try await system.count("select count(*) from grants") == 1)
                try await system.start(.worker)
                try await system.wait("the message to be acknowledged") { try await system.depth(of: queue) == 0 }
                #expect(system.appStore.calls(about: sale).count == 1)
            }
        }

        /// Goal: a worker that dies between Apple's answer and its commit loses nothing (P28).
        /// Method: a debug hook kills -9 the worker right there; nothing is granted then. A second worker gets the
        /// message again, asks Apple again, and grants once; no attempt is counted against the receipt.
        @Test func aWorkerKilledBetweenApplesAnswerAndCommitGrantsOnce() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let crashing = try await system.start(.worker, ["MAKEGOOD_TEST_CRASH": "after_apple_before_commit"])
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let answer = try await system.submitReceipt(sale, user: "u1")
                #expect(answer.safeToFinish == false)
                #expect(try await crashing.end(within: .seconds(30)) == .signal(SIGKILL))
                #expect(system.appStore.calls(about: sale).count == 1)
                #expect(try await system.count("select count(*) from grants") == 0)
                try await system.start(.worker)
                try await system.settleDebts()
                #expect(system.appStore.calls(about: sale).count == 2)
                #expect(try await system.count("select max(attempt)::int8 from receipts") == 0)
            }
        }

        /// Goal: an ingest that dies after the commit and before it published the message costs seconds and no purchase
        /// (P31, B12).
        /// Method: the broker is cut off, so that ingest cannot publish the accepted posts; ingest is killed -9; the
        /// broker comes back, and a scheduler and a worker that know nothing of the posts grant them.
        @Test func anIngestKilledBeforeItPublishesLosesNothing() async throws {
            try await System.run(.init(hasProxies: true)) { system in
                let ingest = try await system.start(.ingest)
                system.brokerProxy?.set(.cut)
                let sales = try await system.appStore.sell(5)
                system.owe(sales, to: "u1")
                for sale in sales { #expect(try await system.submit(sale, user: "u1").status == 202) }
                await ingest.killHard()
                system.brokerProxy?.set(.forwarding)
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.settleDebts()
            }
        }

        /// Goal: messages only wake workers: all of them may vanish.
        /// Method: 20 signed transactions and 20 legacy receipts wait, no worker runs, and the test purges both verify
        /// queues. The scheduler brings every row back and all are granted.
        @Test func theSchedulerBringsEveryRowOfPurgedQueuesBack() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let sales = try await system.appStore.sell(40)
                for (index, sale) in sales.enumerated() {
                    system.owe(sale, to: "u\(index)")
                    if index < 20 {
                        try await system.submit(sale, user: "u\(index)")
                    } else {
                        try await system.submitReceipt(sale, user: "u\(index)")
                    }
                }
                for lane in [Lane.local, .apple] {
                    let queue = system.queues.verify(lane)
                    try await system.waitForMessages(20, in: queue)
                    let purged = try system.purge(queue)
                    // Pointers for the local queue that come at the same moment share a message.
                    #expect(lane == .local ? (1...20).contains(purged) : purged == 20, "\(purged) in \(queue)")
                    #expect(try await system.depth(of: queue) == 0)
                }
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.settleDebts()
            }
        }

        /// Goal: a queue that somebody deletes is declared and consumed again without help (P29, P30), where the
        /// services may declare, as in the default set-up.
        /// Method: three times, all verify queues are deleted under a running system. A purchase of each kind posted
        /// afterwards is granted, and none of the processes had to be restarted. The scheduler, which declares queues
        /// at each tick, is stopped (SIGSTOP) while RabbitMQ deletes: in 3.10 a quorum queue that comes back within
        /// some 30 ms may be half dead: it confirms messages that nobody gets.
        @Test func deletedQueuesAreMadeAgain() async throws {
            try await System.run(.init(declaresQueues: true)) { system in
                try await system.start(.ingest)
                let worker = try await system.start(.worker)
                let scheduler = try await system.start(.scheduler)
                for round in 0...3 {
                    if round > 0 {
                        // The worker consumes each queue again by itself, some later than others.
                        for lane in Lane.allCases {
                            try await system.wait("\(lane) to be consumed") {
                                try await system.consumers(of: system.queues.verify(lane)) == 1
                            }
                        }
                        let ended = {
                            let lines = worker.log.split(separator: "\n").filter {
                                $0.contains("the broker ended a consumer")
                            }
                            return Lane.allCases.map { lane in
                                lines.count { $0.contains(system.queues.verify(lane)) }
                            }
                        }
                        let before = ended()
                        scheduler.send(SIGSTOP)
                        for lane in Lane.allCases { try system.deleteQueue(system.queues.verify(lane)) }
                        try await system.wait("the broker to end all consumers") {
                            zip(ended(), before).allSatisfy { $0 > $1 }
                        }
                        scheduler.send(SIGCONT)
                    }
                    let (signed, legacy) = (try await system.appStore.sell(), try await system.appStore.sell())
                    system.owe([signed, legacy], to: "u1")
                    try await system.submit(signed, user: "u1")
                    try await system.submitReceipt(legacy, user: "u1")
                    try await system.settleDebts(within: .seconds(20))
                }
            }
        }

        /// Goal: a payload that kills every worker that judges it ends parked, and its neighbours are granted.
        /// Method: a debug hook kills -9 the worker whenever it judges a receipt of one user; a supervisor starts the
        /// worker again each time. 20 neighbours in the same queue are granted, although the worker held them too at
        /// each crash. The payload is rescued eight times, its waits shortened by hand, and then parked `never_worked`;
        /// a redrive with a mended worker grants it too.
        @Test(.timeLimit(.minutes(4))) func aPayloadThatKillsItsWorkerIsParkedAndTheOthersGranted() async throws {
            // A rescue delay of one second: by then a worker has started again, as in production.
            try await System.run(.init(timeScale: 0.1)) { system in
                try await system.start(.ingest)
                let killer = try await system.appStore.sell()
                try await system.submit(killer, user: "killer")
                for sale in try await system.appStore.sell(20) {
                    system.owe(sale, to: "neighbour")
                    try await system.submit(sale, user: "neighbour")
                }
                system.supervise(.worker, ["MAKEGOOD_TEST_CRASH": "judging:killer"])
                try await system.start(.scheduler)
                try await system.settleDebts(within: .seconds(120))
                #expect(system.started(.worker) > 1)
                try await system.wait("the killer to be parked") {
                    // The test moves the row hours ahead.
                    try await system.execute(
                        "update receipts set due_at = now() where user_id = 'killer' and state = 'received'")
                    return try await system.texts("select reason from receipts where state = 'parked'") == [
                        "never_worked"
                    ]
                }
                // Parked rows are judged again from time to time: only a worker that survives the payload may keep
                // running.
                await system.endSupervision()
                system.owe(killer, to: "killer")
                try await system.start(.worker)
                try await system.command("queue", "redrive", "--app", "game", "--state", "parked")
                try await system.settleDebts()
            }
        }

        /// Goal: a worker that sleeps longer than its lease and then wakes up changes nothing (I10, I11).
        /// Method: the worker is stopped (SIGSTOP) while Apple's answer is on its way; the scheduler gives the receipt
        /// to a second worker, which grants it; the first one is woken, finishes its late verdict and stays alive.
        @Test func aWorkerThatWakesUpLateCannotGrantAgain() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let sleeper = try await system.start(.worker)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                var latency = FaultRequest(.latency, on: .verifyReceipt, count: 1)
                // Long enough to be seen, and shorter than a call may take at this scale: a second.
                latency.milliseconds = 900
                try system.appStore.store.fault(latency)
                try await system.submitReceipt(sale, user: "u1")
                try await system.wait("the call to Apple") { system.appStore.store.openCalls.now == 1 }
                sleeper.send(SIGSTOP)
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.settleDebts()
                sleeper.send(SIGCONT)
                try await system.wait("the late verdict's message to be gone") {
                    try await system.depth(of: system.queues.verify(.apple)) == 0
                }
                let second = try await system.appStore.sell()
                system.owe(second, to: "u1")
                try await system.submit(second, user: "u1", wait: 20)
                #expect(sleeper.isRunning)
            }
        }
    }
}
