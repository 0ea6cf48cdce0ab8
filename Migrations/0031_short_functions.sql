-- serves: 12
-- Why: a person must be able to read each function and each view of the schema on one screen of 60 lines. Four
--   functions and the view `v_sweeps` were longer. Each part of them that has a purpose of its own has a name now. What
--   they answer, write and lock, and in which order, is as before.
-- Locks: `v_sweeps`, for a moment.
-- Cost: none: no row is read or written.
-- Programs of the version before: they call the same functions by the same arguments.

-- What a post says of a receipt, as a line of the receipt. The line's id is derived from what the post says.
create function line_of_post(receipt uuid, at timestamptz, ordr text, trans text, orig text, inst text, tgt jsonb,
    decl jsonb, det jsonb)
returns receipt_lines language plpgsql as $$
declare
    post receipt_lines;
begin
    post.receipt_id := receipt;
    post.line := md5(jsonb_build_array(ordr, trans, orig, inst, tgt, decl)::text)::uuid;
    post.said_at := at;
    post.order_id := ordr;
    post.transaction_id := trans;
    post.original_transaction_id := orig;
    post.installation_id := inst;
    post.target := tgt;
    post.declared := decl;
    post.details := det;
    return post;
end $$;

-- What an open receipt is judged by after a later post. A field that the post leaves out removes nothing: StoreKit
-- delivers a purchase again without the app's fields. The new line alone counts if it means another purchase of the
-- receipt, or if an outcome is held because of what an earlier post said.
create function line_to_judge(known receipt_lines, said receipt_lines) returns receipt_lines language plpgsql as $$
declare
    judged receipt_lines := said;
begin
    if said.transaction_id <> known.transaction_id or exists (
        select from outcomes o where o.receipt_id = said.receipt_id and o.state = 'held'
            and o.reason in ('foreign_order', 'foreign_record', 'token_disputed'))
    then
        return said;
    end if;
    judged.order_id := coalesce(said.order_id, known.order_id);
    judged.transaction_id := coalesce(said.transaction_id, known.transaction_id);
    judged.original_transaction_id := coalesce(said.original_transaction_id, known.original_transaction_id);
    judged.installation_id := coalesce(said.installation_id, known.installation_id);
    judged.target := coalesce(said.target, known.target);
    judged.declared := case when known.declared is null then said.declared
        else known.declared || coalesce(said.declared, '{}') end;
    return judged;
end $$;

-- Keeps a line, and before a receipt's first line also what the receipt was posted with. Returns false, and keeps
-- nothing, if the receipt has as many lines as it may have.
create function keep_line(known receipt_lines, said receipt_lines, is_first boolean, lines_max integer) returns boolean
language plpgsql as $$
begin
    -- A post without fields of its own is always taken: it frees a purchase that is held because of an earlier post.
    if coalesce(said.order_id, said.transaction_id, said.original_transaction_id, said.installation_id,
            said.target::text, said.declared::text) is not null
        and not exists (select from receipt_lines l where l.receipt_id = said.receipt_id and l.line = said.line)
        and greatest((select count(*) from receipt_lines l where l.receipt_id = said.receipt_id), 1) >= lines_max
    then
        return false;
    end if;
    if is_first then
        insert into receipt_lines select known.* on conflict do nothing;
    end if;
    insert into receipt_lines select said.* on conflict (receipt_id, line) do update set said_at = now();
    return true;
end $$;

-- Adds to a receipt what a later post of the same proof says, as 0001_receipts.sql tells, and with the same answers:
-- `same`, `taken` and `full`.
create or replace function say_line(receipt uuid, ordr text, trans text, orig text, inst text, tgt jsonb, decl jsonb,
    det jsonb, lines_max integer)
returns text language plpgsql security definer as $$
declare
    r record;
    known receipt_lines;
    said receipt_lines := line_of_post(receipt, now(), ordr, trans, orig, inst, tgt, decl, det);
    judged receipt_lines;
    is_due boolean;
    next_at timestamptz;
