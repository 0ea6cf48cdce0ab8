package import Postgres

/// A sealed row, or a block, that is not as it was sealed.
package struct SealFinding: Sendable, Equatable {
    package enum What: String, Sendable, CaseIterable {
        /// The row has other values.
        case edited
        /// The row is gone.
        case deleted
        /// The row is in the span of the block, and was not there when the block was sealed.
        case inserted
        /// The row names no transaction, so no block has it.
        case unnumbered
        /// A correction without an audited erasure.
        case uncaused
        /// The block's own columns are not the ones that its hash covers, or do not follow the block before.
        case resealed
        /// The block is gone.
        case missing
        /// The block's hash is not the head that left the database.
        case rewritten
    }

    /// The block's number.
    package let block: Int
    package let what: What
    /// The row, as `grant 2000…`; nil of a finding about the block.
    package let row: String?

    package init(block: Int, what: What, row: String? = nil) {
        self.block = block
        self.what = what
        self.row = row
    }
}

extension Statements {
    /// The number of findings that each statement about blocks returns.
    package static let sealFindingsMax = 100

    private static let storedHash = SealText.hash(
        hashes: """
            coalesce((select string_agg(h, ''::bytea order by n) from unnest(hashes) with ordinality u(h, n)), '')
            """,
        names: "array_to_string(names, e'\\n')")

    /// The last of these blocks that one look may include: behind it the transactions' numbers begin anew, as on a server
    /// into which a dump was loaded.
    package static let sealStretch = Statement<ClosedRange<Int>, Int>(
        "seals.stretch",
        """
        select coalesce(max(number), $1) from seals
        where number between $1 and $2 and first_xid >= (select first_xid from seals where number = $1)
        """,
        bind: { [.int($0.lowerBound), .int($0.upperBound)] }, read: { row throws(PostgresError) in try row.int(0) })

    /// Computes the hashes of blocks again, and looks whether each correction in them has an erasure that is audited.
    /// The newest block answers for the corrections after it too.
    static let checkSeals = Statement<ClosedRange<Int>, SealFinding>(
        "seals.check",
        """
        with block as materialized (select * from seals where number between $1 and $2)
        select n, 'missing', null from generate_series($1, $2) n where not exists (select from block where number = n)
        union all
        select number, 'resealed', null from block
        where previous_hash is distinct from coalesce((select s.hash from seals s where s.number = block.number - 1),
            case when number = 1 then \(SealText.noHash) end)
          or hash <> \(storedHash)
        union all
        select b.number, 'uncaused', 'correction ' || c.id
        from (
          select id, xid from uncaused_corrections where xid >= (select min(first_xid) from block)
            and (xid < (select max(end_xid) from block) or $2 >= (select max(number) from seals)) offset 0) c
        join block b on c.xid >= b.first_xid
          and (c.xid < b.end_xid or b.number = (select max(number) from seals))
        limit \(sealFindingsMax)
        """,
        bind: { [.int($0.lowerBound), .int($0.upperBound)] }, read: readFinding)

    /// Computes the hashes of the rows of blocks again, and returns the rows that are not as they were sealed.
    ///
    /// An outcome that a later transaction decided again has a greater `xid` and is in a later block: it left its
    /// block by right. A row in the span that another block lists, or that is not sealed yet, is of a server into which
    /// a dump was loaded (``planSeal``).
    static let checkSealedRows = Statement<ClosedRange<Int>, SealFinding>(
        "seals.check_rows",
        """
        with block as materialized (select * from seals where number between $1 and $2),
        listed as materialized (select number, u.name, u.hash from block cross join unnest(names, hashes) u(name, hash)),
        live as materialized (
          select b.number, r.name, r.xid, r.hash
          from (
            select name, xid, hash from sealable_rows
            where xid >= (select min(first_xid) from block) and xid < (select max(end_xid) from block) offset 0) r
          join (select number, first_xid, end_xid from block) b on r.xid >= b.first_xid and r.xid < b.end_xid),
        different as materialized (
          select number, name, live.xid, case when listed.hash is null then 'inserted'
            when live.hash is null then 'deleted' else 'edited' end as what
          from listed full join live using (number, name) where listed.hash is distinct from live.hash)
        select number, what, name from different d
        where case what
          when 'deleted' then name !~ '^outcome [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} ' or not exists (
            select from outcomes where receipt_id = substr(d.name, 9, 36)::uuid
              and transaction_id = substr(d.name, 46)
              and xid >= (select end_xid from block where block.number = d.number)
              and xid < \(sealNumbersEnd))
          when 'inserted' then xid < (select end_xid from seals order by number desc limit 1) and not exists (
            select from seals s
            where s.end_xid > d.xid and s.first_xid <= d.xid and s.number <> d.number and d.name = any(s.names))
          else true end
        order by number, name limit \(sealFindingsMax)
        """,
        bind: { [.int($0.lowerBound), .int($0.upperBound)] }, read: readFinding)

    /// The outcomes that a block lists and that were decided again in a later transaction, as the block names them.
    package static let decidedAgain = Statement<Int, String>(
        "seals.decided_again",
        """
        select listed.name
        from (
          select u.name, s.end_xid, case when u.name ~ '^outcome [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} '
            then substr(u.name, 9, 36)::uuid end as receipt_id
          from seals s cross join unnest(s.names) u(name) where s.number = $1) listed
        join outcomes o on o.receipt_id = listed.receipt_id and o.transaction_id = substr(listed.name, 46)
          and o.xid >= listed.end_xid
        order by 1
        """,
        bind: { [.int($0)] }, read: { row throws(PostgresError) in try row.text(0) })

    static let readFinding: @Sendable (borrowing RowReader) throws(PostgresError) -> SealFinding = {
        row throws(PostgresError) in
        SealFinding(
            block: try row.int(0), what: SealFinding.What(rawValue: try row.text(1)) ?? .resealed,
            row: try row.optionalText(2))
    }
}

extension SealFinding {
    /// Looks at one block.
    package static func look(at number: Int, _ database: Database) async throws(PostgresError) -> [SealFinding] {
        try await look(at: number...number, database)
    }

    /// Looks at blocks together: small blocks take hardly longer than one. Returns at most
    /// ``Statements/sealFindingsMax`` findings about blocks, and as many about rows.
    package static func look(
        at numbers: ClosedRange<Int>, _ database: Database
    ) async throws(PostgresError) -> [SealFinding] {
        try await database.run(Statements.checkSeals, numbers) + database.run(Statements.checkSealedRows, numbers)
            + database.run(Statements.checkSealNumbers, numbers.upperBound)
    }

    /// Compares heads that left the database with the stored ones: the first that differs is rewritten, or missing.
    /// The blocks up to the last head that agrees are as they were.
    package static func compare(
        _ heads: [SealHead], _ database: Database
    ) async throws(PostgresError) -> (findings: [SealFinding], agreeing: Int) {
        let stored = Dictionary(
            try await database.run(Statements.sealHeadsAt, Array(Set(heads.map(\.number)))).map {
                ($0.number, $0.hash)
            }, uniquingKeysWith: { first, _ in first })
        var agreeing = 0
        var findings: [SealFinding] = []
        for head in heads.sorted(by: { $0.number < $1.number }) {
            switch stored[head.number] {
            case head.hash: agreeing = max(agreeing, head.number)
            case nil: findings.append(SealFinding(block: head.number, what: .missing))
            case _?: findings.append(SealFinding(block: head.number, what: .rewritten))
            }
        }
        return (findings, agreeing)
    }
}
