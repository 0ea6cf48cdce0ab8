package import Postgres
package import Purchases

extension Statements {
    /// Notes differences between Apple's books and ours, each category and subject once. A difference that had healed
    /// is open again; a difference that a person closed stays closed.
    package static let noteDifferences = Statement<[Difference], Void>(
        "differences.note",
        [
            .text("category") { $0.category.rawValue }, .text("subject") { $0.subject }, .text("app") { $0.appID },
            .text("environment") { $0.environment }, .text("net") { $0.net.rawValue }, .json("details") { $0.details },
        ],
        sql: { rows in
            """
            insert into differences as d (category, subject, app_id, environment, net, details)
            select distinct on (category, subject) category, subject, app, environment, net, details
            from \(rows.rows(as: "i"))
            order by category, subject
            \(onKnownDifference)
            """
        })

    /// Ends differences that a look found gone.
    package static let endDifferences = Statement<[(category: Difference.Category, subject: String)], Void>(
        "differences.end",
        [.text("category") { $0.category.rawValue }, .text("subject") { $0.subject }],
        sql: { rows in
            """
            update differences d set ended_at = now() from (
              select d.category, d.subject from differences d join \(rows.rows(as: "i")) using (category, subject)
              where d.ended_at is null order by 1, 2 for no key update of d) i
            where (d.category, d.subject) = (i.category, i.subject)
            """
        })

    package struct DifferencePlace: Sendable, Equatable {
        package let category: String
        package let subject: String

        /// Before the first difference.
        package static let first = DifferencePlace(category: "", subject: "")
    }

    /// Ends open differences that have healed: the purchase has a verdict for good, or the follow-up took it back, or
    /// gave it back; an end that Apple has undone is missing no more. Looks at some open differences behind a place, in
    /// the order of their keys. Returns the last of them, and how many ended. No row: there is none behind the place.
    package static let endHealedDifferences = Statement<DifferencePlace, (last: DifferencePlace, ended: Int)>(
        "differences.end_healed",
        """
        with seen as materialized (
          select category, subject from differences
          where ended_at is null and (category, subject) > ($1, $2)
          order by category, subject limit \(customerStepMax)),
        healed as (
          select o.category, o.subject from seen o
          left join lateral (
            select kind from revocations where transaction_id = o.subject order by ordinal desc limit 1) r on true
          left join lateral (
            select transaction_id from grants where transaction_id = o.subject offset 0) g on true
          left join lateral (
            select revoked_at from transactions where transaction_id = o.subject offset 0) t on true
          left join lateral (
            select state from outcomes
            where transaction_id = o.subject and state <> 'granted' and state in ('already_granted', 'rejected')
            limit 1) v on true
          where case o.category
            when 'purchase_missing' then g.transaction_id is not null or v.state is not null
            when 'end_missing' then r.kind = 'revoked' or g.transaction_id is null or t.revoked_at is null
            when 'end_undone' then r.kind is distinct from 'revoked' else false end),
        ended as (
          update differences d set ended_at = now() from (
            select k.category, k.subject from (select * from healed order by 1, 2 offset 0) h cross join lateral (
              select category, subject from differences
              where category = h.category and subject = h.subject and ended_at is null for no key update) k) h
          where (d.category, d.subject) = (h.category, h.subject)
          returning 1)
        select category, subject, (select count(*) from ended)
        from seen order by category desc, subject desc limit 1
        """,
        bind: { [.text($0.category), .text($0.subject)] },
        read: { row throws(PostgresError) in
            (DifferencePlace(category: try row.text(0), subject: try row.text(1)), try row.int(2))
        })
}
