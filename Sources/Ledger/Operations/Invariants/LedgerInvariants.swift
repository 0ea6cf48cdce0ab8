import Purchases

extension Invariant {
    /// The invariants that need only the database. Fast on millions of rows: BRIN indexes on times find the recent
    /// rows.
    package static let ofTheLedger = ofPurchases + ofHearing + ofDelivery

    private static let ofPurchases: [Invariant] = [
        Invariant(
            "B1", "conservation", "received = granted + already granted + rejected + open, by app, day and source",
            """
            select app_id || ' ' || day || ' ' || source || ': received ' || coalesce(received, 0)
              || ', rows ' || coalesce(receipts, 0)
            from (
              select app_id, (received_at at time zone 'UTC')::date as day, source, count(*) as receipts from receipts
              where received_at >= (((\(since)) at time zone 'UTC')::date::timestamp at time zone 'UTC')
              group by 1, 2, 3) as row_counts
            full join (
              -- A bench counts what it fills in by a word of its own.
              select app_id, day, case when source in ('notification', 'sweep') then source else 'post' end as source,
                sum(received)::bigint as received
              from tallies where day >= ((\(since)) at time zone 'UTC')::date group by 1, 2, 3) as tally_counts
              using (app_id, day, source)
            where coalesce(received, 0) <> coalesce(receipts, 0)
            """),
        Invariant(
            "I3", "single_grants", "a transaction and a purchase are granted once, and the database sees to it",
            """
            select 'grants has no unique key on ' || k.name from (values ('transaction_id'), ('purchase_key')) k(name)
            where not exists (
              select from pg_constraint c join pg_index i on i.indexrelid = c.conindid
              join pg_attribute a on a.attrelid = c.conrelid and a.attnum = c.conkey[1]
              where c.conrelid = 'grants'::regclass and c.contype in ('p', 'u') and c.convalidated and i.indisvalid
                and i.indisready and cardinality(c.conkey) = 1 and a.attname = k.name)
            union all
            select 'grants has no unique index of period_key' where not exists (
              select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
              where i.indrelid = 'grants'::regclass and i.indisunique and i.indisvalid and i.indisready
                and i.indnkeyatts = 1 and a.attname = 'period_key')
            union all
            select 'transaction …' || right(transaction_id, 4) from grants
            where granted_at >= \(since) group by transaction_id having count(*) > 1
            union all
            select 'purchase …' || right(purchase_key, 4) from grants
            where granted_at >= \(since) group by purchase_key having count(*) > 1
            union all
            select 'period …' || right(period_key, 4) from grants
            where granted_at >= \(since) and period_key is not null group by period_key having count(*) > 1
            """),
        Invariant(
            "I5", "owners_of_grants", "who was found as the poster is the user of the receipt or of the order it names",
            """
            select 'transaction …' || right(transaction_id, 4) from (
              select g.* from (
                select id, app_id, user_id from receipts where received_at >= \(since)) r
              full join (
                select transaction_id, receipt_id, app_id, user_id, binding_source, true as is_grant from grants
                where granted_at >= \(since) and binding_source in ('poster', 'shared')) g on g.receipt_id = r.id
              where coalesce(is_grant, false) and (g.app_id, g.user_id) is distinct from (r.app_id, r.user_id)
              offset 0) g
            where (
              select r.app_id <> g.app_id or \(Statements.person("g.user_id", of: "g.app_id"))
                is distinct from \(Statements.person("r.poster", of: "g.app_id"))
              from (
                select app_id, coalesce(user_id, (
                  select o.user_id from orders o
                  where o.id::text = lower(receipts.order_id) and o.app_id = receipts.app_id)) as poster
                from receipts where id = g.receipt_id offset 0) r)
              -- What is shared may be the chain's or the customer's: then reasons stand with its outcome.
              and (g.binding_source = 'poster' or (
                select o.reasons from outcomes o
                where o.receipt_id = g.receipt_id and o.transaction_id = g.transaction_id) is null)
            """),
        Invariant(
            "B7", "orders_and_grants", "one purchase is granted by an order, to the order's user",
            """
            select 'order ' || g.order_id from (
              select id, app_id, user_id from orders where placed_at >= \(since)) o
            full join (
              select order_id, app_id, user_id from grants
              where granted_at >= \(since) and order_id is not null) g on g.order_id = o.id
            -- Placed before, and bound since: few enough to be looked up.
            left join lateral (
              select app_id, user_id from orders where o.id is null and id = g.order_id offset 0) p on true
            cross join lateral (
              select coalesce(o.app_id, p.app_id) as app_id, coalesce(o.user_id, p.user_id) as user_id offset 0) b
            where g.order_id is not null and (b.app_id is distinct from g.app_id
              or b.user_id <> g.user_id and \(Statements.person("b.user_id", of: "b.app_id"))
                <> \(Statements.person("g.user_id", of: "g.app_id")))
            union all
            select 'grants has no unique index of order_id' where not exists (
              select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
              where i.indrelid = 'grants'::regclass and i.indisunique and i.indisvalid and i.indisready
                and i.indnkeyatts = 1 and a.attname = 'order_id')
            union all
            select 'order ' || order_id || ' has several grants' from grants
            where granted_at >= \(since) and order_id is not null group by order_id having count(*) > 1
            """),
        Invariant(
            "B6", "bonuses", "a bonus is given once per user and period, and stands among the goods of its grant",
            """
            select 'bonus ' || bonus || ' of transaction …' || right(transaction_id, 4) from (
              select distinct transaction_id, bonus, true as is_given from given_bonuses
              where given_at >= \(since) and transaction_id is not null) b
            full join (
              select distinct transaction_id, good ->> 'bonus' as bonus, true as is_granted
              from grants cross join lateral jsonb_array_elements(goods) as good
              where granted_at >= \(since) and good ? 'bonus') g using (transaction_id, bonus)
            where is_given is null or is_granted is null
            """),
        Invariant(
            "I6", "grants_and_outcomes",
            "every granted outcome has its grant, every grant its receipt, and is told there unless that is still open",
            """
            select 'receipt ' || receipt_id || ' transaction …' || right(transaction_id, 4) from (
              select transaction_id, receipt_id, is_grant from (
                select transaction_id, receipt_id, true as is_outcome from outcomes
                where decided_at >= \(since) and state = 'granted') o
              full join (
                select transaction_id, receipt_id, true as is_grant from grants where granted_at >= \(since)) g
                using (transaction_id, receipt_id)
              where is_grant is null or is_outcome is null
              offset 0) c
            where case
              when is_grant then not exists (
                select from receipts r where r.id = c.receipt_id and (r.settled_at is null or exists (
                  select from outcomes o
                  where o.receipt_id = c.receipt_id and o.transaction_id = c.transaction_id and o.state = 'granted')))
              else not exists (
                select from grants g where g.transaction_id = c.transaction_id and g.receipt_id = c.receipt_id) end
            """),
        Invariant(
            "I2", "grants_behind",
            "what is answered as given already was given: here, maybe as the same purchase under another id, or before Makegood",
            """
            select 'receipt ' || o.receipt_id || ' transaction …' || right(o.transaction_id, 4)
            from (
              select receipt_id, transaction_id, coalesce(granted_as, transaction_id) as granted, decided_at from outcomes
              where decided_at >= \(since) and state = 'already_granted' offset 0) o
            left join lateral (
              select true as is_there from grants where transaction_id = o.granted offset 0) g on true
            left join lateral (
              -- Taken back before this was bought: then this is another purchase, which nobody was given.
              select true as is_over
              from (select original_transaction_id, revoked_at from transactions
                where transaction_id = o.granted and revoked_at is not null offset 0) given
              cross join lateral (
                select original_transaction_id, purchased_at from transactions
                where o.granted <> o.transaction_id and transaction_id = o.transaction_id offset 0) bought
              where given.revoked_at < bought.purchased_at) t on true
            where (g.is_there is null or t.is_over) and not exists \(formerSystem)
            """),
        Invariant(
            "I6", "summary", "a receipt's state follows from its outcomes",
            """
            select 'receipt ' || id || ' is ' || r.state from (
              select id, state, true as is_ended from receipts where received_at >= \(since) and settled_at is not null) r
            full join (
              select receipt_id, case when bool_or(state in ('open', 'held')) then 'open'
                  when bool_or(state = 'granted') then 'granted'
                  when bool_or(state = 'already_granted') then 'already_granted' else 'rejected' end as state
              from outcomes where decided_at >= \(since) group by 1) o on o.receipt_id = r.id
            where coalesce(is_ended, false) and r.state is distinct from coalesce(o.state, 'rejected')
            """),
        Invariant(
            "I7", "transitions",
            "a receipt ends by a verdict, stays ended, is parked after its tries, and has its reason",
            """
            select 'receipt ' || id || ' is ' || state || case
                when reason is null and state in ('rejected', 'held', 'parked') then ' without a reason'
                when state = 'parked' then ' after ' || attempt || ' tries' else ' without a verdict' end
            from receipts
            where received_at >= \(since) and (
              settled_at is not null and (judged_at is null or judged_at < settled_at or settled_at < received_at)
              or state in ('rejected', 'held', 'parked') and reason is null
              or state = 'parked' and reason <> 'never_worked' and attempt < \(Parking.attemptsMin))
            union all
            select 'receipt ' || r.id || ' is ' || r.state || ' again, after it ended' from receipts r
            join (
              select receipt_id from outcomes where decided_at >= \(since) group by 1
              having not bool_or(state in ('open', 'held') or reason is not distinct from 'unconfirmed') and bool_or(state in ('granted', 'already_granted'))) o
              on o.receipt_id = r.id
            where r.due_at is not null and r.received_at >= \(since)
            """),
        Invariant(
            "I8", "due", "no open receipt is overdue by more than two hours, unless its app is paused or halted",
            """
            select 'receipt ' || id || ' ' || state from receipts
            where due_at is not null and due_at < now() - interval '2 hours'
              and not exists (select from halts where halts.app_id = receipts.app_id)
            """),
        Invariant(
            "I10", "order_of_attempts",
            "the tries of a receipt follow one another: nobody works on an attempt that is over",
            """
            select 'receipt ' || receipt_id || ' attempt ' || attempt from (
              select receipt_id, attempt, at, lag(at) over (partition by receipt_id order by attempt) as before
              from attempts where at >= \(since)) a
            where at < before - \(clockSlack)
            """),
        Invariant(
            "I11", "stale_writes", "nothing is written about a receipt after it ended, or for an attempt it never had",
            """
            select 'receipt ' || a.receipt_id || ' attempt ' || a.attempt
            from attempts a left join lateral (
              select id, attempt, settled_at from receipts where id = a.receipt_id offset 0) r on true
            where a.at >= \(since)
              and (r.id is null or a.attempt > r.attempt or a.at > r.settled_at + \(clockSlack))
            union all
            select 'receipt ' || receipt_id || ' transaction …' || right(transaction_id, 4) from (
              select id, settled_at from receipts where received_at >= \(since) and settled_at is not null) r
            full join (
              select receipt_id, transaction_id, decided_at from outcomes where decided_at >= \(since)) o
              on o.receipt_id = r.id
            where coalesce(decided_at > settled_at + \(clockSlack), false)
            """),
        Invariant(
            "I13", "backoff", "between two tries at Apple lies the wait of the retry schedule",
            """
            select 'receipt ' || receipt_id || ' attempt ' || attempt from (
              select receipt_id, attempt, at, lag(attempt) over w as before, lag(at) over w as before_at
              from attempts where at >= \(since)
              window w as (partition by receipt_id order by attempt)) a
            -- A parked receipt is tried whenever somebody asks for it. Wakes count as attempts, and not as tries.
            where attempt = before + 1 and before < \(Parking.attemptsMin)
              and at < before_at + 0.9 * :scale * make_interval(secs => coalesce((array[\(retrySeconds)])[greatest(1,
                  before - coalesce((select wakes from receipts where id = receipt_id), 0))],
                \(RetrySchedule.afterRetryQueues.inSeconds * (1 - RetrySchedule.jitter))))
            """),
        Invariant(
            "I15", "payloads", "the proof of an open receipt is there, and every proof is what was posted",
            """
            select 'receipt ' || r.id || ' has lost its proof' from receipts r
            where r.due_at is not null and r.kind <> 'identifier' and r.received_at >= \(since)
              and not exists (select from payloads p
                where p.receipt_id = r.id and p.received_on = (r.received_at at time zone 'UTC')::date)
              and not exists (select from kept_payloads k where k.receipt_id = r.id)
              -- Revived after its payload was emptied: its stored facts are judged.
              and not (r.source <> 'post' and exists (select from outcomes o where o.receipt_id = r.id))
            union all
            select 'receipt ' || id || ' has another proof' from changed_proofs(:payload_seconds) as c(id)
            """),
        Invariant(
            "I3", "imported_grants", "what another system has given was not given here afterwards",
            // The slack is for two statements that overlap and do not see each other, as below.
            """
            select 'transaction …' || right(g.transaction_id, 4) from grants g
            cross join lateral (select imported_at from imported_grants
              where transaction_id = g.transaction_id offset 0) m
            where g.granted_at >= \(since) and m.imported_at < g.granted_at - interval '10 seconds'
            """),
        Invariant(
            "I16", "refunds", "what was known to be refunded was not granted afterwards",
            // Two statements that do not see each other may overlap: both within their time-out.
            """
            select 'transaction …' || right(g.transaction_id, 4)
            from outcomes o join grants g on g.transaction_id = o.transaction_id
            join transactions t on t.transaction_id = o.transaction_id
            where o.decided_at >= \(since) and o.state = 'rejected' and o.reason = 'refunded'
              and o.decided_at < g.granted_at - interval '10 seconds'
              and t.revoked_at is not null and t.signed_at <= g.granted_at
              -- What ended it may be learnt later than that it ended: the purchase that took its place.
              and not exists (select from outcomes w
                where w.receipt_id = g.receipt_id and w.transaction_id = g.transaction_id
                  and w.reasons && array['\(MatchReason.endedByUpgrade.rawValue)', '\(MatchReason.refundProrated.rawValue)'])
            """),
        Invariant(
            "I17", "events_of_grants", "every grant was told, once, and nothing else was",
            """
            select 'transaction …' || right(transaction_id, 4) from (
              select transaction_id, receipt_id, true as is_granted from grants
              where granted_at >= \(since)) g
            full join (
              select transaction_id, receipt_id, count(*) as times from events
              where type = '\(EventType.purchaseGranted.rawValue)' and at >= \(since) group by 1, 2) e
              using (transaction_id, receipt_id)
            where is_granted is null or times is distinct from 1
            """),
        Invariant(
            "B3", "apple_updates",
            "Apple is told only about what was granted, or is finished, held with its facts stored",
            """
            select 'transaction …' || right(transaction_id, 4) || ' ' || kind from (
              select transaction_id, kind from apple_updates where created_at >= \(since)) e
            full join (
              select transaction_id, true as is_granted from grants where granted_at >= \(since)) g using (transaction_id)
            where kind is not null and is_granted is null
              and not exists (select from grants x where x.transaction_id = e.transaction_id)
              and not (kind = 'finish' and exists (
                select from outcomes o
                where o.transaction_id = e.transaction_id and o.state <> 'granted' and o.state <> 'open'))
            """),
        Invariant(
            "B10", "provisional_grants",
            "what was given on trust is confirmed or taken back, and told so, or its receipt is still open",
            """
            select 'transaction …' || right(p.transaction_id, 4) || case
                when p.confirmed_at is null and p.revoked_at is null then ' is unconfirmed and nobody asks'
                else ' was not told of' end
            from provisional_grants p
            where p.granted_at >= \(since) and (
              -- A verdict that has yet to be written again (`again`) has given already, and not told the receipt.
              p.confirmed_at is null and p.revoked_at is null and not exists (
                select from receipts r left join outcomes o
                  on o.receipt_id = r.id and o.transaction_id = p.transaction_id
                where r.id = p.receipt_id and r.settled_at is null and coalesce(
                  o.state = 'open' or o.state = 'granted' and o.reason is not distinct from 'unconfirmed', true))
              or (p.confirmed_at is not null or p.revoked_at is not null) and not exists (
                select from events e where e.transaction_id = p.transaction_id and e.event_id = p.event_id)
              or not exists (
                select from grants g where g.transaction_id = p.transaction_id and g.receipt_id = p.receipt_id))
            union all
            select 'transaction …' || right(o.transaction_id, 4) || ' is said to be unconfirmed'
            from outcomes o
            where o.decided_at >= \(since) and o.reason = 'unconfirmed' and not coalesce((
              select p.granted_at is not null and p.confirmed_at is null and p.revoked_at is null
              from provisional_grants p
              where p.transaction_id = o.transaction_id and p.receipt_id = o.receipt_id), false)
            """),
    ]

    /// The first moment that is judged. The times of one receipt are in order, so both sides of a join use the same
    /// bound and come from the end of their tables. The few rows that find no partner there are looked up one by one,
    /// behind an `offset 0` that keeps the planner from looking up all rows.
    ///
    /// The joins are full joins, which PostgreSQL hashes. Statistics of a large table know nothing of today, so for
    /// other joins the planner would expect a handful of recent rows and look up each of a hundred thousand.
    static let since = "now() - make_interval(secs => :seconds)"
    /// Another answer for the purchase of `o`: the former system gave it.
    private static let formerSystem = """
        (
              select from imported_grants where transaction_id = o.transaction_id
              union all
              select from (
                select original_transaction_id as original from transactions
                where transaction_id = o.transaction_id offset 0) chain
              cross join lateral (
                select from imported_grants where original_transaction_id = chain.original limit 1) behind
              limit 1)
        """
    /// The clocks of two servers, before and after a fail-over, may differ by this.
    private static let clockSlack = "interval '1 second'"
    private static let retrySeconds = RetrySchedule.retryDelays.map { "\($0.inSeconds)" }.joined(separator: ", ")
}
