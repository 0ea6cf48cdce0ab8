/// The rights of every role, one line for each table, view and function of the schema. A migration that adds an object
/// adds a line here, or a test fails. `makegood roles` and `makegood migrate` grant the rights, and each service checks
/// at its start that its role has them. A right that a stored release needs stays, or `ReleaseTests` fails.
///
/// No role may delete a row or change a grant. Partitions need no line: PostgreSQL checks the rights of the parent
/// table.
package struct Rights: Sendable {
    /// As GRANT writes it: `table receipts`, `function end_halt(text, text, text, text)`. A view is a table here.
    package let object: String
    package let ofRoles: [DatabaseRole: [Right]]

    package static let all =
        ofTheRest + ofFeed + ofDelivery + ofParts + ofHearing + ofSweeps + ofNotificationSweeps + ofCustomerSweeps
        + ofBooks + ofSeals + ofHandOuts + ofReplays

    private static let ofTheRest: [Rights] = [
        table(
            "receipts",
            [
                // Ingest may not write the state and its times: a row begins as received.
                .ingest: [
                    .insert(
                        "id", "app_id", "user_id", "order_id", "kind", "lane", "transaction_id",
                        "original_transaction_id", "is_vouched", "details", "payload_sha256", "due_at",
                        "installation_id", "target", "declared", "shown_transaction_id", "shown_product_id"),
                    .select(
                        "id", "app_id", "user_id", "order_id", "kind", "lane", "transaction_id",
                        "original_transaction_id", "is_vouched", "state", "reason", "attempt", "rescues",
                        "received_at", "judged_at", "due_at", "settled_at", "declared", "target", "claimed_at", "lines",
                        "variant_bundle_id", "source", "shown_transaction_id", "shown_product_id"),
                ],
                .worker: [
                    // The receipts that nobody posted.
                    .insert(
                        "id", "app_id", "kind", "lane", "transaction_id", "original_transaction_id", "is_vouched",
                        "details", "payload_sha256", "due_at", "shown_transaction_id", "shown_product_id", "source",
                        "customer_id"),
                    .select(
                        "id", "app_id", "user_id", "order_id", "kind", "lane", "transaction_id",
                        "original_transaction_id", "is_vouched", "state", "reason", "attempt", "rescues",
                        "received_at", "judged_at", "due_at", "settled_at", "installation_id", "target",
                        "declared", "claimed_at", "lines", "source", "customer_id", "shown_transaction_id", "wakes"),
                    .update(
                        "lane", "state", "reason", "attempt", "rescues", "judged_at", "due_at", "settled_at",
                        "variant_bundle_id", "wakes"),
                ],
                .scheduler: [
                    .select(
                        "id", "app_id", "user_id", "order_id", "kind", "lane", "state", "reason", "attempt", "rescues",
                        "received_at", "judged_at", "due_at", "settled_at", "source", "wakes"),
                    .update("state", "reason", "attempt", "rescues", "judged_at", "due_at"),
                ],
                .support: [
                    .select(
                        "id", "app_id", "user_id", "order_id", "kind", "lane", "transaction_id",
                        "original_transaction_id", "is_vouched", "state", "reason", "attempt", "rescues",
                        "received_at", "judged_at", "due_at", "settled_at", "declared", "target", "claimed_at",
                        "lines", "variant_bundle_id", "shown_transaction_id", "shown_product_id", "source", "wakes"),
                    .update("state", "reason", "attempt", "rescues", "due_at", "settled_at"),
                ],
            ]),
        // Only `say_line` writes it. No role reads the rest of what was sent with a post.
        table("receipt_lines", [.ingest: timelinesOfLines, .worker: timelinesOfLines, .support: timelinesOfLines]),
        table("repeated_posts", [.ingest: [.select, .insert, .update("posts", "posted_at")], .support: [.select]]),
        // Support may see that a proof is stored. Only the worker, which judges proofs, may read them.
        table(
            "stored_payloads",
            [
                .ingest: [.insert], .worker: [.insert],
                .support: [.select("receipt_id", "received_on", "header_sha256")],
            ]),
        table("proof_headers", [.ingest: [.insert], .worker: [.insert], .support: [.select("sha256")]]),
        table(
            "payloads",
            [
                .worker: [.select], .scheduler: [.select("receipt_id", "received_on")],
                .support: [.select("receipt_id", "received_on")],
            ]),
        table(
            "kept_payloads",
            [.worker: [.select], .scheduler: [.select("receipt_id")], .support: [.select("receipt_id")]]),
        table(
            "users",
            [
                .ingest: [.select, .insert("app_id", "user_key", "sealed", "key_id")],
                // Renewals of an erased user belong to nobody any more.
                .worker: [.select("app_id", "user_key", "erased_at")], .support: [.select],
                // Dispatchers send the ids that the app knows.
                .dispatcher: [.select],
            ]),
        table(
            "user_protection",
            [
                .ingest: [.select, .insert("fingerprint")], .worker: [.select, .insert("fingerprint")],
                .scheduler: [.select, .insert("fingerprint")], .dispatcher: [.select, .insert("fingerprint")],
                .support: [.select],
            ]),
        table(
            "database_purpose",
            [
                .ingest: [.select, .insert("purpose")], .worker: [.select, .insert("purpose")],
                .scheduler: [.select, .insert("purpose")], .dispatcher: [.select, .insert("purpose")],
                .support: [.select],
            ]),
        // What retention remembers between its steps. Only the retention functions use it, with their owner's rights.
        table("kept_chains", [:]),
        table("payload_passes", [:]),
        table("payload_days", [:]),
        table(
            "transactions",
            [
                .ingest: timelinesOfTransactions,
                .worker: [
                    .select, .insert,
                    .update(
                        "revoked_at", "facts", "expires_at", "signed_at", "ownership", "app_account_token", "kind",
                        "customer_id"),
                ],
                .scheduler: [
                    .select(
                        "transaction_id", "revoked_at", "signed_at", "original_transaction_id", "purchased_at",
                        "expires_at", "app_id", "environment", "product_id")
                ],
                .support: timelinesOfTransactions,
            ]),
        table(
            "grants",
            [
                // Ingest serves GET …/explain, …/purchases and …/entitlements.
                .ingest: timelinesOfGrants + [.select("is_entitling")],
                .worker: [.select, .insert],
                .scheduler: invariantsOfGrants + [.select("product_id", "environment", "goods", "quantity")],
                .support: invariantsOfGrants + timelinesOfGrants + [.select("environment")],
            ]),
        table(
            "outcomes",
            [
                .ingest: [.select],
                .worker: [
                    .select, .insert,
                    .update("state", "reason", "binding_source", "reasons", "granted_as", "safe_at", "decided_at"),
                ],
                .scheduler: [
                    .select(
                        "receipt_id", "transaction_id", "state", "reason", "reasons", "decided_at", "granted_as", "xid")
                ],
                .support: [.select, .update("state", "reason")],
            ]),
        table(
            "attempts",
            [
                .ingest: [.select], .worker: [.insert, .select("receipt_id", "code")], .scheduler: invariantsOfAttempts,
                .support: [.select],
            ]),
        table(
            "halts",
            [
                .ingest: [.select],
                .worker: [.select, .insert, .update("probe_at")],
                .scheduler: [.select], .dispatcher: [.select],
                .support: [.select, .insert],
            ]),
        table(
            "tallies",
            [
                .ingest: [.select, .insert, .update("received")], .worker: [.select, .insert, .update("received")],
                .scheduler: [.select], .support: [.select],
            ]),
        table(
            "orders",
            [
                .ingest: [.select, .insert],
                .worker: [.select],
                .scheduler: ownersOfOrders, .support: [.select],
            ]),
        // Only `end_order` writes it.
        table("order_endings", [.ingest: [.select], .support: [.select]]),
        table("ordering_apps", [.worker: [.select]]),
        table(
            "given_bonuses",
            [
                .worker: [.select, .insert],
                .scheduler: [.select("transaction_id", "bonus", "given_at")],
                .support: [.select],
            ]),
        table(
            "ownerships",
            [.ingest: timelinesOfOwnerships, .worker: [.select, .insert], .support: timelinesOfOwnerships + [.insert]]),
        // Which accounts are one person. Only `merge_users` and `forget_merges` write it.
        table("merges", [.ingest: [.select], .worker: [.select], .scheduler: [.select], .support: [.select]]),
        table("erasures", [.worker: [.select]]),
        // Only the schema's owner writes it, by command: no service may say what another system gave.
        table(
            "imported_grants",
            [
                .ingest: [.select], .worker: [.select],
                .scheduler: [.select("transaction_id", "imported_at", "original_transaction_id")],
                .support: [.select],
            ]),
        table(
            "shadow_decisions",
            [
                .worker: [
                    .select, .insert, .update("user_id", "goods", "binding_source", "order_id", "decided_at"),
                ],
                .support: [.select],
            ]),
        // A support decision about the owner of a purchase.
        table(
            "support_decisions",
            [
                .worker: [.select],
                .support: [
                    .select, .insert("app_id", "transaction_id", "user_id", "item", "token"),
                    .update("user_id", "item", "token", "decided_at"),
                ],
            ]),
        table(
            "granted_tokens",
            [.worker: [.select, .insert, .update("transaction_id", "granted_at")], .support: [.select]]),
        table(
            "installations",
            [
                .ingest: [.select, .insert("id", "app_id"), .update("revoked_at")], .worker: [.select],
                .support: [.select, .update("revoked_at")],
            ]),
        table(
            "installation_tokens",
            [
                .ingest: [
                    .select, .insert("token_sha256", "installation_id", "app_id"), .update("expires_at"),
                ]
            ]),
        table("limit_places", [.ingest: [.select, .insert], .worker: [.select, .insert]]),
        // Only the worker needs to know Apple's customers.
        table("installation_customers", [.worker: [.select, .insert]]),
        table("record_apps", [.ingest: [.select, .insert("app_id")], .worker: [.select]]),
        table(
            "apple_updates",
            [
                .ingest: [.select], .scheduler: [.select("transaction_id", "kind", "created_at")],
                // Support writes an Apple update when it decides the owner of a chain.
                .support: [
                    .select,
                    .insert(
                        "transaction_id", "kind", "app_id", "environment", "original_transaction_id", "purchased_at",
                        "token"),
                    .update(
                        "token", "former_tokens", "state", "attempt", "reason", "http_status", "code", "due_at",
                        "ended_at"),
                ],
                .worker: [
                    .select,
                    .insert(
                        "transaction_id", "kind", "app_id", "environment", "original_transaction_id", "purchased_at",
                        "token"),
                    .update("state", "attempt", "reason", "http_status", "code", "due_at", "ended_at"),
                ],
            ]),
        table(
            "double_charges",
            [
                .ingest: [.select], .support: [.select],
                .worker: [.insert],
                .scheduler: [
                    .select("transaction_id"),
                    .insert("transaction_id", "app_id", "user_id", "product_id", "first_transaction_id"),
                ],
            ]),
        table("user_tokens", [.ingest: [.select, .insert], .worker: [.select], .support: [.select, .insert]]),
        table(
            "catalogues",
            [
                .ingest: [.select], .worker: [.select],
                .support: [.select, .insert("app_id", "revision", "document", "applied_by")],
            ]),
        table(
            "client_reports",
            [
                .ingest: [
                    .select(
                        "id", "app_id", "user_id", "order_id", "transaction_id", "kind", "message", "app_version",
                        "reported_at", "handled_at"),
                    .insert(
                        "id", "app_id", "user_id", "order_id", "transaction_id", "kind", "message", "app_version",
                        "details"),
                ],
                // Reports that make a customer due.
                .worker: [.select("app_id", "user_id", "transaction_id", "kind", "reported_at", "handled_at")],
                // Whether a failure was reported between two purchases.
                .scheduler: [.select("app_id", "user_id", "transaction_id", "kind", "reported_at")],
                .support: [.select, .update("handled_at")],
            ]),
        table(
            "apps",
            [
                .ingest: [
                    .select, .insert("app_id", "configuration_sha256", "live_since"), .update("live_since"),
                ],
                .worker: [
                    .select, .insert("app_id", "configuration_sha256", "live_since"),
                    .update("configuration_sha256", "live_since"),
                ],
                .scheduler: [
                    .select, .insert("app_id", "configuration_sha256", "live_since"), .update("live_since"),
                ],
                .dispatcher: [
                    .select, .insert("app_id", "configuration_sha256", "live_since"), .update("live_since"),
                ],
                .support: [.select],
            ]),
        table(
            "call_budgets",
            [
                .worker: [
                    .select, .insert("app_id", "environment", "endpoint", "stopped_until"),
                    .update(
                        "slice_at", "slice_seconds", "calls", "fresh_leased", "repair_leased", "sweep_leased",
                        "fresh_asked", "repair_asked", "fresh_expected", "repair_expected", "stopped_until"),
                ]
            ]),
        table(
            "history_walks",
            [
                .worker: [
                    .select, .insert("app_id", "environment", "customer", "asked_id", "busy_until"),
                    .update("asked_id", "begun_at", "busy_until", "revision", "ended_at", "reader"),
                    .insert("begun_at", "active_until"),
                    .update(
                        "due_at", "wanted_by", "wanted_at", "active_until", "swept_asked_id", "swept_revision",
                        "swept_begun_at", "swept_at", "whole_at", "swept_pages", "swept_until", "sweeper",
                        "passed_over", "failures", "problem", "refunds_due_at", "refunds_revision", "refunds_at",
                        "refunds_until", "refunds_reader", "refunds_passed_over", "refunds_failures", "refunds_pages",
                        "entered_at"),
                ]
            ]),
        // Only `report_apple_hosts` writes it.
        table("apple_hosts", [:]),
        table(
            "lane_orders",
            [.worker: [.select], .support: [.select, .insert, .update("first_lane", "until")]]),
        table(
            "provisional_grants",
            [
                .ingest: invariantsOfProvisionalGrants,
                .worker: [.select, .insert, .update("granted_at", "confirmed_at", "revoked_at", "event_id")],
                .scheduler: invariantsOfProvisionalGrants, .support: invariantsOfProvisionalGrants,
            ]),
        table("goods_by_day", [.scheduler: [.select, .insert, .update("granted", "units")]]),
        table(
            "goods_by_day_progress",
            [.scheduler: [.select, .update("summed_to", "complete_to", "complete_xid")]]),
        table(
            "double_charge_progress",
            [.scheduler: [.select, .update("searched_xid", "searched_id", "taken_at")]]),
        table(
            "audits",
            [
                .ingest: [.select("at", "actor", "action", "details")],
                .support: [.select("at", "actor", "action", "details"), .insert("actor", "action", "details")],
            ]),
        table(
            "schema_migrations",
            [
                .ingest: [.select], .worker: [.select], .scheduler: [.select], .dispatcher: [.select],
                .support: [.select],
            ]),

        table("v_receipts", [.support: [.select], .dashboard: [.select]]),
        table("v_backlog", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_grants", [.support: [.select], .dashboard: [.select]]),
        table("v_attempts", [.support: [.select], .dashboard: [.select]]),
        table("v_halts", [.support: [.select], .dashboard: [.select]]),
        table("v_call_budgets", [.support: [.select], .dashboard: [.select]]),
        table("v_apple", [.support: [.select], .dashboard: [.select]]),
        table("v_provisional", [.support: [.select], .dashboard: [.select]]),
        table("v_orders", [.support: [.select], .dashboard: [.select]]),
        table("v_catalogue", [.support: [.select], .dashboard: [.select]]),
        table("v_client_reports", [.support: [.select], .dashboard: [.select]]),
        table("v_ownerships", [.support: [.select], .dashboard: [.select]]),
        table("v_bonuses", [.support: [.select], .dashboard: [.select]]),
        table("v_apple_updates", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_imported_grants", [.support: [.select], .dashboard: [.select]]),
        table("v_shadow_decisions", [.support: [.select], .dashboard: [.select]]),
        table("v_disputes", [.support: [.select], .dashboard: [.select]]),
        table("v_double_charges", [.support: [.select], .dashboard: [.select]]),
        table("v_audits", [.support: [.select], .dashboard: [.select]]),
        table("v_conservation", [.support: [.select], .dashboard: [.select]]),
        table("v_open_receipts", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_rates", [.support: [.select], .dashboard: [.select]]),
        table("v_verdicts", [.support: [.select], .dashboard: [.select]]),
        table("v_grant_times", [.support: [.select], .dashboard: [.select]]),
        table("v_time_to_grant", [.support: [.select], .dashboard: [.select]]),
        table("v_time_to_grant_by_client", [.support: [.select], .dashboard: [.select]]),
        table("v_goods_by_day", [.support: [.select], .dashboard: [.select]]),
        table("v_apple_failures", [.support: [.select], .dashboard: [.select]]),
        table("v_conservation_recent", [.support: [.select], .dashboard: [.select]]),
        table("v_paid_not_granted", [.support: [.select], .dashboard: [.select]]),
        table("v_customers_by_users", [.support: [.select], .dashboard: [.select]]),
        table("v_ended_purchases", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_refund_rate_by_user", [.support: [.select], .dashboard: [.select]]),
        table("v_storefronts", [.support: [.select], .dashboard: [.select]]),
        table("v_waiting_purchases", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_refund_requests", [.support: [.select], .dashboard: [.select]]),
        table("v_order_endings", [.support: [.select], .dashboard: [.select]]),
        table("v_payloads", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_kept_payloads", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),

        function(
            "take_limit_place(text, text, text, date, text, integer)", [.ingest: [.execute], .worker: [.execute]]),
        function(
            "say_line(uuid, text, text, text, text, jsonb, jsonb, jsonb, integer)", [.ingest: [.execute]]),
        function("take_question_place(text, text, uuid, integer)", [.ingest: [.execute]]),
        function("end_order(uuid, text, text, uuid, jsonb)", [.ingest: [.execute]]),
        function("drop_limit_places()", [.scheduler: [.execute]]),
        function("create_payload_partitions(integer)", [.scheduler: [.execute]]),
        function("changed_proofs(double precision)", [.scheduler: [.execute], .support: [.execute]]),
        function("retain_payloads(integer, text[], integer)", [.scheduler: [.execute]]),
        function("keep_reopened_payloads(uuid[])", [.worker: [.execute], .support: [.execute]]),
        function("reopen_claim(uuid, text, boolean)", [.ingest: [.execute]]),
        function("erase_protected_user(text, text, text)", [.support: [.execute]]),
        function("begin_erasure(text, text)", [.support: [.execute]]),
        function("end_erasure(text, text)", [.support: [.execute]]),
        function("erase_clear_user(text, text, text, text)", [.support: [.execute]]),
        function("empty_unnamed_posts(text, text)", [.support: [.execute]]),
        function("merge_users(text, text, text, integer, text)", [.ingest: [.execute]]),
        function("forget_merges(text, text, text)", [.support: [.execute]]),
        function("readmit_user(text, text, bytea, text, text)", [.support: [.execute]]),
        function("keep_payloads(text, uuid[], text[])", [:]),
        function("refuse_strange_event()", [:]),
        function("tell_parked()", [:]),
        function("note_ordering_apps()", [:]),
        function("hold_bonus_to_its_grant()", [:]),
        function("move_bonuses_with_their_grant()", [:]),
        function("refuse_imported_purchases()", [:]),
        function("forget_declarations()", [:]),
        function("forget_lines()", [:]),
        function("enter_payload_chains(uuid[], text[])", [:]),
        function("payload_reasons(uuid[], text[])", [:]),
        function(
            "lease_calls(text, text, text, text, integer, integer, double precision)", [.worker: [.execute]]),
        function(
            "report_apple_hosts(text, text[], text[], text[], double precision[], integer[], integer[])",
            [.worker: [.execute]]),
        function("lane_place(text, text)", [.worker: [.execute]]),
        function("take_provisional_place(text, text, uuid, text, uuid, integer, integer)", [.worker: [.execute]]),
        function("end_halt(text, text, text, text)", [.worker: [.execute], .support: [.execute]]),
        function("end_stale_halts(text, text[])", [.worker: [.execute]]),
    ]

    /// The columns that the invariants compare (Operations/Invariants).
    private static let invariantsOfGrants = [
        Right.select(
            "transaction_id", "purchase_key", "period_key", "receipt_id", "app_id", "user_id", "binding_source",
            "granted_at", "order_id")
    ]
    private static let timelinesOfLines = [
        Right.select("receipt_id", "said_at", "order_id", "transaction_id", "target", "declared")
    ]
    /// The columns that a timeline shows of a purchase (Support/Timeline.swift); they never say which customer of
    /// Apple's bought it.
    private static let timelinesOfTransactions = [
        Right.select(
            "transaction_id", "app_id", "environment", "original_transaction_id", "product_id", "kind", "quantity",
            "purchased_at", "expires_at", "revoked_at", "app_account_token", "ownership", "signed_at", "facts")
    ]
    private static let timelinesOfGrants = [
        Right.select(
            "transaction_id", "receipt_id", "app_id", "user_id", "product_id", "quantity", "goods", "binding_source",
            "granted_at", "order_id", "item")
    ]
    private static let timelinesOfOwnerships = [
        Right.select(
            "app_id", "environment", "original_transaction_id", "purchased_at", "transaction_id", "user_id",
            "binding_source", "move", "decided_at")
    ]
    private static let invariantsOfProvisionalGrants = [
        Right.select("transaction_id", "receipt_id", "app_id", "event_id", "granted_at", "confirmed_at", "revoked_at")
    ]
    private static let invariantsOfAttempts = [Right.select("receipt_id", "attempt", "at", "reason")]
    private static let ownersOfOrders = [Right.select("id", "app_id", "user_id", "placed_at")]

    static func table(_ name: String, _ rights: [DatabaseRole: [Right]]) -> Rights {
        Rights(object: "table \(name)", ofRoles: rights)
    }

    static func function(_ signature: String, _ rights: [DatabaseRole: [Right]]) -> Rights {
        Rights(object: "function \(signature)", ofRoles: rights)
    }
}
