// From what StoreKit shows to the record that it belongs to. All ways meet in one record by the transaction's id.
extension PurchaseJournal {
    mutating func seen(_ transaction: StoreTransaction) {
        guard isOurs(transaction.product) else { return }
        if let key = key(of: transaction.id) { return seenAgain(key, transaction) }
        guard case .some(let token) = transaction.token else { return claim(makeEntry(transaction), isStored: false) }

        let named = inOrder.filter { $0.accountToken == token && !$0.isAnybodys }
        let waiting = named.filter {
            $0.phase.waitsForTransaction && $0.transaction == nil && asking[$0.key] == nil
                && ($0.details.product == transaction.product || $0.order == token.text)
        }
        if let key = best(of: waiting, purchasedAt: transaction.purchasedAt) { return bind(key, transaction) }
        var entry = makeEntry(transaction)
        guard let other = named.last else { return claim(entry, isStored: false) }
        // One more purchase with a token of this device, such as a renewal: the token says whose it is.
        insert(&entry, like: other, order: other.order == token.text ? other.order : nil)
    }

    /// Puts in one more purchase of a record's user.
    private mutating func insert(_ entry: inout PurchaseRecord, like other: PurchaseRecord, order: String?) {
        entry.user = other.user
        entry.order = order
        entry.details.complete(with: other.details)
        entry.phase = .paid
        insert(entry)
        enqueue(entry.key)
    }

    /// A record for a transaction that came without one.
    private mutating func makeEntry(_ transaction: StoreTransaction) -> PurchaseRecord {
        var entry = makeRecord(RecordKey(transaction: transaction.id))
        entry.phase = .unclaimed
        entry.transaction = transaction.id
        entry.proof = transaction.proof
        entry.details.product = transaction.product
        entry.details.time = transaction.purchasedAt
        switch transaction.token {
        case .none: break
        case .some(let token): entry.accountToken = token
        case .unknown: entry.mayHaveLostToken = true
        }
        return entry
    }

    /// Gives a record the transaction that it waited for.
    private mutating func bind(_ key: RecordKey, _ transaction: StoreTransaction) {
        change(key) {
            $0.transaction = transaction.id
            $0.proof = transaction.proof
            $0.phase = .paid
        }
        enqueue(key)
    }

    private mutating func seenAgain(_ key: RecordKey, _ transaction: StoreTransaction) {
        guard let record = records[key] else { return }
        switch record.phase {
        case .failed, .cancelled, .asked, .pending, .unknown:
            // It was reported failed under this id, and was paid all the same.
            guard record.user == nil else { return bind(key, transaction) }
            change(key) {
                $0.proof = transaction.proof
                $0.phase = .unclaimed
                $0.mayHaveLostToken = transaction.token == .unknown
                if case .some(let token) = transaction.token { $0.accountToken = token }
            }
            claimAll()
        case .unclaimed, .paid, .accepted:
            let isNew = transaction.proof != record.proof && transaction.proof != .transactionOnly
            if isNew { change(key) { $0.proof = transaction.proof } }
            if isNew || round.turns[key] == nil { enqueue(key) }
        case .safe: finish(record)
        case .reserved, .prepared, .finished: break
        }
    }

    /// The payment call of this record brought a transaction.
    mutating func purchased(_ key: RecordKey, _ transaction: StoreTransaction) {
        guard let record = records[key], record.phase != .reserved, record.phase != .prepared else {
            return seen(transaction)
        }
        if case .some(let token) = transaction.token, token != record.accountToken {
            // StoreKit shows an earlier purchase of the product, which may be another user's.
            if record.phase == .asked { change(key) { $0.phase = .failed } }
            return seen(transaction)
        }
        if let known = self.key(of: transaction.id), known != key {
            if record.phase.waitsForTransaction, records[known]?.isAnybodys == true { takeOver(key, known) }
            return seen(transaction)
        }
        if record.phase.waitsForTransaction { return bind(key, transaction) }
        guard record.transaction != transaction.id else { return seen(transaction) }
        // `updates` gave this record another purchase with the same token: this one is of the same user.
        var entry = makeEntry(transaction)
        insert(&entry, like: record, order: record.order)
    }

    mutating func seenFailed(_ transaction: String?, _ product: String) {
        guard isOurs(product) else { return }
        if let known = transaction.flatMap(key(of:)) {
            guard let record = records[known], record.phase.waitsForTransaction else { return }
            change(known) { $0.phase = .failed }
            countFailure(known)
            return report(.failed, records[known])
        }
        let waiting = inOrder.filter {
            $0.phase.isUnanswered && $0.details.product == product && $0.transaction == nil && !isBusy($0.key)
        }
        if let last = waiting.last, Set(waiting.map(\.user)).count == 1 {
            change(last.key) {
                $0.transaction = transaction
                $0.phase = .failed
            }
            if transaction != nil { countFailure(last.key) }
            return report(.failed, records[last.key])
        }
        guard let transaction else {
            return report(.failed, nil, message: "A payment for \(product) failed, and no record is of it.")
        }
        var entry = makeRecord(RecordKey(transaction: transaction))
        entry.phase = .failed
        entry.transaction = transaction
        entry.details.product = product
        entry.failures = 1
        insert(entry)
        report(.failed, entry)
    }

