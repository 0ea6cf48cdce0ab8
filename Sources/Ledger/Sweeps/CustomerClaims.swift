package import Foundation
package import Postgres
package import Purchases

// The claims of customers, and how a claim ends.
extension Statements {
    /// The most customers of one claim. The number stands in the texts, as ``customerStepMax`` does.
    package static let customersClaimedMax = 4
    /// The most customers that a claim looks at: another worker may claim some of them at this moment.
    private static let customersSeenMax = 8

    package struct CustomerClaim: Sendable {
        /// Of apps that may be asked now.
        package var places: [SweptPlace]
        /// How long no other reader asks.
        package var lease: Duration
        /// After this time a sweep begins at the first page, also where a later place is known.
        package var wholeEvery: Duration

        package init(places: [SweptPlace], lease: Duration, wholeEvery: Duration) {
            self.places = places
            self.lease = lease
            self.wholeEvery = wholeEvery
        }
    }

    /// A customer of whom the caller asks Apple, until the lease ends.
    package struct ClaimedCustomer: Sendable, Equatable {
        package let walk: Walk
        package let reader: Int
        package let askedID: String
        /// Nil: the list begins.
        package let revision: String?
        /// In a row, before this claim.
        package let failures: Int
        /// Pages of this sweep that are stored.
        package let pages: Int
        package let readAt: Date
    }

