import Crypto
import Synchronization

/// A cache of presented certificates that led to no chain, so that a forgery that comes again and again is judged once.
/// It belongs to one verifier: the anchors of another verifier may lead to a chain.
final class KnownFailures: Sendable {
    /// Entries of one generation. There are two generations; an entry has about 100 bytes.
    private let limit: Int
    private let reasons:
        Mutex<(young: [SHA256Digest: VerificationFailure.Reason], old: [SHA256Digest: VerificationFailure.Reason])>

    init(limit: Int = 2048) {
        self.limit = limit
        reasons = Mutex(([:], [:]))
    }

    /// The chain of presented certificates, built only if they are not known to lead to no chain.
    func chain<LeafKey>(
        of presented: some Sequence<UInt8>,
        build: () async throws(VerificationFailure) -> CertificateChain<LeafKey>
    ) async throws(VerificationFailure) -> CertificateChain<LeafKey> {
        let key = SHA256.hash(data: Array(presented))
        if let reason = reasons.withLock({ $0.young[key] ?? $0.old[key] }) { throw VerificationFailure(reason) }
        do throws(VerificationFailure) {
            return try await build()
        } catch {
            if error.reason.isOfChain { note(error.reason, key) }
            throw error
        }
    }

    private func note(_ reason: VerificationFailure.Reason, _ key: SHA256Digest) {
        reasons.withLock { reasons in
            if reasons.young.count >= limit { reasons = ([:], reasons.young) }
            reasons.young[key] = reason
        }
    }
}

extension VerificationFailure.Reason {
    /// Whether the certificates alone are to blame, at whatever date.
    fileprivate var isOfChain: Bool {
        switch self {
        case .chainLength, .certificate, .untrustedRoot, .missingOID: true
        case .malformed, .algorithm, .expired, .signature, .wrongApp, .wrongEnvironment, .unsigned, .revoked,
            .statusUnknown:
            false
        }
    }
}
