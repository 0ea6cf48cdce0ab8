import Encoding
package import Foundation
package import Postgres
package import Purchases

/// A receipt in the form in which a worker judges it.
package struct StoredReceipt: Sendable, Equatable {
    package let id: UUID
    package let appID: String
    /// The poster, or the user of the order that was named. If that user is part of another account by now, the other
    /// account.
    package let userID: String?
    package let proof: Proof
    package let transactionID: String?
    package let originalTransactionID: String?
    /// The order that was named, as it was written.
    package var orderID: String?
    /// The installation that this server issued the post's token to.
    package var installationID: String?
    /// Where in the game the goods go if no order says it; one JSON object.
    package var target: String?
    /// What the post declares of the purchase that it means.
    package var declared: Declaration?
    /// Whether its app has ever had an order, a user's token or a support decision. In other apps nothing names another
    /// user than the poster.
    package var appHasOrders = false
    package let isVouched: Bool
    /// The source of the receipt.
    package var source = ReceiptSource.post
    package let lane: Lane
    package let state: ReceiptState
    package let reason: String?
    package let attempt: Int
    /// How often news about the owner of a purchase made the receipt due, or a refund's reversal opened it again. Each
    /// wake begins a new attempt, and is no try.
    package var wakes = 0
    /// Tries without a verdict since the last verdict: by the scheduler, or by a message that came again after a worker
    /// died with it or gave it back.
    package let rescues: Int
    package let receivedAt: Date
    /// When the user last posted it such that a refused claim is judged anew; otherwise `receivedAt`.
    package let claimedAt: Date
    /// The database's clock when the row was read: the only clock by which dates are judged.
    package let readAt: Date
    /// A later receipt of the same user has brought transactions (P19).
    package let isTakenOver: Bool
    /// False: the payload is gone, and the receipt cannot be judged any more.
    package let hasPayload: Bool
    /// Whether something was given on trust, and Apple has not yet answered about it.
    package var isOnTrust: Bool
    /// How often a later post said something else than the first one. A verdict from before such a post does not count.
    package var lines = 0
    /// What earlier posts say of purchases of the receipt that the newest post does not mean: for each purchase the
    /// newest line. If the newest post means no purchase, lines of purchases that are held because of such lines are
    /// left out: the newest post frees these purchases.
    package var otherLines: [ReceiptLine] = []

    /// The tries so far.
    package var tries: Int { attempt - wakes }

    /// The lines by the id of the purchase that they are about.
    package func linesOfOthers(among transactions: [Transaction]) -> [String: ReceiptLine] {
        guard !otherLines.isEmpty else { return [:] }
        let ids = Dictionary(
            transactions.flatMap { [($0.id, $0.id), (Transaction.shownID($0.id, in: $0.environment), $0.id)] },
            uniquingKeysWith: { first, _ in first })
        return Dictionary(
            otherLines.compactMap { line in ids[line.transactionID].map { ($0, line) } },
            uniquingKeysWith: { first, _ in first })
    }
}

/// What became of a submission that a caller wanted to store.
package enum StoredSubmission: Sendable, Equatable {
    case new(InsertedReceipt)
    /// The row was there before.
    case known
    /// The user has posted too many bare ids today. Nothing was stored.
    case refused
}

/// A row that was not stored before, with the database's times.
package struct InsertedReceipt: Sendable, Equatable {
    package let id: UUID
    package let receivedAt: Date
    package let dueAt: Date
}

extension Statements {
    package struct Insertion: Sendable {
        /// Each receipt id once.
        package var submissions: [Submission]
        package var schedule: RetrySchedule
        package var headers: ProofHeaders

        package init(submissions: [Submission], schedule: RetrySchedule, headers: ProofHeaders = ProofHeaders()) {
            self.submissions = submissions
            self.schedule = schedule
            self.headers = headers
        }
    }

    /// The limit of bare ids of one user and UTC day that lead nowhere; the next one is refused. An id that no worker
    /// has judged yet counts, so that the limit also stops a user who guesses faster than the workers judge.
    package static let questionsPerUserMax = 20

