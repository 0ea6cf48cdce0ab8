internal import CLibPQ

/// A PGresult with its owner: freed exactly once, never copied, never leaves the connection's thread.
@safe  // The pointer is private, came from libpq, and lives as long as this value (libpq manual, 34.3 PQclear).
struct QueryResult: ~Copyable {
    private let pointer: OpaquePointer?

    /// Takes ownership. libpq gives nil if memory or the connection is gone.
    init(taking pointer: OpaquePointer?) {
        unsafe self.pointer = unsafe pointer
    }

    /// The result of a call that could not be made.
    static var missing: QueryResult { unsafe QueryResult(taking: nil) }

    deinit {
        // PQclear frees the result once; it accepts NULL (libpq manual, 34.3.1).
        unsafe PQclear(pointer)
    }

    /// Whether the command succeeded, with or without rows; a script of comments alone does too.
    var isSuccess: Bool {
        // PQresultStatus accepts NULL and calls it a fatal error (libpq manual, 34.3.1).
        let status = unsafe PQresultStatus(pointer)
        return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_EMPTY_QUERY
    }

    /// Whether the result is one of COPY, which leaves the connection in a state that this module does not support.
    var isCopy: Bool {
        // As above, NULL is accepted (libpq manual, 34.3.1).
        let status = unsafe PQresultStatus(pointer)
        return status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH
    }

    /// The SQLSTATE of a failure; empty when libpq itself found it (libpq manual, 34.3.1 PQresultErrorField).
    var sqlState: String {
        let field = Int32(UInt8(ascii: "C"))  // PG_DIAG_SQLSTATE in postgres_ext.h, a macro Swift does not import
        // The string belongs to the result, which outlives the copy made here.
        guard let text = unsafe PQresultErrorField(pointer, field) else { return "" }
        return unsafe String(cString: text)
    }

    /// 0 for a result without rows (libpq manual, 34.3.2 PQntuples).
    var rowCount: Int { Int(unsafe PQntuples(pointer)) }

    /// 0 for a result without rows (libpq manual, 34.3.2 PQnfields).
    var columnCount: Int { Int(unsafe PQnfields(pointer)) }

    func type(ofColumn column: Int) -> UInt32 {
        // Out of range gives 0 and a notice, not undefined behaviour (libpq manual, 34.3.2 PQftype).
        unsafe PQftype(pointer, Int32(column))
    }

    /// Lends a value's bytes; nil for NULL. Row and column must be in range.
    func withBytes<Value>(
        row: Int, column: Int, _ body: (Span<UInt8>) throws(PostgresError) -> Value?
    ) throws(PostgresError) -> Value? {
        precondition(row >= 0 && row < rowCount && column >= 0 && column < columnCount)
        let (row, column) = (Int32(row), Int32(column))
        guard unsafe PQgetisnull(pointer, row, column) == 0, let start = unsafe PQgetvalue(pointer, row, column)
        else { return nil }
        // The bytes belong to the result and stay until PQclear (libpq manual, 34.3.2 PQgetvalue); the span ends with
        // this call, and `self` lives at least as long.
        let bytes = unsafe UnsafeBufferPointer(
            start: UnsafeRawPointer(start).assumingMemoryBound(to: UInt8.self),
            count: Int(PQgetlength(pointer, row, column)))
        return try body(unsafe bytes.span)
    }
}
