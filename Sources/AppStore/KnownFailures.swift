import Crypto
import Synchronization

/// What was presented and led to no chain, so that a forgery that comes again and again is looked at once. Belongs to
/// one verifier: another anchor may believe what this one's do not.
final class KnownFailures: Sendable {
    /// Of one generation; there are two, about 100 bytes each.
    private let limit: Int
    private let reasons:
        Mutex<(young: [SHA256Digest: VerificationFailure.Reason], old: [SHA256Digest: VerificationFailure.Reason])>

    init(limit: Int = 2048) {
        self.limit = limit
        reasons = Mutex(([:], [:]))
    }

    /// The chain of what is presented, built only where it is not known to lead nowhere.
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
