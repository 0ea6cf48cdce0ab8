import Crypto
import Encoding
package import Foundation
import JWTKit
import Purchases
package import Service
package import Settings

/// The user of a gateway's token, with the token's claims about the user.
package struct GatewayUser: Sendable, Equatable {
    package let id: String
    /// The promotions that the user may order.
    package let promotions: [String]
}

/// Verifies the tokens a gateway signs for its users (RFC 7519, RFC 8725).
///
/// The key decides the algorithm, never the header alone: a token must name an algorithm that the configuration allows,
/// and is checked only with keys of exactly that algorithm. `none` and every shared-secret algorithm have no key here,
/// so a token cannot ask for them.
package struct GatewayVerifier: Sendable {
    private struct Key: Sendable {
        /// Nil: every token may be meant for this key.
        let id: String?
        let algorithm: any JWTAlgorithm
    }

    private let configuration: GatewayJWTConfiguration
    private let keys: [Key]

    /// - Throws: `gatewayJwt.keys`, where a file holds no key of an allowed algorithm.
    package init(_ configuration: GatewayJWTConfiguration) async throws(ConfigurationError) {
        self.configuration = configuration
        var keys: [Key] = []
        for text in configuration.keys {
            let found =
                text.drop { $0.isWhitespace }.first == "{"
                ? await Self.keys(ofSet: text, configuration.algorithms)
                : await Self.keys(ofPEM: text, configuration.algorithms)
            guard !found.isEmpty else {
                throw ConfigurationError(
                    key: "gatewayJwt.keys", problem: "names a file that holds no key of an allowed algorithm")
            }
            keys += found
        }
        self.keys = keys
    }

    /// The user that the token names, with the token's claims. Defects of the claims are reported only after the
    /// signature was found good, so that a stranger learns nothing that the token does not say.
    package func user(of token: String, now: Date) throws(TokenDefect) -> GatewayUser {
        let parts = Array(token.utf8).split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
        guard parts.count == 3, let header = Self.object(parts[0]), let claims = Self.object(parts[1]),
            let signature = Self.decode(parts[2])
        else { throw .malformed }
        try checkSignature(parts, header, signature)
        guard Self.isAccessToken(header["typ"]) else { throw .type }
        try checkClaims(claims, now)
        guard let id = Self.user(claims[configuration.userClaim]) else { throw .user }
        return GatewayUser(id: id, promotions: try Self.texts(claims[configuration.promotionsClaim]))
    }

    private func checkSignature(
        _ parts: [ArraySlice<UInt8>], _ header: JSONValue, _ signature: Data
    ) throws(TokenDefect) {
        // The comparison is by bytes as long as no signature is checked: String's own equality takes quadratic time for
        // many combining marks.
        guard case .string(let name)? = header["alg"],
            configuration.algorithms.contains(where: { $0.rawValue.utf8.elementsEqual(name.utf8) })
        else { throw .algorithm }
        // `crit` names extensions that must be understood; this verifier understands none (RFC 7515, 4.1.11).
        guard header["crit"] == nil else { throw .malformed }
        let keyID: String?
        switch header["kid"] {
        case nil, .null: keyID = nil
        case .string(let text): keyID = text
        default: throw .keyID
        }
        // Where several keys have names, a token must name its key. Keys of PEM files have no name, and each is tried.
        if keyID == nil, keys.count > 1, keys.contains(where: { $0.id != nil }) { throw .keyID }
        let candidates = keys.filter { key in
            guard key.algorithm.name == name else { return false }
            guard let id = key.id, let keyID else { return true }
            return id.utf8.elementsEqual(keyID.utf8)
        }
        guard !candidates.isEmpty else { throw .keyID }
        let signed = Array(parts[0]) + [UInt8(ascii: ".")] + Array(parts[1])
        guard candidates.contains(where: { (try? $0.algorithm.verify(signature, signs: signed)) == true }) else {
            throw .signature
        }
    }

    private func checkClaims(_ claims: JSONValue, _ now: Date) throws(TokenDefect) {
        guard claims["iss"] == .string(configuration.issuer) else { throw .issuer }
        switch claims["aud"] {
        case .string(let audience): guard audience == configuration.audience else { throw .audience }
        case .array(let audiences):
            guard audiences.contains(.string(configuration.audience)) else { throw .audience }
        default: throw .audience
        }
        // A token without an end would stay valid longer than every key.
        let leeway = configuration.leeway.inSeconds
        guard let expiry = Self.seconds(claims["exp"]), now.timeIntervalSince1970 < expiry + leeway else {
            throw .expired
        }
        guard expiry <= now.timeIntervalSince1970 + configuration.lifetimeMax.inSeconds + leeway else {
            throw .expiresTooLate
        }
        if let claim = claims["nbf"] {
            guard let start = Self.seconds(claim), now.timeIntervalSince1970 >= start - leeway else {
                throw .notYetValid
            }
        }
    }

    /// Whether a token of this type (`typ`) may be shown to a server; issuers also sign ID, refresh and logout tokens, some for
    /// the same audience (RFC 9068, section 4; RFC 8725, section 3.11). A token without a type is taken.
    private static func isAccessToken(_ type: JSONValue?) -> Bool {
        guard let type else { return true }
        guard case .string(let name) = type else { return false }
        return ["jwt", "at+jwt", "application/at+jwt"].contains(name.lowercased())
    }

    /// A text of 1 to 256 bytes; a whole number is taken as its digits.
    private static func user(_ claim: JSONValue?) -> String? {
        switch claim {
        case .string(let text): text.isEmpty || text.utf8.count > 256 ? nil : text
        case .number(let text): Int64(text).map(String.init)
        default: nil
        }
    }

    /// The texts of a claim; none where there is no claim.
    private static func texts(_ claim: JSONValue?) throws(TokenDefect) -> [String] {
        guard let claim, claim != .null else { return [] }
        guard case .array(let elements) = claim else { throw .promotions }
        return try elements.map { element throws(TokenDefect) in
            guard case .string(let text) = element else { throw .promotions }
            return text
        }
    }

    private static func seconds(_ claim: JSONValue?) -> Double? {
        guard case .number(let text)? = claim, let seconds = Double(text), seconds.isFinite else { return nil }
        return seconds
    }

    private static func object(_ part: ArraySlice<UInt8>) -> JSONValue? {
        guard let bytes = decode(part), let value = try? JSONValue(parsing: Array(bytes)),
            case .object(let members) = value,
            // If two members share a name, the gateway may have meant the other one (RFC 7515, section 4).
            Set(members.map { Array($0.key.utf8) }).count == members.count
        else { return nil }
        return value
    }

    /// Unpadded base64url (RFC 7515, section 2).
    private static func decode(_ part: ArraySlice<UInt8>) -> Data? {
        var text: [UInt8] = []
        text.reserveCapacity(part.count + 3)
        for byte in part {
            switch byte {
            case UInt8(ascii: "-"): text.append(UInt8(ascii: "+"))
            case UInt8(ascii: "_"): text.append(UInt8(ascii: "/"))
            case UInt8(ascii: "+"), UInt8(ascii: "/"), UInt8(ascii: "="): return nil
            default: text.append(byte)
            }
        }
        text.append(contentsOf: repeatElement(UInt8(ascii: "="), count: (4 - text.count % 4) % 4))
        return Data(base64Encoded: Data(text))
    }
}

