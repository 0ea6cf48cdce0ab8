package import Postgres

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
    private let statement: Statement<Scope, (example: String, count: Int)>

    /// Which days are judged.
    package enum Span: Sendable {
        /// Today and yesterday, by the database's clock in UTC.
        case recent
        case all
    }

    /// - Parameter sql: one row and column per violation, in words without personal data. `$1` is how many days before
    ///   today are judged (int), `$2` the factor on every delay (float8), `$3` how many seconds back payloads are
    ///   hashed (float8).
    init(_ id: String, _ name: String, needsWitness: Bool = false, _ meaning: String, _ sql: String) {
        self.id = id
        self.name = name
        self.meaning = meaning
        self.needsWitness = needsWitness
        statement = Statement(
            "check.\(name)",
            """
            with violations(example) as materialized (
            \(sql)
            )
            select example, (select count(*) from violations) from violations limit \(Violation.examplesMax)
            """,
            bind: { scope in [.int32(scope.days), .double(scope.scale), .double(scope.payloadSeconds)] },
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
        let days: Int
        let scale: Double
        let payloadSeconds: Double

        init(_ span: Span, scale: Double) {
            self.scale = scale
            switch span {
            case .recent: (days, payloadSeconds) = (1, 300)
            case .all: (days, payloadSeconds) = (100_000, 100_000 * 86_400)
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
            let rows = try await database.run(invariant.statement, Scope(span, scale: scale))
            if let count = rows.first?.count {
                violations.append(
                    Violation(
                        id: invariant.id, invariant: invariant.name, examples: rows.map(\.example), count: count))
            }
        }
        return violations
    }
}
