import Encoding
package import Foundation
package import Postgres

/// The newest block, or an older one, by what leaves the database of it. The hash covers the block and all before it.
package struct SealHead: Sendable, Equatable {
    package let number: Int
    /// SHA-256, 32 bytes.
    package let hash: [UInt8]

    package init(number: Int, hash: [UInt8]) {
        self.number = number
        self.hash = hash
    }

    /// How logs and reports name a head.
    package var line: String { Self.line(number, hash.hexadecimal) }

    /// `seal.head NUMBER HASH`, the hash in lower-case hexadecimal.
    package static func line(_ number: Int, _ hash: String) -> String { "seal.head \(number) \(hash)" }

    /// The heads in a text of any form: everything that reads like ``line``, such as in a log in JSON, and each JSON
    /// object with a `block` and a `head`, such as the seals of a daily report, in whatever order its keys are and
    /// however its quotation marks are escaped.
    package static func heads(in text: String) -> [SealHead] {
        let inLines = text.matches(of: /seal\.head ([0-9]{1,18}) ([0-9a-f]{64})/).map { ($0.1, $0.2) }
        let isBrace: (Character) -> Bool = { $0 == "{" || $0 == "}" }
        let inReports = text.matches(of: /[\\"]head[\\"]+\s*:\s*[\\"]+([0-9a-f]{64})/)
            .compactMap { match -> (Substring, Substring)? in
                guard let start = text[..<match.range.lowerBound].lastIndex(where: isBrace),
                    let end = text[match.range.upperBound...].firstIndex(where: isBrace),
                    let block = text[start..<end].firstMatch(of: /[\\"]block[\\"]+\s*:\s*([0-9]{1,18})/)
                else { return nil }
                return (block.1, match.1)
            }
        return (inLines + inReports).compactMap { number, hash in
            guard let number = Int(number) else { return nil }
            let digits = hash.compactMap(\.hexDigitValue).map(UInt8.init)
            return SealHead(
                number: number, hash: stride(from: 0, to: 64, by: 2).map { digits[$0] << 4 | digits[$0 + 1] })
        }
    }
}

/// The transactions whose rows the next block has.
package struct SealPlan: Sendable {
    package let number: Int
    package let previousHash: [UInt8]
    package let firstXID: Int
    package let endXID: Int
    /// The number of rows found. Zero: there is nothing to seal up to `endXID`.
    package let rows: Int
    /// Whether rows up to the horizon are left for further blocks.
    package let isMore: Bool
    /// The age of the oldest of these rows; 0 if there is none.
    package let behindSeconds: Double
    /// The database's clock.
    package let readAt: Date

    /// The number of transactions that the next plan looks at: of a backlog what about two blocks hold, and where no row
    /// was found twice as many as before. Nil: all.
    package var nextTransactions: Int? { isMore ? max(Self.transactionsMin, 2 * (endXID - firstXID)) : nil }

    package static let transactionsMin = 256

    package var head: SealHead? { number > 1 ? SealHead(number: number - 1, hash: previousHash) : nil }
}

package struct SealedBlock: Sendable, Equatable {
    package let head: SealHead
    package let rows: Int
}

extension Statements {
    package struct SealReach: Sendable {
        /// The number of transactions that a plan looks at. Nil: all that have ended.
        package var transactions: Int?
        /// The number of rows of a block. One transaction's rows are never parted.
        package var rows: Int

        package init(transactions: Int? = nil, rows: Int) {
            self.transactions = transactions
            self.rows = rows
        }
    }

    /// Plans the next block: it begins where the newest one ends, and ends where no transaction can add a row any more,
    /// or where it has enough rows.
    ///
    /// A server into which a dump was loaded counts transactions from the beginning. Then the rest of the old rows is a
    /// block, and the block after that begins at 0.
    package static let planSeal = Statement<SealReach, SealPlan>(
        "seals.plan",
        """
        with head as (select number, end_xid, hash from seals order by number desc limit 1),
        place as materialized (
          select coalesce(h.number, 0) + 1 as number, coalesce(h.hash, \(SealText.noHash)) as previous_hash,
            coalesce(h.end_xid, 0) as sealed_to, pg_snapshot_xmin(s)::text::bigint as horizon,
            pg_snapshot_xmax(s)::text::bigint < coalesce(h.end_xid, 0) as is_elsewhere
          from pg_current_snapshot() s left join head h on true),
        span as materialized (
          select *, case when is_elsewhere and not exists (select from sealable_rows where xid >= sealed_to) then 0
              else sealed_to end as first_xid
          from place),
        bounds as materialized (
          select *, case when is_elsewhere and first_xid > 0 then 9223372036854775807
            else least(horizon, first_xid + $1) end as bound from span),
        candidates as materialized (
          select xid, written_at from sealable_rows
          where xid >= (select first_xid from bounds) and xid < (select bound from bounds)),
        cut as (select xid + 1 as end_xid from candidates order by xid offset $2 - 1 limit 1),
        ends as (
          select *, coalesce((select end_xid from cut),
            case when bound = 9223372036854775807 then (select max(xid) + 1 from candidates) else bound end) as end_xid
          from bounds)
        select number, previous_hash, first_xid, end_xid, (select count(*) from candidates where xid < end_xid),
          bound <> horizon or exists (select from cut),
          coalesce(extract(epoch from now() - (select min(written_at) from candidates)), 0)::float8, now()
        from ends
        """,
        bind: { [.int(min($0.transactions ?? reachMax, reachMax)), .int($0.rows)] },
        read: { row throws(PostgresError) in
            SealPlan(
                number: try row.int(0), previousHash: try row.bytes(1), firstXID: try row.int(2),
                endXID: try row.int(3), rows: try row.int(4), isMore: try row.bool(5),
                behindSeconds: try row.double(6), readAt: try row.date(7))
        })

    /// More than all transactions that a server can have.
    private static let reachMax = 1 << 61

    /// Writes the block that was planned, and returns it. No row: another scheduler wrote a block of this number. The
    /// block has fewer rows than the plan found if older blocks have some of them, on a server into which a dump was
    /// loaded.
    ///
    /// The statement must begin after the plan's statement has ended: its snapshot sees every row of the span.
    package static let seal = Statement<SealPlan, SealedBlock>(
        "seals.seal",
        """
        with live as (select name, xid, hash from sealable_rows where xid >= $2 and xid < $3),
        block as materialized (
          select $1::bigint as number, \(SealText.form) as form, $2::bigint as first_xid, $3::bigint as end_xid,
            coalesce(array_agg(name), '{}') as names, coalesce(array_agg(hash), '{}') as hashes,
            $4::bytea as previous_hash, coalesce(string_agg(hash, ''::bytea), '') as all_hashes,
            coalesce(string_agg(name, e'\\n'), '') as all_names
          from live
          where not ((select max(end_xid) from seals) > $2 and exists (
            select from seals s where s.end_xid > live.xid and s.first_xid <= live.xid and live.name = any(s.names))))
        insert into seals (number, form, first_xid, end_xid, names, hashes, previous_hash, hash)
        select number, form, first_xid, end_xid, names, hashes, previous_hash,
          \(SealText.hash(hashes: "all_hashes", names: "all_names"))
        from block
        on conflict (number) do nothing
        returning number, hash, cardinality(names)
        """,
        bind: { [.int($0.number), .int($0.firstXID), .int($0.endXID), .bytes($0.previousHash)] },
        read: { row throws(PostgresError) in
            SealedBlock(head: SealHead(number: try row.int(0), hash: try row.bytes(1)), rows: try row.int(2))
        })

    /// The newest heads, the newest first: as many as asked for.
    package static let sealHeads = Statement<Int, SealHead>(
        "seals.heads", "select number, hash from seals order by number desc limit $1", bind: { [.int($0)] },
        read: readHead)

    /// The extent of the seals: the number of blocks, of rows, and of corrections.
    package static let sealExtent = Statement<Void, (blocks: Int, rows: Int, corrections: Int)>(
        "seals.extent",
        """
        select count(*), coalesce(sum(cardinality(names)), 0)::bigint, (select count(*) from seal_corrections)
        from seals
        """,
        read: { row throws(PostgresError) in
            (blocks: try row.int(0), rows: try row.int(1), corrections: try row.int(2))
        })

    /// The heads with these numbers. A block that is not stored is missing from the result.
    package static let sealHeadsAt = Statement<[Int], SealHead>(
        "seals.heads_at", "select number, hash from seals where number = any($1::bigint[])",
        bind: { [.ints($0.map(Optional.init))] }, read: readHead)

    private static let readHead: @Sendable (borrowing RowReader) throws(PostgresError) -> SealHead = {
        row throws(PostgresError) in SealHead(number: try row.int(0), hash: try row.bytes(1))
    }
}
