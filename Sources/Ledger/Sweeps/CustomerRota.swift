package import Postgres
import Purchases

// How customers get rows, and when Apple is asked of them next.
extension Statements {
    /// The end of the time in which refunds of a purchase are likely, in days after it.
    package static let refundDays = 180

    /// The most rows of one step. The number stands in the texts, because a plan that is kept for any number would read
    /// whole tables.
    package static let customerStepMax = 250

    /// Enters the customers of the next events in the feed, and takes the rows of their original ids from the rota
    /// where Apple names the customer. Returns how many events it looked at. No row: another worker does it. The place
    /// in the feed is kept as the search for double charges keeps its own. The parameter is the time within which
    /// refunds of a customer who bought again are asked for.
    package static let enterCustomers = Statement<Duration, Int>(
        "customers.enter",
        """
        with turn as materialized (
          select least(searched_xid, pg_snapshot_xmin(pg_current_snapshot())) as xid, searched_id as id
          from customer_progress for no key update skip locked),
        step as materialized (
          select e.* from turn cross join lateral (
            select xid, id, type, transaction_id from events
            where (xid, id) > (turn.xid, turn.id) and xid < pg_snapshot_xmin(pg_current_snapshot())
            order by xid, id limit \(customerStepMax)) e),
        bought as materialized (
          select t.app_id, t.environment, t.customer_id, t.original_transaction_id as original,
            min(t.transaction_id) as asked,
            max(greatest(t.purchased_at + interval '\(refundDays) days', t.expires_at)) as active_until
          from (select distinct transaction_id from step where type = '\(EventType.purchaseGranted.rawValue)') e
          cross join lateral (
            select app_id, environment, customer_id, original_transaction_id, transaction_id, purchased_at, expires_at
            from transactions where transaction_id = e.transaction_id and environment in ('Production', 'Sandbox')
            offset 0) t
          group by 1, 2, 3, 4),
        entered as (
          \(enteringCustomers(from: "bought"))
          on conflict (app_id, environment, customer) do update set
            active_until = greatest(w.active_until, excluded.active_until),
            refunds_due_at = coalesce(w.refunds_due_at,
              case when w.due_at < 'infinity' then now() + random() * make_interval(secs => $1) end),
            entered_at = case when w.refunds_due_at is null and w.due_at < 'infinity' and w.swept_at is not null
              then now() else w.entered_at end),
        gone as (
          update history_walks w set due_at = 'infinity', wanted_by = null, refunds_due_at = null from (
            select h.place from bought b cross join lateral (
              select ctid as place from history_walks
              where app_id = b.app_id and environment = b.environment and customer = b.original
                and b.customer_id <> b.original and due_at is distinct from 'infinity' for no key update) h
            offset 0) h
          where w.ctid = h.place),
        moved as (
          update customer_progress p set searched_xid = s.xid, searched_id = s.id
          from (select xid, id from step order by xid desc, id desc limit 1) s)
        select count(*) from step having exists (select from turn)
        """,
        bind: { [.double($0.inSeconds)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Enters the customers of purchases that were imported before this version; later ones are entered as they are
    /// imported. Returns how many purchases it looked at. No row: all are entered, or another worker does it.
    package static let enterImported = Statement<Void, Int>(
        "customers.enter_imported",
        """
        with turn as materialized (
          select imported_to from customer_progress where imported_to is not null for no key update skip locked),
        step as materialized (
          select i.* from turn cross join lateral (
            select transaction_id, app_id, environment, original_transaction_id, purchased_at from imported_grants
            where transaction_id > turn.imported_to order by transaction_id limit \(customerStepMax)) i),
        bought as (
          select app_id, environment, null as customer_id, original_transaction_id as original,
            min(transaction_id) as asked, max(purchased_at) + interval '\(refundDays) days' as active_until
          from step where environment in ('Production', 'Sandbox') group by 1, 2, 4),
        entered as (
          \(enteringCustomers(from: "bought"))
          on conflict (app_id, environment, customer) do update set
            active_until = greatest(w.active_until, excluded.active_until)),
        moved as (
          update customer_progress set imported_to =
            case when (select count(*) from step) = \(customerStepMax) then (select max(transaction_id) from step) end
          where exists (select from turn))
        select count(*) from step having exists (select from turn)
        """,
        read: { row throws(PostgresError) in try row.int(0) })

    /// An app and environment of which Apple is asked, with its rota.
    package struct SweptPlace: Sendable {
        package var appID: String
        package var environment: String
        /// Nil: only where there is a reason.
        package var customersEvery: Duration?
        /// Nil: never.
        package var refundsEvery: Duration?

        package init(appID: String, environment: String, customersEvery: Duration?, refundsEvery: Duration?) {
            self.appID = appID
            self.environment = environment
            self.customersEvery = customersEvery
            self.refundsEvery = refundsEvery
        }
    }

    /// Spreads new customers over the rota, so that a deployment that begins to ask does not ask about all at once.
    /// Returns how many. Rows that another process holds wait for the next time.
    package static let scheduleCustomers = Statement<[SweptPlace], Int>(
        "customers.schedule",
        """
        with new as materialized (
          select w.place, p.customers_every, p.refunds_every
          from unnest($1::text[], $2::text[], $3::float8[], $4::float8[])
            as p(app, environment, customers_every, refunds_every)
          cross join lateral (
            select ctid as place from history_walks
            where app_id = p.app and environment = p.environment and wanted_by is null and due_at is null
            limit \(customerStepMax) for no key update skip locked) w
          limit \(customerStepMax)),
        scheduled as (
          update history_walks w set due_at = now() + random() * make_interval(secs => n.customers_every),
            refunds_due_at = case when w.active_until > now()
              then now() + random() * make_interval(secs => n.refunds_every) end
          from new n where w.ctid = n.place
          returning 1)
        select count(*) from scheduled
        """,
        bind: { places in
            let policy = SweepPolicy()
            let standard = (
                customers: policy.customersEvery ?? .zero, refunds: policy.refundsEvery ?? .zero
            )
            return [
                .texts(places.map(\.appID)), .texts(places.map(\.environment)),
                // A rota that is off now may be on later, and the rows then have a time.
                .doubles(places.map { ($0.customersEvery ?? standard.customers).inSeconds }),
                .doubles(places.map { ($0.refundsEvery ?? standard.refunds).inSeconds }),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })
}
