/// Why a call to PostgreSQL did not give a result. A closed set, so that every switch over it is exhaustive.
///
/// The description holds SQLSTATEs and names of statements, never a text of the server and never a value.
public enum PostgresError: Error, Equatable, Sendable {
    /// The connection broke after the statement was sent, or its time was up. The statement may have been committed, or
    /// not.
    case lost
    /// No connection, or the server refuses work now: it starts, it is full, its disk failed. Nothing was done.
    case unavailable
    /// The server is a standby (25006). The connection is dropped; the next one looks for the primary.
    case readOnly
    /// A conflict with a concurrent transaction (40001, 40P01). Rolled back; the same statement, or the whole
    /// transaction that it was part of, may go again.
    case serialization
    /// Waited too long (55P03, 57014). Rolled back.
    case timedOut(TimeOut)
    /// A value the database refuses (classes 21, 22, 23, 44, 54, P0). The same values fail again.
    case data(sqlState: String, statement: String)
    /// Wrong password, role, database, permission or schema (classes 28, 3D, 3F, 42), or a URL that cannot be read.
    case misconfigured(sqlState: String, statement: String)
    /// A fault of the server or of our use of it (class XX and everything not listed here).
    case internalError(sqlState: String, statement: String)
    /// A row had another shape than the statement's `read` expects. The statement itself was executed.
    case undecodable(statement: String, column: Int)
    /// `close()` was called. Nothing was done.
    case closed
    /// More calls wait than `PostgresConfiguration.queueLimit`. Nothing was done.
    case tooManyWaiting

    /// Which limit was reached.
    public enum TimeOut: String, Sendable {
        /// `lock_timeout`, or a lock asked for with NOWAIT (55P03).
        case lock
        /// `statement_timeout`, or a cancel request (57014).
        case statement
    }

    /// The treatment of a batch in which one statement failed with this error.
    public enum Advice: Sendable {
        /// Send the same batch again: nothing in it is to blame. Outcome unknown, or rolled back.
        case retrySame
        /// Split the batch until only the item to blame fails.
        case bisect
        /// Give all items back at once: the database takes nothing now.
        case refuse
        /// Give all items back and tell a person: no repetition will help.
        case stop
    }

    public var advice: Advice {
        switch self {
        case .lost, .serialization: .retrySame
        case .data, .timedOut: .bisect
        case .unavailable, .readOnly, .tooManyWaiting: .refuse
        case .misconfigured, .internalError, .undecodable, .closed: .stop
        }
    }

    /// Whether the same call may succeed later although nobody changes anything.
    public var isRetryable: Bool {
        switch self {
        case .lost, .unavailable, .readOnly, .serialization, .timedOut, .tooManyWaiting: true
        case .data, .misconfigured, .internalError, .undecodable, .closed: false
        }
    }

    /// A stable name for metrics and logs.
    public var label: String {
        switch self {
        case .lost: "lost"
        case .unavailable: "unavailable"
        case .readOnly: "read_only"
        case .serialization: "serialization"
        case .timedOut(.lock): "lock_timed_out"
        case .timedOut(.statement): "statement_timed_out"
        case .data: "data"
        case .misconfigured: "misconfigured"
        case .internalError: "internal_error"
        case .undecodable: "undecodable"
        case .closed: "closed"
        case .tooManyWaiting: "too_many_waiting"
        }
    }
}

extension PostgresError: CustomStringConvertible {
    public var description: String {
        switch self {
        case .data(let sqlState, let statement), .misconfigured(let sqlState, let statement),
            .internalError(let sqlState, let statement):
            "postgres \(label) \(sqlState) in \(statement)" + (Self.words[sqlState].map { ": \($0)" } ?? "")
        case .undecodable(let statement, let column):
            "postgres \(label): column \(column) of \(statement)"
        case .lost, .unavailable, .readOnly, .serialization, .timedOut, .closed, .tooManyWaiting:
            "postgres \(label)"
        }
    }

    /// What a person has to mend, for the states that a wrong URL or wrong rights bring.
    private static let words = [
        "28000": "the server does not let this user in; look at the user's name, TLS and pg_hba.conf",
        "28P01": "the server refuses the user or the password", "3D000": "there is no such database",
        "3F000": "there is no such schema", "42501": "the user lacks a right",
        "42P01": "a table is missing: the schema is not made, or not on the search path",
    ]
}

extension PostgresError {
    /// The error for a SQLSTATE, by PostgreSQL's table of error codes (appendix A of its manual).
    ///
    /// An empty state means that libpq itself found the failure: the connection broke, the outcome is unknown. 25P03
    /// (a transaction waited for too long) ends the connection, and nothing was committed. 57P01
    /// and 57P02 (the backend was told to end) are `lost` as well: the server may be well, and a repetition either
    /// succeeds on a new connection or finds that there is none.
    init(sqlState: String, statement: String) {
        switch sqlState {
        case "", "25P03", "40003", "57P01", "57P02", "57P04", "57P05": self = .lost
        case "40001", "40P01": self = .serialization
        case "55P03": self = .timedOut(.lock)
        case "57014": self = .timedOut(.statement)
        case "25006": self = .readOnly
        case "57P03": self = .unavailable
        default:
            switch sqlState.prefix(2) {
            case "08": self = .lost
            case "53", "58": self = .unavailable
            case "21", "22", "23", "44", "54", "P0": self = .data(sqlState: sqlState, statement: statement)
            case "28", "3D", "3F", "42": self = .misconfigured(sqlState: sqlState, statement: statement)
            default: self = .internalError(sqlState: sqlState, statement: statement)
            }
        }
    }

    /// Whether a connection that answered with this error must not be used again.
    var endsConnection: Bool {
        switch self {
        case .lost, .unavailable, .readOnly: true
        case .serialization, .timedOut, .data, .misconfigured, .internalError, .undecodable, .closed, .tooManyWaiting:
            false
        }
    }
}
