import Encoding
package import Foundation
package import Postgres
package import Purchases

/// An Apple update that a process has claimed, until its lease ends.
package struct ClaimedAppleUpdate: Sendable, Equatable {
    package let appID: String
    package let environment: String
    package let kind: AppleUpdate.Kind
    package let transactionID: String
    package let originalTransactionID: String
    /// The token of a `AppleUpdate/Kind/setToken`.
    package let token: UUID?
    /// How often Apple was asked before.
    package let attempt: Int
    package let age: Duration
}

/// The result of a try at an Apple update.
package struct AppleUpdateResult: Sendable, Equatable {
    package enum State: String, Sendable {
        case open, parked
        /// Ended: no process tries again.
        case done, refused
    }

    package let appleUpdate: ClaimedAppleUpdate
    /// Nil: unchanged, because Apple was not asked.
    package let state: State?
    /// Nil: the update is done.
    package let reason: Reason?
    /// Whether the try counts as an attempt: Apple was asked, and the answer was about this Apple update.
    package let counts: Bool
    /// When the update is due again, unless it has ended.
    package let dueIn: Duration
    package let httpStatus: Int?
    package let code: Int?

    package init(
        appleUpdate: ClaimedAppleUpdate, state: State?, reason: Reason?, counts: Bool, dueIn: Duration,
        httpStatus: Int?,
        code: Int?
    ) {
        self.appleUpdate = appleUpdate
        self.state = state
        self.reason = reason
        self.counts = counts
        self.dueIn = dueIn
        self.httpStatus = httpStatus
        self.code = code
    }
}

/// An app's Apple updates of one kind in one environment. The updates of a line share one limit of Apple's, so they
/// wait only for each other.
package struct AppleUpdateLine: Sendable, Hashable {
    package let appID: String
    package let environment: String
    package let kind: AppleUpdate.Kind
    /// Whether only updates of granted purchases are claimed.
    package var needsGrant = false

    package init(appID: String, environment: String, kind: AppleUpdate.Kind, needsGrant: Bool = false) {
        self.appID = appID
        self.environment = environment
        self.kind = kind
        self.needsGrant = needsGrant
    }
}

extension Statements {
    package struct AppleUpdateClaim: Sendable {
        package let lines: [AppleUpdateLine]
        package let limit: Int
        /// Longer than any try takes. If a process dies with an Apple update, another process claims it after the
        /// lease.
        package let lease: Duration

        package init(lines: [AppleUpdateLine], limit: Int, lease: Duration) {
            self.lines = lines
            self.limit = limit
            self.lease = lease
        }
    }

    /// Claims Apple updates that are due: lines in turn, oldest first, skipping those that another process claims at
    /// this moment. A token that a later purchase of its chain has replaced, with a token of ours or one that the app
    /// gave that purchase, is ended as superseded instead.
    package static let claimAppleUpdates = Statement<AppleUpdateClaim, ClaimedAppleUpdate>(
        "apple_updates.claim",
        """
        with due as (
          select c.transaction_id, c.kind, case when c.kind = 'set_token' then coalesce((
              select true from apple_updates n
              where n.original_transaction_id = c.original_transaction_id and n.kind = 'set_token'
                and n.app_id = c.app_id and n.environment = c.environment
                and (n.purchased_at, n.transaction_id) > (c.purchased_at, c.transaction_id) limit 1), (
              select true from transactions t
              where t.original_transaction_id = c.original_transaction_id and t.app_id = c.app_id
                and t.environment = c.environment and t.purchased_at > c.purchased_at
                and t.app_account_token not in (
                  select ours from apple_updates cross join lateral unnest(former_tokens || token) ours
                  where original_transaction_id = c.original_transaction_id and kind = 'set_token'
                    and app_id = c.app_id and environment = c.environment) limit 1)) end as is_superseded
          from (
            select e.*, row_number() over (partition by i.app, i.environment, i.kind order by e.due_at) as turn
            from unnest($1::text[], $2::text[], $3::text[], $6::bool[]) as i(app, environment, kind, needs_grant)
            cross join lateral (
              select transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, due_at from apple_updates
              where app_id = i.app and environment = i.environment and kind = i.kind
                and due_at is not null and due_at <= now()
                and (not i.needs_grant or (select true from grants where transaction_id = apple_updates.transaction_id))
              order by due_at limit $4 for no key update skip locked) e) c
          order by c.turn, c.due_at limit $4),
        taken as (
          update apple_updates e set
            state = case when d.is_superseded then 'superseded' else e.state end,
            ended_at = case when d.is_superseded then now() end,
            due_at = case when d.is_superseded is not true then now() + make_interval(secs => $5) end
          from due d where e.transaction_id = d.transaction_id and e.kind = d.kind
          returning e.*)
        select app_id, environment, kind, transaction_id, original_transaction_id, token, attempt,
          extract(epoch from now() - created_at)::float8
        from taken where due_at is not null
        """,
        bind: { claim in
            [
                .texts(claim.lines.map(\.appID)), .texts(claim.lines.map(\.environment)),
                .texts(claim.lines.map(\.kind.rawValue)), .int(claim.limit), .double(claim.lease.inSeconds),
                .bools(claim.lines.map(\.needsGrant)),
            ]
        },
        read: { row throws(PostgresError) in
            ClaimedAppleUpdate(
                appID: try row.text(0), environment: try row.text(1), kind: try row.word(2),
                transactionID: try row.text(3), originalTransactionID: try row.text(4),
                token: try row.optionalUUID(5), attempt: try row.int(6), age: .seconds(try row.double(7)))
        })

