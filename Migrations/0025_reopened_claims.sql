-- serves: 1
-- Why: a claim on what another user has was answered once and for all: the same bytes got the old answer even after a
--   person, a merge or another policy had made it the poster's (P10).
-- Locks: access exclusive on receipts for a moment: a column without a default rewrites nothing. Cost: none.

-- The last post by which a claim that had been refused is judged anew; null: none, `received_at` is its only one.
alter table receipts add column claimed_at timestamptz;

-- Opens a receipt again whose post was told that something is another user's, where that may be otherwise by now: its
-- chain has passed to somebody since, the poster has become one person with another, or the app's policy `moves` what is
-- shown (then at most once a minute). `proof`: the bytes of the post, taken where those of the row are gone. Called by
-- whoever posts, who has no right to say any state himself. Whether it is open again.
create function reopen_claim(receipt uuid, proof text, moves boolean) returns boolean
language plpgsql security definer as $$
declare
    -- Two statements that do not see each other may overlap.
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
    -- Whose post it was is gone: a tombstone takes nothing from anybody.
    if poster is null or poster ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then return false; end if;
    is_merged := exists (
        select from merges m
        where m.app_id = claim.app_id and m.into_user_id = poster and m.merged_at > claim.judged_at - slack);
    if is_merged then
        -- What his post gave to the other one is his own: nothing to be judged.
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
    -- A verdict from before is stale.
    update receipts r set state = 'received', reason = null, settled_at = null, due_at = now(), rescues = 0,
        attempt = r.attempt + 1, claimed_at = now()
    where r.id = receipt;
    update outcomes o set state = 'open', reason = null, reasons = null
    where o.receipt_id = receipt and o.transaction_id = any(refused);
    return true;
end $$;

do $$
begin
    execute format('alter function reopen_claim(uuid, text, boolean) set search_path = %I, pg_temp', current_schema());
    revoke execute on function reopen_claim(uuid, text, boolean) from public;
end $$;
