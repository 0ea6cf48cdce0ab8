import Crypto
import Foundation
import Synchronization

/// The signer that the store uses now.
final class SigningChain: Sendable {
    private let current: Mutex<TransactionSigner>

    init(_ signer: TransactionSigner) { current = Mutex(signer) }

    var signer: TransactionSigner { current.withLock { $0 } }

    func replace(_ signer: TransactionSigner) { current.withLock { $0 = signer } }
}

/// Signs payloads as JWS with one chain of certificates (RFC 7515, ES256; AppleFacts 1.1).
///
/// The header is encoded once and hashed once: a signature costs the payload's hash and one P-256 operation.
struct TransactionSigner: Sendable {
    private let key: P256.Signing.PrivateKey
    /// `base64url(header).`
    private let headerAndDot: [UInt8]
    /// SHA-256 after `headerAndDot`; a value, so every signature continues its own copy.
    private let headerHash: SHA256

    /// - Parameter x5c: the certificates to show, DER, leaf first.
    init(key: P256.Signing.PrivateKey, x5c: [[UInt8]], algorithm: String = "ES256") {
        self.key = key
        let header = JSONWriter.object(capacity: 4096) { json in
            json.field("alg", algorithm)
            json.field(
                "x5c",
                array: { array in
                    for certificate in x5c { array.element(Data(certificate).base64EncodedString()) }
                })
        }
        headerAndDot = Base64URL.encode(header) + [UInt8(ascii: ".")]
        var hash = SHA256()
        hash.update(data: headerAndDot)
        headerHash = hash
    }

    init(_ authority: CertificateAuthority) throws(SimulatorError) {
        self.init(key: authority.leafKey, x5c: try authority.chainDER())
    }

    /// The three parts of a JWS over `payload`.
    func sign(_ payload: [UInt8]) throws(SimulatorError) -> String {
        let body = Base64URL.encode(payload)
        return token(body, signature: try signature(body))
    }

    /// A token whose signature belongs to another payload.
    func sign(_ payload: [UInt8], insteadOf shown: [UInt8]) throws(SimulatorError) -> String {
        token(Base64URL.encode(shown), signature: try signature(Base64URL.encode(payload)))
    }

    /// A token with one bit of the signature turned.
    func signWrongly(_ payload: [UInt8]) throws(SimulatorError) -> String {
        let body = Base64URL.encode(payload)
        var signature = try signature(body)
        signature[signature.count - 1] ^= 1
        return token(body, signature: signature)
    }

    /// A token whose signature is good, in DER.
    func signInDER(_ payload: [UInt8]) throws(SimulatorError) -> String {
        let body = Base64URL.encode(payload)
        let raw = try signature(body)
        guard let signature = try? P256.Signing.ECDSASignature(rawRepresentation: raw) else {
            throw .authority("cannot sign")
        }
        return token(body, signature: Array(signature.derRepresentation))
    }

    /// A token with an HMAC in place of the signature.
    func signWithHMAC(_ payload: [UInt8], secret: [UInt8]) -> String {
        let body = Base64URL.encode(payload)
        let code = HMAC<SHA256>.authenticationCode(for: headerAndDot + body, using: SymmetricKey(data: secret))
        return token(body, signature: Array(code))
    }

    /// A token without signature: the third part is empty.
    func leaveUnsigned(_ payload: [UInt8]) -> String {
        token(Base64URL.encode(payload), signature: [])
    }

    private func signature(_ body: [UInt8]) throws(SimulatorError) -> [UInt8] {
        var hash = headerHash
        hash.update(data: body)
        do {
            return Array(try key.signature(for: hash.finalize()).rawRepresentation)
        } catch {
            throw .authority("cannot sign")
        }
    }

    private func token(_ body: [UInt8], signature: [UInt8]) -> String {
        var bytes = headerAndDot
        bytes.reserveCapacity(headerAndDot.count + body.count + 87)
        bytes.append(contentsOf: body)
        bytes.append(UInt8(ascii: "."))
        bytes.append(contentsOf: Base64URL.encode(signature))
        return String(decoding: bytes, as: UTF8.self)
    }
}