    /// Stores the receipts of a batch that are not stored yet, with their payloads, and counts them on the independent
    /// side of the conservation check. Returns the inserted rows, and without a row the ids that are refused. Every
    /// batch brings the headers that its proofs share, so none can be missing, whatever was restored from which backup.
    package static let insertReceipts = Statement<Insertion, (id: UUID, row: InsertedReceipt?)>(
        "ledger.insert_receipts",
        """
        with asked as materialized (
          select q.id, take_question_place(q.app, q.holder, q.id, \(questionsPerUserMax)) as may
          from (
            -- All posts without a user and an order count together.
            select id, app, encode(sha256(convert_to(coalesce(usr, ''), 'UTF8')), 'hex') as holder
            from unnest($1::uuid[], $2::text[], $3::text[], $5::text[], $9::bool[], $4::text[]) with ordinality
              as i(id, app, usr, kind, vouched, ordr, n)
            where kind = 'identifier' and not vouched and (usr is not null or ordr is null)
            order by app, holder, n offset 0) q),
        new as (
          insert into receipts (id, app_id, user_id, order_id, kind, lane, transaction_id, original_transaction_id,
            is_vouched, details, payload_sha256, due_at, installation_id, target, declared, shown_transaction_id,
            shown_product_id)
          select id, app, usr, ordr, kind, lane, transaction, original, vouched, details, sha,
            now() + make_interval(secs => rescue), \(installation(ofToken: "token")), target, declared,
            coalesce(shown, transaction, original), product
          from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
            $9::bool[], $10::jsonb[], $11::bytea[], $12::float8[], $17::jsonb[], $18::jsonb[], $19::bytea[],
            $20::text[], $21::text[])
            as i(id, app, usr, ordr, kind, lane, transaction, original, vouched, details, sha, rescue, target, declared,
              token, shown, product)
          where (id in (select id from asked where not may)) is not true
          order by id
          on conflict (id) do nothing
          returning id, app_id, received_at, due_at),
        \(keepingProofs("unnest($1::uuid[], $13::text[], $14::bytea[])", "unnest($15::bytea[], $16::text[])", source: "'post'"))
        select id, received_at, due_at from new
        union all
        select id, null, null from asked where not may
        """,
        bind: { insertion in
            let submissions = insertion.submissions
            let lanes = submissions.map(\.lane)
            let bodies = submissions.map { insertion.headers.split($0.proof) }
            let headers = Set(bodies.compactMap(\.header))
            return [
                .uuids(submissions.map(\.receiptID)), .texts(submissions.map(\.appID)),
                .texts(submissions.map(\.userID)), .texts(submissions.map(\.orderID)),
                .texts(submissions.map(\.proof.kind.rawValue)), .texts(lanes.map(\.rawValue)),
                .texts(submissions.map(\.transactionID)), .texts(submissions.map(\.originalTransactionID)),
                .bools(submissions.map(\.isVouched)), .jsons(submissions.map(\.details)),
                .bytesArray(submissions.map(\.proof.payloadSHA256)),
                .doubles(
                    submissions.map {
                        ($0.waitsForTurn ? insertion.schedule.turnDelay : insertion.schedule.rescueDelay($0.lane))
                            .inSeconds
                    }),
                .texts(bodies.map(\.body)), .bytesArray(bodies.map(\.header?.sha256)),
                .bytesArray(headers.map(\.sha256)), .texts(headers.map(\.text)),
                .jsons(submissions.map(\.target)), .jsons(submissions.map { $0.declared?.json }),
                .bytesArray(submissions.map(\.installationTokenSHA256)),
                .texts(submissions.map(\.shownTransactionID)), .texts(submissions.map(\.shownProductID)),
            ]
        },
        read: { row throws(PostgresError) in
            let id = try row.uuid(0)
            guard let receivedAt = try row.optionalDate(1) else { return (id, nil) }
            return (id, InsertedReceipt(id: id, receivedAt: receivedAt, dueAt: try row.date(2)))
        })

    /// SQL: CTEs that store the payloads of the receipts in the CTE `new` with the headers that they share, and count
    /// the receipts on the independent side of the conservation check.
    ///
    /// - Parameters:
    ///   - bodies: rows of a receipt's id, its own part of the payload, and the hash of its header.
    ///   - headers: rows of a header's hash and text.
    ///   - source: who brought the receipts, as an expression of a row of `new`.
    static func keepingProofs(_ bodies: String, _ headers: String, source: String) -> String {
        """
        stored as (
          insert into stored_payloads (receipt_id, received_on, body, header_sha256)
          select id, (now() at time zone 'UTC')::date, body, header
          from \(bodies) as i(id, body, header)
          where body <> '' and id in (select id from new)),
        headers as (
          insert into proof_headers (sha256, header)
          select sha, header from \(headers) as h(sha, header) order by sha
          on conflict do nothing),
        tally as (
          insert into tallies as t (app_id, day, source, shard, received)
          select app_id, (now() at time zone 'UTC')::date, source, pg_backend_pid() % 64, count(*)
          from (select app_id, \(source) as source from new) n group by app_id, source order by app_id, source
          on conflict (app_id, day, source, shard) do update set received = t.received + excluded.received)
        """
    }

