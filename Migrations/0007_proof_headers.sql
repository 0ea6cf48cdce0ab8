-- serves: 1
-- Why: four fifths of a signed transaction are its header: Apple's certificates, the same in every purchase for a year
--   or longer. It is stored once, and each payload refers to it: a fifth of the space, and of what an insert writes.
--   `payloads` is a view now that shows every proof verbatim, whichever way it is stored, and takes inserts as before,
--   so the programs of earlier versions go on working beside the new ones. The rows lie in `stored_payloads`.
-- Locks: ACCESS EXCLUSIVE on payloads for changes of the catalogue. Cost: none, rows that are there stay as they are.

-- Headers that many proofs share. Never deleted or changed: they are certificates, nobody's data, and few, because
-- ingest shares a header only after it has seen it again and again.
create table proof_headers (
    sha256 bytea primary key,
    header text not null,                       -- the first part of a JWS, with the dot that follows it
    constraint proof_headers_sha256 check (sha256 = sha256(convert_to(header, 'UTF8')))
) with (toast_tuple_target = 8160);
-- In its row, as payloads are: every proof that is read needs it.
alter table proof_headers alter column header set storage external;

alter table payloads rename to stored_payloads;
alter table stored_payloads add column header_sha256 bytea;     -- null: the body is the whole proof

-- A header that is missing makes its proofs missing, not shorter.
create view payloads as
select p.receipt_id, p.received_on,
    case when p.header_sha256 is null then p.body else h.header || p.body end as body
from stored_payloads p left join proof_headers h on h.sha256 = p.header_sha256;

-- Who had rights on the table has the same on the view, from this moment on.
do $$
declare
    granted record;
begin
    for granted in
        select a.grantee, a.privilege_type, '' as columns
        from pg_class c, aclexplode(c.relacl) a
        where c.oid = 'stored_payloads'::regclass and a.grantee <> c.relowner
            and a.privilege_type in ('SELECT', 'INSERT')
        union all
        select a.grantee, a.privilege_type, format('(%I)', t.attname)
        from pg_attribute t, aclexplode(t.attacl) a where t.attrelid = 'stored_payloads'::regclass
    loop
        execute format('grant %s %s on payloads to %s', granted.privilege_type, granted.columns,
            case granted.grantee when 0 then 'public' else granted.grantee::regrole::text end);
    end loop;
end $$;

-- With its owner's rights: whoever may insert into the view may store a proof, and nothing else.
create function store_payload() returns trigger language plpgsql security definer as $$
begin
    insert into stored_payloads (receipt_id, received_on, body) values (new.receipt_id, new.received_on, new.body);
    return new;
end $$;
create trigger store_payload instead of insert on payloads for each row execute function store_payload();

-- As before, under the new name.
create or replace function create_payload_partitions(days integer) returns void
language plpgsql security definer set lock_timeout = '100ms' as $$
declare
    today date := (now() at time zone 'UTC')::date;
    day date;
    name text;
begin
    -- Another scheduler is at it.
    if not pg_try_advisory_xact_lock(hashtext('makegood.payload_partitions')) then return; end if;
    for day in select d::date from generate_series(today, today + least(days, 366), interval '1 day') d loop
        name := 'payloads_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass(name) is not null
            or exists (select from payloads_default d where d.received_on = day);
        begin
            execute format('create table %I partition of stored_payloads for values from (%L) to (%L)
                with (toast_tuple_target = 8160)', name, day, day + 1);
        exception when check_violation then
            -- Its first payload came to the default partition just now: the others follow it.
            null;
        end;
        exit when exists (select from payloads_default d where d.received_on < today);
    end loop;
end $$;

-- As before; what is kept is kept whole. Where a header is missing the body is null, and nothing is kept nor dropped.
create or replace function keep_payloads(place text, receipt_ids uuid[], apps_asking_by_id text[]) returns integer
language plpgsql as $$
declare
    moved integer;
begin
    perform enter_payload_chains(receipt_ids, apps_asking_by_id);
    execute format('with stays as (select * from payload_reasons($1, $2)), copied as (
        insert into kept_payloads (receipt_id, body, reason, kept_until)
        select s.receipt_id, case when p.header_sha256 is null then p.body else h.header || p.body end, s.reason,
            s.kept_until
        from stays s join %I p on p.receipt_id = s.receipt_id
        left join proof_headers h on h.sha256 = p.header_sha256
        on conflict (receipt_id) do nothing)
        select count(*) from stays', place) into moved using receipt_ids, apps_asking_by_id;
    return moved;
end $$;

-- As before; a proof whose header is missing is not what was posted either.
create or replace function changed_proofs(since_seconds double precision) returns setof uuid
language sql stable security definer as $$
    select r.id from receipts r
    join payloads p on p.receipt_id = r.id and p.received_on = (r.received_at at time zone 'UTC')::date
    where r.received_at >= now() - make_interval(secs => since_seconds)
      and p.received_on >= ((now() - make_interval(secs => since_seconds)) at time zone 'UTC')::date
      and sha256(convert_to(p.body, 'UTF8')) is distinct from r.payload_sha256
$$;

do $$
declare
    signature text;
begin
    foreach signature in array array[
        'changed_proofs(double precision)', 'store_payload()', 'create_payload_partitions(integer)', 'keep_payloads(text, uuid[], text[])']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
