package import Foundation
package import Postgres
import Purchases

/// An app's report of a purchase that went wrong.
package struct ClientReport: Sendable, Equatable {
    package enum Kind: String, Sendable, CaseIterable {
        case failed, cancelled, deferred, error
        /// The user was charged and the app got nothing to show for it: a person looks at it.
        case paidWithoutProof = "paid_without_proof"
        case refundRequested = "refund_requested"
    }

    package var appID: String
    /// Nil: the report belongs to the order's user, or to no user.
    package var userID: String?
    package var orderID: UUID?
    package var transactionID: String?
    package var kind: Kind
    package var message: String?
    package var appVersion: String?
    /// A JSON object.
    package var details: String

    package init(
        appID: String, userID: String? = nil, orderID: UUID? = nil, transactionID: String? = nil, kind: Kind,
        message: String? = nil, appVersion: String? = nil, details: String
    ) {
        self.appID = appID
        self.userID = userID
        self.orderID = orderID
        self.transactionID = transactionID
        self.kind = kind
        self.message = message
        self.appVersion = appVersion
        self.details = details
    }

    /// Derived from the report: the same report is the same row.
    package var id: UUID {
        DerivedID.make([
            appID, userID ?? "", orderID?.uuidString ?? "", transactionID ?? "", kind.rawValue, message ?? "",
            appVersion ?? "", details,
        ])
    }
}

extension Statements {
    /// Reports of one user and day; the next one is answered 429.
    package static let reportsPerUserMax = 200
    /// Reports of one app and day that name no user.
    package static let reportsOfNobodyMax = 10_000

    package struct StoredReport: Sendable, Equatable {
        /// Nil: the report names no order of this app and user.
        package let orderID: UUID?
        package let isNew: Bool
    }

    /// Stores a report, and links it with its order if the order belongs to this app and user. No row: the user sent
    /// too many reports.
    package static let storeReport = Statement<ClientReport, StoredReport>(
        "reports.store",
        """
        with linked as (
          select id, user_id from (select id, app_id, user_id from orders where id = $4 offset 0) o
          where app_id = $2 and ($3::text is null or \(isOneOf("o.user_id", "$3", of: "$2")))),
        whose as (select coalesce($3, (select user_id from linked)) as user_id),
        new as (
          insert into client_reports (id, app_id, user_id, order_id, transaction_id, kind, message, app_version, details)
          select $1, $2, w.user_id, (select id from linked), $5, $6, $7, $8, $9
          from whose w
          where case when w.user_id is null then (select count(*) from (select from client_reports c where c.app_id = $2
              and c.user_id is null and c.reported_at > now() - interval '1 day' limit \(reportsOfNobodyMax)) sent)
              < \(reportsOfNobodyMax)
            else (select count(*) from (select from client_reports c where c.app_id = $2
              and c.user_id = w.user_id and c.reported_at > now() - interval '1 day' limit \(reportsPerUserMax)) sent)
              < \(reportsPerUserMax) end
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

    /// A report that waits for a person: the user was charged and the app got nothing to show for it. No proof will
    /// come.
    package struct WaitingReport: Sendable, Equatable {
        package let id: UUID
        package let appID: String
        package let userID: String?
        package let orderID: UUID?
        package let transactionID: String?
        package let message: String?
        package let reportedAt: Date
        package let kind: String
        /// What the app said of the device; JSON where it is no text.
        package let device: String?
    }

    /// How many waiting reports are read, the oldest first.
    package static let waitingReportsMax = 500
    package static let waitingReports = Statement<String?, WaitingReport>(
        "reports.waiting",
        """
        select id, app_id, user_id, order_id, transaction_id, message, reported_at, kind, details ->> 'device'
        from client_reports
        where kind = '\(ClientReport.Kind.paidWithoutProof.rawValue)' and handled_at is null
          and ($1::text is null or app_id = $1)
        order by reported_at, id limit \(waitingReportsMax)
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in
            WaitingReport(
                id: try row.uuid(0), appID: try row.text(1), userID: try row.optionalText(2),
                orderID: try row.optionalUUID(3), transactionID: try row.optionalText(4),
                message: try row.optionalText(5), reportedAt: try row.date(6), kind: try row.text(7),
                device: try row.optionalText(8))
        })

    /// Marks a report as handled by a person, and audits that in the same statement. No row: the report does not wait
    /// for a person.
    package static let handleReport = Statement<(id: UUID, actor: String), UUID>(
        "reports.handle",
        """
        with handled as (
          update client_reports set handled_at = now()
          where id = $1 and kind = '\(ClientReport.Kind.paidWithoutProof.rawValue)' and handled_at is null
          returning id, app_id, user_id),
        audited as (
          insert into audits (actor, action, details)
          select $2, 'support.handled', jsonb_strip_nulls(jsonb_build_object('app', app_id, 'user', user_id, 'report', id))
          from handled)
        select id from handled
        """,
        bind: { [.uuid($0.id), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.uuid(0) })
}
