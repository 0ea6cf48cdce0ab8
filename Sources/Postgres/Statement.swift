/// One SQL statement with its parameters and its rows as Swift values.
///
/// The name stands in a comment before the SQL, so that server logs, pg_stat_statements, metrics and our own logs use
/// the same name. A program has few texts, whatever its callers ask: a connection prepares each text once, when it
/// first uses it.
public struct Statement<Parameters: Sendable, Row: Sendable>: Sendable {
    /// "ledger.insert_receipts": what metrics, logs and errors call it.
    public let name: String
    /// The SQL as it is sent, name comment included. One command; parameters are `$1` …
    public let sql: String
    let bind: @Sendable (Parameters) -> [Value]
    let read: @Sendable (borrowing RowReader) throws(PostgresError) -> Row

    /// - Parameters:
    ///   - name: lower-case letters, digits, `_` and `.`, at most 50.
    ///   - bind: the values of `$1`, `$2` … in order. Called on the caller's side; of a transaction on
    ///     the connection's thread.
    ///   - read: makes one row's value. Called on the connection's thread, once per row, so it must be quick.
    public init(
        _ name: String, _ sql: String,
        bind: @escaping @Sendable (Parameters) -> [Value],
        read: @escaping @Sendable (borrowing RowReader) throws(PostgresError) -> Row
    ) {
        precondition(
            !name.isEmpty && name.utf8.count <= 50
                && name.utf8.allSatisfy { byte in
                    switch byte {
                    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "0")...UInt8(ascii: "9"),
                        UInt8(ascii: "_"), UInt8(ascii: "."):
                        true
                    default: false
                    }
                }, "a statement's name goes into a SQL comment: \(name)")
        self.name = name
        self.sql = "/* \(name) */ \(sql)"
        self.bind = bind
        self.read = read
    }
}

extension Statement where Parameters == Void {
    /// A statement without parameters.
    public init(
        _ name: String, _ sql: String, read: @escaping @Sendable (borrowing RowReader) throws(PostgresError) -> Row
    ) {
        self.init(name, sql, bind: { _ in [] }, read: read)
    }
}

extension Statement where Row == Void {
    /// A statement whose rows, if it has any, do not matter.
    public init(_ name: String, _ sql: String, bind: @escaping @Sendable (Parameters) -> [Value]) {
        self.init(name, sql, bind: bind, read: { _ in })
    }
}

extension Statement where Parameters == Void, Row == Void {
    /// A statement that is only executed.
    public init(_ name: String, _ sql: String) {
        self.init(name, sql, bind: { _ in [] }, read: { _ in })
    }
}

extension Statement {
    func rows(of result: consuming QueryResult) throws(PostgresError) -> [Row] {
        let count = result.rowCount
        guard count > 0 else { return [] }
        var reader = RowReader(result, statement: name)
        var rows: [Row] = []
        rows.reserveCapacity(count)
        for row in 0..<count {
            reader.row = row
            rows.append(try read(reader))
        }
        return rows
    }
}
