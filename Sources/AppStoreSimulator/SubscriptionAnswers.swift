/// The endpoints about auto-renewable subscriptions.
extension ServerAPI {
    /// How many days one extension may add (Apple, "extendByDays").
    static let extendDaysMax: Int64 = 90
    /// How many extensions a subscription may get in ``extensionYear`` (Apple, "Extending the renewal date").
    static let extensionsMax = 2
    /// 365 days in milliseconds.
    static let extensionYear: Int64 = 365 * 86_400_000
    /// Apple, "requestIdentifier".
    static let requestIdentifierMax = 128

    /// Get All Subscription Statuses (AppleFacts 3.3, endpoint 3).
    func subscriptionStatuses() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id)
        var wanted: Set<Int> = []
        for text in call.values("status") {
            guard let status = Int(text), (1...5).contains(status) else { throw .invalidStatus }
            wanted.insert(status)
        }
        let subscriptions = try ledger.read { store throws(AppleError) -> [Subscription] in
            let account = try checkedAccount(any: call.id, store)
            var seen: Set<String> = []
            var found: [Subscription] = []
            for position in store.positions(of: account) {
                let original = store.purchases[position].originalTransactionId
                guard seen.insert(original).inserted, let subscription = store.subscription(original, now: now),
                    knows(subscription.newest)
                else { continue }
                found.append(subscription)
            }
            return found
        }
        var groups: [(id: String, items: [Item])] = []
        for subscription in subscriptions {
            let state = subscription.state(now: now)
            guard wanted.isEmpty || wanted.contains(state.rawValue) else { continue }
            let newest = subscription.newest
            let item = Item(
                status: state.rawValue, originalTransactionId: newest.originalTransactionId,
                transaction: try sign(newest),
                renewal: try sign(subscription.renewalPayload(signedDate: now, now: now)))
            let id = newest.subscriptionGroupIdentifier ?? ""
            if let index = groups.firstIndex(where: { $0.id == id }) {
                groups[index].items.append(item)
            } else {
                groups.append((id, [item]))
            }
        }
        return statuses(groups)
    }

    private struct Item {
        let status: Int
        let originalTransactionId: String
        let transaction: String
        let renewal: String

        func write(_ json: inout JSONWriter) {
            json.field("originalTransactionId", originalTransactionId)
            json.field("status", status)
            json.field("signedTransactionInfo", transaction)
            json.field("signedRenewalInfo", renewal)
        }
    }

    private func statuses(_ groups: [(id: String, items: [Item])]) -> AppleAnswer {
        let appAppleId = appAppleId
        return answer(capacity: 1024 + groups.count * 10_000) { json in
            json.field("environment", environment.rawValue)
            json.field("bundleId", app)
            json.field("appAppleId", ifPresent: appAppleId)
            json.field(
                "data",
                array: { data in
                    for group in groups {
                        data.element { element in
                            element.field("subscriptionGroupIdentifier", group.id)
                            element.field(
                                "lastTransactions",
                                array: { array in for item in group.items { array.element { item.write(&$0) } } })
                        }
                    }
                })
        }
    }

    // MARK: Extending

    /// The fields that both ways of extending have.
    private struct ExtensionTerms {
        let days: Int
        let reason: Int
        let identifier: String

        init(_ fields: [String: BodyValue]) throws(AppleError) {
            guard let days = fields["extendByDays"]?.integer, (1...ServerAPI.extendDaysMax).contains(days) else {
                throw .invalidExtendByDays
            }
            guard let reason = fields["extendReasonCode"]?.integer, (0...3).contains(reason) else {
                throw .invalidExtendReasonCode
            }
            guard let identifier = fields["requestIdentifier"]?.string, ServerAPI.isRequestIdentifier(identifier)
            else { throw .invalidRequestIdentifier }
            self.days = Int(days)
            self.reason = Int(reason)
            self.identifier = identifier
        }
    }

    static func isRequestIdentifier(_ text: String) -> Bool { (1...requestIdentifierMax).contains(text.count) }

    /// Extend a Subscription Renewal Date (endpoint 6). The same requestIdentifier again is the same extension.
    func extendSubscription() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id, else: .invalidOriginalTransactionId)
        let terms = try ExtensionTerms(try BodyValue.fields(call.body))
        let (moved, isNew) = try ledger.submit { store throws(AppleError) -> ((Filing.Extension, Bool), [LedgerLine]) in
            guard let first = store.first(call.id), knows(first), first.originalTransactionId == call.id else {
                throw .originalTransactionIdNotFound
            }
            let before = (store.extensions[call.id] ?? []).first { $0.moved?.requestIdentifier == terms.identifier }
            if let moved = before?.moved { return ((moved, false), []) }
            let lines = try extending(call.id, terms, .extendSubscription, store)
            guard let moved = lines.lazy.compactMap({ $0.filing?.moved }).first else {
                throw .extensionIneligible
            }
            return ((moved, true), lines)
        }
        if isNew, let newest = ledger.read({ $0.subscription(call.id, now: now)?.newest.transactionId }) {
            // The extension holds, whatever becomes of the notification.
            _ = try? ledger.tell(newest, .renewalExtended)
        }
        return answer { json in
            json.field("originalTransactionId", call.id)
            json.field("webOrderLineItemId", ifPresent: moved.webOrderLineItemId)
            json.field("success", true)
            json.field("effectiveDate", ifPresent: moved.effectiveDate)
        }
    }

    /// The lines that move one subscription's renewal date and its family members' dates, and that record the move.
    ///
    /// Eligible (Apple, "Extending the renewal date"): active, not in a free period, at most twice in 365 days.
    private func extending(
        _ original: String,
        _ terms: ExtensionTerms,
        _ kind: Filing.Kind,
        _ store: borrowing LedgerState
    ) throws(AppleError) -> [LedgerLine] {
        guard let subscription = store.subscription(original, now: now) else { throw .extensionIneligible }
        var newest = subscription.newest
        guard newest.inAppOwnershipType != "FAMILY_SHARED" else { throw .familyExtensionIneligible }
        let extended = (store.extensions[original] ?? []).count { $0.at > now - Self.extensionYear }
        guard extended < Self.extensionsMax else { throw .extensionMax }
        guard subscription.state(now: now) == .active, newest.offerDiscountType != "FREE_TRIAL",
            let expires = newest.expiresDate
        else { throw .extensionIneligible }
        let effective = expires + Int64(terms.days) * 86_400_000
        newest.expiresDate = effective
        var filing = Filing(
            kind, app: app, environment: environment, transactionId: original, at: now)
        filing.moved = .init(
            requestIdentifier: terms.identifier, extendByDays: terms.days, extendReasonCode: terms.reason,
            effectiveDate: effective, webOrderLineItemId: newest.webOrderLineItemId)
        var lines = [LedgerLine(filing: filing), LedgerLine(changed: newest)]
        for position in store.shares[newest.transactionId] ?? [] {
            var share = store.purchases[position]
            share.expiresDate = effective
            lines.append(LedgerLine(changed: share))
        }
        return lines
    }

    /// Extend Subscription Renewal Dates for All Active Subscribers (endpoint 7). An active subscription that is not
    /// eligible counts as failed; other subscriptions do not count.
    func massExtend() throws(AppleError) -> AppleAnswer {
        let fields = try BodyValue.fields(call.body)
        let terms = try ExtensionTerms(fields)
        guard let productId = fields["productId"]?.string, (1...255).contains(productId.utf8.count) else {
            throw .invalidProductId
        }
        var storefronts: Set<String>?
        if let list = fields["storefrontCountryCodes"] {
            guard let list = list.array else { throw .invalidStorefront }
            guard !list.isEmpty else { throw .emptyStorefrontList }
            var codes: Set<String> = []
            for code in list {
                guard let code = code.string, code.utf8.count == 3,
                    code.utf8.allSatisfy({ (0x41...0x5A).contains($0) })
                else { throw .invalidStorefront }
                codes.insert(code)
            }
            storefronts = codes
        }
        let summary = try ledger.submit { store throws(AppleError) -> (HeldNotification?, [LedgerLine]) in
            guard massExtension(productId, terms.identifier, store) == nil else { return (nil, []) }
            var lines: [LedgerLine] = []
            var succeeded = 0
            var failed = 0
            for original in store.chains.keys.sorted() {
                guard let subscription = store.subscription(original, now: now) else { continue }
                let newest = subscription.newest
                guard newest.productId == productId, knows(newest), subscription.state(now: now) == .active,
                    newest.inAppOwnershipType != "FAMILY_SHARED", storefronts?.contains(newest.storefront) ?? true
                else { continue }
                do throws(AppleError) {
                    lines += try extending(original, terms, .massExtend, store)
                    succeeded += 1
                } catch {
                    failed += 1
                }
            }
            var whole = Filing(.massExtend, app: app, environment: environment, at: now)
            whole.moved = .init(
                requestIdentifier: terms.identifier, extendByDays: terms.days, extendReasonCode: terms.reason,
                productId: productId, completeDate: now + store.settings.massExtensionMilliseconds,
                succeededCount: succeeded, failedCount: failed)
            let summary = HeldNotification(
                of: .init(
                    productId: productId, requestIdentifier: terms.identifier,
                    storefrontCountryCodes: storefronts?.sorted() ?? [], succeededCount: succeeded,
                    failedCount: failed),
                app: app, environment, at: now + store.settings.massExtensionMilliseconds)
            return (summary, lines + [LedgerLine(filing: whole)])
        }
        // The extension holds, whatever becomes of the notification.
        if let summary { _ = try? ledger.hold(summary, isSent: true) }
        return answer { $0.field("requestIdentifier", terms.identifier) }
    }

    private func massExtension(
        _ productId: String, _ identifier: String, _ store: borrowing LedgerState
    ) -> Filing.Extension? {
        store.massExtensions.first {
            $0.app == app && $0.environment == environment && $0.moved?.productId == productId
                && $0.moved?.requestIdentifier == identifier
        }?.moved
    }

    /// Get Status of Subscription Renewal Date Extensions (endpoint 8).
    func massExtendStatus() throws(AppleError) -> AppleAnswer {
        guard (1...255).contains(call.productId.utf8.count) else { throw .invalidProductId }
        guard Self.isRequestIdentifier(call.id) else { throw .invalidRequestIdentifier }
        guard let known = ledger.read({ massExtension(call.productId, call.id, $0) }) else {
            throw .statusRequestNotFound
        }
        let isComplete = known.completeDate ?? 0 <= now
        return answer { json in
            json.field("requestIdentifier", known.requestIdentifier)
            json.field("complete", isComplete)
            guard isComplete else { return }
            json.field("completeDate", ifPresent: known.completeDate)
            json.field("succeededCount", known.succeededCount ?? 0)
            json.field("failedCount", known.failedCount ?? 0)
        }
    }
}
