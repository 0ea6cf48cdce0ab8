import Crypto
import CryptoExtras
package import Foundation
import Synchronization
import X509

/// Verifies that a legacy app receipt is Apple's statement about one app, or says why it is not. Needs no network but
/// for a ``RevocationCheck``.
///
/// The order of checks is that of AppleFacts 6.2. Certificates are judged at the receipt's creation date, or at `now`
/// where it has none, or at a date the caller gives. The device hash is not looked at: a server does not know the
/// device, and a receipt is no proof of possession anyway.
///
/// Cost: one RSA-2048 verification and two walks over the bytes once a chain is known, about a millisecond more for a
/// new chain. The cache of known chains is like that of ``SignedDataVerifier``.
package final class AppReceiptVerifier: Sendable {
    private let app: AppIdentity
    private let anchors: TrustAnchors
    private let revocation: RevocationCheck?
    private let now: @Sendable () -> Date
    private let knownChains = Mutex(KnownChains<[UInt8], _RSA.Signing.PublicKey>())
    private let knownFailures = KnownFailures()

    package init(
        app: AppIdentity, anchors: TrustAnchors, revocation: RevocationCheck? = nil,
        now: @escaping @Sendable () -> Date = { Date() }
    ) {
        self.app = app
        self.anchors = anchors
        self.revocation = revocation
        self.now = now
    }

    /// The chains of recent receipts.
    var issuesInUse: [[CertificateIssue]] { knownChains.withLock { $0.chains.map(\.issues) } }

    /// Verifies a receipt in standard base64; line breaks are passed over.
    ///
    /// - Parameter date: judges the certificates at this time instead of the receipt's creation date.
    /// - Throws: why it is not Apple's data about this app; retryable only where a responder gave no answer.
    package func receipt(_ base64: String, at date: Date? = nil) async throws(ReceiptFailure) -> AppReceipt {
        try await receipt(octets: try AppReceipt.octets(base64: Array(base64.utf8)), at: date)
    }

    /// Verifies a receipt in DER or BER.
    package func receipt(octets: [UInt8], at date: Date? = nil) async throws(ReceiptFailure) -> AppReceipt {
        guard octets.count <= AppReceipt.bytesMax else { throw .tooLarge }
        let signed = try SignedReceipt(octets)
        var receipt = try AppReceipt(headOf: signed.content)
        do throws(VerificationFailure) {
            if !isExemptFromSignature(receipt) {
                try await verifySignature(of: signed, receipt, at: date ?? receipt.creationDate ?? now())
            }
            try check(receipt)
        } catch {
            throw .notBelieved(error.reason)
        }
        // Not before: each purchase costs memory, and these are Apple's.
        try receipt.readPurchases(signed.content)
        return receipt
    }

    /// Whether an unsigned receipt is taken. The receipt cannot choose this (see ``SignedDataVerifier``): production
    /// excludes it.
    private func isExemptFromSignature(_ receipt: AppReceipt) -> Bool {
        guard app.acceptsUnsignedXcodeData, let environment = receipt.environment else { return false }
        return environment.isUnsignedByApple && app.environments.contains(environment)
    }

    private func verifySignature(
        of signed: SignedReceipt, _ receipt: AppReceipt, at date: Date
    ) async throws(VerificationFailure) {
        let known = knownChains.withLock { $0.find(signed.presented) }
        let chain: CertificateChain<_RSA.Signing.PublicKey>
        // Outside of its validity a known chain is judged anew: another anchor may reach further.
        if let known, known.validity.contains(date) {
            chain = known
        } else {
            chain = try await newChain(of: signed, receipt, at: date)
        }
        guard let digest = signed.digest else { throw VerificationFailure(.algorithm) }
        let signature = _RSA.Signing.RSASignature(rawRepresentation: signed.signature)
        let key = chain.leafKey
        let isValid =
            switch digest {
            case .sha1:
                key.isValidSignature(
                    signature, for: Insecure.SHA1.hash(data: signed.content), padding: .insecurePKCS1v1_5)
            case .sha256:
                key.isValidSignature(signature, for: SHA256.hash(data: signed.content), padding: .insecurePKCS1v1_5)
            }
        guard isValid else { throw VerificationFailure(.signature) }
        if known?.validity != chain.validity {
            knownChains.withLock { $0.insert(chain, for: signed.presented) }
        }
        // Last: a responder is asked only about certificates that led to one of our anchors.
        try await revocation?.check(chain.issues)
    }

    private func newChain(
        of signed: SignedReceipt, _ receipt: AppReceipt, at date: Date
    ) async throws(VerificationFailure) -> CertificateChain<_RSA.Signing.PublicKey> {
        let certificates: [[UInt8]]
        do throws(VerificationFailure) {
            certificates = try signed.orderedCertificates()
        } catch {
            // Xcode presents one certificate of its own (AppleFacts 6.1): the error names the cause, not the length of
            // the chain.
            let isXcode = error.reason == .chainLength && receipt.environment?.isUnsignedByApple == true
            throw isXcode ? VerificationFailure(.unsigned) : error
        }
        return try await knownFailures.chain(of: signed.presented) { () throws(VerificationFailure) in
            try await .verified(certificates: certificates, anchors: anchors, at: date) { key in
                // Apple's keys have 2048 bits; no signature of a shorter key is accepted.
                _RSA.Signing.PublicKey(key).flatMap { $0.keySizeInBits >= 2048 ? $0 : nil }
            }
        }
    }

    /// The app first, then the environment, as for signed data.
    private func check(_ receipt: AppReceipt) throws(VerificationFailure) {
        guard app.admits(receipt.bundleId) else { throw VerificationFailure(.wrongApp) }
        // Apple has never documented the type: an old receipt without one is not of the wrong environment (F23).
        guard receipt.receiptType != nil else { return }
        guard let environment = receipt.environment, app.environments.contains(environment) else {
            throw VerificationFailure(.wrongEnvironment)
        }
    }
}
