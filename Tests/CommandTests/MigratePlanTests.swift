import Foundation
import Ledger
import Logging
import Postgres
import TestServers
import Testing

@testable import makegood

/// Goal: before an upgrade a person learns what will run, what it locks, and whether the services may go on meanwhile;
/// asking writes nothing. Method: the texts as values; the built program on a database that is empty, complete, and one
/// version behind.
@Suite struct MigratePlanTests {
    private static func migration(_ number: Int, _ comment: String) -> Migration {
        Migration(number: number, name: "x", sql: comment + "\ncreate table x (id int);\n-- Cost: of a later comment")
    }

    @Test(
        arguments: [
            ("-- serves: 3\n-- Why: it is\n--   slow.\n-- Locks: none. Cost: none.", "it is slow.", "none.", "none."),
            ("-- Why: a\n-- serves: 1\n-- Locks: SHARE on b\n-- Cost: two scans", "a", "SHARE on b", "two scans"),
            ("-- Locks: l", nil, "l", nil),
            ("", nil, nil, nil),
        ] as [(String, String?, String?, String?)])
    func notes(_ comment: String, _ why: String?, _ locks: String?, _ cost: String?) {
        let migration = Self.migration(1, comment)
        #expect(migration.note(.why) == why)
        #expect(migration.note(.locks) == locks)
        #expect(migration.note(.cost) == cost)
    }

    @Test(arguments: Schema.migrations)
    func everyMigrationSaysAllThree(_ migration: Migration) {
        for note in Migration.Note.allCases { #expect(migration.note(note) != nil, "\(note) of \(migration.fileName)") }
    }

    @Test func whatRunsGoesOnOnlyBesideThoseThatServeIt() {
        let (serving, breaking) = (Self.migration(6, "-- serves: 5"), Self.migration(7, "-- serves: 6"))
        let silent = Self.migration(7, "-- Why: w")
        let plans = [[serving], [serving, breaking], [serving, silent]].map { MigrationPlan(executed: 5, pending: $0) }
        #expect(plans.map(\.keepsRunning) == [true, false, false])
        #expect(MigrateCommand.verdict(on: plans[0]).contains("go on"))
        #expect(MigrateCommand.verdict(on: plans[1]).contains("first"))
        #expect(MigrateCommand.text(of: silent, in: plans[2]).contains("serves no earlier program"))
        // No service runs on an empty database.
        #expect(MigrationPlan(executed: 0, pending: [silent]).keepsRunning)
    }

    @Test(.database) func anEmptyOneAWholeOneAndOneBehind() async throws {
        let environment = ["MAKEGOOD_POSTGRES_URL": TestDatabase.current.url]
        func plan(_ more: String...) async throws -> BuiltProgram.Outcome {
            try await BuiltProgram(arguments: ["migrate", "--plan"] + more, environment: environment).run()
        }
        let newest = try #require(Schema.migrations.last)
        // Twice: asking writes nothing.
        for _ in 0..<2 {
            let empty = try await plan()
            #expect(empty.status == 3, "\(empty.complaint)")
            for migration in Schema.migrations { #expect(empty.output.contains("pending \(migration.fileName)\n")) }
            #expect(empty.output.contains("the database is empty"))
        }
        #expect(try await BuiltProgram.run("migrate", environment: environment).status == 0)
        let whole = try await plan()
        #expect(whole.status == 0)
        #expect(whole.output == "nothing to do: the schema is up to date\n")

        let database = Database(
            PostgresConfiguration(url: TestDatabase.current.url), connections: 1,
            logger: Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() })
        let forget = "delete from schema_migrations where number = \(newest.number)"
        try await database.run(Statement<Void, Void>("test.forget", forget))
        await database.close()
        let behind = try await plan()
        let goesOn = newest.serves.map { $0 < newest.number } ?? false
        #expect(behind.status == (goesOn ? 3 : 4))
        #expect(behind.output.contains("  why: \(try #require(newest.note(.why)))\n"))
        #expect(behind.output.contains("  locks: \(try #require(newest.note(.locks)))\n"))
        let json = try await plan("--json").json
        #expect(json["executed"] as? Int == newest.number - 1)
        #expect(json["keepsRunning"] as? Bool == goesOn)
        #expect((json["pending"] as? [[String: Any]])?.first?["file"] as? String == newest.fileName)
    }
}
