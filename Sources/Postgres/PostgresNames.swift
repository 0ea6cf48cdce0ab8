/// The names of this module's metrics; dashboards and alerts filter on them.
public enum PostgresMetrics {
    /// Timer, by `statement`: from sending to the last row, without the wait for a connection.
    public static let callSeconds = "makegood_postgres_call_seconds"
    /// Counter, by `statement` and `class` (`PostgresError.label`).
    public static let errors = "makegood_postgres_errors_total"
    /// Counter.
    public static let reconnects = "makegood_postgres_reconnects_total"
    /// Recorder, by `batch`: rows in one flush of a group commit.
    public static let batchRows = "makegood_group_commit_rows"
    /// Counter, by `batch` and `reason` (`full`, `failed`, `poison`): items that were given back.
    public static let batchRefused = "makegood_group_commit_refused_total"
}

enum PostgresLogKey {
    static let connection = "postgres.connection"
    static let reason = "postgres.reason"
    static let error = "postgres.error"
    static let batch = "postgres.batch"
    static let migration = "postgres.migration"
}
