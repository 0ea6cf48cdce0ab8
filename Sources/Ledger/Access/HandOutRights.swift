// The rights to what the apps' backends did with the goods of events.
extension Rights {
    static let ofHandOuts: [Rights] = [
        table(
            "hand_out_limits",
            [
                .scheduler: [
                    .select, .insert("app_id", "within"), .update("within", "since", "xid", "id"),
                ],
                .worker: [.select], .support: [.select],
            ]),
        table(
            "hand_outs",
            [.ingest: [.select], .worker: [.select], .support: [.select]]),
        // Functions alone write it.
        table("hand_out_failures", [.support: [.select]]),
        table(
            "v_hand_outs_waiting", [.scheduler: [.select], .support: [.select], .dashboard: [.select]]),
        function(
            "goods_way(text, jsonb)",
            [.scheduler: [.execute], .support: [.execute], .dashboard: [.execute]]),
        function("hand_out_number(text)", [:]),
        function("delivered_at(text)", [.ingest: [.execute], .worker: [.execute], .support: [.execute]]),
        function("is_undelivered(text)", [.worker: [.execute], .support: [.execute]]),
        function("is_hand_out_void(text, text, text, xid8, bigint)", [:]),
        function(
            "handle_event(text[], text, uuid, text, bigint, jsonb, text, timestamp with time zone)",
            [.ingest: [.execute], .dispatcher: [.execute]]),
        function("count_late_hand_outs(text, integer)", [.scheduler: [.execute]]),
        function("recount_hand_outs(integer)", [.scheduler: [.execute]]),
    ]
}