begin
    select user_id, order_id, transaction_id, original_transaction_id, installation_id, target, declared, state,
        rescues, lines, received_at, judged_at, due_at, settled_at
        into r from receipts where id = receipt for no key update;
    -- The function stores nothing more about an erased user.
    if not found or r.user_id ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        return 'same';
    end if;
    known := line_of_post(receipt, r.received_at, r.order_id, r.transaction_id, r.original_transaction_id,
        r.installation_id, r.target, r.declared, '{}');
    if r.settled_at is not null then
        -- The answer to the poster is about the transaction that was named last.
        update receipts set transaction_id = trans where id = receipt and trans <> coalesce(transaction_id, '');
        if ordr is null or ordr = r.order_id
            or exists (select from receipt_lines l where l.receipt_id = receipt and l.order_id = ordr)
        then
            return 'same';
        end if;
        if not keep_line(known, said, r.lines = 0, lines_max) then return 'full'; end if;
        update receipts set lines = r.lines + 1 where id = receipt;
        return 'taken';
    end if;
    judged := line_to_judge(known, said);
    if (judged.order_id, judged.transaction_id, judged.original_transaction_id, judged.installation_id, judged.target,
            judged.declared) is not distinct from (known.order_id, known.transaction_id,
            known.original_transaction_id, known.installation_id, known.target, known.declared)
        -- The meant transaction decides nothing if neither the receipt nor the post says anything about one purchase
        -- alone.
        or coalesce(ordr, r.order_id) is null and coalesce(decl, r.declared) is null
            and coalesce(inst, r.installation_id) is not distinct from r.installation_id
            and coalesce(tgt, r.target) is not distinct from r.target
    then
        is_due := r.state <> 'received' and r.rescues = 0 and r.due_at > now()
            and r.judged_at < now() - interval '1 minute';
        update receipts set transaction_id = coalesce(trans, transaction_id),
            due_at = case when is_due then now() else due_at end
        where id = receipt and (is_due or trans <> coalesce(transaction_id, ''));
        return 'same';
    end if;
    -- A held or parked row is due at once for its first line. A received row is being tried as a rule, so it waits.
    next_at := greatest(now(),
        case when r.state = 'received' then coalesce(r.judged_at, r.received_at) + interval '1 minute' end,
        (select max(l.said_at) + interval '1 minute' from receipt_lines l where l.receipt_id = receipt));
    if not keep_line(known, said, r.lines = 0, lines_max) then return 'full'; end if;
    update receipts set lines = r.lines + 1, order_id = judged.order_id, transaction_id = judged.transaction_id,
        original_transaction_id = judged.original_transaction_id, installation_id = judged.installation_id,
        target = judged.target, declared = judged.declared, due_at = least(due_at, next_at)
    where id = receipt;
    return 'taken';
end $$;

-- Enters the places that were used before there were places, and returns whether there were any. A caller asks once for
-- each limit, holder and day: while the holder has no place at all.
--
-- An Apple customer's places are the users that the customer's purchases of production went to. An item's places are
-- the units that the user was given in the period, also under merged ids.
create function enter_former_places(app text, name text, owner text, on_day date, bought jsonb, places integer)
returns boolean language plpgsql as $$
declare
    since timestamptz := case when name = 'item_month' then date_trunc('month', on_day::timestamp)
        else on_day::timestamp end at time zone 'UTC';
begin
    if name = 'make_up_customer' then
        insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
            select app, name, owner, on_day, row_number() over (order by u.usr), u.usr
            from (select distinct encode(sha256(convert_to(g.user_id, 'UTF8')), 'hex') as usr
                from (select user_id from grants
                    where customer_id = owner and app_id = app and environment = 'Production' limit 1000) g) u
            on conflict do nothing;
        return found;
    end if;
    if bought is null then
        return false;
    end if;
    insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
        select app, name, owner, on_day, row_number() over (order by u.given_at, u.unit_of), u.unit_of
        from (
            select g.given_at, g.purchase_key || case when unit > 1 then ' ' || unit else '' end as unit_of
            from (
                select user_id from (values (bought ->> 0)) as own (user_id)
                union all
                select m.user_id from merges m where m.app_id = app and m.into_user_id = bought ->> 0) person
            cross join lateral (
                select granted_at as given_at, purchase_key, quantity from grants
                where app_id = app and user_id = person.user_id and product_id = bought ->> 1
                    and binding_source <> 'shared'
                    and coalesce(item, case when (bought ->> 3)::boolean then bought ->> 2 end) = bought ->> 2
                    and granted_at >= since
                union all
                select purchased_at, transaction_id, 1 from imported_grants
                where app_id = app and user_id = person.user_id and product_id = bought ->> 1
                    and (bought ->> 3)::boolean and purchased_at >= since) g
            cross join generate_series(1, g.quantity) as unit
            order by 1, 2 limit places) u
        on conflict do nothing;
    return found;
