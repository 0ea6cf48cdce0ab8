-- serves: 12
-- Why: the app's backend learnt nothing of a receipt that was parked, because each of three programs parks receipts, and
--   two of them may write no event of a receipt. A trigger tells it, whoever parks the receipt (B8).
-- Locks: receipts, for a moment, for a trigger.
-- Cost: none. The trigger runs for a receipt that is parked.
-- Programs of the version before: the trigger works for them too. Their feed shows the receipt's id as `transactionId`.

-- The event has no purchase: the receipt stands in the place of the purchase. Its id is that of DerivedID.event, so that
-- a receipt is told of once, whatever becomes of it. A receipt that nobody posted, or a placeholder, has nobody to tell
-- of, and the former system speaks for an app in shadow.
create function tell_parked() returns trigger language plpgsql security definer as $$
declare
    told text := 'receipt.parked';
    digest bytea := sha256(
        int8send(octet_length(convert_to(new.app_id, 'UTF8'))::int8) || convert_to(new.app_id, 'UTF8')
        || int8send(octet_length(new.id::text)::int8) || convert_to(new.id::text, 'UTF8')
        || int8send(octet_length(told)::int8) || convert_to(told, 'UTF8') || int8send(0));
begin
    digest := substring(digest for 16);
    digest := set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128);
    digest := set_byte(digest, 8, (get_byte(digest, 8) & 63) | 128);
    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
    select encode(digest, 'hex')::uuid, new.app_id, told, new.user_id, new.id::text, new.id,
        jsonb_build_object('reason', new.reason, 'attempts', greatest(0, new.attempt - new.wakes))
    where not exists (select from apps where app_id = new.app_id and live_since is null)
    on conflict (transaction_id, event_id) do nothing;
    return null;
end $$;
create trigger receipts_tell_parked after update of state on receipts for each row
    when (new.state = 'parked' and old.state <> 'parked' and new.user_id is not null)
    execute function tell_parked();

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function tell_parked() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function tell_parked() from public;
