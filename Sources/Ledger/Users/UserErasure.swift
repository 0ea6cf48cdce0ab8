import Encoding
import Foundation
package import Postgres
import Purchases
package import Settings

/// What an operator may do about one user: erase the id, readmit the user, and look at what is stored under the id.
/// Audited, and may be repeated. Grants and transactions stay: they are what was paid.
package struct UserErasure: Sendable {
    private let database: Database
    private let keys: UserKeys?
    private let actor: String

    /// - Parameters:
    ///   - keys: as the configuration has them; the caller has called `UserProtection.check`.
    ///   - actor: who does it, for the audit.
    package init(database: Database, keys: UserKeys?, actor: String) {
        self.database = database
        self.keys = keys
        self.actor = actor
    }

    /// The pattern of a tombstone, for SQL: no user is called so.
    package static let tombstonePattern = "^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

    /// The name of a user in the tables: the key, or the id itself where users are not protected.
    package func name(of userID: String, app: String) -> UserName {
        UserName(appID: app, key: keys?.key(of: userID, app: app) ?? userID)
    }

    package enum Standing: Sendable, Equatable {
        case unknown, known, erased
        /// Users are not protected: the id stands in the tables as it is.
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

    /// The account that this user became part of, by the id that the app knows, or by its key where the id cannot be
    /// read. Nil: the user is part of no other account.
    package func account(of name: UserName) async throws(PostgresError) -> String? {
        guard let key = try await database.run(Statements.accountMergedInto, name).first else { return nil }
        let account = UserName(appID: name.appID, key: key)
        guard let keys, let row = try await database.run(Statements.registeredUsers, [account]).first,
            let sealed = row.sealed
        else { return key }
        return keys.open(sealed, key: key, app: name.appID) ?? key
    }

    /// Erases a user, and the accounts that became part of the user's account. In a protected database the id is
    /// deleted and the key stays. Otherwise a random tombstone, which nobody can lead back to the id, takes the id's
    /// place in every table. False: there is no such user, or the user is part of another account, which the purchases
    /// belong to.
    package func erase(_ name: UserName) async throws(PostgresError) -> Bool {
        guard try await account(of: name) == nil else { return false }
        let tombstone = "erased_\(UUID().text)"
        let statement = keys == nil ? Statements.eraseClearUser : Statements.eraseProtectedUser
        // Accounts that became part of this one belong to the same person.
        var ids = try await database.run(Statements.idsMergedInto, name)
        ids.append(name.key)
        if keys == nil { try await outdate(ids, of: name.appID) }
        var isKnown = false
        for id in ids {
            let erasure = Statements.Erasure(appID: name.appID, user: id, tombstone: tombstone, actor: actor)
            if try await database.run(statement, erasure).first ?? 0 > 0 { isKnown = true }
        }
        for owner in keys == nil ? [tombstone] : ids {
            _ = try await database.run(
                Statements.emptyUnnamedPosts, UserName(appID: name.appID, key: owner))
        }
        for id in ids {
            _ = try await database.run(
                Statements.eraseHeardOfUser,
                (user: UserName(appID: name.appID, key: id), owner: keys == nil ? tombstone : id))
        }
        guard keys == nil else { return isKnown }
        for id in ids {
            let user = UserName(appID: name.appID, key: id)
            _ = try await database.run(Statements.endErasure, user)
            // Last, so that a second run after a failure still finds the accounts of the first.
            _ = try await database.run(Statements.forgetMerges, (user: user, tombstone: tombstone))
        }
        return isKnown
    }

    /// Longer than any statement of a service. A backup may run for longer, but writes nothing.
    private static let patience: Duration = .seconds(60)

    /// Begins the erasure of these ids, and waits for the transactions that run now. A verdict in one of them may have
    /// matched its owner before, and would write the id once more. Verdicts that begin later do not name the user.
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

    /// Makes an erased user a customer again. False: the user is not erased.
    package func readmit(_ userID: String, app: String) async throws(PostgresError) -> Bool {
        guard let keys else { return false }
        let key = keys.key(of: userID, app: app)
        let user = EnteredUser(appID: app, key: key, sealed: keys.seal(userID, key: key, app: app))
        return try await database.run(Statements.readmitUser, (user: user, actor: actor)).first ?? 0 > 0
    }
}
