import Purchases

extension Invariant {
    /// The invariants of what Apple tells by itself: notifications, revocations and the chains that a worker follows
    /// up. They need only the database.
    static let ofHearing: [Invariant] = [
        Invariant(
            "I8", "notifications", "every notification is ended, or open and not overdue by more than two hours",
            """
            select 'notification ' || id || ' ' || state || case
                when (settled_at is null) = (due_at is null) then ' is neither ended nor due' else ' is overdue' end
            from (
              select id, app_id, state, settled_at, due_at from notifications where received_at >= \(since)
              union
              select id, app_id, state, settled_at, due_at from notifications where due_at is not null) n
            where ((settled_at is null) = (due_at is null) or due_at < now() - interval '2 hours')
              and not exists (select from halts where halts.app_id = n.app_id)
            """),
        Invariant(
            "I8", "follow_ups", "no chain has been marked, or due, for more than two hours without a follow-up",
            """
            select 'chain …' || right(original_transaction_id, 4) || ' is marked' from chain_marks m
            where marked_at < now() - interval '2 hours'
              and not exists (select from halts where halts.app_id = m.app_id)
            union all
            select 'chain …' || right(original_transaction_id, 4) || ' is due' from chains c
            where due_at is not null and due_at < now() - interval '2 hours'
              and not exists (select from halts where halts.app_id = c.app_id)
            """),
        Invariant(
            "I16", "revocations",
            "the rows of a purchase are numbered without a gap, begin with a revocation, and take back no more than was granted",
            """
            select 'transaction …' || right(transaction_id, 4) || case
                when max(ordinal) <> count(*) then ' has a gap in its ordinals'
                when min(kind) filter (where ordinal = 1) <> 'revoked' then ' was given back before it was taken back'
                else ' has goods where nothing is taken back' end
            from (\(revocationsOfSpan)) r
            group by transaction_id
            having max(ordinal) <> count(*) or min(kind) filter (where ordinal = 1) <> 'revoked'
              or bool_or(not takes_back and goods <> '[]'::jsonb)
            union all
            select distinct 'transaction …' || right(s.transaction_id, 4) || ': ' || case
                when s.taken < 0 then 'more given back than was taken back' else 'more taken back than was granted' end
            from (
              select r.transaction_id, good ->> 'item' as item, coalesce(good ->> 'bonus', '') as bonus,
                sum(case r.kind when 'revoked' then 1 else -1 end * (good ->> 'amount')::numeric) over (
                  partition by r.transaction_id, good ->> 'item', coalesce(good ->> 'bonus', '')
                  order by r.ordinal) as taken
              from (\(revocationsOfSpan)) r cross join lateral jsonb_array_elements(r.goods) as good) s
            cross join lateral (
              select coalesce(sum((good ->> 'amount')::numeric), 0) as amount
              from (select goods from grants where transaction_id = s.transaction_id offset 0) g
                cross join lateral jsonb_array_elements(g.goods) as good
              where good ->> 'item' = s.item and coalesce(good ->> 'bonus', '') = s.bonus) granted
            where s.taken < 0 or s.taken > granted.amount
            """),
        Invariant(
            "I16", "refunds_revoked",
            "a granted purchase that Apple refunded is revoked, unless its chain has yet to be followed up",
            // Refunds that were old when migration 17 came are told to nobody, and have no mark (see there).
            """
            select 'transaction …' || right(t.transaction_id, 4)
            from v_ended_purchases t
            cross join lateral (select user_id from grants where transaction_id = t.transaction_id offset 0) g
            where t.revoked_at >= \(since) and t.revoked_at <= now()
              and t.revoked_at > (select applied_at - interval '89 days' from schema_migrations where number = 17)
              and t.is_whole and t.ending = '\(Reason.refunded.rawValue)'
              and not exists (select from revocations r where r.transaction_id = t.transaction_id)
              -- Apple denied what was given on trust: that was told as such.
              and not exists (
                select from provisional_grants p
                where p.transaction_id = t.transaction_id and p.revoked_at is not null)
              and not exists (
                select from chain_marks m
                where m.original_transaction_id = t.original_transaction_id and m.app_id = t.app_id)
              and not exists (
                select from chains c
                where c.app_id = t.app_id and c.environment = t.environment
                  and c.original_transaction_id = t.original_transaction_id and c.due_at <= now())
              -- The same period under another id, or with seats that were added: not all of it has ended.
              and not exists (
                select from (
                  select app_id, environment, product_id, revoked_at, expires_at, purchased_at from transactions own
                  where own.original_transaction_id = t.original_transaction_id offset 0) s
                where s.app_id = t.app_id and s.environment = t.environment and s.product_id = t.product_id
                  and s.revoked_at is null and (s.expires_at = t.expires_at or s.purchased_at = t.purchased_at))
            """),
        Invariant(
            "I16", "told_subscriptions",
            "a subscription that was told to run has not been taken back, and is looked at when it ends",
            """
            select 'chain …' || right(c.original_transaction_id, 4) || case
                when c.due_at is null then ' has no next look'
                when t.transaction_id is null then ' is looked at too late' else ' was taken back' end
            from chains c
            left join lateral (
              select transaction_id from v_ended_purchases t
              where t.transaction_id = c.transaction_id and (t.is_whole and t.ending = '\(Reason.refunded.rawValue)'
                  or t.ending = '\(Reason.withdrawn.rawValue)')
                and not exists (
                  select from (
                    select app_id, environment, expires_at, revoked_at from transactions own
                    where own.original_transaction_id = t.original_transaction_id offset 0) s
                  where s.app_id = t.app_id and s.environment = t.environment and s.expires_at = t.expires_at
                    and s.revoked_at is null)
              offset 0) t on c.state = 'active'
            where c.state in ('active', 'in_grace') and c.followed_at >= \(since)
              and not exists (
                select from chain_marks m
                where m.original_transaction_id = c.original_transaction_id and m.app_id = c.app_id)
              and (c.due_at is null or c.due_at > greatest(c.expires_at, c.followed_at) + interval '1 hour'
                or t.transaction_id is not null and c.due_at > now())
            """),
    ]

    /// All rows of each purchase that has one in the span.
    private static let revocationsOfSpan = """
        select r.* from (select distinct transaction_id from revocations where recorded_at >= \(since)) n
              cross join lateral (select * from revocations where transaction_id = n.transaction_id offset 0) r
        """
}
