import Adversary
import AppStoreSimulator
import AppleGateway
import FaultProxy
import Foundation
import Glibc
import Postgres
import Purchases
import Testing
import WorkQueue

extension EndToEnd {
    /// Servers that fail in the middle of an operation. A proxy of the test cuts the connections at the exact place.
    @Suite struct Outages {
        /// Goal: if PostgreSQL fails in the middle of a commit, the outcome is unknown, and repeating the statement is
        /// right (rule 2).
        /// Method: the proxy breaks the connection that carries the settle transaction, once before the server gets it
        /// and once after the server has committed and before it can answer. Then the same twice with the insert of a
        /// post, whose client sends it again until it is accepted. Every purchase is granted once.
        @Test func postgresGoneInTheMiddleOfACommit() async throws {
            try await System.run(.init(hasProxies: true)) { system in
                let proxy = try #require(system.postgresProxy)
                // No statement is prepared, so that the statement, its values and its commit are one round trip: of the settle
                // transaction it is the last one.
                for role in [System.Role.ingest, .worker, .scheduler] {
                    try await system.start(role, ["MAKEGOOD_POSTGRES_NAMED_STATEMENTS": "false"])
                }
                var traps = 0
                for statement in ["settle.update_receipts", "ledger.insert_receipts"] {
                    for moment in [FaultProxy.Moment.beforeRequest, .beforeAnswer] {
                        traps += 1
                        let sale = try await system.appStore.sell()
                        system.owe(sale, to: "u\(traps)")
                        proxy.trap(Array("/* \(statement) */".utf8), moment)
                        try await system.submit(sale, user: "u\(traps)", wait: 10)
                        try await system.settleDebts()
                        #expect(proxy.trapCount == traps, "\(statement) was not cut")
                    }
                }
            }
        }

        /// Goal: if RabbitMQ fails in the middle of a publish, the post is accepted and granted all the same (P30,
        /// P31).
        /// Method: the proxy breaks the connection that carries the publish, once before the broker gets it and once
        /// after it has stored the message and before its confirm passes. Both posts answer 202 and both are granted.
        @Test func rabbitMQGoneInTheMiddleOfAPublish() async throws {
            try await System.run(.init(hasProxies: true)) { system in
                let proxy = try #require(system.brokerProxy)
                try await system.startAll()
                let queue = Array(system.queues.verify(.local).utf8)
                // basic.publish (60, 40), reserved, the default exchange, the routing key.
                let publish: [UInt8] = [0, 60, 0, 40, 0, 0, 0, UInt8(queue.count)] + queue
                for (index, moment) in [FaultProxy.Moment.beforeRequest, .beforeAnswer].enumerated() {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "u\(index)")
                    proxy.trap(publish, moment)
                    #expect(try await system.submit(sale, user: "u\(index)").status == 202)
                    try await system.settleDebts()
                    try await system.wait("the publish to be cut") { proxy.trapCount == index + 1 }
                }
            }
        }

        /// Goal: while both servers fail and return under load, every purchase is granted once.
        /// Method: 60 players post until accepted, while the proxies cut PostgreSQL, then RabbitMQ, then both, for a
        /// second each.
        @Test func bothServersComeAndGoUnderLoad() async throws {
            try await System.run(.init(hasProxies: true)) { system in
                let (postgres, broker) = (try #require(system.postgresProxy), try #require(system.brokerProxy))
                try await system.startAll()
                let sales = try await system.appStore.sell(60)
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for (index, sale) in sales.enumerated() {
                        system.owe(sale, to: "u\(index)")
                        group.addTask {
                            try await Task.sleep(for: .milliseconds(index * 100))
                            if index.isMultiple(of: 3) {
                                try await system.submitReceipt(sale, user: "u\(index)")
                            } else {
                                try await system.submit(sale, user: "u\(index)")
                            }
                        }
                    }
                    group.addTask {
                        for proxies in [[postgres], [broker], [postgres, broker]] {
                            try await Task.sleep(for: .seconds(1))
                            for proxy in proxies { proxy.set(.cut) }
                            try await Task.sleep(for: .seconds(1))
                            for proxy in proxies { proxy.set(.forwarding) }
                        }
                    }
                    try await group.waitForAll()
                }
                try await system.settleDebts()
            }
        }

