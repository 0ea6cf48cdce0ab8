package import Foundation
package import Postgres
package import Purchases

extension Statements {
    /// The rows that `makegood queue redrive` makes due, a batch at a time: parked and held ones.
    package struct Redrive: Sendable {
        package var states: [ReceiptState]
        package var appID: String?
        package var reason: String?
        package var limit: Int

        package init(states: [ReceiptState], appID: String? = nil, reason: String? = nil, limit: Int) {
            self.states = states
            self.appID = appID
            self.reason = reason
            self.limit = limit
        }
    }

    package static let redrive = Statement<Redrive, UUID>(
        "repair.redrive",
        """
        update receipts set due_at = now(), rescues = 0 where id in (
          select id from receipts where lane in (\(lanes)) and due_at > now() and state = any($1::text[])
            and ($2::text is null or app_id = $2) and ($3::text is null or reason = $3)
          order by due_at limit $4 for no key update skip locked)
        returning id
        """,
        bind: { redrive in
            [
                .texts(redrive.states.map(\.rawValue)), .text(redrive.appID), .text(redrive.reason),
                .int(redrive.limit),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// SQL: whether the proof of `r` is stored in full in the partition of its day. A proof whose header is missing
    /// counts as missing. For roles that may not read proofs.
    static let isStored = """
        exists (select from stored_payloads p where p.receipt_id = r.id
          and p.received_on = (r.received_at at time zone 'UTC')::date
          and (p.header_sha256 is null or exists (select from proof_headers h where h.sha256 = p.header_sha256)))
        """

    package struct Rejudging: Sendable {
        package var appID: String
        package var reason: String?
        package var since: Date?
        package var limit: Int

        package init(appID: String, reason: String? = nil, since: Date? = nil, limit: Int) {
            self.appID = appID
            self.reason = reason
            self.since = since
            self.limit = limit
        }
    }

    /// `makegood support rejudge`: makes rejected rows `received` again, so that a worker judges them from their
    /// payload; their rejected transactions are open again. The statement also keeps the payloads, whatever retention
    /// is about to do with their day. A row stays rejected where its payload is gone (dropped, or without the header
    /// that it shares), because nothing can be judged.
    package static let rejudge = Statement<Rejudging, UUID>(
        "repair.rejudge",
        """
        with candidate as (
          select r.id, r.kind from receipts r
          where r.state = 'rejected' and r.app_id = $1 and ($2::text is null or r.reason = $2)
            and ($3::timestamptz is null or r.settled_at >= $3)
            and (r.kind = 'identifier' or \(isStored)
              or exists (select from kept_payloads k where k.receipt_id = r.id))
          order by r.settled_at limit $4 for no key update of r skip locked),
        kept as materialized (
          select k.id from keep_reopened_payloads((select array_agg(id) from candidate)) as k(id)),
        reopened as (
          update receipts set state = 'received', reason = null, settled_at = null, due_at = now(), rescues = 0,
            attempt = attempt + 1  -- a slow worker's verdict from before is stale
          where id in (select id from candidate where kind = 'identifier' union all select id from kept)
          returning id),
        opened as (
          update outcomes set state = 'open', reason = null
          where receipt_id in (select id from reopened) and state = 'rejected')
        select id from reopened
        """,
        bind: { rejudging in
            [
                .text(rejudging.appID), .text(rejudging.reason), .date(rejudging.since), .int(rejudging.limit),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    package struct RejectedCount: Sendable, Equatable {
        package let reason: String
        package let count: Int
        /// The rejected rows whose payload is gone: they cannot be judged again.
        package let withoutPayload: Int
    }

    /// The rejected rows by reason, which `support rejudge` counts before it begins.
    package static let countRejected = Statement<Rejudging, RejectedCount>(
        "repair.count_rejected",
        """
        select coalesce(r.reason, ''), count(*),
          count(*) filter (where r.kind <> 'identifier' and k.receipt_id is null and not \(isStored))
        from receipts r
        left join kept_payloads k on k.receipt_id = r.id
        where r.state = 'rejected' and r.app_id = $1 and ($2::text is null or r.reason = $2)
          and ($3::timestamptz is null or r.settled_at >= $3)
        group by 1 order by 1
        """,
        bind: { rejudging in [.text(rejudging.appID), .text(rejudging.reason), .date(rejudging.since)] },
        read: { row throws(PostgresError) in
            RejectedCount(reason: try row.text(0), count: try row.int(1), withoutPayload: try row.int(2))
        })

    /// The states of the rows that dead letters point at. An id that is not stored is missing from the result.
    package static let standings = Statement<[UUID], ReceiptStanding>(
        "repair.standings",
        "select id, app_id, lane, state, reason, attempt from receipts where id = any($1::uuid[])",
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            ReceiptStanding(
                receiptID: try row.uuid(0), appID: try row.text(1), lane: try row.lane(2), state: try row.state(3),
                reason: try row.optionalText(4), attempt: try row.int(5))
        })

    package struct Audit: Sendable {
        package var actor: String
        package var action: String
        /// A JSON object.
        package var details: String

        package init(actor: String, action: String, details: String) {
            self.actor = actor
            self.action = action
            self.details = details
        }
    }

    package static let audit = Statement<Audit, Void>(
        "repair.audit", "insert into audits (actor, action, details) values ($1, $2, $3)",
        bind: { [.text($0.actor), .text($0.action), .json($0.details)] })
}

/// The state of a receipt, and what an operator needs beside it.
package struct ReceiptStanding: Sendable, Equatable {
    package let receiptID: UUID
    package let appID: String
    package let lane: Lane
    package let state: ReceiptState
    package let reason: String?
    package let attempt: Int
}
