package import Foundation
package import Postgres
import Purchases

/// Two purchases that may be one, charged twice: the later of them.
package struct DoubleCharge: Sendable, Equatable {
    package let transactionID: String
    package let appID: String
    package let userID: String
    package let productID: String
    package let receiptID: UUID
    package let firstTransactionID: String

    fileprivate static let eventType = "purchase.possible_double_charge"
}

extension Statements {
    package struct DoubleChargeQuestion: Sendable {
        /// Grants of this time until now are looked at.
        package var lookBack: Duration
        /// Two purchases of one user and product within this time.
        package var window: Duration
    }

    /// Purchases granted lately that another one of the same user and product lies close to, either before or after it,
    /// and whose later one nobody has flagged. No periods: a subscription is charged again by its nature.
    package static let findDoubleCharges = Statement<DoubleChargeQuestion, DoubleCharge>(
        "double_charges.find",
        """
        select distinct on (pair.later) pair.later, g.app_id, g.user_id, g.product_id, pair.receipt_id, pair.earlier
        from (select transaction_id, app_id, user_id, product_id, environment, receipt_id from grants
            where granted_at >= now() - make_interval(secs => $1) and binding_source <> 'shared' offset 0) g
        cross join lateral (select purchased_at from transactions
          where transaction_id = g.transaction_id and original_transaction_id = transaction_id
            and expires_at is null offset 0) t
        cross join lateral (
          select o.transaction_id, o.receipt_id, f.purchased_at
          from (select transaction_id, receipt_id from grants
            where app_id = g.app_id and user_id = g.user_id and product_id = g.product_id
              and environment = g.environment and transaction_id <> g.transaction_id offset 0) o
          cross join lateral (select purchased_at from transactions where transaction_id = o.transaction_id
            and original_transaction_id = transaction_id offset 0) f
          where f.purchased_at between t.purchased_at - make_interval(secs => $2)
            and t.purchased_at + make_interval(secs => $2)) other
        cross join lateral (
          select case when is_later then g.transaction_id else other.transaction_id end as later,
            case when is_later then g.receipt_id else other.receipt_id end as receipt_id,
            case when is_later then other.transaction_id else g.transaction_id end as earlier
          from (select (t.purchased_at, g.transaction_id) > (other.purchased_at, other.transaction_id) as is_later) l
          offset 0) pair
        where not exists (select from double_charges where transaction_id = pair.later)
        order by pair.later, pair.earlier
        limit 1000
        """,
        bind: { [.double($0.lookBack.inSeconds), .double($0.window.inSeconds)] },
        read: { row throws(PostgresError) in
            DoubleCharge(
                transactionID: try row.text(0), appID: try row.text(1), userID: try row.text(2),
                productID: try row.text(3), receiptID: try row.uuid(4), firstTransactionID: try row.text(5))
        })

    /// Flags them and tells of it, each once.
    package static let flagDoubleCharges = Statement<[DoubleCharge], String>(
        "double_charges.flag",
        """
        with charge as (
          select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::uuid[])
            as i(transaction, app, usr, product, receipt, first, event)),
        flagged as (
          insert into double_charges (transaction_id, app_id, user_id, product_id, first_transaction_id)
          select transaction, app, usr, product, first from charge order by transaction
          on conflict do nothing
          returning transaction_id),
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select event, app, '\(DoubleCharge.eventType)', usr, transaction, receipt,
            jsonb_build_object('productId', product, 'firstTransactionId', first)
          from charge where transaction in (select transaction_id from flagged) order by transaction
          on conflict (event_id) do nothing)
        select transaction_id from flagged
        """,
        bind: { charges in
            [
                .texts(charges.map(\.transactionID)), .texts(charges.map(\.appID)), .texts(charges.map(\.userID)),
                .texts(charges.map(\.productID)), .uuids(charges.map(\.receiptID)),
                .texts(charges.map(\.firstTransactionID)),
                .uuids(
                    charges.map {
                        DerivedID.event(
                            appID: $0.appID, transactionID: $0.transactionID, type: DoubleCharge.eventType)
                    }),
            ]
        },
        read: { row throws(PostgresError) in try row.text(0) })
}
