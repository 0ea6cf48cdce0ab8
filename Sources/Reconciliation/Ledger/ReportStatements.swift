package import Foundation
package import Postgres
import Purchases

/// What an app told of a purchase that went wrong.
package struct ClientReport: Sendable, Equatable {
    package enum Kind: String, Sendable, CaseIterable {
        case failed, cancelled, deferred, error
        /// The player was charged and the app got nothing to show for it: a person looks at it.
        case paidWithoutProof = "paid_without_proof"
        case refundRequested = "refund_requested"
    }

    package var appID: String
    /// Nil: the order's user, or nobody's.
    package var userID: String?
    package var orderID: UUID?
    package var transactionID: String?
    package var kind: Kind
    package var message: String?
    package var appVersion: String?
    /// A JSON object.
    package var details: String

    /// The same report is the same row.
    package var id: UUID {
        DerivedID.make([
            appID, userID ?? "", orderID?.uuidString ?? "", transactionID ?? "", kind.rawValue, message ?? "",
            appVersion ?? "", details,
        ])
    }
}

extension Statements {
    /// Reports of one user and day; one more is answered 429.
    package static let reportsPerUserMax = 200

    package struct StoredReport: Sendable, Equatable {
        /// Nil: no order of this app and user.
        package let orderID: UUID?
        package let isNew: Bool
    }

    /// Stores a report, linked with its order where it is one of this app and user. No row: the user sent too many.
    package static let storeReport = Statement<ClientReport, StoredReport>(
        "reports.store",
        """
        with linked as (
          select id, user_id from orders where id = $4 and app_id = $2 and ($3::text is null or user_id = $3)),
        whose as (select coalesce($3, (select user_id from linked)) as user_id),
        new as (
          insert into client_reports (id, app_id, user_id, order_id, transaction_id, kind, message, app_version, details)
          select $1, $2, w.user_id, (select id from linked), $5, $6, $7, $8, $9
          from whose w
          where w.user_id is null or (select count(*) from (select from client_reports c where c.app_id = $2
            and c.user_id = w.user_id and c.reported_at > now() - interval '1 day' limit \(reportsPerUserMax)) sent)
            < \(reportsPerUserMax)
          on conflict do nothing
          returning order_id)
        select order_id, true from new
        union all
        select order_id, false from client_reports where id = $1
        """,
        bind: {
            [
                .uuid($0.id), .text($0.appID), .text($0.userID), .uuid($0.orderID), .text($0.transactionID),
                .text($0.kind.rawValue), .text($0.message), .text($0.appVersion), .json($0.details),
            ]
        },
        read: { row throws(PostgresError) in
            StoredReport(orderID: try row.optionalUUID(0), isNew: try row.bool(1))
        })
}