    /// Writes the results of tries. An update that has ended meanwhile stays ended: a process that exceeded its lease
    /// has lost it. A result about another token than the current one is dropped as well.
    package static let reportAppleUpdates = Statement<[AppleUpdateResult], Void>(
        "apple_updates.report",
        """
        update apple_updates e set
          state = coalesce(i.state, e.state), reason = i.reason, attempt = e.attempt + i.counts::int,
          http_status = coalesce(i.http_status, e.http_status),
          code = case when i.http_status is null then e.code else i.code end,
          due_at = case when coalesce(i.state, e.state) in ('open', 'parked')
            then now() + make_interval(secs => i.due_in) end,
          ended_at = case when i.state not in ('open', 'parked') then now() end
        from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::float8[], $7::int[], $8::int8[],
            $9::text[])
          as i(transaction, kind, state, reason, counts, due_in, http_status, code, token)
        where e.transaction_id = i.transaction and e.kind = i.kind and e.due_at is not null
          and e.token is not distinct from i.token::uuid
        """,
        bind: { results in
            [
                .texts(results.map(\.appleUpdate.transactionID)), .texts(results.map(\.appleUpdate.kind.rawValue)),
                .texts(results.map(\.state?.rawValue)), .texts(results.map(\.reason?.rawValue)),
                .bools(results.map(\.counts)), .doubles(results.map(\.dueIn.inSeconds)),
                .int32s(results.map(\.httpStatus)), .ints(results.map(\.code)),
                .texts(results.map(\.appleUpdate.token?.text)),
            ]
        })

    package struct OpenAppleUpdates: Sendable {
        package let appID: String
        package let kind: String
        package let state: String
        package let appleUpdates: Int
        /// How long the oldest of these updates has been due; 0 where none is.
        package let overdueSeconds: Double
    }

    /// The open and parked Apple updates by app, kind and state, zeros included.
    package static let openAppleUpdates = Statement<Void, OpenAppleUpdates>(
        "apple_updates.open",
        """
        select a.app_id, k.kind, s.state, count(e.app_id),
          greatest(0, coalesce(extract(epoch from now() - min(e.due_at)), 0))::float8
        from apps a cross join (values ('set_token'), ('finish')) k(kind) cross join (values ('open'), ('parked')) s(state)
        left join v_apple_updates e on e.app_id = a.app_id and e.kind = k.kind and e.state = s.state and e.due_at is not null
        group by 1, 2, 3
        """,
        read: { row throws(PostgresError) in
            OpenAppleUpdates(
                appID: try row.text(0), kind: try row.text(1), state: try row.text(2), appleUpdates: try row.int(3),
                overdueSeconds: try row.double(4))
        })
}
