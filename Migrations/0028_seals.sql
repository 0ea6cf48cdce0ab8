-- serves: 12
-- Why: rows of grants, outcomes, revocations and audits are written once. Whoever owns the database can change them all
--   the same, and a reader of the books must see it (L2). So a scheduler seals such rows in blocks.
--   The hash of a block covers its rows and the block before.
-- Locks: grants, outcomes, revocations and audits, each for a moment, for a column that rewrites no row; then
--   each against writes while a block range index is built, which reads the table once.
-- Cost: 8 bytes for each new row. Rows of before this migration have no `xid` and are in no block.
-- Programs of the version before: they name no `xid`, and the defaults and the trigger write it for them.

-- The transaction that wrote the row. A snapshot tells below which number no transaction runs any more, so it tells
-- exactly where a block may end. A time does not: a transaction may commit long after its own time.
alter table grants add column xid bigint;
alter table grants alter column xid set default (pg_current_xact_id()::text::bigint);
alter table outcomes add column xid bigint;
alter table outcomes alter column xid set default (pg_current_xact_id()::text::bigint);
alter table revocations add column xid bigint;
alter table revocations alter column xid set default (pg_current_xact_id()::text::bigint);
alter table audits add column xid bigint;
alter table audits alter column xid set default (pg_current_xact_id()::text::bigint);
comment on column grants.xid is
    'The transaction that wrote the row; null: written before 0028_seals.sql, and not sealed.';
comment on column outcomes.xid is
    'The transaction that decided last; null: decided before 0028_seals.sql, and not sealed.';
comment on column revocations.xid is 'As in grants.';
comment on column audits.xid is 'As in grants.';
-- Small ranges, because a block has as many rows as some ranges.
create index grants_xid on grants using brin (xid) with (pages_per_range = 16, autosummarize = on);
create index outcomes_xid on outcomes using brin (xid) with (pages_per_range = 16, autosummarize = on);
create index revocations_xid on revocations using brin (xid) with (pages_per_range = 16, autosummarize = on);
create index audits_xid on audits using brin (xid) with (pages_per_range = 16, autosummarize = on);

-- A block: the rows of the transactions from `first_xid` to before `end_xid`. `names` and `hashes` list the rows in one
-- order, so that a look can name the row that was changed. `hash` covers the lists, the two ends and the hash of the
-- block before. The newest block's end is where the next block begins. After a dump was loaded into another server,
-- whose transactions have smaller numbers, a block begins at 0 again.
create table seals (
    number bigint primary key,
    form integer not null,                      -- of the text of a row that is hashed
    first_xid bigint not null,
    end_xid bigint not null,
    names text[] collate "C" not null,
    hashes bytea[] not null,
    previous_hash bytea not null,
    hash bytea not null,
    sealed_at timestamptz not null default now(),
    constraint seals_number check (number > 0),
    constraint seals_span check (first_xid < end_xid),
    constraint seals_lists check (cardinality(names) = cardinality(hashes)),
    constraint seals_hashes check (octet_length(previous_hash) = 32 and octet_length(hash) = 32)
);
-- Finds the blocks that a transaction may be in.
create index seals_of_xid on seals (end_xid, first_xid);
-- Names and hashes are rarely read together with the rest; hashes do not compress.
alter table seals alter column hashes set storage external;
comment on table seals is
    'A row: a block of sealed rows. Never changed. Heads (number and hash of the newest block) stand in the log.';

-- What an erasure emptied: the hash of the columns that named the user. With it the row still has the hash that was
-- sealed. The triggers write a row for each erased row, sealed or not, in the erasure's transaction.
create table seal_corrections (
    id bigint primary key generated always as identity,
    name text collate "C" not null,             -- as in seals.names
    tombstone text collate "C" not null,        -- what stands in the user's place; an audit names it
    user_hash bytea not null,                   -- of what the erasure took out
    corrected_hash bytea not null,              -- of what stands there now
    corrected_at timestamptz not null default now(),
    xid bigint not null default (pg_current_xact_id()::text::bigint),
    constraint seal_corrections_hashes check (octet_length(user_hash) = 32 and octet_length(corrected_hash) = 32)
);
create index seal_corrections_of_name on seal_corrections (name, id);
create index seal_corrections_xid on seal_corrections using brin (xid) with (pages_per_range = 16, autosummarize = on);
comment on table seal_corrections is 'A row: an erasure took the user out of a row. Never changed, and sealed itself.';

-- The hash of the fields by which an audit names users. An erasure changes only these fields.
create function users_hash_of_audit(details jsonb) returns bytea language sql immutable as $$
    select sha256(convert_to(
        jsonb_build_array(details -> 'user', details -> 'into', details -> 'receiver')::text, 'UTF8'))
$$;

create function correct_seal() returns trigger language plpgsql security definer as $$
begin
    if tg_table_name = 'audits' then
        insert into seal_corrections (name, tombstone, user_hash, corrected_hash)
        select 'audit ' || old.id, f.value, users_hash_of_audit(old.details), users_hash_of_audit(new.details)
        from jsonb_each_text(new.details) f
        where f.key in ('user', 'into', 'receiver') and f.value is distinct from old.details ->> f.key
            and f.value ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
        limit 1;
    elsif tg_table_name = 'grants' then
        insert into seal_corrections (name, tombstone, user_hash, corrected_hash)
        values ('grant ' || old.transaction_id, new.user_id, sha256(convert_to(old.user_id, 'UTF8')),
            sha256(convert_to(new.user_id, 'UTF8')));
    else
        insert into seal_corrections (name, tombstone, user_hash, corrected_hash)
        values ('revocation ' || old.transaction_id || ' ' || old.ordinal, new.user_id,
            sha256(convert_to(old.user_id, 'UTF8')), sha256(convert_to(new.user_id, 'UTF8')));
    end if;
    return null;
