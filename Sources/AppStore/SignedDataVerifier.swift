import Crypto
package import Encoding
package import Foundation
import Synchronization
import X509

/// Turns data signed by Apple into facts about one app, or says why not. Needs no network but for a
/// ``RevocationCheck``.
///
/// The order of checks is that of AppleFacts 1.2, but responders are asked after the signature. Certificates are judged
/// at the payload's own signing date (AppleFacts 1.3), or at `now` where it has none, or at a date the caller gives;
/// whether they were revoked is judged as of now.
///
/// Cost: one P-256 verification and a JSON scan once a header is known, about a millisecond more for a new one. The
/// cache of known headers belongs to this instance, so one app's test root never vouches for another app; it takes
/// only headers whose JWS was verified to its signature, so nobody but Apple can fill it.
package final class SignedDataVerifier: Sendable {
    private let app: AppIdentity
    private let anchors: TrustAnchors
    private let revocation: RevocationCheck?
    private let now: @Sendable () -> Date
    private let knownChains = Mutex(KnownChains<String, P256.Signing.PublicKey>())
    private let knownFailures = KnownFailures()
    /// Verifies the app's legacy receipts, by the same identity and anchors.
    package let receipts: AppReceiptVerifier

    package init(
        app: AppIdentity, anchors: TrustAnchors, revocation: RevocationCheck? = nil,
        now: @escaping @Sendable () -> Date = { Date() }
    ) {
        self.app = app
        self.anchors = anchors
        self.revocation = revocation
        self.now = now
        receipts = AppReceiptVerifier(app: app, anchors: anchors, revocation: revocation, now: now)
    }

    /// The names of the roots that the operator gave, beside Apple's own.
    var givenRoots: [String] { anchors.configured.map { "\($0.subject)" } }

    /// A verifier for the same app that believes Apple's roots alone.
    func believingAppleAlone() throws -> SignedDataVerifier {
        SignedDataVerifier(app: app, anchors: try TrustAnchors(rootCertificates: []), now: now)
    }

    /// The certificates that this app relies on: the roots it was given, and the chains of recent data, receipts
    /// included.
    package var certificatesInUse: [CertificateInUse] {
        let chains = knownChains.withLock { $0.chains.map(\.issues) } + receipts.issuesInUse
        return anchors.configured.map { CertificateInUse(.configuredRoot, $0) }
            + chains.flatMap { issues in
                [
                    CertificateInUse(.leaf, issues[0].certificate),
                    CertificateInUse(.intermediate, issues[1].certificate),
                    CertificateInUse(.root, issues[1].root),
                ]
            }
    }

    /// Verifies a signed transaction (JWSTransaction).
    ///
    /// - Parameter date: judges the certificates at this time instead of the payload's `signedDate`.
    /// - Throws: why it is not Apple's data about this app; retryable only where a responder gave no answer.
    package func transaction(
        _ jws: String, at date: Date? = nil
    ) async throws(VerificationFailure) -> SignedTransaction {
        try Self.decoded(
            try await payload(of: jws, as: .transaction, at: date), of: .transaction, SignedTransaction.init)
    }

    /// Verifies signed renewal info (JWSRenewalInfo).
    ///
    /// It names no app: tie it to a verified transaction of the same `originalTransactionId` (AppleFacts 2.2).
    package func renewalInfo(
        _ jws: String, at date: Date? = nil
    ) async throws(VerificationFailure) -> SignedRenewalInfo {
        try Self.decoded(try await payload(of: jws, as: .renewalInfo, at: date), SignedRenewalInfo.init)
    }

    /// Verifies an app transaction (JWSAppTransaction).
    package func appTransaction(
        _ jws: String, at date: Date? = nil
    ) async throws(VerificationFailure) -> SignedAppTransaction {
        try Self.decoded(try await payload(of: jws, as: .appTransaction, at: date), SignedAppTransaction.init)
    }

    /// Verifies a version 2 notification and, each on its own, the signed data inside it (AppleFacts 1.2, step 12).
    ///
    /// - Parameter signedPayload: the JWS in the body Apple posts, not the body.
    /// - Throws: the first failure, of the notification or of what it holds.
    package func notification(
        _ signedPayload: String, at date: Date? = nil
    ) async throws(VerificationFailure) -> SignedNotification {
        let payload = try await payload(of: signedPayload, as: .notification, at: date)
        var notification = try Self.decoded(payload, SignedNotification.init)
        if let jws = notification.signedTransactionInfo {
            notification.transaction = try await transaction(jws, at: date)
        }
        if let jws = notification.signedRenewalInfo {
            notification.renewalInfo = try await renewalInfo(jws, at: date)
        }
        if let jws = notification.signedAppTransactionInfo {
            notification.appTransaction = try await appTransaction(jws, at: date)
        }
        return notification
    }

    /// Verifies Apple's signature over a version 2 notification of any app, and reads the data inside the notification.
    /// The caller finds the app by the notification, and compares.
    ///
    /// The signature covers the data inside too, so one signature proves that Apple said all of it. The signatures of
    /// the data inside prove more: that the data holds on its own, as a receipt would. Data that cannot be read, or that
    /// is about another app or environment, is left out.
    /// - Parameter verifiesInside: whether the data inside must hold on its own. A wrong chain or signature of the data
    ///   is a failure of the whole then.
    /// - Throws: the reason if Apple did not sign the notification, or if the text is no notification; retryable only
    ///   where a responder gave no answer.
    package func notification(
        ofAnyApp jws: CompactJWS, verifiesInside: Bool
    ) async throws(VerificationFailure) -> SignedNotification {
        guard SignedDataKind.notification.isLike(jws.payload) else { throw VerificationFailure(.malformed) }
        let identity = SignedDataKind.notification.identity(of: jws.payload)
        try await verifySignature(of: jws, identity: identity, at: identity.signedDate ?? now())
        var notification = try Self.decoded(jws.payload, SignedNotification.init)
        notification.transaction = try await inside(
            notification.signedTransactionInfo, .transaction, verifies: verifiesInside, SignedTransaction.init)
        notification.renewalInfo = try await inside(
            notification.signedRenewalInfo, .renewalInfo, verifies: verifiesInside, SignedRenewalInfo.init)
        notification.appTransaction = try await inside(
            notification.signedAppTransactionInfo, .appTransaction, verifies: verifiesInside, SignedAppTransaction.init)
        return notification
    }

    private func inside<Model>(
        _ text: String?, _ kind: SignedDataKind, verifies: Bool,
        _ decode: ([String: JSON]) throws(FieldMismatch) -> Model
    ) async throws(VerificationFailure) -> Model? {
        guard let text else { return nil }
        do throws(VerificationFailure) {
            return try Self.decoded(try await payload(of: text, as: kind, verifies: verifies), decode)
        } catch {
            guard [.malformed, .wrongApp, .wrongEnvironment].contains(error.reason) else { throw error }
            return nil
        }
    }

    /// The payload of a JWS that is Apple's data about this app, as this kind.
    ///
    /// - Parameter verifies: false where a verified signature covers the text already.
    package func payload(
        of text: String, as kind: SignedDataKind, at date: Date? = nil, verifies: Bool = true
    ) async throws(VerificationFailure) -> [String: JSON] {
        let jws = try CompactJWS(
            text, bytesMax: kind == .notification ? CompactJWS.notificationBytesMax : CompactJWS.sizeLimit)
        let identity = kind.identity(of: jws.payload)
        if verifies, !isExemptFromSignature(identity) {
            try await verifySignature(of: jws, identity: identity, at: date ?? identity.signedDate ?? now())
        }
        try check(identity, of: jws.payload, as: kind)
        return jws.payload
    }

    /// Whether unsigned data is taken. The payload cannot choose this: the configuration must list the payload's
    /// environment and have the switch on, which production excludes.
    private func isExemptFromSignature(_ identity: SignedDataIdentity) -> Bool {
        guard app.acceptsUnsignedXcodeData, let environment = identity.environment else { return false }
        return environment.isUnsignedByApple && app.environments.contains(environment)
    }

    private func verifySignature(
        of jws: CompactJWS, identity: SignedDataIdentity, at date: Date
    ) async throws(VerificationFailure) {
        let known = knownChains.withLock { $0.find(jws.rawHeader) }
        let chain: CertificateChain<P256.Signing.PublicKey>
        // Outside of its validity a known chain is judged anew: another anchor may reach further.
        if let known, known.validity.contains(date) {
            guard jws.signature.count == CompactJWS.signatureLength else { throw VerificationFailure(.signature) }
            chain = known
        } else {
            chain = try await newChain(of: jws, identity: identity, at: date)
        }
        guard let signature = try? P256.Signing.ECDSASignature(rawRepresentation: jws.signature),
            chain.leafKey.isValidSignature(signature, for: jws.signedBytes)
        else { throw VerificationFailure(.signature) }
        if known?.validity != chain.validity {
            knownChains.withLock { $0.insert(chain, for: jws.rawHeader) }
        }
        // Last: a responder is asked only about certificates that led to one of our anchors.
        try await revocation?.check(chain.issues)
    }

    /// Two callers that meet the same new header both do this work; the result is the same.
    private func newChain(
        of jws: CompactJWS, identity: SignedDataIdentity, at date: Date
    ) async throws(VerificationFailure) -> CertificateChain<P256.Signing.PublicKey> {
        let x5c: [String]
        do throws(VerificationFailure) {
            x5c = try jws.certificates()
        } catch {
            // Xcode presents one certificate of its own (AppleFacts 1.1): the error names the cause, not the length of
            // the chain.
            let isXcode = error.reason == .chainLength && identity.environment?.isUnsignedByApple == true
            throw isXcode ? VerificationFailure(.unsigned) : error
        }
        guard jws.signature.count == CompactJWS.signatureLength else { throw VerificationFailure(.signature) }
        let certificates = x5c.compactMap { Base64.decodeStandard(Array($0.utf8)[...]) }
        guard certificates.count == 3 else { throw VerificationFailure(.certificate) }
        return try await knownFailures.chain(of: jws.rawHeader.utf8) { () throws(VerificationFailure) in
            try await .verified(certificates: certificates, anchors: anchors, at: date) { P256.Signing.PublicKey($0) }
        }
    }

    /// The app first, then the environment, as the official libraries do (AppleFacts 1.2, step 11).
    ///
    /// What a transaction does not say is unknown, not wrong: the caller finds its environment elsewhere (F23).
    private func check(
        _ identity: SignedDataIdentity, of payload: [String: JSON], as kind: SignedDataKind
    ) throws(VerificationFailure) {
        if kind == .transaction, identity.bundleId == nil, kind.isLike(payload) {
            throw VerificationFailure(.malformed, isGenuine: true)
        }
        if identity.namesApp {
            guard app.admits(identity.bundleId) else { throw VerificationFailure(.wrongApp) }
        }
        if identity.namesAppAppleId && identity.environment == .production {
            guard let expected = app.appAppleId, identity.appAppleId == expected else {
                throw VerificationFailure(.wrongApp)
            }
        }
        if identity.environment == nil, kind == .transaction || kind == .renewalInfo, kind.isLike(payload) { return }
        guard let environment = identity.environment, app.environments.contains(environment) else {
            throw VerificationFailure(.wrongEnvironment)
        }
    }

    /// - Parameter kind: of a payload that was verified; nil before that.
    private static func decoded<Model>(
        _ payload: [String: JSON], of kind: SignedDataKind? = nil,
        _ decode: ([String: JSON]) throws(FieldMismatch) -> Model
    ) throws(VerificationFailure) -> Model {
        do { return try decode(payload) } catch {
            throw VerificationFailure(.malformed, isGenuine: kind.map { $0.isLike(payload) } ?? false)
        }
    }
}
