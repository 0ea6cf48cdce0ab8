import Foundation
import Logging
import Postgres
package import Testing

/// A database of its own on the real server, for one suite or test.
///
/// The server's address comes from `MAKEGOOD_POSTGRES_URL`, a libpq URI of a role that may create databases. Without
/// it `make` throws: a test that needs a server fails, it is never skipped. Costs about 0.1 s.
package struct TestDatabase: Sendable {
    package let name: String
    /// For `PostgresConfiguration(url:)`.
    package let url: String

    package static func make() async throws -> TestDatabase {
        let server = try serverURL
        let name = "makegood_test_" + String(UInt64.random(in: .min ... .max), radix: 36)
        try await onServer { try await $0.run(Statement<Void, Void>("test.create", "create database \(name)")) }
        return TestDatabase(name: name, url: try replacingDatabase(of: server, with: name))
    }

    /// Removes the database, whoever is still connected.
    package func drop() async {
        do {
            try await Self.onServer {
                try await $0.run(Statement<Void, Void>("test.drop", "drop database if exists \(name) with (force)"))
            }
        } catch {
            Issue.record("test database \(name) was not dropped: \(error)")
        }
    }

    /// The server's own URL: for tests about the server, and for the maintenance database.
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

    private static func onServer(_ body: (Database) async throws -> Void) async throws {
        // Creating a database copies files: on a busy disk that is more than a statement may take otherwise. A machine
        // that also compiles may need seconds for a connection, and so may others who hold the database's lock.
        let configuration = PostgresConfiguration(
            url: try serverURL, applicationName: "makegood-tests", statementTimeout: .seconds(60),
            lockTimeout: .seconds(50), callDeadline: .seconds(90), reconnectWait: .seconds(20))
        var logger = Logger(label: "tests")
        logger.logLevel = .warning
        let database = Database(configuration, connections: 1, logger: logger)
        do {
            try await body(database)
        } catch {
            await database.close()
            throw error
        }
        await database.close()
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
    package func provideScope(
        for test: Test, testCase: Test.Case?, performing function: @concurrent @Sendable () async throws -> Void
    ) async throws {
        let database = try await TestDatabase.make()
        let result = await Result { try await TestDatabase.$scoped.withValue(database) { try await function() } }
        await database.drop()
        try result.get()
    }
}

extension Trait where Self == DatabaseTrait {
    /// A database of its own, dropped afterwards.
    package static var database: Self { Self() }
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
