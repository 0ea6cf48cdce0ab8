package import Foundation
package import Postgres

extension Statements {
    package struct Consent: Sendable {
        package let user: UserName
        package let isGiven: Bool

        package init(_ user: UserName, isGiven: Bool) {
            self.user = user
            self.isGiven = isGiven
        }
    }

    package struct StoredConsent: Sendable, Equatable {
        /// The time since which the user's word is the same.
        package let at: Date
        /// Whether the user had said so before.
        package let isRepeated: Bool
    }

    /// Stores whether a user agrees that Apple is told what was used, unless the person's newest row says the same. No
    /// row: the user was erased.
    package static let giveConsent = Statement<Consent, StoredConsent>(
        "consents.give",
        """
        with newest as (
          select is_given, at from consents
          where app_id = $1 and user_id in (\(idsOfPerson("$2", of: "$1"))) order by at desc limit 1),
        same as (select at from newest where is_given = $3),
        erased as (select true from users where app_id = $1 and user_key = $2 and erased_at is not null),
        written as (
          insert into consents (app_id, user_id, is_given)
          select $1, $2, $3 where not exists (select from same) and not exists (select from erased)
          returning at)
        select at, false from written
        union all select at, true from same where not exists (select from erased)
        """,
        bind: { [.text($0.user.appID), .text($0.user.key), .bool($0.isGiven)] },
        read: { row throws(PostgresError) in StoredConsent(at: try row.date(0), isRepeated: try row.bool(1)) })
}
