import Foundation
package import Logging
import Postgres
package import Purchases
import ServiceLifecycle
package import Settings
import Synchronization

/// What each app sells now: the catalogue in force, completed by the configuration's products. The refresher looks each
/// second, and reads the catalogues that have changed.
package final class CatalogueRefresher: Service {
    package static let refreshInterval: Duration = .seconds(1)

    private struct State {
        /// Nil: nothing was read yet.
        var applied: [String: Catalogue]?
        /// The revisions in force that this program cannot read.
        var unreadable: [String: Int] = [:]
        /// By app, for one configuration of it. Kept because merging costs more than placing an order.
        var merged: [String: (configuration: Data, catalogue: Catalogue)] = [:]
    }

    private let ledger: Ledger
    /// Called with the changes before they count here: the part that judges purchases uses them first.
    private let onChange: Change?
    private let logger: Logger
    private let state = Mutex(State())

    /// Takes the catalogues that changed, and the apps whose catalogue cannot be read; `isFirst`: nothing was read
    /// before.
    package typealias Change =
        @Sendable (_ changed: [String: Catalogue], _ unreadable: Set<String>, _ isFirst: Bool) async throws(LedgerError)
        -> Void

    package init(ledger: Ledger, logger: Logger, onChange: Change? = nil) {
        self.ledger = ledger
        self.onChange = onChange
        self.logger = logger
    }

    package func run() async throws {
        while !Task.isShuttingDownGracefully, !Task.isCancelled {
            // Without the database no order is placed either, so the catalogues that were read last stay in use.
            try? await refresh()
            try? await cancelWhenGracefulShutdown { try await Task.sleep(for: Self.refreshInterval) }
        }
    }

    /// Reads the catalogues that have changed. Where this program cannot read a catalogue, for example one that a newer
    /// program wrote, this process promises and gives nothing in that app until the catalogue is changed: neither by
    /// the catalogue before it nor by the configuration alone. The process logs that once.
    package func refresh() async throws(LedgerError) {
        let revisions = try await ledger.run(Statements.catalogueRevisions, ())
        let (known, doubted) = state.withLock { ($0.applied?.mapValues(\.revision) ?? [:], $0.unreadable) }
        var changed: [String: Catalogue] = [:]
        var unreadable: [String: Int] = [:]
        for row in revisions where known[row.appID] != row.revision {
            if doubted[row.appID] == row.revision {
                unreadable[row.appID] = row.revision
                continue
            }
            guard let document = try await ledger.run(Statements.readCatalogue, row).first else { continue }
            do throws(ConfigurationError) {
                changed[row.appID] = try CatalogueFile.parse(document: document, revision: row.revision)
            } catch {
                unreadable[row.appID] = row.revision
                logger.error(
                    "a catalogue cannot be read: nothing is sold or given in this app by this process",
                    metadata: ["app": "\(row.appID)", "catalogue.revision": "\(row.revision)", "error": "\(error)"])
            }
        }
        // First, so that the next refresh does again what fails here.
        let isFirst = state.withLock { $0.applied == nil }
        if !changed.isEmpty || unreadable != doubted {
            try await onChange?(changed, Set(unreadable.keys), isFirst)
        }
        state.withLock { state in
            state.applied = (state.applied ?? [:]).merging(changed) { $1 }
            state.unreadable = unreadable
            for app in changed.keys { state.merged[app] = nil }
        }
    }

    /// The products that an app sells.
    ///
    /// - Throws: no catalogue could be read so far, or not the one in force: half a catalogue promises what is not
    ///   sold.
    package func catalogue(of app: AppConfiguration) async throws(LedgerError) -> Catalogue {
        if state.withLock({ $0.applied == nil }) { try await refresh() }
        if state.withLock({ $0.unreadable[app.id] != nil }) { throw .unavailable(.unavailable) }
        return state.withLock { state in
            if let merged = state.merged[app.id], merged.configuration == app.hash { return merged.catalogue }
            let own = state.applied?[app.id] ?? Catalogue(products: [])
            let catalogue = own.completed(by: app.policy.catalogue)
            state.merged[app.id] = (app.hash, catalogue)
            return catalogue
        }
    }
}
