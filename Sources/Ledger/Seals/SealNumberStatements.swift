import Postgres

extension Statements {
    /// SQL: no row has this number or a greater one, of a transaction of this server or of one whose dump was loaded.
    static let sealNumbersEnd = """
        greatest((select max(end_xid) from seals), pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
          pg_current_xact_id_if_assigned()::text::bigint + 1)
        """

    /// The rows with a number that no transaction has yet, if the newest block has this number: no block would list
    /// them for years. None where a dump was loaded and the rest of its rows is not sealed yet (``planSeal``).
    static let checkSealNumbers = Statement<Int, SealFinding>(
        "seals.check_numbers",
        """
        with head as materialized (select number, end_xid from seals order by number desc limit 1),
        -- A span, and without the limit: else the planner expects many rows, and reads the tables.
        ahead as materialized (
          select name from sealable_rows where xid >= \(sealNumbersEnd) and xid < 9223372036854775807)
        select number, name from head cross join ahead
        where number = $1 and end_xid <= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        limit \(sealFindingsMax)
        """,
        bind: { [.int($0)] },
        read: { row throws(PostgresError) in
            SealFinding(block: try row.int(0), what: .inserted, row: try row.text(1))
        })
}
