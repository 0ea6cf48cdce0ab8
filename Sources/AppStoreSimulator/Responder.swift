import Crypto
import Foundation
import SwiftASN1
import Synchronization
import X509

/// The settings of the simulator's OCSP responder: what it says, and how. Kept in memory, read by `GET /control/ocsp`.
package struct ResponderSettings: Sendable, Equatable {
    /// The status of a certificate.
    package enum Standing: String, Codable, Sendable, CaseIterable {
        case good, revoked, unknown
    }

    /// How the responder says the status.
    package enum Manner: String, Codable, Sendable, CaseIterable {
        /// Signed by the certificate's issuer.
        case signed
        /// Signed by a responder that the issuer appointed (RFC 6960 section 4.2.2.2).
        case delegated
        /// Signed with a certificate that the issuer gave for another purpose.
        case undelegated
        /// With a signature over something else.
        case forged
        /// Signed two days ago, and good until yesterday.
        case stale
        /// Refused: try later.
        case tryLater
        /// HTTP 500.
        case error
        /// HTTP 200 with a page of a proxy.
        case garbage
        /// HTTP 307 to another place, where the certificate's issuer has signed the answer.
        case redirect
        /// No answer: the connection stays open.
        case silent
    }

    package var leaf = Standing.good
    package var intermediate = Standing.good
    package var manner = Manner.signed
    /// How long an answer takes.
    package var delayMilliseconds: Int64 = 0
    /// How long an answer is valid.
    package var validSeconds: Int64 = 43_200

    package init() {}
}

/// The body of `PUT /control/ocsp`: a field left out stays as it is.
package struct ResponderRequest: ControlBody, Sendable {
    package var leaf: ResponderSettings.Standing?
    package var intermediate: ResponderSettings.Standing?
    package var manner: ResponderSettings.Manner?
    /// 0 to 600,000.
    package var delayMilliseconds: Int64?
    /// 1 to 31,536,000.
    package var validSeconds: Int64?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case leaf, intermediate, manner, delayMilliseconds, validSeconds
    }

    package init(
        leaf: ResponderSettings.Standing? = nil, intermediate: ResponderSettings.Standing? = nil,
        manner: ResponderSettings.Manner? = nil, delayMilliseconds: Int64? = nil, validSeconds: Int64? = nil
    ) {
        self.leaf = leaf
        self.intermediate = intermediate
        self.manner = manner
        self.delayMilliseconds = delayMilliseconds
        self.validSeconds = validSeconds
    }

    func applied(to settings: ResponderSettings) throws(ControlError) -> ResponderSettings {
        var settings = settings
        if let leaf { settings.leaf = leaf }
        if let intermediate { settings.intermediate = intermediate }
        if let manner { settings.manner = manner }
        if let delayMilliseconds {
            guard (0...600_000).contains(delayMilliseconds) else {
                throw ControlError(field: "delayMilliseconds", "must be 0 to 600000")
            }
            settings.delayMilliseconds = delayMilliseconds
        }
        if let validSeconds {
            guard (1...31_536_000).contains(validSeconds) else {
                throw ControlError(field: "validSeconds", "must be 1 to 31536000")
            }
            settings.validSeconds = validSeconds
        }
        return settings
    }
}

/// Says whether the simulator's certificates are good (OCSP, RFC 6960), or says something else by script.
final class Responder: Sendable {
    /// The certificates with a responder of their own; the path below `/ocsp`.
    enum Subject: String, Sendable, CaseIterable {
        case leaf, intermediate
    }

    private struct State {
        var settings = ResponderSettings()
        var authority: CertificateAuthority?
        var asked: [Subject: Int] = [:]
    }

    private let state = Mutex(State())

    var settings: ResponderSettings { state.withLock(\.settings) }

    /// How often clients asked about each certificate.
    var asked: [Subject: Int] { state.withLock(\.asked) }

    func set(_ request: ResponderRequest) throws(ControlError) -> ResponderSettings {
        try state.withLock { state throws(ControlError) in
            state.settings = try request.applied(to: state.settings)
            return state.settings
        }
    }

    /// Answers for the certificates of `authority` from now on.
    func speak(for authority: CertificateAuthority) { state.withLock { $0.authority = authority } }

    /// Counts a question, and returns how to answer it.
    func plan(_ subject: Subject) -> ResponderSettings {
        state.withLock { state in
            state.asked[subject, default: 0] += 1
            return state.settings
        }
    }

    /// The answer as DER. A request that is no question is answered with malformedRequest.
    func answer(_ subject: Subject, _ request: [UInt8], _ settings: ResponderSettings, now: Date) -> [UInt8] {
        guard let authority = state.withLock(\.authority), let question = OCSPQuestion(request) else {
            return Self.refusal(1)
        }
        if settings.manner == .tryLater { return Self.refusal(3) }
        let answer = OCSPAnswer(
            question: question, authority: authority, subject: subject, settings: settings, now: now)
        return (try? answer.der()) ?? Self.refusal(2)
    }

    private static func refusal(_ status: UInt8) -> [UInt8] { BERWriter.der.element(0x30, [0x0A, 0x01, status]) }
}

/// The first certificate that a request asks about (RFC 6960 section 4.1.1).
private struct OCSPQuestion {
    /// CertID, DER: it is repeated in the answer.
    let certificate: [UInt8]
    let serialNumber: [UInt8]
    /// The request's extensions, DER: a nonce is repeated in the answer.
    let extensions: [UInt8]?

