import Synchronization

/// The apps whose records name their users as `userId` does, noted once by each process: only where a trusted backend has
/// posted a record with its own user's id as `uid`. A player's word would let one player hold back all records of an app
/// whose `uid` means something else.
package final class RecordApps: Sendable {
    private let ledger: Ledger
    /// As many as the configuration has apps.
    private let known = Mutex<Set<String>>([])

    package init(ledger: Ledger) {
        self.ledger = ledger
    }

    /// - Throws: it was not noted; the next such record notes it.
    package func note(_ appID: String) async throws(LedgerError) {
        guard !known.withLock({ $0.contains(appID) }) else { return }
        _ = try await ledger.run(Statements.noteRecordApp, appID)
        known.withLock { _ = $0.insert(appID) }
    }
}
