import Service
import Settings
import Testing

/// Goal: a process never runs out of file descriptors, and a small number is enough. Method: the shares of each role at
/// common limits, by hand and by rule.
@Suite struct OperationsDescriptorTests {
    private static func shares(
        _ files: Int, hasClients: Bool, callsApple: Bool, _ environment: [String: String] = [:]
    ) throws(ConfigurationError) -> DescriptorShares {
        try DescriptorShares(
            files: files, Settings(environment: environment), hasClients: hasClients, callsApple: callsApple)
    }

    @Test("64 are enough for each role; an ingest, which has connections for lists, needs them all")
    func least() throws {
        let ingest = try Self.shares(64, hasClients: true, callsApple: false)
        #expect(ingest.clients == 12 && ingest.operations == 4)
        let worker = try Self.shares(64, hasClients: false, callsApple: true)
        #expect(worker.appleInFlight == 4 && worker.operations == 5)
        let all = try Self.shares(64, hasClients: true, callsApple: true)
        #expect(all.clients == 6 && all.appleInFlight == 1)
        for (hasClients, callsApple, least) in [
            (true, false, 64), (false, true, 58), (false, false, 58), (true, true, 64),
        ] {
            let error = #expect(throws: ConfigurationError.self) {
                try Self.shares(least - 1, hasClients: hasClients, callsApple: callsApple)
            }
            #expect(error.map { "\($0)" }?.contains("\(least)") == true)
            _ = try Self.shares(least, hasClients: hasClients, callsApple: callsApple)
        }
    }

    @Test("Loops and writers of one's own need more")
    func more() throws {
        let environment = ["MAKEGOOD_THREADS": "8", "MAKEGOOD_POSTGRES_WRITERS": "4"]
        #expect(throws: ConfigurationError.self) {
            try Self.shares(87, hasClients: true, callsApple: false, environment)
        }
        _ = try Self.shares(88, hasClients: true, callsApple: false, environment)
    }

    @Test("Where there are enough, everybody has what the settings say")
    func plenty() throws {
        for inFlight in [1, 64, 2000, 10_000] {
            let environment = ["MAKEGOOD_APPLE_IN_FLIGHT": "\(inFlight)"]
            for (hasClients, callsApple) in [(true, false), (false, true), (true, true)] {
                let files = DescriptorShares.most(
                    try Settings(environment: environment), hasClients: hasClients, callsApple: callsApple)
                let shares = try Self.shares(files, hasClients: hasClients, callsApple: callsApple, environment)
                #expect(shares.clients == (hasClients ? 10_000 : 0))
                if callsApple { #expect(shares.appleInFlight == inFlight) }
                #expect(
                    try Self.shares(1 << 20, hasClients: hasClients, callsApple: callsApple, environment) == shares)
            }
        }
    }

    @Test("A dispatcher has a connection for each webhook, and at least one; with clients and Apple it shares")
    func webhooks() throws {
        let settings = try Settings(environment: [:])
        let most = DescriptorShares.most(settings, hasClients: false, callsApple: false, webhooks: 500)
        let alone = try DescriptorShares(
            files: most, settings, hasClients: false, callsApple: false, webhooks: 500)
        #expect(alone.webhooks == 500 && alone.clients == 0)
        for files in [64, 65, 100, 256, 1024, 20_000] {
            let all = try DescriptorShares(files: files, settings, hasClients: true, callsApple: true, webhooks: 500)
            #expect(all.webhooks >= 1 && all.webhooks <= 500 && all.clients >= 1 && all.appleInFlight >= 1)
            #expect(48 + all.clients + all.operations + 4 * all.appleInFlight + all.webhooks <= files)
        }
    }

    @Test("The shares never exceed what there is", arguments: [64, 65, 100, 256, 1024, 4096, 20_000])
    func within(files: Int) throws {
        for (hasClients, callsApple) in [(true, false), (false, true), (true, true)] {
            let shares = try Self.shares(
                files, hasClients: hasClients, callsApple: callsApple, ["MAKEGOOD_APPLE_IN_FLIGHT": "2000"])
            let calls = callsApple ? 4 * shares.appleInFlight : 0
            // The constant covers the descriptors that a process has by itself, with a reserve.
            #expect((hasClients ? 48 : 42) + shares.clients + shares.operations + calls <= files)
            #expect((shares.clients > 0) == hasClients)
        }
    }
}
