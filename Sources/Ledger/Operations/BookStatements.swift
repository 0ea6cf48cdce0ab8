package import Postgres
import Purchases

/// The statements that read the books as they are now (0027_books.sql).
extension Statements {
    package struct OverdueItems: Sendable {
        /// `unknown`: no app here has the bundle id.
        package let appID: String
        package let account: String
        package let items: Int
        /// How long the oldest item has waited; 0 where none is overdue.
        package let seconds: Double
        /// The ids of the oldest items, at most three.
        package let ids: [String]
        /// The command that mends the oldest item, or that names its obstacle. Nil: none is overdue.
        package let command: String?
    }

    /// The items of each app and account of which nothing has become for longer than the limit, zeros included.
    package static let overdueItems = Statement<Void, OverdueItems>(
        "books.overdue",
        """
        with late as materialized (
          select coalesce(nullif(app_id, ''), 'unknown') as app_id, account, id, command, age_seconds
          from v_clearing_overdue)
        select a.app_id, c.account, count(l.id), coalesce(max(l.age_seconds), 0)::float8,
          coalesce((array_agg(l.id order by l.age_seconds desc, l.id) filter (where l.id is not null))[1:3], '{}'),
          (array_agg(l.command order by l.age_seconds desc, l.id) filter (where l.id is not null))[1]
        from (select app_id from apps union all select 'unknown') a
        cross join unnest(array[\(accounts)]) c(account)
        left join late l on l.app_id = a.app_id and l.account = c.account
        group by 1, 2
        """,
        read: { row throws(PostgresError) in
            OverdueItems(
                appID: try row.text(0), account: try row.text(1), items: try row.int(2), seconds: try row.double(3),
                ids: try row.texts(4), command: try row.optionalText(5))
        })

    package struct OpenDifferences: Sendable {
        package let appID: String
        package let category: String
        package let differences: Int
        /// The age of the oldest one; 0 where none is open.
        package let seconds: Double
    }

    /// The open differences between Apple's books and ours, by app and category, zeros included.
    package static let openDifferences = Statement<Void, OpenDifferences>(
        "books.differences",
        """
        select a.app_id, c.category, count(d.subject), coalesce(max(d.age_seconds), 0)::float8
        from apps a cross join unnest(array[\(categories)]) c(category)
        left join v_differences d on d.app_id = a.app_id and d.category = c.category and d.state = 'open'
        group by 1, 2
        """,
        read: { row throws(PostgresError) in
            OpenDifferences(
                appID: try row.text(0), category: try row.text(1), differences: try row.int(2),
                seconds: try row.double(3))
        })

    private static let accounts = DayReport.Received.accounts.map { "'\($0)'" }.joined(separator: ", ")
    /// As the table's constraint lists them.
    private static let categories = [
        "purchase_missing", "end_missing", "end_undone", "state_differs", "grant_unlisted", "goods_differ",
        "list_endless",
    ].map { "'\($0)'" }.joined(separator: ", ")
}
