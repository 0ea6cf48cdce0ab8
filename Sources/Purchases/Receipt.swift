import Crypto
package import Foundation

/// Where a receipt stands. The raw value is the word in SQL, logs, answers and dashboards.
package enum ReceiptState: String, Sendable, CaseIterable, Codable {
    /// A worker has the receipt, or the scheduler publishes its id again when it is due.
    case received
    /// Waits for a product, a policy or a person. The scheduler publishes the receipt's id again, so that it is judged
    /// again.
    case held
    /// Apple gave no answer for 24 hours and eight attempts, or the receipt never reached a verdict. It is judged
    /// again, rarely.
    case parked
    /// At least one of its transactions was granted by it.
    case granted
    /// Every transaction in it had been granted before.
    case alreadyGranted = "already_granted"
    /// There is proof that nothing can be granted.
    case rejected

    /// Ended rows have `settled_at`, open rows have `due_at`.
    package var isEnded: Bool {
        switch self {
        case .granted, .alreadyGranted, .rejected: true
        case .received, .held, .parked: false
        }
    }
}

/// What a client submitted as proof, verbatim. Exactly one of the three.
package enum Proof: Sendable, Equatable {
    /// A StoreKit 2 signed transaction (JWS). Verified without a call.
    case signedTransaction(String)
    /// A base64 app receipt (PKCS#7). Verified as the app's ``AppPolicy/LegacyStrategy`` says.
    case receipt(String)
    /// Ids alone: a question to Apple, no possession.
    case identifier

    package enum Kind: String, Sendable, CaseIterable {
        case signedTransaction = "signed_transaction"
        case receipt
        case identifier
    }

    package var kind: Kind {
        switch self {
        case .signedTransaction: .signedTransaction
        case .receipt: .receipt
        case .identifier: .identifier
        }
    }

    /// The proof as it is stored and hashed; empty for ids alone.
    package var payload: String {
        switch self {
        case .signedTransaction(let text), .receipt(let text): text
        case .identifier: ""
        }
    }

    /// SHA-256 of the payload's UTF-8, 32 bytes: it outlives the payload.
    package var payloadSHA256: [UInt8] {
        var payload = payload
        return payload.withUTF8 { Array(SHA256.hash(data: UnsafeRawBufferPointer($0))) }
    }

    package init(kind: Kind, payload: String) {
        switch kind {
        case .signedTransaction: self = .signedTransaction(payload)
        case .receipt: self = .receipt(payload)
        case .identifier: self = .identifier
        }
    }
}

/// The queue in which a receipt waits. Proofs that need no call never wait behind a slow Apple, and a purchase that has
/// just been made never waits behind many big receipts.
package enum Lane: String, Sendable, CaseIterable {
    case local
    case apple
    /// Big receipts. Workers look at them without a call, a few at a time. Purchases that are known need nothing more;
    /// if Apple has to be asked about others, the receipt goes on to Apple's queue. So in neither queue a fresh
    /// purchase waits behind users who only show their past purchases again.
    case bulk
    /// The lane of Apple's notifications, and of receipts that nobody posted. So a flood of renewals never delays the
    /// purchase of a user who waits.
    case unposted

    /// A receipt of at least this many bytes of base64 is big: it lists some forty purchases. A purchase that was just
    /// made usually comes with few others.
    package static let bulkBytesMin = 32 << 10

    package init(_ kind: Proof.Kind) {
        switch kind {
        case .signedTransaction: self = .local
        case .receipt, .identifier: self = .apple
        }
    }

    /// Whether a worker may ask Apple about a receipt from this lane. From the others a receipt moves to Apple's lane
    /// first.
    package var asksApple: Bool { self == .apple || self == .unposted }

    /// How long after a publish the scheduler publishes the id of a row without a verdict again. Longer than the
    /// longest call.
    package var rescueDelay: Duration {
        switch self {
        case .local: .seconds(10)
        // Receipts wait longer here if many come at once, and each repeated message delays the other messages.
        case .apple, .bulk, .unposted: .seconds(60)
        }
    }
}

/// The source of a receipt. The raw value is the word in SQL.
package enum ReceiptSource: String, Sendable, CaseIterable {
    /// A user, or the app's backend.
    case post
    /// Apple, by itself.
    case notification
    /// This server asked Apple.
    case sweep
}

