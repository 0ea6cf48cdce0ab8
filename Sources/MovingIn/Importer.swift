package import Encoding
import Foundation
import Ledger
package import Postgres
import Purchases
import Settings

/// The kinds of data that the importer takes over from the former system.
package enum ImportKind: String, Sendable, CaseIterable {
    case grants, owners, tokens, orders, bonuses
}

/// A problem of one line.
package struct ImportProblem: Sendable, Equatable {
    package enum Kind: String, Sendable {
        /// The line cannot be read or believed; the importer took nothing from it.
        case refused
        /// The tables hold another value, which stays; the importer took nothing from the line.
        case conflict
        /// The purchase was imported; its chain was given to another user here, and stays with that user.
        case ownerKept = "owner_kept"
    }

    package let line: Int
    package let kind: Kind
    /// The field at fault; nil: the line as a whole.
    package let field: String?
    package let text: String

    package var json: JSONValue {
        .object(
            [.init("line", .integer(line)), .init("kind", .string(kind.rawValue))]
                + (field.map { [.init("field", .string($0))] } ?? []) + [.init("problem", .string(text))])
    }
}

/// What an import has done, or would do without the dry run. `lines` = imported + already there + conflicts + refused +
/// skipped.
package struct ImportReport: Sendable, Equatable {
    package var kind: ImportKind
    package var isDryRun: Bool
    package var lines = 0
    package var imported = 0
    package var alreadyThere = 0
    package var conflicts = 0
    package var refused = 0
    /// The lines of another system's file that are no purchases for Makegood, by reason.
    package var skipped: [ImportSkip: Int] = [:]
    /// The number of imported purchases whose chains stay with another user.
    package var ownersKept = 0
    /// Columns with unknown names; the first few.
    package var ignored: [String] = []
    /// Products that the app does not sell; the first few.
    package var unknownProducts: [String] = []
    /// False: the last line has no end; the file may have been cut off.
    package var endsWithNewline = true
    package var sha256 = ""

    /// Whether no line needs a person.
    package var isClean: Bool { conflicts == 0 && refused == 0 && ownersKept == 0 }

    package var json: JSONValue {
        .object([
            .init("kind", .string(kind.rawValue)), .init("dryRun", .bool(isDryRun)), .init("lines", .integer(lines)),
            .init("imported", .integer(imported)), .init("alreadyThere", .integer(alreadyThere)),
            .init("conflicts", .integer(conflicts)), .init("refused", .integer(refused)),
            .init("skipped", ImportSkip.json(skipped)), .init("ownersKept", .integer(ownersKept)),
            .init("ignoredColumns", .array(ignored.map(JSONValue.string))),
            .init("unknownProducts", .array(unknownProducts.map(JSONValue.string))),
            .init("endsWithNewline", .bool(endsWithNewline)), .init("sha256", .string(sha256)),
        ])
    }
}