end $$;

-- As in 0009_limits.sql.
create or replace function take_limit_place(app text, name text, owner text, on_day date, purpose text, places integer)
returns boolean language plpgsql as $$
declare
    taken integer;
    bought jsonb;
begin
    if name in ('item_day', 'item_month', 'item_ever') then
        bought := owner::jsonb;
        owner := encode(sha256(convert_to((bought - 3)::text, 'UTF8')), 'hex');
    end if;
    loop
        perform from limit_places p
            where p.app_id = app and p.limit_name = name and p.holder = owner and p.day = on_day
                and p.taken_for = purpose;
        if found then
            return true;
        end if;
        select p.n into taken from limit_places p
            where p.app_id = app and p.limit_name = name and p.holder = owner and p.day = on_day
            order by p.n desc limit 1;
        if taken is null then
            continue when enter_former_places(app, name, owner, on_day, bought, places);
        end if;
        if coalesce(taken, 0) >= places then
            return false;
        end if;
        insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
            values (app, name, owner, on_day, coalesce(taken, 0) + 1, purpose) on conflict do nothing;
        if found then
            return true;
        end if;
    end loop;
end $$;

-- Retention looks again at kept payloads whose time has come, and deletes those without a reason to stay. The first
-- part of a step.
create function review_kept_payloads(apps_asking_by_id text[], batch integer, out judged integer, out released integer)
language plpgsql as $$
declare
    ids uuid[];
begin
    judged := 0; released := 0;
    select array_agg(k.receipt_id) into ids from (
        select due.receipt_id from kept_payloads due where due.kept_until <= now()
        order by due.kept_until limit batch for update skip locked) k;
    if ids is null then return; end if;
    perform enter_payload_chains(ids, apps_asking_by_id);
    update kept_payloads k set reason = w.reason, kept_until = w.kept_until
    from payload_reasons(ids, apps_asking_by_id) w where k.receipt_id = w.receipt_id;
    -- Every reason that still holds ends later than now.
    delete from kept_payloads k where k.receipt_id = any(ids) and k.kept_until <= now();
    get diagnostics released = row_count;
    delete from kept_chains c where c.receipt_id = any(ids)
        and not exists (select from kept_payloads k where k.receipt_id = c.receipt_id);
    judged := cardinality(ids);
end $$;

-- Retention empties the default partition: what must stay is kept. The second part of a step.
create function empty_default_payloads(first_kept_day date, apps_asking_by_id text[], batch integer,
    out judged integer, out kept integer)
language plpgsql as $$
declare
    ids uuid[];
begin
    judged := 0; kept := 0;
    select array_agg(p.receipt_id) into ids from (
        select d.receipt_id from payloads_default d where d.received_on < first_kept_day
        order by d.received_on limit batch) p;
    if ids is null then return; end if;
    kept := keep_payloads('payloads_default', ids, apps_asking_by_id);
    delete from payloads_default d where d.receipt_id = any(ids) and d.received_on < first_kept_day;
    judged := cardinality(ids);
end $$;

-- Retention judges the payloads of the oldest day that is due, and drops the day when all of them are judged. The last
-- part of a step.
create function judge_oldest_payloads(first_kept_day date, apps_asking_by_id text[], batch integer,
    out judged integer, out kept integer, out dropped_day date)
language plpgsql as $$
declare
    ids uuid[];
    place text;
    day_due date;
