package import AppStore
package import AsyncHTTPClient
import Crypto
import Encoding
import Foundation
package import Ledger
package import Purchases
package import Settings
import Synchronization

/// What a worker needs to judge one app's receipts. Rebuilt whole when the configuration changes.
package struct AppServices: Sendable {
    package let configuration: AppConfiguration
    package let verifier: SignedDataVerifier
    package let appReceipts: AppReceiptVerifier
    /// Nil without a `verifyReceipt` section.
    package let receipts: VerifyReceiptClient?
    /// Nil without a `serverApi` section.
    package private(set) var serverAPI: ServerAPIClient?
    /// The clients of the app's other bundle ids. Apple answers about a purchase only to a token with the bundle id
    /// that sold it.
    private var serverAPIOfAlias: [String: ServerAPIClient] = [:]
    /// Whether it asks Apple about purchases of an alias. What Apple refuses then may be the alias, not the credential.
    package private(set) var isOtherBuild = false
    /// A short hash of the key or secret for each service, so that a halt does not apply to a corrected one.
    package let credentialHashes: [ServiceCall.Service: String]

    /// The configuration's policy, with the catalogue in force.
    package internal(set) var policy: AppPolicy
    /// False: this program cannot read the catalogue in force, so nothing can be given by it.
    package internal(set) var knowsCatalogue = true
    package var identity: AppIdentity { configuration.identity }

    /// The environments that Apple can be asked about, in the order of asking (AppleFacts 3.1).
    package var lookUpOrder: [StoreEnvironment] {
        [.production, .sandbox].filter(identity.environments.contains)
    }

    /// - Parameters:
    ///   - callLimit: the time that one call to Apple may take.
    ///   - statuses: what responders said of certificates, shared by all apps; nil: the app gets its own.
    package init(
        _ configuration: AppConfiguration, http: HTTPClient, callLimit: Duration = RetrySchedule.callLimit,
        statuses: CertificateStatuses? = nil
    ) async throws(ConfigurationError) {
        self.configuration = configuration
        policy = configuration.policy
        let anchors = try configuration.anchors
        let revocation = RevocationCheck(configuration.ocsp, statuses ?? CertificateStatuses(http: http))
        verifier = SignedDataVerifier(app: configuration.identity, anchors: anchors, revocation: revocation)
        appReceipts = AppReceiptVerifier(app: configuration.identity, anchors: anchors, revocation: revocation)
        var hashes: [ServiceCall.Service: String] = [:]
        receipts = configuration.verifyReceipt.map { section in
            var credentials = VerifyReceiptClient.Credentials(sharedSecret: section.sharedSecret)
            if let url = section.productionURL { credentials.productionURL = url }
            if let url = section.sandboxURL { credentials.sandboxURL = url }
            return VerifyReceiptClient(http: http, credentials: credentials, timeout: callLimit)
        }
        hashes[.verifyReceipt] = Self.hash(configuration.verifyReceipt?.sharedSecret ?? "")
        if let section = configuration.serverAPI {
            var credentials = ServerAPIClient.Credentials(
                issuerId: section.issuerID, keyId: section.keyID, privateKeyPEM: section.privateKeyPEM,
                bundleId: configuration.identity.bundleId)
            if let url = section.productionURL { credentials.productionURL = url }
            if let url = section.sandboxURL { credentials.sandboxURL = url }
            do {
                serverAPI = try await ServerAPIClient(http: http, credentials: credentials, timeout: callLimit)
                for alias in configuration.identity.bundleIdAliases {
                    credentials.bundleId = alias
                    serverAPIOfAlias[alias] = try await ServerAPIClient(
                        http: http, credentials: credentials, timeout: callLimit)
                }
            } catch {
                throw ConfigurationError(
                    key: "\(configuration.id).serverApi.privateKeyFile", problem: "is no P-256 key in PKCS#8 PEM")
            }
            hashes[.serverApi] = Self.hash("\(section.issuerID) \(section.keyID) \(section.privateKeyPEM)")
        }
        credentialHashes = hashes
    }

    /// The same app, asking Apple about purchases of each alias.
    package var otherBuilds: [AppServices] { identity.bundleIdAliases.map { speaking(for: $0) } }

    /// The same app, asking Apple about purchases of this bundle id.
    package func speaking(for bundleID: String?) -> AppServices {
        guard let bundleID, let client = serverAPIOfAlias[bundleID] else { return self }
        var app = self
        app.serverAPI = client
        app.isOtherBuild = true
        return app
    }

    private static func hash(_ secret: String) -> String {
        SHA256.hash(data: Data(secret.utf8)).prefix(8).hexadecimal
    }
}

