import Crypto
import Foundation
import SwiftASN1
import X509

/// A certificate and its issuers, about which a responder is asked. Made only of chains that led to an anchor.
struct CertificateIssue: Sendable {
    let certificate: Certificate
    /// Its issuer, and so on, without the root.
    let intermediates: [Certificate]
    let root: Certificate
    /// SHA-256 over the certificate and its issuer, DER: it names this certificate and no other.
    let id: [UInt8]
    /// Whether the certificate names a responder. Where its issuer named none, there is nobody to ask.
    let namesResponder: Bool

    /// - Parameter chain: the certificate, its issuer, and so on to the anchor; at least two.
    init(_ chain: [Certificate]) throws {
        certificate = chain[0]
        intermediates = Array(chain[1..<(chain.count - 1)])
        root = chain[chain.count - 1]
        var hash = SHA256()
        for certificate in chain.prefix(2) {
            var serializer = DER.Serializer()
            try serializer.serialize(certificate)
            hash.update(data: serializer.serializedBytes)
        }
        id = Array(hash.finalize())
        namesResponder = Self.namesResponder(chain[0])
    }

    /// Whether a responder can be asked. Responders may forget certificates that have ended: an ended certificate is
    /// judged by the date of the data that it signed.
    func isAskable(at now: Date) -> Bool { namesResponder && now <= certificate.notValidAfter }

    /// Whether the authority information access names a responder. True if that extension cannot be read: no responder
    /// is passed over.
    static func namesResponder(_ certificate: Certificate) -> Bool {
        guard let access = try? certificate.extensions.authorityInformationAccess else {
            return certificate.extensions[oid: .X509ExtensionID.authorityInformationAccess] != nil
        }
        return access.contains { $0.method == .ocspServer }
    }
}
