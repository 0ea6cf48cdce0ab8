package import Postgres
import Purchases
import Settings

/// What must hold at any moment, as a statement that returns no row. Read-only.
///
/// Most need nothing but the database: `makegood check` and the scheduler run them. The others compare it with what the
/// outside knows, and hold where a test has loaded a `Witness`. Each says which of I1 to I17 it proves (or B1, the
/// conservation of what came in, B3, what Apple is told, B6, what is given once, B7, orders, or B10, what was given on
/// trust); one id may take several statements, from the inside and from the outside.
package struct Invariant: Sendable {
    /// I1 to I17, B1, B3, B6, B7 or B10.
    package let id: String
    package let name: String
    package let meaning: String
    package let needsWitness: Bool
    private let sql: String

    /// What is judged: rows from then on, by the database's clock. What is counted by day is judged by whole days in UTC.
    package enum Span: Sendable, Equatable {
        case last(Duration)
        case all

        /// What was checked each day, at about the same time, was checked whole.
        package static let recent = Span.last(.seconds(2 * 86_400))
    }

    /// - Parameter sql: one row and column per violation, in words without personal data. `:seconds` is how far back rows
    ///   are judged, `:scale` the factor on every delay, `:payload_seconds` how far back payloads are hashed.
    init(_ id: String, _ name: String, needsWitness: Bool = false, _ meaning: String, _ sql: String) {
        self.id = id
        self.name = name
        self.meaning = meaning
        self.needsWitness = needsWitness
        self.sql = sql
    }

    /// The scope stands in the text, not in parameters: services keep one plan for all parameters, and a plan for any
    /// span reads the whole table, five times as long beside ten million receipts as one for today.
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
            switch span {
            // Hashing a proof takes as long as reading many rows: of a day those of a quarter of an hour, after which a
            // scheduler reads the day again.
            case .last(let duration): (seconds, payloadSeconds) = (duration.inSeconds, duration.inSeconds / 96)
            case .all: (seconds, payloadSeconds) = (100_000 * 86_400, 100_000 * 86_400)
            }
        }
    }

    /// Runs every invariant, one after the other. No violation: what was received is granted, rejected or open, and
    /// nothing else.
    ///
    /// - Parameters:
    ///   - witness: also what needs the tables of a `Witness`. They must be there, and everything must be at rest: no
    ///     process works on what was accepted.
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

    /// Runs this one; nil if it holds.
    package func check(_ database: Database, span: Span, scale: Double) async throws(PostgresError) -> Violation? {
        let rows = try await database.run(statement(Scope(span, scale: scale)), ())
        return rows.first.map { Violation(id: id, invariant: name, examples: rows.map(\.example), count: $0.count) }
    }
}
