import Adversary
import AppStoreSimulator
import Foundation
import Glibc
import Purchases
import Testing
import WorkQueue

extension EndToEnd {
    /// How processes start, end and report their state.
    @Suite struct Operations {
        /// Goal: SIGTERM loses no request: readiness turns 503 first, the listener stays open for the drain delay,
        /// requests under way are finished, and the process ends with exit 0.
        /// Method: a post whose body takes longer to arrive than the drain delay is under way when ingest gets SIGTERM.
        /// Readiness answers 503 while a new post is still accepted, with `Connection: close`; the slow post is
        /// answered 202; the process exits 0, and a worker grants both.
        @Test func sigtermDrainsIngest() async throws {
            try await System.run { system in
                let ingest = try await system.start(.ingest, ["MAKEGOOD_DRAIN_DELAY_SECONDS": "5"])
                try await system.start(.worker)
                try await system.start(.scheduler)
                let client = try system.client
                let sales = try await system.appStore.sell(2)
                system.owe(sales, to: "u1")
                let body = try JSONEncoder().encode(
                    Client.Post(userId: "u1", signedTransaction: sales[0].signedTransaction))
                async let slow = client.postSlowly(body, over: .seconds(8))
                try await Task.sleep(for: .milliseconds(500))
                ingest.send(SIGTERM)
                try await system.wait("readiness to say draining", within: .seconds(5)) {
                    let ready = try await client.get("/health/ready")
                    return ready.status == 503 && ready.json["status"] as? String == "draining"
                }
                let late = try await client.post(.init(userId: "u1", signedTransaction: sales[1].signedTransaction))
                #expect(late.status == 202)
                #expect(late.header("connection") == "close")
                #expect(try await slow.status == 202)
                #expect(try await ingest.end(within: .seconds(30)) == .exit(0))
                try await system.settleDebts()
            }
        }

        /// Goal: SIGTERM loses no verification that is under way.
        /// Method: a worker waits for Apple's slow answer when it gets SIGTERM; it takes the answer, commits, and ends
        /// with exit 0. No other worker ran, and Apple was asked once.
        @Test func sigtermDrainsAWorker() async throws {
            // A call to Apple may take 4 s at this scale.
            try await System.run(.init(timeScale: 0.2)) { system in
                try await system.start(.ingest)
                let worker = try await system.start(.worker)
                var latency = FaultRequest(.latency, on: .verifyReceipt)
                latency.milliseconds = 2000
                try system.appStore.store.fault(latency)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                try await system.submitReceipt(sale, user: "u1")
                try await system.wait("the call to Apple") { system.appStore.store.openCalls.now == 1 }
                worker.send(SIGTERM)
                #expect(try await worker.end(within: .seconds(30)) == .exit(0))
                #expect(try await system.count("select count(*) from grants") == 1)
                #expect(system.appStore.calls(about: sale).count == 1)
            }
        }

        /// Goal: `makegood all` alone does the whole job.
        /// Method: one process; a signed transaction and a receipt whose first call to Apple breaks are posted; both
        /// are granted, health and metrics answer on its own port, SIGTERM ends it with 0.
        @Test func allAloneDoesTheWholeJob() async throws {
            try await System.run { system in
                let all = try await system.start(.all)
                try system.appStore.store.fault(FaultRequest(.reset, on: .verifyReceipt, count: 1))
                let sales = try await system.appStore.sell(2)
                system.owe(sales, to: "u1")
                try await system.submitReceipt(sales[1], user: "u1")
                #expect(try await system.submit(sales[0], user: "u1", wait: 20).state == "granted")
                try await system.settleDebts()
                let ready = try await system.client.get("/health/ready")
                #expect(ready.status == 200)
                #expect(ready.json["role"] as? String == "all")
                #expect(try await system.client.get("/metrics").text.contains("makegood_"))
                all.send(SIGTERM)
                #expect(try await all.end(within: .seconds(30)) == .exit(0))
            }
        }

