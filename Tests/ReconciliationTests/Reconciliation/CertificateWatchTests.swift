import AppStore
import AppStoreSimulator
import Foundation
import Logging
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings

/// Goal: the operator learns of the end of a certificate in time, by a number for alarms and by a line once a day
/// (P17). Method: the certificates of a simulated App Store, looked at from the years in which they end.
@Suite struct CertificateWatchTests {
    private static let day: TimeInterval = 86_400

    @Test("P17: named once a day from 60 days before its end; a root of ours after it too, Apple's leaf not")
    func warnings() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            _ = try await app.verifier.transaction(try await lab.sell().signedTransaction)
            let used = Set(app.verifier.certificatesInUse)
            let leaf = try #require(used.first { $0.kind == .leaf })
            let root = try #require(used.first { $0.kind == .configuredRoot })
            let lines = LogLines()
            let watch = CertificateWatch(
                apps: AppDirectory(http: lab.http),
                configuration: ConfigurationHolder(try IntakeFixture.configuration()),
                logger: lines.logger)
            var warnings = CertificateWatch.Warnings()
            func kinds(_ date: Date) -> Set<String> {
                watch.look(at: app, now: date, &warnings)
                let lines = lines.take()
                #expect(lines.allSatisfy { $0.level == .warning && $0.metadata["app.id"] == "game" })
                return Set(lines.compactMap { $0.metadata["certificate.kind"].map { "\($0)" } })
            }
            #expect(kinds(Date()).isEmpty)
            let before = leaf.end - 59 * Self.day
            #expect(kinds(leaf.end - 61 * Self.day).isEmpty)
            #expect(kinds(before) == ["leaf"])
            for minutes in 1...3 { #expect(kinds(before + Double(minutes) * 60).isEmpty) }
            #expect(kinds(before + Self.day + 1) == ["leaf"])
            #expect(kinds(leaf.end + 1).isEmpty)
            #expect(kinds(root.end - Self.day) == ["configured_root", "intermediate", "root"])
            #expect(kinds(root.end + Self.day) == ["configured_root"])
        }
    }

    @Test("The end of an access key is its successor's, and none once its entry is gone")
    func accessKeys() throws {
        func keys(_ entries: (name: String, expires: String)...) throws -> [AccessKey] {
            let access = entries.map { entry in
                IntakeFixture.entry(entry.name, entry.name + entry.expires, "intake", "game", entry.expires)
            }
            return try IntakeFixture.configuration(access: access.joined(separator: "\n")).access
        }
        let first = ", expires: 2027-03-01T00:00:00Z"
        let second = ", expires: 2028-03-01T00:00:00Z"
        let day = try Date("2027-03-01T00:00:00Z", strategy: .iso8601)
        let later = try Date("2028-03-01T00:00:00Z", strategy: .iso8601)
        let alone = CertificateWatch.ends(of: try keys(("shop", first)), before: [:])
        #expect(alone["shop"] == day && alone["gateway"] == AccessKey.never)
        let rotating = CertificateWatch.ends(of: try keys(("shop", first), ("shop", second)), before: alone)
        #expect(rotating["shop"] == later)
        #expect(
            CertificateWatch.ends(of: try keys(("shop", first), ("shop", "")), before: [:])["shop"] == AccessKey.never)
        #expect(CertificateWatch.ends(of: try keys(), before: rotating)["shop"] == AccessKey.never)
    }

    @Test("P17: the first end of each kind; of Apple's only what has not ended, of ours everything")
    func firstEnds() async throws {
        try await VerifyLab.with { lab in
            let app = try await lab.app()
            _ = try await app.verifier.transaction(try await lab.sell().signedTransaction)
            let used = Set(app.verifier.certificatesInUse)
            let ends = Dictionary(used.map { ($0.kind, $0.end) }) { min($0, $1) }
            #expect(ends.count == CertificateInUse.Kind.allCases.count)
            #expect(CertificateWatch.firstEnds(used, now: Date()) == ends)
            let late = CertificateWatch.firstEnds(used, now: .distantFuture)
            #expect(late[.configuredRoot] == ends[.configuredRoot])
            #expect(late[.leaf]?.timeIntervalSince1970 == .infinity)
            #expect(CertificateWatch.firstEnds([], now: Date()).values.allSatisfy { $0 > .distantFuture })
        }
    }
}
