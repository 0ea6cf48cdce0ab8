import Crypto
import Foundation
import SwiftASN1
import X509

/// The simulator's own chain in the shape of Apple's: root (P-384), intermediate (P-384), leaf (P-256).
///
/// Shape: AppleFacts 1.2 step 8 and 1.5 (marker extensions with an ASN.1 NULL, intermediate with path length 0).
/// Validity: root and intermediate 10 years back and 20 ahead, leaf 2 years either way, so that purchases may be
/// dated back by two years and still verify at their signedDate.
struct CertificateAuthority: Sendable {
    /// The marker of an App Store receipt signing leaf.
    static let leafMarker: ASN1ObjectIdentifier = [1, 2, 840, 113_635, 100, 6, 11, 1]
    /// The marker of Apple's Worldwide Developer Relations intermediate.
    static let intermediateMarker: ASN1ObjectIdentifier = [1, 2, 840, 113_635, 100, 6, 2, 1]

    private static let year: TimeInterval = 365 * 86_400

    let root: Certificate
    let rootKey: P384.Signing.PrivateKey
    let intermediate: Certificate
    let intermediateKey: P384.Signing.PrivateKey
    let leaf: Certificate
    let leafKey: P256.Signing.PrivateKey

    /// When the leaf ends, UNIX milliseconds.
    var leafEnd: Int64 { Int64(leaf.notValidAfter.timeIntervalSince1970 * 1000) }

    /// Makes three new keys and certificates. `name` stands in the subjects.
    static func make(name: String = "Makegood Simulator") throws(SimulatorError) -> CertificateAuthority {
        do {
            let now = Date()
            let rootKey = P384.Signing.PrivateKey()
            let rootName = try DistinguishedName {
                CommonName("\(name) Root CA")
                OrganizationName(name)
            }
            let root = try Certificate(
                version: .v3,
                serialNumber: .init(),
                publicKey: .init(rootKey.publicKey),
                notValidBefore: now - 10 * year,
                notValidAfter: now + 20 * year,
                issuer: rootName,
                subject: rootName,
                signatureAlgorithm: .ecdsaWithSHA384,
                extensions: try .init {
                    Critical(BasicConstraints.isCertificateAuthority(maxPathLength: nil))
                    Critical(KeyUsage(keyCertSign: true, cRLSign: true))
                    SubjectKeyIdentifier(hash: .init(rootKey.publicKey))
                },
                issuerPrivateKey: .init(rootKey)
            )
            let intermediateKey = P384.Signing.PrivateKey()
            let intermediate = try makeIntermediate(
                name: name, key: intermediateKey, root: root, rootKey: rootKey, marked: true)
            let leafKey = P256.Signing.PrivateKey()
            let leaf = try makeLeaf(
                key: leafKey, issuer: intermediate, issuerKey: intermediateKey, marked: true,
                validity: now - 2 * year...now + 2 * year)
            return CertificateAuthority(
                root: root, rootKey: rootKey, intermediate: intermediate, intermediateKey: intermediateKey,
                leaf: leaf, leafKey: leafKey)
        } catch {
            throw .authority("cannot make certificates")
        }
    }

    /// The same root and intermediate with a new leaf.
    func renewingLeaf(
        marked: Bool = true,
        validity: ClosedRange<Date>? = nil
    ) throws(SimulatorError) -> CertificateAuthority {
        do {
            let key = P256.Signing.PrivateKey()
            let now = Date()
            let leaf = try Self.makeLeaf(
                key: key, issuer: intermediate, issuerKey: intermediateKey, marked: marked,
                validity: validity ?? now - 2 * Self.year...now + 2 * Self.year)
            return CertificateAuthority(
                root: root, rootKey: rootKey, intermediate: intermediate, intermediateKey: intermediateKey,
                leaf: leaf, leafKey: key)
        } catch {
            throw .authority("cannot make a leaf")
        }
    }

    /// The same keys below the same root, with an intermediate and a leaf that name their responders: `url`, followed
    /// by `/intermediate` and `/leaf`.
    func naming(responder url: String) throws(SimulatorError) -> CertificateAuthority {
        do {
            let intermediate = try Self.makeIntermediate(
                name: "Makegood Simulator", key: intermediateKey, root: root, rootKey: rootKey, marked: true,
                responder: "\(url)/intermediate")
            let leaf = try Self.makeLeaf(
                key: leafKey, issuer: intermediate, issuerKey: intermediateKey, marked: true,
                validity: leaf.notValidBefore...leaf.notValidAfter, responder: "\(url)/leaf")
            return CertificateAuthority(
                root: root, rootKey: rootKey, intermediate: intermediate, intermediateKey: intermediateKey,
                leaf: leaf, leafKey: leafKey)
        } catch {
            throw .authority("cannot name a responder")
        }
    }

