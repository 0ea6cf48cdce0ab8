/// What happened outside of the journal.
public enum JournalEvent: Sendable, Hashable {
    // MARK: The app

    /// The app has started, and the journal has its records. Comes once, before all other events.
    case launched
    /// The app came to the foreground.
    case foregrounded
    /// The page that sells was opened.
    case shopOpened
    /// A user has logged in, or has a new credential.
    case loggedIn(UserID)
    /// Nobody is logged in.
    case loggedOut
    /// The server issued a token for this installation.
    case installationIssued(token: String)

    // MARK: Buying

    /// The user is about to buy. Makes the record, before anything else happens.
    case begun(RecordKey)
    /// Something is known of what is about to be bought, by whom, and for whom. What is set stays.
    ///
    /// `token` is a token of the user that the server issued, for purchases without an order.
    case described(RecordKey, user: UserID, PurchaseDetails, token: AccountToken? = nil)
    /// The server placed an order for the record, before the payment or after it.
    case ordered(RecordKey, order: String)
    /// The server placed no order.
    case orderFailed(RecordKey)
    /// The server says that the record's order was granted, by this transaction.
    case orderGranted(RecordKey, transaction: String)
    /// The app asks to begin the payment.
    case payRequested(RecordKey)
    /// The app gives the purchase up. Counts only before the payment was asked for.
    case abandoned(RecordKey)

    // MARK: The store

    /// The store wrote this revision of a record, and it survives a loss of power.
    case stored(RecordKey, revision: UInt32)
    /// The store could not write this revision of a record.
    case storeFailed(RecordKey, revision: UInt32)
    /// The store found a record that it cannot read, and has put it aside.
    case unreadable(name: String)

    // MARK: StoreKit

    /// The payment call of this record returned.
    case returned(RecordKey, PaymentAnswer)
    /// StoreKit shows a transaction that was paid: in `updates`, in `unfinished`, in the queue, in a restore, in a
    /// view.
    case seen(StoreTransaction)
    /// StoreKit 1 shows a transaction that failed.
    case seenFailed(transaction: String?, product: String)
    /// StoreKit finished the transaction, or does not have it any more.
    case finished(transaction: String)
    /// StoreKit did not finish the transaction within the limit, or reported an error.
    case finishFailed(transaction: String)

    // MARK: The server

    /// A post was answered, or was not.
    case posted(number: Int, PostAnswer)
    /// The server was asked about a record that it has stored; nil without an answer.
    case polled(RecordKey, RecordAnswer?)
    /// The time of ``JournalAction/wake(number:afterSeconds:)`` has passed.
    case woke(number: Int)
}

/// How StoreKit's payment call ended.
public enum PaymentAnswer: Sendable, Hashable {
    /// With a transaction, verified by StoreKit or not.
    case purchased(StoreTransaction)
    /// The payment waits for a parent or for the bank.
    case pending
    /// StoreKit says that the user cancelled.
    case cancelled
    /// StoreKit says that it failed. StoreKit 1 may name the transaction.
    case failed(transaction: String?)
    /// With anything else: an error that may hide a payment, a result of a later version.
    case unknown
}

/// A transaction that StoreKit shows.
public struct StoreTransaction: Sendable, Hashable {
    /// Apple's id.
    public var id: String
    /// Apple's product id.
    public var product: String
    /// What the transaction says about the `appAccountToken`.
    public var token: Token
    /// When the purchase was made, in milliseconds since 1970 by Apple's clock.
    public var purchasedAt: Int64?
    /// What the server is shown.
    public var proof: PurchaseProof

    /// What a transaction says about its `appAccountToken`.
    public enum Token: Sendable, Hashable {
        /// StoreKit 2: there is none.
        case none
        /// StoreKit 2: this one.
        case some(AccountToken)
        /// StoreKit 1: a transaction that comes after a restart does not show it.
        case unknown
    }

    /// A transaction.
    public init(id: String, product: String, token: Token, purchasedAt: Int64? = nil, proof: PurchaseProof) {
        self.id = id
        self.product = product
        self.token = token
        self.purchasedAt = purchasedAt
        self.proof = proof
    }
}

/// What came of a post.
public enum PostAnswer: Sendable, Hashable {
    /// The server answered for each record. A record that is missing here counts as not answered.
    case answered([RecordKey: RecordAnswer])
    /// The server refused the whole request.
    case refused(status: Int, retryAfter: Int? = nil)
    /// No answer, or one that cannot be read.
    case none
}

/// What the server says about one record.
public struct RecordAnswer: Sendable, Hashable {
    /// The HTTP status of the record's entry.
    public var status: Int
    /// The answer's `safeToFinish`. Counts only with a status of success.
    public var isSafeToFinish: Bool
    /// The server's id of the receipt.
    public var receipt: String?
    /// Whether the answer's `reason` is `foreign_order`, `foreign_record`, `foreign_token` or `token_disputed`: a post
    /// of another user may decide it.
    public var isPerhapsAnothers: Bool
    /// The answer's `refreshReceipt`: the app receipt is older than the purchase.
    public var needsFreshReceipt: Bool

    /// An answer.
    public init(
        status: Int, isSafeToFinish: Bool, receipt: String? = nil, isPerhapsAnothers: Bool = false,
        needsFreshReceipt: Bool = false
    ) {
        self.status = status
        self.isSafeToFinish = isSafeToFinish
        self.receipt = receipt
        self.isPerhapsAnothers = isPerhapsAnothers
        self.needsFreshReceipt = needsFreshReceipt
    }

    /// Whether the server has stored the proof.
    var isStored: Bool { (200..<300).contains(status) }
    /// Whether the transaction may be finished: never by an error's word.
    var isSafe: Bool { isStored && isSafeToFinish }
}
