import Logging
import Postgres
import TestServers
import Testing

/// Lends a `Database` on the suite's own test database and closes it, also after a failure.
func withDatabase<Result>(
    connections: Int = 1, _ change: (inout PostgresConfiguration) -> Void = { _ in },
    _ body: (Database) async throws -> Result
) async throws -> Result {
    // A machine that also compiles may need seconds for a connection.
    var configuration = PostgresConfiguration(
        url: TestDatabase.current.url, applicationName: "makegood-tests", reconnectWait: .seconds(20))
    change(&configuration)
    let database = Database(configuration, connections: connections, logger: .quiet)
    do {
        let result = try await body(database)
        await database.close()
        return result
    } catch {
        await database.close()
        throw error
    }
}

extension Logger {
    /// A logger that prints nothing: these tests are about outages, and nobody needs to read of them.
    static var quiet: Logger {
        var logger = Logger(label: "tests")
        logger.logLevel = .critical
        return logger
    }
}

/// Waits until `condition` holds in the test database, so that no test guesses how long something takes.
func until(exists condition: String) async throws {
    try await withDatabase { database in
        for _ in 0..<400 {
            if try await database.run(oneNumber("select count(*) from (\(condition)) c"))[0] > 0 { return }
            try await Task.sleep(for: .milliseconds(50))
        }
        Issue.record("never came true: \(condition)")
    }
}

/// Waits until a statement that contains `text` runs in the test database.
func until(running text: String) async throws {
    try await until(
        exists: """
            select from pg_stat_activity where datname = current_database() and state = 'active'
              and position('\(text)' in query) > 0 and pid <> pg_backend_pid()
            """)
}

/// A statement without a result.
func command(_ sql: String) -> Statement<Void, Void> { Statement("test.command", sql) }

func oneNumber(_ sql: String) -> Statement<Void, Int> {
    Statement("test.number", sql, read: { row throws(PostgresError) in try row.int(0) })
}

func oneText(_ sql: String) -> Statement<Void, String> {
    Statement("test.text", sql, read: { row throws(PostgresError) in try row.text(0) })
}

extension Database {
    /// The error of a statement without a result; nil if it succeeds.
    func failure(of sql: String) async -> PostgresError? {
        do throws(PostgresError) {
            try await run(command(sql))
            return nil
        } catch {
            return error
        }
    }
}
