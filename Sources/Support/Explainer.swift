import Foundation
package import Ledger
package import Postgres
import Purchases
package import Settings

/// Finds and tells the timeline of a receipt, a transaction or an order (B14). Reads only, by keys and indexes alone.
package struct Explainer: Sendable {
    /// The limit of ingest; Apple's ids are shorter.
    package static let transactionIDBytesMax = 64

    private let database: Database
    private let keys: UserKeys?

    /// - Parameter keys: open the ids of protected users, for readers who may see them; nil: ids are shown as in the
    ///   tables.
    package init(database: Database, keys: UserKeys?) {
        self.database = database
        self.keys = keys
    }

    /// The timeline; nil if the subject does not exist, or this reader may not know of it.
    ///
    /// - Throws: the database's error, retryable as it says.
    package func timeline(of subject: TimelineSubject, for reader: TimelineReader) async throws(PostgresError)
        -> Timeline?
    {
        if let timeline = try await timeline(ofStored: subject, for: reader) { return timeline }
        guard case .transaction(let id) = subject else { return nil }
        // An id of StoreKit's tests is stored behind its environment.
        for environment in Transaction.unsignedEnvironments {
            let stored = TimelineSubject.transaction(Transaction.storedID(id, in: environment))
            if let timeline = try await timeline(ofStored: stored, for: reader) { return timeline }
        }
        return nil
    }

    private func timeline(ofStored subject: TimelineSubject, for reader: TimelineReader) async throws(PostgresError)
        -> Timeline?
    {
        var subject = subject
        if case .order(let number) = subject, let purchase = try await purchase(numbered: number, for: reader) {
            subject = purchase
        }
        guard let found = try await find(subject, for: reader) else { return nil }
        let rows = try await TimelineRows.read(found, in: database)
        let audience: Audience
        switch reader {
        case .people, .support: audience = .support(try await reveal(rows.users, of: found.appID))
        case .player(let users):
            guard let user = users[found.appID] else { return nil }
            let name = UserName(appID: found.appID, key: user)
            audience = .player([user] + (try await database.run(Statements.idsMergedInto, name)))
        }
        return Timeline(subject, of: found.appID, rows: rows, for: audience)
    }

    /// The timeline for an id of any kind: receipts and orders have UUIDs, Apple's ids are none.
    package func timeline(ofAny id: String, for reader: TimelineReader) async throws(PostgresError) -> Timeline? {
        if let uuid = UUID(uuidString: id) {
            if let timeline = try await timeline(of: .receipt(uuid), for: reader) { return timeline }
            if let timeline = try await timeline(of: .order(uuid), for: reader) { return timeline }
        }
        guard let transaction = TimelineSubject(transaction: id) else { return nil }
        return try await timeline(of: transaction, for: reader)
    }

    private func find(_ subject: TimelineSubject, for reader: TimelineReader) async throws(PostgresError)
        -> TimelineKeys?
    {
        switch subject {
        case .receipt(let id):
            try await database.run(Statements.findReceiptTimeline, .init(id: id, reader: reader)).first
        case .order(let id): try await database.run(Statements.findOrderTimeline, .init(id: id, reader: reader)).first
        case .transaction(let id):
            try await database.run(Statements.findTransactionTimeline, .init(id: id, reader: reader)).first
        }
    }

    /// The purchase without an order that has this number; nil: there is none, or this reader may not know of it.
    private func purchase(
        numbered number: UUID, for reader: TimelineReader
    ) async throws(PostgresError) -> TimelineSubject? {
        guard let id = OrderID.purchase(numbered: number) else { return nil }
        let apps = try await database.run(Statements.findTransactionTimeline, .init(id: id, reader: reader))
        // The first one is the app in which Apple sold it.
        guard let appID = apps.first?.appID, OrderID.ofPurchase(id, of: appID) == number else { return nil }
        return .transaction(id)
    }

    private func reveal(
        _ users: Set<String>, of appID: String
    ) async throws(PostgresError) -> [UserName: RevealedUser] {
        guard let keys, !users.isEmpty else { return [:] }
        let names = users.map { UserName(appID: appID, key: $0) }
        return UserRegister.reveal(try await database.run(Statements.registeredUsers, names), keys)
    }
}

extension TimelineSubject {
    /// Nil for a text that cannot be an id of Apple's.
    package init?(transaction id: String) {
        guard (1...Explainer.transactionIDBytesMax).contains(id.utf8.count), !id.utf8.contains(0) else { return nil }
        self = .transaction(id)
    }
}
