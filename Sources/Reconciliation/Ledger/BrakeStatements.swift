package import Postgres
package import Purchases

/// Whose grants are counted.
package struct BrakeQuestion: Sendable, Hashable {
    package let appID: String
    package let userID: String
    package let customerID: String?
    /// Counting an app's sandbox grants is only done where a sandbox purchase asks.
    package let isSandbox: Bool
}

extension Statements {
    /// One row per question, in order. Key look-ups only.
    package static let countBrakes = Statement<[BrakeQuestion], BrakeCounts>(
        "ledger.count_brakes",
        """
        with today as (select date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' as start)
        select
          (select count(*) from grants g where g.app_id = i.app and g.user_id = i.usr and g.granted_at >= today.start
            and g.environment = 'Production' and not i.sandbox),
          (select count(*) from grants g where g.app_id = i.app and g.user_id = i.usr and g.granted_at >= today.start
            and g.environment <> 'Production' and i.sandbox),
          case when i.sandbox then (select count(*) from grants g where g.app_id = i.app
            and g.granted_at >= today.start and g.environment <> 'Production') else 0 end,
          (select count(distinct person) from (
            select \(person("one.user_id", of: "i.app")) as person from (
              select distinct user_id from (select user_id from grants g where g.customer_id = i.customer
                and g.app_id = i.app and g.user_id <> i.usr limit 1000) others) one) p where person <> i.usr)
        from unnest($1::text[], $2::text[], $3::text[], $4::bool[]) with ordinality
          as i(app, usr, customer, sandbox, n), today
        order by i.n
        """,
        bind: { questions in
            [
                .texts(questions.map(\.appID)), .texts(questions.map(\.userID)), .texts(questions.map(\.customerID)),
                .bools(questions.map(\.isSandbox)),
            ]
        },
        read: { row throws(PostgresError) in
            BrakeCounts(
                ofUserToday: try row.int(0), sandboxOfUserToday: try row.int(1), sandboxOfAppToday: try row.int(2),
                otherUsersOfCustomer: try row.int(3))
        })
}
