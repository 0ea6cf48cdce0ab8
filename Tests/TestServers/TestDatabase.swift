import Foundation
import Logging
import Postgres
package import Testing

/// A database of its own on the real server, for one suite or test.
///
/// The server's address comes from `MAKEGOOD_POSTGRES_URL`, a libpq URI of a role that may create databases. Without
/// it `make` and `copy` throw: a test that needs a server fails, it is never skipped. Each costs about 0.1 s.
package struct TestDatabase: Sendable {
    package let name: String
    /// For `PostgresConfiguration(url:)`.
    package let url: String

    /// An empty database.
    package static func make() async throws -> TestDatabase {
        try await onServer { try await make(from: "template1", on: $0) }
    }

    /// A copy of a template, which `prepare` fills once for each server and build.
    ///
    /// - Parameters:
    ///   - template: the template's name, one for each `prepare`: lower-case letters and `_`.
    ///   - program: the file whose build the template belongs to. Another build makes a template of its own.
    ///   - prepare: fills the empty database at this URL, and leaves no connection to it.
    package static func copy(
        of template: String, builtBy program: String = "/proc/self/exe", prepare: (_ url: String) async throws -> Void
    ) async throws -> TestDatabase {
        let family = "makegood_template_\(template)_"
        let version = try family + build(of: program)
        return try await onServer { server in
            if try await names(like: version, on: server).isEmpty {
                // Other tests and processes ask for the template at the same moment. The session holds the lock until
                // it ends.
                try await command("select pg_advisory_lock(hashtext('\(family)'))", on: server)
                if try await names(like: version, on: server).isEmpty {
                    for old in try await names(like: family + "%", on: server) {
                        try await command("drop database \(old)", on: server)
                    }
                    let unfinished = try await make(from: "template1", on: server)
                    try await prepare(unfinished.url)
                    try await command("alter database \(unfinished.name) rename to \(version)", on: server)
                }
            }
            return try await make(from: version, on: server)
        }
    }

    private static func make(from template: String, on server: Database) async throws -> TestDatabase {
        let name = "makegood_test_" + String(UInt64.random(in: .min ... .max), radix: 36)
        try await command("create database \(name) template \(template)", on: server)
        return TestDatabase(name: name, url: try replacingDatabase(of: serverURL, with: name))
    }

    /// A short text that names this build of the program, from the time at which its file was written.
    private static func build(of program: String) throws -> String {
        let file = URL(filePath: program).resolvingSymlinksInPath().path
        let written = try FileManager.default.attributesOfItem(atPath: file)[.modificationDate] as? Date
        return String(UInt64((written ?? Date(timeIntervalSince1970: 0)).timeIntervalSince1970 * 1000), radix: 36)
    }

    private static func names(like pattern: String, on server: Database) async throws -> [String] {
        let escaped = pattern.replacing("_", with: "\\_")
        return try await server.run(
            Statement<Void, String>(
                "test.names", "select datname::text from pg_database where datname like '\(escaped)'",
                read: { row throws(PostgresError) in try row.text(0) }))
    }

    private static func command(_ sql: String, on server: Database) async throws {
        try await server.run(Statement<Void, Void>("test.command", sql))
    }

    /// Drops the database, also with connections that are still open.
    package func drop() async {
        do {
            try await Self.onServer { try await Self.command("drop database if exists \(name) with (force)", on: $0) }
        } catch {
            Issue.record("test database \(name) was not dropped: \(error)")
        }
    }

    /// The URL of the server itself: for tests about the server, and for the maintenance database.
    package static var serverURL: String {
        get throws(MissingServer) {
            guard let url = ProcessInfo.processInfo.environment["MAKEGOOD_POSTGRES_URL"], !url.isEmpty else {
                throw MissingServer(
                    description: "set MAKEGOOD_POSTGRES_URL to a PostgreSQL server for tests, such as "
                        + "postgresql://postgres@127.0.0.1:5432/postgres")
            }
            return url
        }
    }

    package struct MissingServer: Error, CustomStringConvertible {
        package let description: String
    }

    private static func onServer<Result>(_ body: (Database) async throws -> Result) async throws -> Result {
        // Creating a database copies files: on a busy disk this takes longer than other statements may. A machine that
        // also compiles may need seconds for a connection, and so may other processes that hold the database's lock.
        let configuration = PostgresConfiguration(
            url: try serverURL, applicationName: "makegood-tests", statementTimeout: .seconds(60),
            lockTimeout: .seconds(50), callDeadline: .seconds(90), reconnectWait: .seconds(20))
        var logger = Logger(label: "tests")
        logger.logLevel = .warning
        let database = Database(configuration, connections: 1, logger: logger)
        do {
            let result = try await body(database)
            await database.close()
            return result
        } catch {
            await database.close()
            throw error
        }
    }

    private static func replacingDatabase(of url: String, with name: String) throws -> String {
        guard var parts = URLComponents(string: url), parts.scheme?.hasPrefix("postgres") == true else {
            // A keyword string: the last dbname wins.
            return "\(url) dbname=\(name)"
        }
        parts.path = "/\(name)"
        return parts.string ?? url
    }
}

/// Gives a suite (or a test) a `TestDatabase` that is dropped afterwards: `@Suite(.database) struct …`, and inside
/// `TestDatabase.current`.
package struct DatabaseTrait: SuiteTrait, TestTrait, TestScoping {
    private let make: @Sendable () async throws -> TestDatabase

    package init(_ make: @escaping @Sendable () async throws -> TestDatabase) { self.make = make }

    package func provideScope(
        for test: Test, testCase: Test.Case?, performing function: @concurrent @Sendable () async throws -> Void
    ) async throws {
        let database = try await make()
        let result = await Result { try await TestDatabase.$scoped.withValue(database) { try await function() } }
        await database.drop()
        try result.get()
    }
}

extension Trait where Self == DatabaseTrait {
    /// An empty database of its own, dropped afterwards.
    package static var database: Self { Self(TestDatabase.make) }
}

extension TestDatabase {
    @TaskLocal fileprivate static var scoped: TestDatabase?

    /// The database of the suite or test that runs; it must have the trait `.database`.
    package static var current: TestDatabase {
        guard let scoped else { preconditionFailure("the suite lacks the trait .database") }
        return scoped
    }
}

extension Result where Failure == any Error {
    fileprivate init(_ body: () async throws -> Success) async {
        do { self = .success(try await body()) } catch { self = .failure(error) }
    }
}
