-- serves: 1
-- Why: one proof of one user was as many rows as he named orders, items and transactions beside it: twenty thousand posts of one
--   proof were twenty thousand rows to judge. It is one row now, and what a later post says is a bounded line of it.
-- Locks: access exclusive on receipts for a moment, twice: a constant default rewrites nothing, and a trigger. Cost: nothing for what
--   is posted once; two small rows for a receipt of which something else is said, one for each thing more.
--   The ids of receipts change: one from before that its client posts again is a second row, and stays open beside it until it
--   ends; nothing is given twice, and a bare id may be asked about again.
--   Programs from before know no lines. An ingest from before makes each order a row of its own, which is never given twice; a
--   worker from before writes a verdict over older lines, so that the newest counts when the row comes back. Replace the
--   workers first.

-- How often something else was said of it; part of the guard of every verdict.
alter table receipts add column lines integer not null default 0;

-- What was said of a receipt, the first post's words among it. A receipt of which nothing else was said has none.
create table receipt_lines (
    receipt_id uuid not null,
    line uuid not null,                         -- follows from what it says
    said_at timestamptz not null default now(), -- the last time
    order_id text,
    transaction_id text,                        -- the transaction meant
    original_transaction_id text,
    installation_id text,                       -- of the token it came with
    target jsonb,
    declared jsonb,
    details jsonb not null,                     -- everything that was sent; the first post's stand in receipts
    primary key (receipt_id, line)
);
create index receipt_lines_of_order on receipt_lines (lower(order_id)) where order_id is not null;

-- Says of a receipt what a post of the same proof says. Called by whoever posts, who has no right to change a row himself.
-- What is not said takes nothing away: StoreKit redelivers a purchase without the app's words. The new line alone counts where it
-- means another purchase of the receipt, and where what was said before is what holds a purchase. Answers:
--   same   nothing else is said: a held or parked row becomes due, at most once a minute
--   taken  an open row goes by it and becomes due, at most once a minute; an ended one has it among its lines and stays as it is
--   full   the receipt has as many lines as it may have: the line is not kept
create function say_line(receipt uuid, ordr text, trans text, orig text, inst text, tgt jsonb, decl jsonb, det jsonb,
    lines_max integer)
returns text language plpgsql security definer as $$
declare
    r record;
    n record;
    said uuid := md5(jsonb_build_array(ordr, trans, orig, inst, tgt, decl)::text)::uuid;
    is_alone boolean;
    is_due boolean;
    next_at timestamptz;
begin
    select user_id, order_id, transaction_id, original_transaction_id, installation_id, target, declared, state, rescues, lines,
        received_at, judged_at, due_at, settled_at
        into r from receipts where id = receipt for no key update;
    -- Nothing more is stored of who was erased.
    if not found or r.user_id ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        return 'same';
    end if;
    if r.settled_at is not null then
        -- The answer is about the transaction that was named last.
        update receipts set transaction_id = trans where id = receipt and trans <> coalesce(transaction_id, '');
        if ordr is null or ordr = r.order_id
            or exists (select from receipt_lines where receipt_id = receipt and order_id = ordr)
        then
            return 'same';
        end if;
    else
        is_alone := coalesce(trans <> r.transaction_id, false) or exists (
            select from outcomes o where o.receipt_id = receipt and o.state = 'held'
                and o.reason in ('foreign_order', 'foreign_record', 'token_disputed'));
        select case when is_alone then ordr else coalesce(ordr, r.order_id) end as order_id,
            case when is_alone then trans else coalesce(trans, r.transaction_id) end as transaction_id,
            case when is_alone then orig else coalesce(orig, r.original_transaction_id) end as original_transaction_id,
            case when is_alone then inst else coalesce(inst, r.installation_id) end as installation_id,
            case when is_alone then tgt else coalesce(tgt, r.target) end as target,
            case when is_alone or r.declared is null then decl else r.declared || coalesce(decl, '{}') end as declared
            into n;
        if (n.order_id, n.transaction_id, n.original_transaction_id, n.installation_id, n.target, n.declared)
            is not distinct from
            (r.order_id, r.transaction_id, r.original_transaction_id, r.installation_id, r.target, r.declared)
            -- Which transaction is meant decides nothing where nothing is said of one alone.
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
    end if;
    -- What says nothing of its own always comes in: it is how a held purchase is freed of what was said of it.
    if coalesce(ordr, trans, orig, inst, tgt::text, decl::text) is not null
        and not exists (select from receipt_lines where receipt_id = receipt and line = said)
        and greatest((select count(*) from receipt_lines where receipt_id = receipt), 1) >= lines_max
    then
        return 'full';
    end if;
    if r.settled_at is null then
        -- One that is held hears of the first line at once. One that is being tried is on its way as a rule.
        next_at := greatest(now(), case when r.state = 'received' then coalesce(r.judged_at, r.received_at) + interval '1 minute' end,
            (select max(said_at) + interval '1 minute' from receipt_lines where receipt_id = receipt));
    end if;
    if r.lines = 0 then
        insert into receipt_lines
        values (receipt, md5(jsonb_build_array(r.order_id, r.transaction_id, r.original_transaction_id, r.installation_id,
                r.target, r.declared)::text)::uuid, r.received_at, r.order_id, r.transaction_id, r.original_transaction_id,
            r.installation_id, r.target, r.declared, '{}')
        on conflict do nothing;
    end if;
    insert into receipt_lines values (receipt, said, now(), ordr, trans, orig, inst, tgt, decl, det)
    on conflict (receipt_id, line) do update set said_at = now();
    if r.settled_at is not null then
        update receipts set lines = r.lines + 1 where id = receipt;
    else
        update receipts set lines = r.lines + 1, order_id = n.order_id, transaction_id = n.transaction_id,
            original_transaction_id = n.original_transaction_id, installation_id = n.installation_id, target = n.target,
            declared = n.declared,
            due_at = least(due_at, next_at)
        where id = receipt;
    end if;
    return 'taken';
