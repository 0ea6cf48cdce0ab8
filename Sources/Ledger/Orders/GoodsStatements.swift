package import Postgres
import Purchases

/// What was given by day, in sums (0011_sums.sql). Any scheduler may run each statement, at once and again: where
/// another one has moved the progress meanwhile, the statement changes nothing.
extension Statements {
    /// Notes a time before which the grants are complete once every transaction of this moment has ended. Does nothing
    /// while grants before the last such time are still to be summed. The parameter: how long ago a transaction must
    /// have begun so that it has its number by now.
    ///
    /// A noted number from a server that has counted further (a dump was restored) would never be reached, so the
    /// statement replaces it.
    package static let lookAheadOfGoods = Statement<Duration, Void>(
        "goods.look_ahead",
        """
        update goods_by_day_progress
        set complete_to = greatest(summed_to, now() - make_interval(secs => $1)),
          complete_xid = pg_current_xact_id()
        where summed_to = complete_to and complete_to < now() - make_interval(secs => $1)
          or complete_xid > pg_snapshot_xmax(pg_current_snapshot())
        """,
        bind: { [.double($0.inSeconds)] })

    /// Sums the complete grants of the next so many seconds. A row if there were such seconds; true if there are more.
    package static let sumGoods = Statement<Duration, Bool>(
        "goods.sum",
        """
        with place as materialized (
          select summed_to, least(complete_to, summed_to + make_interval(secs => $1)) as next, complete_to
          from goods_by_day_progress
          where summed_to < complete_to and complete_xid <= pg_snapshot_xmin(pg_current_snapshot())),
        moved as (
          update goods_by_day_progress p set summed_to = place.next
          from place where p.summed_to = place.summed_to
          returning place.summed_to as since, place.next, place.complete_to),
        summed as (
          insert into goods_by_day as d (day, app_id, environment, product_id, granted, units)
          select (g.granted_at at time zone 'UTC')::date, g.app_id, g.environment, g.product_id, count(*),
            sum(g.quantity)
          from moved cross join lateral (
            select granted_at, app_id, environment, product_id, quantity from grants
            where granted_at >= moved.since and granted_at < moved.next offset 0) g
          group by 1, 2, 3, 4
          on conflict (day, app_id, environment, product_id) do update
          set granted = d.granted + excluded.granted, units = d.units + excluded.units)
        select next < complete_to from moved
        """,
        bind: { [.double($0.inSeconds)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Starts the sums again with the current day, where the database's clock went back behind them: new grants would
    /// lie before the progress and would never be counted. A row if it did so. The parameter is that of
    /// ``lookAheadOfGoods``; half of it is left for a statement that waited.
    package static let sumGoodsAgain = Statement<Duration, Bool>(
        "goods.sum_again",
        """
        with place as materialized (
          select summed_to,
            date_trunc('day', (now() - make_interval(secs => $1)) at time zone 'UTC') at time zone 'UTC' as day_start
          from goods_by_day_progress where summed_to > now() - make_interval(secs => $1 / 2)),
        back as (
          update goods_by_day_progress p set summed_to = place.day_start, complete_to = place.day_start
          from place where p.summed_to = place.summed_to
          returning place.day_start),
        emptied as (
          update goods_by_day set granted = 0, units = 0
          where day >= (select (day_start at time zone 'UTC')::date from back))
        select true from back
        """,
        bind: { [.double($0.inSeconds)] },
        read: { row throws(PostgresError) in try row.bool(0) })
}
