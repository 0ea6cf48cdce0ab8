import AppStore
import ArgumentParser
import Commands
import Foundation
import NIOCore
import Purchases

/// `makegood bench`: measures this machine.
struct BenchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "bench", abstract: "Measure a part of the work.",
        subcommands: [
            BenchVerifyCommand.self, BenchReceiptsCommand.self,
        ])
}

/// `makegood bench verify`: measures signed transactions a second, verified as a worker does.
struct BenchVerifyCommand: AsyncParsableCommand {
    /// Tokens held in memory, about 4 KB each.
    private static let tokensMax = 100_000

    static let configuration = CommandConfiguration(
        commandName: "verify",
        abstract: "Verify the signed transactions of a file and say how many a second.",
        discussion: """
            Each token is verified whole, as a worker does it: chain and signature, app and environment, all fields; \
            known chains are cached. Prints one line of JSON: {"perSecond", "verified", "failed", "seconds", \
            "threads", "tokens"}. Reading the file does not count.

            Exit code: 0; 1 if a token failed; 2 if a file cannot be used. Of a file of more than 100000 tokens the \
            first 100000 are taken.
            """)

    @Option(help: ArgumentHelp("The signed transactions, one a line; - is standard input.", valueName: "file"))
    var tokens: String

    @OptionGroup var conditions: VerifyConditions

    func run() async throws {
        let loaded: [String]
        let verifier: SignedDataVerifier
        do throws(UnusableInput) {
            verifier = try conditions.verifier()
            loaded = try await TokenFile(path: tokens).next(Self.tokensMax).map { String(buffer: $0) }
            if loaded.isEmpty { throw UnusableInput("\(InputFile(path: tokens).name) is empty") }
        } catch {
            Terminal.tell("makegood bench verify: \(error)")
            throw ExitCode.unusableInput
        }
        try await conditions.measure(loaded, for: "makegood bench verify") { (token) throws(VerificationFailure) in
            _ = try await verifier.transaction(token)
        }
    }
}

/// `makegood bench receipts`: measures app receipts a second, verified here and not by Apple.
struct BenchReceiptsCommand: AsyncParsableCommand {
    /// Bytes of the file.
    private static let bytesMax = 256 << 20

    static let configuration = CommandConfiguration(
        commandName: "receipts",
        abstract: "Verify the app receipts of a file and say how many a second.",
        discussion: """
            As makegood bench verify, for receipts (PKCS#7) in base64: chain and signature, app and environment, all \
            purchases; known chains are cached.

            Exit code: 0; 1 if a receipt failed; 2 if a file cannot be used or has more than 256 MiB.
            """)

    @Option(help: ArgumentHelp("The receipts in base64, one a line; - is standard input.", valueName: "file"))
    var receipts: String

    @OptionGroup var conditions: VerifyConditions

    func run() async throws {
        let loaded: [String]
        let verifier: AppReceiptVerifier
        do throws(UnusableInput) {
            verifier = try conditions.verifier().receipts
            loaded = try InputFile(path: receipts).read(bytesMax: Self.bytesMax)
                .split { $0 == 0x0A || $0 == 0x0D }.map { String(decoding: $0, as: UTF8.self) }
        } catch {
            Terminal.tell("makegood bench receipts: \(error)")
            throw ExitCode.unusableInput
        }
        try await conditions.measure(loaded, for: "makegood bench receipts") { (receipt) throws(VerificationFailure) in
            do throws(ReceiptFailure) {
                _ = try await verifier.receipt(receipt)
            } catch {
                throw VerificationFailure(error.reason)
            }
        }
    }
}

/// The options that the verify benches share: the app, the duration, and the number of tasks.
struct VerifyConditions: ParsableArguments {
    @Option(help: ArgumentHelp("The app they are for.", valueName: "id"))
    var bundleId: String

    @Option(help: ArgumentHelp("Production or Sandbox.", valueName: "name"))
    var environment: String

    @Option(help: ArgumentHelp("The root certificate, PEM or DER; may be repeated.", valueName: "file"))
    var root: [String]

    @Option(help: ArgumentHelp("Apple's number of the app.", valueName: "number"))
    var appAppleId: Int64?

