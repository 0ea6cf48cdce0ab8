import Crypto
import CryptoExtras
import Foundation
import SwiftASN1
import Synchronization
import X509

/// What a legacy receipt of this simulator says: whose it is and which purchases it shows, in that order.
struct ReceiptContents: Equatable {
    let bundleId: String
    let environment: StoreEnvironment
    /// UNIX milliseconds; a receipt says whole seconds.
    let createdAt: Int64
    let transactionIds: [String]
    /// True: the answer of verifyReceipt has no `in_app` at all (an empty list is another thing).
    let omitsInApp: Bool
    /// Further bytes of the opaque value, all zero.
    var paddingBytes = 0
}

/// How a receipt is written.
package enum ReceiptStyle: String, Codable, Sendable, CaseIterable {
    /// As Apple's since 2023: DER, digest SHA-256.
    case sha256
    /// As Apple's before: DER, digest SHA-1.
    case sha1
    /// As ``sha256``, with indefinite lengths and an octet string in segments.
    case ber
    /// As Xcode's: such BER, signed by a certificate of its own, and without transaction ids.
    case xcode
}

/// Writes receipts in PKCS#7 as Apple's are (AppleFacts 6), and reads its own.
///
/// verifyReceipt looks prices, refunds and dates up in the ledger, so its answer about a receipt made before a refund
/// shows the refund. The receipt itself holds what was known when it was made.
final class ReceiptFormat: Sendable {
    /// Why a receipt is refused.
    enum Refusal: Error {
        /// Not base64, or not a receipt's structure: status 21002.
        case malformed
        /// A receipt, but not signed by this store: status 21003.
        case notAuthentic
    }

    private let authority = Mutex<ReceiptSigner?>(nil)
    private let makeAuthority: @Sendable () throws(SimulatorError) -> ReceiptSigner

    /// - Parameter makeAuthority: called with the first receipt; RSA keys take long to make.
    init(makeAuthority: @escaping @Sendable () throws(SimulatorError) -> ReceiptSigner) {
        self.makeAuthority = makeAuthority
    }

    /// - Parameter purchases: those of `contents.transactionIds`, in that order.
    /// - Returns: base64. Takes about a millisecond, for the signature.
    func seal(
        _ contents: ReceiptContents, _ purchases: [Purchase], style: ReceiptStyle
    ) throws(SimulatorError) -> String {
        let authority = try signingAuthority()
        do {
            let payload = ReceiptPayload(contents: contents, purchases: purchases, isXcode: style == .xcode).encoded
            let der = try container(payload, style, authority)
            return Data(der).base64EncodedString()
        } catch {
            throw .authority("cannot sign a receipt")
        }
    }

    func open(_ receipt: String) throws(Refusal) -> ReceiptContents {
        guard let authority = try? signingAuthority(), let bytes = Data(base64Encoded: receipt),
            let container = try? ReceiptContainer(Array(bytes))
        else { throw .malformed }
        let signature = _RSA.Signing.RSASignature(rawRepresentation: container.signature)
        let key = authority.leafKey.publicKey
        let isSigned =
            container.isSHA1
            ? key.isValidSignature(
                signature, for: Insecure.SHA1.hash(data: container.content), padding: .insecurePKCS1v1_5)
            : key.isValidSignature(signature, for: SHA256.hash(data: container.content), padding: .insecurePKCS1v1_5)
        guard container.certificates == authority.chain, isSigned,
            let contents = ReceiptPayload.contents(container.content)
        else { throw .notAuthentic }
        return contents
    }

    private func signingAuthority() throws(SimulatorError) -> ReceiptSigner {
        try authority.withLock { authority throws(SimulatorError) in
            if let authority { return authority }
            let made = try makeAuthority()
            authority = made
            return made
        }
    }

