/// The endpoints that read purchases.
extension ServerAPI {
    /// Get Transaction Info (AppleFacts 3.3, endpoint 1).
    func transactionInfo() throws(AppleError) -> AppleAnswer {
        let purchase = try ledger.read { store throws(AppleError) -> Purchase in try self.purchase(call.id, store) }
        let token = try sign(purchase)
        return answer(capacity: token.utf8.count + 64) { $0.field("signedTransactionInfo", token) }
    }

    /// Get Transaction History (endpoints 2 and 2b), 20 to a page, in the order of their last modification.
    func history() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id)
        let (query, all) = try ledger.read { store throws(AppleError) -> (HistoryQuery, [Modified]) in
            let account = try checkedAccount(any: call.id, store)
            return (try HistoryQuery(call, account: account), purchases(of: account, store))
        }
        var due = all.filter { query.isDue($0.modification) && query.matches($0.purchase) }
        if call.service == .historyV1 {
            due.removeAll { $0.purchase.type == .consumable && $0.purchase.finishedAt != nil }
        }
        if query.isDescending { due.reverse() }
        let page = due.prefix(Self.page)
        let signed = try sign(page.map(\.purchase))
        let appAppleId = appAppleId
        return answer(capacity: 512 + signed.count * 5000) { json in
            json.field("revision", query.revision(page.last?.modification))
            json.field("hasMore", due.count > page.count)
            json.field("bundleId", app)
            json.field("appAppleId", ifPresent: appAppleId)
            json.field("environment", environment.rawValue)
            json.field("signedTransactions", array: { array in for token in signed { array.element(token) } })
        }
    }

    /// Get Refund History (endpoint 5), 20 to a page, in the order of their revocation. A share that a family member
    /// lost is no refund of that member.
    func refundHistory() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id)
        let (account, refunds) = try ledger.read { store throws(AppleError) -> (Account, [Modified]) in
            let account = try self.account(any: call.id, store)
            return (account, self.refunds(of: account, store))
        }
        let fingerprint = Revision.fingerprint(call, account: account)
        var after: (date: Int64, modification: Int64) = (-1, -1)
        if let text = try call.value("revision", else: .invalidRequestRevision) {
            guard let parts = Revision.parts(text, fingerprint), parts.count == 2 else {
                throw .invalidRequestRevision
            }
            after = (parts[0], parts[1])
        }
        let due = refunds.filter { Self.place($0) > after }
        let page = due.prefix(Self.page)
        if let last = page.last { after = Self.place(last) }
        let signed = try sign(page.map(\.purchase))
        return answer(capacity: 256 + signed.count * 5000) { json in
            json.field("signedTransactions", array: { array in for token in signed { array.element(token) } })
            json.field("revision", Revision.text([after.date, after.modification], fingerprint))
            json.field("hasMore", due.count > page.count)
        }
    }

    /// Get Refund History V1 (endpoint 5b): the last 50 at once.
    func refundHistoryV1() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id, else: .invalidOriginalTransactionId)
        let refunds = try ledger.read { store throws(AppleError) -> [Modified] in
            self.refunds(of: try account(any: call.id, store, else: .originalTransactionIdNotFound), store)
        }
        let signed = try sign(refunds.suffix(50).map(\.purchase))
        return answer(capacity: 256 + signed.count * 5000) { json in
            json.field("signedTransactions", array: { array in for token in signed { array.element(token) } })
        }
    }

    /// The refunds of an account, the refund longest ago first. A move into a bundle, or out of it, is no refund.
    private func refunds(of account: Account, _ store: borrowing LedgerState) -> [Modified] {
        purchases(of: account, store)
            .filter { item in
                item.purchase.revoked && item.purchase.revocationType != "FAMILY_REVOKE"
                    && item.purchase.revocationType != "ASSIGNMENT_REVOKE" && item.purchase.revocationReason != 2
            }
            .sorted { Self.place($0) < Self.place($1) }
    }

    /// Where a refund stands in the refund history.
    private static func place(_ refund: Modified) -> (date: Int64, modification: Int64) {
        (refund.purchase.revocationDate ?? 0, Int64(refund.modification))
    }

    /// Look Up Order ID (endpoint 4). An unknown order is no error; the sandbox has no such endpoint.
    func orderLookup() throws(AppleError) -> AppleAnswer {
        guard environment == .production else { return answer(status: 404) }
        guard OrderId.isWellFormed(call.id) else { throw .generalBadRequest }
        let purchases = ledger.read { store in store.order(call.id).filter { knows($0) } }
        guard !purchases.isEmpty else { return answer { $0.field("status", 1) } }
        let signed = try sign(purchases)
        return answer(capacity: 64 + signed.count * 5000) { json in
            json.field("status", 0)
            json.field("signedTransactions", array: { array in for token in signed { array.element(token) } })
        }
    }

    /// Get App Transaction Info (endpoint 14).
    func appTransaction() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id)
        let (customer, id, firstSeen) = try ledger.read { store throws(AppleError) -> (Customer, String, Int64) in
            let account = try self.account(any: call.id, store)
            let customer =
                store.customers[account]
                ?? Customer(app: account.app, customer: account.customer, environment: account.environment)
            guard customer.appTransaction, let id = store.appTransactionId(of: account) else {
                throw .appTransactionDoesNotExist
            }
            let first = store.positions(of: account).map { store.purchases[$0].originalPurchaseDate }.min()
            return (customer, id, first ?? now)
        }
        let token = try sign(
            customer.payload(
                appTransactionId: id, appAppleId: appAppleId, firstSeen: firstSeen, signedDate: now))
        return answer(capacity: token.utf8.count + 64) { $0.field("signedAppTransactionInfo", token) }
    }
}
