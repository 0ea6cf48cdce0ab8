package import Foundation
import Glibc

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

    /// Runs the program; returns its standard output. Throws with all its output unless the program ends with 0.
    @discardableResult
    package static func run(
        _ program: String, _ arguments: [String], in directory: URL = FileManager.default.temporaryDirectory
    ) throws -> String {
        // Files, not pipes: a server that is left running would hold a pipe open.
        let name = FileManager.default.temporaryDirectory.appending(path: "makegood-program-\(UUID().uuidString)").path
        let (output, errors) = ("\(name).out", "\(name).err")
        for file in [output, errors] { _ = FileManager.default.createFile(atPath: file, contents: nil) }
        defer { for file in [output, errors] { try? FileManager.default.removeItem(atPath: file) } }
        let status = try spawn(["/usr/bin/env", "-C", directory.path, program] + arguments, output, errors)
        let text = try String(contentsOfFile: output, encoding: .utf8)
        guard status == 0 else {
            let said = (try? String(contentsOfFile: errors, encoding: .utf8)) ?? ""
            throw Failure(description: "\(program) \(arguments.first ?? "") failed:\n\(text)\(said)")
        }
        return text
    }

    /// Starts the program. Foundation's Process is not used: the test process blocks and ignores signals, and a server
    /// that inherits that cannot be told to stop.
    private static func spawn(_ words: [String], _ output: String, _ errors: String) throws -> Int32 {
        var actions = posix_spawn_file_actions_t()
        posix_spawn_file_actions_init(&actions)
        defer { posix_spawn_file_actions_destroy(&actions) }
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
        posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY, 0)
        posix_spawn_file_actions_addopen(&actions, 2, errors, O_WRONLY, 0)
        var attributes = posix_spawnattr_t()
        posix_spawnattr_init(&attributes)
        defer { posix_spawnattr_destroy(&attributes) }
        var signals = sigset_t()
        sigemptyset(&signals)
        posix_spawnattr_setsigmask(&attributes, &signals)
        sigfillset(&signals)
        posix_spawnattr_setsigdefault(&attributes, &signals)
        posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF))
        let argv = words.map { strdup($0) } + [nil]
        defer { for pointer in argv { free(pointer) } }
        var id: pid_t = 0
        let code = posix_spawn(&id, words[0], &actions, &attributes, argv, environ)
        guard code == 0 else {
            throw Failure(description: "\(words[0]) did not start: \(String(cString: strerror(code)))")
        }
        var status: Int32 = 0
        while waitpid(id, &status, 0) < 0, errno == EINTR {}
        return status
    }
}
