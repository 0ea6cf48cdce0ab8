/// What the app keeps of one purchase until the server says that its transaction is safe to finish.
///
/// A record has the eleven columns of a pending purchase, and a few more. The article <doc:TheJournal> says which stage
/// sets which column.
public struct PurchaseRecord: Sendable, Hashable {
    /// The record's name.
    public let key: RecordKey
    /// The place of the record in the order in which this device made its records.
    public let sequence: UInt64
    /// How often the record was changed. Of two copies the one with the higher revision counts.
    public internal(set) var revision: UInt32 = 0
    /// Where the purchase stands.
    public internal(set) var phase: Phase = .reserved
    /// The user whose purchase it is, for ever (`uid`). Only a record that the journal made by itself, for a
    /// transaction that came without one, may change its user (``isAdopted``).
    public internal(set) var user: UserID?
    /// What the user chose.
    public internal(set) var details = PurchaseDetails()
    /// The server's order.
    public internal(set) var order: String?
    /// The token that StoreKit was given, or that came with the transaction.
    public internal(set) var accountToken: AccountToken?
    /// Whether the transaction may have had a token that StoreKit 1 does not show.
    public internal(set) var mayHaveLostToken = false
    /// Apple's id of the transaction (`transactionId`).
    public internal(set) var transaction: String?
    /// What the server is shown (`receipt`).
    public internal(set) var proof: PurchaseProof?
    /// The server's id of the stored receipt.
    public internal(set) var receipt: String?
    /// Whether the record was made for a transaction that came without one, and its user is the user who was logged in.
    public internal(set) var isAdopted = false
    /// How many rounds ended without the word that the transaction is safe to finish, at most 3.
    public internal(set) var failures: UInt8 = 0

    init(key: RecordKey, sequence: UInt64) {
        self.key = key
        self.sequence = sequence
    }

    /// Whether the transaction was finished (`finishTransaction`).
    public var isFinished: Bool { phase == .finished }

    /// Which columns are set.
    public var stage: Stage {
        switch phase {
        case .reserved: .empty
        case .finished: .finished
        case .unclaimed, .paid, .accepted, .safe: .paid
        case .prepared, .asked, .pending, .unknown, .failed, .cancelled: details.country == nil ? .described : .located
        }
    }

    /// The stages of a record, each with the columns that it sets.
    public enum Stage: UInt8, Sendable, Hashable, CaseIterable {
        /// 1.1: the record exists, and all columns are empty.
        case empty = 1
        /// 1.2, before the payment: token, user, product, quantity, server, role and time.
        case described
        /// 1.3, later and before the transaction's id is known: country.
        case located
        /// 1.4, when Apple reports success: the transaction's id and the proof.
        case paid
        /// 1.5, after the transaction was finished.
        case finished
    }

    /// Where a purchase stands.
    public enum Phase: String, Sendable, Hashable, CaseIterable {
        /// The record exists, and nothing is known yet.
        case reserved
        /// User and product are known. Nobody has asked for the payment.
        case prepared
        /// StoreKit was or is being asked for the payment, and has not answered.
        case asked
        /// The payment waits for somebody: a parent, or the bank.
        case pending
        /// The payment was asked for, and nobody knows with which result.
        case unknown
        /// StoreKit reported a failure. The money may have been taken all the same.
        case failed
        /// StoreKit reported that the user cancelled. The money may have been taken all the same.
        case cancelled
        /// Apple shows a transaction, and it is not known whose it is.
        case unclaimed
        /// Apple shows the transaction. The server has not said that it has it.
        case paid
        /// The server has stored the proof, and the transaction is not yet safe to finish.
        case accepted
        /// The server said that the transaction is safe to finish.
        case safe
        /// The transaction was finished. The record is about to be removed.
        case finished

        /// Whether StoreKit was asked, and the answer may still come.
        var isUnanswered: Bool { self == .asked || self == .pending || self == .unknown }
        /// Whether StoreKit was asked, and no transaction is known.
        var waitsForTransaction: Bool { isUnanswered || self == .failed || self == .cancelled }
        /// Whether the server must be shown the proof.
        var isOwed: Bool { self == .paid || self == .accepted }
    }
}

/// What the user chose, and what the app knows of the user's place in the game. Every field may be missing.
public struct PurchaseDetails: Sendable, Hashable {
    /// A mark of the user's session for support (`token`). Never the session's credential: give a digest.
    public var session: String?
    /// Apple's product id (`item`).
    public var product: String?
    /// The item that is sold under the product, where there are several.
    public var item: String?
    /// How many units (`itemnum`). 1 if missing.
    public var quantity: UInt32?
    /// The game server that gets the goods (`appsid`).
    public var server: String?
    /// The role that gets the goods (`ext`).
    public var role: String?
    /// The device's clock when the user tapped, in milliseconds since 1970 (`vtime`). It decides no owner.
    public var time: Int64?
    /// The country of the storefront.
    public var country: String?

    /// Details that are all missing.
    public init() {}

    /// Takes over what is missing here. What is set stays.
    mutating func complete(with other: Self) {
        session = session ?? other.session
        product = product ?? other.product
        item = item ?? other.item
        quantity = quantity ?? other.quantity
        server = server ?? other.server
        role = role ?? other.role
        time = time ?? other.time
        country = country ?? other.country
    }
}

/// What Apple gave the app as a proof of a purchase.
public enum PurchaseProof: Sendable, Hashable {
    /// StoreKit 2's signed transaction, whether StoreKit could verify it or not (`jwsRepresentation`).
    case signedTransaction(String)
    /// The app receipt of StoreKit 1 in base64.
    case appReceipt(String)
    /// No proof: the app receipt is not there yet. The server is shown the transaction's id.
    case transactionOnly

    /// The number of bytes that a post carries for it.
    var byteCount: Int {
        switch self {
        case .signedTransaction(let text), .appReceipt(let text): text.utf8.count
        case .transactionOnly: 0
        }
    }
}
