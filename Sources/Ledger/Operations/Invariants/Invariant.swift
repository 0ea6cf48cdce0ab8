package import Postgres
import Purchases
import Settings

/// A condition that must hold at any moment, as a statement that returns no row. Read-only.
///
/// Most invariants need only the database: `makegood check` and the scheduler run them. The others compare the database
/// with what the outside knows, and run where a test has loaded a `Witness`. Each names the condition that it proves:
/// I1 to I17, or B1 (the conservation of what came in), B3 (what Apple is told), B6 (what is given once), B7 (orders),
/// B8 (what the app's backend is told) or B10 (what was given on trust). One id may take several statements, from the
/// inside and from the outside.
package struct Invariant: Sendable {
    /// I1 to I17, B1, B3, B6, B7, B8 or B10.
    package let id: String
    package let name: String
    package let meaning: String
    package let needsWitness: Bool
    private let sql: String

    /// Which rows are judged: those of this last time, by the database's clock. What is counted by day is judged by
    /// whole days in UTC.
    package enum Span: Sendable, Equatable {
        case last(Duration)
        case all

        /// Two days, so that a check which runs each day at about the same time judges every row.
        package static let recent = Span.last(.seconds(2 * 86_400))

        var inSeconds: Double {
            switch self {
            case .last(let duration): duration.inSeconds
            case .all: 100_000 * 86_400
            }
        }
    }

    /// - Parameter sql: one row and column per violation, in words without personal data. `:seconds` is how far back
    ///   rows are judged, `:scale` the factor on every delay, `:payload_seconds` how far back payloads are hashed.
    init(_ id: String, _ name: String, needsWitness: Bool = false, _ meaning: String, _ sql: String) {
        self.id = id
        self.name = name
        self.meaning = meaning
        self.needsWitness = needsWitness
        self.sql = sql
    }

    /// The scope stands in the text, not in parameters. Services keep one plan for all parameters, and a plan for any
    /// span reads the whole table: beside ten million receipts it takes five times as long as a plan for today.
    private func statement(_ scope: Scope) -> Statement<Void, (example: String, count: Int)> {
        let judged =
            sql
            .replacing(":seconds", with: "\(scope.seconds)")
            .replacing(":scale", with: "\(scope.scale)::float8")
            .replacing(":payload_seconds", with: "\(scope.payloadSeconds)")
        return Statement(
            "check.\(name)",
            """
            with violations(example) as materialized (
            \(judged)
            )
            select example, (select count(*) from violations) from violations limit \(Violation.examplesMax)
            """,
            read: { row throws(PostgresError) in (example: try row.text(0), count: try row.int(1)) })
    }

    package static let all: [Invariant] = ofTheLedger + ofTheWitness
}

extension Invariant {
    /// One invariant that does not hold.
    package struct Violation: Sendable, Equatable {
        package let id: String
        /// The invariant's name.
        package let invariant: String
        /// At most `examplesMax`.
        package let examples: [String]
        package let count: Int

        package static let examplesMax = 10
    }

    private struct Scope: Sendable {
        let seconds: Double
        let scale: Double
        let payloadSeconds: Double

        init(_ span: Span, scale: Double) {
            self.scale = scale
            seconds = span.inSeconds
            switch span {
            // Hashing a proof takes as long as reading many rows. Of a span of a day only the proofs of a quarter of an
            // hour are hashed, and after a quarter of an hour a scheduler reads the day again.
            case .last: payloadSeconds = seconds / 96
            case .all: payloadSeconds = seconds
            }
        }
    }

    /// Runs every invariant, one after the other, and returns the violations. None means: every receipt is granted,
    /// rejected or open, and nothing else was granted.
    ///
    /// - Parameters:
    ///   - witness: whether to run also the invariants that need the tables of a `Witness`. The tables must exist, and
    ///     everything must be at rest: no process works on a receipt.
    ///   - scale: the factor on every delay (`MAKEGOOD_TIME_SCALE`) that the attempts were made with; 0 where a test
    ///     settles by hand and waits for nothing.
    package static func check(
        _ database: Database, span: Span = .all, witness: Bool = false, scale: Double = 1
    ) async throws(PostgresError) -> [Violation] {
        var violations: [Violation] = []
        for invariant in all where witness || !invariant.needsWitness {
            if let violation = try await invariant.check(database, span: span, scale: scale) {
                violations.append(violation)
            }
        }
        return violations
    }

    /// How many receipts and grants a check of this span reads, so that "no violation" says of how much.
    package static func extent(
        _ database: Database, span: Span
    ) async throws(PostgresError) -> (receipts: Int, grants: Int) {
        let seconds = Scope(span, scale: 1).seconds
        let statement = Statement<Void, (receipts: Int, grants: Int)>(
            "check.extent",
            """
            select (select count(*) from receipts where received_at > now() - make_interval(secs => \(seconds))),
              (select count(*) from grants where granted_at > now() - make_interval(secs => \(seconds)))
            """,
            read: { row throws(PostgresError) in (receipts: try row.int(0), grants: try row.int(1)) })
        return try await database.run(statement, ()).first ?? (0, 0)
    }

    /// Runs this invariant, and returns its violation; nil if it holds.
    package func check(_ database: Database, span: Span, scale: Double) async throws(PostgresError) -> Violation? {
        let rows = try await database.run(statement(Scope(span, scale: scale)), ())
        return rows.first.map { Violation(id: id, invariant: name, examples: rows.map(\.example), count: $0.count) }
    }
}
