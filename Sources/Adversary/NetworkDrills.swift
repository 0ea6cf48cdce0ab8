import FaultProxy
import Foundation

extension Drill {
    /// Drills on the connections: from the clients to ingest, from every process to its servers, and to Apple.
    static let networkDrills: [Drill] = [
        Drill("28a", "every way is slow: 50 ms, writes of 100 bytes", expected: "late, but no post notices") { stage in
            try await stage.impair(
                FaultProxy.Conditions.both {
                    $0.latency = .milliseconds(50)
                    $0.writeBytesMax = 100
                })
            stage.expectAnswers()
        },
        Drill("28b", "every way is narrow: 100 kB/s", expected: "late or 503; nothing lost") { stage in
            try await stage.impair(FaultProxy.Conditions.both { $0.bytesPerSecond = 100_000 })
            stage.expectAnswers([0, 503])
        },
        Drill(
            "28c", "connections are reset at random, on every way", expected: "tried again; nothing lost, nothing twice"
        ) { stage in
            let end = ContinuousClock.now + stage.time
            while ContinuousClock.now < end {
                stage.interrupt(64)
                stage.ways[stage.random(stage.ways.count)].breakConnections(reset: stage.random(2) == 0)
                try await stage.sleep(.milliseconds(50 + stage.random(200)))
            }
            stage.expectAnswers([0, 503])
        },
        Drill("28d", "black holes at random, on every way", expected: "nobody waits for ever; nothing lost") { stage in
            stage.allowAbandonedCalls(factor: 2)
            let end = ContinuousClock.now + stage.time
            while ContinuousClock.now < end {
                stage.interrupt(64)
                let way = stage.ways[stage.random(stage.ways.count)]
                way.set(.frozen)
                try await stage.sleep(.milliseconds(200 + stage.random(1500)))
                way.set(.forwarding)
            }
            stage.expectAnswers([0, 503])
        },
    ]
}

extension DrillContext {
    /// All proxies of the deployment.
    fileprivate var ways: [FaultProxy] {
        ingests.map(\.clients) + world.members.map(\.postgres) + world.members.map(\.broker) + [world.appleProxy]
    }

    fileprivate var time: Duration { scaled(.seconds(100), min: .seconds(6)) }

    fileprivate func impair(_ conditions: FaultProxy.Conditions) async throws {
        for way in ways { way.set(conditions) }
        try await sleep(time)
        for way in ways { way.set(.forwarding) }
    }
}
