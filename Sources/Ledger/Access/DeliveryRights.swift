// The rights to what dispatchers number and deliver.
extension Rights {
    static let ofDelivery: [Rights] = [
        // The scheduler and support check the invariants.
        table(
            "event_progress",
            [
                .dispatcher: [.select, .update("xid", "id", "at")], .ingest: [.select("xid", "id")],
                .scheduler: [.select], .support: [.select],
            ]),
        table(
            "event_users",
            [
                .dispatcher: [.select, .insert("app_id", "user_id", "last_sequence"), .update("last_sequence")],
                .scheduler: [.select], .support: [.select],
            ]),
        table(
            "event_sequences",
            [.dispatcher: [.select, .insert], .ingest: [.select], .scheduler: [.select], .support: [.select]]),
        // Whoever may update an endpoint may tell of it (0035_delivery.sql).
        table(
            "endpoints",
            [
                .dispatcher: [
                    .select, .insert("id", "app_id", "name"),
                    .update(
                        "state", "failures", "failing_since", "probes", "probe_at", "reason", "last_status",
                        "last_error",
                        "succeeded_at", "failed_at", "turn", "turn_until", "seen_at"),
                ],
                .ingest: [.select("id", "app_id", "name", "seen_at")], .scheduler: [.select],
                .support: [.select, .update("state", "failing_since", "probes", "probe_at", "reason")],
            ]),
        table(
            "deliveries",
            [
                .dispatcher: [
                    .select,
                    .insert(
                        "endpoint", "stream", "last_sequence", "done_sequence", "behind_xid", "behind_id", "due_at"),
                    .update(
                        "last_sequence", "done_sequence", "behind_xid", "behind_id", "previous_event_id", "attempts",
                        "failed_sequence", "failing_since", "due_at", "parked_at", "reason"),
                ],
                // Ingest serves GET /v1/events?undelivered=.
                .ingest: [
                    .select("endpoint", "stream", "last_sequence", "done_sequence", "behind_xid", "behind_id")
                ],
                .scheduler: [.select],
                .support: [
                    .select,
                    .update(
                        "done_sequence", "behind_xid", "behind_id", "attempts", "failed_sequence", "failing_since",
                        "due_at", "parked_at", "reason"),
                ],
            ]),
        table("events_in_streams", [.scheduler: [.select], .support: [.select]]),
        table("v_endpoints", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_undelivered", [.support: [.select], .dashboard: [.select]]),
        table("v_numbering", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        function("forget_event_users()", [:]),
    ]
}
