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
    /// The number of findings that each statement about a block returns.
    package static let sealFindingsMax = 100

    private static let storedHash = SealText.hash(
        hashes: """
            coalesce((select string_agg(h, ''::bytea order by n) from unnest(hashes) with ordinality u(h, n)), '')
            """,
        names: "array_to_string(names, e'\\n')")

    /// Computes the hash of a block again, and looks whether each correction in it has an erasure that is audited. The
    /// newest block answers for the corrections after it too.
    static let checkSeal = Statement<Int, SealFinding>(
        "seals.check",
        """
        with block as materialized (select * from seals where number = $1)
        select 'missing', null where not exists (select from block)
        union all
        select 'resealed', null from block
        where previous_hash is distinct from coalesce((select hash from seals where number = $1 - 1),
            case when $1 = 1 then \(SealText.noHash) end)
          or hash <> \(storedHash)
        union all
        select 'uncaused', 'correction ' || id from uncaused_corrections
        where xid >= (select first_xid from block)
          and (xid < (select end_xid from block) or $1 = (select max(number) from seals))
        limit \(sealFindingsMax)
        """,
        bind: { [.int($0)] }, read: readFinding)

    /// Computes the hashes of a block's rows again, and returns the rows that are not as they were sealed.
    ///
    /// An outcome that a later transaction decided again has a greater `xid` and is in a later block: it left this
    /// block by right. A row in the span that another block lists, or that is not sealed yet, is of a server into which
    /// a dump was loaded (``planSeal``).
    static let checkSealedRows = Statement<Int, SealFinding>(
        "seals.check_rows",
        """
        with block as materialized (select * from seals where number = $1),
        listed as materialized (select u.name, u.hash from block cross join unnest(names, hashes) u(name, hash)),
        live as materialized (
          select name, xid, hash from sealable_rows
          where xid >= (select first_xid from block) and xid < (select end_xid from block)),
        different as materialized (
          select name, live.xid, case when listed.hash is null then 'inserted'
            when live.hash is null then 'deleted' else 'edited' end as what
          from listed full join live using (name) where listed.hash is distinct from live.hash)
        select what, name from different d
        where case what
          when 'deleted' then name !~ '^outcome [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} ' or not exists (
            select from outcomes where receipt_id = substr(d.name, 9, 36)::uuid
              and transaction_id = substr(d.name, 46) and xid >= (select end_xid from block))
          when 'inserted' then xid < (select end_xid from seals order by number desc limit 1) and not exists (
            select from seals s
            where s.end_xid > d.xid and s.first_xid <= d.xid and s.number <> $1 and d.name = any(s.names))
          else true end
        order by name limit \(sealFindingsMax)
        """,
        bind: { [.int($0)] }, read: readFinding)

    /// A finding with the number 0: ``SealFinding/look(at:_:)`` writes the number of the block.
    private static let readFinding: @Sendable (borrowing RowReader) throws(PostgresError) -> SealFinding = {
        row throws(PostgresError) in
        SealFinding(
            block: 0, what: SealFinding.What(rawValue: try row.text(0)) ?? .resealed, row: try row.optionalText(1))
    }
}

extension SealFinding {
    /// Looks at one block.
    package static func look(at number: Int, _ database: Database) async throws(PostgresError) -> [SealFinding] {
        let ofBlock = try await database.run(Statements.checkSeal, number)
        let isMissing = ofBlock.contains { $0.what == .missing }
        let ofRows = isMissing ? [] : try await database.run(Statements.checkSealedRows, number)
        return (ofBlock + ofRows).map { SealFinding(block: number, what: $0.what, row: $0.row) }
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