begin
    judged := 0; kept := 0;
    select d.day, d.name into day_due, place from payload_days d where d.day < first_kept_day order by d.day limit 1;
    if place is null then return; end if;
    execute format('select array_agg(receipt_id) from (select receipt_id from %I where receipt_id > $1
        order by receipt_id limit $2) p', place) into ids using coalesce(
        (select p.judged_to from payload_passes p where p.day = day_due), '00000000-0000-0000-0000-000000000000'),
        batch;
    if ids is not null then
        kept := keep_payloads(place, ids, apps_asking_by_id);
        insert into payload_passes as p (day, judged_to) values (day_due, ids[cardinality(ids)])
        on conflict (day) do update set judged_to = excluded.judged_to;
        judged := cardinality(ids);
    end if;
    if judged = batch then return; end if;
    begin
        execute format('drop table %I', place);
        delete from payload_passes p where p.day = day_due;
        dropped_day := day_due;
    exception when lock_not_available then
        -- A reader holds its lock for long. What was judged stays judged.
        null;
    end;
end $$;

-- One step of retention, as 0003_payloads.sql tells: its three parts, one after the other.
create or replace function retain_payloads(keep_days integer, apps_asking_by_id text[], batch integer)
returns table (judged integer, kept integer, released integer, dropped_day date, is_more boolean)
language plpgsql security definer set lock_timeout = '100ms' as $$
declare
    -- Whatever the caller asks for, today and yesterday stay.
    first_kept_day constant date := (now() at time zone 'UTC')::date - greatest(keep_days, 1);
    part record;
begin
    judged := 0; kept := 0; released := 0; is_more := false;
    if not pg_try_advisory_xact_lock(hashtext('makegood.payload_retention')) then return next; return; end if;

    part := review_kept_payloads(apps_asking_by_id, batch);
    judged := part.judged; released := part.released;
    is_more := part.judged = batch;

    part := empty_default_payloads(first_kept_day, apps_asking_by_id, batch);
    judged := judged + part.judged; kept := kept + part.kept; released := released + part.judged - part.kept;
    is_more := is_more or part.judged = batch;

    part := judge_oldest_payloads(first_kept_day, apps_asking_by_id, batch);
    judged := judged + part.judged; kept := kept + part.kept; released := released + part.judged - part.kept;
    dropped_day := part.dropped_day;
    is_more := is_more or part.judged = batch or part.dropped_day is not null;
    return next;
end $$;

-- By a merge the poster is the owner of what the post granted to the other account: the receipt says so, and nothing
-- needs to be judged.
create function own_merged_grants(receipt uuid, poster text) returns void language plpgsql as $$
begin
    update outcomes o set reason = null from grants g
    where o.receipt_id = receipt and o.state = 'granted' and o.reason = 'owned_by_another_user'
      and g.transaction_id = o.transaction_id and poster = coalesce((
        select m.into_user_id from merges m where m.app_id = g.app_id and m.user_id = g.user_id), g.user_id);
    update receipts r set reason = null
    where r.id = receipt and r.state = 'granted' and r.reason = 'owned_by_another_user' and not exists (
        select from outcomes o
        where o.receipt_id = receipt and o.state = 'granted' and o.reason = 'owned_by_another_user');
end $$;

-- The purchases of an ended receipt that another user had when it was judged, and about which the answer may differ by
-- now: the accounts were merged, the app's policy `moves` what is shown, or the chain has moved. Null: there are none.
create function purchases_to_claim(claim receipts, is_merged boolean, moves boolean, slack interval) returns text[]
language plpgsql as $$
begin
    return (
        select array_agg(o.transaction_id)
        from outcomes o
        left join transactions t on t.transaction_id = o.transaction_id and t.app_id = claim.app_id
        where o.receipt_id = claim.id and o.state = 'already_granted' and o.reason = 'owned_by_another_user'
          and (is_merged
            or moves and claim.judged_at < now() - interval '1 minute'
              and (t.kind is null or t.kind in ('Auto-Renewable Subscription', 'Non-Consumable'))
            or exists (
              select from ownerships w
              where w.app_id = claim.app_id and w.environment = t.environment
                and w.original_transaction_id = t.original_transaction_id and w.move > 0
                and w.decided_at > claim.judged_at - slack)));
