import Foundation
import Postgres
import Purchases

// The statements by which a hear transaction locks and writes, in their order.
extension Statements {
    /// Locks the notifications that are as they were read, in the order of their ids. Another process holds such a row
    /// for a moment only: ingest counts that Apple sent the notification again, or another worker hears it.
    static let takeNotifications = Statement<[Hearing.Notification], UUID>(
        "hear.take_notifications",
        [.uuid("id") { $0.id }, .int32("attempt") { $0.attempt }],
        sql: { rows in
            """
            select l.id from (select distinct id, attempt from \(rows.rows(as: "i")) order by id) i cross join lateral (
              select id from notifications where id = i.id and attempt = i.attempt and settled_at is null
              for no key update) l
            """
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// Notes what a question to Apple tells first: a purchase, its end, or the reversal of its end. Runs before the facts
    /// are stored. Two questions that tell one purchase at the same moment count once.
    static let noteCatches = Statement<[(appID: String, net: Net, transaction: Transaction)], Void>(
        "hear.note_catches",
        [
            .text("app") { $0.appID }, .text("net") { $0.net.rawValue }, .text("transaction") { $0.transaction.id },
            .text("environment") { $0.transaction.environment }, .date("revoked_at") { $0.transaction.revokedAt },
            .date("signed_at") { $0.transaction.signedAt },
        ],
        sql: { rows in
            """
            insert into net_catches (transaction_id, kind, app_id, environment, net)
            select distinct on (i.transaction, k.kind) i.transaction, k.kind, i.app, i.environment, i.net
            from \(rows.rows(as: "i"))
            left join lateral (
              select transaction_id, revoked_at, signed_at from transactions where transaction_id = i.transaction) t on true
            cross join lateral (select case
              when t.transaction_id is null then case when i.revoked_at is null then 'purchase' else 'end' end
              when i.signed_at < t.signed_at then null
              when i.revoked_at is not null and t.revoked_at is null then 'end'
              when i.revoked_at is null and t.revoked_at is not null and i.signed_at > t.signed_at
                then 'reversal' end) k(kind)
            where k.kind is not null
            order by i.transaction, k.kind
            on conflict (transaction_id, kind) do nothing
            """
        })

    /// Stores Apple's facts, as `settle.store_facts` does.
    static let storeHeardFacts = Statement<[(appID: String, transaction: Transaction)], Void>(
        "hear.store_facts",
        [.text("app") { $0.appID }] + columnsOfFacts { $0.transaction },
        sql: { rows in storingFacts(from: rows.rows(as: "i")) })

    /// Stores Apple's newest facts of each chain's renewal, and marks the chains whose facts are new.
    static let storeRenewals = Statement<[(appID: String, renewal: Renewal)], Void>(
        "hear.store_renewals",
        [
            .text("app") { $0.appID }, .text("environment") { $0.renewal.environment },
            .text("original") { $0.renewal.originalID }, .json("renewal") { StoredJSON.encode($0.renewal) },
            .date("signed_at") { $0.renewal.signedAt },
        ],
        sql: { rows in
            """
            with stored as (
              insert into chains as c (app_id, environment, original_transaction_id, renewal, renewal_signed_at)
              select distinct on (app, environment, original) app, environment, original, renewal, signed_at
              from \(rows.rows(as: "i"))
              order by app, environment, original, signed_at desc
              on conflict (app_id, environment, original_transaction_id) do update
                set renewal = excluded.renewal, renewal_signed_at = excluded.renewal_signed_at
                where excluded.renewal_signed_at > coalesce(c.renewal_signed_at, '-infinity')
              returning app_id, environment, original_transaction_id)
            insert into chain_marks (app_id, environment, original_transaction_id)
            select app_id, environment, original_transaction_id from stored
            """
        })

    /// Stores receipts that nobody posted, if they are not stored yet and nobody has been granted their transactions.
    /// Returns the ids of the new ones.
    static let insertUnposted = Statement<Insertion, UUID>(
        "hear.insert_receipts",
        """
        with new as (
          insert into receipts (id, app_id, kind, lane, transaction_id, original_transaction_id, is_vouched, details,
            payload_sha256, due_at, shown_transaction_id, shown_product_id, source, customer_id)
          select id, app, kind, lane, transaction, original, false, details, sha, now() + make_interval(secs => rescue),
            coalesce(shown, transaction), product, source, customer
          from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::bytea[],
            $9::float8[], $10::text[], $11::text[], $12::text[], $13::text[])
            as i(id, app, kind, lane, transaction, original, details, sha, rescue, shown, product, source, customer)
          where (select true from grants where transaction_id = i.transaction) is null
          order by id
          on conflict (id) do nothing
          returning id, app_id, source),
        \(keepingProofs("unnest($1::uuid[], $14::text[], $15::bytea[])", "unnest($16::bytea[], $17::text[])", source: "source"))
        select id from new
        """,
        bind: { insertion in
            let submissions = insertion.submissions
            let bodies = submissions.map { insertion.headers.split($0.proof) }
            let headers = Set(bodies.compactMap(\.header))
            return [
                .uuids(submissions.map(\.receiptID)), .texts(submissions.map(\.appID)),
                .texts(submissions.map(\.proof.kind.rawValue)), .texts(submissions.map(\.lane.rawValue)),
                .texts(submissions.map(\.transactionID)), .texts(submissions.map(\.originalTransactionID)),
                .jsons(submissions.map(\.details)), .bytesArray(submissions.map(\.proof.payloadSHA256)),
                .doubles(submissions.map { insertion.schedule.rescueDelay($0.lane).inSeconds }),
                .texts(submissions.map(\.shownTransactionID)), .texts(submissions.map(\.shownProductID)),
                .texts(submissions.map(\.source.rawValue)), .texts(submissions.map(\.customerID)),
                .texts(bodies.map(\.body)), .bytesArray(bodies.map(\.header?.sha256)),
                .bytesArray(headers.map(\.sha256)), .texts(headers.map(\.text)),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// The shortest time after its request in which a refund request is answered, in hours: Apple takes an answer for
    /// twelve, and the longer it waits, the more is known of the purchase.
    private static let answeredAfterHours = 10
    /// A request so many days after another one about the same purchase is a case of its own.
    private static let caseDays = 14

    /// Waits for the transactions that hear requests about the same purchases, and makes later ones wait until the end
    /// of this one. A statement of its own, so that ``insertRefundRequests`` sees what the others have committed. Takes
    /// the locks in one order.
    static let lockRefundCases = Statement<[RefundRequest], Void>(
        "hear.lock_refund_cases",
        [.text("transaction") { $0.transactionID }],
        sql: { rows in
            """
            select pg_advisory_xact_lock(hashtext('makegood.refund_requests'), k.lock)
            from (select distinct hashtext(transaction) as lock from \(rows.rows(as: "i")) order by 1) k
            """
        })

    /// Stores refund requests, each once. A request belongs to the case of the newest request about the same purchase,
    /// if that is recent; else it begins a case. A request for which Apple takes no answer any more ends at once.
    static let insertRefundRequests = Statement<[RefundRequest], Void>(
        "hear.insert_refund_requests",
        [
            .uuid("id") { $0.notificationID }, .text("app") { $0.appID }, .text("environment") { $0.environment },
            .text("transaction") { $0.transactionID }, .text("original") { $0.originalID },
            .text("reason") { $0.reason }, .date("asked_at") { $0.askedAt },
        ],
        sql: { rows in
            """
            insert into refund_requests (notification_id, case_id, app_id, environment, transaction_id,
              original_transaction_id, request_reason, asked_at, state, reason, due_at, ended_at)
            select i.id, coalesce(known.case_id,
                first_value(i.id) over (partition by i.app, i.transaction order by i.asked_at, i.id)),
              i.app, i.environment, i.transaction, i.original, i.reason, i.asked_at,
              case when late.is_late then 'unanswered' else 'open' end, case when late.is_late then 'too_late' end,
              case when not late.is_late then greatest(now(), i.asked_at + interval '\(answeredAfterHours) hours') end,
              case when late.is_late then now() end
            from \(rows.rows(as: "i"))
            cross join lateral (select
              i.asked_at + interval '\(Int(RefundRequest.answerWithin)) seconds' <= now() as is_late) late
            left join lateral (
              select case_id from refund_requests
              where transaction_id = i.transaction and app_id = i.app
                and asked_at > i.asked_at - interval '\(caseDays) days'
              order by asked_at desc limit 1) known on true
            order by i.id
            on conflict (notification_id) do nothing
            """
        })

    /// Ends the notifications, or holds them.
    static let endHeardNotifications = Statement<[(notification: Hearing.Notification, heldFor: Duration)], Void>(
        "hear.end_notifications",
        [
            .uuid("id") { $0.notification.id }, .text("reason") { $0.notification.ending.reason },
            .double("held_for") { $0.notification.ending == .ended ? nil : $0.heldFor.inSeconds },
        ],
        sql: { rows in
            """
            update notifications n set state = case when i.held_for is null then 'ended' else 'held' end, reason = i.reason,
              rescues = 0, judged_at = now(), settled_at = case when i.held_for is null then now() end,
              due_at = now() + make_interval(secs => i.held_for)
            from \(rows.rows(as: "i"))
            where n.id = i.id
            """
        })
}

extension Hearing.Notification.Ending {
    fileprivate var reason: String? { if case .held(let reason) = self { reason } else { nil } }
}
