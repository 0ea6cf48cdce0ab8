// From the tap to the payment. The record is stored before StoreKit is asked.
extension PurchaseJournal {
    mutating func begun(_ key: RecordKey) {
        guard records[key] == nil else { return tell(.refused(key, .keyTaken)) }
        insert(makeRecord(key))
        useOccasion()
    }

    mutating func described(_ key: RecordKey, _ user: UserID, _ details: PurchaseDetails, _ token: AccountToken?) {
        guard let record = records[key] else { return tell(.refused(key, .notPrepared)) }
        guard record.user == nil || record.user == user else { return tell(.refused(key, .otherUser)) }
        if let product = details.product, !isOurs(product) { return tell(.refused(key, .foreignProduct)) }
        switch record.phase {
        case .reserved, .prepared:
            change(key) {
                $0.user = user
                $0.details.complete(with: details)
                $0.accountToken = $0.accountToken ?? token
                if $0.details.product != nil { $0.phase = .prepared }
            }
            if record.phase == .reserved, records[key]?.phase == .prepared { placeOrder(key) }
        case .asked, .pending, .unknown, .failed, .cancelled:
            change(key) { $0.details.country = $0.details.country ?? details.country }
        case .unclaimed, .paid, .accepted, .safe, .finished: break
        }
    }

    /// Has an order placed before the payment.
    private mutating func placeOrder(_ key: RecordKey) {
        if canUse(records[key]?.user) {
            actions.append(.placeOrder(key, transaction: nil))
        } else {
            tell(.noOrder(key))
        }
    }

    mutating func ordered(_ key: RecordKey, _ order: String) {
        guard let record = records[key], record.order == nil else { return }
        switch record.phase {
        case .prepared:
            change(key) {
                $0.order = order
                $0.accountToken = AccountToken(order) ?? $0.accountToken
            }
        // StoreKit was asked with another token or with none: the order names the purchase in the post alone.
        case .asked, .pending, .unknown, .failed, .cancelled, .unclaimed: change(key) { $0.order = order }
        case .paid, .accepted:
            change(key) { $0.order = order }
            enqueue(key)
        case .reserved, .safe, .finished: break
        }
    }

    mutating func payRequested(_ key: RecordKey) {
        guard let record = records[key], record.phase == .prepared else { return tell(.refused(key, .notPrepared)) }
        guard record.user == session?.user else { return tell(.refused(key, .otherUser)) }
        change(key) { $0.phase = .asked }
        asking[key] = records[key]?.revision
    }

    mutating func stored(_ key: RecordKey, _ revision: UInt32) {
        if records[key]?.revision == revision { unstored.remove(key) }
        guard let record = records[key], asking[key] == revision else { return }
        asking[key] = nil
        guard record.user == session?.user else { return giveUp(key, .otherUser) }
        calls.insert(key)
        actions.append(.pay(key))
    }

    mutating func storeFailed(_ key: RecordKey, _ revision: UInt32) {
        guard let record = records[key], record.revision == revision else { return }
        unstored.insert(key)
        guard asking[key] == revision else { return }
        asking[key] = nil
        giveUp(key, .notStored)
    }

    /// StoreKit was not asked: the payment may be asked for again.
    private mutating func giveUp(_ key: RecordKey, _ refusal: JournalNotice.Refusal) {
        change(key) { $0.phase = .prepared }
        tell(.refused(key, refusal))
    }

    mutating func returned(_ key: RecordKey, _ answer: PaymentAnswer) {
        calls.remove(key)
        switch answer {
        case .purchased(let transaction): purchased(key, transaction)
        case .pending:
            guard end(key, .pending) else { break }
            tell(.pending(key))
            report(.deferred, records[key])
        case .cancelled:
            if end(key, .cancelled) { report(.cancelled, records[key]) }
        case .failed(let transaction):
            guard end(key, .failed) else { break }
            if let transaction, self.key(of: transaction) == nil {
                change(key) { $0.transaction = transaction }
                countFailure(key)
            }
            report(.failed, records[key])
        case .unknown:
            if end(key, .unknown) { report(.error, records[key], message: "The payment ended with an unknown result.") }
        }
        claimAll()
    }

    /// Whether StoreKit's answer is news: not where `updates` was faster, and showed the transaction.
    private mutating func end(_ key: RecordKey, _ phase: PurchaseRecord.Phase) -> Bool {
        guard let record = records[key], record.phase.waitsForTransaction, asking[key] == nil else { return false }
        change(key) { $0.phase = phase }
        return true
    }

    /// A failure of a transaction. The third one of StoreKit's takes it out of StoreKit's queue, so that the product
    /// can be bought again; the record stays.
    mutating func countFailure(_ key: RecordKey) {
        change(key) { $0.failures = min($0.failures + 1, Self.failuresMax) }
        if let record = records[key], record.phase == .failed, record.failures == Self.failuresMax,
            let transaction = record.transaction
        {
            actions.append(.finishFailed(transaction: transaction))
        }
    }

    func canUse(_ user: UserID?) -> Bool {
        guard let session, session.isUsable else { return false }
        return session.user == user
    }
}
