import Crypto
import Synchronization

/// A signed transaction with exactly one defect, and what the defect is.
package struct Forgery: Codable, Sendable, Equatable {
    /// The defects to choose from.
    package enum Kind: String, Codable, Sendable, CaseIterable {
        /// A complete, correct chain below a root that is not ours.
        case foreignRoot = "foreign_root"
        /// One bit of the signature is turned.
        case signature
        /// The payload was exchanged after signing: the signature belongs to another bundle id.
        case swappedPayload = "swapped_payload"
        /// `alg` is `none` and the signature is empty.
        case algorithmNone = "alg_none"
        /// `alg` is `HS256`, and the leaf's public key is the secret: for verifiers that let the header choose.
        case algorithmHMAC = "alg_hs256"
        /// `alg` is `RS256` over a good signature.
        case algorithmRSA = "alg_rs256"
        /// `alg` is `ES384` over a good signature.
        case algorithmP384 = "alg_es384"
        /// The good signature in DER, not as 64 raw bytes.
        case signatureInDER = "der_signature"
        /// Genuine in every way, but for another bundle id.
        case wrongBundle = "wrong_bundle"
        /// The leaf ended a year ago; signedDate is not in its time.
        case expiredLeaf = "expired_leaf"
        /// The leaf lacks Apple's marker extension.
        case missingLeafMarker = "missing_leaf_oid"
        /// The intermediate lacks Apple's marker extension.
        case missingIntermediateMarker = "missing_intermediate_oid"
        /// The intermediate is no certificate authority.
        case plainIntermediate = "plain_intermediate"
        /// `x5c` has two certificates: the root is left out.
        case chainLength = "chain_length"
        /// `x5c` has four certificates: the root stands there twice.
        case longChain = "long_chain"
        /// The first of `x5c` is no certificate.
        case junkCertificate = "junk_certificate"
    }

    /// How many the ledger remembers.
    static let forgeriesMax = 100_000

    package let transactionId: String
    package let kind: Kind
    package let app: String
    package let productId: String
}

/// The body of `POST /control/forgeries`.
package struct ForgeryRequest: ControlBody, Sendable {
    package var kind: Forgery.Kind
    /// Bundle id or registered name of the app to be deceived.
    package var app: String
    /// Default `com.example.forged`.
    package var productId: String?
    package var quantity: Int?
    package var appAccountToken: String?
    package var environment: StoreEnvironment?
    package var purchaseDate: Int64?
    package var signedDate: Int64?
    /// The id to show; default: a new one that was never sold.
    package var transactionId: String?
    /// Only `wrong_bundle`: the bundle id that is signed; default `<bundle id>.counterfeit`.
    package var bundleId: String?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case kind, app, productId, quantity, appAccountToken, environment, purchaseDate, signedDate, transactionId
        case bundleId
    }

    package init(kind: Forgery.Kind, app: String, productId: String? = nil) {
        self.kind = kind
        self.app = app
        self.productId = productId
    }
}

/// Makes forgeries. Makes the chains that they need at first use, and keeps those chains.
final class Forger: Sendable {
    private let authority: CertificateAuthority
    private let signer: TransactionSigner
    private let made = Mutex<[Forgery.Kind: TransactionSigner]>([:])

    init(authority: CertificateAuthority, signer: TransactionSigner) {
        self.authority = authority
        self.signer = signer
    }

    /// A token over the purchase with the defect.
    func forge(
        _ kind: Forgery.Kind,
        _ purchase: Purchase,
        signedDate: Int64,
        bundleId: String
    ) throws(SimulatorError) -> String {
        let payload = purchase.payload(signedDate: signedDate)
        switch kind {
        case .signature:
            return try signer.signWrongly(payload)
        case .swappedPayload:
            return try signer.sign(purchase.payload(signedDate: signedDate, bundleId: bundleId), insteadOf: payload)
        case .wrongBundle:
            return try signer.sign(purchase.payload(signedDate: signedDate, bundleId: bundleId))
        case .algorithmNone:
            return try signer(for: kind).leaveUnsigned(payload)
        case .algorithmHMAC:
            let secret = Array(authority.leafKey.publicKey.pemRepresentation.utf8)
            return try signer(for: kind).signWithHMAC(payload, secret: secret)
        case .signatureInDER:
            return try signer.signInDER(payload)
        case .foreignRoot, .algorithmRSA, .algorithmP384, .expiredLeaf, .missingLeafMarker, .missingIntermediateMarker,
            .plainIntermediate, .chainLength, .longChain, .junkCertificate:
            return try signer(for: kind).sign(payload)
        }
    }

    /// The signer that makes the defect of a kind.
    func signer(for kind: Forgery.Kind) throws(SimulatorError) -> TransactionSigner {
        try made.withLock { made throws(SimulatorError) in
            if let signer = made[kind] { return signer }
            let signer: TransactionSigner =
                switch kind {
                case .foreignRoot: try TransactionSigner(.make())
                case .expiredLeaf: try TransactionSigner(authority.expired())
                case .missingLeafMarker: try TransactionSigner(authority.renewingLeaf(marked: false))
                case .missingIntermediateMarker: try TransactionSigner(authority.withIntermediate(marked: false))
                case .plainIntermediate: try TransactionSigner(authority.withIntermediate(isAuthority: false))
                case .chainLength: try signer(x5c: Array(authority.chainDER().prefix(2)))
                case .longChain: try signer(x5c: authority.chainDER() + authority.chainDER().suffix(1))
                case .junkCertificate: try signer(x5c: [Array("junk".utf8)] + authority.chainDER().suffix(2))
                case .algorithmNone: try signer(x5c: authority.chainDER(), algorithm: "none")
                case .algorithmHMAC: try signer(x5c: authority.chainDER(), algorithm: "HS256")
                case .algorithmRSA: try signer(x5c: authority.chainDER(), algorithm: "RS256")
                case .algorithmP384: try signer(x5c: authority.chainDER(), algorithm: "ES384")
                case .signature, .swappedPayload, .signatureInDER, .wrongBundle: self.signer
                }
            made[kind] = signer
            return signer
        }
    }

    private func signer(x5c: [[UInt8]], algorithm: String = "ES256") -> TransactionSigner {
        TransactionSigner(key: authority.leafKey, x5c: x5c, algorithm: algorithm)
    }
}
