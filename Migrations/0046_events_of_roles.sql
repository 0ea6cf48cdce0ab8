-- serves: 1
-- Why: an event moves goods in the app's backend, and scheduler and support could tell of any: `purchase.granted` without a grant,
--   `ownership.gained` without an owner. A role may insert events of those types alone whose facts it may insert as well.
-- Locks: share row exclusive on events for a moment, for its trigger. Cost: a look at two cached rights for each event.

create function refuse_strange_event() returns trigger language plpgsql as $$
begin
    raise insufficient_privilege using
        message = format('the role %s may not tell of %s: it may not write what the event tells of', current_user, new.type);
end $$;

-- The rights on the table that holds the facts are those on its events; a type that is not named here tells of a grant.
create trigger refuse_strange_event before insert on events for each row
    when (not has_any_column_privilege(
        case new.type
            when 'purchase.possible_double_charge' then 'double_charges'::regclass
            when 'ownership.lost' then 'ownerships'::regclass
            when 'ownership.gained' then 'ownerships'::regclass
            else 'grants'::regclass
        end, 'insert'))
    execute function refuse_strange_event();

revoke execute on function refuse_strange_event() from public;
