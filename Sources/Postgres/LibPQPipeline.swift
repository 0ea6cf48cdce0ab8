internal import CLibPQ
internal import Glibc

/// One round of statements on a connection: all are sent before the first answer is read (libpq manual, 34.5 Pipeline
/// Mode). The connection is in pipeline mode from the beginning to `finish()`.
///
/// The server stops at the first error and answers nothing after it up to the round's end.
@safe  // The pointer belongs to the connection, which lives as long as this value.
final class LibPQPipeline {
    /// The result of a round.
    struct Outcome {
        /// The first error; nil: every statement succeeded and every reply has its rows.
        var failure: PostgresError?
        /// The error's SQLSTATE; empty when libpq itself found it.
        var sqlState = ""
        /// The names of the statements that were prepared.
        var prepared: Set<String> = []
    }

    private enum Step {
        case prepare(name: String, any QueuedReply)
        case execute(any QueuedReply)

        var reply: any QueuedReply {
            switch self {
            case .prepare(_, let reply), .execute(let reply): reply
            }
        }
    }

    private let link: LibPQConnection
    private let pointer: OpaquePointer
    private var steps: [Step] = []
    private var outcome = Outcome()

    /// The server may send while it still reads. So the connection does not block in a send, where both could wait for
    /// each other (libpq manual, 34.5.1).
    init(on link: LibPQConnection) {
        self.link = link
        unsafe pointer = unsafe link.pointer
        if unsafe PQenterPipelineMode(pointer) != 1 || PQsetnonblocking(pointer, 1) != 0 { outcome.failure = .lost }
    }

    func prepare(name: String, _ sql: String, types: [UInt32], for reply: any QueuedReply) {
        // libpq copies name, text and types before it returns (libpq manual, 34.4).
        add(.prepare(name: name, reply), unsafe PQsendPrepare(pointer, name, sql, Int32(types.count), types))
    }

    func execute(prepared name: String, _ parameters: EncodedParameters, for reply: any QueuedReply) {
        let count = Int32(parameters.types.count)
        // libpq copies all arrays before it returns (libpq manual, 34.4).
        add(
            .execute(reply),
            unsafe parameters.withPointers { (values, lengths, formats) in
                unsafe PQsendQueryPrepared(pointer, name, count, values, lengths, formats, 1)
            })
    }

    func execute(_ sql: String, _ parameters: EncodedParameters, for reply: any QueuedReply) {
        let count = Int32(parameters.types.count)
        // libpq copies all arrays before it returns (libpq manual, 34.4).
        add(
            .execute(reply),
            unsafe parameters.withPointers { (values, lengths, formats) in
                unsafe PQsendQueryParams(pointer, sql, count, parameters.types, values, lengths, formats, 1)
            })
    }

    private func add(_ step: Step, _ isSent: Int32) {
        if isSent == 1 { steps.append(step) } else { fail(.lost) }
    }

    /// Ends the round, hands each reply its result, and leaves pipeline mode.
    ///
    /// - Parameter answered: called at each answer of the server.
    func finish(_ answered: () -> Void) -> Outcome {
        if unsafe PQpipelineSync(pointer) != 1 { fail(.lost) }
        flush()
        if outcome.failure == nil {
            for step in steps {
                take(step)
                answered()
            }
        }
        // The round's own end. A connection on which something is missing cannot be used any more.
        if outcome.failure != .lost, !isAtEnd() { fail(.lost) }
        if unsafe PQsetnonblocking(pointer, 0) != 0 || PQexitPipelineMode(pointer) != 1 { fail(.lost) }
        return outcome
    }

    private func fail(_ error: PostgresError, sqlState: String = "") {
        guard outcome.failure == nil || error == .lost else { return }
        outcome.failure = error
        outcome.sqlState = sqlState
    }

    /// Sends what is queued, and reads what comes meanwhile. A deadline shuts the socket down, which ends the wait.
    private func flush() {
        while true {
            // 0: all is sent; 1: the socket takes no more now; -1: the connection broke (libpq manual, 34.4 PQflush).
            let left = unsafe PQflush(pointer)
            guard left == 1 else { return left == 0 ? () : fail(.lost) }
            var wait = unsafe pollfd(fd: PQsocket(pointer), events: Int16(POLLIN | POLLOUT), revents: 0)
            _ = unsafe poll(&wait, 1, -1)
            if Int32(wait.revents) & POLLIN != 0, unsafe PQconsumeInput(pointer) != 1 { return fail(.lost) }
        }
    }

    private func take(_ step: Step) {
        // The result is ours to clear (libpq manual, 34.4 PQgetResult). Waits for it.
        let result = unsafe QueryResult(taking: PQgetResult(pointer))
        if case .prepare(let name, _) = step, result.isSuccess { outcome.prepared.insert(name) }
        if outcome.failure == nil {
            let sqlState = result.sqlState
            do throws(PostgresError) {
                let result = try link.checked(result, step.reply.name)
                switch step {
                case .prepare: break
                case .execute(let reply): try reply.take(result)
                }
            } catch {
                fail(error, sqlState: sqlState)
            }
        }
        // Each statement's answer ends with a null result (libpq manual, 34.5.1.2).
        while let surplus = unsafe PQgetResult(pointer) { unsafe PQclear(surplus) }
    }

    private func isAtEnd() -> Bool {
        let end = unsafe PQgetResult(pointer)
        defer { unsafe PQclear(end) }
        return unsafe PQresultStatus(end) == PGRES_PIPELINE_SYNC
    }
}
