import Crypto
package import Foundation
import SwiftASN1
import X509

/// The roots one app's verifier believes.
///
/// Two sources: certificates the operator names, and, built in, the fingerprints of Apple's roots. A chain's own third
/// certificate becomes an anchor only if its fingerprint is one of those; a fingerprint is as good as the certificate,
/// so production needs no download. Anything else in third place is ignored (AppleFacts 1.2, step 6).
package struct TrustAnchors: Sendable {
    /// Those that the operator names.
    let configured: [Certificate]
    private let pinned: Set<[UInt8]>

    /// - Parameters:
    ///   - rootCertificates: DER, one certificate each; ``load(pemOrDER:)`` makes them from a file.
    ///   - acceptAppleRoots: whether Apple's pinned roots count too; false for a simulator's world.
    /// - Throws: ``UnreadableRoot``; not retryable, a configuration that must not start.
    package init(rootCertificates: [[UInt8]], acceptAppleRoots: Bool = true) throws(UnreadableRoot) {
        try self.init(rootCertificates: rootCertificates, pinned: acceptAppleRoots ? Self.appleRoots : [])
    }

    /// - Parameter pinned: SHA-256 fingerprints of roots that a chain may bring itself.
    init(rootCertificates: [[UInt8]], pinned: Set<[UInt8]>) throws(UnreadableRoot) {
        self.configured = try rootCertificates.map { (der) throws(UnreadableRoot) in
            do { return try Certificate(derEncoded: der) } catch { throw UnreadableRoot() }
        }
        self.pinned = pinned
    }

    /// The certificates of a file, as DER: one if it is DER, one or more if it is PEM.
    ///
    /// - Throws: ``UnreadableRoot`` if there is none, or one that is not a certificate.
    package static func load(pemOrDER bytes: [UInt8]) throws(UnreadableRoot) -> [[UInt8]] {
        do {
            // DER of a certificate starts with the tag of SEQUENCE, which is "0": no PEM file does.
            if bytes.first == 0x30 {
                _ = try Certificate(derEncoded: bytes)
                return [bytes]
            }
            let documents = try PEMDocument.parseMultiple(pemString: String(decoding: bytes, as: UTF8.self))
            for document in documents { _ = try Certificate(pemDocument: document) }
            guard !documents.isEmpty else { throw UnreadableRoot() }
            return documents.map(\.derBytes)
        } catch {
            throw UnreadableRoot()
        }
    }

    /// When a root of ``load(pemOrDER:)`` ends: what it signed is not believed from then on.
    package static func expiry(of der: [UInt8]) throws(UnreadableRoot) -> Date {
        do { return try Certificate(derEncoded: der).notValidAfter } catch { throw UnreadableRoot() }
    }

    /// A configured root is not an X.509 certificate in DER or PEM.
    package struct UnreadableRoot: Error, CustomStringConvertible {
        package var description: String { "a root certificate is neither DER nor PEM of an X.509 certificate" }
    }

    /// The anchors for a chain that presents `third` as its root.
    func anchors(forRoot third: [UInt8]) -> [Certificate] {
        guard pinned.contains(Array(SHA256.hash(data: third))), let root = try? Certificate(derEncoded: third)
        else { return configured }
        return configured + [root]
    }

    /// SHA-256 of Apple Root CA - G3 (signed data) and of Apple Root CA (receipts).
    ///
    /// Source: AppleFacts 1.5, computed from https://www.apple.com/certificateauthority/
    static let appleRoots: Set<[UInt8]> = [
        [
            0x63, 0x34, 0x3A, 0xBF, 0xB8, 0x9A, 0x6A, 0x03, 0xEB, 0xB5, 0x7E, 0x9B, 0x3F, 0x5F, 0xA7, 0xBE,
            0x7C, 0x4F, 0x5C, 0x75, 0x6F, 0x30, 0x17, 0xB3, 0xA8, 0xC4, 0x88, 0xC3, 0x65, 0x3E, 0x91, 0x79,
        ],
        [
            0xB0, 0xB1, 0x73, 0x0E, 0xCB, 0xC7, 0xFF, 0x45, 0x05, 0x14, 0x2C, 0x49, 0xF1, 0x29, 0x5E, 0x6E,
            0xDA, 0x6B, 0xCA, 0xED, 0x7E, 0x2C, 0x68, 0xC5, 0xBE, 0x91, 0xB5, 0xA1, 0x10, 0x01, 0xF0, 0x24,
        ],
    ]
}
