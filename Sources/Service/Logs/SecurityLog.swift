import Crypto
package import Foundation
package import Logging
package import Metrics
package import Purchases
import Synchronization

/// One line for each event that bears on security, and a counter for each kind of event. A line holds no credential, no
/// path and no body, and names a user by a hash.
///
/// The address in a line is that of the connection, as a rule a gateway's. `X-Forwarded-For` is not read: no setting
/// says which peers are gateways, so any sender that reaches the port could write any address there, and the gateways
/// of deploy/gateway take the header out. The gateway's log has the sender under the same request id.
///
/// A flood of refusals must not be a flood of lines: at most ``linesPerSecondMax`` lines of one event, or of one limit,
/// are written in a second. All are counted, and the next line says how many were not written.
package final class SecurityLog: Sendable {
    /// Lines of one event, or of one limit, in one process.
    package static let linesPerSecondMax = 20

    private struct Key: Hashable {
        let event: SecurityEvent
        let caller: String
    }

    private struct Lines {
        var since: ContinuousClock.Instant
        var written = 0
        var unwritten = 0

        /// How many lines were left out before this one; nil: this one is left out too.
        mutating func take(_ now: ContinuousClock.Instant) -> Int? {
            if now - since >= .seconds(1) { (since, written) = (now, 0) }
            guard written < linesPerSecondMax else {
                unwritten += 1
                return nil
            }
            written += 1
            defer { unwritten = 0 }
            return unwritten
        }
    }

    private struct State {
        var counters: [Key: Counter] = [:]
        var lines: [String: Lines] = [:]
    }

    private let secret: [UInt8]
    private let logger: Logger
    private let metrics: any MetricsFactory
    private let state = Mutex(State())

    /// - Parameter secret: the database's (``Statements/logSecret``), so that all its processes give a user the same
    ///   hash.
    package init(secret: [UInt8], logger: Logger, metrics: any MetricsFactory = MetricsSystem.factory) {
        self.secret = secret
        self.logger = logger
        self.metrics = metrics
    }

    /// - Parameters:
    ///   - count: how many such events one request holds.
    ///   - user: the user's name in the tables; nil: the requester's.
    package func note(
        _ event: SecurityEvent, count: Int = 1, user: String? = nil, by requester: Requester? = Requester.current,
        _ more: Logger.Metadata = [:], at now: ContinuousClock.Instant = .now
    ) {
        let identity = requester?.identity
        let key = Key(event: event, caller: identity?.caller ?? "")
        let unwritten = state.withLock { state in
            let counter = state.counters[key] ?? counter(key)
            state.counters[key] = counter
            counter.increment(by: count)
            return state.lines[event.line, default: Lines(since: now)].take(now)
        }
        guard let unwritten else { return }
        var metadata = (requester?.metadata ?? [:]).merging(more) { $1 }
        metadata["security.event"] = "\(event.name)"
        metadata["security.reason"] = event.reason.map { "\($0)" }
        if count > 1 { metadata["security.count"] = "\(count)" }
        if unwritten > 0 { metadata["security.unwritten"] = "\(unwritten)" }
        if let user = user ?? identity?.user { metadata["user.hash"] = "\(hash(user))" }
        metadata["caller"] = identity.map { "\($0.caller)" }
        logger.notice("security event", metadata: metadata)
    }

    /// Notes an event that a worker found in a receipt.
    package func note(
        _ event: SecurityEvent, receipt: UUID, app: String, user: String?, _ more: Logger.Metadata = [:]
    ) {
        var metadata = LogKeys.receipt(receipt)
        metadata["app.id"] = "\(app)"
        note(event, user: user, metadata.merging(more) { $1 })
    }

    /// Notes the events of one request, with a line for each kind.
    package func note(_ events: [SecurityEvent]) {
        for (event, same) in Dictionary(grouping: events, by: { $0 }) { note(event, count: same.count) }
    }

    /// A user's name in the log: 16 hexadecimal digits, the same for the same user in all processes of a database. It
    /// is a cut SHA-256 over a secret of fixed length and the user. Without the secret nobody can find an id by trying,
    /// or make the hash of a longer text from it.
    package func hash(_ user: String) -> String {
        SHA256.hash(data: secret + Array(user.utf8)).prefix(8).map {
            String($0 >> 4, radix: 16) + String($0 & 15, radix: 16)
        }
        .joined()
    }

    private func counter(_ key: Key) -> Counter {
        switch key.event {
        case .refused, .proofRefused, .notificationRefused, .tokenShared, .purchaseShared, .merged, .configuration:
            Counter(
                label: "makegood_security_events_total",
                dimensions: [("event", key.event.name), ("reason", key.event.reason ?? ""), ("caller", key.caller)],
                factory: metrics)
        case .limit(let limit):
            Counter(
                label: "makegood_limits_reached_total", dimensions: [("limit", limit.rawValue)], factory: metrics)
        case .disputed(let appID):
            Counter(label: "makegood_ownership_disputes_total", dimensions: [("app", appID)], factory: metrics)
        }
    }
}

