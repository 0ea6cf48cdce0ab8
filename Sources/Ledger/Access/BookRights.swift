// The rights to the tables and views of the books.
extension Rights {
    static let ofBooks: [Rights] = [
        table("arrivals_by_hour", [.scheduler: [.select, .insert, .update("arrivals")]]),
        table(
            "arrivals_progress",
            [
                .ingest: [.select("summed_to")],
                .scheduler: [.select, .update("summed_to", "complete_to", "complete_xid")],
            ]),
        table(
            "daily_reports", [.scheduler: [.select, .insert("day", "report")], .support: [.select]]),

        table("v_timeliness", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_open_ends", [.support: [.select], .dashboard: [.select]]),
        table("v_clearing_by_span", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_clearing", [.support: [.select], .dashboard: [.select]]),
        table("v_clearing_overdue", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_differences", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        table("v_daily_reports", [.support: [.select], .dashboard: [.select]]),
    ]
}
