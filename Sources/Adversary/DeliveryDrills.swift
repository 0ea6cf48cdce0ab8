import FaultProxy
import Foundation
import Glibc
import Ledger
import Settings

extension Drill {
    /// Drills in which events go to endpoints. Each of them ends with the audit of every receiver (``DeliveryAudit``).
    static let deliveryDrills: [Drill] = [
        Drill(
            "31", "receiver down for 72 hours of the dispatchers' waits, then up",
            expected: "no post notices; only probes meanwhile; then each event in order, and no person did anything",
            endpoints: 1
        ) { stage in
            let endpoint = stage.endpoints[0]
            endpoint.proxy.set(.cut)
            try await stage.expect("it is failing", within: .seconds(15)) {
                try await stage.state(of: endpoint) == "failing"
            }
            let (hours, steps) = (Duration.seconds(72 * 3600) * stage.world.shape.scale, 24)
            for _ in 0..<steps {
                try await stage.sleep(.seconds(1))
                try await stage.age(endpoint, by: hours / steps)
            }
            let past = try await stage.world.count(
                "select extract(epoch from now() - failing_since)::int8 from endpoints where state = 'failing'")
            stage.expect("it fails for \(hours.short)", .seconds(past) >= hours, "\(Duration.seconds(past).short)")
            // A probe in each step, the first ones before them, and what was on the way.
            let most = 2 * steps + 2 * TestEndpoint.concurrency
            let failed = await stage.attempts("failed")
            stage.expect("at most \(most) tries meanwhile", (steps / 2...most).contains(failed), "\(failed)")
            let waiting = try await stage.world.count("select count(*) from deliveries where behind_xid is not null")
            endpoint.proxy.set(.forwarding)
            // The next probe may be five of the dispatchers' minutes away, and a fifth more.
            try await stage.expect("it works again", within: .seconds(15) + .seconds(360) * stage.world.shape.scale) {
                try await stage.state(of: endpoint) == "working"
            }
            try await stage.expect("the \(waiting) users who waited have their events", within: .seconds(90)) {
                try await stage.world.count(DeliveryAudit.openCount) < Int(stage.world.shape.rate)
            }
            stage.expectAnswers()
        },
        Drill(
            "32", "slow, failing, redirecting, resetting, hanging and lying receivers by turns",
            expected: "no redirect is followed; what was not taken comes again; the endpoint works after each",
            endpoints: 1
        ) { stage in
            let endpoint = stage.endpoints[0]
            let trap = try await EventReceiver.start(secrets: [])
            let turns: [(name: String, answer: EventReceiver.Answer, delay: Duration)] = [
                ("takes a second", .status(204), .seconds(1)), ("answers 500", .status(500), .zero),
                ("answers 302", .status(302, headers: ["location": trap.url]), .zero),
                ("asks for a second of rest", .status(429, headers: ["retry-after": "1"]), .zero),
                ("resets", .reset, .zero), ("hangs", .hang, .zero),
                ("speaks no HTTP", .bytes("\u{1}\u{2} no HTTP\r\n\r\n"), .zero),
                ("takes with 8 MiB of text", .body(200, bytes: 8 << 20), .zero),
                ("takes with a picture", .status(200, headers: ["content-type": "image/png"]), .zero),
            ]
            for turn in turns {
                endpoint.receiver.answer { _, _ in .init(turn.answer, after: turn.delay) }
                try await stage.sleep(stage.scaled(.seconds(20), min: .seconds(3)))
                endpoint.receiver.answer { _, _ in .taken }
                try await stage.expect("it works after one that \(turn.name)", within: .seconds(60)) {
                    try await stage.state(of: endpoint) == "working"
                }
                try await stage.expectMore(at: endpoint, "and takes events", within: .seconds(20))
            }
            stage.expect("no redirect was followed", trap.received.isEmpty, "\(trap.received.count) times")
            await trap.stop()
            stage.expectAnswers()
        },
        Drill(
            "33", "dispatchers killed every 2 s", expected: "nothing is lost; what was on the way comes twice at most",
            endpoints: 1
        ) { stage in
            let endpoint = stage.endpoints[0]
            // Something is always on the way.
            endpoint.receiver.answer { _, _ in .init(.status(204), after: .milliseconds(50)) }
            for round in 0..<stage.world.rounds(60, min: 8) {
                let dispatcher = stage.dispatchers[round % stage.dispatchers.count]
                stage.interruptDelivery()
                await dispatcher.kill()
                try await dispatcher.start()
                try await stage.sleep(.seconds(2))
            }
            try await stage.expectMore(at: endpoint, "events go on arriving", within: .seconds(20))
            let most = endpoint.receiver.inFlightMax
            stage.expect("several were on the way at a time", most > 1, "\(most)")
            stage.expectAnswers()
        },
        Drill(
            "34", "the secret of an endpoint is changed under load",
            expected: "the receiver trusts every webhook: by the old secret, by either, by the new one", endpoints: 1
        ) { stage in
            let endpoint = stage.endpoints[0]
            let (old, new) = (TestEndpoint.secrets[0], TestEndpoint.secrets[1])
            try await stage.sign(by: [old, new])
            try await stage.expectMore(at: endpoint, "trusted by the old secret", within: .seconds(20))
            endpoint.receiver.trust([new].compactMap(WebhookSecret.init))
            try await stage.expectMore(at: endpoint, "trusted by the new one beside it", within: .seconds(20))
            try await stage.sign(by: [new])
            try await stage.expectMore(at: endpoint, "trusted by the new one alone", within: .seconds(20))
            stage.expectAnswers()
        },
        Drill(
            "35", "one of ten endpoints hangs",
            expected: "the other nine get 99 of 100 events in at most double the time",
            endpoints: 10
        ) { stage in
            let (hanging, others) = (stage.endpoints[0], stage.endpoints.dropFirst())
            let span = stage.scaled(.seconds(100), min: .seconds(10))
            let calm = try await stage.deliveryP99(at: others, over: span)
            // Now and then it takes an event, so that it is not left alone.
            hanging.receiver.answer { _, number in number % 4 == 0 ? .taken : .init(.hang) }
            let during = try await stage.deliveryP99(at: others, over: span)
            stage.expect(
                "p99 from event to arrival", during <= 2 * calm,
                "\(Duration.seconds(calm).short) before, \(Duration.seconds(during).short) during")
            stage.expectAnswers()
        },
        Drill(
            "36", "broker wiped and database restarted while events are delivered",
            expected: "deliveries go on without a broker's help; nothing is lost", declaresQueues: true, endpoints: 1
        ) { stage in
            let endpoint = stage.endpoints[0]
            stage.interrupt(3 * 64)
            try await stage.servers.wipeBroker()
            try await stage.servers.up()
            try await stage.expectMore(at: endpoint, "events arrive after the broker's loss", within: .seconds(30))
            stage.interrupt(3 * 64)
            stage.interruptDelivery()
            try await stage.servers.restart("postgres")
            try await stage.expectMore(at: endpoint, "and after the database's restart", within: .seconds(30))
            stage.expectAnswers([503])
        },
    ]
}

