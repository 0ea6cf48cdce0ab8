import Encoding
package import Foundation
package import Postgres
package import Purchases

/// A question of Apple's about a refund that a process has claimed, until its lease ends.
package struct ClaimedRefundRequest: Sendable, Equatable {
    package let request: RefundRequest
    /// The number of earlier tries.
    package let attempt: Int
    /// Since Apple signed it, by the clock of the database.
    package let age: TimeInterval
    package let edit: RefundEdit?
    /// The edit in this request's own row as it was read, a JSON object: a guard for the report.
    package let edited: String?
}

/// The result of a try to answer.
package struct RefundRequestResult: Sendable, Equatable {
    package enum State: String, Sendable {
        case answered, unanswered
    }

    package let request: RefundRequest
    /// As ``ClaimedRefundRequest/edited``.
    package let edited: String?
    /// Nil: the request stays open.
    package var state: State?
    /// Of an unanswered one.
    package var silence: RefundSilence?
    /// Whether the try counts: Apple was asked, and its answer was about this request.
    package var counts = false
    /// When the request is due again, unless it has ended.
    package var dueIn: Duration = .zero
    /// The body that was sent, a JSON object. Nil: Apple got nothing.
    package var answer: String?
    package var apiVersion: Int?
    package var httpStatus: Int?
    package var code: Int?

    package init(_ claimed: ClaimedRefundRequest) {
        request = claimed.request
        edited = claimed.edited
    }
}

extension Statements {
    package struct RefundClaim: Sendable {
        /// How long each app waits before it answers.
        package let apps: [(id: String, answerAfter: Duration)]
        package let limit: Int
        /// Longer than any try takes.
        package let lease: Duration

        package init(apps: [(id: String, answerAfter: Duration)], limit: Int, lease: Duration) {
            self.apps = apps
            self.limit = limit
            self.lease = lease
        }
    }

    private static let answerWithin = "interval '\(Int(RefundRequest.answerWithin)) seconds'"

