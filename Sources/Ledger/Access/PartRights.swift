extension Rights {
    /// Functions and views that are parts of longer ones (0031_short_functions.sql). A part is used with the rights of the
    /// whole: those of the schema's owner, but for the part of `take_limit_place`, which has its callers' rights.
    static let ofParts: [Rights] = [
        function(
            "enter_former_places(text, text, text, date, jsonb, integer)", [.ingest: [.execute], .worker: [.execute]]),
        function("line_of_post(uuid, timestamp with time zone, text, text, text, text, jsonb, jsonb, jsonb)", [:]),
        function("line_to_judge(receipt_lines, receipt_lines)", [:]),
        function("keep_line(receipt_lines, receipt_lines, boolean, integer)", [:]),
        function("review_kept_payloads(text[], integer)", [:]),
        function("empty_default_payloads(date, text[], integer)", [:]),
        function("judge_oldest_payloads(date, text[], integer)", [:]),
        function("own_merged_grants(uuid, text)", [:]),
        function("purchases_to_claim(receipts, boolean, boolean, interval)", [:]),
        table("due_subscriptions", [:]),
        table("due_customers", [:]),
    ]
}
