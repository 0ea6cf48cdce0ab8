import Foundation
import Postgres
import Purchases

/// A later post of a receipt that is stored already.
struct SaidLine: Sendable {
    let submission: Submission
    /// How many lines its receipt may have, the first post's included.
    let linesMax: Int
}

/// What became of a later post.
package enum SaidResult: String, Sendable {
    /// The post says nothing new. A held or parked receipt becomes due, at most once a minute.
    case same
    /// The post says something new. An open receipt is judged by it from now on and becomes due, at most once a minute;
    /// a receipt that has ended only keeps it.
    case taken
    /// The receipt has as many lines as it may have. Nothing was stored.
    case full
}

extension Statements {
    /// Counts later posts of receipts: an id as often as its receipt was posted. A batch that is written again after an
    /// unknown outcome may count twice.
    static let countRepeats = Statement<[UUID], Void>(
        "ledger.count_repeats",
        """
        insert into repeated_posts as p (receipt_id, posts)
        select id, count(*) from unnest($1::uuid[]) as i(id) group by id order by id
        on conflict (receipt_id) do update set posts = p.posts + excluded.posts, posted_at = now()
        """,
        bind: { [.uuids($0)] })

    /// Adds to receipts what later posts of the same proofs say, one post after the other. The rows come in any order.
    static let sayLines = Statement<[SaidLine], (index: Int, result: SaidResult)>(
        "ledger.say_lines",
        """
        select (i.n - 1)::int, say_line(i.id, i.ordr, i.transaction, i.original, \(installation(ofToken: "i.token")), i.target,
          i.declared, i.details, i.lines_max)
        from (
          select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::jsonb[], $8::jsonb[],
            $9::jsonb[], $10::int[]) with ordinality
            as i(id, app, ordr, transaction, original, token, target, declared, details, lines_max, n)
          -- Every statement that locks several receipts locks them in this order.
          order by id, n offset 0) i
        """,
        bind: { lines in
            let submissions = lines.map(\.submission)
            return [
                .uuids(submissions.map(\.receiptID)), .texts(submissions.map(\.appID)),
                .texts(submissions.map(\.orderID)), .texts(submissions.map(\.transactionID)),
                .texts(submissions.map(\.originalTransactionID)),
                .bytesArray(submissions.map(\.installationTokenSHA256)), .jsons(submissions.map(\.target)),
                .jsons(submissions.map { $0.declared?.json }), .jsons(submissions.map(\.details)),
                .int32s(lines.map(\.linesMax)),
            ]
        },
        read: { row throws(PostgresError) in (index: try row.int(0), result: try row.word(1)) })
}