    private func container(
        _ payload: [UInt8], _ style: ReceiptStyle, _ authority: ReceiptSigner
    ) throws -> [UInt8] {
        let key = authority.leafKey
        let signature =
            style == .sha1
            ? try key.signature(for: Insecure.SHA1.hash(data: payload), padding: .insecurePKCS1v1_5)
            : try key.signature(for: SHA256.hash(data: payload), padding: .insecurePKCS1v1_5)
        let signer = style == .xcode ? authority.xcode : authority.leaf
        let certificates = style == .xcode ? [try ReceiptSigner.der(signer)] : authority.chain
        let der = BERWriter.der
        let outer = BERWriter(isIndefinite: style == .ber || style == .xcode)
        let null: [UInt8] = [0x05, 0x00]
        let digest = der.element(0x30, style == .sha1 ? ReceiptContainer.sha1 : ReceiptContainer.sha256, null)
        let signerInfo = der.element(
            0x30, der.integer(1), try ReceiptContainer.name(of: signer), digest,
            der.element(0x30, ReceiptContainer.rsa, null), der.octetString(Array(signature.rawRepresentation)))
        let signedData = outer.element(
            0x30, der.integer(1), der.element(0x31, digest),
            outer.element(0x30, ReceiptContainer.data, outer.element(0xA0, outer.octetString(payload))),
            der.element(0xA0, certificates), der.element(0x31, signerInfo))
        return outer.element(0x30, ReceiptContainer.signedData, outer.element(0xA0, signedData))
    }
}

/// The PKCS#7 around a receipt, read with SwiftASN1, which is not the reader under test.
private struct ReceiptContainer {
    let content: [UInt8]
    let certificates: [[UInt8]]
    let isSHA1: Bool
    let signature: [UInt8]

    // Object identifiers, encoded: pkcs7-signedData, pkcs7-data, sha1, sha256, rsaEncryption.
    static let signedData: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x02]
    static let data: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x01]
    static let sha1: [UInt8] = [0x06, 0x05, 0x2B, 0x0E, 0x03, 0x02, 0x1A]
    static let sha256: [UInt8] = [0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]
    static let rsa: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01]

    init(_ bytes: [UInt8]) throws {
        let contentInfo = try Self.children(BER.parse(bytes), .sequence, atLeast: 2)
        guard contentInfo[0].encodedBytes.elementsEqual(Self.signedData) else { throw Misfit() }
        let tagged = try Self.children(contentInfo[1], .tagged0, atLeast: 1)
        let signedData = try Self.children(tagged[0], .sequence, atLeast: 5)
        let encapsulated = try Self.children(signedData[2], .sequence, atLeast: 2)
        let octets = try Self.children(encapsulated[1], .tagged0, atLeast: 1)
        content = Array(try ASN1OctetString(berEncoded: octets[0]).bytes)
        certificates = try Self.children(signedData[3], .tagged0, atLeast: 1).map { Array($0.encodedBytes) }
        let signerInfo = try Self.children(
            Self.children(signedData[4], .set, atLeast: 1)[0], .sequence, atLeast: 5)
        isSHA1 = try Self.children(signerInfo[2], .sequence, atLeast: 1)[0].encodedBytes.elementsEqual(Self.sha1)
        signature = Array(try ASN1OctetString(berEncoded: signerInfo[4]).bytes)
    }

    /// Issuer and serial number of a certificate, as a SignerInfo names its signer.
    static func name(of certificate: Certificate) throws -> [UInt8] {
        let parts = try children(DER.parse(ReceiptSigner.der(certificate)), .sequence, atLeast: 3)
        let fields = try children(parts[0], .sequence, atLeast: 4)
        return BERWriter.der.element(0x30, Array(fields[3].encodedBytes), Array(fields[1].encodedBytes))
    }

    struct Misfit: Error {}

    static func children(_ node: ASN1Node, _ tag: ASN1Identifier, atLeast count: Int) throws -> [ASN1Node] {
        guard node.identifier == tag, case .constructed(let nodes) = node.content else { throw Misfit() }
        let children = Array(nodes)
        guard children.count >= count else { throw Misfit() }
        return children
    }
}

extension ASN1Identifier {
    fileprivate static let tagged0 = ASN1Identifier(tagWithNumber: 0, tagClass: .contextSpecific)
}

/// The attributes of a receipt (AppleFacts 6.3).
private struct ReceiptPayload {
    let contents: ReceiptContents
    let purchases: [Purchase]
    let isXcode: Bool

    /// Attribute types of our own, far from Apple's: ``ReceiptContents/omitsInApp``, and the place of its purchases
    /// instead of 17.
    private static let omitsInApp: Int64 = 90_001
    private static let omittedInApp: Int64 = 90_017
    private static let der = BERWriter.der