end $$;
-- Only an erasure puts a tombstone in a user's place. Who else writes one needs an audit of an erasure that names it.
create trigger grants_correct_seal after update of user_id on grants for each row
    when (old.user_id <> new.user_id and new.user_id ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
    execute function correct_seal();
create trigger revocations_correct_seal after update of user_id on revocations for each row
    when (old.user_id <> new.user_id and new.user_id ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
    execute function correct_seal();
create trigger audits_correct_seal after update of details on audits for each row
    when (old.action in ('support.give', 'users.merge') and old.details <> new.details)
    execute function correct_seal();

-- An outcome is decided again as long as its receipt is open, and again after somebody opened the receipt. Such a
-- transaction has locked the receipt. The outcome then belongs to the block of the transaction that decided last. An
-- outcome that is changed without its receipt keeps its number, and its block shows the change.
create function place_outcome() returns trigger language plpgsql security definer as $$
begin
    if exists (
        select from receipts r where r.id = old.receipt_id
            and pg_current_xact_id()::xid in (r.xmin, r.xmax))
    then
        new.xid := pg_current_xact_id()::text::bigint;
    else
        new.xid := old.xid;
    end if;
    return new;
end $$;
create trigger outcomes_place before update on outcomes for each row
    when (old.* is distinct from new.*) execute function place_outcome();

-- The rows that a block may list, with their hashes. The scheduler reads hashes, and not the rows.
--
-- A hash covers each column of the table but `xid`, as PostgreSQL sends a record in binary, and beside it the hash of
-- the user's name. No setting of a session changes these bytes: times are microseconds, `jsonb` has one order, and the
-- connections of all programs send UTF-8. Where an erasure took out the name, the hash is of what stood there before
-- the row's first correction, if the last correction put there what stands there now. Another text needs another view,
-- another `seals.form`, and this view for the blocks that have this form.
create view sealable_rows as
select 'grant ' || transaction_id as name, xid, granted_at as written_at,
    sha256(record_send(row('grant'::text, transaction_id, purchase_key, period_key, app_id, environment, customer_id,
        receipt_id, product_id, quantity, goods, binding_source, granted_at, order_id, item, is_entitling))
      || coalesce(case when user_id like 'erased\_%' then (
        select c.user_hash from seal_corrections c
        where c.name = 'grant ' || transaction_id and c.tombstone = user_id and user_now = (
            select l.corrected_hash from seal_corrections l where l.name = c.name order by l.id desc limit 1)
        order by c.id limit 1) end, user_now)) as hash
from (select *, sha256(convert_to(user_id, 'UTF8')) as user_now from grants) g
union all
select 'outcome ' || receipt_id || ' ' || transaction_id, xid, decided_at,
    sha256(record_send(row('outcome'::text, receipt_id, transaction_id, state, reason, binding_source, decided_at,
        reasons, granted_as, safe_at)))
from outcomes
union all
select 'revocation ' || transaction_id || ' ' || ordinal, xid, recorded_at,
    sha256(record_send(row('revocation'::text, transaction_id, ordinal, app_id, environment, kind, reason, takes_back,
        percentage, goods, at, signed_at, recorded_at))
      || coalesce(case when user_id like 'erased\_%' then (
        select c.user_hash from seal_corrections c
        where c.name = 'revocation ' || transaction_id || ' ' || ordinal and c.tombstone = user_id and user_now = (
            select l.corrected_hash from seal_corrections l where l.name = c.name order by l.id desc limit 1)
        order by c.id limit 1) end, user_now))
from (select *, sha256(convert_to(user_id, 'UTF8')) as user_now from revocations) r
union all
select 'audit ' || id, xid, at,
    sha256(record_send(row('audit'::text, id, at, actor, action, details - '{user,into,receiver}'::text[]))
      || coalesce(case when action in ('users.merge', 'support.give') then (
        select c.user_hash from seal_corrections c
        where c.name = 'audit ' || a.id and users_now = (
            select l.corrected_hash from seal_corrections l where l.name = c.name order by l.id desc limit 1)
          and c.tombstone in (details ->> 'user', details ->> 'into', details ->> 'receiver')
        order by c.id limit 1) end, users_now))
from (
    select *, sha256(convert_to(
        jsonb_build_array(details -> 'user', details -> 'into', details -> 'receiver')::text, 'UTF8')) as users_now
    from audits) a
union all
select 'correction ' || id, xid, corrected_at,
    sha256(record_send(row('correction'::text, id, name, tombstone, user_hash, corrected_hash, corrected_at)))
from seal_corrections;
comment on view sealable_rows is
    'What a scheduler seals. A row: a grant, outcome, revocation, audit or correction. Ask for a span of xid.';

-- Corrections whose tombstone no audit of an erasure names.
create view uncaused_corrections as
select id, xid from seal_corrections
where tombstone not in (
    select details ->> 'user' from audits where action = 'users.erase' and details ->> 'user' is not null);
comment on view uncaused_corrections is
    'A row: a correction of a sealed row that no erasure made. Empty, unless somebody wrote it by hand.';

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array['users_hash_of_audit(jsonb)', 'correct_seal()', 'place_outcome()'] loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
