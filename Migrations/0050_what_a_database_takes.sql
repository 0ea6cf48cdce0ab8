-- serves: 1
-- Why: places that count Apple's answers about a bare id were kept for ever. They only bound calls to Apple: a receipt whose answers
--   are forgotten may ask three times more, once for each time that a post or a person brings it back. And one file could not let an
--   app take unsigned data beside one of production, but two files on one database could: whoever writes unsigned data writes any
--   transaction id. The database says now which of the two it takes.
-- Locks: SHARE on limit_places while its index is built, a second for some five million rows: purchases of limited kinds wait.
--   One look through transactions where none is of production. Cost: an index entry for each bare id that Apple was asked about.
--   Programs from before neither enter nor ask what the database takes: replace them all before you rely on it.

create index limit_places_of_answers on limit_places (taken_at)
    where limit_name = 'bare_id_answers' and day = '-infinity' and n = 1;

-- Places of days that are over, and Apple's answers about bare ids of which the last is thirty days old; a thousand at a time of each.
-- All answers about an id go together: what is left of them would leave a gap, and n is the count.
create or replace function drop_limit_places() returns bigint language plpgsql security definer as $$
declare
    dropped bigint;
    forgotten bigint;
begin
    delete from limit_places where ctid = any(array(
        select ctid from limit_places
        where day > '-infinity' and day < (now() at time zone 'UTC')::date - 2 order by day limit 1000));
    get diagnostics dropped = row_count;
    delete from limit_places p
        using (
            select f.app_id, f.holder from limit_places f
            where f.limit_name = 'bare_id_answers' and f.day = '-infinity' and f.n = 1
                and f.taken_at < now() - interval '30 days'
                and not exists (select from limit_places l
                    where l.app_id = f.app_id and l.limit_name = 'bare_id_answers' and l.holder = f.holder and l.day = '-infinity'
                        and l.taken_at >= now() - interval '30 days')
            order by f.taken_at limit 1000) f
        where p.app_id = f.app_id and p.limit_name = 'bare_id_answers' and p.holder = f.holder and p.day = '-infinity';
    get diagnostics forgotten = row_count;
    return dropped + forgotten;
end $$;

-- Whether this database takes purchases of production, or data that nobody signed: never both. The first process that has one of the
-- two in its configuration writes it; a database of signed sandbox purchases alone has no row.
create table database_purpose (
    is_only boolean primary key default true,
    purpose text not null,
    since timestamptz not null default now(),
    constraint database_purpose_is_only check (is_only),
    constraint database_purpose_known check (purpose in ('production', 'unsigned'))
);
insert into database_purpose (purpose)
    select purpose from (
        select case
            when exists (select from transactions where environment = 'Production') then 'production'
            when exists (select from transactions where environment in ('Xcode', 'LocalTesting')) then 'unsigned' end as purpose) p
    where purpose is not null;

do $$
begin
    execute format('alter function drop_limit_places() set search_path = %I, pg_temp', current_schema());
end $$;
