package import Foundation
import SwiftASN1
@_spi(DisableValidityCheck) @_spi(FixedExpiryValidationTime) package import X509

/// A chain that led from a signing key to one of our anchors.
///
/// Receipts of the SHA-1 era are judged by the same code: swift-certificates verifies RSA with SHA-1, and nobody checks
/// an anchor's signature.
package struct CertificateChain<LeafKey: Sendable>: Sendable {
    package let leafKey: LeafKey
    /// When all three certificates are valid: the cache needs it to judge another date.
    let validity: ClosedRange<Date>
    /// The leaf and the intermediate, each with its issuer: responders can be asked about these.
    let issues: [CertificateIssue]

    /// Verifies leaf, intermediate and anchor at `date`.
    ///
    /// Costs about a millisecond. Source: AppleFacts 1.2, steps 5 to 8.
    /// - Parameters:
    ///   - certificates: leaf, intermediate, root, each DER.
    ///   - leafKey: the leaf's key in the only form that may sign; nil for any other key.
    package static func verified(
        certificates: [[UInt8]], anchors: TrustAnchors, at date: Date, leafKey: (Certificate.PublicKey) -> LeafKey?
    ) async throws(VerificationFailure) -> CertificateChain {
        let leaf: Certificate
        let intermediate: Certificate
        do {
            leaf = try Certificate(derEncoded: certificates[0])
            intermediate = try Certificate(derEncoded: certificates[1])
        } catch {
            throw VerificationFailure(.certificate)
        }
        // Outside of these years a Date has no ASN.1 time, and no certificate is valid.
        guard Apple.representableDates.contains(date) else { throw VerificationFailure(.expired) }

        let candidates = Candidates(
            leaf: leaf, intermediate: intermediate, anchors: anchors.anchors(forRoot: certificates[2]))
        let chain: ValidatedCertificateChain
        switch await candidates.validate(RFC5280Policy(fixedExpiryValidationTime: date)) {
        case .validCertificate(let valid): chain = valid
        case .couldNotValidate(let failures): throw await candidates.failure(from: failures)
        }
        return try CertificateChain(chain, leafKey)
    }

    private init(
        _ chain: ValidatedCertificateChain, _ leafKey: (Certificate.PublicKey) -> LeafKey?
    ) throws(VerificationFailure) {
        let leaf = chain[0]
        let intermediate = chain[1]
        guard leaf.extensions[oid: Apple.receiptSigning] != nil,
            intermediate.extensions[oid: Apple.worldwideRelations] != nil
        else { throw VerificationFailure(.missingOID) }
        guard let leafKey = leafKey(leaf.publicKey), Self.isUsed(leaf, for: \.digitalSignature),
            Self.isUsed(intermediate, for: \.keyCertSign)
        else { throw VerificationFailure(.certificate) }
        let from = chain.map(\.notValidBefore).max() ?? .distantFuture
        let until = chain.map(\.notValidAfter).min() ?? .distantPast
        guard from <= until else { throw VerificationFailure(.expired) }
        self.leafKey = leafKey
        self.validity = from...until
        do {
            issues = [try CertificateIssue(Array(chain)), try CertificateIssue(Array(chain.dropFirst()))]
        } catch {
            throw VerificationFailure(.certificate)
        }
    }

    /// RFC5280Policy takes key usage as handled without looking at it; absent means any use.
    private static func isUsed(_ certificate: Certificate, for usage: KeyPath<KeyUsage, Bool>) -> Bool {
        guard certificate.extensions[oid: .X509ExtensionID.keyUsage] != nil else { return true }
        guard let keyUsage = try? certificate.extensions.keyUsage else { return false }
        return keyUsage[keyPath: usage]
    }
}

/// Properties that only Apple's certificates have.
private enum Apple {
    /// The marker of a leaf that signs App Store data.
    static let receiptSigning: ASN1ObjectIdentifier = [1, 2, 840, 113635, 100, 6, 11, 1]
    /// The marker of the Worldwide Developer Relations intermediate.
    static let worldwideRelations: ASN1ObjectIdentifier = [1, 2, 840, 113635, 100, 6, 2, 1]
    /// 1950 to 9999, what UTCTime and GeneralizedTime can say (RFC 5280 section 4.1.2.5).
    static let representableDates =
        Date(timeIntervalSince1970: -631_152_000)...Date(timeIntervalSince1970: 253_402_300_799)
}

/// The certificates that are presented for a chain, and the anchors in which it may end.
private struct Candidates {
    let leaf: Certificate
    let intermediate: Certificate
    let anchors: [Certificate]

    func validate(_ policy: RFC5280Policy) async -> CertificateValidationResult {
        var verifier = Verifier(rootCertificates: CertificateStore(anchors)) {
            policy
            ThreeCertificates()
        }
        return await verifier.validate(leaf: leaf, intermediates: CertificateStore([intermediate]))
    }

    /// Names what was wrong with a chain that did not validate.
    func failure(from failures: [CertificateValidationResult.PolicyFailure]) async -> VerificationFailure {
        guard !failures.isEmpty else {
            // No chain was even built: a certificate was skipped for a critical extension, or no anchor issued any.
            let isSkipped = [leaf, intermediate].contains(where: Self.hasUnknownCriticalExtension)
            return VerificationFailure(isSkipped ? .certificate : .untrustedRoot)
        }
        guard failures.contains(where: { $0.chain.count == 3 }) else { return VerificationFailure(.chainLength) }
        // If the same chain is good but for its dates, the dates are what is wrong with it.
        if case .validCertificate = await validate(RFC5280Policy.withValidityCheckDisabled()) {
            return VerificationFailure(.expired)
        }
        return VerificationFailure(.certificate)
    }

    private static func hasUnknownCriticalExtension(_ certificate: Certificate) -> Bool {
        let known = RFC5280Policy.withValidityCheckDisabled().verifyingCriticalExtensions
        return certificate.extensions.contains { $0.critical && !known.contains($0.oid) }
    }
}

/// Leaf, intermediate, anchor: no shortcut and no detour.
private struct ThreeCertificates: VerifierPolicy {
    let verifyingCriticalExtensions: [ASN1ObjectIdentifier] = []

    mutating func chainMeetsPolicyRequirements(chain: UnverifiedCertificateChain) async -> PolicyEvaluationResult {
        chain.count == 3 ? .meetsPolicy : .failsToMeetPolicy(reason: "not exactly three certificates")
    }
}
