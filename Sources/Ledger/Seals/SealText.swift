/// The SQL text of what is sealed: the rows of a span of transactions with their names and hashes, and the hash of a
/// block.
///
/// A hash covers each column of the table but `xid`, as PostgreSQL sends a record in binary, and beside it the hash of
/// the user's name. No setting of a session changes these bytes: times are microseconds, `jsonb` has one order, and the
/// connections of all programs send UTF-8. An erasure takes the user out of a row. Then `seal_corrections` has the hash
/// of the name, and the row still has the hash that was sealed. Another text needs another ``form``; this one stays for
/// the blocks that name it.
enum SealText {
    static let form = 1

    /// SQL: a query of the columns `name`, `xid` and `hash`, a row for each row that is or may be sealed.
    ///
    /// - Parameters:
    ///   - first: the first transaction, as SQL; an expression without columns of a table, so that indexes serve.
    ///   - end: the transaction after the last one.
    static func rows(from first: String, to end: String) -> String {
        let span = "xid >= \(first) and xid < \(end)"
        return """
            select 'grant ' || transaction_id as name, xid, sha256(record_send(row('grant'::text, transaction_id,
                purchase_key, period_key, app_id, environment, customer_id, receipt_id, product_id, quantity, goods,
                binding_source, granted_at, order_id, item, is_entitling))
              || \(user("'grant ' || transaction_id"))) as hash
            from grants where \(span)
            union all
            select 'outcome ' || receipt_id || ' ' || transaction_id, xid, sha256(record_send(row('outcome'::text,
                receipt_id, transaction_id, state, reason, binding_source, decided_at, reasons, granted_as, safe_at)))
            from outcomes where \(span)
            union all
            select 'revocation ' || transaction_id || ' ' || ordinal, xid, sha256(record_send(row('revocation'::text,
                transaction_id, ordinal, app_id, environment, kind, reason, takes_back, percentage, goods, at,
                signed_at, recorded_at))
              || \(user("'revocation ' || transaction_id || ' ' || ordinal")))
            from revocations where \(span)
            union all
            select 'audit ' || id, xid, sha256(record_send(row('audit'::text, id, at, actor, action,
                details - '{user,into,receiver}'::text[]))
              || \(usersOfAudit))
            from audits where \(span)
            union all
            select 'correction ' || id, xid, sha256(record_send(row('correction'::text, id, name, tombstone, user_hash,
                corrected_hash, corrected_at)))
            from seal_corrections where \(span)
            """
    }

    private static let usersOfAudit = corrected(
        "sha256(convert_to(jsonb_build_array(details -> 'user', details -> 'into', details -> 'receiver')::text, 'UTF8'))",
        of: "'audit ' || audits.id", if: "action in ('users.merge', 'support.give')",
        tombstone: "in (details ->> 'user', details ->> 'into', details ->> 'receiver')")

    private static func user(_ name: String) -> String {
        corrected(
            "sha256(convert_to(user_id, 'UTF8'))", of: name, if: "user_id like 'erased\\_%'", tombstone: "= user_id")
    }

    /// SQL: the hash of the user's name as it was sealed. That is the hash of what stands there now, or of what stood
    /// there before the row's first correction, if the last correction put there what stands there now.
    ///
    /// - Parameters:
    ///   - now: the hash of what stands there now.
    ///   - condition: what all corrected rows meet. Only such a row is looked up.
    ///   - tombstone: what the tombstone of the correction is compared with.
    private static func corrected(
        _ now: String, of name: String, if condition: String, tombstone: String
    ) -> String {
        """
        coalesce(case when \(condition) then (select c.user_hash from seal_corrections c
            where c.name = \(name) and c.tombstone \(tombstone) and \(now) = (
              select l.corrected_hash from seal_corrections l where l.name = c.name order by l.id desc limit 1)
            order by c.id limit 1) end, \(now))
        """
    }

    /// SQL: the hash of a block.
    ///
    /// - Parameters:
    ///   - hashes: all hashes of its rows, one after the other.
    ///   - names: all names of its rows, a line for each.
    static func hash(hashes: String, names: String) -> String {
        """
        sha256(previous_hash || record_send(row(number, form, first_xid, end_xid)) || \(hashes)
          || convert_to(\(names), 'UTF8'))
        """
    }

    /// SQL: the hash before the first block.
    static let noHash = "decode(repeat('00', 32), 'hex')"
}