    /// Claims the cases of which a request is due. Apple takes one answer for a purchase, so the newest open request of
    /// a case is answered and the older ones end as superseded. A request that was not tried yet becomes due at the
    /// app's time to answer, unless support sends it at once. The first request of a case is locked for the whole case,
    /// and a case that another process claims at this moment is passed over.
    package static let claimRefundRequests = Statement<RefundClaim, ClaimedRefundRequest>(
        "refund_requests.claim",
        """
        with due as (
          select r.notification_id, r.case_id, r.due_at, greatest(now(), a.at) as answer_at, r.due_at > now()
              or r.attempt = 0 and r.edited ->> 'sendNow' is distinct from 'true' and a.at > now() as is_early
          from unnest($1::text[], $2::float8[]) as i(app, after)
          join refund_requests r on r.app_id = i.app and r.asked_at > now() - \(answerWithin)
          cross join lateral (select r.asked_at + make_interval(secs => i.after) as at) a
          where r.due_at <= now() or r.attempt = 0 and r.http_status is null
            and r.due_at > greatest(now() + make_interval(secs => $4), a.at)),
        early as (
          update refund_requests r set due_at = d.answer_at from due d
          where r.notification_id = d.notification_id and d.is_early and r.due_at = d.due_at
            and not exists (select from due other where other.case_id = d.case_id and not other.is_early)),
        cases as (
          select notification_id as case_id from refund_requests
          where notification_id in (
            select case_id from due where not is_early group by case_id order by min(due_at) limit $3)
          for no key update skip locked),
        newest as (
          select distinct on (r.case_id) r.case_id, r.notification_id, r.edited as own, (
              select e.edited from refund_requests e
              where e.case_id = r.case_id and e.edited is not null order by e.asked_at desc limit 1) as edited
          from cases join refund_requests r on r.case_id = cases.case_id
          where r.state = 'open' order by r.case_id, r.asked_at desc, r.notification_id desc),
        taken as (
          update refund_requests r set
            state = case when r.notification_id = n.notification_id then r.state else 'unanswered' end,
            reason = case when r.notification_id <> n.notification_id
              then '\(RefundSilence.superseded.rawValue)' else r.reason end,
            ended_at = case when r.notification_id <> n.notification_id then now() end,
            due_at = case when r.notification_id = n.notification_id then now() + make_interval(secs => $4) end,
            claimed_until = case when r.notification_id = n.notification_id then now() + make_interval(secs => $4) end
          from newest n where r.case_id = n.case_id and r.state = 'open'
          returning r.*, n.edited as edit, n.own)
        select notification_id, app_id, environment, transaction_id, original_transaction_id, request_reason, asked_at,
          attempt, extract(epoch from now() - asked_at)::float8, edit, own
        from taken where state = 'open'
        """,
        bind: {
            [
                .texts($0.apps.map(\.id)), .doubles($0.apps.map(\.answerAfter.inSeconds)), .int($0.limit),
                .double($0.lease.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in
            ClaimedRefundRequest(
                request: try refundRequest(row), attempt: try row.int(7), age: try row.double(8),
                edit: try refundEdit(row, 9), edited: try row.optionalJSON(10))
        })

    private static func refundRequest(_ row: borrowing RowReader) throws(PostgresError) -> RefundRequest {
        RefundRequest(
            notificationID: try row.uuid(0), appID: try row.text(1), environment: try row.text(2),
            transactionID: try row.text(3), originalID: try row.text(4), reason: try row.optionalText(5),
            askedAt: try row.date(6))
    }

    private static func refundEdit(_ row: borrowing RowReader, _ column: Int) throws(PostgresError) -> RefundEdit? {
        guard let json = try row.optionalJSON(column) else { return nil }
        guard let edit = try? JSONDecoder().decode(RefundEdit.self, from: Data(json.utf8)) else {
            throw row.undecodable(column)
        }
        return edit
    }

    /// Ends the requests of every app to which Apple takes no answer any more. Leaves a request whose call may be under
    /// way.
    package static let endLateRefundRequests = Statement<Void, String>(
        "refund_requests.end_late",
        """
        update refund_requests set state = 'unanswered', reason = '\(RefundSilence.tooLate.rawValue)', ended_at = now(),
          due_at = null, claimed_until = null
        where notification_id in (
          select notification_id from refund_requests
          where due_at <= now() and asked_at <= now() - \(answerWithin) for no key update skip locked)
        returning app_id
        """,
        read: { row throws(PostgresError) in try row.text(0) })

    /// Writes the results of tries, and returns the requests that have them. A request that has ended meanwhile stays
    /// ended, unless it was superseded while Apple took its answer. A request that support has edited since it was read
    /// stays open: it is answered again by the edit, and of two answers Apple takes the second.
    package static let reportRefundRequests = Statement<[RefundRequestResult], UUID>(
        "refund_requests.report",
        """
        update refund_requests r set
          state = coalesce(i.state, r.state), reason = i.reason, attempt = r.attempt + i.counts::int,
          answer = coalesce(i.answer, r.answer), api_version = coalesce(i.api_version, r.api_version),
          http_status = coalesce(i.http_status, r.http_status),
          code = case when i.http_status is null then r.code else i.code end,
          due_at = case when i.state is null
            then least(now() + make_interval(secs => i.due_in), r.asked_at + \(answerWithin)) end,
          ended_at = case when i.state is not null then now() end, claimed_until = null
        from unnest($1::uuid[], $2::text[], $3::text[], $4::bool[], $5::float8[], $6::jsonb[], $7::int[], $8::int[],
            $9::int8[], $10::jsonb[])
          as i(id, state, reason, counts, due_in, answer, api_version, http_status, code, edited)
        where r.notification_id = i.id and (r.state = 'open' and r.edited is not distinct from i.edited
          or r.reason = '\(RefundSilence.superseded.rawValue)' and i.state = 'answered')
        returning r.notification_id
        """,
        bind: { results in
            [
                .uuids(results.map(\.request.notificationID)), .texts(results.map(\.state?.rawValue)),
                .texts(results.map(\.silence?.rawValue)), .bools(results.map(\.counts)),
                .doubles(results.map(\.dueIn.inSeconds)), .jsons(results.map(\.answer)),
                .int32s(results.map(\.apiVersion)), .int32s(results.map(\.httpStatus)), .ints(results.map(\.code)),
                .jsons(results.map(\.edited)),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// How long after Apple asked an open request is late.
    package static let refundRequestsLateAfter: Duration = .seconds(11 * 3600)

    /// The open requests of each app that are late, zeros included.
    package static let lateRefundRequests = Statement<Void, (appID: String, requests: Int)>(
        "refund_requests.late",
        """
        select a.app_id, count(r.app_id)
        from apps a left join refund_requests r on r.app_id = a.app_id and r.due_at is not null
          and r.asked_at < now() - make_interval(secs => \(Int(refundRequestsLateAfter.inSeconds)))
        group by 1
        """,
        read: { row throws(PostgresError) in (appID: try row.text(0), requests: try row.int(1)) })
}

// MARK: - What is known of the purchase

extension Statements {
    package struct RefundQuestion: Sendable {
        package let appID: String
        package let transactionID: String

        package init(_ request: RefundRequest) {
            appID = request.appID
            transactionID = request.transactionID
        }
    }

    /// The facts about the purchase and its user's consent at this moment. One row.
    ///
    /// Apple may ask by another id than the one that was granted. The user of a purchase that nobody was granted is the
    /// one of its token, or else the one who posted it first.
    package static let refundFacts = Statement<RefundQuestion, RefundFacts>(
        "refund_requests.facts",
        """
        with t as (
          select app_id, environment, original_transaction_id, product_id, kind, expires_at, app_account_token,
            ownership in (\(sharedOwnerships)) as is_shared, facts ->> 'isAdvancedCommerce' = 'true' as is_advanced,
            case when \(isRefund("transactions")) then revoked_at end as refunded_at
          from transactions where transaction_id = $2 and app_id = $1),
        g as (
          select transaction_id, app_id, environment, user_id, product_id, binding_source from grants
          where app_id = $1 and transaction_id in ($2, (select granted_as from outcomes
            where transaction_id = $2 and state <> 'granted' and granted_as is not null limit 1))
          order by transaction_id <> $2 limit 1),
        former as (select user_id, product_id from imported_grants where transaction_id = $2 and app_id = $1),
        whose as (select coalesce((select o.user_id from g join t on true join ownerships o on o.app_id = g.app_id
                and o.environment = g.environment and o.original_transaction_id = t.original_transaction_id
                and o.transaction_id = g.transaction_id and o.move > 0
              order by o.move desc limit 1),
            (select user_id from g), (select user_id from former),
            (select u.user_id from t join user_tokens u on u.app_id = t.app_id and u.token = t.app_account_token),
            (select o.user_id from t join orders o on o.id = t.app_account_token and o.app_id = t.app_id),
            (select r.user_id from outcomes o
              cross join lateral (select app_id, user_id from receipts where id = o.receipt_id offset 0) r
              where o.transaction_id = $2 and o.state <> 'granted' and r.app_id = $1 and r.user_id is not null
              order by o.decided_at limit 1)) as id),
        holder as (select \(person("whose.id", of: "$1")) as id from whose)
        select (select true from t) is true or (select true from g) is true or (select true from former) is true,
          ((select true from g) is true or (select true from former) is true)
            and (select is_undelivered(transaction_id) from g) is not true,
          (select is_shared from t) is true or (select binding_source = 'shared' from g) is true, (select kind from t),
          coalesce((select product_id from t), (select product_id from g), (select product_id from former)),
          (select expires_at is not null from t) is true, (select is_advanced from t) is true,
          (select app_account_token from t), h.id,
          coalesce(h.id ~ '\(UserErasure.tombstonePattern)', false) or exists (
            select from users where app_id = $1 and user_key = h.id and erased_at is not null),
          (select is_given from consents where app_id = $1 and (user_id = h.id or user_id in (
            select user_id from merges where app_id = $1 and into_user_id = h.id)) order by at desc limit 1) is true,
          (select percentage from consumption_reports where transaction_id = (select transaction_id from g)
            order by at desc, reported_at desc limit 1), (select refunded_at from t) from holder h
        """,
        bind: { [.text($0.appID), .text($0.transactionID)] },
        read: { row throws(PostgresError) in
            RefundFacts(
                isKnown: try row.bool(0), isDelivered: try row.bool(1), isShared: try row.bool(2),
                kind: try row.optionalText(3).flatMap(Transaction.Kind.init(rawValue:)),
                productID: try row.optionalText(4), expires: try row.bool(5), isAdvancedCommerce: try row.bool(6),
                appAccountToken: try row.optionalUUID(7), userID: try row.optionalText(8), isErased: try row.bool(9),
                hasConsent: try row.bool(10), consumed: try row.optionalInt(11), refundedAt: try row.optionalDate(12))
        })
}

// MARK: - Support

/// A question of Apple's about a refund, as support sees it.
package struct ListedRefundRequest: Sendable {
    package let request: RefundRequest
    package let caseID: UUID
    package let productID: String?
    /// `open`, `answered` or `unanswered`.
    package let state: String
    package let reason: String?
    package let dueAt: Date?
    package let attempt: Int
    /// Since Apple signed it, by the clock of the database.
    package let age: TimeInterval
    /// The newest edit of the case.
    package let edit: RefundEdit?
    package let editedBy: String?
    /// The body that was sent, a JSON object.
    package let answer: String?
    package let apiVersion: Int?
    package let httpStatus: Int?
    package let code: Int?
    package let endedAt: Date?
    /// The time at which the app said that its user had asked for the refund (`refund_requested`).
    package let reportedAt: Date?
}

extension Statements {
    package struct RefundSearch: Sendable {
        package var appID: String?
        /// `open`, `answered`, `unanswered`; nil: all.
        package var state: String?
        /// A request's or a case's id; nil: any.
        package var id: UUID?
        package var transactionID: String?
        package var limit: Int

        package init(
            appID: String? = nil, state: String? = nil, id: UUID? = nil, transactionID: String? = nil, limit: Int
        ) {
            self.appID = appID
            self.state = state
            self.id = id
            self.transactionID = transactionID
            self.limit = limit
        }
    }

    /// Apple's questions about refunds, the newest first. Of a request's id all requests of its case.
    package static let searchRefundRequests = Statement<RefundSearch, ListedRefundRequest>(
        "refund_requests.search",
        """
        select r.notification_id, r.app_id, r.environment, r.transaction_id, r.original_transaction_id, r.request_reason,
          r.asked_at, r.case_id, v.product_id, r.state, r.reason, r.due_at, r.attempt,
          extract(epoch from now() - r.asked_at)::float8, e.edited, e.edited_by, r.answer, r.api_version, r.http_status,
          r.code, r.ended_at, v.user_reported_at
        from refund_requests r
        left join lateral (
          select edited, edited_by from refund_requests where case_id = r.case_id and edited is not null
          order by asked_at desc limit 1) e on true
        left join lateral (
          select product_id, user_reported_at from v_refund_requests where notification_id = r.notification_id
          offset 0) v on true
        where ($1::text is null or r.app_id = $1) and ($2::text is null or r.state = $2)
          and ($3::uuid is null or r.case_id in (
            select case_id from refund_requests where notification_id = $3 or case_id = $3))
          and ($4::text is null or r.transaction_id = $4)
        order by r.asked_at desc, r.notification_id desc limit $5
        """,
        bind: { [.text($0.appID), .text($0.state), .uuid($0.id), .text($0.transactionID), .int($0.limit)] },
        read: { row throws(PostgresError) in
            ListedRefundRequest(
                request: try refundRequest(row), caseID: try row.uuid(7), productID: try row.optionalText(8),
                state: try row.text(9), reason: try row.optionalText(10), dueAt: try row.optionalDate(11),
                attempt: try row.int(12), age: try row.double(13),
                edit: try refundEdit(row, 14), editedBy: try row.optionalText(15),
                answer: try row.optionalJSON(16), apiVersion: try row.optionalInt(17),
                httpStatus: try row.optionalInt(18), code: try row.optionalInt(19), endedAt: try row.optionalDate(20),
                reportedAt: try row.optionalDate(21))
        })

    package struct RefundEditing: Sendable {
        package let id: UUID
        /// As a whole.
        package let edit: RefundEdit
        package let actor: String

        package init(id: UUID, edit: RefundEdit, actor: String) {
            self.id = id
            self.edit = edit
            self.actor = actor
        }

        fileprivate var json: String? {
            (try? JSONEncoder().encode(edit)).map { String(decoding: $0, as: UTF8.self) }
        }
    }

    /// Stores support's edit with its editor, and audits the edit in the same statement. No row: the request has ended, or a worker answers it at this moment.
    package static let editRefundRequest = Statement<RefundEditing, UUID>(
        "refund_requests.edit",
        """
        with edited as (
          update refund_requests set edited = $2, edited_by = $3,
            due_at = case when $2 ->> 'sendNow' = 'true' then now() else due_at end
          where notification_id = $1 and state = 'open' and (claimed_until <= now()) is not false
          returning notification_id, app_id, transaction_id),
        audited as (
          insert into audits (actor, action, details)
          select $3, 'support.refund_request',
            jsonb_build_object('app', app_id, 'transaction', transaction_id, 'request', notification_id, 'edit', $2)
          from edited)
        select notification_id from edited
        """,
        bind: { [.uuid($0.id), .json($0.json), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.uuid(0) })
}
