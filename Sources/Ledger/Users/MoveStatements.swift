package import Foundation
package import Postgres

extension Statements {
    /// A receipt whose submission was posted again, and whether its app's policy moves purchases to the user who shows
    /// them.
    package struct RepeatedClaim: Sendable {
        package var receiptID: UUID
        package var payload: String
        package var moves: Bool

        package init(receiptID: UUID, payload: String, moves: Bool) {
            self.receiptID = receiptID
            self.payload = payload
            self.moves = moves
        }
    }

    /// Opens a receipt again that was refused because another user has the purchase, where the answer may differ by now
    /// (0001_receipts.sql). One row: whether the receipt is open again.
    package static let reopenClaim = Statement<RepeatedClaim, Bool>(
        "ledger.reopen_claim", "select reopen_claim($1, $2, $3)",
        bind: { [.uuid($0.receiptID), .text($0.payload), .bool($0.moves)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// A token that leads to the person whose id this is: a token that the app registered or we issued, a token that
    /// only this person's purchases carried, or an order of this person. No row: there is none.
    static let tokenOfUser = Statement<UserName, UUID>(
        "users.token_of_user",
        """
        with person(id) as (\(idsOfPerson("$2", of: "$1")))
        select token from (select coalesce(
          (select token from user_tokens where app_id = $1 and user_id in (select id from person)
            order by source = 'registered' desc, registered_at limit 1),
          (select token from granted_tokens t where app_id = $1 and user_id in (select id from person)
            and not exists (select from granted_tokens other where other.app_id = $1 and other.token = t.token
              and other.user_id not in (select id from person))
            order by granted_at desc limit 1),
          (select id from orders where app_id = $1 and user_id in (select id from person)
            order by placed_at desc limit 1)) as token) found
        where token is not null
        """,
        bind: { [.text($0.appID), .text($0.key)] },
        read: { row throws(PostgresError) in try row.uuid(0) })
}