    /// The rows that messages point at, with their payloads. A kept payload is read only where the payload of the day
    /// is gone. An id that is not stored is missing from the result.
    package static let fetchReceipts = Statement<[UUID], StoredReceipt>(
        "ledger.fetch_receipts",
        """
        select r.id, r.app_id, \(person("coalesce(r.user_id, o.user_id)", of: "r.app_id")), r.kind,
          case when r.kind <> 'identifier'
            then coalesce(p.body, (select body from kept_payloads where receipt_id = r.id)) end,
          r.transaction_id,
          r.original_transaction_id, r.is_vouched, r.lane, r.state, r.reason, r.attempt, r.received_at, now(),
          -- CASE, because AND would look through all receipts of the user where the reason is null.
          case when r.reason = 'no_transaction_yet' then exists (select from receipts later
            where later.app_id = r.app_id and later.user_id = r.user_id and later.received_at > r.received_at
              and later.state in ('granted', 'already_granted')) end,
          r.rescues,
          (select bool_or(\(waitsForAnswer)) from provisional_grants p where p.receipt_id = r.id),
          r.order_id, r.installation_id, r.target, r.declared,
          (select true from ordering_apps where app_id = r.app_id), coalesce(r.claimed_at, r.received_at), r.lines,
          case when r.lines > 0 then (
            select jsonb_agg(jsonb_build_object('transactionID', transaction_id, 'orderID', order_id,
              'target', target::text, 'declared', declared))
            from (
              select distinct on (transaction_id) transaction_id, order_id, target, declared from receipt_lines
              where receipt_id = r.id and transaction_id <> coalesce(r.transaction_id, '')
              order by transaction_id, said_at desc) l
            where r.transaction_id is not null or not exists (select from outcomes o where o.receipt_id = r.id and o.transaction_id = l.transaction_id
              and o.state = 'held' and o.reason in ('foreign_order', 'foreign_record', 'token_disputed'))) end,
          r.source, r.wakes
        from unnest($1::uuid[]) as i(id)
        cross join lateral (select id, app_id, user_id, order_id, kind, transaction_id, original_transaction_id, is_vouched,
          lane, state, reason, attempt, rescues, received_at, claimed_at, installation_id, target, declared, lines, source,
          wakes
          from receipts where id = i.id offset 0) r
        left join lateral (select body from payloads where receipt_id = r.id
          and received_on = (r.received_at at time zone 'UTC')::date offset 0) p on true
        left join lateral (select user_id, app_id from orders where id::text = lower(r.order_id) and r.user_id is null
          offset 0) o on o.app_id = r.app_id
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            let kind = try row.kind(3)
            let body = try row.optionalText(4)
            return StoredReceipt(
                id: try row.uuid(0), appID: try row.text(1), userID: try row.optionalText(2),
                proof: Proof(kind: kind, payload: body ?? ""), transactionID: try row.optionalText(5),
                originalTransactionID: try row.optionalText(6), orderID: try row.optionalText(17),
                installationID: try row.optionalText(18), target: try row.optionalJSON(19),
                declared: try row.optionalJSON(20) == nil ? nil : try row.decoded(20),
                appHasOrders: try row.optionalBool(21) ?? false,
                isVouched: try row.bool(7), source: try row.word(25), lane: try row.lane(8),
                state: try row.state(9), reason: try row.optionalText(10), attempt: try row.int(11),
                wakes: try row.int(26), rescues: try row.int(15),
                receivedAt: try row.date(12), claimedAt: try row.date(22), readAt: try row.date(13),
                isTakenOver: try row.optionalBool(14) ?? false, hasPayload: kind == .identifier || body != nil,
                isOnTrust: try row.optionalBool(16) ?? false, lines: try row.int(23),
                otherLines: try row.optionalJSON(24) == nil ? [] : try row.decoded(24))
        })

    /// Moves due times without counting an attempt, because of a halt, a breaker or a 429. Guarded like a verdict, and
    /// like a verdict it does not wait: it passes over a row that another process has locked, and that row's due time
    /// brings the row back.
    package static let postpone = Statement<[Postponement], UUID>(
        "ledger.postpone",
        """
        update receipts r set due_at = now() + make_interval(secs => m.due_in), rescues = 0, judged_at = now(),
          reason = case when r.state = 'received' and r.reason is distinct from 'unconfirmed' then m.reason
            else r.reason end
        from (
          select i.id, i.due_in, i.reason
          from unnest($1::uuid[], $2::int[], $3::float8[], $4::text[], $5::int[]) as i(id, attempt, due_in, reason, lines)
          cross join lateral (select 1 from receipts r
            where r.id = i.id and r.settled_at is null and r.attempt = i.attempt and r.lines = i.lines
            for no key update skip locked) l) m
        where r.id = m.id
        returning r.id
        """,
        bind: { rows in
            [
                .uuids(rows.map(\.receiptID)), .int32s(rows.map(\.attempt)), .doubles(rows.map { $0.dueIn.inSeconds }),
                .texts(rows.map(\.reason.rawValue)), .int32s(rows.map(\.lines)),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// Moves receipts that need Apple to the lane `apple`; their pointers follow. A receipt that nobody posted never
    /// leaves its lane: a program of the version before would judge it as posted. The statement does not wait: it
    /// passes over a row that another process has locked, and that row's due time brings the row back.
    package static let reroute = Statement<[Postponement], UUID>(
        "ledger.reroute",
        """
        update receipts r set lane = case when r.lane = 'unposted' then r.lane else 'apple' end,
          due_at = now() + make_interval(secs => m.due_in)
        from (
          select i.id, i.due_in from unnest($1::uuid[], $2::int[], $3::float8[]) as i(id, attempt, due_in)
          cross join lateral (select 1 from receipts r
            where r.id = i.id and r.settled_at is null and r.attempt = i.attempt
            for no key update skip locked) l) m
        where r.id = m.id
        returning r.id
        """,
        bind: { rows in
            [
                .uuids(rows.map(\.receiptID)), .int32s(rows.map(\.attempt)), .doubles(rows.map { $0.dueIn.inSeconds }),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })
}

/// A new due time for a row, or also a new lane, without a verdict.
package struct Postponement: Sendable {
    package let receiptID: UUID
    package let attempt: Int
    package let dueIn: Duration
    package let reason: Reason
    /// ``StoredReceipt/lines`` as they were read. A later post that said something else has made the receipt due
    /// sooner, and must not be postponed.
    package var lines = 0

    package init(receiptID: UUID, attempt: Int, dueIn: Duration, reason: Reason, lines: Int = 0) {
        self.receiptID = receiptID
        self.attempt = attempt
        self.dueIn = dueIn
        self.reason = reason
        self.lines = lines
    }
}

extension RowReader {
    package func state(_ index: Int) throws(PostgresError) -> ReceiptState { try word(index) }
    package func lane(_ index: Int) throws(PostgresError) -> Lane { try word(index) }
    package func kind(_ index: Int) throws(PostgresError) -> Proof.Kind { try word(index) }

    /// A value of a closed list that a CHECK of the table enforces. Any other value is a newer schema or our bug.
    package func word<Word: RawRepresentable>(_ index: Int) throws(PostgresError) -> Word
    where Word.RawValue == String {
        guard let word = Word(rawValue: try text(index)) else { throw undecodable(index) }
        return word
    }
}

extension Declaration {
    /// The JSON that is stored.
    var json: String {
        var members: [JSONValue.Member] = []
        func add(_ name: String, _ value: JSONValue?) {
            if let value { members.append(.init(name, value)) }
        }
        add("item", item.map(JSONValue.string))
        add("productID", productID.map(JSONValue.string))
        add("quantity", quantity.map(JSONValue.integer))
        add("priceMilliunits", priceMilliunits.map(JSONValue.integer))
        add("currency", currency.map(JSONValue.string))
        add("uid", uid.map(JSONValue.string))
        add("promotion", promotion.map(JSONValue.string))
        add("disregarded", disregarded.map { .array($0.map(JSONValue.string)) })
        add("isOfPlaceholder", isOfPlaceholder.map(JSONValue.bool))
        return JSONValue.object(members).text
    }
}
