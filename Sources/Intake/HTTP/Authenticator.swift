import Crypto
package import Foundation
package import HTTPTypes
import Purchases
package import Service
package import Settings
import Synchronization

/// Reads `Authorization: Bearer …` and finds the caller. No other header says anything about identity.
package final class Authenticator: Sendable {
    /// Gateways' tokens have 1 to 2 KiB; the server bounds the header list.
    package static let credentialBytesMax = 16 << 10

    private struct Gateway: Sendable {
        let configuration: GatewayJWTConfiguration
        let verifier: GatewayVerifier
    }

    private let configuration: ConfigurationHolder
    private let now: @Sendable () -> Date
    private let gateway = Mutex<Gateway?>(nil)
    private let rates = RateLimiter()

    package init(configuration: ConfigurationHolder, now: @escaping @Sendable () -> Date = { Date() }) {
        self.configuration = configuration
        self.now = now
    }

    /// - Throws: 401 without credentials or with wrong ones; 429 where a caller with good ones comes more often than
    ///   allowed. A request that is answered 401 counts against nobody.
    package func admit(_ headers: HTTPFields) async throws(Problem) -> Caller {
        guard let credential = Self.credential(headers) else { throw .unauthenticated(wasGiven: false) }
        let configuration = configuration.current
        // A JWT has three parts. A key would be taken for a JWT only if it held exactly two dots.
        if credential.utf8.count(where: { $0 == UInt8(ascii: ".") }) == 2 {
            guard let section = configuration.gatewayJWT else {
                throw .unauthenticated(wasGiven: true, .noGateway)
            }
            let user = try Self.user(of: credential, try await verifier(section), now())
            Requester.current?.isKnown(as: "gatewayJwt", user.id, of: section.apps, configuration.userKeys)
            // The user's own bucket comes first: a request that it refuses costs other users nothing.
            let userShare = try taken(
                .user(Array(user.id.utf8)), name: "gatewayJwt.user", configuration.userLimits.rate)
            let share = try taken(.gateway, name: "gatewayJwt", section.rate)
            // Whatever the configuration says, a user's token neither vouches for other users nor reads everyone's
            // events.
            return Caller(
                name: "gatewayJwt", userID: user.id, scopes: section.scopes.intersection([.intake]), apps: section.apps,
                promotions: user.promotions, share: share, userShare: userShare,
                bytesPerDay: configuration.userLimits.bytesPerDay)
        }
        guard let key = Self.key(credential, in: configuration.access) else { throw .unauthenticated(wasGiven: true) }
        guard !key.hasEnded(at: now()) else { throw .keyEnded }
        Requester.current?.isKnown(as: key.name)
        let share = try taken(.key(key.keySHA256), name: key.name, key.rate)
        return Caller(name: key.name, userID: nil, scopes: key.scopes, apps: key.apps, share: share)
    }

    /// Counts the entries that this request turned out to hold.
    ///
    /// - Throws: 429 where the user may not send as many now; the caller of this method may then store none of them. A
    ///   key never gets a 429 here: its next requests pay for the entries.
    package func count(_ entries: Int, of caller: Caller) throws(Problem) {
        guard entries > 1 else { return }
        if let share = caller.userShare { try rates.take(share, entries - 1) }
        if let share = caller.share { rates.owe(share, entries - 1) }
    }

    private func taken(_ key: RateLimiter.Key, name: String, _ rate: Rate?) throws(Problem) -> RateLimiter.Share? {
        guard let rate else { return nil }
        let share = RateLimiter.Share(key, name: name, rate)
        try rates.take(share)
        return share
    }

    private static func user(
        of token: String, _ verifier: GatewayVerifier, _ now: Date
    ) throws(Problem) -> GatewayUser {
        do throws(TokenDefect) {
            return try verifier.user(of: token, now: now)
        } catch {
            throw .unauthenticated(error)
        }
    }

    /// The credential; nil where the header is missing or holds no bearer credential of one word.
    static func credential(_ headers: HTTPFields) -> String? {
        guard let header = headers[.authorization], header.utf8.count <= credentialBytesMax else { return nil }
        let words = header.utf8.split(separator: UInt8(ascii: " "), omittingEmptySubsequences: true)
        guard words.count == 2, words[0].count == 6, words[0].elementsEqual("bearer".utf8, by: { $0 | 0x20 == $1 })
        else { return nil }
        return String(words[1])
    }

    /// Compares with every key, and with each byte of each key, even after a match: the time taken tells an attacker
    /// nothing.
    private static func key(_ credential: String, in keys: [AccessKey]) -> AccessKey? {
        SHA256.hash(data: Array(credential.utf8)).withUnsafeBytes { hash in
            var found: AccessKey?
            for key in keys {
                var difference = UInt8(truncatingIfNeeded: key.keySHA256.count ^ hash.count)
                for (one, other) in zip(key.keySHA256, hash) { difference |= one ^ other }
                if difference == 0 { found = key }
            }
            return found
        }
    }

    /// The verifier of the section in force; made anew after a reload has changed the section.
    private func verifier(_ section: GatewayJWTConfiguration) async throws(Problem) -> GatewayVerifier {
        if let made = gateway.withLock({ $0 }), made.configuration.isSame(as: section) { return made.verifier }
        do throws(ConfigurationError) {
            let verifier = try await GatewayVerifier(section)
            gateway.withLock { $0 = Gateway(configuration: section, verifier: verifier) }
            return verifier
        } catch {
            // The reloader makes this verifier before it replaces the configuration, so this does not happen; a bad key
            // lets nobody in.
            throw .unavailable()
        }
    }
}

extension GatewayJWTConfiguration {
    fileprivate func isSame(as other: GatewayJWTConfiguration) -> Bool {
        issuer == other.issuer && audience == other.audience && algorithms == other.algorithms && keys == other.keys
            && userClaim == other.userClaim && promotionsClaim == other.promotionsClaim && leeway == other.leeway
            && lifetimeMax == other.lifetimeMax
    }
}
