import Foundation
import Settings
import TestServers
import Testing

@testable import Ledger

/// Goal: while an operator replaces the processes of a release, the old processes work on the new schema, with the
/// rights that the new program grants. Method: a release stores the statements that each role runs, as the server got
/// them. Each stored release must be able to prepare its statements, as their roles, on the schema of this checkout. A
/// release that a newer migration does not serve is left out, because the release's programs do not start there. No
/// second build is needed.
///
/// `MAKEGOOD_RELEASE=1 deploy/test --filter ReleaseTests` stores the release (deploy/changelog.md).
@Suite(.serialized, .timeLimit(.minutes(8))) struct ReleaseTests {
    @Test("each stored release that the schema serves can run every one of its statements")
    func storedReleases() async throws {
        let current = try await Release.current()
        if ProcessInfo.processInfo.environment["MAKEGOOD_RELEASE"] == "1" {
            try current.store(as: Version.current, in: Release.folder)
        }
        let releases = try Release.all(in: Release.folder)
        if let stored = releases[Version.current] {
            let differ = Set(stored.statements).symmetricDifference(current.statements).map(\.name)
            #expect(
                stored == current,
                """
                \(Version.current) is stored with other statements: \(differ.sorted()). Raise Version.current, or, \
                before \(Version.current) is published: MAKEGOOD_RELEASE=1 deploy/test --filter ReleaseTests
                """)
        }
        try await LedgerLab.with { lab in
            try await RightsTests.make(in: lab)
            for (version, release) in releases where release.isServed {
                #expect(try await release.refusals(in: lab) == [], "\(version)")
            }
        }
    }

    @Test("a column or a function with another name, and a right that is missing, are found in a stored release")
    func whatIsFound() async throws {
        let folder = FileManager.default.temporaryDirectory.appending(path: "makegood-\(UUID().uuidString)")
        defer { try? FileManager.default.removeItem(at: folder) }
        let current = try await Release.current()
        for version in ["1.0.0", "1.1.0"] { try current.store(as: version, in: folder) }
        let releases = try Release.all(in: folder)
        #expect(releases == ["1.0.0": current, "1.1.0": current])
        let release = try #require(releases["1.0.0"])
        #expect(release.isServed)
        try await LedgerLab.with(endsSound: false) { lab in
            try await RightsTests.make(in: lab)
            #expect(try await release.refusals(in: lab) == [])

            try await lab.run("revoke update (lane) on receipts from makegood_worker")
            let forbidden = try await release.refusals(in: lab)
            #expect(forbidden.contains("worker ledger.reroute: 42501 permission denied for table receipts"))
            #expect(forbidden.allSatisfy { $0.hasPrefix("worker ledger.") || $0.hasPrefix("worker settle.") })
            try await lab.run("grant update (lane) on receipts to makegood_worker")

            try await lab.run("alter function drop_limit_places() rename to drop_places")
            let uncallable = try await release.refusals(in: lab)
            #expect(
                uncallable == [
                    "scheduler retention.drop_limit_places: 42883 function drop_limit_places() does not exist"
                ])

            try await lab.run("alter table receipts rename column due_at to due_on")
            let unknown = try await release.refusals(in: lab)
            for statement in ["worker ledger.postpone", "scheduler ledger.claim", "support repair.redrive"] {
                #expect(unknown.contains { $0.hasPrefix("\(statement): 42703 ") }, "\(statement)")
            }
        }
    }
}