        /// Goal: while the broker is gone, posts are accepted and answered; they are granted when the broker is back
        /// (B12).
        /// Method: the broker is cut off; ten posts answer 202 within a second each, but for one, during which the
        /// machine may pause; readiness stays 200 and says `degraded`; nothing is granted; the broker comes back and
        /// all are granted.
        @Test func brokerGoneIsStill202AndDeliveredLater() async throws {
            try await System.run(.init(hasProxies: true)) { system in
                try await system.startAll()
                system.brokerProxy?.set(.cut)
                let sales = try await system.appStore.sell(10)
                var waits: [Duration] = []
                for sale in sales {
                    system.owe(sale, to: "u1")
                    let start = ContinuousClock.now
                    let answer = try await system.submit(sale, user: "u1")
                    waits.append(ContinuousClock.now - start)
                    #expect(answer.status == 202)
                    #expect(answer.safeToFinish == false)
                }
                #expect(waits.sorted()[8] < .seconds(1), "\(waits)")
                try await system.wait("readiness to say degraded") {
                    let ready = try await system.client.get("/health/ready")
                    return ready.status == 200 && ready.json["status"] as? String == "degraded"
                }
                #expect(try await system.count("select count(*) from grants") == 0)
                system.brokerProxy?.set(.forwarding)
                try await system.settleDebts()
            }
        }

        /// Goal: while the database is gone, ingest answers 503 with Retry-After, and nothing is half-stored.
        /// Method: the database is cut off; a post answers 503 with a problem document that says `safeToFinish: false`;
        /// readiness is 503. The database comes back: no row, payload or tally exists, the same post is accepted and
        /// granted.
        @Test func databaseGoneIs503AndNothingIsHalfStored() async throws {
            try await System.run(.init(hasProxies: true)) { system in
                try await system.startAll()
                system.postgresProxy?.set(.cut)
                let sale = try await system.appStore.sell()
                let answer = try await system.client.post(
                    .init(userId: "u1", signedTransaction: sale.signedTransaction))
                #expect(answer.status == 503)
                #expect(answer.code == "unavailable")
                #expect(answer.safeToFinish == false)
                #expect((answer.header("retry-after").flatMap { Int($0) } ?? 0) > 0)
                #expect(try await system.client.get("/health/ready").status == 503)
                #expect(try await system.client.get("/health/live").status == 200)
                for table in ["receipts", "payloads", "tallies", "grants"] {
                    #expect(try await system.count("select count(*) from \(table)") == 0)
                }
                system.postgresProxy?.set(.forwarding)
                system.owe(sale, to: "u1")
                let again = try await system.submit(sale, user: "u1", wait: 20)
                #expect(again.state == "granted")
            }
        }

