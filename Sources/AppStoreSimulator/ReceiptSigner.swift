import Crypto
import CryptoExtras
import Foundation
import SwiftASN1
import X509

/// The certificates that receipts are signed with, in the shape of Apple's: an RSA-2048 leaf and an RSA-2048
/// intermediate.
///
/// Apple has a root for receipts and another for signed data. Here both hang below the one root of the simulator, so
/// that a configuration's `rootCertificates` needs one file. Both last as long as that root: receipts may be dated back
/// as far as they like.
struct ReceiptSigner: Sendable {
    let intermediate: Certificate
    let leaf: Certificate
    let leafKey: _RSA.Signing.PrivateKey
    /// The certificate of receipts that Xcode makes: self-signed, one for all.
    let xcode: Certificate
    /// Leaf, intermediate and root, DER, as they stand in a receipt.
    let chain: [[UInt8]]

    /// The two keys: making each takes a tenth of a second and more.
    struct Keys: Sendable {
        let intermediate: _RSA.Signing.PrivateKey
        let leaf: _RSA.Signing.PrivateKey

        static func make() throws(SimulatorError) -> Keys {
            do {
                return Keys(intermediate: try .init(keySize: .bits2048), leaf: try .init(keySize: .bits2048))
            } catch {
                throw .authority("cannot make RSA keys")
            }
        }

        /// The keys of simulators that keep nothing: made once for all of this process. Each such simulator has its own
        /// root, so none accepts another's receipts.
        static let ofThisProcess = Result { () throws(SimulatorError) in try make() }
    }

    static func make(below authority: CertificateAuthority, keys: Keys) throws(SimulatorError) -> ReceiptSigner {
        do {
            let root = authority.root
            let intermediate = try certificate(
                .init { CommonName("Makegood Simulator Receipt Relations Certification Authority") },
                keys.intermediate.publicKey,
                issuer: root.subject, issuerKey: .init(authority.rootKey), validity: root,
                extensions: .init {
                    Critical(BasicConstraints.isCertificateAuthority(maxPathLength: 0))
                    Critical(KeyUsage(keyCertSign: true, cRLSign: true))
                    CertificateAuthority.marker(CertificateAuthority.intermediateMarker)
                })
            let leaf = try certificate(
                .init { CommonName("Makegood Simulator Store Receipt Signing") }, keys.leaf.publicKey,
                issuer: intermediate.subject,
                issuerKey: .init(keys.intermediate), validity: root,
                extensions: .init {
                    Critical(BasicConstraints.notCertificateAuthority)
                    Critical(KeyUsage(digitalSignature: true))
                    CertificateAuthority.marker(CertificateAuthority.leafMarker)
                })
            return try ReceiptSigner(root: root, intermediate: intermediate, leaf: leaf, leafKey: keys.leaf)
        } catch let error as SimulatorError {
            throw error
        } catch {
            throw .authority("cannot make certificates for receipts")
        }
    }

    init(
        root: Certificate, intermediate: Certificate, leaf: Certificate, leafKey: _RSA.Signing.PrivateKey
    ) throws(SimulatorError) {
        guard leaf.publicKey == .init(leafKey.publicKey), intermediate.issuer == root.subject else {
            throw .authority("the certificates for receipts do not belong together")
        }
        do {
            let name = try DistinguishedName { CommonName("StoreKit") }
            xcode = try Self.certificate(
                name, leafKey.publicKey, issuer: name, issuerKey: .init(leafKey), validity: root,
                extensions: .init { Critical(BasicConstraints.isCertificateAuthority(maxPathLength: nil)) })
            chain = try [leaf, intermediate, root].map { try Self.der($0) }
        } catch {
            throw .authority("cannot serialise the certificates for receipts")
        }
        self.intermediate = intermediate
        self.leaf = leaf
        self.leafKey = leafKey
    }

    static func der(_ value: some DERSerializable) throws -> [UInt8] {
        var serializer = DER.Serializer()
        try serializer.serialize(value)
        return serializer.serializedBytes
    }

    private static func certificate(
        _ subject: DistinguishedName, _ key: _RSA.Signing.PublicKey, issuer: DistinguishedName,
        issuerKey: Certificate.PrivateKey, validity root: Certificate, extensions: Certificate.Extensions
    ) throws -> Certificate {
        try Certificate(
            version: .v3, serialNumber: .init(), publicKey: .init(key), notValidBefore: root.notValidBefore,
            notValidAfter: root.notValidAfter, issuer: issuer, subject: subject,
            extensions: extensions, issuerPrivateKey: issuerKey)
    }
}
