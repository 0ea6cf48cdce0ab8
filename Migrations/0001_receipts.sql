-- Why: a receipt is one proof that one user submitted. Ingest writes its row before it answers, and no row is ever
--   deleted: the row is the truth, and messages only point at it. This migration holds the receipts, what later posts
--   of the same proof say of them, the tries at Apple that ended no receipt, and an independent count of received
--   receipts. The services work with roles that own nothing and delete nothing (`makegood roles`). Where a service
--   needs the owner's rights for one thing, a function does this one thing.
--   Every text column of this schema compares by bytes (`collate "C"`): an index that follows the rules of a language
--   would be wrong after a move to another C library.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

create table receipts (
    id uuid primary key,                        -- derived from the submission: the same submission is the same row
    app_id text collate "C" not null,
    user_id text collate "C",                   -- null: only an order names the user
    order_id text collate "C",
    kind text collate "C" not null,             -- what was submitted as proof
    lane text collate "C" not null,             -- which queue it waits in
    transaction_id text collate "C",            -- the transaction that the poster meant
    original_transaction_id text collate "C",
    is_vouched boolean not null,                -- a trusted backend (scope claim) vouches for the user
    details jsonb not null,                     -- everything else that was sent, unknown fields included
    payload_sha256 bytea not null,              -- outlives the payload
    state text collate "C" not null default 'received',
    reason text collate "C",
    attempt integer not null default 0,         -- tries at Apple that counted; also the guard of every verdict
    rescues integer not null default 0,         -- times a scheduler published it again since the last verdict
    received_at timestamptz not null default now(),
    judged_at timestamptz,                      -- the last verdict, final or not
    due_at timestamptz,                         -- open rows: when a scheduler publishes it again if nobody settled it
    settled_at timestamptz,
    installation_id text collate "C",           -- of the post's token; finds orders of the same device
    target jsonb,                               -- where in the game goods without an order go
    declared jsonb,                             -- what the post says was bought, to be compared with Apple's facts
    claimed_at timestamptz,                     -- the last post for which a refused claim is judged anew; null: none
    lines integer not null default 0,           -- how often a later post said something else; also guards every verdict
    constraint receipts_kind check (kind in ('signed_transaction', 'receipt', 'identifier')),
    -- Big receipts wait in `bulk`, so that a user who shows all past purchases does not delay the purchase of another.
    constraint receipts_lane check (lane in ('local', 'apple', 'bulk')),
    constraint receipts_state
        check (state in ('received', 'held', 'parked', 'granted', 'already_granted', 'rejected')),
    constraint receipts_ended
        check ((state in ('granted', 'already_granted', 'rejected')) = (settled_at is not null)),
    constraint receipts_due check ((settled_at is null) = (due_at is not null)),
    constraint receipts_poster check (user_id is not null or order_id is not null)
);
-- The scheduler finds due rows here. The predicate differs from the guard of `ledger.settle` (settled_at is null).
-- With the same predicate the planner would look up a receipt by its id through this whole index.
create index receipts_due on receipts (lane, app_id, due_at) where due_at is not null;
create index receipts_by_user on receipts (app_id, user_id, received_at);
-- A BRIN index covers new pages only after a vacuum, which comes after a fifth of the table was written. Until then
-- every query for recent rows would read all new pages. `autosummarize` makes PostgreSQL summarize them sooner. All
-- BRIN indexes of this schema have it.
create index receipts_received_at on receipts using brin (received_at) with (autosummarize = on);
create index receipts_rejected on receipts (app_id, reason, settled_at) where state = 'rejected';
-- A client that polls an order sees the receipts that named it. The id is text, because a client may write anything.
create index receipts_of_order on receipts (lower(order_id)) where order_id is not null;

-- A declaration is erased with the details that it was taken from.
create function forget_declarations() returns trigger language plpgsql as $$
begin
    new.declared := null;
    return new;
end $$;
create trigger receipts_forget_declarations before update of details on receipts
    for each row when (new.declared is not null and new.details = '{}') execute function forget_declarations();

-- What the posts of a receipt say, the first post included. One proof of one user is one receipt, however many orders,
-- items and transactions its posts name: each further post adds a line to the receipt, up to a limit, and no row to
-- judge. A receipt whose posts all said the same has no line.
create table receipt_lines (
    receipt_id uuid not null,
    line uuid not null,                         -- derived from what the post says
    said_at timestamptz not null default now(), -- the last time that a post said it
    order_id text collate "C",
    transaction_id text collate "C",            -- the transaction that the post meant
    original_transaction_id text collate "C",
    installation_id text collate "C",           -- of the post's token
    target jsonb,
    declared jsonb,
    details jsonb not null,                     -- everything that was sent; of the first post it is in receipts
    primary key (receipt_id, line)
);
create index receipt_lines_of_order on receipt_lines (lower(order_id)) where order_id is not null;

