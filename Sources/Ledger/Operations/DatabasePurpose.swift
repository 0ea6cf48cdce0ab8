import AppStore
package import Postgres
package import Settings

/// What a database takes: purchases of production or unsigned data, never both. A process whose configuration says
/// otherwise does not start, because unsigned data may hold any transaction id, also one that Apple sold in another
/// app. A configuration of signed sandbox purchases alone has no purpose, and may share a database with either.
package enum DatabasePurpose: String, Sendable {
    /// Purchases of production.
    case production
    /// Data that Xcode writes and that nobody signed (`acceptUnsignedXcodeData`).
    case unsigned

    /// Checks that file and database agree. A service calls it at its start, and before it takes another configuration.
    /// The first process that calls it decides for the database.
    ///
    /// - Throws: `ConfigurationError` where the database says otherwise than the file; the database's own error.
    package static func agree(_ configuration: Configuration, in database: Database) async throws {
        guard let ours = configuration.purpose else { return }
        // Twice: only the second look sees the row of a process that starts at the same time.
        for _ in 0..<2 {
            if let stored = try await database.run(Statements.agreeOnPurpose, ours).first {
                return try check(ours, stored)
            }
        }
        throw LedgerError.unavailable(.unavailable)
    }

    /// The same check for a command, which decides nothing.
    package static func check(_ configuration: Configuration, in database: Database) async throws {
        guard let ours = configuration.purpose, let stored = try await database.run(Statements.purpose).first
        else { return }
        try check(ours, stored)
    }

    private static func check(_ ours: DatabasePurpose, _ stored: DatabasePurpose) throws(ConfigurationError) {
        guard ours != stored else { return }
        switch ours {
        case .production:
            throw ConfigurationError(
                key: "environments",
                problem: "list Production, and this database takes unsigned data: use a database of its own")
        case .unsigned:
            throw ConfigurationError(
                key: "acceptUnsignedXcodeData",
                problem: "is set, and this database takes purchases of production: use a database of its own")
        }
    }
}

extension Configuration {
    /// Nil: neither. A configuration with both is refused when the file is read.
    fileprivate var purpose: DatabasePurpose? {
        if apps.values.contains(where: { $0.identity.acceptsUnsignedXcodeData }) { return .unsigned }
        return apps.values.contains { $0.identity.environments.contains(.production) } ? .production : nil
    }
}

extension Statements {
    /// Stores what this database takes, and returns what it takes already. No row: another process stores it at this
    /// moment.
    package static let agreeOnPurpose = Statement<DatabasePurpose, DatabasePurpose>(
        "configuration.agree_on_purpose",
        """
        with agreed as (
          insert into database_purpose (purpose) values ($1) on conflict do nothing returning purpose)
        select purpose from database_purpose union all select purpose from agreed
        """,
        bind: { [.text($0.rawValue)] },
        read: { row throws(PostgresError) in try row.word(0) })

    package static let purpose = Statement<Void, DatabasePurpose>(
        "configuration.purpose", "select purpose from database_purpose",
        read: { row throws(PostgresError) in try row.word(0) })
}
