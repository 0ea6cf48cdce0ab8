import AppStoreSimulator
import Foundation
import Logging
import TestServers
import Testing

/// Goal: the contract of `makegood inspect`: its output and exit code, for data that Apple signed, for each forgery
/// that the simulator can make, and for input that is nothing of Apple's at all. Method: the built program on files
/// signed by a simulator's own certificates.
@Suite struct InspectTests {
    private static let bundleId = "com.example.game"
    private static let reasons = [
        "malformed", "algorithm", "chain_length", "certificate", "untrusted_root", "missing_oid", "expired",
        "signature", "wrong_app", "wrong_environment", "unsigned", "certificate_revoked", "certificate_status_unknown",
    ]

    private let store: AppStoreSimulator

    init() throws {
        store = try AppStoreSimulator(logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
    }

    private func inspect(
        _ token: String, _ more: String..., of other: AppStoreSimulator? = nil
    ) async throws -> BuiltProgram.Outcome {
        try await withFolder { folder in
            let root = "\(folder)/root.der"
            try Data((other ?? store).rootCertificateDER).write(to: URL(filePath: root))
            let options = ["--bundle-id", Self.bundleId, "--environment", "Production", "--root", root]
            return try await BuiltProgram(
                arguments: ["inspect"] + options + more + [try token.written(to: folder, as: "token")]
            ).run()
        }
    }

    private func token() async throws -> (id: String, jws: String) {
        let sale = try #require(
            try await store.sell(SaleRequest(app: Self.bundleId, productId: "com.example.game.coins6")).first)
        return (sale.purchase.transactionId, sale.signedTransaction)
    }

    @Test func genuineTransaction() async throws {
        let (id, jws) = try await token()
        let outcome = try await inspect("\n \(jws)\n")
        #expect(outcome.status == 0)
        #expect(outcome.complaint.isEmpty)
        #expect(outcome.json["valid"] as? Bool == true)
        #expect(outcome.json["kind"] as? String == "transaction")
        #expect(outcome.json["reason"] is NSNull)
        let payload = outcome.json["payload"] as? [String: Any]
        #expect(payload?["transactionId"] as? String == id)
        #expect(payload?["bundleId"] as? String == Self.bundleId)
        #expect(outcome.output.split(separator: "\n").count == 1)
    }

