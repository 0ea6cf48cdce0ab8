internal import CLibPQ

/// The database's address, and how long this process waits for the database.
///
/// A setting in the URL (`?connect_timeout=2`) wins over the value here.
public struct PostgresConfiguration: Sendable {
    /// A libpq URI or keyword string: hosts, user, password, sslmode … (libpq manual, 34.1.1). Holds the password.
    public var url: String
    /// What pg_stat_activity shows.
    public var applicationName: String
    /// For each address tried; libpq knows whole seconds, at least 2.
    public var connectTimeout: Duration
    /// The server ends a statement after this. Not sent if `namedStatements` is false: then set it for the role.
    public var statementTimeout: Duration
    /// The server ends a wait for a lock after this. Not sent if `namedStatements` is false.
    public var lockTimeout: Duration
    /// After this time this process ends a call without an answer, as `PostgresError.lost`. Must be more than
    /// `statementTimeout`, so that it passes only if server or network do not answer at all. Then, with
    /// `namedStatements`, this process ends every connection to this server, and no other call waits as long.
    public var callDeadline: Duration
    /// A connection that nobody uses asks the server for a sign of life this often.
    public var idleCheckInterval: Duration
    /// false behind PgBouncer in transaction mode: nothing is prepared, and no `options` are sent at start.
    public var namedStatements: Bool
    /// Every transaction is read-only, and a standby will do. Not sent if `namedStatements` is false.
    public var isReadOnly = false
    /// True for a service, whose few statements run for ever on tables that grow: the server plans each once per
    /// connection, whatever its parameters, and by indexes. Otherwise the server plans small batches anew each time,
    /// which takes three times as long as the work, and a plan made while a table was small would walk the table when
    /// it is large. One server process runs each statement: statements that read much are in no hurry, and the
    /// statements beside them are. Not sent if `namedStatements` is false.
    public var keepsPlans = false
    /// The most calls that run or wait on one `Database`; one more is refused with `tooManyWaiting`.
    public var queueLimit: Int
    /// How long calls wait after the last connection broke; later ones fail at once until one is back.
    public var reconnectWait: Duration

    public init(
        url: String, applicationName: String = "makegood", connectTimeout: Duration = .seconds(5),
        statementTimeout: Duration = .seconds(5), lockTimeout: Duration = .seconds(2),
        callDeadline: Duration = .seconds(10), idleCheckInterval: Duration = .seconds(5), namedStatements: Bool = true,
        queueLimit: Int = 8192,
        reconnectWait: Duration = .seconds(2)
    ) {
        self.url = url
        self.applicationName = applicationName
        self.connectTimeout = connectTimeout
        self.statementTimeout = statementTimeout
        self.lockTimeout = lockTimeout
        self.callDeadline = callDeadline
        self.idleCheckInterval = idleCheckInterval
        self.namedStatements = namedStatements
        self.queueLimit = queueLimit
        self.reconnectWait = reconnectWait
    }
}

extension PostgresConfiguration {
    /// The longest time of a call when the server has fallen silent: the deadline of the first call that the server
    /// does not answer, and the wait for a connection that does not come. After that calls fail at once.
    public var silenceMax: Duration { callDeadline + reconnectWait }
    /// How long a migration waits for a lock at most. Calls that come meanwhile wait behind the migration, and must not
    /// give up first.
    public var migrationLockTimeout: Duration { lockTimeout / 2 }
    /// The longest time until this process knows that the server has fallen silent, if nobody calls.
    public var noticeMax: Duration { idleCheckInterval + callDeadline }
}

extension PostgresConfiguration: CustomStringConvertible, CustomReflectable {
    /// Host, port, database and role; never the password.
    public var description: String {
        guard let settings = Self.settings(of: url) else { return "postgres (the URL cannot be read)" }
        let shown = ["host", "port", "dbname", "user", "sslmode"].compactMap { key in
            settings[key].map { "\(key)=\($0)" }
        }
        return "postgres " + shown.joined(separator: " ")
    }

    public var customMirror: Mirror { Mirror(self, children: ["description": description]) }
}

extension PostgresConfiguration {
    /// libpq's keywords and values, in the order in which libpq reads them; nil if the URL cannot be read.
    ///
    /// The URL overrides the keywords before `dbname`; the keywords after `dbname` override the URL (libpq manual, 34.1
    /// PQconnectdbParams with expand_dbname).
    var keywords: [(String, String)]? {
        guard let own = Self.settings(of: url) else { return nil }
        var keywords = [
            ("application_name", applicationName),
            ("connect_timeout", String(max(2, connectTimeout.wholeMilliseconds / 1000))),
            ("keepalives", "1"),
            ("keepalives_idle", "10"),
            ("keepalives_interval", "5"),
            ("keepalives_count", "3"),
            // Also ends a connection attempt and unacknowledged writes, in milliseconds (libpq manual, 34.1.2).
            ("tcp_user_timeout", "10000"),
            // After a fail-over this process must not go on writing to the old primary.
            ("target_session_attrs", isReadOnly ? "any" : "read-write"),
            ("gssencmode", "disable"),
            ("dbname", url),
            ("client_encoding", "UTF8"),
        ]
        if namedStatements {
            // The URL's own options come last: the server lets the last one win.
            var limits = [
                "statement_timeout=\(statementTimeout.wholeMilliseconds)",
                "lock_timeout=\(lockTimeout.wholeMilliseconds)",
                "idle_in_transaction_session_timeout=\(callDeadline.wholeMilliseconds)",
            ]
            // Compiling a statement (JIT) costs more than any of our statements takes.
            limits.append("jit=off")
            if keepsPlans {
                limits += [
                    "plan_cache_mode=force_generic_plan", "enable_seqscan=off", "max_parallel_workers_per_gather=0",
                ]
            }
            if isReadOnly { limits.append("default_transaction_read_only=on") }
            let options = limits.map { "-c \($0)" } + [own["options"] ?? ""]
            keywords.append(("options", options.joined(separator: " ")))
        }
        return keywords
    }

    /// The settings of the URL itself, without defaults.
    private static func settings(of url: String) -> [String: String]? {
        // Returns an allocated array that ends with a null keyword; this function frees it (libpq manual, 34.1
        // PQconninfoParse). The error text is not asked for: it may quote the password.
        guard let options = unsafe PQconninfoParse(url, nil) else { return nil }
        defer { unsafe PQconninfoFree(options) }
        var settings: [String: String] = [:]
        var next = unsafe options
        while let keyword = unsafe next.pointee.keyword {
            if let value = unsafe next.pointee.val {
                unsafe settings[String(cString: keyword)] = String(cString: value)
            }
            unsafe next += 1
        }
        return settings
    }
}

extension Duration {
    /// Rounded down, never negative.
    var wholeMilliseconds: Int {
        let (seconds, attoseconds) = components
        return Int(max(0, seconds * 1000 + attoseconds / 1_000_000_000_000_000))
    }

    var inSeconds: Double {
        let (seconds, attoseconds) = components
        return Double(seconds) + Double(attoseconds) / 1e18
    }
}