    /// A leaf that ended a year ago.
    func expired() throws(SimulatorError) -> CertificateAuthority {
        let now = Date()
        return try renewingLeaf(validity: now - 3 * Self.year...now - Self.year)
    }

    /// The same root with an intermediate that lacks Apple's marker, or is no authority, and a good leaf below it.
    func withIntermediate(
        marked: Bool = true, isAuthority: Bool = true
    ) throws(SimulatorError) -> CertificateAuthority {
        do {
            let key = P384.Signing.PrivateKey()
            let plain = try Self.makeIntermediate(
                name: "Makegood Simulator", key: key, root: root, rootKey: rootKey, marked: marked,
                isAuthority: isAuthority)
            return try CertificateAuthority(
                root: root, rootKey: rootKey, intermediate: plain, intermediateKey: key, leaf: leaf, leafKey: leafKey
            ).renewingLeaf()
        } catch {
            throw .authority("cannot make an intermediate")
        }
    }

    /// The chain as it stands in `x5c`: leaf, intermediate, root, each DER.
    func chainDER() throws(SimulatorError) -> [[UInt8]] {
        do {
            return try [leaf, intermediate, root].map { certificate in
                var serializer = DER.Serializer()
                try serializer.serialize(certificate)
                return serializer.serializedBytes
            }
        } catch {
            throw .authority("cannot serialise certificates")
        }
    }

    private static func makeIntermediate(
        name: String,
        key: P384.Signing.PrivateKey,
        root: Certificate,
        rootKey: P384.Signing.PrivateKey,
        marked: Bool,
        isAuthority: Bool = true,
        responder: String? = nil
    ) throws -> Certificate {
        let subject = try DistinguishedName {
            CommonName("\(name) Developer Relations Certification Authority")
            OrganizationName(name)
        }
        return try Certificate(
            version: .v3,
            serialNumber: .init(),
            publicKey: .init(key.publicKey),
            notValidBefore: root.notValidBefore,
            notValidAfter: root.notValidAfter,
            issuer: root.subject,
            subject: subject,
            signatureAlgorithm: .ecdsaWithSHA384,
            extensions: try .init {
                Critical(
                    isAuthority
                        ? BasicConstraints.isCertificateAuthority(maxPathLength: 0) : .notCertificateAuthority)
                Critical(KeyUsage(keyCertSign: true, cRLSign: true))
                AuthorityKeyIdentifier(keyIdentifier: SubjectKeyIdentifier(hash: root.publicKey).keyIdentifier)
                SubjectKeyIdentifier(hash: .init(key.publicKey))
                if marked { marker(intermediateMarker) }
                if let responder { access(to: responder) }
            },
            issuerPrivateKey: .init(rootKey)
        )
    }

    private static func makeLeaf(
        key: P256.Signing.PrivateKey,
        issuer: Certificate,
        issuerKey: P384.Signing.PrivateKey,
        marked: Bool,
        validity: ClosedRange<Date>,
        responder: String? = nil
    ) throws -> Certificate {
        let subject = try DistinguishedName {
            CommonName("Makegood Simulator Receipt Signing")
            OrganizationName("Makegood Simulator")
        }
        return try Certificate(
            version: .v3,
            serialNumber: .init(),
            publicKey: .init(key.publicKey),
            notValidBefore: validity.lowerBound,
            notValidAfter: validity.upperBound,
            issuer: issuer.subject,
            subject: subject,
            signatureAlgorithm: .ecdsaWithSHA384,
            extensions: try .init {
                Critical(BasicConstraints.notCertificateAuthority)
                Critical(KeyUsage(digitalSignature: true))
                AuthorityKeyIdentifier(keyIdentifier: SubjectKeyIdentifier(hash: issuer.publicKey).keyIdentifier)
                SubjectKeyIdentifier(hash: .init(key.publicKey))
                if marked { marker(leafMarker) }
                if let responder { access(to: responder) }
            },
            issuerPrivateKey: .init(issuerKey)
        )
    }

    private static func access(to responder: String) -> AuthorityInformationAccess {
        AuthorityInformationAccess([.init(method: .ocspServer, location: .uniformResourceIdentifier(responder))])
    }

    /// A non-critical extension whose value is ASN.1 NULL, as on Apple's certificates.
    static func marker(_ oid: ASN1ObjectIdentifier) -> Certificate.Extension {
        Certificate.Extension(oid: oid, critical: false, value: [0x05, 0x00])
    }
}
