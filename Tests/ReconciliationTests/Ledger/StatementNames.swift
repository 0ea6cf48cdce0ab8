import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Runs the statements by which ingest stores what a backend did, and compares a day's events with the backend's.
func handleNothing(in database: Database) async throws {
    let done = try HandOut(try JSONValue(parsing: Array(#"{"outcome":"handed_out"}"#.utf8)))
    let report = HandOutReport(apps: ["game"], transactionID: "none", eventID: UUID(), done)
    #expect(try await database.run(Statements.handleEvent, report).map(\.word) == [.unknown])
    let span = try #require(DigestSpan(appID: "game", day: "2020-01-01", upTo: nil))
    _ = try await database.run(Statements.isDigestWhole, span)
    #expect(try await database.run(Statements.eventDigest, span).map(\.count) == [0])
    #expect(try await database.run(Statements.digestDifferences, .init(span, [])).isEmpty)
}

/// Runs the statements by which a scheduler counts late hand-outs, of an app that acknowledges for a moment.
func countHandOuts(in database: Database) async throws {
    for within: Duration? in [.seconds(3600), nil] {
        _ = try await database.run(Statements.followHandOuts, [.init(appID: "game", within: within)])
        #expect(try await database.run(Statements.countLateHandOuts, .init(appID: "game", most: 10)).count == 1)
    }
    #expect(try await database.run(Statements.recountHandOuts, 10) == [0])
    _ = try await database.run(Statements.waitingHandOuts, ())
}

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