    var encoded: [UInt8] {
        let isSandbox = contents.environment == .sandbox
        let type = isXcode ? "Xcode" : isSandbox ? "ProductionSandbox" : "Production"
        var attributes = [
            Self.text(0, type), Self.text(2, contents.bundleId), Self.text(3, "1"),
            Self.attribute(
                4,
                (0..<16).map { _ in UInt8.random(in: .min ... .max) }
                    + [UInt8](repeating: 0, count: contents.paddingBytes)),
            Self.attribute(5, (0..<20).map { _ in UInt8.random(in: .min ... .max) }),
            Self.date(12, contents.createdAt), Self.text(19, "1.0"),
        ]
        // The sandbox gives this date for every app (AppleFacts 6.3).
        if isSandbox { attributes.append(Self.date(18, 1_375_340_400_000)) }
        let inAppType = contents.omitsInApp ? Self.omittedInApp : 17
        attributes += purchases.map { Self.attribute(inAppType, inApp($0)) }
        if contents.omitsInApp { attributes.append(Self.attribute(Self.omitsInApp, [])) }
        return Self.der.element(0x31, attributes)
    }

    private func inApp(_ purchase: Purchase) -> [UInt8] {
        var attributes = [
            Self.number(1701, Int64(purchase.quantity)), Self.text(1702, purchase.productId),
            Self.text(1703, isXcode ? "0" : purchase.transactionId), Self.date(1704, purchase.purchaseDate),
            // Apple leaves nothing out: a missing date is an empty string.
            Self.date(1708, purchase.expiresDate), Self.date(1712, purchase.revocationDate), Self.number(1719, 0),
        ]
        if !isXcode {
            let types: [ProductType] = [.nonConsumable, .consumable, .nonRenewing, .autoRenewable]
            attributes += [
                Self.text(1705, purchase.originalTransactionId), Self.date(1706, purchase.originalPurchaseDate),
                Self.number(1707, Int64(types.firstIndex(of: purchase.type) ?? 0)),
                Self.number(1711, purchase.webOrderLineItemId.flatMap { Int64($0) } ?? 0),
            ]
        }
        return Self.der.element(0x31, attributes)
    }

    private static func attribute(_ type: Int64, _ value: [UInt8]) -> [UInt8] {
        der.element(0x30, der.integer(type), der.integer(1), der.octetString(value))
    }

    private static func text(_ type: Int64, _ text: String) -> [UInt8] { attribute(type, der.utf8String(text)) }

    private static func number(_ type: Int64, _ number: Int64) -> [UInt8] { attribute(type, der.integer(number)) }

    private static func date(_ type: Int64, _ milliseconds: Int64?) -> [UInt8] {
        attribute(type, der.ia5String(milliseconds.map { AppleDate(milliseconds: $0).rfc3339 } ?? ""))
    }

    /// Reads what ``encoded`` wrote; nil: something else.
    static func contents(_ payload: [UInt8]) -> ReceiptContents? {
        guard let attributes = try? attributes(payload), let bundleId = text(attributes[2]?.first),
            let type = text(attributes[0]?.first),
            let createdAt = text(attributes[12]?.first).flatMap(AppleDate.init(rfc3339:))
        else { return nil }
        let ids = (attributes[17] ?? attributes[omittedInApp] ?? []).map { inApp in
            (try? Self.attributes(inApp)).flatMap { text($0[1703]?.first) }
        }
        guard !ids.contains(nil) else { return nil }
        return ReceiptContents(
            bundleId: bundleId, environment: type == "ProductionSandbox" ? .sandbox : .production,
            createdAt: createdAt.milliseconds, transactionIds: ids.compactMap { $0 },
            omitsInApp: attributes[omitsInApp] != nil)
    }

    /// The values by type, in order.
    private static func attributes(_ set: [UInt8]) throws -> [Int64: [[UInt8]]] {
        var values: [Int64: [[UInt8]]] = [:]
        for node in try ReceiptContainer.children(BER.parse(set), .set, atLeast: 0) {
            let parts = try ReceiptContainer.children(node, .sequence, atLeast: 3)
            let value = Array(try ASN1OctetString(berEncoded: parts[2]).bytes)
            values[try Int64(berEncoded: parts[0]), default: []].append(value)
        }
        return values
    }

    private static func text(_ value: [UInt8]?) -> String? {
        guard let value, let node = try? BER.parse(value), case .primitive(let bytes) = node.content else { return nil }
        return String(validating: bytes, as: UTF8.self)
    }
}
