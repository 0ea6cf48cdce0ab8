// The rights to seals. A scheduler inserts blocks; no role changes or deletes one. Only triggers write corrections. The
// view of hashes reads whole rows with its owner's rights, so that no role needs to read them.
extension Rights {
    static let ofSeals: [Rights] = [
        table(
            "seals",
            [
                .scheduler: [
                    .select,
                    .insert(
                        "number", "form", "first_xid", "end_xid", "names", "hashes", "previous_hash", "hash"),
                ],
                .support: [.select],
            ]),
        table("seal_corrections", [.scheduler: [.select], .support: [.select]]),
        table("sealable_rows", [.scheduler: [.select], .support: [.select]]),
        table("uncaused_corrections", [.scheduler: [.select], .support: [.select]]),
        function("users_hash_of_audit(jsonb)", [:]),
        function("correct_seal()", [:]),
        function("place_outcome()", [:]),
    ]
}
