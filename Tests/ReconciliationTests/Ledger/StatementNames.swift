import Foundation

extension RightsTests {
    /// The names of all statements of the services and of support: `Statement<…>("name", …)` in the sources. The owner
    /// of the schema runs `roles.existing`, and tests run the witness.
    static func namesInSources() throws -> Set<String> {
        var names: Set<String> = []
        for target in ["Ledger", "AppleGateway", "Support", "Intake", "Reconciliation"] {
            let folder = Release.checkout.appending(path: "Sources/\(target)")
            for path in try FileManager.default.subpathsOfDirectory(atPath: folder.path) where path.hasSuffix(".swift")
            {
                let text = try String(contentsOf: folder.appending(path: path), encoding: .utf8)
                for piece in text.components(separatedBy: "Statement<").dropFirst() {
                    let parts = piece.split(separator: "\"", maxSplits: 2)
                    // Between the types and the name stands one parenthesis.
                    guard parts.count == 3, parts[0].trimmingCharacters(in: .whitespacesAndNewlines).hasSuffix(">(")
                    else { continue }
                    names.insert(String(parts[1]))
                }
            }
        }
        return names.filter { $0 != "roles.existing" && !$0.hasPrefix("witness.") }
    }
}
