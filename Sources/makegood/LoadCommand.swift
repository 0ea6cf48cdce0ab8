import AppStoreSimulator
import ArgumentParser
import AsyncHTTPClient
import Commands
import Foundation
import Ledger
import NIOCore
import Settings
import Synchronization

/// `makegood load`: posts receipts to a running deployment and reports the latencies.
struct LoadCommand: AsyncParsableCommand {
    /// The most requests of one run; a simulator's ledger holds as many purchases.
    private static let requestsMax = SimulatorConfiguration.purchasesMaxDefault

    static let configuration = CommandConfiguration(
        commandName: "load",
        abstract: "Put load on a running deployment: throughput and latency percentiles.",
        discussion: """
            Each purchase is posted once, or each order placed, for one of --users users; of one user at most \
            \(Statements.ordersPerUserMax) orders are taken within a day. With a --rate the loop is open: requests start by \
            the clock and latency counts from the intended start, so waiting for a slow server is in the figures. With \
            max the loop is closed: each connection sends its next request when it has its answer; good for \
            throughput, too kind for latency.

            Only addresses of this machine are taken, unless --allow-remote is written. Exit code: 0; 1 if nothing was \
            accepted, the tokens' source failed, or --until-granted ran out of time (60 s).
            """)

    /// Requests a second, or as fast as the answers come.
    enum Rate: ExpressibleByArgument {
        case max
        case perSecond(Double)

        init?(argument: String) {
            if argument == "max" {
                self = .max
            } else if let rate = Double(argument), (0.1...100_000).contains(rate) {
                self = .perSecond(rate)
            } else {
                return nil
            }
        }

        var perSecond: Double? { if case .perSecond(let rate) = self { rate } else { nil } }
        var defaultValueDescription: String { perSecond.map { "\($0)" } ?? "max" }
    }

    @Option(
        help: ArgumentHelp(
            "Signed transactions to post, one a line (makegood simulate tokens); the run ends when they are used up.",
            valueName: "file"))
    var tokens: String?

    @Flag(help: "The lines of --tokens are app receipts, in base64url.")
    var receipts = false

    @Flag(help: "The lines of --tokens are notifications of Apple's, which name no user.")
    var notifications = false

    @Flag(help: "Place orders of --product instead of posting purchases, each for a role of its own.")
    var orders = false

    @Option(
        help: ArgumentHelp("Buy as we go from this simulator, such as http://127.0.0.1:8090.", valueName: "url"))
    var simulator: String?

    @Option(help: ArgumentHelp("The deployment.", valueName: "url"))
    var url = "http://127.0.0.1:8080"

    @Option(help: "The key of a caller with the scope intake.")
    var key: String

    @Option(help: ArgumentHelp("The app's id; needed where the key has several apps.", valueName: "id"))
    var app: String?

    @Option(help: ArgumentHelp("The app whose product the simulator sells.", valueName: "id"))
    var bundleId = "com.example.game"

    @Option(help: ArgumentHelp("The product that the simulator sells.", valueName: "id"))
    var product = "com.example.game.coins6"

    @Option(help: ArgumentHelp("Where the simulator sells: Production or Sandbox.", valueName: "name"))
    var environment = "Production"

    @Option(help: ArgumentHelp("Connections, each with one request at a time.", valueName: "number"))
    var connections = 16

    @Option(help: ArgumentHelp("Requests a second, or max.", valueName: "number|max"))
    var rate = Rate.max

    @Option(help: "How long requests are sent.")
    var seconds = 10.0

    @Option(help: ArgumentHelp("Users that the purchases are posted for in turn.", valueName: "number"))
    var users = 100_000

    @Flag(help: "Watch accepted receipts, as many at a time as there are connections, each until it has ended.")
    var untilGranted = false

    @Flag(help: "Print one line of JSON.")
    var json = false

    @Flag(help: "Allow addresses of other machines.")
    var allowRemote = false

