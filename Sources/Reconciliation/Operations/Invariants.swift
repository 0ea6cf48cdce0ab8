package import Postgres

/// What must hold at any moment, as statements that return no row (reliability.md section 5; those that need the
/// simulator's ledger stand with the tests). Read-only.
package struct Invariant: Sendable {
    package let name: String
    package let meaning: String
    /// Each row is one violation, in words without personal data.
    let statement: Statement<Span, String>

    /// Which days are judged.
    package enum Span: Sendable {
        /// Today and yesterday, by the database's clock in UTC.
        case recent
        case all
    }

    private init(_ name: String, _ meaning: String, _ sql: String) {
        self.name = name
        self.meaning = meaning
        statement = Statement(
            "check.\(name)", sql,
            bind: { span in
                switch span {
                case .recent: [.int32(1)]
                case .all: [.int32(100_000)]
                }
            },
            read: { row throws(PostgresError) in try row.text(0) })
    }

    package static let all: [Invariant] = [
        Invariant(
            "conservation", "received = granted + already granted + rejected + open, by app and day (B1)",
            """
            select app_id || ' ' || day || ': received ' || coalesce(received, 0) || ', rows ' || coalesce(receipts, 0)
            from (
              select app_id, (received_at at time zone 'UTC')::date as day, count(*) as receipts from receipts
              where received_at >= (((now() at time zone 'UTC')::date - $1)::timestamp at time zone 'UTC')
              group by 1, 2) as row_counts
            full join (
              select app_id, day, sum(received)::bigint as received from tallies
              where day >= (now() at time zone 'UTC')::date - $1 group by 1, 2) as tally_counts using (app_id, day)
            where coalesce(received, 0) <> coalesce(receipts, 0)
            """),
        Invariant(
            "grants_told_by_outcomes", "every granted outcome has its grant",
            """
            select 'receipt ' || o.receipt_id || ' transaction …' || right(o.transaction_id, 4)
            from outcomes o left join grants g on g.transaction_id = o.transaction_id and g.receipt_id = o.receipt_id
            where o.state = 'granted' and g.transaction_id is null and o.decided_at >= now() - make_interval(days => $1)
            """),
        Invariant(
            "outcomes_of_grants", "every grant is a granted outcome of its receipt, or that receipt is still open",
            """
            select 'receipt ' || g.receipt_id || ' transaction …' || right(g.transaction_id, 4)
            from grants g
            join receipts r on r.id = g.receipt_id
            left join outcomes o on o.receipt_id = g.receipt_id and o.transaction_id = g.transaction_id
            where g.granted_at >= now() - make_interval(days => $1) and r.settled_at is not null
              and o.state is distinct from 'granted'
            """),
        Invariant(
            "receipts_of_grants", "every grant has the receipt that brought it",
            """
            select 'transaction …' || right(g.transaction_id, 4)
            from grants g left join receipts r on r.id = g.receipt_id
            where r.id is null and g.granted_at >= now() - make_interval(days => $1)
            """),
        Invariant(
            "summary", "a receipt's state follows from its outcomes",
            """
            select 'receipt ' || r.id || ' is ' || r.state from receipts r
            cross join lateral (
              select case when bool_or(state in ('open', 'held')) then 'open' when bool_or(state = 'granted') then 'granted'
                  when bool_or(state = 'already_granted') then 'already_granted' else 'rejected' end as state
              from outcomes where receipt_id = r.id) o
            where r.received_at >= now() - make_interval(days => $1) and r.settled_at is not null and r.state <> o.state
            """),
        Invariant(
            "events_of_grants", "every grant was told, once, and nothing else was (I17)",
            """
            select 'transaction …' || right(transaction_id, 4) from (
              select transaction_id, receipt_id, true as is_granted from grants
              where granted_at >= now() - make_interval(days => $1)) g
            full join (
              select transaction_id, receipt_id, count(*) as times from events
              where type = 'purchase.granted' and at >= now() - make_interval(days => $1) group by 1, 2) e
              using (transaction_id, receipt_id)
            where is_granted is null or times is distinct from 1
            """),
        Invariant(
            "payloads_of_open", "every open receipt has its payload",
            """
            select 'receipt ' || r.id || ' ' || r.state from receipts r
            where r.due_at is not null and r.kind <> 'identifier' and r.received_at >= now() - make_interval(days => $1)
              and not exists (select from payloads p where p.receipt_id = r.id
                and p.received_on = (r.received_at at time zone 'UTC')::date)
              and not exists (select from kept_payloads k where k.receipt_id = r.id)
            limit 100
            """),
        Invariant(
            "due", "no open receipt is overdue by more than two hours, unless its app is paused or halted",
            """
            select 'receipt ' || id || ' ' || state from receipts
            where due_at is not null and due_at < now() - interval '2 hours' and $1 is not null
              and not exists (select from halts where halts.app_id = receipts.app_id)
            limit 100
            """),
    ]
}

extension Invariant {
    /// One invariant that does not hold.
    package struct Violation: Sendable, Equatable {
        package let invariant: String
        /// At most `examplesMax`.
        package let examples: [String]
        package let count: Int

        package static let examplesMax = 10
    }

    /// Runs every invariant. No violation: what was received is granted, rejected or open, and nothing else.
    package static func check(_ database: Database, span: Span) async throws(PostgresError) -> [Violation] {
        var violations: [Violation] = []
        for invariant in all {
            let rows = try await database.run(invariant.statement, span)
            if !rows.isEmpty {
                violations.append(
                    Violation(
                        invariant: invariant.name, examples: Array(rows.prefix(Violation.examplesMax)),
                        count: rows.count))
            }
        }
        return violations
    }
}
