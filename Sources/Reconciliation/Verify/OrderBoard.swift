import Synchronization

/// Which apps have ever had an order or a user's token, read each second: in the others a purchase without a token and
/// without a chain is its poster's, and nobody need be asked.
package final class OrderBoard: Sendable {
    package static let refreshInterval: Duration = .seconds(1)

    private let ledger: Ledger
    /// Nil until it was read once.
    private let apps = Mutex<Set<String>?>(nil)

    package init(ledger: Ledger) {
        self.ledger = ledger
    }

    /// Until it is cancelled.
    package func run() async {
        while !Task.isCancelled {
            await refresh()
            try? await Task.sleep(for: Self.refreshInterval)
        }
    }

    package func refresh() async {
        // Orders do not go away: what is known stays true while the database is away.
        guard let rows = try? await ledger.run(Statements.appsWithOrders, ()) else { return }
        apps.withLock { $0 = Set(rows) }
    }

    package func mayHaveOrders(_ appID: String) -> Bool { apps.withLock { $0?.contains(appID) ?? true } }
}
