import AppStore
package import Postgres
package import Settings

/// What a database takes: purchases of production or unsigned data, never both. A process whose configuration says
/// otherwise does not start, because unsigned data may hold any transaction id, also one that another app sold. A
/// configuration of signed sandbox purchases alone has no purpose, and stands beside either.
package enum DatabasePurpose: String, Sendable {
    /// Purchases of production.
    case production
    /// What Xcode writes and nobody signed (`acceptUnsignedXcodeData`).
    case unsigned

    /// For a service at its start, and before it takes another configuration. The first one decides.
    ///
    /// - Throws: `ConfigurationError` where the database says otherwise than the file; the database's own error.
    package static func agree(_ configuration: Configuration, in database: Database) async throws {
        guard let ours = configuration.purpose else { return }
        // Twice: the row of somebody who starts at the same time is seen by the second look only.
        for _ in 0..<2 {
            if let stored = try await database.run(Statements.agreeOnPurpose, ours).first {
                return try check(ours, stored)
            }
        }
        throw LedgerError.unavailable(.unavailable)
    }

    /// For a command, which decides nothing.
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
    /// Nil: neither; both is refused when the file is read.
    fileprivate var purpose: DatabasePurpose? {
        if apps.values.contains(where: { $0.identity.acceptsUnsignedXcodeData }) { return .unsigned }
        return apps.values.contains { $0.identity.environments.contains(.production) } ? .production : nil
    }
}

extension Statements {
    /// Says what this database takes, and answers what it takes already. No row: somebody says it at this moment.
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