end $$;

-- What was said is erased with the details, or with the name of whoever said it.
create function forget_lines() returns trigger language plpgsql as $$
begin
    if new.details = '{}' then
        update receipt_lines set line = gen_random_uuid(), installation_id = null, target = null, declared = null, details = '{}'
        where receipt_id = new.id;
    else
        update receipt_lines set installation_id = null, details = details - 'uid' - 'client' - 'installationId'
        where receipt_id = new.id;
    end if;
    return null;
end $$;
create trigger receipts_forget_lines after update of details, user_id on receipts
    for each row when (new.lines > 0 and (new.details = '{}' or new.user_id is distinct from old.user_id))
    execute function forget_lines();

-- As in 0041; a receipt whose lines alone say something is emptied as well.
create or replace function erase_protected_user(app text, key text, actor text) returns bigint
language sql security definer as $$
    with erased as (
        update users set sealed = null, key_id = null, erased_at = coalesce(erased_at, now())
        where app_id = app and user_key = key
        returning user_key),
    emptied as (
        update receipts r set details = '{}', installation_id = null, target = null
        where r.app_id = app and r.user_id in (select user_key from erased) and r.settled_at is not null
          and (r.details <> '{}' or r.installation_id is not null or r.target is not null
            or r.lines > 0 and exists (select from receipt_lines l where l.receipt_id = r.id
              and (l.details <> '{}' or coalesce(l.target, l.declared) is not null or l.installation_id is not null)))
        returning r.id),
    orders_emptied as (
        update orders o set details = '{}', installation_id = null, idempotency_key = null,
            target = case when (select true from grants g where g.order_id = o.id) then '{}'
                when (select true from grants g where g.transaction_id = o.reserved_for) then '{}' else o.target end
        where o.app_id = app and o.user_id in (select user_key from erased)),
    events_emptied as (
        update events e set body = e.body - 'target'
        where e.app_id = app and e.user_id in (select user_key from erased) and e.body ? 'target'),
    reports_emptied as (
        update client_reports r set message = null, details = '{}'
        where r.app_id = app and r.user_id in (select user_key from erased)),
    audited as (
        insert into audits (actor, action, details)
        select actor, 'users.erase',
            jsonb_build_object('app', app, 'user', user_key, 'receipts', (select count(*) from emptied))
        from erased)
    select count(*) from erased
$$;

do $$
begin
    execute format('alter function say_line(uuid, text, text, text, text, jsonb, jsonb, jsonb, integer) set search_path = %I, pg_temp',
        current_schema());
    execute format('alter function erase_protected_user(text, text, text) set search_path = %I, pg_temp', current_schema());
    revoke execute on function say_line(uuid, text, text, text, text, jsonb, jsonb, jsonb, integer), forget_lines() from public;
end $$;
