// The rights to what the sweeps of Apple's customers add.
extension Rights {
    static let ofCustomerSweeps: [Rights] = [
        table(
            "customer_progress",
            [
                .worker: [.select, .update("searched_xid", "searched_id", "imported_to", "orders_to", "reports_to")]
            ]),
        function("enter_imported_customers()", [:]),
        // The caller learns how many customers are due by it, and not which.
        function(
            "want_customers(text[], text[], text[], text, double precision)",
            [.ingest: [.execute], .worker: [.execute], .support: [.execute]]),
    ]
}