        /// Goal: while a database is connected and does not answer (a stopped server, a dead host), ingest answers 503
        /// with Retry-After before any gateway gives up (29 s), and nothing is half-stored.
        /// Method: the database is frozen. A post, a look at a receipt, and both again while the first wait: each
        /// answers 503 within `silenceMax`, and so does readiness; then all at once. Liveness answers all the time. The
        /// database comes back: the same post is accepted and granted.
        @Test(.timeLimit(.minutes(3))) func databaseFrozenIs503WithinItsBound() async throws {
            let bound = PostgresConfiguration(url: "").silenceMax
            #expect(bound == .seconds(12))
            try await System.run(.init(hasProxies: true)) { system in
                try await system.startAll()
                let first = try await system.appStore.sell()
                system.owe(first, to: "u1")
                let stored = try await system.submit(first, user: "u1", wait: 20)
                let sale = try await system.appStore.sell()
                let client = try system.client
                let post = Client.Post(userId: "u2", signedTransaction: sale.signedTransaction)
                let start = ContinuousClock.now
                system.postgresProxy?.set(.frozen)
                let calls = try await withThrowingTaskGroup(of: (answer: Client.Answer, time: Duration).self) { group in
                    for second in [0, 5, 9] {
                        for isPost in [true, false] {
                            group.addTask {
                                try await Task.sleep(for: .seconds(second))
                                let start = ContinuousClock.now
                                let answer =
                                    isPost ? try await client.post(post) : try await client.receipt(stored.id)
                                return (answer, ContinuousClock.now - start)
                            }
                        }
                    }
                    return try await group.reduce(into: []) { $0.append($1) }
                }
                #expect(ContinuousClock.now - start < bound + .seconds(2), "those that came later ended with the first")
                for (answer, time) in calls {
                    #expect(answer.status == 503)
                    #expect(answer.code == "unavailable")
                    #expect((answer.header("retry-after").flatMap { Int($0) } ?? 0) > 0)
                    #expect(time < bound + .seconds(2))
                }
                let ready = try await client.get("/health/ready")
                #expect(ready.status == 503)
                #expect((ready.header("retry-after").flatMap { Int($0) } ?? 0) > 0)
                #expect(try await client.get("/health/live").status == 200)
                let later = ContinuousClock.now
                #expect(try await client.post(post).status == 503)
                #expect(try await client.receipt(stored.id).status == 503)
                #expect(ContinuousClock.now - later < .seconds(2))
                #expect(try await system.count("select count(*) from receipts") == 1)
                system.postgresProxy?.set(.forwarding)
                system.owe(sale, to: "u2")
                #expect(try await system.submit(sale, user: "u2", wait: 20).state == "granted")
            }
        }

        /// Goal: Apple is down for hours, and the player buys the same product again meanwhile; both purchases are
        /// granted (P1).
        /// Method: Apple answers 503 to everything. Two purchases of one product are posted as legacy receipts, the
        /// second with both in it; both are accepted and being tried, with a next attempt, and not safe to finish.
        /// After several failed attempts Apple is back: both are granted once.
        @Test func appleDownAndTheSameProductBoughtAgain() async throws {
            try await System.run { system in
                try await system.startAll()
                var down = FaultRequest(.status, on: .all)
                down.status = 503
                try system.appStore.store.fault(down)
                let first = try await system.appStore.sell()
                let second = try await system.appStore.sell { $0.receiptOf = [first.purchase.transactionId] }
                system.owe([first, second], to: "u1")
                for sale in [first, second] {
                    let answer = try await system.submitReceipt(sale, user: "u1")
                    #expect(answer.status == 202)
                    #expect(answer.safeToFinish == false)
                    #expect(answer.json["nextAttemptAt"] != nil)
                }
                try await system.wait("two counted attempts for each") {
                    try await system.count("select count(*) from receipts where attempt >= 2 and state = 'received'")
                        == 2
                }
                #expect(try await system.count("select count(*) from attempts where http_status = 503") >= 4)
                system.appStore.store.clearFaults()
                try await system.settleDebts()
            }
        }