// MARK: - Keys

extension GatewayVerifier {
    /// A PEM file holds one public key, and its type says which algorithm it is for.
    private static func keys(
        ofPEM text: String, _ allowed: Set<GatewayJWTConfiguration.Algorithm>
    ) async -> [Key] {
        // JWTKit offers its signature checks only through a collection, so each collection holds one key.
        let collection = JWTKeyCollection()
        if allowed.contains(.es256), let key = try? ES256PublicKey(pem: text) {
            await collection.add(ecdsa: key)
        } else if allowed.contains(.es384), let key = try? ES384PublicKey(pem: text) {
            await collection.add(ecdsa: key)
        } else if allowed.contains(.edDSA), let key = try? EdDSA.PublicKey(pem: text) {
            await collection.add(eddsa: key)
        } else if allowed.contains(.rs256), let key = try? Insecure.RSA.PublicKey(pem: text) {
            await collection.add(rsa: key, digestAlgorithm: .sha256)
        }
        guard let algorithm = try? await collection.getKey() else { return [] }
        return [Key(id: nil, algorithm: algorithm)]
    }

    /// Reads a JWKS document (RFC 7517, section 5). Keys of other types and uses are skipped, as the RFC asks.
    private static func keys(
        ofSet text: String, _ allowed: Set<GatewayJWTConfiguration.Algorithm>
    ) async -> [Key] {
        guard let document = try? JSONValue(parsing: Array(text.utf8)), case .array(let entries)? = document["keys"]
        else { return [] }
        var keys: [Key] = []
        for entry in entries {
            guard entry["use"] == nil || entry["use"] == .string("sig"), var jwk = try? JWK(json: entry.text),
                let algorithm = algorithm(of: entry), allowed.contains(algorithm)
            else { continue }
            let id = jwk.keyIdentifier?.string
            jwk.keyIdentifier = JWKIdentifier(string: id ?? "key")
            let collection = JWTKeyCollection()
            guard (try? await collection.add(jwk: jwk)) != nil,
                let key = try? await collection.getKey(alg: algorithm.rawValue), key.name == algorithm.rawValue
            else { continue }
            keys.append(Key(id: id, algorithm: key))
        }
        return keys
    }

    private static func algorithm(of entry: JSONValue) -> GatewayJWTConfiguration.Algorithm? {
        let byType: GatewayJWTConfiguration.Algorithm? =
            switch (entry["kty"], entry["crv"]) {
            case (.string("EC"), .string("P-256")): .es256
            case (.string("EC"), .string("P-384")): .es384
            case (.string("RSA"), _): .rs256
            case (.string("OKP"), .string("Ed25519")): .edDSA
            default: nil
            }
        guard case .string(let named)? = entry["alg"] else { return byType }
        return named == byType?.rawValue ? byType : nil
    }
}

extension GatewayVerifier {
    /// Reads the keys that a configuration names, for a process that is about to use the configuration.
    ///
    /// - Throws: `ConfigurationError` for keys that cannot be used; not retryable.
    package static func check(_ configuration: Configuration) async throws {
        if let section = configuration.gatewayJWT { _ = try await GatewayVerifier(section) }
    }
}
