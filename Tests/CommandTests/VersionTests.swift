import Reconciliation
import Testing

/// Goal: whoever runs a program can say which one it is. Method: the built program, at the door and at a command.
@Suite struct VersionTests {
    @Test(arguments: [["--version"], ["queue", "status", "--version"], ["ingest", "--version"]])
    func version(_ arguments: [String]) async throws {
        let outcome = try await BuiltProgram(arguments: arguments).run()
        #expect(outcome.status == 0 && outcome.output == "\(Version.current)\n", "\(outcome.complaint)")
    }
}