    /// Claims customers whose time has come: first those whom somebody wants. A sweep that is under way goes on at its
    /// page; a new one goes on behind the last one, or begins at the first page: the first sweep, one after entries
    /// that did not verify, one for the sample, and one half a year after the last such sweep.
    ///
    /// The update finds the locked rows by their place (`ctid`). By their key a plan that was kept from an empty table
    /// would read all customers.
    package static let claimCustomers = Statement<CustomerClaim, ClaimedCustomer>(
        "customers.claim",
        """
        with place as (
          select * from unnest($1::text[], $2::text[], $3::bool[]) as p(app, environment, has_rota)),
        due as materialized (
          select d.* from (
            select w.*, true as is_wanted from place p cross join lateral (
              select app_id, environment, customer, due_at from history_walks
              where app_id = p.app and environment = p.environment and wanted_by is not null and due_at <= now()
                and (swept_until > now()) is not true
              order by due_at limit \(customersSeenMax)) w
            union all
            select w.*, false from place p cross join lateral (
              select app_id, environment, customer, due_at from history_walks
              where app_id = p.app and environment = p.environment and wanted_by is null and due_at <= now()
                and p.has_rota and (swept_until > now()) is not true
              order by due_at limit \(customersSeenMax)) w) d
          order by d.is_wanted desc, d.due_at limit \(customersSeenMax)),
        chosen as materialized (
          select w.*, w.begins and (w.swept_revision is null or w.passed_over > 0
            or w.wanted_by is not distinct from 'sample'
            or (w.whole_at > now() - make_interval(secs => $5)) is not true) as is_whole
          from (select * from due order by is_wanted desc, due_at offset 0) d cross join lateral (
            select ctid as place, swept_begun_at is null as begins, swept_revision, passed_over, wanted_by, whole_at
            from history_walks
            where app_id = d.app_id and environment = d.environment and customer = d.customer and due_at <= now()
              and (swept_until > now()) is not true
            for no key update skip locked) w
          limit \(customersClaimedMax))
        update history_walks w set sweeper = w.sweeper + 1, swept_until = now() + make_interval(secs => $4),
          swept_begun_at = coalesce(w.swept_begun_at, now()),
          swept_asked_id = case when c.is_whole then w.asked_id else coalesce(w.swept_asked_id, w.asked_id) end,
          swept_revision = case when not c.is_whole then w.swept_revision end,
          whole_at = case when c.is_whole then now() else w.whole_at end,
          passed_over = case when c.begins then 0 else w.passed_over end,
          swept_pages = case when c.begins then 0 else w.swept_pages end
        from chosen c where w.ctid = c.place
        returning w.app_id, w.environment, w.customer, w.sweeper, w.swept_asked_id, w.swept_revision, w.failures,
          w.swept_pages, now()
        """,
        bind: { claim in
            [
                .texts(claim.places.map(\.appID)), .texts(claim.places.map(\.environment)),
                .bools(claim.places.map { $0.customersEvery != nil }),
                .double(claim.lease.inSeconds), .double(claim.wholeEvery.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.claimedCustomer() })

    /// A claim that stored no page.
    package struct PutOffCustomer: Sendable {
        package var net: CustomerPlace.Net
        package var walk: Walk
        package var reader: Int
        package var dueIn: Duration
        /// Why Apple's answer was of no use. Nil: Apple was not asked, and the row stays due.
        package var problem: Reason?
        /// Apple refuses the place in the list, so the list begins anew.
        package var forgetsPlace: Bool

        package init(
            net: CustomerPlace.Net, _ claimed: ClaimedCustomer, dueIn: Duration, problem: Reason?,
            forgetsPlace: Bool = false
        ) {
            self.net = net
            walk = claimed.walk
            reader = claimed.reader
            self.dueIn = dueIn
            self.problem = problem
            self.forgetsPlace = forgetsPlace
        }

        fileprivate var values: [Value] {
            [
                .text(walk.appID), .text(walk.environment), .text(walk.customer), .int(reader),
                .double(dueIn.inSeconds),
                .text(problem?.rawValue), .bool(forgetsPlace),
            ]
        }
    }

    package static let putOffCustomer = Statement<PutOffCustomer, Void>(
        "customers.put_off",
        """
        update history_walks set swept_until = case when $6::text is null then now() + make_interval(secs => $5)
            else now() end,
          due_at = case when $6::text is null then due_at else now() + make_interval(secs => $5) end,
          failures = failures + case when $6::text is null then 0 else 1 end, problem = coalesce($6, problem),
          swept_revision = case when not $7 then swept_revision end,
          swept_begun_at = case when not $7 then swept_begun_at end
        where app_id = $1 and environment = $2 and customer = $3 and sweeper = $4
        """,
        bind: { $0.values })

    package static let putOffRefunds = Statement<PutOffCustomer, Void>(
        "customers.put_off_refunds",
        """
        update history_walks set refunds_until = case when $6::text is null then now() + make_interval(secs => $5)
            else now() end,
          refunds_due_at = case when $6::text is null then refunds_due_at
            else now() + make_interval(secs => $5) end,
          refunds_failures = refunds_failures + case when $6::text is null then 0 else 1 end,
          refunds_revision = case when not $7 then refunds_revision end
        where app_id = $1 and environment = $2 and customer = $3 and refunds_reader = $4
        """,
        bind: { $0.values })

    /// Claims customers whose refunds are due. A list that goes on goes on; any other begins at its first page.
    package static let claimRefunds = Statement<CustomerClaim, ClaimedCustomer>(
        "customers.claim_refunds",
        """
        with due as materialized (
          select w.* from unnest($1::text[], $2::text[]) as p(app, environment) cross join lateral (
            select app_id, environment, customer, refunds_due_at from history_walks
            where app_id = p.app and environment = p.environment and refunds_due_at <= now()
              and (refunds_until > now()) is not true
            order by refunds_due_at limit \(customersSeenMax)) w
          order by w.refunds_due_at limit \(customersSeenMax)),
        chosen as materialized (
          select w.* from (select * from due order by refunds_due_at offset 0) d cross join lateral (
            select ctid as place from history_walks
            where app_id = d.app_id and environment = d.environment and customer = d.customer
              and refunds_due_at <= now() and (refunds_until > now()) is not true
            for no key update skip locked) w
          limit \(customersClaimedMax))
        update history_walks w set refunds_reader = w.refunds_reader + 1,
          refunds_until = now() + make_interval(secs => $3)
        from chosen c where w.ctid = c.place
        returning w.app_id, w.environment, w.customer, w.refunds_reader, coalesce(w.swept_asked_id, w.asked_id),
          w.refunds_revision, w.refunds_failures,
          case when w.refunds_revision is null then 0 else w.refunds_pages end, now()
        """,
        bind: { claim in
            let places = claim.places.filter { $0.refundsEvery != nil }
            return [
                .texts(places.map(\.appID)), .texts(places.map(\.environment)),
                .double(claim.lease.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.claimedCustomer() })

    /// Purchases of the customer that were taken back here as refunds and that Apple's whole list of refunds lacks.
    package static let refundsUndone = Statement<(walk: Walk, listed: [String]), String>(
        "customers.refunds_undone",
        """
        select t.transaction_id from (
          select transaction_id from grants where customer_id = $3 and app_id = $1 and environment = $2
          union select transaction_id from transactions where original_transaction_id = $3 and app_id = $1
            and environment = $2) g
        cross join lateral (
          select transaction_id from transactions where transaction_id = g.transaction_id and revoked_at is not null
            and facts ->> 'isUpgraded' is distinct from 'true' offset 0) t
        cross join lateral (
          select kind, reason from revocations where transaction_id = g.transaction_id
          order by ordinal desc limit 1) r
        where r.kind = 'revoked' and r.reason = 'refunded' and t.transaction_id <> all($4::text[])
        limit 20
        """,
        bind: { [.text($0.walk.appID), .text($0.walk.environment), .text($0.walk.customer), .texts($0.listed)] },
        read: { row throws(PostgresError) in try row.text(0) })
}

extension RowReader {
    fileprivate func claimedCustomer() throws(PostgresError) -> Statements.ClaimedCustomer {
        Statements.ClaimedCustomer(
            walk: .init(appID: try text(0), environment: try text(1), customer: try text(2)), reader: try int(3),
            askedID: try text(4), revision: try optionalText(5), failures: try int(6), pages: try int(7),
            readAt: try date(8))
    }
}

extension Statements.CustomerPlace {
    package init(
        net: Net, _ claimed: Statements.ClaimedCustomer, revision: String?, passedOver: Int, next: Next
    ) {
        self.init(
            net: net, walk: claimed.walk, reader: claimed.reader, revision: revision, passedOver: passedOver,
            next: next)
    }
}
