import ArgumentParser
import Commands
import Encoding
import Ledger
import Postgres
import Settings

struct MigrateCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "migrate",
        abstract: "Bring the database to this program's schema. Safe to repeat.",
        discussion: """
            Runs as the schema's owner. Where the roles of `makegood roles` exist, their rights follow.

            With --plan nothing is written. It says of each migration why it is there, which locks it takes, what it costs \
            on a big table, and whether the programs that run now go on beside it. Exit code 0: nothing to do; 3: \
            something, and they go on; 4: something, and they must be ended first; 1: the database cannot be asked, or \
            its history is not this program's.
            """)

    @Flag(help: "Only say what would be applied, and what it does to what runs.")
    var plan = false
    @Flag(help: "Print the plan as JSON.")
    var json = false

    func validate() throws {
        if json, !plan { throw ValidationError("--json is for --plan") }
    }

    func run() async throws {
        let settings = try Settings()
        let migrator = try Connections.migrator(settings, "migrate")
        if plan { return try show(await migrator.plan()) }
        let migrations = try await migrator.migrate()
        for migration in migrations { print("applied \(migration.fileName)") }
        if migrations.isEmpty { print(Self.nothingToDo) }
        try await renewRights(migrator, RoleScript(prefix: settings.rolePrefix))
    }

    private static let nothingToDo = "nothing to do: the schema is up to date"

    private func show(_ plan: MigrationPlan) throws {
        if json {
            try JSON.print(JSON.MigrationPlan(plan))
        } else {
            for migration in plan.pending { print(Self.text(of: migration, in: plan)) }
            print(Self.verdict(on: plan))
        }
        if !plan.pending.isEmpty { throw plan.keepsRunning ? ExitCode.runsBeside : .endsWhatRuns }
    }

    static func text(of migration: Migration, in plan: MigrationPlan) -> String {
        var lines = ["pending \(migration.fileName)"]
        for note in Migration.Note.allCases {
            lines.append("  \(note.rawValue.lowercased()): \(migration.note(note) ?? "it does not say")")
        }
        if plan.executed > 0 {
            let serves = migration.serves.map { "serves programs from schema \($0) on" } ?? "serves no earlier program"
            lines.append(
                "  \(serves): what runs now \(plan.keepsRunning(migration) ? "goes on" : "must be ended first")")
        }
        return lines.joined(separator: "\n")
    }

    static func verdict(on plan: MigrationPlan) -> String {
        if plan.pending.isEmpty { return nothingToDo }
        let count = plan.pending.count.counted("migration")
        if plan.executed == 0 { return "\(count); the database is empty" }
        return plan.keepsRunning
            ? "\(count); the programs that run now, of schema \(plan.executed), go on beside it"
            : "\(count); end the programs that run now, of schema \(plan.executed), first"
    }

    /// Renews the roles' rights, so that a new table has them at once.
    private func renewRights(_ migrator: Migrator, _ script: RoleScript) async throws {
        let roles = try await Connections.withDatabase("migrate") { try await script.existing(in: $0) }
        if !roles.isEmpty { try await migrator.run(script: script.rights(of: roles)) }
    }
}

extension ExitCode {
    /// `migrate --plan`: migrations are pending, and running programs go on beside them.
    fileprivate static let runsBeside = ExitCode(3)
    /// `migrate --plan`: migrations are pending, and the operator must end the running programs first.
    fileprivate static let endsWhatRuns = ExitCode(4)
}

extension JSON {
    struct MigrationPlan: Encodable {
        struct Pending: Encodable {
            let file: String
            let why: String?
            let locks: String?
            let cost: String?
            let serves: Int?
            let keepsRunning: Bool
        }

        let executed: Int
        let pending: [Pending]
        let keepsRunning: Bool

        init(_ plan: Postgres.MigrationPlan) {
            (executed, keepsRunning) = (plan.executed, plan.keepsRunning)
            pending = plan.pending.map {
                Pending(
                    file: $0.fileName, why: $0.note(.why), locks: $0.note(.locks), cost: $0.note(.cost),
                    serves: $0.serves, keepsRunning: plan.keepsRunning($0))
            }
        }
    }
}
