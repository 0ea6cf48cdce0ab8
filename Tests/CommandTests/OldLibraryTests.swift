import TestServers
import Testing

/// Goal: no service starts on a libpq below 15 or a librabbitmq below 0.11.0. Method: the built program, with a library
/// loaded before the real one that reports an older version.
@Suite struct OldLibraryTests {
    private static let older = [
        ("libpq 14.19", "int PQlibVersion(void) { return 140019; }"),
        ("librabbitmq 0.10.0", "unsigned amqp_version_number(void) { return 0x000A0001; }"),
    ]

    @Test(arguments: older)
    func nothingStarts(_ name: String, _ source: String) async throws {
        try await withFolder { folder in
            let library = "\(folder)/older.so"
            try Program.run(
                "clang", ["-shared", "-fPIC", "-o", library, try source.written(to: folder, as: "older.c")])
            for service in ["ingest", "worker", "dispatcher", "scheduler", "all"] {
                let outcome = try await BuiltProgram.run(service, environment: ["LD_PRELOAD": library])
                #expect(outcome.status != 0)
                #expect(outcome.complaint.contains("\(name) is too old"), "\(service): \(outcome.complaint)")
                // With the library of this machine the start gets further.
                let real = try await BuiltProgram.run(service)
                #expect(real.complaint.contains("MAKEGOOD_CONFIG"), "\(service): \(real.complaint)")
            }
            let doctor = try await BuiltProgram.run("doctor", environment: ["LD_PRELOAD": library])
            #expect(doctor.status == 1)
            #expect(doctor.output.contains("\(name) is too old"), "\(doctor.output)")
        }
    }
}
