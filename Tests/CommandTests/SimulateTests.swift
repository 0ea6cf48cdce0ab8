import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import Logging
import NIOCore
import NIOHTTP1
import Testing

/// Goal: the simulator as a command: its output, its exit code, and tokens signed beforehand that `bench verify` takes.
/// Method: the built program in folders of its own.
@Suite struct SimulateTests {
    private static let product = "com.example.game.coins6"

    @Test func servesUntilTold() async throws {
        try await withFolder { folder in
            let program = BuiltProgram(arguments: ["simulate", "--port", "0", "--state", "\(folder)/state"])
            let outcome = try await program.run { running in
                let shown = try await running.prints("Sell a purchase")
                let base = try #require(shown.firstMatch(of: #/http://127\.0\.0\.1:\d+/#)).output
                let health = HTTPClientRequest(url: "\(base)/health")
                #expect(try await HTTPClient.shared.execute(health, timeout: .seconds(10)).status == .ok)
                for name in ["root.der", "key.p8", "credentials.json"] {
                    #expect(shown.contains("\(folder)/state/\(name)"))
                    #expect(FileManager.default.fileExists(atPath: "\(folder)/state/\(name)"))
                }
                for path in ["/production/verifyReceipt", "/sandbox/verifyReceipt", "/production\n", "/sandbox\n"] {
                    #expect(shown.contains("\(base)\(path)"))
                }
                let port = try #require(base.split(separator: ":").last)
                let second = try await BuiltProgram.run(
                    "simulate", "--port", String(port), "--state", "\(folder)/second")
                #expect(second.status == 1)
                #expect(second.output.isEmpty)
                #expect(second.complaint.contains("cannot listen on 127.0.0.1:\(port)"))
                running.terminate()
            }
            #expect(outcome.status == 0)
            #expect(outcome.complaint.isEmpty)
        }
    }

    @Test func tokensForTheBench() async throws {
        try await withFolder { folder in
            let (tokens, state) = ("\(folder)/tokens", "\(folder)/state")
            let simulate = try await BuiltProgram.run(
                "simulate", "tokens", "--count", "620", "--product", Self.product, "--out", tokens, "--state", state)
            #expect(simulate.status == 0)
            #expect(simulate.output.isEmpty)
            #expect(simulate.complaint.contains("620 of 620"))
            let lines = try String(contentsOfFile: tokens, encoding: .utf8).split(separator: "\n")
            #expect(lines.count == 620)
            #expect(Set(lines).count == 620)
            let bench = try await BuiltProgram.run(
                "bench", "verify", "--tokens", tokens, "--bundle-id", "com.example.game", "--environment",
                "Production", "--root", "\(state)/root.der", "--threads", "3")
            #expect(bench.status == 0)
            #expect(bench.json["perSecond"] as? Double ?? 0 > 0)
            #expect(bench.json["verified"] as? Int == 620)
            #expect(bench.json["failed"] as? Int == 0)
            #expect(bench.json["threads"] as? Int == 3)
            #expect(bench.json["tokens"] as? Int == 620)
            #expect(bench.json["seconds"] as? Double ?? 0 > 0)
        }
    }

    @Test func receiptsForTheBench() async throws {
        let store = try AppStoreSimulator(logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        var sale = SaleRequest(app: "com.example.game", productId: Self.product)
        sale.count = 20
        let lines = try await store.sell(sale).map { "\($0.receipt)\n" }.joined()
        try await withFolder { folder in
            let root = "\(folder)/root.der"
            try Data(store.rootCertificateDER).write(to: URL(filePath: root))
            let options = ["--environment", "Production", "--root", root]
            let command = ["bench", "receipts", "--receipts", try lines.written(to: folder, as: "receipts")]
            let bench = try await BuiltProgram(
                arguments: command + ["--bundle-id", "com.example.game", "--threads", "3"] + options
            ).run()
            #expect(bench.status == 0)
            #expect(bench.json["verified"] as? Int == 20)
            let foreign = try await BuiltProgram(
                arguments: command + ["--bundle-id", "com.example.chess"] + options
            ).run()
            #expect(foreign.status == 1)
            #expect(foreign.complaint.contains("20 wrong_app"))
        }
    }

    @Test func signsAccountTokensInTurn() async throws {
        try await withFolder { folder in
            let (tokens, state) = ("\(folder)/tokens", "\(folder)/state")
            let ids = (0..<3).map { _ in UUID().uuidString.lowercased() }
            func sign(_ text: String, _ count: Int) async throws -> BuiltProgram.Outcome {
                try await BuiltProgram(arguments: [
                    "simulate", "tokens", "--count", "\(count)", "--product", Self.product, "--out", tokens,
                    "--state", state, "--account-tokens", try text.written(to: folder, as: "ids"),
                ]).run()
            }
            #expect(try await sign(ids.joined(separator: "\r\n"), 3).status == 0)
            let signed = try String(contentsOfFile: tokens, encoding: .utf8).split(separator: "\n").map { line in
                let payload = try #require(line.split(separator: ".").dropFirst().first)
                var base64 = String(payload).replacing("-", with: "+").replacing("_", with: "/")
                base64 += String(repeating: "=", count: (4 - base64.count % 4) % 4)
                let data = try #require(Data(base64Encoded: base64))
                return try #require(JSONSerialization.jsonObject(with: data) as? [String: Any])
            }
            #expect(signed.map { $0["appAccountToken"] as? String } == ids)
            let short = try await sign(ids.joined(separator: "\n"), 4)
            #expect(short.status == 1)
            #expect(short.complaint.contains("3 lines for --count 4"))
            let wrong = try await sign("\(ids[0])\nnone\n", 2)
            #expect(wrong.complaint.contains("line 2 is no UUID"))
        }
    }

    @Test func failingBench() async throws {
        try await withFolder { folder in
            let (tokens, state) = ("\(folder)/tokens", "\(folder)/state")
            _ = try await BuiltProgram.run(
                "simulate", "tokens", "--count", "3", "--product", Self.product, "--out", tokens, "--state", state)
            let options = ["--environment", "Production", "--root", "\(state)/root.der", "--seconds", "0.1"]
            let foreign = try await BuiltProgram(
                arguments: ["bench", "verify", "--tokens", tokens, "--bundle-id", "com.example.chess"] + options
            ).run()
            #expect(foreign.status == 1)
            #expect(foreign.json["verified"] as? Int == 0)
            #expect(foreign.json["failed"] as? Int ?? 0 >= 3)
            #expect(foreign.complaint.contains("wrong_app"))
            let empty = try "".written(to: folder, as: "empty")
            for file in ["\(folder)/none", empty] {
                let unusable = try await BuiltProgram(
                    arguments: ["bench", "verify", "--tokens", file, "--bundle-id", "com.example.game"] + options
                ).run()
                #expect(unusable.status == 2)
                #expect(unusable.output.isEmpty)
            }
        }
    }
}
