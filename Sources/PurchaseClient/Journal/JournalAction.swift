/// What the journal wants done. The actions of one event are done in their order.
public enum JournalAction: Sendable, Hashable {
    /// Write the record, durably, and report ``JournalEvent/stored(_:revision:)`` or
    /// ``JournalEvent/storeFailed(_:revision:)``. The actions behind it are done in both cases.
    case write(PurchaseRecord)
    /// Remove the record. A failure does no harm.
    case erase(RecordKey)
    /// Write the installation's token beside the records.
    case writeInstallation(token: String)

    /// Ask StoreKit for the payment, with the record's token if it has one, and report
    /// ``JournalEvent/returned(_:_:)``.
    case pay(RecordKey)
    /// List the unfinished transactions, and report each as ``JournalEvent/seen(_:)``.
    case scan
    /// Finish the transaction, within 10 seconds, and report ``JournalEvent/finished(transaction:)`` or
    /// ``JournalEvent/finishFailed(transaction:)``.
    case finish(transaction: String)
    /// Finish the transaction if StoreKit 1 shows it as failed at that very moment, and report as for
    /// ``finish(transaction:)``. A transaction that has become paid meanwhile is not finished.
    case finishFailed(transaction: String)
    /// Have StoreKit 1 refresh the app receipt, and report the transaction again with it.
    case refreshReceipt(RecordKey)

    /// `POST /v1/installations`, as the user who is logged in.
    case askInstallation
    /// `POST /v1/orders` as the record's user, with the record's key as `idempotencyKey`. With `transaction` the order
    /// is for a purchase that came without one.
    case placeOrder(RecordKey, transaction: String?)
    /// `GET /v1/orders/{id}`; report
    /// ``JournalEvent/orderGranted(_:transaction:)`` if its state is `granted`.
    case askOrder(RecordKey, order: String)
    /// `POST /v1/receipts/batch?wait=20` with the user's credential; report ``JournalEvent/posted(number:_:)``.
    case post(PurchasePost)
    /// After these seconds, `GET /v1/receipts/{id}?wait=20` with the credential of the record's user; report
    /// ``JournalEvent/polled(_:_:)``.
    case poll(RecordKey, receipt: String, afterSeconds: Int)
    /// `POST /v1/client-reports`. Nobody waits for the answer.
    case report(ClientReport)
    /// Report ``JournalEvent/woke(number:)`` after these seconds.
    case wake(number: Int, afterSeconds: Int)

    /// Tell the app.
    case tell(JournalNotice)
}

/// One post: records of one user.
public struct PurchasePost: Sendable, Hashable {
    /// The post's number, for ``JournalEvent/posted(number:_:)``.
    public let number: Int
    /// The user whose credential the post needs.
    public let user: UserID
    /// The records, each an entry of the batch.
    public let records: [PurchaseRecord]
    /// The installation's token, if there is one.
    public let installationToken: String?
}

/// A failure that the server is told. It closes nothing there.
public struct ClientReport: Sendable, Hashable {
    /// The report's `kind`.
    public enum Kind: String, Sendable, Hashable {
        case failed, cancelled, deferred, error
    }

    /// What happened.
    public var kind: Kind
    /// The record's user.
    public var user: UserID?
    /// The record's order.
    public var order: String?
    /// The transaction that StoreKit named.
    public var transaction: String?
    /// Words for support.
    public var message: String?
}

/// What the app is told. The app may ignore all of it.
public enum JournalNotice: Sendable, Hashable {
    /// The purchase has ended at the server: load the account again.
    case settled(RecordKey)
    /// Five posts brought no result. The record is kept, and posted again at the next occasion.
    case kept(RecordKey)
    /// A record waits for its user.
    case waitsForLogin(UserID)
    /// The payment waits for a parent or for the bank.
    case pending(RecordKey)
    /// There is no order: the app may pay without one, or give up.
    case noOrder(RecordKey)
    /// The payment is not begun.
    case refused(RecordKey, Refusal)

    /// Why a payment is not begun.
    public enum Refusal: String, Sendable, Hashable {
        /// The key is another record's.
        case keyTaken
        /// The record does not exist, has no product or no user, or its payment was asked for before.
        case notPrepared
        /// Another user is logged in, or nobody is.
        case otherUser
        /// The product is not of the policy's products.
        case foreignProduct
        /// The record could not be stored, so it would not survive a crash.
        case notStored
    }
}
