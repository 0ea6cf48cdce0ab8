import Crypto
import Foundation
import SwiftASN1
import X509

@testable import AppStore

/// A certificate authority shaped like Apple's: root and intermediate P-384, leaf P-256, the two marker extensions.
///
/// `Defect` changes exactly one thing, so that a refused JWS is refused for that thing.
struct TestAuthority: Sendable {
    enum Defect: Sendable, CaseIterable {
        case leafWithoutMarker, intermediateWithoutMarker
        case intermediateNotCA, intermediateWithoutConstraints, intermediateMayNotSignCertificates
        case rootNotCA, leafMayNotSign
        case leafP384, leafUnknownCriticalExtension, intermediateUnknownCriticalExtension
        case leafExpired, leafNotYetValid, intermediateExpired, rootExpired
    }

    let rootDER: [UInt8]
    let x5c: [String]
    let leafKey: P256.Signing.PrivateKey

    /// The middle of every certificate's validity unless a defect says otherwise.
    static let signedDate = Date(timeIntervalSince1970: 1_780_000_000)
    static let receiptSigning: ASN1ObjectIdentifier = [1, 2, 840, 113635, 100, 6, 11, 1]
    static let worldwideRelations: ASN1ObjectIdentifier = [1, 2, 840, 113635, 100, 6, 2, 1]
    private static let unknown: ASN1ObjectIdentifier = [1, 2, 3, 4, 5]

    static let year: TimeInterval = 365 * 86_400
    static let leafValidity = signedDate.addingTimeInterval(-year)...signedDate.addingTimeInterval(year)

    init(name: String = "Test", _ defect: Defect? = nil) throws {
        let rootKey = P384.Signing.PrivateKey()
        let intermediateKey = P384.Signing.PrivateKey()
        let leafKey = P256.Signing.PrivateKey()
        let rootName = try DistinguishedName { CommonName("\(name) Root") }
        let intermediateName = try DistinguishedName { CommonName("\(name) Intermediate") }
        let leafName = try DistinguishedName { CommonName("\(name) Leaf") }
        let long =
            Self.signedDate.addingTimeInterval(-5 * Self.year)...Self.signedDate.addingTimeInterval(5 * Self.year)
        let past = Self.signedDate.addingTimeInterval(-2 * Self.year)...Self.signedDate.addingTimeInterval(-1)
        let future = Self.signedDate.addingTimeInterval(1)...Self.signedDate.addingTimeInterval(Self.year)

        let root = try Self.certificate(
            of: .init(rootKey.publicKey), rootName, by: .init(rootKey), rootName,
            validity: defect == .rootExpired ? past : long,
            extensions: [
                .init(
                    defect == .rootNotCA
                        ? BasicConstraints.notCertificateAuthority : .isCertificateAuthority(maxPathLength: nil),
                    critical: true)
            ])

        var intermediateExtensions: [Certificate.Extension] = [
            try .init(
                KeyUsage(keyCertSign: defect != .intermediateMayNotSignCertificates, cRLSign: true), critical: true)
        ]
        if defect == .intermediateNotCA {
            intermediateExtensions.append(try .init(BasicConstraints.notCertificateAuthority, critical: true))
        } else if defect != .intermediateWithoutConstraints {
            intermediateExtensions.append(
                try .init(BasicConstraints.isCertificateAuthority(maxPathLength: 0), critical: true))
        }
        if defect != .intermediateWithoutMarker { intermediateExtensions.append(Self.marker(Self.worldwideRelations)) }
        if defect == .intermediateUnknownCriticalExtension {
            intermediateExtensions.append(Self.marker(Self.unknown, critical: true))
        }
        let intermediate = try Self.certificate(
            of: .init(intermediateKey.publicKey), intermediateName, by: .init(rootKey), rootName,
            validity: defect == .intermediateExpired ? past : long, extensions: intermediateExtensions)

        var leafExtensions: [Certificate.Extension] = [
            try .init(BasicConstraints.notCertificateAuthority, critical: true),
            try .init(
                defect == .leafMayNotSign ? KeyUsage(keyAgreement: true) : KeyUsage(digitalSignature: true),
                critical: true),
        ]
        if defect != .leafWithoutMarker { leafExtensions.append(Self.marker(Self.receiptSigning)) }
        if defect == .leafUnknownCriticalExtension { leafExtensions.append(Self.marker(Self.unknown, critical: true)) }
        let leaf = try Self.certificate(
            of: defect == .leafP384 ? .init(P384.Signing.PrivateKey().publicKey) : .init(leafKey.publicKey), leafName,
            by: .init(intermediateKey), intermediateName,
            validity: defect == .leafExpired ? past : defect == .leafNotYetValid ? future : Self.leafValidity,
            extensions: leafExtensions)

        let chain = try [leaf, intermediate, root].map { try Self.der($0) }
        self.rootDER = chain[2]
        self.x5c = chain.map { Data($0).base64EncodedString() }
        self.leafKey = leafKey
    }

    func verifier(
        environments: Set<StoreEnvironment> = [.production, .sandbox], bundleId: String = Payload.bundleId,
        aliases: [String] = [], appAppleId: Int64? = 1_234_567_890
    ) throws -> SignedDataVerifier {
        SignedDataVerifier(
            app: try AppIdentity(
                bundleId: bundleId, bundleIdAliases: aliases, appAppleId: appAppleId, environments: environments),
            anchors: try TrustAnchors(rootCertificates: [rootDER], acceptAppleRoots: false),
            now: { Self.signedDate })
    }

