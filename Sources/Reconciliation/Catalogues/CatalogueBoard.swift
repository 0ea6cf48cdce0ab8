import Foundation
package import Logging
package import Purchases
import ServiceLifecycle
import Synchronization

/// What each app sells now: the catalogues in force, read again each second where one has changed, completed by the
/// configuration's products.
package final class CatalogueBoard: Service {
    package static let refreshInterval: Duration = .seconds(1)

    private struct Board {
        /// Nil: nothing was read yet.
        var applied: [String: Catalogue]?
        /// By app, for one configuration of it: merging costs more than an order.
        var merged: [String: (configuration: Data, catalogue: Catalogue)] = [:]
    }

    private let ledger: Ledger
    /// Who judges purchases by them.
    private let apps: AppDirectory?
    private let logger: Logger
    private let board = Mutex(Board())

    package init(ledger: Ledger, apps: AppDirectory? = nil, logger: Logger) {
        self.ledger = ledger
        self.apps = apps
        self.logger = logger
    }

    package func run() async throws {
        while !Task.isShuttingDownGracefully, !Task.isCancelled {
            // Without the database nothing is ordered either: what was read last stands.
            try? await refresh()
            try? await cancelWhenGracefulShutdown { try await Task.sleep(for: Self.refreshInterval) }
        }
    }

    /// Reads what has changed. A document that this program cannot read leaves the one before in force, and is logged.
    package func refresh() async throws(LedgerError) {
        let revisions = try await ledger.run(Statements.catalogueRevisions, ())
        let known = board.withLock { $0.applied?.mapValues(\.revision) ?? [:] }
        var changed: [String: Catalogue] = [:]
        for row in revisions where known[row.appID] != row.revision {
            guard let document = try await ledger.run(Statements.readCatalogue, row).first else { continue }
            do throws(ConfigurationError) {
                changed[row.appID] = try CatalogueFile.parse(document: document, revision: row.revision)
            } catch {
                logger.error(
                    "a catalogue cannot be read",
                    metadata: ["app": "\(row.appID)", "catalogue.revision": "\(row.revision)", "error": "\(error)"])
            }
        }
        // First, so that what fails here is done again.
        let isFirst = board.withLock { $0.applied == nil }
        if !changed.isEmpty { try await apps?.sell(changed, wakes: !isFirst, ledger: ledger) }
        board.withLock { board in
            board.applied = (board.applied ?? [:]).merging(changed) { $1 }
            for app in changed.keys { board.merged[app] = nil }
        }
    }

    /// What an app sells.
    ///
    /// - Throws: where nothing could be read so far: half a catalogue promises what is not sold.
    package func catalogue(of app: AppConfiguration) async throws(LedgerError) -> Catalogue {
        if board.withLock({ $0.applied == nil }) { try await refresh() }
        return board.withLock { board in
            if let merged = board.merged[app.id], merged.configuration == app.hash { return merged.catalogue }
            let own = board.applied?[app.id] ?? Catalogue(products: [])
            let catalogue = own.completed(by: app.policy.catalogue)
            board.merged[app.id] = (app.hash, catalogue)
            return catalogue
        }
    }
}
