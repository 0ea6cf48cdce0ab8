-- The limits that the program sends with each connection, where PgBouncer stands between (it takes no startup
-- options): given to the roles instead, and to further logins that are members of them. As the owner, after `makegood
-- roles` and after each new login (they are not inherited); safe to repeat.
--
-- statement_timeout: nothing of a service takes longer, and a connection whose statement hangs finds out by itself.
-- jit: compiling a statement costs more than any of them takes.
do $$
declare
    services constant name[] = array['makegood_ingest', 'makegood_worker', 'makegood_scheduler',
        'makegood_dispatcher', 'makegood_all'];
    login name;
begin
    for login in
        select rolname from pg_roles r
        where rolname = any(services) or exists (
            select from pg_auth_members m join pg_roles g on g.oid = m.roleid
            where m.member = r.oid and g.rolname = any(services))
    loop
        execute format('alter role %I set statement_timeout = ''5s''', login);
        execute format('alter role %I set lock_timeout = ''2s''', login);
        execute format('alter role %I set idle_in_transaction_session_timeout = ''10s''', login);
        execute format('alter role %I set jit = off', login);
    end loop;
end
$$;