-- Adds to a receipt what a later post of the same proof says. Ingest calls it, because ingest may not change a row of
-- receipts. A field that a post leaves out removes nothing: StoreKit delivers a purchase again without the app's
-- fields. The new line alone counts if it means another purchase of the receipt, or if an outcome is held because of
-- what an earlier post said. Answers:
--   same   the post says nothing new; a held or parked row becomes due, at most once a minute
--   taken  an open row is judged by the line and becomes due, at most once a minute; an ended row keeps its answer, and
--          only keeps the line
--   full   the receipt has as many lines as it may have; the line is not kept
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
    -- The function stores nothing more about an erased user.
    if not found or r.user_id ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        return 'same';
    end if;
    if r.settled_at is not null then
        -- The answer to the poster is about the transaction that was named last.
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
            -- The meant transaction decides nothing if neither the receipt nor the post says anything about one
            -- purchase alone.
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
    -- A post without fields of its own is always taken: it frees a purchase that is held because of an earlier post.
    if coalesce(ordr, trans, orig, inst, tgt::text, decl::text) is not null
        and not exists (select from receipt_lines where receipt_id = receipt and line = said)
        and greatest((select count(*) from receipt_lines where receipt_id = receipt), 1) >= lines_max
    then
        return 'full';
    end if;
    if r.settled_at is null then
        -- A held or parked row is due at once for its first line. A received row is being tried as a rule, so it waits.
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

-- Empties the lines of a receipt together with its details, and removes the user from the lines together with the
-- user's name.
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

-- Opens a receipt again whose poster was told that another user has a purchase, where the answer may differ by now: the
-- chain has moved since, the poster's account was merged with another one, or the app's policy `moves` what is shown
-- (then at most once a minute). Without this function the same bytes would get the old answer for ever. `proof` is the
-- bytes of the post; the function stores them where the row's own are gone. Ingest calls it, because ingest may not
-- write a state. Returns whether the receipt is open again.
create function reopen_claim(receipt uuid, proof text, moves boolean) returns boolean
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
        -- By the merge the poster is the owner of what the post granted to the other account: nothing needs to be
        -- judged.
        update outcomes o set reason = null from grants g
        where o.receipt_id = receipt and o.state = 'granted' and o.reason = 'owned_by_another_user'
          and g.transaction_id = o.transaction_id and poster = coalesce((
            select m.into_user_id from merges m where m.app_id = g.app_id and m.user_id = g.user_id), g.user_id);
        update receipts r set reason = null
        where r.id = receipt and r.state = 'granted' and r.reason = 'owned_by_another_user' and not exists (
            select from outcomes o
            where o.receipt_id = receipt and o.state = 'granted' and o.reason = 'owned_by_another_user');
    end if;
    select array_agg(o.transaction_id) into refused
    from outcomes o
    left join transactions t on t.transaction_id = o.transaction_id and t.app_id = claim.app_id
    where o.receipt_id = receipt and o.state = 'already_granted' and o.reason = 'owned_by_another_user'
      and (is_merged
        or moves and claim.judged_at < now() - interval '1 minute'
          and (t.kind is null or t.kind in ('Auto-Renewable Subscription', 'Non-Consumable'))
        or exists (
          select from ownerships w
          where w.app_id = claim.app_id and w.environment = t.environment
            and w.original_transaction_id = t.original_transaction_id and w.move > 0
            and w.decided_at > claim.judged_at - slack));
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

-- Tries at Apple that counted and did not end the receipt.
create table attempts (
    receipt_id uuid not null,
    attempt integer not null,
    at timestamptz not null default now(),
    reason text collate "C",
    service text collate "C",
    environment text collate "C",
    http_status integer,
    code bigint,
    duration_ms integer,
    primary key (receipt_id, attempt)
);
create index attempts_at on attempts using brin (at) with (autosummarize = on);

-- The independent side of the conservation check: the insert itself counts what was received.
create table tallies (
    app_id text collate "C" not null,
    day date not null,
    source text collate "C" not null,
    shard integer not null,                     -- by connection, so that writers do not wait for each other
    received bigint not null,
    primary key (app_id, day, source, shard)
);

-- Gives each function with its owner's rights a fixed search_path, so that no caller can put another table in its way:
-- the schema of this installation, then temporary tables, which would otherwise come first. By default everybody may
-- execute a function; this block revokes that, and `makegood roles` grants each function to the roles that need it.
-- Each migration ends with these two steps for its own functions.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'say_line(uuid, text, text, text, text, jsonb, jsonb, jsonb, integer)', 'reopen_claim(uuid, text, boolean)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
    end loop;
end $$;
revoke execute on function forget_declarations(), forget_lines(), reopen_claim(uuid, text, boolean),
    say_line(uuid, text, text, text, text, jsonb, jsonb, jsonb, integer) from public;
