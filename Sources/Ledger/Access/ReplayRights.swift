// The rights to replays of events.
extension Rights {
    static let ofReplays: [Rights] = [
        table(
            "replays",
            [
                .ingest: asks, .support: asks, .scheduler: [.select("endpoint", "due_at")],
                .dispatcher: [
                    .select,
                    .update("done_xid", "done_id", "sent", "attempts", "last_error", "due_at", "ended_at"),
                ],
            ]),
        function("feed_place(text, timestamp with time zone)", [:]),
        function(
            "count_replay(text, timestamp with time zone, timestamp with time zone, text[], text, uuid[], text[], "
                + "text[])",
            [.ingest: [.execute], .support: [.execute]]),
    ]

    private static let asks: [Right] = [
        .select,
        .insert(
            "app_id", "endpoint", "from_at", "to_at", "types", "user_id", "event_ids", "requested_by", "events",
            "is_counted", "done_xid", "end_xid"),
        .update("due_at", "ended_at", "cancelled_by"),
    ]
}
