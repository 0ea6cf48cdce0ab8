package import Foundation
package import Postgres
import Purchases

/// The later of two purchases that may be one, charged twice.
package struct DoubleCharge: Sendable, Equatable {
    package let transactionID: String
    package let appID: String
    package let userID: String
    package let productID: String
    package let receiptID: UUID
    package let firstTransactionID: String
}

extension Statements {
    /// A place in the events: `xid` and `id` of one event.
    package struct EventPlace: Sendable, Equatable {
        package let xid: String
        package let id: Int
    }

    /// The events whose purchases are compared with those before them: the events after `after` up to `last`.
    package struct DoubleChargeStep: Sendable {
        package let after: EventPlace
        package let last: EventPlace
        /// There may be more events after `last`.
        package let isMore: Bool
    }

    package struct DoubleChargeTurn: Sendable {
        /// How long the other schedulers leave the search alone after one has begun a step.
        package var interval: Duration
        /// The most events of a step.
        package var batch: Int

        package init(interval: Duration, batch: Int) {
            self.interval = interval
            self.batch = batch
        }
    }

    /// The next events to be searched. No row: there are none, or another scheduler searches. Two schedulers that come
    /// at the same moment may both search; what they find is flagged once.
    ///
    /// As in the feed, the statement passes over no event whose transaction could still commit before another's. The
    /// progress of a server that has counted further (a dump was restored) would never be reached: the search then
    /// begins with the events from now on.
    package static let takeDoubleChargeStep = Statement<DoubleChargeTurn, DoubleChargeStep>(
        "double_charges.take",
        """
        with turn as (
          update double_charge_progress set taken_at = now(),
            searched_xid = least(searched_xid, pg_snapshot_xmin(pg_current_snapshot()))
          where taken_at not between now() - make_interval(secs => $1) and now()
          returning searched_xid as xid, searched_id as id),
        step as (
          select e.xid, e.id from turn cross join lateral (
            select xid, id from events
            where (xid, id) > (turn.xid, turn.id) and xid < pg_snapshot_xmin(pg_current_snapshot())
            order by xid, id limit $2) e)
        select turn.xid::text, turn.id, last.xid::text, last.id, (select count(*) from step) = $2
        from turn cross join lateral (select xid, id from step order by xid desc, id desc limit 1) last
        """,
        bind: { [.double($0.interval.inSeconds), .int($0.batch)] },
        read: { row throws(PostgresError) in
            DoubleChargeStep(
                after: EventPlace(xid: try row.text(0), id: try row.int(1)),
                last: EventPlace(xid: try row.text(2), id: try row.int(3)), isMore: try row.bool(4))
        })

    /// Notes that all events up to the step's last one are searched.
    package static let endDoubleChargeStep = Statement<DoubleChargeStep, Void>(
        "double_charges.end", "update double_charge_progress set searched_xid = $1::xid8, searched_id = $2",
        bind: { [.text($0.last.xid), .int($0.last.id)] })

    /// Age in seconds of the oldest event that is not searched yet; no row where there is none.
    package static let doubleChargesBehind = Statement<Void, Double>(
        "double_charges.behind",
        """
        select extract(epoch from clock_timestamp() - at)::float8
        from double_charge_progress p cross join lateral (
          select at from events where (xid, id) > (p.searched_xid, p.searched_id) order by xid, id limit 1) e
        """,
        read: { row throws(PostgresError) in try row.double(0) })

    package struct DoubleChargeQuestion: Sendable {
        package var step: DoubleChargeStep
        /// The longest time between two purchases of one user and product that may be one.
        package var window: Duration
        /// Two purchases within this time may be one by that alone.
        package var moment: Duration

        package init(step: DoubleChargeStep, window: Duration, moment: Duration) {
            self.step = step
            self.window = window
            self.moment = moment
        }
    }

    /// How many are found at a time. The next ones are found once these are flagged.
    package static let doubleChargesMax = 1000

