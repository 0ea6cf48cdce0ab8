package import Encoding
package import Foundation
import Ledger
package import Postgres
import Purchases

/// Compares the decisions made in shadow with a file of the purchases that the former system gave
/// (`ImportKind.grants`). For a live app the comparison is with what was granted.
///
/// The memory grows by about a hundred bytes for each purchase that both sides have: a shadow lasts weeks, not years.
package struct ShadowDiff: Sendable {
    /// Rows of one statement.
    private static let batchRows = 5000

    package enum Kind: String, Sendable, CaseIterable {
        case otherUser = "other_user"
        case otherProduct = "other_product"
        /// It would be given here, and the file does not have it: the former system may have missed it.
        case onlyHere = "only_here"
        /// The file has it; here it is rejected, or no user posted it.
        case onlyThere = "only_there"
        /// The file has it; here it is held or still being tried. This is no difference yet.
        case undecided
        /// A line that cannot be read.
        case refused
    }

    package struct Difference: Sendable, Equatable {
        package let kind: Kind
        /// The number of the line; nil: the purchase is only here.
        package let line: Int?
        package let transactionID: String?
        /// User and product, as the tables name them.
        package var here: [String]?
        package var there: [String]?
        /// The reason why it is undecided, rejected or unreadable.
        package var why: String?

        package var json: JSONValue {
            var members: [JSONValue.Member] = [.init("kind", .string(kind.rawValue))]
            if let line { members.append(.init("line", .integer(line))) }
            if let transactionID { members.append(.init("transactionId", .string(transactionID))) }
            for (name, side) in [("here", here), ("there", there)] {
                guard let side else { continue }
                members.append(
                    .init(
                        name, .object([.init("userId", .string(side[0])), .init("productId", .string(side[1]))])))
            }
            if let why { members.append(.init("why", .string(why))) }
            return .object(members)
        }
    }

    package struct Report: Sendable, Equatable {
        package var lines = 0
        package var same = 0
        package var counts: [Kind: Int] = [:]
        /// Receipts that are not judged yet: they may be the only reason why purchases are `only_there`.
        package var undecidedReceipts = 0
        /// Lines of another system's file that are not compared, by reason.
        package var skipped: [ImportSkip: Int] = [:]
        /// The time span of the purchases decided here that were looked for in the file. Nil: none was looked for.
        package var span: ClosedRange<Date>?

        fileprivate mutating func note(_ difference: Difference, _ tell: (Difference) -> Void) {
            counts[difference.kind, default: 0] += 1
            tell(difference)
        }

        /// Whether both sides did the same, apart from undecided purchases.
        package var isSame: Bool { counts.allSatisfy { $0.key == .undecided || $0.value == 0 } }

        package var json: JSONValue {
            var members: [JSONValue.Member] = [.init("lines", .integer(lines)), .init("same", .integer(same))]
            members += Kind.allCases.map { .init($0.rawValue, .integer(counts[$0] ?? 0)) }
            members.append(.init("undecidedReceipts", .integer(undecidedReceipts)))
            members.append(.init("skipped", ImportSkip.json(skipped)))
            if let span {
                members.append(.init("from", .string(span.lowerBound.rfc3339)))
                members.append(.init("through", .string(span.upperBound.rfc3339)))
            }
            return .object(members)
        }
    }

    private let database: Database
    private let context: ImportContext
    private let isLive: Bool

    /// - Parameter isLive: whether the app grants purchases here, and is not in shadow.
    package init(database: Database, context: ImportContext, isLive: Bool = false) {
        self.database = database
        self.context = context
        self.isLive = isLive
    }

    /// - Parameters:
    ///   - since: purchases from this time on are looked for in the file; nil: from the earliest one in the file.
    ///   - until: purchases up to this time are looked for; nil: up to the latest one in the file.
    ///   - tell: called for each difference.
    /// - Throws: `ImportFileError`; the errors of reading the file; the database's error.
    package func run(
        _ file: inout ImportFile, since: Date? = nil, until: Date? = nil, tell: (Difference) -> Void
    ) async throws -> Report {
        var report = Report()
        var common: Set<String> = []
        var batch: [(line: Int, row: ImportedGrant)] = []
        var (first, last) = (since, until)
        while let record = try file.next(requiring: ImportedGrant.required) {
            report.lines += 1
            do {
                let fields = ImportFields(values: try record.values.get(), app: context)
                if let skip = try fields.skip() {
                    report.skipped[skip, default: 0] += 1
                    // The file has the purchase, so it is not `onlyHere`.
                    if let id = try? fields.appleID(.transactionId) { common.insert(id) }
                    continue
                }
                let row = try ImportedGrant(fields)
                if since == nil { first = min(first ?? row.purchasedAt, row.purchasedAt) }
                if until == nil { last = max(last ?? row.purchasedAt, row.purchasedAt) }
                batch.append((record.line, row))
            } catch {
                let fault = error as? ImportFault
                let why = fault.map { "\($0.field) \($0.problem)" } ?? (error as? ImportRecord.Unreadable)?.problem
                report.note(Difference(kind: .refused, line: record.line, transactionID: nil, why: why), tell)
            }
            if batch.count >= Self.batchRows { try await compare(&batch, &common, &report, tell) }
        }
        try await compare(&batch, &common, &report, tell)
        if let first, let last, first <= last {
            report.span = first...last
            try await findOnlyHere(first...last, common, &report, tell)
        }
        report.undecidedReceipts = try await database.run(Statements.undecidedReceipts, context.appID).first ?? 0
        return report
    }

    private func compare(
        _ batch: inout [(line: Int, row: ImportedGrant)], _ common: inout Set<String>, _ report: inout Report,
        _ tell: (Difference) -> Void
    ) async throws {
        guard !batch.isEmpty else { return }
        let facts = try await database.run(
            Statements.shadowFacts, .init(appID: context.appID, transactionIDs: batch.map(\.row.transactionID)))
        for ((line, row), fact) in zip(batch, facts) {
            let there = [row.user.stored, row.productID]
            guard let userID = fact.userID, let productID = fact.productID else {
                let why = [fact.state, fact.reason].compactMap(\.self).joined(separator: ", ")
                let isOpen = fact.state == "open" || fact.state == "held"
                report.note(
                    Difference(
                        kind: isOpen ? .undecided : .onlyThere, line: line, transactionID: row.transactionID,
                        there: there, why: why.isEmpty ? "nobody posted it" : why), tell)
                continue
            }
            common.insert(row.transactionID)
            let isSameUser = userID.isSameText(as: row.user.stored)
            if isSameUser, productID == row.productID {
                report.same += 1
            } else {
                report.note(
                    Difference(
                        kind: isSameUser ? .otherProduct : .otherUser, line: line,
                        transactionID: row.transactionID, here: [userID, productID], there: there), tell)
            }
        }
        batch = []
    }

    private func findOnlyHere(
        _ span: ClosedRange<Date>, _ common: Set<String>, _ report: inout Report, _ tell: (Difference) -> Void
    ) async throws {
        var after = (purchasedAt: Date.distantPast, transactionID: "")
        while true {
            let rows = try await database.run(
                isLive ? Statements.grantedPage : Statements.shadowPage,
                .init(
                    appID: context.appID, from: span.lowerBound, through: span.upperBound, after: after,
                    limit: Self.batchRows))
            for row in rows where !common.contains(row.transactionID) {
                report.note(
                    Difference(
                        kind: .onlyHere, line: nil, transactionID: row.transactionID,
                        here: [row.userID, row.productID]), tell)
            }
            guard rows.count == Self.batchRows, let last = rows.last else { return }
            after = (last.purchasedAt, last.transactionID)
        }
    }
}