    init?(_ der: [UInt8]) {
        guard let request = try? DER.parse(der), let body = request.children.first,
            let list = body.children.first(where: { $0.identifier == .sequence }),
            let id = list.children.first?.children.first, let serial = id.children.last,
            case .primitive(let octets) = serial.content
        else { return nil }
        certificate = Array(id.encodedBytes)
        serialNumber = Array(octets)
        let tag = ASN1Identifier(tagWithNumber: 2, tagClass: .contextSpecific)
        extensions = body.children.first { $0.identifier == tag }?.children.first.map { Array($0.encodedBytes) }
    }
}

extension ASN1Node {
    fileprivate var children: [ASN1Node] {
        if case .constructed(let nodes) = content { Array(nodes) } else { [] }
    }
}

/// A response to one question (RFC 6960 section 4.2.1), signed.
private struct OCSPAnswer {
    let question: OCSPQuestion
    let authority: CertificateAuthority
    let subject: Responder.Subject
    let settings: ResponderSettings
    let now: Date

    private static let day: TimeInterval = 86_400
    /// id-pkix-ocsp-basic.
    private static let basic: [UInt8] = [0x06, 0x09, 0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01]
    /// ecdsa-with-SHA256 and ecdsa-with-SHA384, as AlgorithmIdentifier.
    private static let sha256: [UInt8] = [0x30, 0x0A, 0x06, 0x08, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x02]
    private static let sha384: [UInt8] = [0x30, 0x0A, 0x06, 0x08, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x03]

    private var writer: BERWriter { .der }
    private var issuer: (certificate: Certificate, key: P384.Signing.PrivateKey) {
        switch subject {
        case .leaf: (authority.intermediate, authority.intermediateKey)
        case .intermediate: (authority.root, authority.rootKey)
        }
    }

    func der() throws -> [UInt8] {
        let basic = try basicResponse()
        return writer.element(
            0x30, [0x0A, 0x01, 0x00],
            writer.element(0xA0, writer.element(0x30, Self.basic, writer.octetString(basic))))
    }

    private func basicResponse() throws -> [UInt8] {
        switch settings.manner {
        case .delegated, .undelegated:
            let key = P256.Signing.PrivateKey()
            let certificate = try delegate(key)
            let data = try responseData(by: certificate.subject)
            let signature = try key.signature(for: Data(data)).derRepresentation
            let certificates = writer.element(0xA0, writer.element(0x30, try ReceiptSigner.der(certificate)))
            return writer.element(0x30, data, Self.sha256, bitString(signature), certificates)
        case .signed, .forged, .stale, .tryLater, .error, .garbage, .redirect, .silent:
            let data = try responseData(by: issuer.certificate.subject)
            let signed = settings.manner == .forged ? data.reversed() : data
            let signature = try issuer.key.signature(for: Data(signed)).derRepresentation
            return writer.element(0x30, data, Self.sha384, bitString(signature))
        }
    }

    private func responseData(by responder: DistinguishedName) throws -> [UInt8] {
        let made = settings.manner == .stale ? now - 2 * Self.day : now
        let until = settings.manner == .stale ? now - Self.day : now + TimeInterval(settings.validSeconds)
        let single = writer.element(
            0x30, question.certificate, status, time(made), writer.element(0xA0, time(until)))
        return writer.element(
            0x30, writer.element(0xA1, try ReceiptSigner.der(responder)), time(made), writer.element(0x30, single),
            question.extensions.map { writer.element(0xA1, $0) } ?? [])
    }

    private var status: [UInt8] {
        let certificate = subject == .leaf ? authority.leaf : authority.intermediate
        // An INTEGER has a zero before its highest bit, the library's number has none.
        let isKnown = question.serialNumber.drop { $0 == 0 } == certificate.serialNumber.bytes.drop { $0 == 0 }
        switch isKnown ? (subject == .leaf ? settings.leaf : settings.intermediate) : .unknown {
        case .good: return [0x80, 0x00]
        case .revoked: return writer.element(0xA1, time(now - Self.day))
        case .unknown: return [0x82, 0x00]
        }
    }

    /// A certificate of the issuer for a delegate, to answer for the issuer or for another purpose.
    private func delegate(_ key: P256.Signing.PrivateKey) throws -> Certificate {
        let purpose: ExtendedKeyUsage.Usage = settings.manner == .delegated ? .ocspSigning : .serverAuth
        return try Certificate(
            version: .v3, serialNumber: .init(), publicKey: .init(key.publicKey), notValidBefore: now - Self.day,
            notValidAfter: now + Self.day, issuer: issuer.certificate.subject,
            subject: .init { CommonName("Makegood Simulator OCSP Responder") }, signatureAlgorithm: .ecdsaWithSHA384,
            extensions: .init {
                Critical(BasicConstraints.notCertificateAuthority)
                try ExtendedKeyUsage([purpose])
            },
            issuerPrivateKey: .init(issuer.key))
    }

    private func bitString(_ octets: Data) -> [UInt8] { writer.element(0x03, [0x00] + Array(octets)) }

    /// GeneralizedTime: `20261122070739Z`.
    private func time(_ date: Date) -> [UInt8] {
        writer.element(0x18, date.formatted(.iso8601).utf8.filter { !"-:T".utf8.contains($0) })
    }
}