/// One submission: who says what, with which proof.
package struct Submission: Sendable, Equatable {
    package let appID: String
    /// Nil where only an order names the user.
    package let userID: String?
    package let orderID: String?
    package let proof: Proof
    /// The transaction that the post is about, if the proof holds several; the transaction to ask Apple about, if there
    /// is no proof.
    package let transactionID: String?
    package let originalTransactionID: String?
    /// Whether a trusted backend (scope `claim`) vouches for the user: then a bare id counts as possession.
    package let isVouched: Bool
    /// Everything else that was sent, as one JSON object: item, quantity, target, client and unknown fields.
    package let details: String
    /// Where in the game goods without an order go, one JSON object: from `target` and the old clients' columns (S0-9).
    package let target: String?
    /// What the post says about its purchase, for the judge.
    package let declared: Declaration?
    /// SHA-256 of the token that this server issued to the installation from which the post came.
    package var installationTokenSHA256: [UInt8]?
    /// What the signed transaction says that it is of, which nobody has verified: for look-ups alone.
    package var shownTransactionID: String?
    package var shownProductID: String?
    /// Whether a trusted backend posted a record whose `uid` is its user's id. Such a post shows that records of this
    /// app name their users.
    package var showsRecordOfUser = false
    /// The queue in which the receipt waits first: by the kind of its proof, or Apple's queue if the app's policy is to
    /// ask Apple in any case.
    package var lane: Lane
    /// Whether the user posts so many receipts at once that this one takes turns with other users' receipts. Then
    /// ingest publishes no message when it stores the receipt; the scheduler does, in turn.
    package var waitsForTurn = false
    package private(set) var source = ReceiptSource.post
    /// Of a submission that nobody posted: Apple's customer, where Apple says it.
    package private(set) var customerID: String?
    /// The id of the receipt, computed from its proof and user: one proof of one user is one row, whatever else the
    /// post says. No read is needed to find the row again (S1-2, P5).
    package let receiptID: UUID

    package init(
        appID: String, userID: String?, orderID: String? = nil, proof: Proof, transactionID: String? = nil,
        originalTransactionID: String? = nil, isVouched: Bool = false, details: String = "{}",
        target: String? = nil, declared: Declaration? = nil
    ) {
        self.appID = appID
        self.userID = userID
        self.orderID = orderID
        self.proof = proof
        self.transactionID = transactionID
        self.originalTransactionID = originalTransactionID
        self.isVouched = isVouched
        self.details = details
        self.target = target
        self.declared = declared
        lane = Lane(proof.kind)
        // Where nobody names the user, the order does: two orders are two posters.
        let poster = userID.map { ["user", $0] } ?? ["order", orderID ?? ""]
        var parts = [appID] + poster + [proof.kind.rawValue, proof.payload]
        // Without a proof, two questions differ only by their ids and by whether a backend vouches for the user.
        if proof == .identifier {
            parts += [transactionID ?? "", originalTransactionID ?? "", isVouched ? "vouched" : ""]
        }
        receiptID = DerivedID.make(parts)
    }

    /// A purchase that nobody posted. Its id follows from the transaction alone, so that whatever tells of the
    /// purchase, however often, makes one receipt.
    ///
    /// - Parameter jws: the transaction as Apple signed it.
    package init(unposted transaction: Transaction, jws: String, of appID: String, source: ReceiptSource) {
        self.init(
            appID: appID, proof: .signedTransaction(jws), transactionID: transaction.id,
            originalTransactionID: transaction.originalID, source: source,
            receiptID: Self.unpostedID(of: transaction.id, in: transaction.environment, app: appID))
        customerID = transaction.customerID
    }

    /// The id of the receipt of a purchase that nobody posted, whether or not there is one.
    package static func unpostedID(of transactionID: String, in environment: String, app appID: String) -> UUID {
        DerivedID.make([appID, "unposted", environment, transactionID])
    }

    /// An app receipt that nobody posted.
    ///
    /// - Parameter hintedID: the chain that it is probably about. Nobody has signed it: it only says when the receipt
    ///   is judged again.
    package init(unposted base64: String, hintedID: String?, of appID: String, source: ReceiptSource) {
        self.init(
            appID: appID, proof: .receipt(base64), originalTransactionID: hintedID, source: source,
            receiptID: DerivedID.make([appID, "unposted", "receipt", base64]))
    }

    private init(
        appID: String, proof: Proof, transactionID: String? = nil, originalTransactionID: String? = nil,
        source: ReceiptSource, receiptID: UUID
    ) {
        self.appID = appID
        userID = nil
        orderID = nil
        self.proof = proof
        self.transactionID = transactionID
        self.originalTransactionID = originalTransactionID
        isVouched = false
        details = "{}"
        target = nil
        declared = nil
        lane = .unposted
        self.source = source
        self.receiptID = receiptID
    }
}
