// The rights to the tables of the sweeps over Apple's books.
extension Rights {
    static let ofSweeps: [Rights] = [
        table(
            "net_catches",
            [
                .worker: [
                    .select, .insert("transaction_id", "kind", "app_id", "environment", "net"),
                ],
                .scheduler: [.select], .support: [.select],
            ]),
        table(
            "differences",
            [
                .worker: [
                    .select, .insert("category", "subject", "app_id", "environment", "net", "details"),
                    .update("net", "details", "seen_at", "ended_at", "ended_by"),
                ],
                .scheduler: [.select],
                .support: [.select, .update("ended_at", "ended_by")],
            ]),
    ]
}
