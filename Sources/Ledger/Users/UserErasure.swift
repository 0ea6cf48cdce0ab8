import Encoding
import Foundation
package import Postgres
import Purchases
package import Settings

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

    /// What a tombstone looks like, for SQL: nobody is called so.
    package static let tombstonePattern = "^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

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

    /// The account that this user became part of, by the id that the app knows, where that can be read. Nil: of none.
    package func account(of name: UserName) async throws(PostgresError) -> String? {
        guard let key = try await database.run(Statements.accountMergedInto, name).first else { return nil }
        let account = UserName(appID: name.appID, key: key)
        guard let keys, let row = try await database.run(Statements.registeredUsers, [account]).first,
            let sealed = row.sealed
        else { return key }
        return keys.open(sealed, key: key, app: name.appID) ?? key
    }

    /// Protected: the id is gone, the key stays. Otherwise a tombstone that nobody can lead back takes the id's place in
    /// every table. False: there is no such user, or he is part of another account, whose purchases these are.
    package func erase(_ name: UserName) async throws(PostgresError) -> Bool {
        guard try await account(of: name) == nil else { return false }
        let tombstone = "erased_\(UUID().text)"
        let statement = keys == nil ? Statements.eraseClearUser : Statements.eraseProtectedUser
        // The accounts that became part of this one were his as well.
        var ids = try await database.run(Statements.idsMergedInto, name)
        ids.append(name.key)
        if keys == nil { try await outdate(ids, of: name.appID) }
        var isKnown = false
        for id in ids {
            let erasure = Statements.Erasure(appID: name.appID, user: id, tombstone: tombstone, actor: actor)
            if try await database.run(statement, erasure).first ?? 0 > 0 { isKnown = true }
        }
        guard keys == nil else { return isKnown }
        for id in ids {
            let user = UserName(appID: name.appID, key: id)
            _ = try await database.run(Statements.endErasure, user)
            // Last, so that a second run finds whom the first one was about.
            _ = try await database.run(Statements.forgetMerges, (user: user, tombstone: tombstone))
        }
        return isKnown
    }

    /// Longer than any statement of a service; a backup that runs for longer writes nothing.
    private static let patience: Duration = .seconds(60)

    /// A verdict in flight has matched its owner before, and would write his id once more: from now on it is none.
    private func outdate(_ ids: [String], of appID: String) async throws(PostgresError) {
        for id in ids {
            _ = try await database.run(Statements.beginErasure, UserName(appID: appID, key: id))
        }
        var older = Set(try await database.run(Statements.running, ()))
        let end = ContinuousClock.now + Self.patience
        while !older.isEmpty, ContinuousClock.now < end {
            guard (try? await Task.sleep(for: .milliseconds(20))) != nil else { return }
            older.formIntersection(try await database.run(Statements.running, ()))
        }
    }

    /// An erased user is a customer again. False: he is not erased.
    package func readmit(_ userID: String, app: String) async throws(PostgresError) -> Bool {
        guard let keys else { return false }
        let key = keys.key(of: userID, app: app)
        let user = EnteredUser(appID: app, key: key, sealed: keys.seal(userID, key: key, app: app))
        return try await database.run(Statements.readmitUser, (user: user, actor: actor)).first ?? 0 > 0
    }
}