        /// Goal: calls that hang at Apple never delay proofs that need no call.
        /// Method: Apple hangs for 30 s on every verifyReceipt; 500 legacy receipts are posted and fill the workers'
        /// share of calls; 20 signed transactions posted then are granted within two seconds each, but for one. Apple
        /// comes back: all 500 are granted too, each once.
        @Test(.timeLimit(.minutes(4))) func appleHangsAndSignedTransactionsAreGrantedAtOnce() async throws {
            // Scaled so that the rescue delay of Apple's queue stays longer than the longest call.
            try await System.run(.init(timeScale: 0.35)) { system in
                try await system.startAll()
                var hanging = FaultRequest(.timeout, on: .verifyReceipt)
                hanging.seconds = 30
                try system.appStore.store.fault(hanging)
                let legacy = try await system.appStore.sell(500)
                system.owe(legacy, to: "patient")
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for (index, sale) in legacy.enumerated() {
                        if index >= 32 { try await group.next() }
                        group.addTask { try await system.submitReceipt(sale, user: "patient") }
                    }
                    try await group.waitForAll()
                }
                try await system.wait("as many calls as a worker dares while nothing was answered") {
                    system.appStore.store.openCalls.now == ConcurrencyLimit.start
                }
                var waits: [Duration] = []
                for sale in try await system.appStore.sell(20) {
                    // The number of calls that the worker itself reports.
                    let most = try await system.count("select coalesce(max(in_flight), 0) from apple_hosts")
                    #expect(most <= ConcurrencyLimit.start)
                    system.owe(sale, to: "quick")
                    let start = ContinuousClock.now
                    let answer = try await system.submit(sale, user: "quick", wait: 20)
                    waits.append(ContinuousClock.now - start)
                    #expect(answer.state == "granted")
                }
                #expect(waits.sorted()[18] < .seconds(2), "\(waits)")
                // If the worker gives up a call, the simulator counts it as open until it notices the end, beside the
                // call that took its place. A slow machine may have given one up by now.
                let most = system.appStore.store.openCalls.most
                let givenUp = try await system.count("select count(*) from attempts")
                #expect(most <= ConcurrencyLimit.start + givenUp, "\(givenUp) were given up")
                #expect((ConcurrencyLimit.start..<2 * ConcurrencyLimit.start).contains(most))
                system.appStore.store.clearFaults()
                try await system.settleDebts(within: .seconds(120))
            }
        }
    }

    /// The servers themselves are killed and started again. They are this suite's own, so that no other test is
    /// disturbed.
    @Suite struct Restarts {
        /// Goal: PostgreSQL restarted in the middle of commits, RabbitMQ in the middle of publishes (P27, P30): every
        /// purchase is granted once, and every process recovers without help.
        /// Method: players post without pause, until accepted, while PostgreSQL is killed -9 and comes back, while
        /// RabbitMQ is restarted in order, and while RabbitMQ is killed -9 and comes back.
        @Test(.timeLimit(.minutes(5))) func postgresAndRabbitMQRestartedUnderLoad() async throws {
            try await PrivateServers.run(script: System.localScript) { servers in
                try await System.run(.init(servers: servers)) { system in
                    try await system.startAll()
                    let isOver = Flag()
                    try await withThrowingTaskGroup(of: Void.self) { group in
                        for player in 0..<4 {
                            group.addTask {
                                while !isOver.isSet {
                                    let sale = try await system.appStore.sell()
                                    system.owe(sale, to: "u\(player)")
                                    try await system.submit(
                                        .init(userId: "u\(player)", signedTransaction: sale.signedTransaction),
                                        patience: .seconds(120))
                                    try await Task.sleep(for: .milliseconds(50))
                                }
                            }
                        }
                        group.addTask {
                            defer { isOver.set() }
                            for (step, server) in [("kill", "postgres"), ("restart", "rabbitmq"), ("kill", "rabbitmq")]
                            {
                                let before = try? await system.count("select count(*) from grants")
                                step == "kill" ? try await servers.kill(server) : try await servers.restart(server)
                                if step == "kill" { try await servers.up() }
                                try await system.wait("grants after \(step) \(server)", within: .seconds(60)) {
                                    (try? await system.count("select count(*) from grants")) ?? 0 > (before ?? 0) + 10
                                }
                            }
                        }
                        try await group.waitForAll()
                    }
                    try await system.settleDebts(within: .seconds(120))
                    #expect([.ingest, .worker, .scheduler].allSatisfy { system.started($0) == 1 })
                }
            }
        }
    }
}