    /// Purchases that follow another one of the same user and product closely, and were probably meant to be that one:
    /// both were bought within a moment, or the first was not granted yet when the second was bought, or the app
    /// reported a failure in between. Without such a sign the user simply bought two. The step granted the user
    /// something, and nobody has flagged the purchase. Purchases of accounts that became part of the user's account
    /// count as the user's. Each purchase is compared with the one before it, so that a user who buys a thousand costs
    /// a thousand look-ups. The statement reads the user's grants since the first purchase of the step was bought or
    /// granted, less the window and one hour, because clocks may differ. Periods are left out: a subscription is
    /// charged again by its nature.
    package static let findDoubleCharges = Statement<DoubleChargeQuestion, DoubleCharge>(
        "double_charges.find",
        """
        select transaction_id, app_id, user_id, product_id, receipt_id, earlier from (
          select g.transaction_id, g.app_id, g.user_id, g.product_id, g.receipt_id, t.purchased_at,
            lag(g.transaction_id) over w as earlier, lag(t.purchased_at) over w as earlier_at,
            lag(g.granted_at) over w as earlier_granted_at
          from (
            -- Most users bought one of a product: these are not looked at again.
            select b.app_id, b.user_id, g.*,
              count(*) over (partition by b.app_id, b.user_id, product_id, environment) as times
            from (
              select e.app_id, \(person("e.user_id", of: "e.app_id")) as user_id,
                greatest(
                  least(min(purchased_at), min(at)) - make_interval(secs => $5) - interval '1 hour',
                  now() - interval '30 days') as since
              from events e cross join lateral \(purchase(of: "e"))
              where (e.xid, e.id) > ($1::xid8, $2::int8) and (e.xid, e.id) <= ($3::xid8, $4::int8)
                and e.type = '\(EventType.purchaseGranted.rawValue)'
              group by 1, 2) b
            cross join lateral (
              select transaction_id, receipt_id, product_id, environment, granted_at from grants
              where app_id = b.app_id and user_id = any(
                  b.user_id || array(select user_id from merges where app_id = b.app_id and into_user_id = b.user_id))
                and granted_at >= b.since and binding_source <> 'shared' offset 0) g) g
          cross join lateral \(purchase(of: "g"))
          where times > 1
          window w as (partition by g.app_id, g.user_id, g.product_id, g.environment
            order by t.purchased_at, g.transaction_id)) p
        where purchased_at - earlier_at <= make_interval(secs => $5)
          and (purchased_at - earlier_at <= make_interval(secs => $6) or earlier_granted_at >= purchased_at
            or exists (select from client_reports r
              where r.app_id = p.app_id and r.user_id = any(
                  p.user_id || array(select user_id from merges where app_id = p.app_id and into_user_id = p.user_id))
                and r.reported_at between earlier_at and purchased_at
                and r.kind in ('failed', 'error', 'paid_without_proof')
                and (r.transaction_id is null or r.transaction_id = earlier)))
          and (select true from double_charges where transaction_id = p.transaction_id limit 1) is null
        order by transaction_id
        limit \(doubleChargesMax)
        """,
        bind: {
            [
                .text($0.step.after.xid), .int($0.step.after.id), .text($0.step.last.xid), .int($0.step.last.id),
                .double($0.window.inSeconds), .double($0.moment.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in
            DoubleCharge(
                transactionID: try row.text(0), appID: try row.text(1), userID: try row.text(2),
                productID: try row.text(3), receiptID: try row.uuid(4), firstTransactionID: try row.text(5))
        })

    /// SQL: when a purchase was bought, as `t`; no row for periods and renewals.
    private static func purchase(of row: String) -> String {
        """
        (select purchased_at from transactions
            where transaction_id = \(row).transaction_id and original_transaction_id = transaction_id
              and expires_at is null offset 0) t
        """
    }

    /// Flags these purchases and writes an event for each, once.
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
          select event, app, '\(EventType.possibleDoubleCharge.rawValue)', usr, transaction, receipt,
            jsonb_build_object('productId', product, 'firstTransactionId', first)
          from charge where transaction in (select transaction_id from flagged) order by transaction
          on conflict (transaction_id, event_id) do nothing)
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
                            appID: $0.appID, transactionID: $0.transactionID, type: .possibleDoubleCharge)
                    }),
            ]
        },
        read: { row throws(PostgresError) in try row.text(0) })
}
