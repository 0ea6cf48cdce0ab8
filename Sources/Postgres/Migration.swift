/// One step of the schema: a file `NNNN_name.sql`, executed once, never changed, never undone.
public struct Migration: Sendable, Hashable {
    /// 1, 2, 3 … without gaps.
    public let number: Int
    /// The file's name without number and ending.
    public let name: String
    public let sql: String

    public init(number: Int, name: String, sql: String) {
        self.number = number
        self.name = name
        self.sql = sql
    }

    /// "0001_receipts.sql"
    public var fileName: String { Self.fileName(number, name) }

    /// The `N` of a line `-- serves: N`: programs that know the schema only up to N still work after this migration.
    public var serves: Int? {
        for line in sql.split(separator: "\n") where line.hasPrefix("-- serves:") {
            return Int(line.dropFirst("-- serves:".count).filter { !$0.isWhitespace })
        }
        return nil
    }

    /// The text of `Why`, `Locks` or `Cost` in the comment at the top, on one line; nil if there is none.
    public func note(_ name: Note) -> String? {
        let lines = sql.split(separator: "\n", omittingEmptySubsequences: false).prefix { $0.hasPrefix("--") }
        let comment = lines.filter { !$0.hasPrefix("-- serves:") }
            .map { $0.dropFirst(2).trimmingPrefix { $0.isWhitespace } }.joined(separator: " ")
        let begins = Note.allCases.compactMap { note in comment.firstRange(of: "\(note.rawValue): ") }
        guard let own = comment.firstRange(of: "\(name.rawValue): ") else { return nil }
        let end = begins.map(\.lowerBound).filter { $0 > own.lowerBound }.min() ?? comment.endIndex
        var note = comment[own.upperBound..<end]
        while note.last?.isWhitespace == true { note.removeLast() }
        return note.isEmpty ? nil : String(note)
    }

    public enum Note: String, Sendable, CaseIterable {
        case why = "Why"
        case locks = "Locks"
        case cost = "Cost"
    }

    static func fileName(_ number: Int, _ name: String) -> String {
        let digits = String(number)
        return String(repeating: "0", count: max(0, 4 - digits.count)) + digits + "_\(name).sql"
    }
}

/// The migrations of a program that a database lacks.
public struct MigrationPlan: Sendable, Equatable {
    /// How many migrations are executed; the programs that run now know at most these. 0: an empty database.
    public let executed: Int
    /// In order.
    public let pending: [Migration]

    public init(executed: Int, pending: [Migration]) {
        self.executed = executed
        self.pending = pending
    }

    /// Whether the programs that run now still work once this migration is executed.
    public func keepsRunning(_ migration: Migration) -> Bool {
        executed == 0 || migration.serves.map { $0 <= executed } ?? false
    }

    /// Whether the programs that run now still work once all pending migrations are executed.
    public var keepsRunning: Bool { pending.allSatisfy(keepsRunning) }
}

/// Why the schema is not the one that this program needs. Holds file names, never SQL and never a text of the server.
public enum MigrationError: Error, Equatable, Sendable {
    /// The program's own migrations are not numbered 1, 2, 3 …: a mistake at build time.
    case misnumbered(String)
    /// The file was executed with another content than it has now.
    case changed(String)
    /// The database has a migration among ours that this program does not know: it belongs to another program or
    /// branch.
    case unknown(String)
    /// These migrations are not executed yet: the operator must run `migrate` first.
    case pending([String])
    /// This newer migration does not serve programs as old as this one.
    case tooNew(String)
    /// The file contains COMMIT or ROLLBACK; what stood before that may have been executed.
    case leftTransaction(String)
    /// The file failed and left nothing behind.
    case failed(String, PostgresError)
    /// No migration is to blame: the database could not be reached or asked.
    case database(PostgresError)
}

extension MigrationError: CustomStringConvertible {
    public var description: String {
        switch self {
        case .misnumbered(let file): "migration \(file) does not have the next number"
        case .changed(let file): "migration \(file) was changed after it was executed"
        case .unknown(let file): "the database has a migration \(file) that this program does not know"
        case .pending(let files):
            "run migrate first: the database lacks "
                + (files.count == 1
                    ? files[0] : "\(files.count) migrations, \(files.first ?? "") to \(files.last ?? "")")
        case .tooNew(let file): "the database has \(file), which does not serve this older program"
        case .leftTransaction(let file): "migration \(file) ends its transaction itself"
        case .failed(let file, let error): "migration \(file) failed: \(error)"
        case .database(let error): "the schema could not be examined: \(error)"
        }
    }
}
