-- serves: 1
-- Why: where ids are clear, a verdict that was matched before its owner was erased wrote his id once more.
-- Locks: none on what is there. Cost: none.

-- Whom verdicts may not name that were matched until `erased_at`: an id's hash, for the day after; the next erasure clears
-- it away.
create table erasures (
    app_id text not null,
    user_sha256 bytea not null,
    erased_at timestamptz not null default now(),
    primary key (app_id, user_sha256)
);

-- Comes before `erase_clear_user`, which may begin once every statement that has not seen this has ended: the id is
-- written by nobody any more who was matched before.
--
-- Until `end_erasure` nobody is matched to it either: the tables still have the id. Where that never comes, five minutes.
create function begin_erasure(app text, clear_id text) returns void
language plpgsql security definer as $$
begin
    delete from erasures e where e.erased_at < now() - interval '1 day';
    insert into erasures as e (app_id, user_sha256, erased_at)
    values (app, sha256(convert_to(clear_id, 'UTF8')), now() + interval '5 minutes')
    on conflict (app_id, user_sha256) do update set erased_at = excluded.erased_at;
end $$;

-- The tables have the id no more: what is matched from now on does not find it.
create function end_erasure(app text, clear_id text) returns void
language sql security definer as $$
    update erasures set erased_at = clock_timestamp()
    where app_id = app and user_sha256 = sha256(convert_to(clear_id, 'UTF8'))
$$;

do $$
begin
    execute format('alter function begin_erasure(text, text) set search_path = %I, pg_temp', current_schema());
    revoke execute on function begin_erasure(text, text) from public;
    execute format('alter function end_erasure(text, text) set search_path = %I, pg_temp', current_schema());
    revoke execute on function end_erasure(text, text) from public;
end $$;
