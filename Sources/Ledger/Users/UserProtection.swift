package import Postgres
package import Settings

/// All processes of a database agree on how it names users, or do not start: two keys, or ids beside keys, would be two
/// users in one person, and purchases would go to the wrong one.
package enum UserProtection {
    /// For a service at its start. A database that holds ids already cannot be protected afterwards: its receipts' own
    /// ids are made from them, and so is what the app backend has been told. Protection begins with an empty database.
    ///
    /// - Throws: `ConfigurationError` where the database says otherwise than the file; the database's own error.
    package static func agree(_ keys: UserKeys?, in database: Database) async throws {
        let ours = keys?.fingerprint ?? ""
        // Twice: the row of somebody who starts at the same time is seen by the second look only.
        for _ in 0..<2 {
            let stored = try await database.run(Statements.agreeOnUserProtection, ours)
            if let stored = stored.first { return try check(ours, stored) }
        }
        try check(ours, "")
    }

    /// For a command, which decides nothing.
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