        /// Goal: every role reports its state on its operations port; ingest reports it on its own port if it has no
        /// operations port.
        /// Method: liveness, readiness with role, schema and configuration hash, and metrics of a process of each role;
        /// the configuration hash changes with SIGHUP, and a broken file is refused whole: the old one stays.
        @Test func healthAndMetricsAnswerForEveryRole() async throws {
            try await System.run { system in
                var bases = [try await system.client(of: system.start(.ingest)).url]
                for role in [System.Role.worker, .dispatcher, .scheduler] {
                    let process = try await system.start(role, ["MAKEGOOD_OPERATIONS_PORT": "0"])
                    bases.append("http://127.0.0.1:\(try await process.port(of: "operations"))")
                }
                func hashes() async throws -> Set<String> {
                    var hashes: Set<String> = []
                    for (base, role) in zip(bases, ["ingest", "worker", "dispatcher", "scheduler"]) {
                        let client = Client(url: base, credential: nil)
                        #expect(try await client.get("/health/live").status == 200)
                        let ready = try await client.get("/health/ready")
                        #expect(ready.status == 200)
                        #expect(ready.json["role"] as? String == role)
                        #expect(ready.json["database"] as? String == "up")
                        hashes.insert(ready.json["configuration"] as? String ?? "")
                        let metrics = try await client.get("/metrics")
                        #expect(metrics.status == 200)
                        #expect(metrics.text.contains("# TYPE makegood_"))
                    }
                    return hashes
                }
                let before = try await hashes()
                #expect(before.count == 1)
                try system.configureGame { $0.testers.users.append("tester-2") }
                try await system.reload()
                let after = try await hashes()
                #expect(after.count == 1 && after != before)
                try await system.refuseConfiguration()
                #expect(try await hashes() == after)
            }
        }

        /// Goal: a dying process does not write what it held (proofs, keys, passwords) to a disk.
        /// Method: the limit of core files of each running service, hard and soft, is 0.
        @Test func noServiceWritesACoreFile() async throws {
            try await System.run { system in
                for role in [System.Role.ingest, .worker, .scheduler] {
                    let process = try await system.start(role)
                    let limits = try String(contentsOfFile: "/proc/\(process.id)/limits", encoding: .utf8)
                    let line = try #require(limits.split(separator: "\n").first { $0.hasPrefix("Max core file size") })
                    #expect(line.split(separator: " ").suffix(3) == ["0", "0", "bytes"], "\(role)")
                }
            }
        }

        /// Goal: the time from accept to grant is measured once for each purchase that is given, by app, environment
        /// and lane. Purchases that were refused, owned already, or held for our own product are not measured.
        /// Method: two local purchases, a sandbox one and a legacy receipt are granted; one is posted by a second user;
        /// one of an unknown product is held and granted once it is configured. The worker's counts are compared, and
        /// the sum is less than a minute.
        @Test func theTimeToGrantIsMeasured() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let worker = try await system.start(.worker, ["MAKEGOOD_OPERATIONS_PORT": "0"])
                try await system.start(.scheduler)
                let sales = try await system.appStore.sell(3)
                system.owe(sales, to: "u1")
                for sale in sales.prefix(2) { try await system.submit(sale, user: "u1", wait: 20) }
                try await system.submitReceipt(sales[2], user: "u1", wait: 20)
                #expect(try await system.submit(sales[0], user: "u2", wait: 20).state == "already_granted")
                let sandbox = try await system.appStore.sell { $0.environment = .sandbox }
                system.owe(sandbox, to: "tester")
                try await system.submit(sandbox, user: "tester", wait: 20)
                let product = "com.example.game.new"
                let held = try await system.appStore.sell(product)
                #expect(try await system.submit(held, user: "u1", wait: 20).state == "held")
                system.owe(held, to: "u1")
                try system.configureGame {
                    $0.products.append(.init(id: product, goods: [.init(item: "novelties", amount: 7)]))
                }
                try await system.reload()
                try await system.settleDebts()

