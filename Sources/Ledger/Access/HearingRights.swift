// The rights to the tables of notifications, and of the revocations and subscriptions that follow.
extension Rights {
    static let ofHearing: [Rights] = [
        // Support judges notifications again, and reads no proof.
        table(
            "notifications",
            [
                // Ingest writes a state, because ingest holds a notification about an unknown app.
                .ingest: [
                    .insert(
                        "id", "version", "app_id", "bundle_id", "environment", "type", "subtype", "transaction_id",
                        "original_transaction_id", "signed_at", "payload", "payload_sha256", "state", "reason",
                        "due_at", "forward_due_at", "came_by"),
                    timelinesOfNotifications, .update("repeats"),
                ],
                .worker: [
                    // The notifications that this server asked Apple for.
                    .insert(
                        "id", "version", "app_id", "bundle_id", "environment", "type", "subtype", "transaction_id",
                        "original_transaction_id", "signed_at", "payload", "payload_sha256", "state", "reason",
                        "due_at", "forward_due_at", "came_by"),
                    .select("came_by", "repeats"),
                    .select(
                        "id", "version", "app_id", "bundle_id", "environment", "type", "subtype", "payload", "state",
                        "reason", "attempt", "rescues", "received_at", "judged_at", "due_at", "settled_at",
                        "forward_due_at",
                        "forward_attempts"),
                    .update(
                        "app_id", "state", "reason", "attempt", "rescues", "judged_at", "due_at", "settled_at",
                        "forward_due_at", "forward_attempts"),
                ],
                // The scheduler empties payloads, and so ends that they are sent on.
                .scheduler: [
                    .select(
                        "id", "app_id", "payload", "state", "reason", "attempt", "rescues", "received_at", "judged_at",
                        "due_at",
                        "settled_at", "environment", "type", "came_by"),
                    .update(
                        "state", "reason", "attempt", "rescues", "judged_at", "due_at", "payload", "forward_due_at"),
                ],
                .support: [
                    timelinesOfNotifications, .select("rescues"),
                    .update("state", "reason", "attempt", "rescues", "due_at"),
                ],
            ]),
        table("notification_days", [.worker: [.select, .insert]]),
        table(
            "notification_tests",
            [
                .worker: [
                    .select, .insert("app_id", "environment"), .update("claimed_at", "asked_at", "token", "problem"),
                ]
            ]),
        // The later life of granted purchases. Only `forget_chain_marks` removes a mark.
        table(
            "chains",
            [
                .worker: [
                    .select,
                    .insert("app_id", "environment", "original_transaction_id", "renewal", "renewal_signed_at"),
                    .update(
                        "previous_original_transaction_id", "renewal", "renewal_signed_at", "state", "product_id",
                        "transaction_id", "expires_at", "told", "told_user_id", "lapse_seen_at", "steps", "due_at",
                        "followed_at", "ask_at", "ask_until", "ask_reader", "ask_failures", "asked_at", "asked_end",
                        "asks", "apple_state", "compare_at"),
                ],
                .ingest: [.select], .scheduler: [.select], .support: [.select],
            ]),
        table(
            "chain_marks",
            [
                .worker: [.select, .insert("app_id", "environment", "original_transaction_id")],
                .scheduler: [.select], .support: [.select],
            ]),
        table(
            "revocations",
            [.ingest: [.select], .worker: [.select, .insert], .scheduler: [.select], .support: [.select]]),
        // Ingest serves PUT /v1/users/{id}/consent. Nobody changes a row; an erasure deletes rows with the rights of
        // the erasing function's owner.
        table(
            "consents",
            [
                .ingest: [.select, .insert("app_id", "user_id", "is_given")], .worker: [.select],
                .support: [.select],
            ]),
        table(
            "consumption_reports",
            [
                .ingest: [.select, .insert("transaction_id", "app_id", "percentage", "units", "at")],
                .worker: [.select], .support: [.select],
            ]),
        table(
            "refund_requests",
            [
                .ingest: [.select],
                .worker: [
                    .select,
                    .insert(
                        "notification_id", "case_id", "app_id", "environment", "transaction_id",
                        "original_transaction_id", "request_reason", "asked_at", "state", "reason", "due_at",
                        "ended_at"),
                    .update(
                        "state", "reason", "due_at", "claimed_until", "attempt", "answer", "api_version",
                        "http_status", "code", "ended_at"),
                ],
                .scheduler: [.select("app_id", "asked_at", "due_at")],
                .support: [.select, .update("edited", "edited_by", "due_at")],
            ]),
        function("forget_chain_marks(bigint[])", [.worker: [.execute]]),
        function("wake_unposted(uuid, text)", [.worker: [.execute]]),
        function("mark_chains_of_new_facts()", [:]),
        function("mark_chains_of_newer_facts()", [:]),
        function("mark_chains_of_grants()", [:]),
        function("mark_chains_of_moves()", [:]),
        function("mark_chains_of_imports()", [:]),
        function("settle_bonuses_of_revocation()", [:]),
        function("mark_chain_of_denied()", [:]),
        function("mark_entitling_grant()", [:]),
        function("free_bonuses_taken_back()", [:]),
        function("erase_heard_of_user(text, text, text)", [.support: [.execute]]),

        table("v_notifications", [.support: [.select], .dashboard: [.select]]),
        table("v_open_notifications", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_notification_health", [.worker: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_subscriptions", [.support: [.select], .dashboard: [.select]]),
        table("v_revocations", [.support: [.select], .dashboard: [.select]]),
    ]

    /// Never the payload, which only workers and the scheduler read.
    private static let timelinesOfNotifications = Right.select(
        "id", "version", "app_id", "environment", "type", "subtype", "transaction_id", "original_transaction_id",
        "state", "reason", "attempt", "received_at", "judged_at", "due_at", "settled_at", "repeats")
}
