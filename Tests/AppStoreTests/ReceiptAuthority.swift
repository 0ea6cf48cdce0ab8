import Crypto
import CryptoExtras
import Foundation
import SwiftASN1
import X509

@testable import AppStore

/// A certificate authority shaped like the one that signs Apple's receipts: three RSA-2048 keys, the two marker
/// extensions. The keys are made once, for they take a second.
///
/// `Defect` changes exactly one thing, so that a refused receipt is refused for that thing.
struct ReceiptAuthority: Sendable {
    enum Defect: Sendable, CaseIterable {
        case leafWithoutMarker, intermediateWithoutMarker
        case intermediateNotCA, intermediateWithoutConstraints, intermediateMayNotSignCertificates, rootNotCA
        case leafMayNotSign, leafIsEC, leafUnknownCriticalExtension, intermediateUnknownCriticalExtension
        case leafExpired, leafNotYetValid, intermediateExpired, rootExpired
    }

    private struct Keys {
        let root: _RSA.Signing.PrivateKey
        let intermediate: _RSA.Signing.PrivateKey
        let leaf: _RSA.Signing.PrivateKey
        let foreignRoot: _RSA.Signing.PrivateKey
    }

    private static let keys = Result {
        let make = { try _RSA.Signing.PrivateKey(keySize: .bits2048) }
        return Keys(root: try make(), intermediate: try make(), leaf: try make(), foreignRoot: try make())
    }

    /// Leaf, intermediate, root, each DER.
    let chain: [[UInt8]]
    let leafKey: _RSA.Signing.PrivateKey
    let intermediateKey: _RSA.Signing.PrivateKey

    /// The creation date of a receipt, years ago: in the middle of every certificate's validity unless a defect says
    /// otherwise.
    static let creationDate = Date(timeIntervalSince1970: 1_530_000_000)
    private static let year: TimeInterval = 365 * 86_400

    /// - Parameters:
    ///   - isSHA1: the certificates are signed as Apple's were until 2021.
    ///   - isForeign: the same names below another root's key.
    ///   - responder: the address in the leaf at which its status is told.
    init(
        _ defect: Defect? = nil, isSHA1: Bool = false, isForeign: Bool = false, responder: String? = nil
    ) throws {
        let keys = try Self.keys.get()
        let rootKey = isForeign ? keys.foreignRoot : keys.root
        let names = try ["Root", "Intermediate", "Leaf"].map { name in
            try DistinguishedName { CommonName("Receipt Test \(name)") }
        }
        let date = Self.creationDate
        let long = date - 5 * Self.year...date + 5 * Self.year
        let past = date - 2 * Self.year...date - 1

        func certificate(
            _ key: Certificate.PublicKey, _ subject: Int, by issuerKey: _RSA.Signing.PrivateKey, _ issuer: Int,
            _ validity: ClosedRange<Date>, _ extensions: [Certificate.Extension]
        ) throws -> [UInt8] {
            try TestAuthority.der(
                Certificate(
                    version: .v3, serialNumber: .init(), publicKey: key, notValidBefore: validity.lowerBound,
                    notValidAfter: validity.upperBound, issuer: names[issuer], subject: names[subject],
                    signatureAlgorithm: isSHA1 ? .sha1WithRSAEncryption : .sha256WithRSAEncryption,
                    extensions: try Certificate.Extensions(extensions), issuerPrivateKey: .init(issuerKey)))
        }

        let root = try certificate(
            .init(rootKey.publicKey), 0, by: rootKey, 0, defect == .rootExpired ? past : long,
            [Self.constraints(isCA: defect != .rootNotCA)])
        var extensions: [Certificate.Extension] = [
            try .init(
                KeyUsage(keyCertSign: defect != .intermediateMayNotSignCertificates, cRLSign: true), critical: true)
        ]
        if defect != .intermediateWithoutConstraints {
            extensions.append(try Self.constraints(isCA: defect != .intermediateNotCA, pathLength: 0))
        }
        if defect != .intermediateWithoutMarker { extensions.append(Self.marker(TestAuthority.worldwideRelations)) }
        if defect == .intermediateUnknownCriticalExtension {
            extensions.append(Self.marker([1, 2, 3], critical: true))
        }
        let intermediate = try certificate(
            .init(keys.intermediate.publicKey), 1, by: rootKey, 0, defect == .intermediateExpired ? past : long,
            extensions)

        extensions = [
            try Self.constraints(isCA: false),
            try .init(
                defect == .leafMayNotSign ? KeyUsage(keyAgreement: true) : KeyUsage(digitalSignature: true),
                critical: true),
        ]
        if defect != .leafWithoutMarker { extensions.append(Self.marker(TestAuthority.receiptSigning)) }
        if defect == .leafUnknownCriticalExtension { extensions.append(Self.marker([1, 2, 3], critical: true)) }
        if let responder {
            let access = AuthorityInformationAccess([
                .init(method: .ocspServer, location: .uniformResourceIdentifier(responder))
            ])
            extensions.append(try .init(access, critical: false))
        }
        let leaf = try certificate(
            defect == .leafIsEC ? .init(P256.Signing.PrivateKey().publicKey) : .init(keys.leaf.publicKey), 2,
            by: keys.intermediate, 1,
            defect == .leafExpired
                ? past : defect == .leafNotYetValid ? date + 1...date + Self.year : date - Self.year...date + Self.year,
            extensions)

        chain = [leaf, intermediate, root]
        leafKey = keys.leaf
        intermediateKey = keys.intermediate
    }