    /// A compact JWS over `payload` as text; a test can change every part.
    func sign(_ payload: String, header: String? = nil, key: P256.Signing.PrivateKey? = nil) throws -> String {
        let header = try header ?? Self.header(x5c: x5c)
        let signed = "\(Self.base64url(header.utf8)).\(Self.base64url(payload.utf8))"
        let signature = try (key ?? leafKey).signature(for: Data(signed.utf8))
        return "\(signed).\(Self.base64url(signature.rawRepresentation))"
    }

    static func header(alg: String = "ES256", x5c: [String]) throws -> String {
        #"{"alg":"\#(alg)","x5c":["\#(x5c.joined(separator: #"",""#))"]}"#
    }

    static func base64url(_ bytes: some Sequence<UInt8>) -> String {
        Data(bytes).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }

    static func der(_ certificate: Certificate) throws -> [UInt8] {
        var serializer = DER.Serializer()
        try serializer.serialize(certificate)
        return serializer.serializedBytes
    }

    private static func marker(_ oid: ASN1ObjectIdentifier, critical: Bool = false) -> Certificate.Extension {
        Certificate.Extension(oid: oid, critical: critical, value: [0x05, 0x00])
    }

    private static func certificate(
        of key: Certificate.PublicKey, _ subject: DistinguishedName, by issuerKey: Certificate.PrivateKey,
        _ issuer: DistinguishedName, validity: ClosedRange<Date>, extensions: [Certificate.Extension]
    ) throws -> Certificate {
        try Certificate(
            version: .v3, serialNumber: .init(), publicKey: key, notValidBefore: validity.lowerBound,
            notValidAfter: validity.upperBound, issuer: issuer, subject: subject,
            signatureAlgorithm: .ecdsaWithSHA384, extensions: try Certificate.Extensions(extensions),
            issuerPrivateKey: issuerKey)
    }
}

/// Payloads as Apple spells them.
enum Payload {
    static let bundleId = "com.example.game"

    static func transaction(
        id: String = "2000000000000001", bundleId: String = bundleId, environment: String = "Production",
        signedDate: Date? = TestAuthority.signedDate, extra: String = ""
    ) -> String {
        let date = signedDate.map { #","signedDate":\#(Int64($0.timeIntervalSince1970 * 1000))"# } ?? ""
        return #"{"transactionId":"\#(id)","originalTransactionId":"\#(id)","bundleId":"\#(bundleId)","#
            + #""productId":"com.example.game.coins6","type":"Consumable","quantity":1,"#
            + #""purchaseDate":1779999000000,"environment":"\#(environment)"\#(date)\#(extra)}"#
    }

    static func renewalInfo(environment: String = "Production") -> String {
        #"{"originalTransactionId":"1","autoRenewProductId":"p","autoRenewStatus":1,"environment":"\#(environment)","#
            + #""signedDate":1780000000000}"#
    }

    static func appTransaction(appAppleId: String = "1234567890", environment: String = "Production") -> String {
        #"{"receiptType":"\#(environment)","bundleId":"\#(bundleId)","appAppleId":\#(appAppleId),"#
            + #""receiptCreationDate":1780000000000,"appTransactionId":"7"}"#
    }

    static func notification(data: String) -> String {
        #"{"notificationType":"ONE_TIME_CHARGE","notificationUUID":"u-1","version":"2.0","#
            + #""signedDate":1780000000000,\#(data)}"#
    }

    static func notificationData(
        appAppleId: String? = "1234567890", environment: String = "Production", transaction: String? = nil,
        renewalInfo: String? = nil
    ) -> String {
        let fields = [
            #""bundleId":"\#(bundleId)""#, #""environment":"\#(environment)""#,
            appAppleId.map { #""appAppleId":\#($0)"# },
            transaction.map { #""signedTransactionInfo":"\#($0)""# },
            renewalInfo.map { #""signedRenewalInfo":"\#($0)""# },
        ]
        return #""data":{\#(fields.compactMap { $0 }.joined(separator: ","))}"#
    }
}

extension SignedDataVerifier {
    /// The reason why a transaction is not believed; nil if it is.
    func refusal(of jws: String, at date: Date? = nil) async -> VerificationFailure.Reason? {
        do throws(VerificationFailure) {
            _ = try await transaction(jws, at: date)
            return nil
        } catch {
            return error.reason
        }
    }

    /// The reason why a notification is not believed; nil if it is.
    func refusal(ofNotification jws: String) async -> VerificationFailure.Reason? {
        do throws(VerificationFailure) {
            _ = try await notification(jws)
            return nil
        } catch {
            return error.reason
        }
    }

    /// Verifies a notification of any app, given as text.
    func notification(
        ofAnyApp text: String, verifiesInside: Bool = true
    ) async throws(VerificationFailure) -> SignedNotification {
        let jws = try CompactJWS(text, bytesMax: CompactJWS.notificationBytesMax)
        return try await notification(ofAnyApp: jws, verifiesInside: verifiesInside)
    }
}
