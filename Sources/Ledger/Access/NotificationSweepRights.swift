// The rights to what the sweep of Apple's notification history and the audit by sample need, and to the views of all
// sweeps.
extension Rights {
    static let ofNotificationSweeps: [Rights] = [
        table(
            "notification_sweeps",
            [
                .worker: [
                    .select, .insert("app_id", "environment", "bundle_id"),
                    .update("failures_due_at", "all_due_at", "asked_until", "server", "found"),
                ],
                .support: [.select],
            ]),
        // Only `end_notification_window` removes a window, and moves `completed_at`.
        table(
            "notification_windows",
            [
                .worker: [
                    .select,
                    .insert(
                        "app_id", "environment", "bundle_id", "purpose", "only_failures", "start_at", "end_at",
                        "made_at"),
                    .update(
                        "start_at", "end_at", "page", "pages", "passed_over", "attempts", "walks", "reader", "due_at",
                        "walked_at"),
                ],
                .support: [
                    .select,
                    .insert("app_id", "environment", "bundle_id", "purpose", "only_failures", "start_at", "end_at"),
                ],
            ]),
        function("end_notification_window(bigint, bigint, boolean)", [.worker: [.execute]]),
        // The report of a day reads the audit by sample.
        table(
            "audit_days",
            [
                .worker: [
                    .select, .insert("app_id", "environment", "day", "population"),
                    .update("drawn", "compared", "differences", "explained", "bound"),
                ],
                .scheduler: [.select], .support: [.select], .dashboard: [.select],
            ]),
        table(
            "audit_samples",
            [
                .worker: [
                    .select, .insert("app_id", "environment", "customer", "day"),
                    .update("compared_at", "differences", "explained"),
                ],
                .support: [.select],
            ]),
        table("v_nets", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_sweeps", [.worker: [.select], .support: [.select], .dashboard: [.select]]),
    ]
}