/// Imports what the former system gave, and to whom, from a file of any length in bounded memory.
///
/// The importer writes batches of one statement each. After a break the operator runs it again: existing rows stay as
/// they are and are counted as already there. The importer never changes an existing row. It works with the rights of
/// the schema's owner: no service, and no daily support, may say that something was given elsewhere.
package struct Importer: Sendable {
    /// Rows of one statement.
    package static let batchRows = 5000
    private static let namesMax = 20

    private let database: Database
    private let context: ImportContext
    private let actor: String
    private let isDryRun: Bool

    /// - Parameters:
    ///   - actor: the person who imports, for the audit.
    ///   - isDryRun: only reports what would happen, and needs no right to write. A dry run does not know that an
    ///     earlier line would already have imported a repeated one.
    package init(database: Database, context: ImportContext, actor: String, isDryRun: Bool) {
        self.database = database
        self.context = context
        self.actor = actor
        self.isDryRun = isDryRun
    }

    /// - Parameters:
    ///   - progress: called with the number of lines read, now and then.
    ///   - tell: called for each problem; within a batch the unreadable lines come first.
    /// - Throws: `ImportFileError`; the errors of reading the file; the database's error. If that one is retryable, the
    ///   operator may import the same file again.
    package func run(
        _ kind: ImportKind, _ file: inout ImportFile, progress: (Int) -> Void = { _ in },
        tell: (ImportProblem) -> Void
    ) async throws -> ImportReport {
        var report = ImportReport(kind: kind, isDryRun: isDryRun)
        do {
            switch kind {
            case .grants: try await run(ImportedGrant.self, &file, &report, progress, tell)
            case .owners: try await run(ImportedOwner.self, &file, &report, progress, tell)
            case .tokens: try await run(ImportedToken.self, &file, &report, progress, tell)
            case .orders: try await run(ImportedOrder.self, &file, &report, progress, tell)
            case .bonuses: try await run(ImportedBonus.self, &file, &report, progress, tell)
            }
        } catch {
            // Rows imported before the error stay, so the audit records them.
            if report.imported > 0 { try? await audit(report, error: "\(error)") }
            throw error
        }
        report.ignored = file.ignored
        report.endsWithNewline = file.endsWithNewline
        report.sha256 = file.sha256
        try await audit(report, error: nil)
        return report
    }

    private struct Batch<Row: ImportRow> {
        var rows: [Row] = []
        var lines: [Int] = []
        var identities: Set<String> = []
    }

    private func run<Row: ImportRow>(
        _: Row.Type, _ file: inout ImportFile, _ report: inout ImportReport, _ progress: (Int) -> Void,
        _ tell: (ImportProblem) -> Void
    ) async throws {
        var batch = Batch<Row>()
        while let record = try file.next(requiring: Row.required) {
            report.lines += 1
            if report.lines.isMultiple(of: Self.batchRows) { progress(report.lines) }
            let row: Row
            do {
                let fields = ImportFields(values: try record.values.get(), app: context)
                if let skip = try fields.skip() {
                    report.skipped[skip, default: 0] += 1
                    continue
                }
                row = try Row(fields)
            } catch {
                report.refused += 1
                tell(Self.refusal(record.line, error))
                continue
            }
            note(row, in: &report)
            // A line that repeats one of this batch is judged only after that line is written.
            if batch.rows.count >= Self.batchRows || batch.identities.contains(row.identity) {
                try await write(&batch, &report, tell)
            }
            batch.rows.append(row)
            batch.lines.append(record.line)
            batch.identities.insert(row.identity)
        }
        try await write(&batch, &report, tell)
    }

    private static func refusal(_ line: Int, _ error: any Error) -> ImportProblem {
        let fault = error as? ImportFault
        let text = fault?.problem ?? (error as? ImportRecord.Unreadable)?.problem ?? "cannot be read"
        return ImportProblem(line: line, kind: .refused, field: fault?.field, text: text)
    }

    private func note(_ row: some ImportRow, in report: inout ImportReport) {
        guard report.unknownProducts.count < Self.namesMax, let product = row.product,
            context.catalogue.products[product] == nil, !report.unknownProducts.contains(product)
        else { return }
        report.unknownProducts.append(product)
    }

    private func write<Row: ImportRow>(
        _ batch: inout Batch<Row>, _ report: inout ImportReport, _ tell: (ImportProblem) -> Void
    ) async throws {
        guard !batch.rows.isEmpty else { return }
        try await enter(batch.rows.map(\.user))
        let results = try await database.run(
            Row.statement(isDryRun: isDryRun), .init(appID: context.appID, rows: batch.rows))
        report.imported += batch.rows.count
        for result in results {
            let line = batch.lines[result.index]
            if result.outcome != nil { report.imported -= 1 }
            switch result.outcome {
            case .alreadyThere: report.alreadyThere += 1
            case .conflict(let field):
                report.conflicts += 1
                tell(conflict(line, field, Row.required[0]))
            case nil: break
            }
            if result.isChainOfAnother {
                report.ownersKept += 1
                tell(
                    ImportProblem(
                        line: line, kind: .ownerKept, field: context.name(of: .originalTransactionId),
                        text: "was imported; its chain was given to another user here, and stays with that user"))
            }
        }
        batch = Batch()
    }

    private func conflict(_ line: Int, _ field: String, _ identity: ImportColumn) -> ImportProblem {
        let column = field == "app" ? identity : ImportColumn(rawValue: field)
        let text =
            switch field {
            case ImportColumn.userId.rawValue: "is another user here, who keeps it"
            case "app": "is another app's here"
            default: "is another one here"
            }
        return ImportProblem(line: line, kind: .conflict, field: column.map(context.name) ?? field, text: text)
    }

    /// Enters the imported users into the register, so that events can name them as they name posters
    /// (`users.protect`).
    private func enter(_ users: [ImportedUser]) async throws {
        guard let keys = context.keys, !isDryRun else { return }
        let app = context.appID
        let unique = Dictionary(users.map { ($0.stored, $0.id) }, uniquingKeysWith: { first, _ in first })
        try await database.run(
            Statements.enterUsers,
            unique.map { EnteredUser(appID: app, key: $0, sealed: keys.seal($1, key: $0, app: app)) })
    }

    private func audit(_ report: ImportReport, error: String?) async throws {
        guard !isDryRun else { return }
        var members: [JSONValue.Member] = [.init("app", .string(context.appID))]
        if case .object(let counts) = report.json { members += counts }
        if let error { members.append(.init("brokenOff", .string(error))) }
        try await database.run(
            Statements.audit,
            .init(
                actor: actor, action: "import.\(report.kind.rawValue)", details: JSONValue.object(members).text))
    }
}
