package import Foundation
package import Postgres

/// One line of the app backend's feed.
package struct Event: Sendable, Equatable {
    package let cursor: EventCursor
    /// Derived from what happened: the same thing told twice has the same id.
    package let id: UUID
    package let appID: String
    package let type: String
    package let userID: String
    package let transactionID: String
    package let receiptID: UUID
    /// A JSON object.
    package let body: String
    package let at: Date
}

/// A place in the feed: commit order, not insertion order.
package struct EventCursor: Sendable, Equatable {
    package static let start = EventCursor(transaction: 0, id: 0)

    package let transaction: Int
    package let id: Int

    package init(transaction: Int, id: Int) {
        self.transaction = transaction
        self.id = id
    }

    package var text: String { "\(transaction)-\(id)" }

    /// Nil for anything but `<number>-<number>`.
    package init?(_ text: String) {
        let parts = text.split(separator: "-", omittingEmptySubsequences: false)
        guard parts.count == 2, let transaction = Int(parts[0]), let id = Int(parts[1]), transaction >= 0, id >= 0
        else { return nil }
        self.init(transaction: transaction, id: id)
    }
}

extension Statements {
    package struct EventPage: Sendable {
        package var apps: [String]
        package var after: EventCursor
        package var limit: Int
    }

    /// Events below the oldest running transaction, by (xid, id): a cursor by id alone loses what commits late.
    package static let readEvents = Statement<EventPage, Event>(
        "ledger.read_events",
        """
        select xid::text::int8, id, event_id, app_id, type, user_id, transaction_id, receipt_id, body, at
        from events
        where (xid, id) > ($2::text::xid8, $3) and xid < pg_snapshot_xmin(pg_current_snapshot())
          and app_id = any($1::text[])
        order by xid, id limit $4
        """,
        bind: { page in
            [
                .texts(page.apps), .text(String(page.after.transaction)), .int(page.after.id), .int(page.limit),
            ]
        },
        read: { row throws(PostgresError) in
            Event(
                cursor: EventCursor(transaction: try row.int(0), id: try row.int(1)), id: try row.uuid(2),
                appID: try row.text(3), type: try row.text(4), userID: try row.text(5),
                transactionID: try row.text(6), receiptID: try row.uuid(7), body: try row.json(8),
                at: try row.date(9))
        })
}