    @Option(help: "Go round and round for so many seconds. (default: each token once)")
    var seconds: Double?

    @Option(
        help: ArgumentHelp("Tasks that verify at the same time. (default: one a processor)", valueName: "number"))
    var threads: Int?

    func validate() throws {
        if let seconds, !(0.1...3600).contains(seconds) { throw ValidationError("--seconds must be 0.1 to 3600") }
        if let threads, !(1...256).contains(threads) { throw ValidationError("--threads must be 1 to 256") }
    }

    func verifier() throws(UnusableInput) -> SignedDataVerifier {
        try NamedApp(
            bundleId: bundleId, environment: NamedApp.environment(environment), appAppleId: appAppleId,
            rootFiles: root
        ).verifier()
    }

    /// Prints the result.
    ///
    /// - Throws: ``ExitCode/failure`` if an item failed.
    func measure(
        _ items: [String], for command: String,
        _ verify: @escaping @Sendable (String) async throws(VerificationFailure) -> Void
    ) async throws(ExitCode) {
        let threads = threads ?? ProcessInfo.processInfo.activeProcessorCount
        let result = await VerifyBench(tokens: items, threads: threads, verify: verify).run(
            for: seconds.map { .seconds($0) })
        Terminal.show(result.json)
        if let line = result.failures.summary { Terminal.tell("\(command): \(line)") }
        if result.failures.count > 0 { throw ExitCode.failure }
    }
}

/// Tasks that verify tokens, each task its own share.
private struct VerifyBench {
    let tokens: [String]
    let threads: Int
    let verify: @Sendable (String) async throws(VerificationFailure) -> Void

    struct Result {
        var verified = 0
        var failures = Failures()
        var seconds = 0.0
        let threads: Int
        let tokens: Int

        var json: String {
            let perSecond = Double(verified) / seconds
            return "{\"perSecond\":\(perSecond.rounded(to: 1)),\"verified\":\(verified),\"failed\":\(failures.count),"
                + "\"seconds\":\(seconds.rounded(to: 3)),\"threads\":\(threads),\"tokens\":\(tokens)}"
        }
    }

    struct Failures {
        private var reasons: [VerificationFailure.Reason: Int] = [:]

        var count: Int { reasons.values.reduce(0, +) }

        /// `failed: 3 signature, 1 wrong_app`.
        var summary: String? {
            guard !reasons.isEmpty else { return nil }
            let parts = reasons.sorted { $0.key.rawValue < $1.key.rawValue }.map { "\($0.value) \($0.key.rawValue)" }
            return "failed: \(parts.joined(separator: ", "))"
        }

        mutating func add(_ reason: VerificationFailure.Reason, _ count: Int = 1) {
            reasons[reason, default: 0] += count
        }

        mutating func add(_ other: Failures) {
            for (reason, count) in other.reasons { add(reason, count) }
        }
    }

    /// - Parameter duration: how long to verify; nil: each token once.
    func run(for duration: Duration?) async -> Result {
        let clock = ContinuousClock()
        let start = clock.now
        let end = duration.map { start + $0 }
        var result = Result(threads: threads, tokens: tokens.count)
        await withTaskGroup(of: (verified: Int, failures: Failures).self) { group in
            for share in 0..<threads {
                group.addTask { await verify(share, until: end) }
            }
            for await part in group {
                result.verified += part.verified
                result.failures.add(part.failures)
            }
        }
        result.seconds = (clock.now - start).inSeconds
        return result
    }

    /// Every `threads`-th token from `share` on.
    private func verify(_ share: Int, until end: ContinuousClock.Instant?) async -> (Int, Failures) {
        var verified = 0
        var failures = Failures()
        var index = share
        while true {
            if index >= tokens.count {
                // There are fewer tokens than tasks: the tasks without a token share the existing ones.
                guard end != nil else { return (verified, failures) }
                index %= tokens.count
            }
            do throws(VerificationFailure) {
                try await verify(tokens[index])
                verified += 1
            } catch {
                failures.add(error.reason)
            }
            index += threads
            if let end, ContinuousClock.now >= end { return (verified, failures) }
        }
    }
}
