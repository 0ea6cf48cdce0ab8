import Metrics

/// Whether responders are asked if a certificate was revoked (OCSP, RFC 6960). A setting of an app.
package enum OCSPMode: String, CaseIterable, Sendable {
    /// Responders are not asked.
    case off
    /// Responders are asked. A missing answer counts as a good one.
    case soft
    /// Responders are asked. Without an answer the data is neither believed nor rejected yet (P16).
    case hard
}

/// Checks for a verifier whether certificates were revoked. An app with ``OCSPMode/off`` has no such check.
package struct RevocationCheck: Sendable {
    private let isHard: Bool
    private let statuses: CertificateStatuses
    private let unanswered: Counter

    /// Nil for ``OCSPMode/off``.
    package init?(_ mode: OCSPMode, _ statuses: CertificateStatuses) {
        guard mode != .off else { return nil }
        isHard = mode == .hard
        self.statuses = statuses
        unanswered = Counter(label: "makegood_ocsp_unanswered_total", dimensions: [("mode", mode.rawValue)])
    }

    /// Passes a chain whose certificates are not revoked, as far as responders tell.
    ///
    /// Costs two look-ups in memory where the answers are known; waits ``CertificateStatuses/patience`` at most where
    /// they are not.
    /// - Throws: `revoked`, or in hard mode `statusUnknown`, which is the only retryable failure there is.
    func check(_ issues: [CertificateIssue]) async throws(VerificationFailure) {
        var found: [CertificateStatus] = []
        // The questions about all certificates are under way by now: a chain that is new here costs one wait, not two.
        for inquiry in statuses.inquire(issues) { found.append(await inquiry.status) }
        if found.contains(.revoked) { throw VerificationFailure(.revoked) }
        guard found.contains(.unanswered) else { return }
        unanswered.increment()
        if isHard { throw VerificationFailure(.statusUnknown) }
    }
}

/// What became of a certificate after it was issued.
enum CertificateStatus: Hashable, Sendable {
    case good
    case revoked
    /// The responder cannot be reached, does not know the certificate, or says nothing that can be believed.
    case unanswered
}