/// The apps of the configuration in force.
package final class AppDirectory: Sendable {
    private let http: HTTPClient
    private let judges: Bool
    private let statuses: CertificateStatuses
    private let apps = Mutex<[String: AppServices]>([:])
    private let catalogueState = Mutex(CatalogueState())

    /// The catalogues in force, by app.
    private struct CatalogueState {
        var sold: [String: Catalogue] = [:]
        var unreadable: Set<String> = []
    }

    /// - Parameter judges: whether this process judges receipts. Only then does a new configuration wake what the old
    ///   one held. Other processes do not decide about that, and have no right to it in the database.
    package init(http: HTTPClient, judges: Bool = true) {
        self.http = http
        self.judges = judges
        statuses = CertificateStatuses(http: http)
    }

    package subscript(_ appID: String) -> AppServices? { apps.withLock { $0[appID] } }

    /// The app that has this bundle id, as its own or as an alias.
    package func id(ofBundle bundleID: String?) -> String? {
        bundleID.flatMap { bundleID in apps.withLock { $0.first { $0.value.identity.admits(bundleID) }?.key } }
    }

    package var ids: [String] { apps.withLock { $0.keys.sorted() } }

    /// Takes a configuration whole, or throws and keeps the old one. The ledger remembers each app's first start. In a
    /// process that judges, held receipts become due where the app's configuration changed, a halt ends where its
    /// credential changed, and notifications become due that are held because no app had their bundle id.
    package func update(_ configuration: Configuration, ledger: Ledger) async throws {
        var updated: [String: AppServices] = [:]
        for var app in configuration.apps.values {
            let start = try await ledger.run(
                Statements.rememberApp,
                Statements.AppStart(
                    appID: app.id, configurationHash: Array(app.hash), isLive: app.policy.mode == .live, judges: judges)
            )
            if let start = start.first {
                app.policy.hereSince = start.first
                if !app.hasGrantFrom { app.policy.grantFrom = start.grantFrom }
            }
            let services = try await AppServices(
                app, http: http, callLimit: ledger.schedule.callLimit, statuses: statuses)
            updated[app.id] = services
        }
        let before = apps.withLock { [updated] apps in
            // The catalogues are read only now, so that a catalogue that came meanwhile is not forgotten.
            let catalogueState = catalogueState.withLock { $0 }
            defer {
                apps = updated
                for (id, catalogue) in catalogueState.sold { apps[id]?.policy.sold = catalogue }
                for id in catalogueState.unreadable { apps[id]?.knowsCatalogue = false }
            }
            return apps.mapValues(\.configuration.hash)
        }
        guard judges else { return }
        // Held receipts are woken only now, so that they are judged by the configuration in force.
        for (id, app) in updated {
            let hash = app.configuration.hash
            _ = try await ledger.run(
                Statements.takeConfiguration,
                .init(appID: id, configurationHash: Array(hash), isChanged: before[id].map { $0 != hash } ?? false))
            _ = try await ledger.run(
                Statements.endStaleHalts, .init(appID: id, hashes: Array(app.credentialHashes.values)))
        }
        try await wakeNotifications(of: updated, ledger)
    }

    /// Has notifications judged that came before the configuration of their app did.
    private func wakeNotifications(of apps: [String: AppServices], _ ledger: Ledger) async throws(LedgerError) {
        let limit = 1000
        let configured = Statements.ConfiguredApps(
            ids: apps.keys.sorted(),
            bundleIDs: apps.values.flatMap { [$0.identity.bundleId] + $0.identity.bundleIdAliases }, limit: limit)
        while try await ledger.run(Statements.wakeNotifications, configured).count == limit {}
    }

    /// Takes catalogues that came into force.
    ///
    /// - Parameters:
    ///   - unreadable: apps whose catalogue in force this program cannot read: a worker gives nothing there.
    ///   - wakes: whether held receipts are judged again, because their products may be sold now.
    package func sell(
        _ catalogues: [String: Catalogue], unreadable: Set<String>, wakes: Bool, ledger: Ledger
    ) async throws(LedgerError) {
        catalogueState.withLock { catalogueState in
            catalogueState.sold.merge(catalogues) { $1 }
            catalogueState.unreadable = unreadable
        }
        let hashes = apps.withLock { apps in
            for id in apps.keys { apps[id]?.knowsCatalogue = !unreadable.contains(id) }
            for (id, catalogue) in catalogues { apps[id]?.policy.sold = catalogue }
            return catalogues.keys.compactMap { id in apps[id].map { (id, Array($0.configuration.hash)) } }
        }
        guard judges, wakes else { return }
        for (id, hash) in hashes {
            _ = try await ledger.run(
                Statements.takeConfiguration, .init(appID: id, configurationHash: hash, isChanged: true))
        }
    }
}
