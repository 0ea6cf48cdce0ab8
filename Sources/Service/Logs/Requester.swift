import Hummingbird
import Logging
import NIOCore
package import Settings
import Synchronization

/// Who sent the request that a task works for, as far as it is known yet; for the security log.
package final class Requester: Sendable {
    /// The requester of the request that this task, or its parent, answers; nil where none is answered.
    @TaskLocal package static var current: Requester?

    struct Identity: Sendable {
        /// The access key's name, or `gatewayJwt`.
        let caller: String
        let userID: String?
        let apps: Set<String>
        let keys: UserKeys?

        /// The user of a gateway's token as the tables name users. Where the token reaches several apps it is the id
        /// itself, because a protected database has another name for the user in each app.
        var user: String? {
            guard let userID, let keys, apps.count == 1, let app = apps.first else { return userID }
            return keys.key(of: userID, app: app)
        }
    }

    private let requestID: String
    /// Without a value until the router has found it.
    private let route: EndpointPath
    private let channel: any Channel
    private let known = Mutex<Identity?>(nil)
    private let reached = Mutex<Limit?>(nil)
    private let asked = Atomic<Bool>(false)

    init(requestID: String, route: EndpointPath, channel: any Channel) {
        self.requestID = requestID
        self.route = route
        self.channel = channel
    }

    var metadata: Logger.Metadata {
        LogKeys.peer(channel.remoteAddress).merging(
            ["request.id": "\(requestID)", "http.route": "\(route.value ?? "")"]) { $1 }
    }

    /// A limit that was reached although the request is answered.
    var limit: Limit? { reached.withLock { $0 } }

    /// Whether the client was asked for the body that it waits to send (`Expect: 100-continue`).
    var wasAskedForBody: Bool { asked.load(ordering: .relaxed) }

    func askForBody() { asked.store(true, ordering: .relaxed) }

    package func reached(_ limit: Limit) { reached.withLock { $0 = limit } }

    /// Nil until a credential has been accepted.
    var identity: Identity? { known.withLock { $0 } }

    /// - Parameters:
    ///   - caller: the access key's name, or `gatewayJwt`.
    ///   - userID: the user that a gateway's token names.
    package func isKnown(as caller: String, _ userID: String? = nil, of apps: Set<String> = [], _ keys: UserKeys? = nil)
    {
        known.withLock { $0 = Identity(caller: caller, userID: userID, apps: apps, keys: keys) }
    }
}