    func verifier(
        environments: Set<StoreEnvironment> = [.production, .sandbox], bundleId: String = Payload.bundleId,
        aliases: [String] = [], acceptsXcode: Bool = false, revocation: RevocationCheck? = nil
    ) throws -> AppReceiptVerifier {
        AppReceiptVerifier(
            app: try AppIdentity(
                bundleId: bundleId, bundleIdAliases: aliases, environments: environments,
                acceptsUnsignedXcodeData: acceptsXcode),
            anchors: try TrustAnchors(rootCertificates: [chain[2]], acceptAppleRoots: false),
            revocation: revocation, now: { Self.creationDate })
    }

    private static func marker(_ oid: ASN1ObjectIdentifier, critical: Bool = false) -> Certificate.Extension {
        Certificate.Extension(oid: oid, critical: critical, value: [0x05, 0x00])
    }

    private static func constraints(isCA: Bool, pathLength: Int? = nil) throws -> Certificate.Extension {
        try .init(
            isCA ? BasicConstraints.isCertificateAuthority(maxPathLength: pathLength) : .notCertificateAuthority,
            critical: true)
    }
}

/// The bytes of a receipt; a test can change every part.
struct ReceiptBytes {
    static let signedDataOID: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x02]
    static let dataOID: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x01]
    static let sha1OID: [UInt8] = [0x2B, 0x0E, 0x03, 0x02, 0x1A]
    static let sha256OID: [UInt8] = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]
    static let rsaOID: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01]

    var contentOID = dataOID
    var content: [UInt8]
    var certificates: [[UInt8]]
    /// The certificate that the SignerInfo names.
    var signer: [UInt8]
    var digestOID: [UInt8]
    var signedAttributes: [UInt8] = []
    var signature: [UInt8]
    var isIndefinite = false

    /// - Parameter signed: the bytes that are signed, if they are not the content.
    init(
        _ content: [UInt8], _ authority: ReceiptAuthority, isSHA1: Bool = false, signed: [UInt8]? = nil
    ) throws {
        self.content = content
        certificates = authority.chain
        signer = authority.chain[0]
        digestOID = isSHA1 ? Self.sha1OID : Self.sha256OID
        let signed = signed ?? content
        let signature =
            isSHA1
            ? try authority.leafKey.signature(for: Insecure.SHA1.hash(data: signed), padding: .insecurePKCS1v1_5)
            : try authority.leafKey.signature(for: SHA256.hash(data: signed), padding: .insecurePKCS1v1_5)
        self.signature = Array(signature.rawRepresentation)
    }

    var encoded: [UInt8] {
        let digest = Self.element(0x30, Self.element(0x06, digestOID), [5, 0])
        let signerInfo = Self.element(
            0x30, [2, 1, 1], signerName, digest, signedAttributes,
            Self.element(0x30, Self.element(0x06, Self.rsaOID), [5, 0]),
            Self.element(0x04, signature))
        let octets =
            isIndefinite
            ? outer(0x24, [4, 2] + content.prefix(2), Self.element(0x04, Array(content.dropFirst(2))))
            : Self.element(0x04, content)
        let signedData = outer(
            0x30, [2, 1, 1], Self.element(0x31, digest),
            outer(0x30, Self.element(0x06, contentOID), outer(0xA0, octets)),
            Self.element(0xA0, Array(certificates.joined())), Self.element(0x31, signerInfo))
        return outer(0x30, Self.element(0x06, Self.signedDataOID), outer(0xA0, signedData))
    }

    var base64: String { Data(encoded).base64EncodedString() }

    static func element(_ tag: UInt8, _ contents: [UInt8]...) -> [UInt8] {
        let joined = Self.joined(contents)
        let length = withUnsafeBytes(of: joined.count.bigEndian) { Array($0.drop { $0 == 0 }) }
        return [tag] + (joined.count < 0x80 ? [UInt8(joined.count)] : [0x80 | UInt8(length.count)] + length) + joined
    }

    private func outer(_ tag: UInt8, _ contents: [UInt8]...) -> [UInt8] {
        let joined = Self.joined(contents)
        return isIndefinite ? [tag, 0x80] + joined + [0, 0] : Self.element(tag, joined)
    }

    /// `joined()` would take seconds for megabytes in a debug build.
    static func joined(_ parts: [[UInt8]]) -> [UInt8] { parts.reduce(into: []) { $0.append(contentsOf: $1) } }

    private var signerName: [UInt8] {
        guard let parts = (try? DER.parse(signer)).flatMap(Self.children),
            let fields = parts.first.flatMap(Self.children), fields.count > 3
        else { return Self.element(0x30, [0x30, 0], [2, 1, 1]) }
        return Self.element(0x30, Array(fields[3].encodedBytes), Array(fields[1].encodedBytes))
    }

    private static func children(_ node: ASN1Node) -> [ASN1Node]? {
        if case .constructed(let nodes) = node.content { Array(nodes) } else { nil }
    }
}

