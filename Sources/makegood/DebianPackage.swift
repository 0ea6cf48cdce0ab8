import Foundation

/// A Debian package whose patch level matters: the upstream version does not tell what Debian has fixed.
struct DebianPackage {
    let name: String
    /// The first version in which every known vulnerability is fixed.
    let patched: String

    static let required = [
        // CVE-2026-44235 and others: a hostile broker could crash or take over its client.
        DebianPackage(name: "librabbitmq4", patched: "0.11.0-1+deb12u3"),
        DebianPackage(name: "libpq5", patched: "15.20"),
    ]

    /// The finding; nil where there is no dpkg or it does not know the package: then the library's own version was
    /// checked.
    var finding: Diagnosis? {
        guard let installed = Self.run("dpkg-query", "--show", "--showformat=${Version}", name), !installed.isEmpty
        else { return nil }
        guard !Self.isVersion(installed, atLeast: patched) else { return .ok(name, installed) }
        return .warn(
            name, "\(installed) lacks security fixes",
            "apt-get install --only-upgrade \(name), for \(patched) or newer")
    }

    /// Compares two versions by Debian's own rules (deb-version(7)).
    static func isVersion(_ version: String, atLeast other: String) -> Bool {
        run("dpkg", "--compare-versions", version, "ge", other) != nil
    }

    /// The program's output; nil unless it ended with 0.
    private static func run(_ program: String, _ arguments: String...) -> String? {
        let process = Process()
        let output = Pipe()
        process.executableURL = URL(filePath: "/usr/bin/\(program)")
        process.arguments = arguments
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        guard (try? process.run()) != nil else { return nil }
        // The output is one short line, so the pipe never fills.
        let bytes = (try? output.fileHandleForReading.readToEnd()) ?? Data()
        process.waitUntilExit()
        return process.terminationStatus == 0 ? String(decoding: bytes, as: UTF8.self) : nil
    }
}
