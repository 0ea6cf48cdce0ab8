import Postgres

extension Statements {
    /// SQL: no row has this number or a greater one, of a transaction of this server or of one whose dump was loaded.
    static let sealNumbersEnd = """
        greatest((select max(end_xid) from seals), pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
          pg_current_xact_id_if_assigned()::text::bigint + 1)
        """

    /// The rows with a number that no transaction has yet, and those without a number, if the newest block has this
    /// number: no block would list the former for years, or the latter at all. No row ahead is named where a dump was
    /// loaded and the rest of its rows is not sealed yet (``planSeal``).
    static let checkSealNumbers = Statement<Int, SealFinding>(
        "seals.check_numbers",
        """
        with head as materialized (select number, end_xid from seals order by number desc limit 1),
        -- A span, and without the limit: else the planner expects many rows, and reads the tables.
        ahead as materialized (
          select name from sealable_rows where xid >= \(sealNumbersEnd) and xid < 9223372036854775807),
        -- The same holds here. A block range index finds these rows without reading the others.
        unnumbered as materialized (select name from sealable_rows where xid is null)
        (select number, 'inserted', name from head cross join ahead
        where number = $1 and end_xid <= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        limit \(sealFindingsMax))
        union all
        (select number, 'unnumbered', name from head cross join unnumbered where number = $1
        limit \(sealFindingsMax))
        """,
        bind: { [.int($0)] }, read: readFinding)
}
