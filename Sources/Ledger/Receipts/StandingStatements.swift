package import Postgres
package import Settings

extension Statements {
    package struct StandingQuestion: Sendable {
        package var user: UserName
        package var limits: UserLimits

        package init(user: UserName, limits: UserLimits) {
            self.user = user
            self.limits = limits
        }
    }

    /// How many receipts of a user were stored today (UTC), and how many of the newest have no verdict. Reads no more
    /// rows than the limits need.
    package static let userStanding = Statement<StandingQuestion, (today: Int, open: Int)>(
        "receipts.user_standing",
        """
        select count(*) filter (where received_at >= date_trunc('day', now() at time zone 'UTC') at time zone 'UTC'),
          count(*) filter (where state in ('received', 'parked'))
        from (
          select received_at, state from receipts where app_id = $1 and user_id = $2
          order by received_at desc limit $3) r
        """,
        bind: {
            [
                .text($0.user.appID), .text($0.user.key),
                .int(max($0.limits.receiptsPerDay, 2 * $0.limits.openReceipts)),
            ]
        },
        read: { row throws(PostgresError) in (today: try row.int(0), open: try row.int(1)) })
}