    @Test func revokedCertificates() async throws {
        let named = try AppStoreSimulator(
            .init(namesResponder: true), logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        try await RunningService.with(named) {
            _ = try await named.boundPort
            let sale = try #require(try await named.sell(SaleRequest(app: Self.bundleId, productId: "p")).first)
            for (mode, request, reason) in [
                ("off", .init(leaf: .revoked), nil), ("soft", .init(leaf: .revoked), "certificate_revoked"),
                ("hard", .init(leaf: .good, manner: .error), "certificate_status_unknown"),
                ("hard", .init(leaf: .good, manner: .signed), nil),
                // Redirects are not followed, although the answer at the other place would be good.
                ("soft", .init(manner: .redirect), nil),
                ("hard", .init(manner: .redirect), "certificate_status_unknown"),
            ] as [(String, ResponderRequest, String?)] {
                try named.set(request)
                let outcome = try await inspect(sale.signedTransaction, "--ocsp", mode, of: named)
                #expect(outcome.status == (reason == nil ? 0 : 1), "\(outcome.complaint)")
                #expect(outcome.json["reason"] as? String == reason)
            }
            let unusable = try await inspect(sale.signedTransaction, "--ocsp", "maybe", of: named)
            #expect(unusable.status == 2)
        }
    }

    @Test func appReceipt() async throws {
        let sale = try #require(
            try await store.sell(SaleRequest(app: Self.bundleId, productId: "com.example.game.coins6")).first)
        let outcome = try await inspect(sale.receipt)
        #expect(outcome.status == 0)
        #expect(outcome.json["valid"] as? Bool == true)
        #expect(outcome.json["kind"] as? String == "receipt")
        let payload = outcome.json["payload"] as? [String: Any]
        #expect(payload?["bundleId"] as? String == Self.bundleId)
        let inApp = payload?["inApp"] as? [[String: Any]]
        #expect(inApp?.first?["transactionId"] as? String == sale.purchase.transactionId)

        let other = try AppStoreSimulator(logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        let foreign = try #require(try await other.sell(SaleRequest(app: Self.bundleId, productId: "p")).first).receipt
        let refused = try await inspect(foreign)
        #expect(refused.status == 1)
        #expect(refused.json["reason"] as? String == "untrusted_root")
        #expect((refused.json["payload"] as? [String: Any])?["bundleId"] as? String == Self.bundleId)
        let cut = try await inspect(String(foreign.dropLast(400)))
        #expect(cut.json["reason"] as? String == "malformed")
        #expect(cut.json["note"] as? String == "not_asn1")
    }

    @Test func plainWords() async throws {
        let sale = try #require(
            try await store.sell(SaleRequest(app: Self.bundleId, productId: "com.example.game.coins6")).first)
        for (proof, title) in [(sale.receipt, "App receipt"), (sale.signedTransaction, "Signed transaction")] {
            let outcome = try await inspect(proof, "--pretty")
            #expect(outcome.status == 0)
            #expect(
                outcome.output.hasPrefix(
                    "\(title): valid, but not Apple's word: it was signed below a root that was given ("))
            #expect(outcome.output.contains(" com.example.game.coins6\n"))
            #expect(outcome.output.contains(" \(sale.purchase.transactionId)\n"))
        }
        let garbage = try await inspect("garbage", "--pretty")
        #expect(garbage.status == 1)
        #expect(garbage.output.hasPrefix("Unknown data: not valid (malformed)."))
        let cut = try await inspect(String(sale.signedTransaction.dropLast(20)), "--pretty")
        #expect(cut.status == 1)
        #expect(
            cut.output.contains(
                "\nNote: a JWS that was cut off: 66 of the 86 characters of its signature are there\n"))
    }

    @Test func transactionReceipt() async throws {
        func base64(_ text: String) -> String { Data(text.utf8).base64EncodedString() }
        let info = base64("{ \"transaction-id\" = \"33993399\"; }")
        let outcome = try await inspect(base64("{ \"purchase-info\" = \"\(info)\"; }"))
        #expect(outcome.status == 1)
        #expect(outcome.json["kind"] as? String == "transactionReceipt")
        #expect((outcome.json["payload"] as? [String: Any])?["transactionId"] as? String == "33993399")
    }

    @Test func standardInput() async throws {
        let (_, jws) = try await token()
        let outcome = try await BuiltProgram.run(
            "inspect", "--bundle-id", Self.bundleId, "--environment", "Production", "-", input: Data(jws.utf8))
        // No --root: only Apple's own roots count.
        #expect(outcome.status == 1)
        #expect(outcome.json["reason"] as? String == "untrusted_root")
    }

    @Test(arguments: Forgery.Kind.allCases) func forgery(_ kind: Forgery.Kind) async throws {
        let expected =
            switch kind {
            case .foreignRoot: "untrusted_root"
            case .signature, .swappedPayload, .signatureInDER: "signature"
            case .algorithmNone, .algorithmHMAC, .algorithmRSA, .algorithmP384: "algorithm"
            case .wrongBundle: "wrong_app"
            case .expiredLeaf: "expired"
            case .missingLeafMarker, .missingIntermediateMarker: "missing_oid"
            case .plainIntermediate, .junkCertificate: "certificate"
            case .chainLength, .longChain: "chain_length"
            }
        let outcome = try await inspect(try store.forge(ForgeryRequest(kind: kind, app: Self.bundleId)))
        #expect(outcome.status == 1)
        #expect(outcome.json["valid"] as? Bool == false)
        #expect(outcome.json["reason"] as? String == expected)
        #expect(Self.reasons.contains(expected))
        // The claimed payload is shown, believed or not.
        #expect((outcome.json["payload"] as? [String: Any])?["productId"] as? String == "com.example.forged")
    }

    @Test func certificatesAtAnotherTime() async throws {
        let twoYearsAgo = String(Int(Date.now.timeIntervalSince1970) - 2 * 365 * 86_400 + 86_400)
        let expired = try store.forge(ForgeryRequest(kind: .expiredLeaf, app: Self.bundleId))
        #expect(try await inspect(expired, "--at", twoYearsAgo).status == 0)
        let (_, jws) = try await token()
        #expect(try await inspect(jws, "--at", "0").json["reason"] as? String == "expired")
    }

    @Test func anotherEnvironment() async throws {
        var sale = SaleRequest(app: Self.bundleId, productId: "com.example.game.coins6")
        sale.environment = .sandbox
        let jws = try #require(try await store.sell(sale).first).signedTransaction
        let outcome = try await inspect(jws)
        #expect(outcome.status == 1)
        #expect(outcome.json["reason"] as? String == "wrong_environment")
    }

    @Test(arguments: ["garbage", "a.b", "a.b.c", "e30.e30.e30", "{}", "\u{0}\u{1}", "....", "MIIBAGCSqGSIb3"])
    func garbage(_ text: String) async throws {
        let outcome = try await inspect(text)
        #expect(outcome.status == 1)
        #expect(outcome.json["valid"] as? Bool == false)
        #expect(outcome.json["reason"] as? String == "malformed")
    }

    @Test func kindWhereThePayloadDoesNotTell() async throws {
        let (_, jws) = try await token()
        let outcome = try await inspect(jws, "--kind", "renewalInfo")
        #expect(outcome.json["kind"] as? String == "renewalInfo")
        #expect(try await inspect("text", "--kind", "receipt").json["kind"] as? String == "receipt")
    }

    @Test func appOfTheConfiguration() async throws {
        let (_, jws) = try await token()
        try await withFolder { folder in
            try Data(store.rootCertificateDER).write(to: URL(filePath: "\(folder)/root.der"))
            let file = try jws.written(to: folder, as: "token")
            let yaml = """
                apps:
                  - id: game
                    bundleId: \(Self.bundleId)
                    appAppleId: 1234567890
                    rootCertificates: [root.der]
                """
            let configuration = try yaml.written(to: folder, as: "makegood.yaml")
            #expect(try await BuiltProgram.run("inspect", "--app", "game", "--config", configuration, file).status == 0)
            let environment = ["MAKEGOOD_CONFIG": configuration]
            #expect(try await BuiltProgram.run("inspect", "--app", "game", file, environment: environment).status == 0)
            let unknown = try await BuiltProgram.run("inspect", "--app", "chess", file, environment: environment)
            expectNoJudgement(unknown)
            #expect(unknown.complaint.contains("chess"))
        }
    }

    @Test(arguments: [
        [], ["FILE"], ["--bundle-id", "b", "FILE"], ["--environment", "Sandbox", "FILE"],
        ["--bundle-id", "b", "--environment", "production", "FILE"],
        ["--bundle-id", "", "--environment", "Sandbox", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--kind", "nonsense", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--kind", "unknown", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--at", "yesterday", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--at", "nan", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--at", "-1", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--app-apple-id", "many", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--root", "FOLDER/none.der", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--root", "FILE", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--config", "FILE", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "--colour", "FILE"],
        ["--bundle-id", "b", "--environment", "Sandbox", "FILE", "FILE"], ["FILE", "--bundle-id"], ["--colour"],
        ["--bundle-id", "b", "--environment", "Sandbox", "FOLDER/none"],
        ["--bundle-id", "b", "--environment", "Sandbox", "FOLDER"],
        ["--app", "game", "FILE"], ["--app", "game", "--config", "FOLDER/none.yaml", "FILE"],
        ["--app", "game", "--config", "FILE", "FILE"],
        ["--app", "game", "--bundle-id", "b", "--environment", "Sandbox", "FILE"],
    ]) func noQuestion(_ arguments: [String]) async throws {
        try await withFolder { folder in
            let file = try "text".written(to: folder, as: "file")
            let arguments = arguments.map { argument in
                argument == "FILE" ? file : argument.replacing("FOLDER", with: folder)
            }
            expectNoJudgement(try await BuiltProgram(arguments: ["inspect"] + arguments).run())
        }
    }

    @Test(arguments: [(0, 2), (1, 1), (4 << 20, 1), ((4 << 20) + 1, 2), (64 << 20, 2)] as [(Int, Int32)])
    func size(_ bytes: Int, _ status: Int32) async throws {
        let outcome = try await inspect(String(repeating: "x", count: bytes))
        if status == 2 {
            expectNoJudgement(outcome)
        } else {
            #expect(outcome.status == 1)
            #expect(outcome.json["reason"] as? String == "malformed")
        }
    }

    @Test func whiteSpaceAloneIsEmpty() async throws {
        expectNoJudgement(try await inspect(" \r\n"))
    }

    private func expectNoJudgement(_ outcome: BuiltProgram.Outcome) {
        #expect(outcome.status == 2)
        #expect(outcome.output.isEmpty)
        #expect(!outcome.complaint.isEmpty)
    }
}
