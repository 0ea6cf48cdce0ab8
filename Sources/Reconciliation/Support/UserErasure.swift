import Foundation
package import Postgres

/// What a person may do about one user: erase the id, take it back in, see what stands under it. Audited, and may be
/// repeated. Grants and transactions stay: they are what was paid.
package struct UserErasure: Sendable {
    private let database: Database
    private let keys: UserKeys?
    private let actor: String

    /// - Parameters:
    ///   - keys: as the configuration has them; `UserProtection.check` has been asked.
    ///   - actor: who does it, for the audit.
    package init(database: Database, keys: UserKeys?, actor: String) {
        self.database = database
        self.keys = keys
        self.actor = actor
    }

    /// How the tables name a user: the key, or the id itself where nothing is protected.
    package func name(of userID: String, app: String) -> UserName {
        UserName(appID: app, key: keys?.key(of: userID, app: app) ?? userID)
    }

    package enum Standing: Sendable, Equatable {
        case unknown, known, erased
        /// Nothing is protected: the id stands in the tables as it is.
        case clear
    }

    package func look(
        _ name: UserName
    ) async throws(PostgresError) -> (standing: Standing, traces: Statements.UserTraces) {
        let traces = try await database.run(Statements.userTraces, name).first ?? Statements.UserTraces()
        guard keys != nil else { return (traces == Statements.UserTraces() ? .unknown : .clear, traces) }
        guard let row = try await database.run(Statements.registeredUsers, [name]).first else {
            return (.unknown, traces)
        }
        return (row.sealed == nil ? .erased : .known, traces)
    }

    /// Protected: the id is gone, the key stays. Otherwise a tombstone that nobody can lead back takes the id's place in
    /// every table. False: there is no such user.
    package func erase(_ name: UserName) async throws(PostgresError) -> Bool {
        let erasure = Statements.Erasure(
            appID: name.appID, user: name.key, tombstone: "erased_\(UUID().uuidString.lowercased())", actor: actor)
        let statement = keys == nil ? Statements.eraseClearUser : Statements.eraseProtectedUser
        return try await database.run(statement, erasure).first ?? 0 > 0
    }

    /// An erased user is a customer again. False: he is not erased.
    package func readmit(_ userID: String, app: String) async throws(PostgresError) -> Bool {
        guard let keys else { return false }
        let key = keys.key(of: userID, app: app)
        let user = EnteredUser(appID: app, key: key, sealed: keys.seal(userID, key: key, app: app))
        return try await database.run(Statements.readmitUser, (user: user, actor: actor)).first ?? 0 > 0
    }
}
