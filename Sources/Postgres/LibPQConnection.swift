internal import BlockingIO
internal import CLibPQ
internal import Glibc

/// A PGconn with its owner: closed exactly once, and used by one thread at a time (libpq manual, 34.20). The compiler
/// ensures the one thread, because this class is not Sendable.
///
/// The calls block. The owner keeps the connection on a thread made for that.
@safe  // The pointer is private, came from libpq, and lives as long as this value (libpq manual, 34.1 PQfinish).
final class LibPQConnection {
    let pointer: OpaquePointer

    enum Failure: Error {
        /// The URL cannot be read.
        case unreadable
        /// The reason is libpq's own message, without text of the server, for the operator; the SQLSTATE is there if a
        /// server answered.
        case refused(sqlState: String, reason: String)
        /// The server's certificate was not accepted, our certificate could not be read, or the server speaks no TLS
        /// although TLS is required. The reason is libpq's own message.
        case untrusted(reason: String)
        /// No file descriptor is left for the connection's thread. Passes when other descriptors are closed.
        case outOfDescriptors(OutOfDescriptors)

        var asPostgresError: PostgresError {
            switch self {
            case .unreadable: return .misconfigured(sqlState: "08001", statement: "connect")
            case .untrusted:
                return .misconfigured(
                    sqlState: "08001", statement: "connect with TLS (sslmode, sslrootcert and host of the URL)")
            case .outOfDescriptors: return .unavailable
            case .refused(let sqlState, _):
                let error = PostgresError(sqlState: sqlState, statement: "connect")
                // Nothing was sent, so nothing is lost: any other answer of the server means that it is unavailable.
                if case .misconfigured = error { return error }
                return .unavailable
            }
        }

        /// The reason for the log.
        var reason: String {
            switch self {
            case .unreadable: "the URL cannot be read"
            case .refused(_, let reason), .untrusted(let reason): reason
            case .outOfDescriptors(let error): "\(error)"
            }
        }
    }

    /// Connects, trying each address for `connect_timeout`.
    init(_ configuration: PostgresConfiguration) throws(Failure) {
        guard let keywords = configuration.keywords else { throw .unreadable }
        // PQconnectdb would be one call, but after a failure it leaves the server's text and no SQLSTATE. The verbosity
        // of messages can be set only on a connection that exists, and PQreset keeps it. So this initializer starts a
        // connection, sets the verbosity, and lets PQreset connect, with libpq's own handling of several hosts and of
        // connect_timeout. The price is one TCP connection that is closed unused, which the server does not log.
        guard let pointer = unsafe Self.start(keywords) else {
            throw .refused(sqlState: "", reason: "out of memory")
        }
        // From here on `self` owns the pointer; PQfinish must follow whatever happens (libpq manual, 34.1).
        unsafe self.pointer = unsafe pointer
        // Messages of the server become "FATAL:  28P01" (libpq manual, 34.11 PQsetErrorVerbosity).
        _ = unsafe PQsetErrorVerbosity(pointer, PQERRORS_SQLSTATE)
        // Without this, notices go to stderr, server text and all (libpq manual, 34.13).
        _ = unsafe PQsetNoticeReceiver(pointer, { _, _ in }, nil)
        unsafe PQreset(pointer)
        guard unsafe PQstatus(pointer) == CONNECTION_OK else {
            // The text belongs to the connection; it is copied here (libpq manual, 34.2 PQerrorMessage).
            let message = unsafe String(cString: PQerrorMessage(pointer))
            let (sqlState, reason) = (Self.sqlState(in: message), String(message.prefix(300)))
            // libpq has no code for this error, only these texts (fe-secure-openssl.c, fe-secure-common.c,
            // fe-connect.c). A handshake that breaks off says "SSL" too, but a server that goes down looks the same.
            if sqlState.isEmpty, message.contains("certificate") || message.contains("server does not support SSL") {
                throw .untrusted(reason: reason)
            }
            throw .refused(sqlState: sqlState, reason: reason)
        }
    }

    deinit {
        // Closes and frees; the pointer is not used after this (libpq manual, 34.1 PQfinish).
        unsafe PQfinish(pointer)
    }

    private static func start(_ settings: [(String, String)]) -> OpaquePointer? {
        // Both arrays end with NULL; libpq copies the strings before it returns (libpq manual, 34.1).
        var keywords = unsafe settings.map { unsafe UnsafePointer(strdup($0.0)) }
        var values = unsafe settings.map { unsafe UnsafePointer(strdup($0.1)) }
        unsafe keywords.append(nil)
        unsafe values.append(nil)
        defer {
            // What strdup(3) allocated is freed with free(3), which accepts NULL.
            unsafe keywords.forEach { unsafe free(UnsafeMutablePointer(mutating: $0)) }
            unsafe values.forEach { unsafe free(UnsafeMutablePointer(mutating: $0)) }
        }
        return unsafe PQconnectStartParams(keywords, values, 1)
    }

