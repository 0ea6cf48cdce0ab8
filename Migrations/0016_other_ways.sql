-- serves: 12
-- Why: three things that support, an operator or another service must know. A repeated post leaves a trace (S1-32). A
--   paid purchase that waits too long is named (S1-33). An order of another way of payment than Apple's ends by what its
--   own service reports (S3-70).
-- Locks: none on a table that is there: everything is new.
-- Cost: none.

-- The posts of a receipt after the first one. The rows are apart from `receipts`, because a repeated post must not keep
-- a worker from the row of its receipt. Ingest counts the repeats of a batch in one statement, after it has stored the
-- batch: a process that is killed in between loses the count, never a post.
create table repeated_posts (
    receipt_id uuid primary key,
    posts bigint not null,
    posted_at timestamptz not null default now(),
    constraint repeated_posts_some check (posts > 0)
);
comment on table repeated_posts is 'A row: a receipt that was posted more than once. It holds no proof and no user.';
comment on column repeated_posts.posts is 'How often the same proof of the same user came after the first post.';
comment on column repeated_posts.posted_at is 'When it came last.';

-- The end of an order whose way of payment is not Apple's. Only `end_order` writes it. An order of Apple's has ended
-- if a grant names it.
create table order_endings (
    order_id uuid primary key,
    state text collate "C" not null,
    reference text collate "C",
    reported_at timestamptz not null default now(),
    constraint order_endings_state check (state in ('paid', 'closed', 'refunded'))
);
comment on table order_endings is 'A row: an order of another way of payment that was paid, closed or refunded.';
comment on column order_endings.reference is 'The number of the payment at its own service, as that service reports it.';
comment on column order_endings.reported_at is 'When the state was reported.';

-- Writes what a payment service reports of its order, and the event for the app's backend. A payment that comes after
-- the order was closed counts, because the user has paid. Answers:
--   ended     the state is new, and the event is written
--   known     the order was in this state before
--   granted   an Apple purchase was granted by the order, which was not paid elsewhere before
--   open, paid, closed, refunded   the order's state, from which the reported state does not follow
--   unknown   there is no such order
create function end_order(ordr uuid, ending text, ref text, event uuid, told jsonb) returns text
language plpgsql security definer as $$
declare
    o record;
    before text;
begin
    -- Two reports of one order come one after the other.
    select app_id, user_id into o from orders where id = ordr for no key update;
    if not found then return 'unknown'; end if;
    before := coalesce((select e.state from order_endings e where e.order_id = ordr), 'open');
    -- What was paid elsewhere before can be given back elsewhere, whatever Apple's purchase did with the order since.
    if before in ('open', 'closed') and (select true from grants where order_id = ordr) then return 'granted'; end if;
    if before = ending then return 'known'; end if;
    if (before, ending) not in (('open', 'paid'), ('closed', 'paid'), ('open', 'closed'), ('paid', 'refunded')) then
        return before;
    end if;
    insert into order_endings as e (order_id, state, reference) values (ordr, ending, ref)
    on conflict (order_id) do update set state = excluded.state, reference = coalesce(excluded.reference, e.reference),
        reported_at = now();
    -- An event of an order has no purchase: the order stands in the place of the purchase and of the receipt.
    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
    values (event, o.app_id, 'order.' || ending, o.user_id, ordr::text, ordr, told)
    on conflict (transaction_id, event_id) do nothing;
    return 'ended';
end $$;

create view v_waiting_purchases as
select r.app_id, coalesce(t.environment, '') as environment, t.product_id,
    coalesce(o.transaction_id, r.transaction_id) as transaction_id, r.id as receipt_id, r.user_id,
    r.state as receipt_state, coalesce(o.reason, r.reason, '') as reason,
    case when coalesce(o.reason, r.reason, '') in ('unclaimed_yet', 'token_disputed') then 'owner' else 'any' end
        as line,
    coalesce(r.claimed_at, r.received_at) as since,
    extract(epoch from now() - coalesce(r.claimed_at, r.received_at))::float8 as waited_seconds,
    -- What is held needs a person or a setting. The alarm has told it for a week by then.
    r.state <> 'held' or coalesce(r.claimed_at, r.received_at) > now() - interval '7 days' as raises_alarm
from receipts r
left join outcomes o on o.receipt_id = r.id and o.state in ('open', 'held')
left join transactions t on t.transaction_id = o.transaction_id and t.app_id = r.app_id
where r.due_at is not null
    -- A receipt that was never judged may hold a purchase. Of one that was judged, each purchase that waits.
    and (o.receipt_id is not null or not exists (select from outcomes k where k.receipt_id = r.id))
    -- An id alone proves no payment, and an empty receipt holds none.
    and (r.kind <> 'identifier' or r.is_vouched)
    and coalesce(o.reason, r.reason, '') not in ('no_transaction_yet', 'possession_missing', 'sandbox', 'shadow')
    and coalesce(t.environment, 'Production') = 'Production' and t.revoked_at is null
    and (o.transaction_id is null or not exists (select from grants g where g.transaction_id = o.transaction_id))
    and not exists (select from apps a where a.app_id = r.app_id and a.live_since is null);
comment on view v_waiting_purchases is
    'Paid purchases that wait (S1-33), from the first second on. A row: a purchase of an open receipt, or a receipt that was never judged (no product_id). Nothing of the sandbox, of apps in shadow and of bare ids. line: owner, where a day passes for its owner; any. Seconds since the post. raises_alarm: false of what is held for more than 7 days.';

create view v_order_endings as
select e.order_id, o.app_id, o.user_id, o.product_id, o.channel, e.state, e.reference, o.placed_at, e.reported_at
from order_endings e cross join lateral (
    select app_id, user_id, product_id, channel, placed_at from orders where id = e.order_id offset 0) o;
comment on view v_order_endings is
    'A row: an order of another way of payment than Apple''s, with the state that its own service reported last.';

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function end_order(uuid, text, text, uuid, jsonb) set search_path = %I, pg_temp',
        current_schema());
end $$;
revoke execute on function end_order(uuid, text, text, uuid, jsonb) from public;