extension DrillContext {
    /// Lets time go by for an endpoint: puts the times of its failures and of its next tries back.
    fileprivate func age(_ endpoint: TestEndpoint, by time: Duration) async throws {
        let (back, id) = ("interval '\(time / .seconds(1)) s'", endpoint.key.id.uuidString)
        try await world.script(
            """
            update endpoints set failing_since = failing_since - \(back), probe_at = probe_at - \(back)
            where id = '\(id)';
            update deliveries set failing_since = failing_since - \(back), due_at = due_at - \(back)
            where endpoint = '\(id)' and failing_since is not null
            """)
    }

    /// Waits until an endpoint has taken so many events more.
    fileprivate func expectMore(
        at endpoint: TestEndpoint, _ what: String, count: Int = 20, within limit: Duration
    ) async throws {
        let before = endpoint.receiver.taken.count
        try await expect(what, within: limit) { endpoint.receiver.taken.count >= before + count }
    }

    /// Has the dispatchers sign by these secrets. On return nothing is on the way that was signed otherwise.
    fileprivate func sign(by secrets: [String]) async throws {
        func reloads(_ member: Member) -> Int {
            member.process?.log.split(separator: "\n").count { $0.contains("configuration taken") } ?? 0
        }
        let before = dispatchers.map(reloads)
        try world.writeConfiguration(secrets: secrets)
        for dispatcher in dispatchers { dispatcher.process?.send(SIGHUP) }
        try await expect("\(secrets.count) secrets: every dispatcher has read them", within: .seconds(15)) {
            zip(dispatchers.map(reloads), before).allSatisfy { $0 > $1 }
        }
        // A turn looks at the configuration every half second.
        try await sleep(.seconds(1 + TestEndpoint.timeoutSeconds))
    }

    /// The seconds from an event to its arrival that 99 of 100 events of the next time needed. An event that has not
    /// arrived a second later counts with the time until then.
    fileprivate func deliveryP99(at endpoints: some Sequence<TestEndpoint>, over time: Duration) async throws -> Double
    {
        try await expect("what waits is delivered", within: .seconds(60)) {
            try await world.count(DeliveryAudit.openCount) < Int(world.shape.rate)
        }
        let (clock, date) = (ContinuousClock.now, Date())
        try await sleep(time)
        let end = Date().timeIntervalSince1970
        try await sleep(.seconds(1))
        let rows = try await world.texts(
            """
            select event_id || ' ' || extract(epoch from at) from events
            where extract(epoch from at) between \(date.timeIntervalSince1970) and \(end)
            """)
        let told = rows.compactMap { row -> (id: String, at: Double)? in
            let words = row.split(separator: " ")
            return Double(words[1]).map { (id: String(words[0]), at: $0) }
        }
        let now = Date().timeIntervalSince1970
        var times: [Double] = []
        for endpoint in endpoints {
            let arrivals = Dictionary(
                endpoint.receiver.received.map {
                    ($0.id, date.timeIntervalSince1970 + ($0.at - clock) / .seconds(1))
                }, uniquingKeysWith: { first, _ in first })
            times += told.map { (arrivals[$0.id] ?? now) - $0.at }
        }
        expect("events were told meanwhile", !times.isEmpty, "\(told.count)")
        times.sort()
        return times.isEmpty ? .infinity : times[min(times.count - 1, times.count * 99 / 100)]
    }
}
