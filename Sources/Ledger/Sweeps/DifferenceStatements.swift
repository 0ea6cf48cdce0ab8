package import Foundation
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
    /// gave it back; an end that Apple has undone is missing no more; a list was read to its end since. Looks at some open differences behind a place, in
    /// the order of their keys. Returns the last of them, and how many ended. No row: there is none behind the place.
    package static let endHealedDifferences = Statement<DifferencePlace, (last: DifferencePlace, ended: Int)>(
        "differences.end_healed",
        """
        with seen as materialized (
          select category, subject, app_id, environment, net, seen_at from differences
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
          left join lateral (
            select case o.net when 'refund' then refunds_at else swept_at end as ended_at from history_walks
            where o.category = 'list_endless' and app_id = o.app_id and environment = o.environment
              and customer = o.subject offset 0) w on true
          where case o.category
            when 'purchase_missing' then g.transaction_id is not null or v.state is not null
            when 'end_missing' then r.kind = 'revoked' or g.transaction_id is null or t.revoked_at is null
            when 'end_undone' then r.kind is distinct from 'revoked'
            when 'list_endless' then w.ended_at > o.seen_at else false end),
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

    package struct ListedDifference: Sendable, Equatable {
        package let category: String
        package let subject: String
        package let appID: String
        package let environment: String
        /// The question whose answer shows the difference.
        package let net: String
        /// `receipt`, `follow-up`, `sweep` or `person`.
        package let healsBy: String
        /// One JSON object.
        package let details: String
        package let foundAt: Date
        package let seenAt: Date
    }

    package static let listedDifferencesMax = 500

    /// The open differences of an app, or of all apps, the oldest first: at most ``listedDifferencesMax``.
    package static let listDifferences = Statement<String?, ListedDifference>(
        "differences.list",
        """
        select v.category, v.subject, v.app_id, v.environment, v.net, v.heals_by, d.details::text, v.found_at, v.seen_at
        from v_differences v join differences d using (category, subject)
        where d.ended_at is null and ($1::text is null or d.app_id = $1)
        order by v.found_at, v.category, v.subject limit \(listedDifferencesMax)
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in
            ListedDifference(
                category: try row.text(0), subject: try row.text(1), appID: try row.text(2),
                environment: try row.text(3), net: try row.text(4), healsBy: try row.text(5),
                details: try row.text(6), foundAt: try row.date(7), seenAt: try row.date(8))
        })

    package struct DifferenceClosing: Sendable {
        package var category: Difference.Category
        package var subject: String
        /// What the person found out, for the audit.
        package var note: String
        /// The person.
        package var actor: String

        package init(_ category: Difference.Category, _ subject: String, note: String, actor: String) {
            self.category = category
            self.subject = subject
            self.note = note
            self.actor = actor
        }
    }

    package struct DifferenceStanding: Sendable, Equatable {
        package enum Word: String, Sendable {
            /// This statement closed it.
            case closed
            /// A person had closed it before.
            case wasClosed
            /// A look had found it gone.
            case healed
        }

        package let word: Word
        /// Who closed it. Nil: nobody did, or another person does at this moment.
        package let endedBy: String?
    }

    /// Closes a difference for a person, and audits that in the same statement. A look that finds the difference again
    /// leaves the closing alone. A difference that has ended stays as it is. No row: there is no such difference.
    package static let closeDifference = Statement<DifferenceClosing, DifferenceStanding>(
        "differences.close",
        """
        with closed as (
          update differences set ended_at = now(), ended_by = $4
          where category = $1 and subject = $2 and ended_at is null
          returning app_id),
        audited as (
          insert into audits (actor, action, details)
          select $4, 'differences.close',
            jsonb_build_object('app', app_id, 'category', $1::text, 'subject', $2::text, 'note', $3::text)
          from closed)
        select case when exists (select from closed) then 'closed'
            when ended_at is not null and ended_by is null then 'healed' else 'wasClosed' end,
          case when exists (select from closed) then $4 else ended_by end
        from differences where category = $1 and subject = $2
        """,
        bind: { [.text($0.category.rawValue), .text($0.subject), .text($0.note), .text($0.actor)] },
        read: { row throws(PostgresError) in
            DifferenceStanding(word: try row.word(0), endedBy: try row.optionalText(1))
        })
}
