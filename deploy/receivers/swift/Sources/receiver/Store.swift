import CSQLite

/// SQLite answered with this code and message.
struct StoreError: Error {
    let code: Int32
    let message: String
}

/// The database: which events were taken, how far everything has arrived, and the users' goods. One transaction at a time.
actor Store {
    /// Less than the endpoint's time limit, so that Makegood reads the 500.
    static let waitMilliseconds: Int32 = 3000
    static let signs = ["purchase.granted": 1, "purchase.reinstated": 1, "order.paid": 1, "purchase.revoked": -1]

    private nonisolated(unsafe) let database: OpaquePointer

    init(path: String) throws {
        var opened: OpaquePointer?
        let code = sqlite3_open(path, &opened)
        guard code == SQLITE_OK, let opened else { throw StoreError(code: code, message: "\(path) cannot be opened") }
        database = opened
        sqlite3_busy_timeout(database, Self.waitMilliseconds)
        let statements = """
            pragma journal_mode = wal;
            pragma synchronous = full;
            create table if not exists webhook_events
                (id text primary key, user_id text, at text not null) without rowid;
            create table if not exists webhook_cursors
                (endpoint text primary key, place integer not null, number integer not null);
            create table if not exists goods
                (user_id text, item text, amount integer not null, primary key (user_id, item));
            """
        let made = sqlite3_exec(database, statements, nil, nil, nil)
        guard made == SQLITE_OK else {
            throw StoreError(code: made, message: String(cString: sqlite3_errmsg(database)))
        }
    }

    deinit { sqlite3_close_v2(database) }

    /// Notes the event, hands it out and remembers the cursor, all or nothing.
    ///
    /// - Returns: whether the event is new, and the id of the user's event before it if that one is unknown.
    func take(_ event: Event, cursor: (place: Int, number: Int)) throws -> (isNew: Bool, missing: String?) {
        try run("begin immediate")
        do {
            try run(
                "insert or ignore into webhook_events values (?, ?, ?)",
                .text(event.id), event.userId.map { .text($0) } ?? .null, .text(event.at))
            let isNew = sqlite3_changes(database) == 1
            var missing: String?
            if isNew {
                if let previous = event.delivery.previousId,
                    try !run("select 1 from webhook_events where id = ?", .text(previous))
                {
                    missing = previous
                }
                try handOut(event)
            }
            try run(
                """
                insert into webhook_cursors values (?, ?, ?) on conflict (endpoint) do update
                set place = excluded.place, number = excluded.number
                where (excluded.place, excluded.number) > (place, number)
                """, .text(event.delivery.endpoint), .number(cursor.place), .number(cursor.number))
            try run("commit")
            return (isNew, missing)
        } catch {
            sqlite3_exec(database, "rollback", nil, nil, nil)
            throw error
        }
    }

    /// What this backend does for an event; here: it keeps an account of each user's goods.
    private func handOut(_ event: Event) throws {
        guard let sign = Self.signs[event.type], event.data.takeBack != false, let user = event.userId else { return }
        for goods in event.data.goods ?? [] {
            try run(
                """
                insert into goods values (?, ?, ?)
                on conflict (user_id, item) do update set amount = amount + excluded.amount
                """, .text(user), .text(goods.item), .number(sign * goods.amount))
        }
    }

    private enum Value {
        case text(String)
        case number(Int)
        case null
    }

    /// Runs one statement to its end; true if it gave a row.
    @discardableResult
    private func run(_ sql: String, _ values: Value...) throws -> Bool {
        var statement: OpaquePointer?
        func check(_ code: Int32) throws {
            guard code == SQLITE_OK else {
                throw StoreError(code: code, message: String(cString: sqlite3_errmsg(database)))
            }
        }
        try check(sqlite3_prepare_v2(database, sql, -1, &statement, nil))
        defer { sqlite3_finalize(statement) }
        // SQLite copies the text before the call returns.
        let copied = unsafeBitCast(-1, to: sqlite3_destructor_type.self)
        for (index, value) in zip(Int32(1)..., values) {
            switch value {
            case .text(let text): try check(sqlite3_bind_text(statement, index, text, -1, copied))
            case .number(let number): try check(sqlite3_bind_int64(statement, index, Int64(number)))
            case .null: try check(sqlite3_bind_null(statement, index))
            }
        }
        var isRow = false
        var code = sqlite3_step(statement)
        while code == SQLITE_ROW {
            isRow = true
            code = sqlite3_step(statement)
        }
        try check(code == SQLITE_DONE ? SQLITE_OK : code)
        return isRow
    }
}
