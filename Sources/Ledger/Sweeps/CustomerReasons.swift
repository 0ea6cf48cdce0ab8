package import Postgres
package import Purchases

extension Statements {
    /// Customers of whom Apple is to be asked before the rota.
    package struct WantedCustomers: Sendable {
        package enum Name: Sendable {
            /// A purchase of the customer: its id, or the id of its chain.
            case purchase(String)
            /// The customers of this user's last purchases, as the tables name the user.
            case user(String)
        }

        package var customers: [(appID: String, name: Name)]
        package var reason: CustomerReason
        /// The shortest time from the last sweep of a customer to the next.
        package var apart: Duration

        package init(
            _ customers: [(appID: String, name: Name)], reason: CustomerReason, apart: Duration = .seconds(600)
        ) {
            self.customers = customers
            self.reason = reason
            self.apart = apart
        }
    }

    /// Makes customers due, and returns how many. A customer who is not known here, or of whom Apple cannot be asked,
    /// is none of them.
    package static let wantCustomer = Statement<WantedCustomers, Int>(
        "customers.want", "select want_customers($1::text[], $2::text[], $3::text[], $4, $5)",
        bind: { wanted in
            [
                .texts(wanted.customers.map(\.appID)),
                .texts(wanted.customers.map { if case .purchase(let id) = $0.name { id } else { nil } }),
                .texts(wanted.customers.map { if case .user(let id) = $0.name { id } else { nil } }),
                .text(wanted.reason.rawValue), .double(wanted.apart.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    /// A look for reasons in a part of the time since the last look.
    package struct ReasonsLook: Sendable {
        /// The longest part.
        package static let spanMax: Duration = .seconds(600)

        /// The shortest time from the last sweep of a customer to the next.
        package var apart: Duration
        /// The length of the part.
        package var span: Duration

        package init(apart: Duration, span: Duration = spanMax) {
            self.apart = apart
            self.span = span
        }
    }

    /// SQL: the time to which a look goes at most. Later times wait: a transaction that is not yet committed may write
    /// one, and a transaction is at work for `statement_timeout` and `lock_timeout` at most.
    private static let looksTo = "now() - interval '15 seconds'"

    /// Makes the customers due whose users let the time to pay an order pass without a purchase. Looks at a part of the
    /// time since the last look. No row: another worker looks, or nothing passed. The row says whether more time is
    /// left.
    package static let wantUnpaid = Statement<ReasonsLook, Bool>(
        "customers.want_unpaid",
        """
        with turn as materialized (
          select orders_to as after, least(\(looksTo), orders_to + make_interval(secs => $2)) as until
          from customer_progress where orders_to < \(looksTo) for no key update skip locked),
        unpaid as (
          select distinct o.app_id, o.user_id from turn cross join lateral (
            select id, app_id, user_id from orders
            where pay_by > turn.after and pay_by <= turn.until and channel = 'apple' offset 0) o
          where (select true from grants where order_id = o.id) is null),
        wanted as materialized (
          select want_customers(array_agg(app_id), array_fill(null::text, array[count(*)::int]), array_agg(user_id),
            '\(CustomerReason.unpaidOrder.rawValue)', $1) from unpaid having count(*) > 0),
        moved as (update customer_progress set orders_to = turn.until from turn returning orders_to)
        select orders_to < \(looksTo), (select count(*) from wanted) from moved
        """,
        bind: { [.double($0.apart.inSeconds), .double($0.span.inSeconds)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Makes the customers due about whom an app reported `paid_without_proof`; the rest is as for unpaid orders.
    package static let wantReported = Statement<ReasonsLook, Bool>(
        "customers.want_reported",
        """
        with turn as materialized (
          select reports_to as after, least(\(looksTo), reports_to + make_interval(secs => $2)) as until
          from customer_progress where reports_to < \(looksTo) for no key update skip locked),
        reported as (
          select r.app_id, r.transaction_id, r.user_id from turn cross join apps a cross join lateral (
            select app_id, transaction_id, user_id from client_reports
            where app_id = a.app_id and kind = '\(ClientReport.Kind.paidWithoutProof.rawValue)' and handled_at is null
              and reported_at > turn.after and reported_at <= turn.until offset 0) r),
        wanted as materialized (
          select want_customers(array_agg(app_id), array_agg(transaction_id), array_agg(user_id),
            '\(CustomerReason.paidWithoutProof.rawValue)', $1) from reported having count(*) > 0),
        moved as (update customer_progress set reports_to = turn.until from turn returning reports_to)
        select reports_to < \(looksTo), (select count(*) from wanted) from moved
        """,
        bind: { [.double($0.apart.inSeconds), .double($0.span.inSeconds)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Makes the customers due whom support looks up: of a purchase, and of the user of an order or a receipt.
    package static let wantLookedUp = Statement<(appID: String, subject: TimelineSubject), Int>(
        "customers.want_looked_up",
        """
        select want_customers(array_agg(app), array_agg(purchase), array_agg(usr),
          '\(CustomerReason.support.rawValue)', 600)
        from (
          select $1 as app, $2::text as purchase, null::text as usr where $2 is not null
          union all
          select app_id, transaction_id, user_id from receipts where id = $3 and app_id = $1
          union all
          select app_id, null, user_id from orders where id = $3 and app_id = $1) s
        having count(*) > 0
        """,
        bind: { question in
            switch question.subject {
            case .transaction(let id): [.text(question.appID), .text(id), .uuid(nil)]
            case .receipt(let id), .order(let id): [.text(question.appID), .text(nil), .uuid(id)]
            }
        },
        read: { row throws(PostgresError) in try row.int(0) })
}
