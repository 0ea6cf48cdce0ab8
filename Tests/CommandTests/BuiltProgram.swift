import Foundation
import Testing

/// The program as a person runs it: the built executable, in a process of its own.
struct BuiltProgram {
    /// Longer than any command of these tests takes, also on a busy machine.
    private static let secondsMax = 60.0

    struct Outcome {
        let status: Int32
        let output: String
        let complaint: String

        /// The output as a JSON object; empty if it is none.
        var json: [String: Any] {
            (try? JSONSerialization.jsonObject(with: Data(output.utf8))) as? [String: Any] ?? [:]
        }
    }

    /// `makegood` or `makegood-lab`.
    var name = "makegood"
    let arguments: [String]
    var input = Data()
    var environment: [String: String] = [:]

    /// Runs to the end. A process that does not end in time is killed and fails the test.
    static func run(
        _ arguments: String..., input: Data = Data(), environment: [String: String] = [:]
    ) async throws -> Outcome {
        try await BuiltProgram(arguments: arguments, input: input, environment: environment).run()
    }

    /// Runs `makegood-lab` to the end.
    static func lab(_ arguments: String...) async throws -> Outcome {
        try await BuiltProgram(name: "makegood-lab", arguments: arguments).run()
    }

    /// - Parameter whileRunning: called when the process has started.
    func run(whileRunning: (RunningProgram) async throws -> Void = { _ in }) async throws -> Outcome {
        try await withFolder { folder in
            // Files, not pipes: a full pipe would stop the process and the test with it.
            let (output, complaint, stdin) = ("\(folder)/output", "\(folder)/complaint", "\(folder)/input")
            try input.write(to: URL(filePath: stdin))
            for path in [output, complaint] { try Data().write(to: URL(filePath: path)) }
            let process = Process()
            process.executableURL = try executable
            process.arguments = arguments
            process.environment = ProcessInfo.processInfo.environment
                .filter { !$0.key.hasPrefix("MAKEGOOD_") }.merging(environment) { $1 }
            process.standardInput = FileHandle(forReadingAtPath: stdin)
            process.standardOutput = FileHandle(forWritingAtPath: output)
            process.standardError = FileHandle(forWritingAtPath: complaint)
            let (ended, end) = AsyncStream.makeStream(of: Void.self)
            process.terminationHandler = { _ in end.finish() }
            try process.run()
            let id = process.processIdentifier
            let killer = Task {
                try await Task.sleep(for: .seconds(Self.secondsMax))
                kill(id, SIGKILL)
            }
            do {
                try await whileRunning(RunningProgram(id: id, output: output))
            } catch {
                kill(id, SIGKILL)
                throw error
            }
            for await _ in ended {}
            killer.cancel()
            #expect(
                process.terminationReason == .exit, "ended by signal \(process.terminationStatus): \(arguments)")
            return Outcome(
                status: process.terminationStatus,
                output: String(decoding: try Data(contentsOf: URL(filePath: output)), as: UTF8.self),
                complaint: String(decoding: try Data(contentsOf: URL(filePath: complaint)), as: UTF8.self))
        }
    }

    /// The executable beside the test bundle, wherever the build put both; else the one in the debug build of this
    /// checkout.
    private var executable: URL {
        get throws {
            let beside = ([Bundle.main] + Bundle.allBundles).flatMap { bundle in
                [bundle.bundleURL, bundle.bundleURL.deletingLastPathComponent()]
            }
            let checkout = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
                .deletingLastPathComponent()
            let candidates = (beside + [checkout.appending(path: ".build/debug")]).map {
                $0.appending(path: name)
            }
            return try #require(
                candidates.first { FileManager.default.isExecutableFile(atPath: $0.path) },
                "\(name) is not built: swift build --product \(name)")
        }
    }
}

/// A process that has started.
struct RunningProgram {
    let id: Int32
    fileprivate let output: String

    /// Waits until standard output holds `text`.
    func prints(_ text: String) async throws -> String {
        for _ in 0..<600 {
            let shown = String(decoding: try Data(contentsOf: URL(filePath: output)), as: UTF8.self)
            if shown.contains(text) { return shown }
            try await Task.sleep(for: .milliseconds(50))
        }
        throw NotPrinted(text: text)
    }

    func terminate() { kill(id, SIGTERM) }

    private struct NotPrinted: Error {
        let text: String
    }
}

/// Runs `body` with a new folder, which is removed afterwards.
func withFolder<Value>(_ body: (String) async throws -> Value) async throws -> Value {
    let path = FileManager.default.temporaryDirectory.appending(path: "command-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: path) }
    return try await body(path)
}

extension String {
    /// Writes the text as a file of that name in the folder; returns its path.
    func written(to folder: String, as name: String) throws -> String {
        let path = "\(folder)/\(name)"
        try Data(utf8).write(to: URL(filePath: path))
        return path
    }
}
