extension Invariant {
    /// The invariants that need the clients' journal, the App Store's ledger and its log of calls (`Witness`).
    static let ofTheWitness: [Invariant] = [
        Invariant(
            "I1", "acknowledged", needsWitness: true, "every acknowledged post has a row",
            """
            select 'submission ' || j.submission from witness.journal j left join receipts r on r.id = j.receipt_id
            where j.status in (200, 202) and r.id is null and not j.is_notification
            """),
        Invariant(
            "I2", "owed", needsWitness: true, "every accepted purchase that is valid is granted",
            """
            select 'transaction …' || right(s.transaction_id, 4) from witness.sales s
            where s.is_valid and s.revoked_at is null
              and exists (select from witness.journal j
                where j.transaction_id = s.transaction_id and j.app_id = s.app_id and j.status in (200, 202))
              and not exists (select from grants g where g.transaction_id = s.transaction_id)
              -- Another id of a purchase that is granted: `grants_behind` sees to it.
              and not exists (select from outcomes o
                where o.transaction_id = s.transaction_id and o.state = 'already_granted')
            """),
        Invariant(
            "I4", "phantoms", needsWitness: true, "nothing is granted but what Apple sold, as it sold it",
            """
            select 'transaction …' || right(g.transaction_id, 4)
            from grants g left join witness.sales s on s.transaction_id = g.transaction_id
            where s.transaction_id is null or not s.is_valid
              or (s.app_id, s.environment, s.product_id, s.quantity)
                is distinct from (g.app_id, g.environment, g.product_id, g.quantity)
            """),
        Invariant(
            "I5", "owed_to", needsWitness: true, "who owns a grant is who must own it, by the order it was bought with",
            """
            select 'transaction …' || right(g.transaction_id, 4)
            from grants g join witness.sales s on s.transaction_id = g.transaction_id
            where g.user_id <> s.user_id or s.order_id is not null and (
              g.order_id is distinct from s.order_id
              or not exists (select from orders o
                where o.id = s.order_id and o.app_id = s.app_id and o.user_id = g.user_id))
            """),
        Invariant(
            "I8", "at_rest", needsWitness: true, "at rest nothing that is due waits",
            """
            select 'receipt ' || id || ' ' || state from receipts
            where state = 'received' and due_at < now() - interval '2 minutes'
              and not exists (select from halts where halts.app_id = receipts.app_id)
            union all
            select 'notification ' || id || ' ' || state from notifications
            where state = 'received' and due_at < now() - interval '2 minutes'
            union all
            select 'chain …' || right(original_transaction_id, 4) || ' is marked' from chain_marks
            where marked_at < now() - interval '2 minutes'
            """),
        Invariant(
            "I9", "unexpected", needsWitness: true, "no row but of what was posted",
            """
            select 'receipt ' || r.id
            from (
              select * from receipts
              where not exists (select from witness.journal j where j.receipt_id = receipts.id)
                -- What Apple told of, and nobody posted.
                and not (source <> 'post' and exists (select from witness.journal j
                  where j.is_notification and j.transaction_id = receipts.transaction_id)) offset 0) r
            -- Posts whose answer was lost: their rows are known by what was posted. Few; no index leads to them.
            where not exists (
              select from witness.journal j
              where j.receipt_id is null and (j.status = 0 or j.status >= 500) and j.app_id = r.app_id
                and (r.user_id is null or j.user_id = r.user_id)
                and case when r.kind = 'identifier'
                  then j.transaction_id in (r.transaction_id, r.original_transaction_id)
                  else j.body_sha256 = r.payload_sha256 end)
            """),
        Invariant(
            "I12", "apple_budget", needsWitness: true,
            "Apple gets no more calls at once, or about one proof, than the limits allow, and none before it said",
            """
            select 'calls at once: ' || max(open) from (
              select sum(change) over (order by at, change) as open from (
                select started_at as at, 1 as change from witness.calls
                union all select ended_at, -1 from witness.calls) c) o
            having max(open) > (select calls_at_once from witness.limits)
            union all
            -- Production and then sandbox: two calls an attempt. Who waits is not tried: 429 and 401 do not count.
            select 'calls about ' || c.subject || ': ' || c.calls from (
              select subject, count(*) as calls from witness.calls
              where http_status is null or http_status not in (401, 429) group by 1) c
            join (
              select subject, sum(attempt + 1) as tries from (
                select left(encode(payload_sha256, 'hex'), 16) as subject, id, attempt from receipts
                union select transaction_id, id, attempt from receipts
                union select original_transaction_id, id, attempt from receipts
                union select o.transaction_id, r.id, r.attempt from outcomes o join receipts r on r.id = o.receipt_id
              ) s where subject in (select subject from witness.calls) group by 1) r on r.subject = c.subject
            cross join witness.limits l
            where c.calls > 2 * (r.tries + least(l.interruptions, r.tries * \(Statements.rescuesMax))) + l.workers - 1
            union all
            select 'called about ' || early.subject || ' before Apple said' from witness.calls answer
            join witness.calls early on early.subject = answer.subject and early.started_at > answer.ended_at
              and early.started_at < answer.retry_at - interval '1 second'
            """),
        Invariant(
            "I14", "one_row", needsWitness: true, "the same submission is the same row, another one is another",
            """
            select 'submission ' || submission from witness.journal
            where receipt_id is not null group by submission having count(distinct receipt_id) > 1
            union all
            select 'receipt ' || receipt_id from witness.journal where receipt_id is not null
            group by receipt_id having count(distinct (app_id, user_id, body_sha256)) > 1
            """),
        Invariant(
            "I15", "posted_payloads", needsWitness: true, "the stored proof is the one that was posted",
            """
            select 'receipt ' || r.id from receipts r join witness.journal j on j.receipt_id = r.id
            where j.body_sha256 <> r.payload_sha256
            """),
        Invariant(
            "I16", "refunds_known", needsWitness: true, "what was posted as refunded is known to be refunded",
            """
            select 'transaction …' || right(s.transaction_id, 4) from witness.sales s
            where s.revoked_at is not null and not s.is_valid
              and exists (select from witness.journal j
                where j.transaction_id = s.transaction_id and j.app_id = s.app_id and j.status in (200, 202))
              and not exists (select from transactions t
                where t.transaction_id = s.transaction_id and t.revoked_at is not null)
            """),
        Invariant(
            "I16", "refunds_told", needsWitness: true,
            "of a granted purchase that Apple told of, the last revocation says what Apple says now",
            """
            select 'transaction …' || right(s.transaction_id, 4) from witness.sales s
              join grants g on g.transaction_id = s.transaction_id
              left join lateral (select kind from revocations where transaction_id = s.transaction_id
                order by ordinal desc limit 1) r on true
            where s.transaction_id in (select transaction_id from witness.journal where is_notification and status = 200)
              and (s.revoked_at is not null) is distinct from (coalesce(r.kind, 'none') = 'revoked')
            """),
    ]
}
