package import Foundation
package import Postgres
import Purchases

extension Statements {
    /// A purchase of which the app's backend may report the consumption.
    package struct ConsumedPurchase: Sendable, Equatable {
        package let appID: String
        /// Of the grant; nil: nobody was granted it.
        package let transactionID: String?
        /// All goods of the grant, or Apple's quantity where it has none.
        package let units: Int
        package let isShared: Bool
        /// Whether Apple gave the money back, all or in part, by the newest facts.
        package let isRefunded: Bool
    }

    /// A purchase by any posted id under which Apple lists the purchase. No row: the id is not known here.
    package static let consumedPurchase = Statement<String, ConsumedPurchase>(
        "consumption.purchase",
        """
        with t as (
          select app_id, ownership in (\(sharedOwnerships)) as is_shared, \(isRefund("transactions")) as is_refunded
          from transactions where transaction_id = $1),
        g as (
          select transaction_id, app_id, binding_source, quantity, goods from grants
          where transaction_id in ($1, (
            select granted_as from outcomes
            where transaction_id = $1 and state <> 'granted' and granted_as is not null limit 1))
          order by transaction_id <> $1 limit 1)
        select coalesce(g.app_id, t.app_id), g.transaction_id,
          least(coalesce((select sum((part ->> 'amount')::numeric) from jsonb_array_elements(g.goods) part),
            g.quantity, 0), 9223372036854775807)::int8,
          coalesce(t.is_shared, false) or coalesce(g.binding_source = 'shared', false), coalesce(t.is_refunded, false)
        from (values (1)) one left join t on true left join g on true
        where t.app_id is not null or g.app_id is not null
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in
            ConsumedPurchase(
                appID: try row.text(0), transactionID: try row.optionalText(1), units: try row.int(2),
                isShared: try row.bool(3), isRefunded: try row.bool(4))
        })

    package struct ConsumptionReport: Sendable {
        /// Of the grant.
        package let transactionID: String
        package let appID: String
        /// In thousandths of a percent.
        package let percentage: Int
        /// As reported, where units were reported.
        package let units: Int?
        /// Nil: now.
        package let at: Date?

        package init(transactionID: String, appID: String, percentage: Int, units: Int?, at: Date?) {
            self.transactionID = transactionID
            self.appID = appID
            self.percentage = percentage
            self.units = units
            self.at = at
        }
    }

    package struct StoredConsumption: Sendable, Equatable {
        package let at: Date
        package let isRepeated: Bool
    }

    /// Stores a report of consumption, unless the report is stored already. A report without a time is the same as the
    /// newest report if both say the same share.
    package static let reportConsumption = Statement<ConsumptionReport, StoredConsumption>(
        "consumption.report",
        """
        with newest as (
          select percentage, units, at from consumption_reports
          where transaction_id = $1 and ($5::timestamptz is null or at = $5)
          order by at desc, reported_at desc limit 1),
        same as (select at from newest where percentage = $3 and units is not distinct from $4),
        written as (
          insert into consumption_reports (transaction_id, app_id, percentage, units, at)
          select $1, $2, $3, $4, coalesce($5, now()) where not exists (select from same)
          returning at)
        select at, false from written union all select at, true from same
        """,
        bind: {
            [
                .text($0.transactionID), .text($0.appID), .int32($0.percentage), .int($0.units), .date($0.at),
            ]
        },
        read: { row throws(PostgresError) in StoredConsumption(at: try row.date(0), isRepeated: try row.bool(1)) })
}
