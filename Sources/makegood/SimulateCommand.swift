import AppStoreSimulator
import ArgumentParser
import Commands
import Foundation
import Logging
import NIOCore
import ServiceLifecycle
import UnixSignals

/// `makegood simulate`: runs an App Store of the operator's own, until SIGTERM or SIGINT.
struct SimulateCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "simulate",
        abstract: "Run a simulated App Store with its own root certificate.",
        discussion: """
            Sells through a control API, signs transactions, signs legacy receipts (PKCS#7), answers verifyReceipt and the App \
            Store Server API for Production and Sandbox on one port, sends notifications, and misbehaves by script. It has \
            a clock of its own, on which subscriptions renew. Its folder keeps \
            certificates, credentials and ledger: with the same folder it is the same App Store after a restart. \
            Ends on SIGTERM or SIGINT.

            Apple's side, below /production and /sandbox: verifyReceipt, and of /inApps transaction info, history, \
            subscription statuses, order lookup, refund history, extension (single, mass, its status), consumption, \
            test notification and its status, notification history, app account token, app transaction info, finish.

            The control API, below /control: the clock, purchases (sell, refund, take a refund back, family, offers), \
            customers, subscriptions (billing trouble, another product, price increase, bundles, seats), receipts, \
            forgeries, notifications, faults for each endpoint and of notifications, the OCSP responder, settings (rate \
            limits, propagation delay), and what happened: ledger, calls, filings, Apple's sales and financial \
            reports. All of it is in \
            Sources/AppStoreSimulator/Guide.md.
            """,
        subcommands: [SimulateTokensCommand.self])

    @Option(help: "The address to listen on.")
    var host = "127.0.0.1"

    @Option(help: "The port to listen on; 0 takes a free one.")
    var port = 8090

    @OptionGroup var folder: SimulatorFolder

    @Option(
        help: ArgumentHelp(
            "Start of the random numbers that decide faults given in percent. (default: different at each start)",
            valueName: "number"))
    var seed: UInt64?

    @Flag(
        help: """
            Show certificates that name this simulator as their OCSP responder; what it says is set with PUT \
            /control/ocsp.
            """)
    var ocsp = false

    @Option(
        help: ArgumentHelp(
            """
            Where notifications go whose app has no URL of its own (POST /control/apps, PUT /control/settings). \
            (default: nowhere)
            """,
            valueName: "URL"))
    var notify: String?

    func validate() throws {
        guard (0...65_535).contains(port) else { throw ValidationError("--port must be 0 to 65535") }
        if let notify {
            guard let url = URL(string: notify), ["http", "https"].contains(url.scheme), url.host() != nil else {
                throw ValidationError("--notify must be an http or https URL")
            }
        }
    }

    private var configuration: SimulatorConfiguration {
        SimulatorConfiguration(
            host: host, port: port, stateDirectory: folder.state, seed: seed, namesResponder: ocsp,
            notificationURL: notify)
    }

    func run() async throws {
        let logger = SimulatorFolder.logger
        do {
            let simulator = try AppStoreSimulator(configuration, logger: logger)
            let services = ServiceGroup(
                configuration: .init(
                    services: [.init(service: simulator)], gracefulShutdownSignals: [.sigterm, .sigint],
                    logger: logger))
            async let addresses: Void = printAddresses(simulator)
            try await services.run()
            await addresses
        } catch let error as IOError {
            let reason = String(cString: strerror(error.errnoCode))
            Terminal.tell("makegood simulate: cannot listen on \(host):\(port): \(reason)")
            throw ExitCode.failure
        } catch {
            Terminal.tell("makegood simulate: \(error)")
            throw ExitCode.failure
        }
    }

    /// Prints the simulator's addresses once the port is open; prints nothing if the port cannot be opened.
    private func printAddresses(_ simulator: AppStoreSimulator) async {
        guard let port = try? await simulator.boundPort else { return }
        let base = "http://\(configuration.reachableHost):\(port)"
        let path = URL(filePath: folder.state).standardizedFileURL.path
        Terminal.show(
            """
            The App Store simulator is up. Ctrl-C ends it.

              verifyReceipt   Production  \(base)/production/verifyReceipt
                              Sandbox     \(base)/sandbox/verifyReceipt
              server API      Production  \(base)/production
                              Sandbox     \(base)/sandbox
              control API                 \(base)/control
              root certificate            \(path)/root.der
              API key                     \(path)/key.p8
              credentials                 \(path)/credentials.json

            Sell a purchase:
              curl -s \(base)/control/purchases -H 'Content-Type: application/json' \\
                -d '{"app": "com.example.game", "productId": "com.example.game.coins6"}'
            """)
    }
}

/// The folder that makes a simulator the same App Store after a restart.
struct SimulatorFolder: ParsableArguments {
    @Option(
        help: ArgumentHelp(
            "The folder of certificates, credentials and ledger; made if it is not there.", valueName: "folder"))
    var state = ".local/simulator"

    /// Logs to standard error, so that standard output stays a result.
    static var logger: Logger {
        var logger = Logger(label: "makegood.simulate") { StreamLogHandler.standardError(label: $0) }
        logger.logLevel = .critical
        return logger
    }
}
