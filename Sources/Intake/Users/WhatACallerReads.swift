import Encoding
import Ledger
import Postgres
import Service
import Settings

extension Caller {
    /// Whether this caller may read a row of `owner`; compares keys of ids, where the tables hold keys.
    func mayRead(appID: String, userID owner: String?, _ keys: UserKeys?) -> Bool {
        guard let keys, let userID else { return mayRead(appID: appID, userID: owner) }
        return apps.contains(appID) && keys.key(of: userID, app: appID).isSameText(as: owner)
    }

    /// Whether this caller may read a row of `owner`. A user's token reads rows of the user and of accounts that became
    /// part of the user's. It never reads rows of the account that the user became part of: a guest's token outlives
    /// the guest's registration.
    func mayRead(
        appID: String, userID owner: String?, _ keys: UserKeys?, _ ledger: Ledger
    ) async throws(LedgerError) -> Bool {
        if mayRead(appID: appID, userID: owner, keys) { return true }
        guard apps.contains(appID), let userID, let owner else { return false }
        let user = keys?.key(of: userID, app: appID) ?? userID
        let account = try await ledger.run(Statements.accountMergedInto, UserName(appID: appID, key: owner)).first
        return user.isSameText(as: account)
    }

    /// The ids whose rows the lists of a user hold for this caller: for a service key those of the whole person, for
    /// the user's own token as ``mayRead(appID:userID:_:_:)`` says.
    func idsRead(of user: UserName, _ database: Database) async throws(PostgresError) -> [String] {
        guard userID != nil else { return try await database.run(Statements.idsOfPerson, user) }
        return [user.key] + (try await database.run(Statements.idsMergedInto, user))
    }
}