end $$;

-- As in 0001_receipts.sql.
create or replace function reopen_claim(receipt uuid, proof text, moves boolean) returns boolean
language plpgsql security definer as $$
declare
    -- Two statements that do not see each other may overlap for so long.
    slack constant interval := '10 seconds';
    claim receipts;
    poster text;
    is_merged boolean;
    refused text[];
begin
    select * into claim from receipts r
    where r.id = receipt and r.state in ('granted', 'already_granted') for no key update skip locked;
    if not found then return false; end if;
    poster := coalesce(claim.user_id, (
        select o.user_id from orders o where o.id::text = lower(claim.order_id) and o.app_id = claim.app_id));
    poster := coalesce((
        select m.into_user_id from merges m where m.app_id = claim.app_id and m.user_id = poster), poster);
    -- The poster is unknown or erased: nothing moves to a tombstone.
    if poster is null or poster ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then return false; end if;
    is_merged := exists (
        select from merges m
        where m.app_id = claim.app_id and m.into_user_id = poster and m.merged_at > claim.judged_at - slack);
    if is_merged then
        perform own_merged_grants(receipt, poster);
    end if;
    refused := purchases_to_claim(claim, is_merged, moves, slack);
    if refused is null then return false; end if;
    if claim.kind <> 'identifier' then
        perform keep_reopened_payloads(array[receipt]);
        insert into kept_payloads (receipt_id, body, reason, kept_until)
        select receipt, proof, 'open', now() + interval '1 day'
        where sha256(convert_to(proof, 'UTF8')) = claim.payload_sha256
        on conflict do nothing;
        if not exists (select from kept_payloads k where k.receipt_id = receipt) then return false; end if;
    end if;
    -- Makes verdicts from before stale.
    update receipts r set state = 'received', reason = null, settled_at = null, due_at = now(), rescues = 0,
        attempt = r.attempt + 1, claimed_at = now()
    where r.id = receipt;
    update outcomes o set state = 'open', reason = null, reasons = null
    where o.receipt_id = receipt and o.transaction_id = any(refused);
    return true;
end $$;

