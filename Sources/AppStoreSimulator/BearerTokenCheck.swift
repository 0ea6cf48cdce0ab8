import Crypto
import Foundation
import Synchronization

/// Checks the bearer token of the App Store Server API (AppleFacts 3.2). Written by hand: it must not share code with
/// the client under test.
final class BearerTokenCheck: Sendable {
    private struct Header: Decodable {
        let alg: String
        let kid: String
    }

    private struct Claims: Decodable, Sendable {
        let iss: String
        /// Nil: Apple's own Python library sends none.
        let iat: Double?
        let exp: Double
        let aud: String
        let bid: String
    }

    /// Apple's limit on `exp - iat`; without `iat`, on the time from the call to `exp`.
    static let lifetimeMaxSeconds = 3600.0

    /// How many good tokens are remembered: a client uses one token for many calls.
    private static let knownMax = 64

    private let credentials: Credentials
    private let key: P256.Signing.PublicKey
    private let known = Mutex<[String: Claims]>([:])

    init(_ credentials: Credentials) throws(SimulatorError) {
        self.credentials = credentials
        do {
            key = try P256.Signing.PrivateKey(pemRepresentation: credentials.privateKeyPEM).publicKey
        } catch {
            throw .authority("key.p8 is damaged")
        }
    }

    /// The bundle id (`bid`) of a good token; nil for any other value of the `Authorization` header.
    ///
    /// - Parameters:
    ///   - nowSeconds: the machine's time. A client whose clock does not follow the store's is not refused for that.
    ///   - aheadSeconds: how far the store's clock is ahead of the machine's.
    func bundleId(authorization: String?, nowSeconds: Double, aheadSeconds: Double = 0) -> String? {
        guard let authorization, authorization.hasPrefix("Bearer ") else { return nil }
        let claims: Claims
        if let seen = known.withLock({ $0[authorization] }) {
            claims = seen
        } else {
            guard let judged = verified(authorization.dropFirst("Bearer ".count)) else { return nil }
            claims = judged
            known.withLock { known in
                if known.count >= Self.knownMax { known = [:] }
                known[authorization] = judged
            }
        }
        guard claims.exp > nowSeconds else { return nil }
        if claims.iat == nil, claims.exp > nowSeconds + aheadSeconds + Self.lifetimeMaxSeconds { return nil }
        return claims.bid
    }

    /// The claims of a token, if its signature and everything that does not depend on the time are right.
    private func verified(_ token: Substring) -> Claims? {
        let parts = token.split(separator: ".", omittingEmptySubsequences: false)
        guard
            parts.count == 3,
            let headerData = Base64URL.decode(parts[0]),
            let claimsData = Base64URL.decode(parts[1]),
            let signatureData = Base64URL.decode(parts[2]),
            let header = try? JSONDecoder().decode(Header.self, from: headerData),
            header.alg == "ES256", header.kid == credentials.keyId,
            let signature = try? P256.Signing.ECDSASignature(rawRepresentation: signatureData),
            key.isValidSignature(signature, for: Data("\(parts[0]).\(parts[1])".utf8)),
            let claims = try? JSONDecoder().decode(Claims.self, from: claimsData),
            claims.iss == credentials.issuerId, claims.aud == "appstoreconnect-v1",
            claims.iat.map({ claims.exp <= $0 + Self.lifetimeMaxSeconds }) ?? true
        else { return nil }
        return claims
    }
}
