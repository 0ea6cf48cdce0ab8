import Foundation

/// A package whose patch level matters: its upstream version does not tell what Debian has mended in it.
struct DebianPackage {
    let name: String
    /// The first one with every known hole closed.
    let patched: String

    static let required = [
        // CVE-2026-44235 and others: a hostile broker could crash or take over its client.
        DebianPackage(name: "librabbitmq4", patched: "0.11.0-1+deb12u3"),
        DebianPackage(name: "libpq5", patched: "15.20"),
    ]

    /// Nil where dpkg does not know the package, or there is no dpkg: the library's own version was checked.
    var finding: Finding? {
        guard let installed = Self.run("dpkg-query", "--show", "--showformat=${Version}", name), !installed.isEmpty
        else { return nil }
        guard !Self.isVersion(installed, atLeast: patched) else { return .ok(name, installed) }
        return .warn(
            name, "\(installed) lacks security fixes",
            "apt-get install --only-upgrade \(name), for \(patched) or newer")
    }

    /// By Debian's own rules (deb-version(7)).
    static func isVersion(_ version: String, atLeast other: String) -> Bool {
        run("dpkg", "--compare-versions", version, "ge", other) != nil
    }

    /// What it printed; nil unless it ended with 0.
    private static func run(_ program: String, _ arguments: String...) -> String? {
        let process = Process()
        let output = Pipe()
        process.executableURL = URL(filePath: "/usr/bin/\(program)")
        process.arguments = arguments
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        guard (try? process.run()) != nil else { return nil }
        // A version: one short line, so the pipe never fills.
        let bytes = (try? output.fileHandleForReading.readToEnd()) ?? Data()
        process.waitUntilExit()
        return process.terminationStatus == 0 ? String(decoding: bytes, as: UTF8.self) : nil
    }
}
