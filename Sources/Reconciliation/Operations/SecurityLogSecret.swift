import Ledger
package import Logging
package import Postgres
package import Service

extension SecurityLog {
    /// For a service at its start, after ``UserProtection/agree(_:in:)``.
    package convenience init(in database: Database, logger: Logger) async throws {
        guard let secret = try await database.run(Statements.logSecret).first else {
            // The row was there a moment ago.
            throw LedgerError.unavailable(.unavailable)
        }
        self.init(secret: secret, logger: logger)
    }
}
