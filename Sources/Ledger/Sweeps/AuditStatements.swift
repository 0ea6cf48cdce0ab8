package import Postgres
import Purchases

// The audit by sample (L5): customers are drawn at random, a sweep reads each one's whole history, and the ledger is
// compared with it.
extension Statements {
    package struct AuditDraw: Sendable {
        package let appID: String
        package let environment: String
        /// Customers to draw each day.
        package let size: Int

        package init(appID: String, environment: String, size: Int) {
            self.appID = appID
            self.environment = environment
            self.size = size
        }
    }

    /// Up to this number the customers of a day's population are counted; more are estimated.
    private static let populationCountedMax = 10_000

    /// Draws the customers of today (UTC) of one of the places that have no draw of today, and has Apple asked for the
    /// whole history of each. Returns how many customers. No row: each place has its draw, or another worker draws.
    ///
    /// The customers stand in the order of a hash, which says nothing of them, and the draw begins at a random number.
    /// Where the population is large, its first customers in this order tell its density.
    package static let drawSample = Statement<[AuditDraw], Int>(
        "audit.draw",
        """
        with place as materialized (
          select app, environment, size, floor(random() * 4294967296 - 2147483648)::int as start
          from unnest($1::text[], $2::text[], $3::int8[]) as p(app, environment, size)
          where p.size > 0 and not exists (
            select from audit_days
            where app_id = p.app and environment = p.environment and day = (now() at time zone 'UTC')::date)
          order by random() limit 1),
        day as (
          insert into audit_days (app_id, environment, day, population)
          select p.app, p.environment, (now() at time zone 'UTC')::date, k.population
          from place p cross join lateral (
            select case when count(*) < \(populationCountedMax) then count(*)
              else (count(*) * 4294967296.0 / (max(chance) + 2147483649.0))::bigint end as population
            from (
              select hashtext(customer) as chance from history_walks
              where app_id = p.app and environment = p.environment and due_at is distinct from 'infinity'
              order by hashtext(customer) limit \(populationCountedMax)) w) k
          on conflict do nothing returning app_id, environment, day),
        drawn as materialized (
          select w.app_id, w.environment, w.customer, d.day
          from day d cross join place p cross join lateral (
            (select app_id, environment, customer from history_walks
             where app_id = d.app_id and environment = d.environment and due_at is distinct from 'infinity'
               and hashtext(customer) >= p.start
             order by hashtext(customer) limit p.size)
            union all
            (select app_id, environment, customer from history_walks
             where app_id = d.app_id and environment = d.environment and due_at is distinct from 'infinity'
               and hashtext(customer) < p.start
             order by hashtext(customer) limit p.size)
            limit p.size) w),
        wanted as (
          update history_walks w set wanted_by = '\(CustomerReason.sample.rawValue)', wanted_at = now(),
            due_at = least(w.due_at, now())
          from (
            select app_id, environment, customer from drawn join history_walks k using (app_id, environment, customer)
            order by 1, 2, 3 for no key update of k) d
          where w.app_id = d.app_id and w.environment = d.environment and w.customer = d.customer),
        sampled as (
          insert into audit_samples (app_id, environment, customer, day)
          select app_id, environment, customer, day from drawn returning 1)
        select count(*) from sampled having exists (select from day)
        """,
        bind: { draws in
            [
                .texts(draws.map(\.appID)), .texts(draws.map(\.environment)), .ints(draws.map(\.size)),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Compares drawn customers whose whole history was read since, and returns how many. A purchase or an end that the
    /// sweep had to tell is a difference, unless it is younger than the reading; so is a grant that Apple did not list.
    /// Apple signs each purchase anew when Apple lists it, so a purchase that Apple did not list has an older
    /// signature, or none: facts of a legacy receipt,
    /// or a grant without facts.
    package static let compareSample = Statement<Void, Int>(
        "audit.compare",
        """
        with ready as materialized (
          select s.app_id, s.environment, s.customer, s.day, w.whole_at, w.swept_at
          from audit_samples s join history_walks w using (app_id, environment, customer)
          where s.compared_at is null and s.drawn_at > now() - interval '3 days' and w.whole_at >= s.drawn_at
            and w.swept_at >= w.whole_at and w.swept_begun_at is null and w.passed_over = 0
          order by s.drawn_at limit 20 for no key update of s skip locked),
        bought as materialized (
          select r.app_id, r.environment, r.customer, r.whole_at, r.swept_at, t.*
          from ready r cross join lateral (
            select transaction_id, original_transaction_id, product_id, purchased_at, expires_at, revoked_at, signed_at
            from transactions
            where customer_id = r.customer and app_id = r.app_id and environment = r.environment
            union
            select transaction_id, original_transaction_id, product_id, purchased_at, expires_at, revoked_at, signed_at
            from transactions
            where original_transaction_id = r.customer and app_id = r.app_id and environment = r.environment
            union
            select g.transaction_id, coalesce(f.original_transaction_id, g.transaction_id),
              coalesce(f.product_id, g.product_id), f.purchased_at, f.expires_at, f.revoked_at, f.signed_at
            from (
              select transaction_id from grants where customer_id = r.customer or transaction_id = r.customer
              union
              select transaction_id from ownerships
              where app_id = r.app_id and environment = r.environment and original_transaction_id = r.customer) n
            join grants g on g.transaction_id = n.transaction_id and g.app_id = r.app_id
              and g.environment = r.environment
            left join transactions f on f.transaction_id = g.transaction_id) t),
        unlisted as (
          insert into differences as d (category, subject, app_id, environment, net)
          select distinct 'grant_unlisted', b.transaction_id, b.app_id, b.environment, 'customer'
          from bought b join grants g on g.transaction_id = b.transaction_id
          where coalesce(b.signed_at, g.granted_at) < b.whole_at - interval '10 minutes' and not exists (
            select from bought o
            where o.original_transaction_id = b.original_transaction_id and o.product_id = b.product_id
              and (o.purchased_at = b.purchased_at or o.expires_at is null)
              and o.signed_at >= b.whole_at - interval '10 minutes')
          order by 2
          on conflict (category, subject) do update set seen_at = now(),
            ended_at = case when d.ended_by is null then null else d.ended_at end
          returning d.subject, d.ended_by),
        found as (
          select b.app_id, b.environment, b.customer, false as is_explained
          from bought b
          join differences d on d.subject = b.transaction_id
            and d.category in ('purchase_missing', 'end_missing', 'end_undone', 'goods_differ')
          where d.net = 'customer' and d.seen_at >= b.whole_at
            and d.seen_at <= b.swept_at + interval '1 minute'
            and case d.category when 'end_missing' then b.revoked_at else b.purchased_at end < b.whole_at
          union all
          select b.app_id, b.environment, b.customer, u.ended_by is not null
          from unlisted u join bought b on b.transaction_id = u.subject),
        compared as (
          update audit_samples s set compared_at = now(), differences = f.differences, explained = f.explained
          from ready r cross join lateral (
            select count(*) as differences, count(*) filter (where is_explained) as explained from found
            where app_id = r.app_id and environment = r.environment and customer = r.customer) f
          where s.app_id = r.app_id and s.environment = r.environment and s.customer = r.customer and s.day = r.day
          returning 1)
        select count(*) from compared
        """,
        read: { row throws(PostgresError) in try row.int(0) })

    package struct AuditSum: Sendable, Equatable {
        package let appID: String
        package let environment: String
        /// As PostgreSQL writes a date.
        package let day: String
        package let drawn: Int
        package let compared: Int
        package let differences: Int
        package let explained: Int

        /// The bound on the rate of unexplained differences. Nil: nobody was compared.
        package var bound: Double? { AuditBound.rate(differences: differences - explained, compared: compared) }
    }

    /// The sums of the days whose rows differ from their samples, of the last three days.
    package static let auditSums = Statement<Void, AuditSum>(
        "audit.sums",
        """
        select d.app_id, d.environment, d.day::text, s.drawn, s.compared, s.differences, s.explained
        from audit_days d cross join lateral (
          select count(*) as drawn, count(compared_at) as compared, coalesce(sum(differences), 0)::bigint as differences,
            coalesce(sum(explained), 0)::bigint as explained
          from audit_samples where app_id = d.app_id and environment = d.environment and day = d.day) s
        where d.day >= (now() at time zone 'UTC')::date - 3
          and (d.drawn, d.compared, d.differences, d.explained) <> (s.drawn, s.compared, s.differences, s.explained)
        """,
        read: { row throws(PostgresError) in
            AuditSum(
                appID: try row.text(0), environment: try row.text(1), day: try row.text(2), drawn: try row.int(3),
                compared: try row.int(4), differences: try row.int(5), explained: try row.int(6))
        })

    /// Writes the sums of the samples into the rows of their days.
    package static let keepAuditSums = Statement<[AuditSum], Void>(
        "audit.keep",
        [
            .text("app") { $0.appID }, .text("environment") { $0.environment }, .text("day") { $0.day },
            .int("drawn") { $0.drawn }, .int("compared") { $0.compared }, .int("differences") { $0.differences },
            .int("explained") { $0.explained }, .double("bound") { $0.bound },
        ],
        sql: { rows in
            """
            update audit_days d set drawn = i.drawn, compared = i.compared, differences = i.differences,
              explained = i.explained, bound = i.bound
            from \(rows.rows(as: "i"))
            where d.app_id = i.app and d.environment = i.environment and d.day = i.day::date
            """
        })
}
