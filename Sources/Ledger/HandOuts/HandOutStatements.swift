import Encoding
package import Foundation
package import Postgres
package import Purchases

/// A report of the app's backend about one event.
package struct HandOutReport: Sendable {
    /// The event is of one of these.
    package let apps: [String]
    /// As the event names it: of an event of an order the order's id.
    package let transactionID: String
    package let eventID: UUID
    package let handOut: HandOut

    package init(apps: [String], transactionID: String, eventID: UUID, _ handOut: HandOut) {
        self.apps = apps
        self.transactionID = transactionID
        self.eventID = eventID
        self.handOut = handOut
    }
}

/// What became of such a report.
package struct StoredHandOut: Sendable, Equatable {
    /// The raw value is the word of `handle_event` (0036_hand_outs.sql).
    package enum Word: String, Sendable, CaseIterable {
        case stored, repeated
        /// Another outcome was reported before, and stays.
        case conflict
        case unknown
        case noGoods = "no_goods"
        case otherWay = "other_way"
    }

    package let word: Word
    /// What is stored now. Nil: nothing.
    package let outcome: String?
    package let at: Date?
    /// The failures of the order's hand-out that are counted now (S0-13).
    package let failures: Int
}

/// How many hand-outs of an app wait for longer than its limit.
package struct WaitingHandOuts: Sendable {
    package let appID: String
    /// Up to ``Statements/waitingHandOutsMax`` and one more.
    package let orders: Int
    /// Those of them that have failed ``HandOut/failuresMax`` times.
    package let needPerson: Int
    /// How long the oldest has waited; 0 where none does.
    package let seconds: Double
    /// The order number and the transaction of the oldest.
    package let number: String?
    package let transactionID: String?
}

extension Statements {
    /// Stores a report, once. One row.
    package static let handleEvent = Statement<HandOutReport, StoredHandOut>(
        "hand_outs.handle",
        "select word, outcome, at, coalesce(failures, 0) from handle_event($1, $2, $3, $4, $5, $6, $7, $8)",
        bind: { report in
            [
                .texts(report.apps), .text(report.transactionID), .uuid(report.eventID),
                .text(report.handOut.outcome.rawValue), .int(report.handOut.amount),
                .json(report.handOut.goods.map { JSONValue.goods($0).text }), .text(report.handOut.reason),
                .date(report.handOut.at),
            ]
        },
        read: { row throws(PostgresError) in
            StoredHandOut(
                word: try row.word(0), outcome: try row.optionalText(1), at: try row.optionalDate(2),
                failures: try row.int(3))
        })

    /// The limit of one app.
    package struct HandOutLimit: Sendable {
        package let appID: String
        /// Nil: its backend does not acknowledge.
        package let within: Duration?

        package init(appID: String, within: Duration?) {
            self.appID = appID
            self.within = within
        }
    }

    /// Makes the limits those of the configuration. An app whose backend begins to acknowledge, or does so again, is
    /// looked at from now on.
    package static let followHandOuts = Statement<[HandOutLimit], Void>(
        "hand_outs.follow",
        """
        insert into hand_out_limits as l (app_id, within)
        select app, make_interval(secs => seconds) from unnest($1::text[], $2::float8[]) as i(app, seconds)
        where seconds is not null or exists (select from hand_out_limits where app_id = app and within is not null)
        on conflict (app_id) do update set within = excluded.within,
          since = case when l.within is null then now() else l.since end,
          xid = case when l.within is null then excluded.xid else l.xid end,
          id = case when l.within is null then excluded.id else l.id end
        where l.within is distinct from excluded.within
        """,
        bind: { [.texts($0.map(\.appID)), .doubles($0.map { $0.within?.inSeconds })] })

    /// Events of one look, and failures that are looked at again.
    package struct HandOutStep: Sendable {
        package let appID: String
        package let most: Int

        package init(appID: String, most: Int) {
            self.appID = appID
            self.most = most
        }
    }

    /// Counts hand-outs whose limit has passed. Returns how many events it looked at: as many as the step has, if there
    /// may be more.
    package static let countLateHandOuts = Statement<HandOutStep, Int>(
        "hand_outs.count", "select count_late_hand_outs($1, $2)",
        bind: { [.text($0.appID), .int32($0.most)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Counts those whose limit has passed once more. The parameter is the most; returns how many it looked at.
    package static let recountHandOuts = Statement<Int, Int>(
        "hand_outs.recount", "select recount_hand_outs($1)",
        bind: { [.int32($0)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Up to this number the waiting hand-outs of an app are counted.
    package static let waitingHandOutsMax = 10_000

    /// The hand-outs of each app that wait for longer than its limit, zeros included.
    package static let waitingHandOuts = Statement<Void, WaitingHandOuts>(
        "watch.hand_outs",
        """
        select a.app_id, w.orders, w.need_person, coalesce(o.waited_seconds, 0)::float8, o.order_number,
          o.transaction_id
        from apps a
        cross join lateral (
          select count(*) as orders, count(*) filter (where needs_person) as need_person
          from (select needs_person from v_hand_outs_waiting where app_id = a.app_id
            limit \(waitingHandOutsMax + 1)) v) w
        left join lateral (
          select waited_seconds, order_number, transaction_id from v_hand_outs_waiting where app_id = a.app_id
          order by since limit 1) o on true
        """,
        read: { row throws(PostgresError) in
            WaitingHandOuts(
                appID: try row.text(0), orders: try row.int(1), needPerson: try row.int(2),
                seconds: try row.double(3), number: try row.optionalText(4), transactionID: try row.optionalText(5))
        })
}
