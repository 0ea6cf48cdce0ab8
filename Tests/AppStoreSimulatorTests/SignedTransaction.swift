import AppStore
import Crypto
import Foundation
import SwiftASN1
import Testing

@_spi(FixedExpiryValidationTime) import X509

/// Checks a JWS with swift-certificates and Crypto alone: it shares no line with the simulator.
struct SignedTransaction {
    let header: [String: Any]
    let payload: [String: Any]
    /// The entries of `x5c` that are certificates.
    let chain: [Certificate]
    private let x5c: [String]
    private let token: String

    init(_ token: String) throws {
        self.token = token
        let parts = token.split(separator: ".", omittingEmptySubsequences: false)
        try #require(parts.count == 3)
        header = try #require(try JSONSerialization.jsonObject(with: base64URLDecoded(parts[0])) as? [String: Any])
        payload = try #require(try JSONSerialization.jsonObject(with: base64URLDecoded(parts[1])) as? [String: Any])
        x5c = try #require(header["x5c"] as? [String])
        chain = x5c.compactMap { text in
            Data(base64Encoded: text).flatMap { try? Certificate(derEncoded: Array($0)) }
        }
    }

    func string(_ key: String) -> String? { payload[key] as? String }
    func int(_ key: String) -> Int64? { (payload[key] as? NSNumber)?.int64Value }

    /// The first defect found; nil: the token is good.
    func defect(root: [UInt8], at date: Date = Date()) async throws -> String? {
        guard header["alg"] as? String == "ES256" else { return "alg" }
        guard x5c.count == 3 else { return "chain length" }
        guard chain.count == 3 else { return "certificate" }
        guard hasMarker(chain[0], [1, 2, 840, 113_635, 100, 6, 11, 1]) else { return "leaf oid" }
        guard hasMarker(chain[1], [1, 2, 840, 113_635, 100, 6, 2, 1]) else { return "intermediate oid" }
        let anchor = try Certificate(derEncoded: root)
        guard chain[0].notValidBefore <= date, date <= chain[0].notValidAfter else { return "expired" }
        var verifier = Verifier(rootCertificates: CertificateStore([anchor])) {
            RFC5280Policy(fixedExpiryValidationTime: date)
        }
        guard
            case .validCertificate = await verifier.validate(
                leaf: chain[0], intermediates: CertificateStore([chain[1]]))
        else { return "chain" }
        let parts = token.split(separator: ".", omittingEmptySubsequences: false)
        let key = try #require(P256.Signing.PublicKey(chain[0].publicKey))
        guard
            let signature = try? P256.Signing.ECDSASignature(rawRepresentation: base64URLDecoded(parts[2])),
            key.isValidSignature(signature, for: Data("\(parts[0]).\(parts[1])".utf8))
        else { return "signature" }
        return nil
    }

    private func hasMarker(_ certificate: Certificate, _ oid: ASN1ObjectIdentifier) -> Bool {
        certificate.extensions[oid: oid].map { Array($0.value) == [5, 0] && !$0.critical } ?? false
    }
}