/// What the security log tells. A user was refused, reached a limit, or shows a purchase that another user has or
/// nobody bought. Or somebody changed whose purchases are whose, or what the rules are.
package enum SecurityEvent: Sendable, Hashable {
    case refused(Refusal)
    case limit(Limit)
    /// A purchase that another user has or may have, where no proof decides between the two.
    case disputed(appID: String)
    /// A token that nobody registered came with purchases of two users.
    case tokenShared
    /// One purchase that very many users show: its proof is passed around.
    case purchaseShared
    /// A proof that is not Apple's, or not of this app (``Reason/isForgery``).
    case proofRefused(Reason)
    /// A notification that is not Apple's.
    case notificationRefused(NotificationRefusal)
    /// An account became part of another one.
    case merged
    /// A process was told to read its configuration again. A signal does not say who sent it.
    case configuration(isTaken: Bool)

    var name: String {
        switch self {
        case .refused(.noCredential), .refused(.unknownKey), .refused(.endedKey), .refused(.noGateway),
            .refused(.token):
            "credential.refused"
        case .refused: "access.refused"
        case .limit: "limit.reached"
        case .disputed: "ownership.disputed"
        case .tokenShared: "token.shared"
        case .purchaseShared: "purchase.shared"
        case .proofRefused: "proof.refused"
        case .notificationRefused: "notification.refused"
        case .merged: "users.merged"
        case .configuration: "configuration.reloaded"
        }
    }

    /// The key by which the lines of a second are counted, so that one limit hides no other.
    fileprivate var line: String {
        if case .limit(let limit) = self { return limit.rawValue }
        return name
    }

    /// A value of a closed set, as a metric's label must be.
    var reason: String? {
        switch self {
        case .refused(let refusal): refusal.name
        case .limit(let limit): limit.rawValue
        case .proofRefused(let reason): reason.rawValue
        case .notificationRefused(let refusal): refusal.rawValue
        case .configuration(let isTaken): isTaken ? "taken" : "refused"
        case .disputed, .tokenShared, .purchaseShared, .merged: nil
        }
    }
}

/// Why a credential was refused, or a request that reached beyond its credential.
package enum Refusal: Sendable, Hashable {
    case noCredential
    case unknownKey
    case endedKey
    /// A token was sent, but no gateway is configured.
    case noGateway
    case token(TokenDefect)
    // The credential is valid, but does not reach this far.
    case scope
    case app
    case otherUser
    /// A receipt, an order or a list of another user; the answer says that there is none.
    case notYours
    /// A request that a user's token may never make.
    case needsKey
    /// A promotion that the token does not list.
    case promotion
    /// A token for purchases that belongs to another user.
    case tokenTaken

    var name: String {
        switch self {
        case .noCredential: "noCredential"
        case .unknownKey: "unknownKey"
        case .endedKey: "endedKey"
        case .noGateway: "noGateway"
        case .token(let defect): "token.\(defect)"
        case .scope: "scope"
        case .app: "app"
        case .otherUser: "otherUser"
        case .notYours: "notYours"
        case .needsKey: "needsKey"
        case .promotion: "promotion"
        case .tokenTaken: "tokenTaken"
        }
    }
}

/// Why a notification was not taken: nothing proves that Apple sent it. The answer is 401, of ``noSecret`` 503.
package enum NotificationRefusal: String, Sendable, CaseIterable {
    // Of version 2: as the reason of a proof that is not believed.
    case malformed, algorithm, certificate, expired, signature, unsigned
    case chainLength = "chain_length"
    case untrustedRoot = "untrusted_root"
    case missingOID = "missing_oid"
    case certificateRevoked = "certificate_revoked"
    // Of version 1: the password is the shared secret of an app.
    case password
    /// The app, or every app, has no `verifyReceipt.sharedSecret`.
    case noSecret = "no_secret"
    /// No app has the bundle id, so no secret can prove the notification.
    case unknownApp = "app_unknown"
}

/// Why a gateway's token is not accepted. The defect says which part of the token is wrong, never what stood there.
package enum TokenDefect: Error, Equatable, CaseIterable {
    case malformed, algorithm, keyID, signature, type, issuer, audience, expired, expiresTooLate, notYetValid, user
    case promotions

    var sentence: String {
        switch self {
        case .malformed: "the token is no JWT: three parts of base64url, its header and claims without doubles"
        case .algorithm: "the token's algorithm (alg) is not one that is allowed here"
        case .keyID: "the token names no key (kid) of this server"
        case .signature: "the token's signature is not of a key of this server"
        case .type: "the token is no access token: its type (typ) is neither JWT nor at+jwt"
        case .issuer: "the token's issuer (iss) is another"
        case .audience: "the token is for another audience (aud)"
        case .expired: "the token has expired, or does not say when it will (exp)"
        case .expiresTooLate: "the token lives longer than this server allows (exp, gatewayJwt.lifetimeMax)"
        case .notYetValid: "the token is not valid yet (nbf)"
        case .user: "the token names no user"
        case .promotions: "the token's promotions are no list of texts"
        }
    }
}
