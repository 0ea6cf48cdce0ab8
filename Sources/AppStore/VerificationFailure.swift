/// Why signed data was not believed.
///
/// Not retryable, with one exception: the same bytes give the same answer until roots or configuration change. The
/// description names the reason only, never the data.
package struct VerificationFailure: Error, Hashable, CustomStringConvertible {
    package let reason: Reason
    /// Whether Apple signed the data, and a field without which it cannot be judged is missing or unreadable. That
    /// proves nothing against the purchase.
    package let isGenuine: Bool

    package init(_ reason: Reason, isGenuine: Bool = false) {
        self.reason = reason
        self.isGenuine = isGenuine
    }

    /// A responder that does not answer says nothing about the data (P16).
    package var isRetryable: Bool { reason.isRetryable }

    package var description: String { reason.rawValue }

    /// The closed list that `makegood inspect`, the database and the API share.
    package enum Reason: String, CaseIterable, Sendable {
        /// Not three strict base64url parts of JSON, over a limit, a repeated key, or a field of the wrong type; or a
        /// receipt that cannot be read.
        case malformed
        /// `alg` is not exactly `ES256`; of a receipt, not RSA over the content with SHA-1 or SHA-256.
        case algorithm
        /// Not exactly leaf, intermediate and root.
        case chainLength = "chain_length"
        /// A certificate that cannot be read or may not do its part: not a CA, wrong key, unknown critical extension.
        case certificate
        /// The certificates do not lead to one of our anchors.
        case untrustedRoot = "untrusted_root"
        /// Issued by Apple, but not for signing App Store data.
        case missingOID = "missing_oid"
        /// A certificate is not valid at the effective date.
        case expired
        /// Not a signature of the leaf over these bytes.
        case signature
        /// Apple's data about another app.
        case wrongApp = "wrong_app"
        /// Apple's data from an environment this app is not served in.
        case wrongEnvironment = "wrong_environment"
        /// Data of Xcode or StoreKitTest, which Apple never signed.
        case unsigned
        /// The certificate's responder says that it was revoked.
        case revoked = "certificate_revoked"
        /// The certificate's responder gives no answer, and the app requires one (``OCSPMode/hard``). Retryable.
        case statusUnknown = "certificate_status_unknown"

        var isRetryable: Bool { self == .statusUnknown }
    }
}
