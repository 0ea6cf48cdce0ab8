import Encoding
import Foundation
package import Postgres
import Purchases

/// What became of a request to make one account part of another.
package enum MergeOutcome: String, Sendable, CaseIterable {
    case merged
    /// The account was part of that other one before.
    case known
    /// The other account is part of this one.
    case cycle
    /// The account is part of a third one.
    case elsewhere
    /// One of the accounts was erased.
    case erased
    /// The person would have more ids than one may have.
    case tooMany = "too_many"
}

extension Statements {
    /// Ids of one person. The SQL looks up all of them wherever it looks for a person's orders.
    package static let idsPerPersonMax = 64

    /// The SQL of the user who owns a stored user's things by now: for an account that became part of another one, the
    /// other account. Null for null.
    ///
    /// - Parameter user: a column with its table's name, because a bare `user_id` would be the column of `merges`.
    package static func person(_ user: String, of app: String) -> String {
        // Most databases have no merges: the SQL asks for any merge once, and not for every row.
        """
        coalesce(case when (select true from merges limit 1)
          then (select into_user_id from merges where app_id = \(app) and user_id = \(user)) end, \(user))
        """
    }

    /// The SQL of the test whether two ids are one person by now.
    package static func isOneOf(_ user: String, _ other: String, of app: String) -> String {
        "(\(user) = \(other) or \(person(user, of: app)) = \(person(other, of: app)))"
    }

    package struct Merge: Sendable {
        package var old: UserName
        /// An id of the same app, as the tables name users.
        package var into: String
        package var actor: String

        package init(_ old: UserName, into: String, actor: String) {
            self.old = old
            self.into = into
            self.actor = actor
        }
    }

    package static let mergeUsers = Statement<Merge, MergeOutcome>(
        "users.merge", "select merge_users($1, $2, $3, \(idsPerPersonMax), $4)",
        bind: { [.text($0.old.appID), .text($0.old.key), .text($0.into), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.word(0) })

    /// The SQL of all ids that are the same person by now, this id included.
    static func idsOfPerson(_ user: String, of app: String) -> String {
        """
        select \(person(user, of: app)) union select user_id from merges
          where app_id = \(app) and into_user_id = (select \(person(user, of: app)))
        """
    }

    package static let idsOfPerson = Statement<UserName, String>(
        "users.ids_of_person", idsOfPerson("$2", of: "$1"),
        bind: { [.text($0.appID), .text($0.key)] },
        read: { row throws(PostgresError) in try row.text(0) })

    /// The accounts that became part of this one.
    package static let idsMergedInto = Statement<UserName, String>(
        "users.ids_merged_into", "select user_id from merges where app_id = $1 and into_user_id = $2",
        bind: { [.text($0.appID), .text($0.key)] },
        read: { row throws(PostgresError) in try row.text(0) })

    /// The account that this one became part of; no row: this account is part of no other.
    package static let accountMergedInto = Statement<UserName, String>(
        "users.account_merged_into", "select into_user_id from merges where app_id = $1 and user_id = $2",
        bind: { [.text($0.appID), .text($0.key)] },
        read: { row throws(PostgresError) in try row.text(0) })

    /// Whether two ids of an app are one person by now.
    package static let isSamePerson = Statement<(user: UserName, other: String), Bool>(
        "users.is_same", "select \(person("$2", of: "$1")) = \(person("$3", of: "$1"))",
        bind: { [.text($0.user.appID), .text($0.user.key), .text($0.other)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    package static let forgetMerges = Statement<(user: UserName, tombstone: String), Int>(
        "users.forget_merges", "select forget_merges($1, $2, $3)",
        bind: { [.text($0.user.appID), .text($0.user.key), .text($0.tombstone)] },
        read: { row throws(PostgresError) in try row.int(0) })
}

extension Ledger {
    /// Whether two ids of an app, in the form of the tables, are one person by now.
    package func isSamePerson(_ user: UserName, _ other: String) async throws(LedgerError) -> Bool {
        if user.key.isSameText(as: other) { return true }
        return try await run(Statements.isSamePerson, (user: user, other: other)).first ?? false
    }
}