    mutating func finished(_ transaction: String) {
        guard let key = key(of: transaction), let record = records[key] else { return }
        if record.phase == .safe {
            change(key) { $0.phase = .finished }
            remove(key)
        } else if record.phase == .failed, record.user == nil {
            // Nobody asked for this payment here, and it is out of the queue.
            remove(key)
        }
    }
}

// MARK: - Whose is a transaction without a record?

extension PurchaseJournal {
    private enum Claim: Equatable {
        /// It belongs to this record.
        case record(RecordKey)
        /// A payment of the product is under way, and its answer will tell.
        case waits
        /// It is posted as this user's.
        case adopted(UserID)
        /// Nobody is logged in.
        case nobody

        var isRecord: Bool {
            if case .record = self { true } else { false }
        }
    }

    /// Finds the records and the users of all transactions that have none.
    mutating func claimAll() {
        for entry in inOrder where entry.phase == .unclaimed && !entry.isAdopted { claim(entry, isStored: true) }
    }

    mutating func claim(_ entry: PurchaseRecord, isStored: Bool) {
        let found = claim(of: entry)
        if !isStored, !found.isRecord { insert(entry) }
        switch found {
        case .record(let key):
            records[entry.key] = entry
            takeOver(key, entry.key, isStored: isStored)
        case .adopted(let user):
            change(entry.key) {
                $0.user = user
                $0.isAdopted = true
                $0.phase = .paid
            }
            enqueue(entry.key)
        case .waits, .nobody: break
        }
    }

    private func claim(of entry: PurchaseRecord) -> Claim {
        if entry.accountToken == nil, !entry.isAdopted {
            let candidates = inOrder.filter {
                $0.phase.waitsForTransaction && $0.transaction == nil && $0.user != nil
                    && $0.details.product == entry.details.product
                    && ($0.accountToken == nil || entry.mayHaveLostToken) && asking[$0.key] == nil
            }
            if candidates.contains(where: { calls.contains($0.key) }) { return .waits }
            let unanswered = candidates.filter(\.phase.isUnanswered)
            if Set(unanswered.map(\.user)).count == 1, let key = best(of: unanswered, purchasedAt: entry.details.time) {
                return .record(key)
            }
            // What was answered is no question of another user any more.
            let answered = candidates.filter { !$0.phase.isUnanswered && $0.user == session?.user }
            if unanswered.isEmpty, let key = best(of: answered, purchasedAt: entry.details.time) { return .record(key) }
        }
        return session.map { .adopted($0.user) } ?? .nobody
    }

    /// The record that a transaction fits best: one whose payment is not answered; one that was made before the
    /// purchase, as far as the device's clock can say; the newest.
    private func best(of records: [PurchaseRecord], purchasedAt: Int64?) -> RecordKey? {
        let tolerance: Int64 = 300_000
        func rank(_ record: PurchaseRecord) -> (Int, Int, UInt64) {
            var isEarlier = true
            if let time = record.details.time, let purchasedAt { isEarlier = time - tolerance <= purchasedAt }
            return (record.phase.isUnanswered ? 1 : 0, isEarlier ? 1 : 0, record.sequence)
        }
        return records.max { rank($0) < rank($1) }?.key
    }

    /// Puts the transaction of one record into another one. A kill between the two steps leaves both, which the next
    /// start makes one.
    mutating func takeOver(_ key: RecordKey, _ source: RecordKey, isStored: Bool = true) {
        guard let entry = records[source] else { return }
        records[source] = nil
        change(key) {
            $0.transaction = entry.transaction
            $0.proof = entry.proof
            $0.receipt = entry.receipt
            $0.mayHaveLostToken = entry.mayHaveLostToken
            $0.phase = entry.proof == nil ? .failed : entry.phase == .unclaimed ? .paid : entry.phase
        }
        if isStored { remove(source) }
        enqueue(key)
    }

    /// Whether StoreKit's answer to the payment is still to come in this run of the app.
    func isBusy(_ key: RecordKey) -> Bool { calls.contains(key) || asking[key] != nil }
}

extension PurchaseRecord {
    /// Whether no user's act stands behind the record's user.
    var isAnybodys: Bool { isAdopted || user == nil }
}
