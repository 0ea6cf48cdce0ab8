import Foundation
import JWTKit

/// The token of one app for the App Store Server API, signed once for many calls.
///
/// Good while our clock is up to 5 minutes ahead of Apple's, or up to 15 behind. Source: AppleFacts 3.2. Apple allows
/// 60 minutes; the official libraries sign one for each call.
actor BearerToken {
    /// Seconds a token is used, well before its end, so that none lapses on its way.
    static let useTime: TimeInterval = 20 * 60
    /// Seconds a token is valid from `iat`.
    static let lifetime: TimeInterval = 40 * 60
    /// Seconds `iat` lies in the past, for a clock that runs ahead of Apple's.
    static let clockAllowance: TimeInterval = 5 * 60

    private let keys = JWTKeyCollection()
    private let issuerId: String
    private let keyId: String
    private let bundleId: String
    private let now: @Sendable () -> Date
    private var signed: (token: String, at: Date)?

    init(_ credentials: ServerAPIClient.Credentials, now: @escaping @Sendable () -> Date) async throws(AppStoreError) {
        let key: ES256PrivateKey
        do { key = try ES256PrivateKey(pem: credentials.privateKeyPEM) } catch { throw .credentialsMissing }
        self.issuerId = credentials.issuerId
        self.keyId = credentials.keyId
        self.bundleId = credentials.bundleId
        self.now = now
        await keys.add(ecdsa: key, kid: JWKIdentifier(string: keyId))
    }

    /// A token that is good for at least 15 more minutes.
    func current() async throws(AppStoreError) -> String {
        let time = now()
        if let token = usable(at: time) { return token }
        let issuedAt = Int(time.timeIntervalSince1970 - Self.clockAllowance)
        let claims = Claims(
            iss: issuerId, iat: issuedAt, exp: issuedAt + Int(Self.lifetime), aud: "appstoreconnect-v1", bid: bundleId)
        do {
            let token = try await keys.sign(claims, kid: JWKIdentifier(string: keyId))
            // Another caller may have signed a token in the meantime: then that token is used.
            if let faster = usable(at: now()) { return faster }
            signed = (token, time)
            return token
        } catch {
            throw .credentialsMissing
        }
    }

    /// A clock set back must not keep a token that lapses by Apple's clock.
    private func usable(at time: Date) -> String? {
        signed.flatMap { (0..<Self.useTime).contains(time.timeIntervalSince($0.at)) ? $0.token : nil }
    }

    func discard(_ token: String) {
        if signed?.token == token { signed = nil }
    }

    private struct Claims: JWTPayload {
        let iss: String
        let iat: Int
        let exp: Int
        let aud: String
        let bid: String

        /// Only Apple verifies these.
        func verify(using algorithm: some JWTAlgorithm) async throws {}
    }
}
