import Foundation
import Ledger
import NIOSSL
import Settings
import Synchronization

/// An endpoint as the configuration file defines it, and what sends to it.
struct DefinedEndpoint: Sendable {
    let filter: EndpointFilter
    let settings: EndpointSettings
    /// Nil: events hold the ids of users as they are.
    let userKeys: UserKeys?
    let sender: WebhookSender

    var key: EndpointKey { filter.key }

    init(appID: String, _ settings: EndpointSettings, userKeys: UserKeys?, trustRoots: NIOSSLTrustRoots) {
        filter = EndpointFilter(
            key: EndpointKey(appID: appID, name: settings.name), types: settings.typeNames,
            environments: settings.environmentNames)
        self.settings = settings
        self.userKeys = userKeys
        sender = WebhookSender(settings, trustRoots: trustRoots)
    }
}

/// The endpoints of the configuration in force, by their ids. Follows a reload.
final class EndpointDirectory: Sendable {
    /// How long a turn may go on with the endpoint of the former configuration.
    private static let following: Duration = .seconds(2)

    private struct State {
        var hash: String?
        var endpoints: [UUID: DefinedEndpoint] = [:]
        /// Senders of former configurations, which end when their last sends have.
        var retired: [Task<Void, Never>] = []
    }

    private let configuration: ConfigurationHolder
    private let trustRoots: NIOSSLTrustRoots
    private let state = Mutex(State())

    init(_ configuration: ConfigurationHolder, trustRoots: NIOSSLTrustRoots) {
        self.configuration = configuration
        self.trustRoots = trustRoots
    }

    var current: [UUID: DefinedEndpoint] {
        let configuration = configuration.current
        return state.withLock { state in
            guard state.hash != configuration.hash else { return state.endpoints }
            for former in state.endpoints.values {
                state.retired.append(
                    Task {
                        try? await Task.sleep(for: former.settings.timeout + Self.following)
                        await former.sender.shutDown()
                    })
            }
            var endpoints: [UUID: DefinedEndpoint] = [:]
            for (appID, app) in configuration.apps {
                for settings in app.endpoints {
                    let endpoint = DefinedEndpoint(
                        appID: appID, settings, userKeys: configuration.userKeys, trustRoots: trustRoots)
                    endpoints[endpoint.key.id] = endpoint
                }
            }
            (state.hash, state.endpoints) = (configuration.hash, endpoints)
            return endpoints
        }
    }

    /// Ends every connection.
    func close() async {
        let state = state.withLock { $0 }
        for task in state.retired { task.cancel() }
        for endpoint in state.endpoints.values { await endpoint.sender.shutDown() }
        for task in state.retired { await task.value }
    }
}