    func validate() throws {
        guard [tokens != nil, simulator != nil, orders].count(where: \.self) == 1 else {
            throw ValidationError("give --tokens, --simulator or --orders")
        }
        guard !orders || !untilGranted else { throw ValidationError("orders are placed, not granted") }
        guard tokens != nil || !receipts && !notifications else {
            throw ValidationError("--receipts and --notifications say what --tokens are")
        }
        guard !notifications || !receipts && !untilGranted else {
            throw ValidationError("notifications are neither receipts nor granted")
        }
        guard ["Production", "Sandbox"].contains(environment) else {
            throw ValidationError("--environment must be Production or Sandbox")
        }
        guard (1...1024).contains(connections) else { throw ValidationError("--connections must be 1 to 1024") }
        guard (0.1...3600).contains(seconds) else { throw ValidationError("--seconds must be 0.1 to 3600") }
        guard (1...1_000_000).contains(users) else { throw ValidationError("--users must be 1 to 1000000") }
        guard (planned ?? 0) <= Self.requestsMax else {
            throw ValidationError("--rate times --seconds must be at most \(Self.requestsMax)")
        }
    }

    private var planned: Int? { LoadRun.planned(rate: rate.perSecond, duration: .seconds(seconds)) }

    func run() async throws {
        let http = HTTPClient(configuration: clientConfiguration)
        let isGood: Bool
        do {
            isGood = try await load(with: http)
        } catch {
            try? await http.shutdown()
            Terminal.tell("makegood load: \(error)")
            throw ExitCode.failure
        }
        try await http.shutdown()
        if !isGood { throw ExitCode.failure }
    }

    private var clientConfiguration: HTTPClient.Configuration {
        var configuration = HTTPClient.Configuration(
            // A redirection could lead the load, and the key, to a machine that the operator did not name.
            redirectConfiguration: .disallow, timeout: .init(connect: .seconds(5)))
        // --until-granted makes up to `connections` requests at a time; one more is spare. The simulator's buyer has
        // its own host.
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = connections + 1
        configuration.connectionPool.retryConnectionEstablishment = false
        configuration.httpVersion = .http1Only
        configuration.tracing.tracer = nil
        return configuration
    }

    /// Runs the load. Returns whether a post was accepted and every watched receipt ended.
    private func load(with http: HTTPClient) async throws -> Bool {
        let address = try LoadAddress(url, option: "--url", allowsRemote: allowRemote)
        let target = LoadTarget(http: http, base: address.base, key: key)
        let watch = untilGranted ? GrantWatch(target: target, watchers: connections) : nil
        let run = LoadRun(
            connector: try LoadConnector(address),
            request: try LoadRequest(address: address, key: key, appId: app, kind),
            source: try source(http), limit: planned ?? Self.requestsMax, connections: connections,
            rate: rate.perSecond, duration: .seconds(seconds), users: users, watch: watch.map { $0.offer })
        do { try await target.checkHealth() } catch {
            throw UnusableInput("nothing answers at \(address.base): \(error)")
        }
        async let grants = watch?.grants()
        let outcome = try await run.run()
        watch?.finish()
        let found = outcome.found
        var report = run.report(of: outcome)
        let watched = await grants
        if found.acceptedCount > 0 { report.grants = watched }
        if json { Terminal.show(report.json) } else { Terminal.show(report.text) }
        if let trouble = found.firstTrouble { Terminal.tell("makegood load: the first trouble was: \(trouble)") }
        if let failure = outcome.failure { throw failure }
        return found.acceptedCount > 0 && report.grants?.open ?? 0 == 0
    }

    private var kind: LoadRequest.Kind {
        if orders { return .orders(product: product) }
        if notifications { return .notifications }
        return receipts ? .receipts : .signedTransactions
    }

    private func source(_ http: HTTPClient) throws(UnusableInput) -> TokenStock.Source {
        if orders {
            // Runs and orders never share a token, or ingest would see the same tap again.
            let run = UUID().uuidString
            let number = Atomic(0)
            return { count in
                let first = number.add(count, ordering: .relaxed).oldValue
                return (first..<first + count).map { ByteBuffer(string: "\(run)-\($0)") }
            }
        }
        if let tokens {
            let file = try TokenFile(path: tokens)
            return { count in try await file.next(count) }
        }
        let buyer = SimulatorBuyer(
            http: http,
            address: try LoadAddress(simulator ?? "", option: "--simulator", allowsRemote: allowRemote),
            bundleId: bundleId, product: product, environment: environment)
        return { count in try await buyer.buy(count) }
    }
}