    /// The last word of the last line, if it looks like a SQLSTATE.
    private static func sqlState(in message: String) -> String {
        guard let word = message.split(whereSeparator: \.isWhitespace).last, word.utf8.count == 5,
            word.utf8.allSatisfy({
                (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0)
                    || (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains($0)
            })
        else { return "" }
        return String(word)
    }

    /// The descriptor of the open connection (libpq manual, 34.2 PQsocket).
    var socket: Int32 { unsafe PQsocket(pointer) }

    /// Whether libpq believes the connection to be open (libpq manual, 34.2 PQstatus).
    var isOpen: Bool { unsafe PQstatus(pointer) == CONNECTION_OK }

    /// Whether a transaction is open, failed or not (libpq manual, 34.2 PQtransactionStatus).
    var isInTransaction: Bool { unsafe PQtransactionStatus(pointer) != PQTRANS_IDLE }

    /// Reads, without blocking, a notice that the server sent unasked, or the end of the connection. False if the
    /// server hung up.
    func takeUnasked() -> Bool {
        // PQconsumeInput reads, PQisBusy parses what was read (libpq manual, 34.4); neither blocks.
        guard unsafe PQconsumeInput(pointer) == 1 else { return false }
        _ = unsafe PQisBusy(pointer)
        return isOpen
    }

    /// One or several commands as text. Several run in one transaction unless they say otherwise.
    func execute(script: String) -> QueryResult {
        unsafe QueryResult(taking: PQexec(pointer, script))  // The result is ours to clear (libpq manual, 34.3.1).
    }

    /// Prepares a statement under a name for the rest of the connection's life.
    func prepare(name: String, _ sql: String, types: [UInt32]) -> QueryResult {
        // libpq copies name, text and types before it returns; the result is ours to clear (libpq manual, 34.3.1).
        unsafe QueryResult(taking: PQprepare(pointer, name, sql, Int32(types.count), types))
    }

    /// Runs a prepared statement with binary parameters and binary rows.
    func execute(prepared name: String, _ parameters: EncodedParameters) -> QueryResult {
        let count = Int32(parameters.types.count)
        // libpq reads all arrays before it returns; the result is ours to clear (libpq manual, 34.3.1).
        return unsafe QueryResult(
            taking: parameters.withPointers { (values, lengths, formats) in
                unsafe PQexecPrepared(pointer, name, count, values, lengths, formats, 1)
            })
    }

    /// Runs a statement once, without a name, with binary parameters and binary rows.
    func execute(_ sql: String, _ parameters: EncodedParameters) -> QueryResult {
        let count = Int32(parameters.types.count)
        // libpq reads all arrays before it returns; the result is ours to clear (libpq manual, 34.3.1).
        return unsafe QueryResult(
            taking: parameters.withPointers { (values, lengths, formats) in
                unsafe PQexecParams(pointer, sql, count, parameters.types, values, lengths, formats, 1)
            })
    }

    /// The result of a command that succeeded; else its error.
    func checked(_ result: consuming QueryResult, _ name: String) throws(PostgresError) -> QueryResult {
        guard !result.isSuccess else { return result }
        // COPY leaves the connection unusable for anything else.
        if result.isCopy { throw .lost }
        let sqlState = result.sqlState
        // A failure of an open connection without a SQLSTATE is a fault in the use of libpq: nothing was lost.
        throw PostgresError(sqlState: sqlState.isEmpty && isOpen ? "XX000" : sqlState, statement: name)
    }
}

extension EncodedParameters {
    /// Lends libpq's three arrays to `body`: the address of each value (nil is NULL), its length, and its format,
    /// always binary.
    func withPointers<Result>(
        _ body: ([UnsafePointer<CChar>?], [Int32], [Int32]) -> Result
    ) -> Result {
        let formats = [Int32](repeating: 1, count: types.count)
        // The pointers point into the array and are used only inside the closure (Array.withUnsafeBytes). It is
        // never empty, so there is an address (see `bytes`).
        return unsafe bytes.withUnsafeBytes { buffer in
            let start = unsafe buffer.baseAddress!.assumingMemoryBound(to: CChar.self)
            let values = unsafe offsets.map { offset in unsafe offset.map { unsafe start + $0 } }
            return unsafe body(values, lengths, formats)
        }
    }
}
