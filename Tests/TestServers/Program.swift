package import Foundation

/// A program of the machine that runs to its end, such as openssl or deploy/local.
package enum Program {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String

        package init(description: String) { self.description = description }
    }

    /// deploy/local of the servers that the tests use.
    package static var deployLocal: String {
        ProcessInfo.processInfo.environment["MAKEGOOD_LOCAL"]
            ?? URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().appending(path: "deploy/local").path
    }

    /// What it printed on standard output. Throws with all it printed unless it ends with 0.
    @discardableResult
    package static func run(
        _ program: String, _ arguments: [String], in directory: URL = FileManager.default.temporaryDirectory
    ) throws -> String {
        // Files, not pipes: a server that is left running would hold a pipe open.
        let name = FileManager.default.temporaryDirectory.appending(path: "makegood-program-\(UUID().uuidString)").path
        let (output, errors) = ("\(name).out", "\(name).err")
        for file in [output, errors] { _ = FileManager.default.createFile(atPath: file, contents: nil) }
        defer { for file in [output, errors] { try? FileManager.default.removeItem(atPath: file) } }
        let process = Process()
        process.executableURL = URL(filePath: program)
        process.arguments = arguments
        process.currentDirectoryURL = directory
        process.standardInput = FileHandle.nullDevice
        process.standardOutput = FileHandle(forWritingAtPath: output)
        process.standardError = FileHandle(forWritingAtPath: errors)
        try process.run()
        process.waitUntilExit()
        let text = try String(contentsOfFile: output, encoding: .utf8)
        guard process.terminationStatus == 0 else {
            let said = (try? String(contentsOfFile: errors, encoding: .utf8)) ?? ""
            throw Failure(description: "\(program) \(arguments.first ?? "") failed:\n\(text)\(said)")
        }
        return text
    }
}
