import AppStore
import ArgumentParser
import AsyncHTTPClient
import Commands
import Foundation
import Settings

/// `makegood inspect`: verifies one signed file without any server.
///
/// The exit code is a contract: 0 valid, 1 not valid, 2 no judgement. For a wrong value the argument parser would end
/// with 64. So all options are optional texts, checked here; for an unreadable command line `Makegood.main()` ends with
/// 2.
struct InspectCommand: AsyncParsableCommand {
    /// The largest file, in bytes; a receipt of years of renewals takes about 2 MiB in base64.
    private static let bytesMax = 4 << 20
    /// 9999-12-31, the last day that a certificate can name.
    private static let epochSecondsMax = 253_402_300_799.0

    static let configuration = CommandConfiguration(
        commandName: "inspect",
        abstract: "Say whether a signed file is Apple's word about an app, and what it says.",
        usage: """
            makegood inspect --app <id> [--config <file>] [--kind <kind>] [--at <seconds>] [--ocsp <mode>] \
            [--pretty] <file>
            makegood inspect --bundle-id <id> --environment <name> [--app-apple-id <number>] [--root <file>] ... \
            [--kind <kind>] [--at <seconds>] [--ocsp <mode>] [--pretty] <file>
            """,
        discussion: """
            Verifies one signed transaction, renewal info, notification, app transaction (JWS) or app receipt (PKCS#7), \
            calls nobody without --ocsp, and prints one line of JSON: {"valid", "kind", "reason", "root", "payload"}; with --pretty the same in \
            plain words. "root" is apple where Apple signed, and given where only a root of --root or of the \
            configuration file did, as a simulator's. Of a transaction receipt of iOS 6 style it shows the content; only Apple can verify it.

            Exit code: 0 valid; 1 not valid, "reason" says why; 2 the file cannot be read, is empty or has more than \
            4 MiB, or the options name no app: then nothing is printed but a line on standard error.
            """)

    @Option(help: ArgumentHelp("The app, by its id in the configuration file.", valueName: "id"))
    var app: String?

    @Option(help: ArgumentHelp("The configuration file of --app. (default: $MAKEGOOD_CONFIG)", valueName: "file"))
    var config: String?

    @Option(help: ArgumentHelp("The app, by its bundle id.", valueName: "id"))
    var bundleId: String?

    @Option(help: ArgumentHelp("Production, Sandbox, Xcode or LocalTesting.", valueName: "name"))
    var environment: String?

    @Option(
        help: ArgumentHelp(
            "Apple's number of the app; notifications and app transactions of Production are refused without it.",
            valueName: "number"))
    var appAppleId: String?

    @Option(
        help: ArgumentHelp(
            "A root certificate, PEM or DER, believed beside Apple's own; may be repeated.", valueName: "file"))
    var root: [String] = []

    @Option(
        help: ArgumentHelp(
            "transaction, renewalInfo, notification, appTransaction, receipt or transactionReceipt, where the payload "
                + "does not tell.",
            valueName: "kind"))
    var kind: String?

    @Option(
        parsing: .unconditional,
        help: ArgumentHelp(
            "Judge certificates at this time, in seconds since 1970, not at the signing date.", valueName: "seconds"))
    var at: String?

    @Option(
        help: ArgumentHelp(
            "Ask whether certificates were revoked: soft takes no answer for a good one, hard does not.",
            valueName: "mode"))
    var ocsp: String?

    @Flag(help: "Print plain words for people, not JSON.")
    var pretty = false

    @Argument(help: "The file; - is standard input.")
    var file: String?

    func run() async throws {
        let verifier: SignedDataVerifier
        let kind: Inspection.Kind?
        let date: Date?
        let data: [UInt8]
        do throws(UnusableInput) {
            kind = try chosenKind()
            date = try chosenDate()
            verifier = try chosenVerifier()
            guard let file, !file.isEmpty else { throw UnusableInput("a file must be named; - is standard input") }
            data = try InputFile(path: file).read(bytesMax: Self.bytesMax)
        } catch {
            Terminal.tell("makegood inspect: \(error)")
            throw ExitCode.unusableInput
        }
        let inspection = await Inspection.inspect(data, with: verifier, kind: kind, at: date)
        if pretty { Terminal.show(inspection.text) } else { Terminal.show(inspection.json) }
        if !inspection.isValid { throw ExitCode.failure }
    }

    private func chosenVerifier() throws(UnusableInput) -> SignedDataVerifier {
        if let app {
            guard bundleId == nil, environment == nil, appAppleId == nil, root.isEmpty else {
                throw UnusableInput("--app takes bundle id, environment and roots from the configuration file")
            }
            return try configuredVerifier(app)
        }
        guard let bundleId, !bundleId.isEmpty, let environment else {
            throw UnusableInput("name the app: --app, or --bundle-id and --environment")
        }
        if config != nil { throw UnusableInput("--config belongs to --app") }
        return try NamedApp(
            bundleId: bundleId, environment: NamedApp.environment(environment), appAppleId: chosenAppAppleId(),
            rootFiles: root
        ).verifier(revocation: chosenRevocation())
    }

    private func configuredVerifier(_ id: String) throws(UnusableInput) -> SignedDataVerifier {
        guard let path = config ?? ProcessInfo.processInfo.environment["MAKEGOOD_CONFIG"], !path.isEmpty else {
            throw UnusableInput("--app needs a configuration file: --config or MAKEGOOD_CONFIG")
        }
        do {
            guard let app = try Configuration.load(path).apps[id] else {
                throw UnusableInput("no app of the configuration file has the id \(id)")
            }
            return SignedDataVerifier(
                app: app.identity, anchors: try TrustAnchors(rootCertificates: app.rootCertificates),
                revocation: try chosenRevocation())
        } catch {
            throw UnusableInput("\(error)")
        }
    }

    /// The client that asks OCSP responders, made at its first use. Like the library's shared client it lives as long
    /// as the program.
    private static let http = HTTPClient(eventLoopGroupProvider: .singleton, configuration: .apple(inFlight: 2))

    private func chosenRevocation() throws(UnusableInput) -> RevocationCheck? {
        guard let mode = OCSPMode(rawValue: ocsp ?? "off") else {
            throw UnusableInput("--ocsp must be \(OCSPMode.allCases.map(\.rawValue).joined(separator: ", "))")
        }
        return mode == .off ? nil : RevocationCheck(mode, CertificateStatuses(http: Self.http))
    }

    private func chosenAppAppleId() throws(UnusableInput) -> Int64? {
        guard let appAppleId else { return nil }
        guard let number = Int64(appAppleId), number > 0 else {
            throw UnusableInput("--app-apple-id must be a number from 1")
        }
        return number
    }

    private func chosenKind() throws(UnusableInput) -> Inspection.Kind? {
        guard let kind else { return nil }
        guard let known = Inspection.Kind(rawValue: kind), known != .unknown else {
            let names = Inspection.Kind.allCases.filter { $0 != .unknown }.map(\.rawValue)
            throw UnusableInput("--kind must be \(names.joined(separator: ", "))")
        }
        return known
    }

    private func chosenDate() throws(UnusableInput) -> Date? {
        guard let at else { return nil }
        guard let seconds = Double(at), (0...Self.epochSecondsMax).contains(seconds) else {
            throw UnusableInput("--at must be a number of seconds since 1970")
        }
        return Date(timeIntervalSince1970: seconds)
    }
}
