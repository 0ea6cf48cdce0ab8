import Foundation
import Postgres
import TestServers
import Testing

@testable import Ledger

/// A statement as a database role sends it.
struct RoleStatement: Codable, Hashable, Comparable {
    let role: String
    let name: String
    /// The types of `$1`, `$2` … as PREPARE takes them: `uuid[], double precision`. Empty: no parameters.
    let parameters: String
    let sql: String

    static func < (one: RoleStatement, other: RoleStatement) -> Bool {
        (one.role, one.name, one.parameters, one.sql) < (other.role, other.name, other.parameters, other.sql)
    }

    /// The statements that the one connection of this database has prepared, without the statements of tests, and without
    /// those that begin and end transactions, which PREPARE does not take.
    static func prepared(_ role: DatabaseRole, in database: Database) async throws -> [RoleStatement] {
        let read = Statement<Void, RoleStatement>(
            "test.prepared",
            """
            select split_part(name, '#', 1), array_to_string(parameter_types, ', '), statement
            from pg_prepared_statements where name not like 'test.%' and name not like 'transaction.%'
            """,
            read: { row throws(PostgresError) in
                RoleStatement(
                    role: role.rawValue, name: try row.text(0), parameters: try row.text(1), sql: try row.text(2))
            })
        return try await database.run(read)
    }
}

/// What a release asks of the database: `deploy/releases/VERSION.json`.
struct Release: Codable, Equatable {
    /// How many migrations the release knows.
    var schema: Int
    /// Sorted, each once.
    var statements: [RoleStatement]

    /// What this checkout asks of the database. Takes some seconds.
    static func current() async throws -> Release {
        Release(schema: Schema.migrations.count, statements: try await RightsTests.work().sorted())
    }

    static let checkout = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()
    static let folder = checkout.appending(path: "deploy/releases")

    /// Every release in the folder, by version. A folder that does not exist holds none.
    static func all(in folder: URL) throws -> [String: Release] {
        guard FileManager.default.fileExists(atPath: folder.path) else { return [:] }
        let files = try FileManager.default.contentsOfDirectory(at: folder, includingPropertiesForKeys: nil)
            .filter { $0.pathExtension == "json" }
        return try Dictionary(
            uniqueKeysWithValues: files.map { file in
                let release = try JSONDecoder().decode(Release.self, from: Data(contentsOf: file))
                return (file.deletingPathExtension().lastPathComponent, release)
            })
    }

    func store(as version: String, in folder: URL) throws {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.prettyPrinted, .sortedKeys, .withoutEscapingSlashes]
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        try (encoder.encode(self) + Data("\n".utf8)).write(to: folder.appending(path: "\(version).json"))
    }

    /// Whether the programs of this release may work on the schema of this checkout: each migration that the release
    /// does not know says so (`-- serves:`).
    var isServed: Bool {
        MigrationPlan(executed: schema, pending: Array(Schema.migrations.dropFirst(schema))).keepsRunning
    }

    /// The statements that the lab's database refuses to their role, each with the server's reason:
    /// `worker ledger.postpone: 42703 column "due_at" does not exist`.
    ///
    /// PREPARE finds tables, columns, functions and types that are missing, EXPLAIN finds rights that are missing.
    /// Neither executes the statement. What a constraint refuses and what a function does, neither finds.
    func refusals(in lab: LedgerLab) async throws -> [String] {
        try await lab.run(
            """
            create or replace function refusal(parameters text, sql text) returns text language plpgsql
            set plan_cache_mode = force_generic_plan as $$
            declare
              key text := quote_ident(gen_random_uuid()::text);
              nulls text := regexp_replace(parameters, '[^,]+', 'null', 'g');
            begin
              execute format('prepare %s %s as %s', key, nullif('(' || parameters || ')', '()'), sql);
              execute format('explain execute %s %s', key, nullif('(' || nulls || ')', '()'));
              return null;
            exception when others then return sqlstate || ' ' || sqlerrm;
            end $$
            """)
        let refuse = Statement<[RoleStatement], String>(
            "test.refuse",
            """
            select name || ': ' || reason
            from unnest($1::text[], $2::text[], $3::text[]) as i(name, parameters, sql), refusal(parameters, sql) reason
            where reason is not null
            """,
            bind: { [.texts($0.map(\.name)), .texts($0.map(\.parameters)), .texts($0.map(\.sql))] },
            read: { row throws(PostgresError) in try row.text(0) })
        var refusals: [String] = []
        for (name, statements) in Dictionary(grouping: statements, by: \.role) {
            let role = try #require(DatabaseRole(rawValue: name))
            try await RightsTests.with(role, in: lab) { database in
                refusals += try await database.run(refuse, statements).map { "\(name) \($0)" }
            }
        }
        return refusals.sorted()
    }
}
