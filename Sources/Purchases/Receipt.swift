import Crypto
package import Foundation

/// Where a receipt stands. The raw value is the word in SQL, logs, answers and dashboards.
package enum ReceiptState: String, Sendable, CaseIterable, Codable {
    /// Being tried: a worker has it, or its due time will bring it to one.
    case received
    /// Waits for a product, a policy or a person; judged again by the scheduler.
    case held
    /// Tried for 24 hours and eight attempts without an answer, or it never reached a verdict; judged again, rarely.
    case parked
    /// At least one of its transactions was granted by it.
    case granted
    /// Everything in it had been granted before.
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
    /// A base64 app receipt (PKCS#7). Apple is asked.
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

/// Which queue a receipt waits in: a slow Apple never stands before proofs that need no call, nor does a heap of big
/// receipts before one purchase that has just been made.
package enum Lane: String, Sendable, CaseIterable {
    case local
    case apple
    /// Big receipts: looked at without a call, few at a time. What is known of them ends there; what Apple has to be asked
    /// about goes on to its queue, so that there as here nothing fresh waits for players who only show their past again.
    case bulk

    /// A receipt of at least so many bytes of base64 is big: some forty purchases, while one that was just made comes
    /// with few others as a rule.
    package static let bulkBytesMin = 32 << 10

    package init(_ kind: Proof.Kind) {
        switch kind {
        case .signedTransaction: self = .local
        case .receipt, .identifier: self = .apple
        }
    }

    /// How long after a publish a row without a verdict is queued again. Longer than the longest call.
    package var rescueDelay: Duration {
        switch self {
        case .local: .seconds(10)
        // Waits longer than others where many come at once: again is one more message before the others.
        case .apple, .bulk: .seconds(60)
        }
    }
}

/// One intake: who says what, with which proof.
package struct Submission: Sendable, Equatable {
    package let appID: String
    /// Nil where only an order names the user.
    package let userID: String?
    package let orderID: String?
    package let proof: Proof
    /// The transaction meant, where the proof holds several; the one asked about, where there is no proof.
    package let transactionID: String?
    package let originalTransactionID: String?
    /// Vouched for by a trusted backend (scope `claim`): a bare id counts as possession.
    package let isVouched: Bool
    /// Everything else that was sent, as one JSON object: item, quantity, target, client and unknown fields.
    package let details: String
    /// Where in the game goods without an order go, one JSON object: from `target` and the old clients' columns (S0-9).
    package let target: String?
    /// What it says of the purchase it means, for the judge.
    package let declared: Declaration?
    /// Of the token that this server issued to the installation it was posted from.
    package var installationTokenSHA256: [UInt8]?
    /// A trusted backend posts a record whose `uid` is its user's id: so records of this app name their users.
    package var showsRecordOfUser = false
    /// Where it waits first: by the shape of its proof, and with Apple's where the app's policy is to ask in any case.
    package var lane: Lane
    /// Its user posts so many at once that this one comes in turn with other users' receipts, by the scheduler: no message
    /// is published for it when it is stored.
    package var waitsForTurn = false
    /// One proof of one user is one row, whatever is said beside it: no read is needed to find it again (S1-2, P5).
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
        // Without a proof, the ids and who vouches are all that tell two questions apart.
        if proof == .identifier {
            parts += [transactionID ?? "", originalTransactionID ?? "", isVouched ? "vouched" : ""]
        }
        receiptID = DerivedID.make(parts)
    }
}
