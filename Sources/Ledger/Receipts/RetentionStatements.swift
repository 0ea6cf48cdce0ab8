package import Postgres

extension Statements {
    /// Drops the places of past days, and old answers of Apple about bare ids (0009_limits.sql). Returns how many; at
    /// most a thousand places and the places of a thousand ids.
    package static let dropLimitPlaces = Statement<Void, Int>(
        "retention.drop_limit_places", "select drop_limit_places()", bind: { _ in [] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Creates partitions for the payloads of today and so many days to come.
    package static let createPayloadPartitions = Statement<Int, Void>(
        "retention.create_payload_partitions", "select create_payload_partitions($1)",
        bind: { [.int32($0)] })

    package struct RetentionStep: Sendable {
        /// The step keeps payloads younger than this many days.
        package var days: Int
        /// Apps with credentials for the App Store Server API: they can ask Apple without a receipt.
        package var appsAskingByID: [String]
        /// Rows of each kind that the step may look at.
        package var batch: Int

        package init(days: Int, appsAskingByID: [String], batch: Int) {
            self.days = days
            self.appsAskingByID = appsAskingByID
            self.batch = batch
        }
    }

    package struct Retained: Sendable, Equatable {
        package let judged: Int
        package let kept: Int
        package let released: Int
        /// `2026-08-23`, where a day was dropped.
        package let droppedDay: String?
        /// Whether there is more to do at once.
        package let isMore: Bool
    }

    /// A step of payload retention (0003_payloads.sql). Safe to repeat; it does nothing while another scheduler runs
    /// one.
    package static let retainPayloads = Statement<RetentionStep, Retained>(
        "retention.retain_payloads",
        "select judged, kept, released, dropped_day::text, is_more from retain_payloads($1, $2, $3)",
        bind: { [.int32($0.days), .texts($0.appsAskingByID), .int32($0.batch)] },
        read: { row throws(PostgresError) in
            Retained(
                judged: try row.int(0), kept: try row.int(1), released: try row.int(2),
                droppedDay: try row.optionalText(3), isMore: try row.bool(4))
        })

    package struct PayloadPlace: Sendable {
        /// `day`, `default` or `kept`.
        package let name: String
        package let bytes: Int
        /// Age of the oldest day in days; nil where no day has a partition.
        package let oldestDays: Int?
    }

    /// The bytes of the payloads in each place, zeros included.
    package static let payloadPlaces = Statement<Void, PayloadPlace>(
        "retention.payload_places",
        """
        select place, coalesce(sum(bytes), 0)::int8, (now() at time zone 'UTC')::date - min(day)
        from (select place, bytes, day from v_payloads union all select 'day', 0, null) p group by place
        """,
        read: { row throws(PostgresError) in
            PayloadPlace(name: try row.text(0), bytes: try row.int(1), oldestDays: try row.optionalInt(2))
        })

    /// Kept payloads by reason, zeros included.
    package static let keptPayloads = Statement<Void, (reason: String, receipts: Int)>(
        "retention.kept_payloads",
        """
        select reason, coalesce(k.receipts, 0) from (values ('open'), ('rejected'), ('chain')) r(reason)
        left join v_kept_payloads k using (reason)
        """,
        read: { row throws(PostgresError) in (reason: try row.text(0), receipts: try row.int(1)) })
}
