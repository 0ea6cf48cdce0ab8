package import Foundation
package import Postgres
package import Purchases

// The claims of customers, and how a claim ends.
extension Statements {
    /// The most customers of one claim. The number stands in the texts, as ``customerStepMax`` does.
    package static let customersClaimedMax = 4

    package struct CustomerClaim: Sendable {
        /// Of apps that may be asked now.
        package var places: [SweptPlace]
        /// How long no other reader asks.
        package var lease: Duration
        /// After this time a sweep begins at the first page, whatever is known.
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
    /// page; a new one goes on behind the last one, or begins at the first page: the first sweep, one after entries that
    /// did not verify, one for the sample, and one half a year after the last such sweep.
    package static let claimCustomers = Statement<CustomerClaim, ClaimedCustomer>(
        "customers.claim",
        """
        with place as (
          select * from unnest($1::text[], $2::text[], $3::bool[]) as p(app, environment, has_rota)),
        due as (
          select w.*, true as is_wanted from place p cross join lateral (
            select app_id, environment, customer, due_at from history_walks
            where app_id = p.app and environment = p.environment and wanted_by is not null and due_at <= now()
              and (swept_until <= now()) is not false
            order by due_at limit \(customersClaimedMax) for no key update skip locked) w
          union all
          select w.*, false from place p cross join lateral (
            select app_id, environment, customer, due_at from history_walks
            where app_id = p.app and environment = p.environment and wanted_by is null and due_at <= now()
              and p.has_rota and (swept_until <= now()) is not false
            order by due_at limit \(customersClaimedMax) for no key update skip locked) w),
        chosen as (
          select c.*, begins and (w.swept_revision is null or w.passed_over > 0 or w.wanted_by = 'sample'
            or (w.whole_at > now() - make_interval(secs => $5)) is not true) as is_whole, begins
          from (select * from due order by is_wanted desc, due_at limit \(customersClaimedMax)) c
          join history_walks w using (app_id, environment, customer)
          cross join lateral (select w.swept_begun_at is null) b(begins))
        update history_walks w set sweeper = w.sweeper + 1, swept_until = now() + make_interval(secs => $4),
          swept_begun_at = coalesce(w.swept_begun_at, now()),
          swept_asked_id = case when c.is_whole then w.asked_id else coalesce(w.swept_asked_id, w.asked_id) end,
          swept_revision = case when not c.is_whole then w.swept_revision end,
          whole_at = case when c.is_whole then now() else w.whole_at end,
          passed_over = case when c.begins then 0 else w.passed_over end,
          swept_pages = case when c.begins then 0 else w.swept_pages end
        from chosen c
        where w.app_id = c.app_id and w.environment = c.environment and w.customer = c.customer
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

    /// The place that a sweep has reached in Apple's list. It is moved in the transaction that stores a page.
    package struct CustomerPlace: Sendable {
        package enum Net: Sendable {
            case customer, refund
        }

        package enum Next: Sendable, Equatable {
            /// The same reader asks for the next page within this time.
            case page(lease: Duration)
            /// Others have their turn for this time.
            case rest(Duration)
            /// All pages are stored. The customer is asked again after this time.
            case end(dueIn: Duration)
            /// All pages are stored, and Apple names the customer by another id: the row leaves the rota.
            case gone
        }

        package var net: Net
        package var walk: Walk
        package var reader: Int
        /// Behind the page; nil: Apple named none.
        package var revision: String?
        /// Entries of the page that do not verify.
        package var passedOver: Int
        package var next: Next

        package init(
            net: Net, _ claimed: ClaimedCustomer, revision: String?, passedOver: Int, next: Next
        ) {
            self.net = net
            walk = claimed.walk
            reader = claimed.reader
            self.revision = revision
            self.passedOver = passedOver
            self.next = next
        }

        fileprivate var word: String {
            switch next {
            case .page: "page"
            case .rest: "rest"
            case .end: "end"
            case .gone: "gone"
            }
        }

        fileprivate var seconds: Double {
            switch next {
            case .page(let duration), .rest(let duration), .end(let duration): duration.inSeconds
            case .gone: 0
            }
        }
    }

    /// Moves the places of sweeps whose reader still has the claim. A wish that came during the sweep stays.
    ///
    /// After entries that do not verify the customer is asked again within a day, and from the first page.
    static let moveCustomers = Statement<[CustomerPlace], Void>(
        "customers.move", placeColumns,
        sql: { rows in
            """
            update history_walks w set swept_revision = coalesce(i.revision, w.swept_revision),
              swept_pages = w.swept_pages + 1, passed_over = w.passed_over + i.passed_over, failures = 0, problem = null,
              swept_until = case when i.next = 'page' then now() + make_interval(secs => i.seconds) else now() end,
              swept_begun_at = case when i.next in ('page', 'rest') then w.swept_begun_at end,
              swept_at = case when i.next in ('page', 'rest') then w.swept_at else now() end,
              wanted_by = case when i.next in ('page', 'rest') or i.next = 'end' and w.wanted_at > w.swept_begun_at
                then w.wanted_by end,
              refunds_due_at = case when i.next <> 'gone' then w.refunds_due_at end,
              due_at = case i.next when 'page' then w.due_at when 'gone' then 'infinity'
                when 'rest' then now() + make_interval(secs => i.seconds)
                else case when w.wanted_at > w.swept_begun_at then w.due_at
                  when w.passed_over + i.passed_over > 0 then now() + make_interval(secs => least(i.seconds, i.day))
                  else now() + make_interval(secs => i.seconds) end end
            from \(lockedPlaces(rows, reader: "sweeper")) i
            where w.app_id = i.app and w.environment = i.environment and w.customer = i.customer
            """
        })

    static let moveRefunds = Statement<[CustomerPlace], Void>(
        "customers.move_refunds", placeColumns,
        sql: { rows in
            """
            update history_walks w set refunds_revision = case when i.next in ('page', 'rest') then i.revision end,
              refunds_passed_over = i.passed_over
                + case when w.refunds_revision is null then 0 else w.refunds_passed_over end,
              refunds_failures = 0,
              refunds_until = case when i.next = 'page' then now() + make_interval(secs => i.seconds) else now() end,
              refunds_at = case when i.next = 'end' then now() else w.refunds_at end,
              refunds_due_at = case when w.refunds_due_at is null then null when i.next = 'page' then w.refunds_due_at
                when i.next = 'rest' or w.active_until > now() then now() + make_interval(secs => i.seconds) end
            from \(lockedPlaces(rows, reader: "refunds_reader")) i
            where w.app_id = i.app and w.environment = i.environment and w.customer = i.customer
            """
        })

    private static let placeColumns: [Column<CustomerPlace>] = [
        .text("app") { $0.walk.appID }, .text("environment") { $0.walk.environment },
        .text("customer") { $0.walk.customer }, .int("reader") { $0.reader }, .text("revision") { $0.revision },
        .int32("passed_over") { $0.passedOver }, .text("next") { $0.word }, .double("seconds") { $0.seconds },
        .double("day") { _ in 86_400 },
    ]

    /// SQL: the places whose reader has the claim, locked in the order of their keys.
    private static func lockedPlaces(_ rows: BatchRows, reader: String) -> String {
        """
        (select i.* from \(rows.rows(as: "i")) join history_walks w
            on (w.app_id, w.environment, w.customer) = (i.app, i.environment, i.customer) and w.\(reader) = i.reader
          order by i.app, i.environment, i.customer for no key update of w)
        """
    }

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
        with due as (
          select w.* from unnest($1::text[], $2::text[]) as p(app, environment) cross join lateral (
            select app_id, environment, customer, refunds_due_at from history_walks
            where app_id = p.app and environment = p.environment and refunds_due_at <= now()
              and (refunds_until <= now()) is not false
            order by refunds_due_at limit \(customersClaimedMax) for no key update skip locked) w
          order by w.refunds_due_at limit \(customersClaimedMax))
        update history_walks w set refunds_reader = w.refunds_reader + 1,
          refunds_until = now() + make_interval(secs => $3)
        from due c
        where w.app_id = c.app_id and w.environment = c.environment and w.customer = c.customer
        returning w.app_id, w.environment, w.customer, w.refunds_reader, coalesce(w.swept_asked_id, w.asked_id),
          w.refunds_revision, w.refunds_failures, 0, now()
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
