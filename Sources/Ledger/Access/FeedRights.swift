// The rights to events, and to the places of their readers.
extension Rights {
    static let ofFeed: [Rights] = [
        table(
            "events",
            [
                // Ingest serves GET /v1/events. A trigger decides which event types a role may insert: those whose
                // facts the role may write.
                .ingest: [.select],
                .dispatcher: [
                    .select, .insert("event_id", "app_id", "type", "user_id", "transaction_id", "receipt_id", "body"),
                ],
                .worker: [
                    .insert("event_id", "app_id", "type", "user_id", "transaction_id", "receipt_id", "body"),
                    .select("xid", "id", "type", "event_id", "transaction_id", "receipt_id", "body"),
                ],
                .scheduler: [
                    .insert("event_id", "app_id", "type", "user_id", "transaction_id", "receipt_id", "body"),
                    .select("xid", "id", "event_id", "app_id", "type", "user_id", "transaction_id", "receipt_id", "at"),
                ],
                .support: [
                    .insert("event_id", "app_id", "type", "user_id", "transaction_id", "receipt_id", "body"),
                    .select("xid", "event_id", "app_id", "type", "transaction_id", "receipt_id", "at"),
                ],
            ]),
        // Only the trigger of `events` writes it.
        table(
            "feed_eras",
            [
                .ingest: [.select("first_xid", "shift", "server_started_at")],
                .dispatcher: [.select("first_xid", "shift")],
            ]),
        table(
            "feed_groups",
            [
                .ingest: [
                    .select, .insert("app_id", "name", "place", "id"), .update("place", "id", "stored_at"),
                ]
            ]),
        table(
            "v_feed_groups",
            [.ingest: [.select], .scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        function("forget_feed_group(text, text)", [.ingest: [.execute]]),
        function("begin_feed_era()", [:]),
    ]
}
