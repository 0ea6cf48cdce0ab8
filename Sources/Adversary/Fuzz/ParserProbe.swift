package import AppStore
import Crypto
import CryptoExtras
import Encoding
package import Foundation
import Intake
import Purchases
import X509

/// Every reader of untrusted bytes, as one function without network, for `makegood-lab fuzz`.
///
/// One object keeps the verifiers' caches, as a service does.
package struct ParserProbe: Sendable {
    package enum Parser: String, CaseIterable, Sendable {
        /// A JWS: the probe takes it apart, verifies it, and reads it as each kind of signed data, believed or not.
        case jws
        /// A notification and the signed data inside it; the JSON of version 1, which is not signed.
        case notification
        /// An app receipt, DER or BER.
        case receipt
        /// A leaf, an intermediate and a root in DER, one after the other; and the file of a configured root.
        case certificates
        /// An answer of verifyReceipt.
        case verifyReceipt
        /// Answers of the App Store Server API.
        case answers
        /// Base64 in both alphabets, and content that is written in it: receipts of iOS 6 style.
        case base64
        /// A file given to `makegood inspect`, and what it prints.
        case inspect
        /// The text of a post's proof, in any wrapping.
        case proof
    }

    package enum Outcome: Sendable, Hashable {
        case refused
        /// The reader read the input; no signature vouches for it.
        case read
        /// The reader believed the input: its content, in one spelling.
        case believed([UInt8])
        /// The reader broke its own rule, which is named here.
        case broken(String)
    }

    private let verifier: SignedDataVerifier
    private let anchors: TrustAnchors
    private let date: Date

    /// - Parameter date: the date for inputs that name none.
    package init(app: AppIdentity, anchors: TrustAnchors, date: Date) {
        verifier = SignedDataVerifier(app: app, anchors: anchors, now: { date })
        self.anchors = anchors
        self.date = date
    }

    package func feed(_ bytes: [UInt8], to parser: Parser) async -> Outcome {
        switch parser {
        case .jws: await jws(bytes)
        case .notification: await notification(bytes)
        case .receipt: await receipt(bytes)
        case .certificates: await certificates(bytes)
        case .verifyReceipt: answer(bytes, isOfVerifyReceipt: true)
        case .answers: answer(bytes, isOfVerifyReceipt: false)
        case .base64: base64(bytes)
        case .inspect: await inspect(bytes)
        case .proof: proof(bytes)
        }
    }

    private func jws(_ bytes: [UInt8]) async -> Outcome {
        guard let text = String(validating: bytes, as: UTF8.self) else { return .refused }
        guard let payload = CompactJWS.unverifiedPayload(of: text) else {
            return await verifier.refuses(text) ? .refused : .broken("believed what it cannot read")
        }
        let transaction = try? SignedTransaction(payload)
        let retyped = try? SignedTransaction(payload.mapValues(\.retyped))
        if let transaction, let retyped, transaction.purchase != retyped.purchase {
            return .broken("reads another purchase from other types")
        }
        _ = try? SignedRenewalInfo(payload)
        _ = try? SignedAppTransaction(payload)
        _ = try? SignedNotification(payload)
        let kind = SignedDataKind(looksLike: payload) ?? .transaction
        guard let believed = try? await verifier.payload(of: text, as: kind) else { return .refused }
        return .believed(JSON.object(believed).bytes)
    }

    private func notification(_ bytes: [UInt8]) async -> Outcome {
        if let json = try? JSONValue(parsing: bytes) { return notificationV1(json) }
        guard let text = String(validating: bytes, as: UTF8.self) else { return .refused }
        let isBelieved = (try? await verifier.notification(text)) != nil
        let jws = try? CompactJWS(text, bytesMax: CompactJWS.notificationBytesMax)
        var isApples = false
        if let jws { isApples = (try? await verifier.notification(ofAnyApp: jws, verifiesInside: true)) != nil }
        guard isApples || !isBelieved else { return .broken("ingest refuses what a worker believes") }
        guard isBelieved, let jws else { return .refused }
        return .believed(JSON.object(jws.payload).bytes)
    }

    private func notificationV1(_ json: JSONValue) -> Outcome {
        let kept = NotificationV1.withoutPassword(json)
        guard let again = try? JSONValue(parsing: kept.bytes), again == kept,
            NotificationV1.withoutPassword(again).bytes == kept.bytes
        else { return .broken("does not read what it keeps, or keeps a password") }
        guard let members = try? JSON(parsing: kept.bytes).object, (try? NotificationV1(members)) != nil
        else { return .refused }
        return .read
    }

    private func receipt(_ bytes: [UInt8]) async -> Outcome {
        let unverified = (try? SignedReceipt(bytes)).flatMap { try? AppReceipt(unverified: $0.content) }
        guard let receipt = try? await verifier.receipts.receipt(octets: bytes) else { return .refused }
        guard receipt == unverified else { return .broken("reads a believed receipt in two ways") }
        return .believed(JSON.object(receipt.json).bytes)
    }

    private func certificates(_ bytes: [UInt8]) async -> Outcome {
        if let roots = try? TrustAnchors.load(pemOrDER: bytes) {
            for root in roots { _ = try? TrustAnchors.expiry(of: root) }
        }
        var reader = BERReader(bytes)
        var certificates: [[UInt8]] = []
        while certificates.count < 3, let element = try? reader.next() {
            certificates.append(Array(element.encodedBytes))
        }
        guard certificates.count == 3 else { return .refused }
        let elliptic = try? await CertificateChain.verified(certificates: certificates, anchors: anchors, at: date) {
            P256.Signing.PublicKey($0)
        }
        if let elliptic { return .believed(Array(elliptic.leafKey.rawRepresentation)) }
        let rsa = try? await CertificateChain.verified(certificates: certificates, anchors: anchors, at: date) {
            _RSA.Signing.PublicKey($0)
        }
        return rsa.map { .believed(Array($0.leafKey.derRepresentation)) } ?? .refused
    }

    private func answer(_ bytes: [UInt8], isOfVerifyReceipt: Bool) -> Outcome {
        guard let json = try? JSON(parsing: bytes) else { return .refused }
        guard (try? JSON(parsing: json.bytes)) == json else { return .broken("does not read what it wrote") }
        guard let fields = json.object else { return .refused }
        if isOfVerifyReceipt {
            _ = AppleFields(fields).int("status")
            guard let receipt = try? VerifiedReceipt(fields, askedIn: .production) else { return .refused }
            let retyped = try? VerifiedReceipt(fields.mapValues(\.retyped), askedIn: .production)
            if let retyped, receipt.purchases != retyped.purchases {
                return .broken("reads other purchases from other types")
            }
            return .read
        }
        _ = try? SubscriptionStatuses(fields)
        _ = try? HistoryPage(fields)
        _ = try? RefundPage(fields)
        _ = try? NotificationPage(fields)
        _ = try? SentNotification(fields)
        _ = try? OrderLookUp(fields)
        _ = AppleFields(fields).int64("errorCode")
        return .read
    }

    private func base64(_ bytes: [UInt8]) -> Outcome {
        let text = String(decoding: bytes, as: UTF8.self)
        _ = try? TransactionReceipt(base64: text)
        _ = try? AppReceipt.octets(base64: bytes)
        _ = RetryAfter.date(text, now: date)
        var isRead = false
        if let decoded = Base64.decodeStandard(bytes[...]) {
            guard Array(Data(decoded).base64EncodedData()) == bytes else {
                return .broken("two spellings of one value")
            }
            isRead = true
        }
        if let decoded = Base64.decodeURL(bytes[...]) {
            let other = Data(decoded).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_")
                .replacing("=", with: "")
            guard Array(other.utf8) == bytes else { return .broken("two spellings of one value, base64url") }
            isRead = true
        }
        return isRead ? .read : .refused
    }

    /// What the reader finds must be clean: read again, it is itself.
    private func proof(_ bytes: [UInt8]) -> Outcome {
        guard let text = String(validating: bytes, as: UTF8.self) else { return .refused }
        var outcome = Outcome.refused
        for field in [ProofReader.Field.receipt, .signedTransaction] {
            guard case .found(let found) = ProofReader.read(text, in: field) else { continue }
            let own: ProofReader.Field = found.proof.kind == .receipt ? .receipt : .signedTransaction
            guard case .found(let again) = ProofReader.read(found.proof.payload, in: own),
                again.proof == found.proof, again.repairs.isEmpty
            else { return .broken("finds in \(field.rawValue) what is no clean proof") }
            outcome = .read
        }
        return outcome
    }

    private func inspect(_ bytes: [UInt8]) async -> Outcome {
        let inspection = await Inspection.inspect(bytes, with: verifier)
        // `inspect` prints deeper JSON than our parser takes, because its output holds the payload. So another parser
        // reads it.
        let printed = try? JSONSerialization.jsonObject(with: Data(inspection.json)) as? [String: Any]
        guard printed?["valid"] as? Bool == inspection.isValid else { return .broken("prints what is no JSON") }
        let isClean = inspection.text.unicodeScalars.allSatisfy {
            $0 == "\n" || $0.properties.generalCategory != .control
        }
        guard isClean else { return .broken("prints a control character") }
        return inspection.isValid ? .believed(inspection.json) : .refused
    }
}

extension SignedTransaction {
    fileprivate var purchase: [String] {
        [transactionId, productId, bundleId, "\(purchaseDate as Date?)", "\(environment as StoreEnvironment?)"]
    }
}

extension VerifiedReceipt {
    fileprivate var purchases: [[String]] {
        [[bundleId ?? "", "\(environment)"]]
            + entries.map { [$0.transactionId, $0.productId, "\($0.purchaseDate as Date?)"] }
    }
}

extension JSON {
    /// The same value in other types: whole numbers as text, and text of a whole number as a number.
    fileprivate var retyped: JSON {
        switch self {
        case .integer(let number): .string(String(number))
        case .string(let text): Int64(text).flatMap { String($0) == text ? .integer($0) : nil } ?? self
        case .array(let elements): .array(elements.map(\.retyped))
        case .object(let members): .object(members.mapValues(\.retyped))
        case .null, .bool, .number: self
        }
    }
}

extension SignedDataVerifier {
    fileprivate func refuses(_ text: String) async -> Bool { (try? await transaction(text)) == nil }
}
