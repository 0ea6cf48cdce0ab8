import AppStoreSimulator
import ArgumentParser
import Commands
import Encoding
import Foundation
import Purchases

/// `makegood simulate tokens`: signs purchases beforehand, so that signing does not compete with what is measured.
struct SimulateTokensCommand: AsyncParsableCommand {
    private static let countMax = SimulatorConfiguration.purchasesMaxDefault
    /// Tokens signed between two writes: about 2 MB.
    private static let batch = 500

    static let configuration = CommandConfiguration(
        commandName: "tokens",
        abstract: "Sell purchases and write their signed transactions to a file, one a line.",
        discussion: """
            Signed with the certificates of the simulator's folder. A simulator that runs on the same folder learns of \
            these sales at its next start; verifying the tokens needs only root.der.
            """)

    @Option(help: ArgumentHelp("How many, 1 to \(countMax) (about 4 KB each).", valueName: "number"))
    var count: Int

    @Option(help: ArgumentHelp("The product sold.", valueName: "id"))
    var product: String

    @Option(help: ArgumentHelp("The file to write, replaced if it is there; - is standard output.", valueName: "file"))
    var out: String

    @Option(help: ArgumentHelp("The bundle id of the app.", valueName: "id"))
    var app = "com.example.game"

    @OptionGroup var folder: SimulatorFolder

    @Option(help: ArgumentHelp("Where they are sold.", valueName: "name"))
    var environment = StoreEnvironment.production

    @Option(
        help: ArgumentHelp(
            "UUIDs, one a line: the appAccountToken of each purchase in turn.", valueName: "file"))
    var accountTokens: String?

    @Flag(help: "Sell subscriptions, and write a notification about each sale instead of its signed transaction.")
    var notifications = false

    func validate() throws {
        guard (1...Self.countMax).contains(count) else {
            throw ValidationError("--count must be 1 to \(Self.countMax)")
        }
    }

    func run() async throws {
        do {
            let simulator = try AppStoreSimulator(
                SimulatorConfiguration(stateDirectory: folder.state), logger: SimulatorFolder.logger)
            let tokens = try readAccountTokens()
            let file = try output()
            var progress = Progress(of: count)
            var written = 0
            while written < count {
                var request = SaleRequest(app: app, productId: product, environment: environment)
                request.receipts = false
                if notifications { request.type = .autoRenewable }
                var sales: [Sale] = []
                if let tokens {
                    for token in tokens[written..<min(written + Self.batch, count)] {
                        request.appAccountToken = token.text
                        sales += try await simulator.sell(request)
                    }
                } else {
                    request.count = min(Self.batch, count - written)
                    sales = try await simulator.sell(request)
                }
                let lines = try sales.map { sale in
                    try notifications ? notification(of: sale, simulator) : sale.signedTransaction
                }
                try file.write(contentsOf: Data(lines.map { $0 + "\n" }.joined().utf8))
                written += sales.count
                progress.report(written)
            }
        } catch {
            Terminal.tell("makegood simulate tokens: \(error)")
            throw ExitCode.failure
        }
    }

    /// The notification that Apple would send about the sale: signed three times, with the transaction and the renewal
    /// inside.
    private func notification(of sale: Sale, _ simulator: AppStoreSimulator) throws -> String {
        var request = NotificationRequest(
            app: app, notificationType: "SUBSCRIBED", subtype: "INITIAL_BUY", transactionId: sale.purchase.transactionId
        )
        request.environment = environment
        return try simulator.hold(request).signedPayload
    }

    private func readAccountTokens() throws(UnusableInput) -> [UUID]? {
        guard let accountTokens else { return nil }
        guard let text = try? String(contentsOfFile: accountTokens, encoding: .utf8) else {
            throw UnusableInput("--account-tokens: cannot read \(accountTokens)")
        }
        var tokens: [UUID] = []
        for (number, line) in text.split(whereSeparator: \.isNewline).prefix(count).enumerated() {
            guard let token = UUID(uuidString: String(line)) else {
                throw UnusableInput("--account-tokens: line \(number + 1) is no UUID")
            }
            tokens.append(token)
        }
        guard tokens.count == count else {
            throw UnusableInput("--account-tokens: \(tokens.count.counted("line")) for --count \(count)")
        }
        return tokens
    }

    private func output() throws(UnusableInput) -> FileHandle {
        if out == "-" { return .standardOutput }
        guard FileManager.default.createFile(atPath: out, contents: nil), let file = FileHandle(forWritingAtPath: out)
        else { throw UnusableInput("cannot write \(out)") }
        return file
    }

    /// A line on standard error each second, and one at the end.
    private struct Progress {
        private let total: Int
        private var next = ContinuousClock.now + .seconds(1)

        init(of total: Int) { self.total = total }

        mutating func report(_ done: Int) {
            guard done == total || ContinuousClock.now >= next else { return }
            next = .now + .seconds(1)
            Terminal.tell("\(done) of \(total.counted("token"))")
        }
    }
}

extension StoreEnvironment: ExpressibleByArgument {}
