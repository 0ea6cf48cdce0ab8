import Synchronization

/// The apps whose records name their users as `userId` does. Each process notes an app once, and only where a trusted
/// backend has posted a record with its own user's id as `uid`. A post from a user's app is not enough: one user could
/// then hold back all records of an app whose `uid` means something else.
package final class RecordApps: Sendable {
    private let ledger: Ledger
    /// At most as many as the configuration has apps.
    private let known = Mutex<Set<String>>([])

    package init(ledger: Ledger) {
        self.ledger = ledger
    }

    /// - Throws: the app was not noted; the next such record notes it.
    package func note(_ appID: String) async throws(LedgerError) {
        guard !known.withLock({ $0.contains(appID) }) else { return }
        _ = try await ledger.run(Statements.noteRecordApp, appID)
        known.withLock { _ = $0.insert(appID) }
    }
}