                let operations = "http://127.0.0.1:\(try await worker.port(of: "operations"))"
                let lines = try await Client(url: operations, credential: nil).get("/metrics").text
                    .split(separator: "\n").filter { $0.hasPrefix("makegood_time_to_grant_seconds") }
                func labels(_ environment: String, _ lane: String) -> String {
                    "app=\"game\",environment=\"\(environment)\",lane=\"\(lane)\""
                }
                #expect(
                    Set(lines.filter { $0.contains("_count{") }) == [
                        "makegood_time_to_grant_seconds_count{\(labels("Production", "local"))} 2",
                        "makegood_time_to_grant_seconds_count{\(labels("Production", "apple"))} 1",
                        "makegood_time_to_grant_seconds_count{\(labels("Sandbox", "local"))} 1",
                    ])
                let within = "makegood_time_to_grant_seconds_bucket{\(labels("Production", "local")),le=\"60\"} 2"
                #expect(lines.contains(Substring(within)))
                for line in lines where line.contains("_sum{") {
                    let sum = try #require(line.split(separator: " ").last.flatMap { Double($0) })
                    #expect(sum > 0 && sum < 60, "\(line)")
                }
            }
        }

        /// Goal: a long poll answers within a second of the grant.
        /// Method: no worker runs; a post with `wait=25` and a GET with `wait=25` wait; then a worker starts. The
        /// answers say granted, and arrive less than a second after the grant was written. Three times; one of them may
        /// fail because the machine pauses.
        @Test func aLongPollWakesWithinASecondOfTheGrant() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let client = try system.client
                var waits: [Double] = []
                for sale in try await system.appStore.sell(3) {
                    system.owe(sale, to: "u1")
                    let id = try await system.submit(sale, user: "u1").id
                    let waiting = (0..<2).map { index in
                        Task {
                            let answer =
                                index == 0
                                ? try await client.receipt(id, wait: 25)
                                : try await client.post(
                                    .init(userId: "u1", signedTransaction: sale.signedTransaction), wait: 25)
                            return (answer.state, Date.now.timeIntervalSince1970)
                        }
                    }
                    let worker = try await system.start(.worker)
                    for task in waiting {
                        let (state, answeredAt) = try await task.value
                        #expect(state == "granted")
                        let grantedAt = try await system.texts(
                            """
                            select extract(epoch from granted_at)::text from grants
                            where transaction_id = '\(sale.purchase.transactionId)'
                            """)
                        waits.append(answeredAt - (Double(grantedAt.first ?? "") ?? 0))
                    }
                    await worker.killHard()
                }
                #expect(waits.sorted()[3] < 1, "\(waits)")
            }
        }

        /// Goal: any number of schedulers may run at once.
        /// Method: 200 receipts wait, their messages are purged; two schedulers and two workers bring all of them back:
        /// each is granted once, and few were queued twice (the claims exclude each other).
        @Test func twoSchedulersAtOnceShareTheWork() async throws {
            try await System.run(.init(timeScale: 0.2)) { system in
                try await system.start(.ingest)
                // Of ten users: fewer receipts of a single user are published at once.
                for (number, sale) in try await system.appStore.sell(200).enumerated() {
                    let user = "u\(number % 10)"
                    system.owe(sale, to: user)
                    try await system.submit(sale, user: user)
                }
                let queue = system.queues.verify(.local)
                try await system.waitForMessages(200, in: queue)
                #expect(try system.purge(queue) > 0)
                async let first = system.start(.scheduler)
                async let second = system.start(.scheduler)
                _ = try await (first, second)
                try await system.wait("every row to be queued again") {
                    try await system.count("select count(*) from receipts where rescues > 0") == 200
                }
                #expect(try await system.count("select sum(rescues) from receipts") < 300)
                try await system.start(.worker)
                try await system.start(.worker)
                try await system.settleDebts()
            }
        }
    }
}

extension System {
    /// Makes the file unreadable, sends SIGHUP, and waits until every process has refused it.
    fileprivate func refuseConfiguration() async throws {
        try Data("apps: [".utf8).write(to: URL(filePath: "\(directory)/makegood.yaml"))
        try await hangUp("configuration refused")
    }
}
