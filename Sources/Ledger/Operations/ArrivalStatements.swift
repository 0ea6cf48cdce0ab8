import Foundation
package import Postgres
package import Purchases

/// The sums of arrivals by hour (0027_books.sql). As the statements of goods by day: any scheduler may run each
/// statement, at once and again, and where another one has moved the progress meanwhile, the statement changes nothing.
extension Statements {
    /// As ``lookAheadOfGoods``.
    package static let lookAheadOfArrivals = Statement<Duration, Void>(
        "arrivals.look_ahead",
        """
        update arrivals_progress
        set complete_to = greatest(summed_to, now() - make_interval(secs => $1)),
          complete_xid = pg_current_xact_id()
        where summed_to = complete_to and complete_to < now() - make_interval(secs => $1)
          or complete_xid > pg_snapshot_xmax(pg_current_snapshot())
        """,
        bind: { [.double($0.inSeconds)] })

    /// Sums the complete arrivals of the next so many seconds. A row if there were such seconds; true if there are
    /// more.
    package static let sumArrivals = Statement<Duration, Bool>(
        "arrivals.sum",
        """
        with place as materialized (
          select summed_to, least(complete_to, summed_to + make_interval(secs => $1)) as next, complete_to
          from arrivals_progress
          where summed_to < complete_to and complete_xid <= pg_snapshot_xmin(pg_current_snapshot())),
        moved as (
          update arrivals_progress p set summed_to = place.next
          from place where p.summed_to = place.summed_to
          returning place.summed_to as since, place.next, place.complete_to),
        summed as (
          insert into arrivals_by_hour as d (hour, app_id, environment, kind, type, arrivals)
          select date_trunc('hour', a.at, 'UTC'), a.app_id, a.environment, a.kind, a.type, count(*)
          from moved cross join lateral (
            select received_at as at, app_id, '' as environment, 'receipts' as kind, '' as type from receipts
            where received_at >= moved.since and received_at < moved.next and source = 'post'
            union all
            select received_at, app_id, coalesce(environment, ''), 'notifications', type from notifications
            where received_at >= moved.since and received_at < moved.next and app_id is not null
              and came_by = 'notification' and type <> 'TEST'
            union all
            select granted_at, app_id, environment, 'grants', '' from grants
            where granted_at >= moved.since and granted_at < moved.next offset 0) a
          group by 1, 2, 3, 4, 5
          on conflict (hour, app_id, environment, kind, type) do update set arrivals = d.arrivals + excluded.arrivals)
        select next < complete_to from moved
        """,
        bind: { [.double($0.inSeconds)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// As ``sumGoodsAgain``.
    package static let sumArrivalsAgain = Statement<Duration, Bool>(
        "arrivals.sum_again",
        """
        with place as materialized (
          select summed_to, date_trunc('hour', now() - make_interval(secs => $1), 'UTC') as start
          from arrivals_progress where summed_to > now() - make_interval(secs => $1 / 2)),
        back as (
          update arrivals_progress p set summed_to = place.start, complete_to = place.start
          from place where p.summed_to = place.summed_to
          returning place.start),
        emptied as (
          update arrivals_by_hour set arrivals = 0 where hour >= (select start from back))
        select true from back
        """,
        bind: { [.double($0.inSeconds)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// A kind of news, and the facts of one span of hours.
    package struct ArrivalSpan: Sendable {
        package let series: ArrivalSeries
        package let hours: Int
        package let facts: Timeliness.Facts
    }

    /// Whose arrivals, and of what.
    package struct ArrivalSeries: Sendable, Hashable {
        package let appID: String
        /// Empty of receipts.
        package let environment: String
        /// `receipts`, `notifications` or `grants`.
        package let kind: String
        /// Of a notification; otherwise empty.
        package let type: String
    }

    /// All spans of `v_timeliness`.
    package static let timeliness = Statement<Void, ArrivalSpan>(
        "books.timeliness",
        """
        select app_id, environment, kind, type, hours, until, arrivals, weeks, now() from v_timeliness
        """,
        read: { row throws(PostgresError) in
            ArrivalSpan(
                series: .init(
                    appID: try row.text(0), environment: try row.text(1), kind: try row.text(2), type: try row.text(3)),
                hours: try row.int(4),
                facts: .init(
                    now: try row.date(8), until: try row.date(5), arrivals: try row.int(6), weeks: try row.ints(7)))
        })
}
