package import Postgres
package import Settings

/// The check that all processes of a database name users in the same way. A process that differs does not start: with
/// two keys, or ids beside keys, one person would be two users, and purchases would go to the wrong one.
package enum UserProtection {
    /// The check of a service at its start. A database that holds ids already cannot be protected afterwards: the ids
    /// of its receipts are made from users' ids, and the app's backend has been told users' ids in events. Protection
    /// begins with an empty database.
    ///
    /// - Throws: `ConfigurationError` where the database says otherwise than the file; the database's own error.
    package static func agree(_ keys: UserKeys?, in database: Database) async throws {
        let ours = keys?.fingerprint ?? ""
        if let stored = try await database.run(Statements.agreeOnUserProtection, ours).first {
            return try check(ours, stored)
        }
        // The row of a process that starts at the same time; only another statement sees it.
        try await check(keys, in: database)
    }

    /// The same check for a command, which decides nothing.
    package static func check(_ keys: UserKeys?, in database: Database) async throws {
        try check(keys?.fingerprint ?? "", try await database.run(Statements.userProtection).first ?? "")
    }

    private static func check(_ ours: String, _ stored: String) throws(ConfigurationError) {
        if ours == stored { return }
        let problem =
            switch (ours, stored) {
            case (_, ""): "is set, but this database holds clear user ids; protection begins with an empty database"
            case ("", _): "is not set, but this database holds protected users; give the file that it was started with"
            default: "has another first line than the file that this database was started with"
            }
        throw ConfigurationError(key: "users.protect", problem: problem)
    }
}
