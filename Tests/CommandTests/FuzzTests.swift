import Foundation
import TestRandom
import Testing

@testable import Adversary

/// Goal: an input that once showed a fault never shows one again, and a short random run with each build finds nothing.
/// Method: the program itself in a process of its own, because a trap ends the process: first every input of the
/// committed corpus, then mutated ones for a moment, from a random seed that a failure names.
@Suite struct FuzzTests {
    private static let corpus = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
        .appending(path: "Corpus").path
    private static let parsers = [
        "jws", "notification", "receipt", "certificates", "verifyReceipt", "answers", "base64", "inspect",
        "proof",
    ]

    @Test(arguments: parsers) func corpusAndChance(_ parser: String) async throws {
        try await withFolder { folder in
            let seed = SeededRandom(announcing: "fuzz \(parser)").seed % 1_000_000
            let outcome = try await BuiltProgram.lab(
                "fuzz", parser, "--seconds", "2", "--seed", "\(seed)", "--corpus", Self.corpus, "--keep", folder,
                "--no-growth")
            #expect(outcome.status == 0, "seed \(seed): \(outcome.output) \(outcome.complaint)")
            #expect(outcome.output.contains("\(parser): "))
            #expect(outcome.output.contains(" 0 failures"))
            #expect(try FileManager.default.contentsOfDirectory(atPath: folder) == [])
        }
    }

    /// Goal: the fuzzer notices faults. Method: a corpus in which a forgery and junk are called genuine.
    @Test func whatIsNotBelievedIsNotGenuine() async throws {
        try await withFolder { folder in
            let copy = "\(folder)/corpus"
            try FileManager.default.copyItem(atPath: Self.corpus, toPath: copy)
            for name in ["swapped_payload", "parts"] {
                try FileManager.default.moveItem(atPath: "\(copy)/jws/\(name)", toPath: "\(copy)/jws/genuine-\(name)")
            }
            // Each run keeps its own findings beside those of other runs, even of runs with the same seed.
            var kept: Set<String> = []
            for (number, seed) in ["1", "2", "2"].enumerated() {
                let outcome = try await BuiltProgram.lab(
                    "fuzz", "jws", "--seconds", "0", "--seed", seed, "--corpus", copy, "--keep", "\(folder)/kept",
                    "--no-growth")
                #expect(outcome.status == 1)
                #expect(outcome.output.contains("FAILED genuine-swapped_payload is not believed: jws-\(seed)-"))
                let files = Set(try FileManager.default.contentsOfDirectory(atPath: "\(folder)/kept"))
                #expect(files.isSuperset(of: kept) && files.count == 2 * (number + 1))
                kept = files
            }
        }
    }

    /// Goal: the fuzzer gives up a reader that loops and one that waits for something that never comes, but not one on
    /// a busy machine.
    @Test func hangs() {
        let start = SuspendingClock.now
        let deadline = FuzzRun.Deadline(bytes: 1000, cpu: .seconds(7), now: start)
        #expect(!deadline.isOver(cpu: .seconds(7), now: start))
        #expect(!deadline.isOver(cpu: .seconds(7) + FuzzRun.limit(of: 1000), now: start + .seconds(30)))
        #expect(deadline.isOver(cpu: .seconds(7) + FuzzRun.limit(of: 1000) * 21, now: start + .seconds(1)))
        #expect(deadline.isOver(cpu: .seconds(7), now: start + .seconds(61)))
    }

    @Test(arguments: [["nonsense"], ["jws", "--seconds", "-1"], ["--renew"], ["jws", "--corpus", "/nonexistent"]])
    func whatMakesNoSenseIsSaid(_ arguments: [String]) async throws {
        try await withFolder { folder in
            let outcome = try await BuiltProgram(
                name: "makegood-lab", arguments: ["fuzz", "--keep", "\(folder)/k"] + arguments
            ).run()
            #expect(outcome.status != 0 && outcome.status != 1)
            #expect(!outcome.complaint.isEmpty)
        }
    }
}
