package import Postgres

/// How far a sweep is, of one app and environment.
package struct SweepStanding: Sendable, Equatable {
    package let sweep: String
    package let appID: String
    package let environment: String
    /// Questions that are due.
    package let due: Int
    /// How long the question that waits longest has waited; 0 where none waits.
    package let lagSeconds: Double
    /// Entries of Apple's that do not verify.
    package let passedOver: Int
}

extension Statements {
    /// How far each sweep is (`v_sweeps`).
    package static let sweeps = Statement<Void, SweepStanding>(
        "sweeps.standings", "select sweep, app_id, environment, due, lag_seconds, passed_over from v_sweeps",
        read: { row throws(PostgresError) in
            SweepStanding(
                sweep: try row.text(0), appID: try row.text(1), environment: try row.text(2), due: try row.int(3),
                lagSeconds: try row.double(4), passedOver: try row.int(5))
        })
}
