import Ledger
import Postgres
import TestServers
import Testing

extension TestDatabase {
    /// A database with the whole schema.
    static func migrated() async throws -> TestDatabase {
        try await copy(of: "schema") { url in
            _ = try await Migrator(
                LedgerLab.configuration(url), migrations: Schema.migrations, logger: .silent
            ).migrate()
        }
    }
}

extension Trait where Self == DatabaseTrait {
    /// A database of its own with the whole schema, dropped afterwards.
    static var migratedDatabase: Self { Self(TestDatabase.migrated) }
}
