import Settings
import Testing

/// Goal: an operator can say which version a program is. Method: the built program, alone and at two of its commands.
@Suite struct VersionTests {
    @Test(arguments: [["--version"], ["queue", "status", "--version"], ["ingest", "--version"]])
    func version(_ arguments: [String]) async throws {
        let outcome = try await BuiltProgram(arguments: arguments).run()
        #expect(outcome.status == 0 && outcome.output == "\(Version.current)\n", "\(outcome.complaint)")
    }
}
