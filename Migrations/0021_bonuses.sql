-- serves: 1
-- Why: a bonus is given once per user and period, decided where its goods are granted (design.md 5.2); what a post says of
--   its purchase says which item of a shared product it was (S3-14), and is compared with Apple's word (S0-1, S0-8); that
--   an app has orders is known with its first one, not a second later.
-- Locks: share on double_charges while it is read once, which is small; share row exclusive on orders, user_tokens, grants and receipts for a moment, for their triggers; access
--   exclusive on receipts for a moment: a column without a default rewrites nothing. Cost: two look-ups for each app.

-- Whose first, monthly or daily present was given with which purchase. The key decides between two.
create table given_bonuses (
    app_id text not null,
    user_id text not null,
    bonus text not null,
    period text not null,                       -- of the purchase, in UTC: 2026-11-22, 2026-11, or empty for ever
    transaction_id text not null,
    goods jsonb not null,                       -- as they stand among the goods of the grant
    given_at timestamptz not null default now(),
    primary key (app_id, user_id, bonus, period)
);
create index given_bonuses_of_transaction on given_bonuses (transaction_id);

create view v_bonuses as
select app_id, bonus, period, transaction_id, goods, given_at from given_bonuses;
comment on view v_bonuses is
    'What was given once beside a purchase. A row: a bonus with the grant that has it. period: of the purchase, in UTC (2026-11-22, 2026-11, or empty for ever); given_at: when it was granted.';

-- A bonus is one with its grant. Two statements that give the same purchase do not see each other: whoever lost the
-- grant must not keep the bonus, and is sent back to look again.
create function hold_bonus_to_its_grant() returns trigger language plpgsql as $$
begin
    perform from grants where transaction_id = new.transaction_id
        and goods @> jsonb_build_array(jsonb_build_object('bonus', new.bonus));
    if not found then
        raise exception 'the purchase was granted without this bonus meanwhile' using errcode = 'serialization_failure';
    end if;
    return null;
end $$;
create trigger given_bonuses_have_grants after insert on given_bonuses
    for each row execute function hold_bonus_to_its_grant();

-- Only erasing a user changes whose a grant is.
create function move_bonuses_with_their_grant() returns trigger language plpgsql as $$
begin
    update given_bonuses set user_id = new.user_id where transaction_id = new.transaction_id;
    return null;
end $$;
create trigger grants_move_bonuses after update of user_id on grants
    for each row when (old.user_id <> new.user_id) execute function move_bonuses_with_their_grant();

-- What the post says of the purchase: item, product, quantity, price, and the names of fields that make no sense.
alter table receipts add column declared jsonb;

-- Erased with the details it was taken from.
create function forget_declarations() returns trigger language plpgsql as $$
begin
    new.declared := null;
    return new;
end $$;
create trigger receipts_forget_declarations before update of details on receipts
    for each row when (new.declared is not null and new.details = '{}') execute function forget_declarations();

-- A purchase's story tells of the one that was charged after it as well.
create index double_charges_of_first on double_charges (first_transaction_id) where first_transaction_id is not null;

-- Apps that have ever had an order or a user's token: in all others nobody need be asked whose a purchase is. Written with
-- the first of them, so that whoever sees the order sees this.
create table ordering_apps (app_id text primary key);

create function note_ordering_apps() returns trigger language plpgsql security definer as $$
begin
    insert into ordering_apps (app_id)
    select distinct app_id from placed p where not exists (select from ordering_apps where app_id = p.app_id)
    order by 1
    on conflict do nothing;
    return null;
end $$;
create trigger orders_note_app after insert on orders
    referencing new table as placed for each statement execute function note_ordering_apps();
create trigger user_tokens_note_app after insert on user_tokens
    referencing new table as placed for each statement execute function note_ordering_apps();

insert into ordering_apps (app_id)
select app_id from apps a
where coalesce(
    -- In the order of an index: without one, the first of an app that has none is found by reading all the others.
    (select true from orders where app_id = a.app_id order by user_id, placed_at limit 1),
    (select true from user_tokens where app_id = a.app_id order by token limit 1));

do $$
begin
    execute format('alter function note_ordering_apps() set search_path = %I, pg_temp', current_schema());
    revoke execute on function note_ordering_apps(), hold_bonus_to_its_grant(), move_bonuses_with_their_grant(),
        forget_declarations() from public;
end $$;