/// A receipt's content, attribute by attribute.
enum ReceiptAttributes {
    static func attribute(_ type: Int, _ value: [UInt8]) -> [UInt8] {
        ReceiptBytes.element(0x30, integer(type), [2, 1, 1], ReceiptBytes.element(0x04, value))
    }

    static func integer(_ value: Int) -> [UInt8] {
        var serializer = DER.Serializer()
        try? serializer.serialize(value)
        return serializer.serializedBytes
    }

    static func text(_ type: Int, _ text: String) -> [UInt8] {
        attribute(type, ReceiptBytes.element(0x0C, Array(text.utf8)))
    }

    static func date(_ type: Int, _ text: String) -> [UInt8] {
        attribute(type, ReceiptBytes.element(0x16, Array(text.utf8)))
    }

    static func number(_ type: Int, _ value: Int) -> [UInt8] { attribute(type, integer(value)) }

    static func set(_ attributes: [[UInt8]]) -> [UInt8] { ReceiptBytes.element(0x31, ReceiptBytes.joined(attributes)) }

    static func purchase(_ id: String) -> [UInt8] {
        attribute(17, set([text(1702, "com.example.game.coins6"), text(1703, id)]))
    }

    /// A receipt with the date of ``ReceiptAuthority/creationDate`` and one purchase.
    static func content(
        bundleId: String = Payload.bundleId, type: String = "Production", date: String = "2018-06-26T08:00:00Z",
        more: [[UInt8]] = [purchase("1000000000000001")]
    ) -> [UInt8] {
        set([text(0, type), text(2, bundleId), text(3, "1.2"), Self.date(12, date)] + more)
    }
}

extension AppReceiptVerifier {
    /// The reason why a receipt is not read or not believed; nil if it is.
    func refusal(of receipt: String, at date: Date? = nil) async -> ReceiptFailure? {
        do throws(ReceiptFailure) {
            _ = try await self.receipt(receipt, at: date)
            return nil
        } catch {
            return error
        }
    }
}