-- The chains whose turn to be asked about has come, by app and environment, as the index `chains_to_ask` has them: the
-- first 1,000 of those that were never asked about, and of the others.
create view due_subscriptions as
select a.app_id, d.environment, d.due, d.oldest_due_at
from apps a
cross join lateral (
    select e.environment, least(count(c.at), 1000) as due, min(c.at) as oldest_due_at
    from (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
    left join (
        (select environment, coalesce(ask_at, expires_at) as at from chains
         where app_id = a.app_id and least(asks, 1) = 0 and coalesce(ask_at, expires_at) <= now()
            and coalesce(ask_at, expires_at) < 'infinity'
            and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'))
         order by coalesce(ask_at, expires_at) limit 1000)
        union all
        (select environment, coalesce(ask_at, expires_at) from chains
         where app_id = a.app_id and least(asks, 1) = 1 and coalesce(ask_at, expires_at) <= now()
            and coalesce(ask_at, expires_at) < 'infinity'
            and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'))
         order by coalesce(ask_at, expires_at) limit 1000)) c using (environment)
    group by e.environment) d;
comment on view due_subscriptions is
    'A row: an app and environment, and how many of its chains are due to be asked about, of which 1,000 are counted.';

-- The customers whose turn has come in the sweeps `customer` and `refund`, by app and environment: the first 1,000.
create view due_customers as
select d.sweep, a.app_id, e.environment, d.due, d.oldest_due_at, d.passed_over
from apps a
cross join (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
cross join lateral (
    select 'customer' collate "C" as sweep, count(*) as due, min(at) as oldest_due_at, (
        select coalesce(sum(passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment
            and (passed_over > 0 or refunds_passed_over > 0)) as passed_over
    from (
        (select due_at as at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is not null and due_at <= now()
         order by due_at limit 1000)
        union all
        (select due_at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is null and due_at <= now()
         order by due_at limit 1000) limit 1000) w
    union all
    select 'refund', count(*), min(at), (
        select coalesce(sum(refunds_passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment and (passed_over > 0 or refunds_passed_over > 0))
    from (
        select refunds_due_at as at from history_walks
        where app_id = a.app_id and environment = e.environment and refunds_due_at <= now()
        order by refunds_due_at limit 1000) r) d;
comment on view due_customers is
    'A row: a sweep over customers, an app and environment, and how many are due, of which 1,000 are counted.';

-- The view is restated whole, as PostgreSQL demands: the due subscriptions and customers have views of their own.
create or replace view v_sweeps as
select s.sweep, s.app_id, s.environment, s.due, s.oldest_due_at,
    greatest(0, coalesce(extract(epoch from now() - s.oldest_due_at), 0))::float8 as lag_seconds,
    coalesce(s.progress,
        case s.due when 0 then 'nothing is due' when 1000 then '1000 or more due' else s.due || ' due' end) as progress,
    s.last_complete_at, s.passed_over, coalesce(k.catches, 0) as catches
from (
select 'notification_history' collate "C" as sweep, s.app_id, s.environment,
    coalesce(sum(w.due), 0)::bigint as due, least(min(w.oldest), min(d.at)) as oldest_due_at,
    coalesce(sum(w.windows), 0) || ' windows open, ' || coalesce(sum(w.pages), 0) || ' pages read' as progress,
    min(s.completed_at) as last_complete_at, coalesce(sum(w.passed_over), 0)::bigint as passed_over
from notification_sweeps s
left join lateral (
    select count(*) as windows, count(*) filter (where due_at <= now()) as due, sum(pages) as pages,
        sum(passed_over) as passed_over, min(made_at) filter (where walked_at is null) as oldest
    from notification_windows
    where app_id = s.app_id and environment = s.environment and bundle_id = s.bundle_id) w on true
left join lateral (
    select least(s.failures_due_at, s.all_due_at) as at where least(s.failures_due_at, s.all_due_at) <= now()) d on true
group by s.app_id, s.environment
union all
select 'subscription', app_id, environment, due, oldest_due_at, null, null, 0 from due_subscriptions
union all
select sweep, app_id, environment, due, oldest_due_at, null, null, passed_over from due_customers) s
left join (
    select app_id, environment, net, count(*) as catches from net_catches
    where caught_at > now() - interval '1 day' group by 1, 2, 3) k
    on (k.app_id, k.environment, k.net) = (s.app_id, s.environment, s.sweep);

-- As at the end of 0001_receipts.sql, and `take_limit_place` and its part keep the rights and the search_path of their
-- callers. The roles that take places call the part too, before `makegood migrate` has renewed the rights.
do $$
declare
    signature text;
    taker text;
begin
    foreach signature in array array[
        'say_line(uuid, text, text, text, text, jsonb, jsonb, jsonb, integer)',
        'line_of_post(uuid, timestamptz, text, text, text, text, jsonb, jsonb, jsonb)',
        'line_to_judge(receipt_lines, receipt_lines)', 'keep_line(receipt_lines, receipt_lines, boolean, integer)',
        'retain_payloads(integer, text[], integer)', 'review_kept_payloads(text[], integer)',
        'empty_default_payloads(date, text[], integer)', 'judge_oldest_payloads(date, text[], integer)',
        'reopen_claim(uuid, text, boolean)', 'own_merged_grants(uuid, text)',
        'purchases_to_claim(receipts, boolean, boolean, interval)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
    revoke execute on function enter_former_places(text, text, text, date, jsonb, integer) from public;
    for taker in
        select a.grantee::regrole::text from pg_proc p cross join aclexplode(p.proacl) a
        where p.oid = 'take_limit_place(text, text, text, date, text, integer)'::regprocedure and a.grantee <> 0
    loop
        execute format('grant execute on function enter_former_places(text, text, text, date, jsonb, integer) to %s',
            taker);
    end loop;
end $$;
