import Foundation

/// The endpoints by which an app's backend reports to Apple about one transaction.
extension ServerAPI {
    /// Finish Transaction (AppleFacts 3.3, endpoint 15). Finishing again is no error.
    func finish() throws(AppleError) -> AppleAnswer {
        try ledger.submit { store throws(AppleError) -> (Void, [LedgerLine]) in
            var purchase = try purchase(call.id, store)
            var lines = [
                LedgerLine(
                    filing: Filing(
                        .finish, app: app, environment: environment, transactionId: call.id, at: now))
            ]
            if purchase.finishedAt == nil {
                purchase.finishedAt = now
                lines.append(LedgerLine(changed: purchase))
            }
            return ((), lines)
        }
        return answer(status: 200)
    }

    /// Set App Account Token (endpoint 13): sets the token of the original transaction and, in a subscription, of its
    /// newest period and all renewals to come.
    func setAppAccountToken() throws(AppleError) -> AppleAnswer {
        try checkShape(call.id)
        let fields = try BodyValue.fields(call.body)
        guard let uuid = fields["appAccountToken"]?.string.flatMap({ UUID(uuidString: $0) }) else {
            throw .invalidAppAccountTokenUUID
        }
        let token = uuid.uuidString.lowercased()
        try ledger.submit { store throws(AppleError) -> (Void, [LedgerLine]) in
            if store.positions[call.id] == nil, store.account(appTransactionId: call.id) != nil {
                throw .appTransactionIdNotSupported
            }
            guard let first = store.first(call.id), knows(first) else { throw .originalTransactionIdNotFound }
            guard first.originalTransactionId == call.id else { throw .notOriginalTransactionId }
            guard first.inAppOwnershipType != "FAMILY_SHARED" else { throw .familyTransactionNotSupported }
            var filing = Filing(
                .appAccountToken, app: app, environment: environment, transactionId: call.id, at: now)
            let newest = store.subscription(call.id, now: now)?.newest ?? first
            filing.appAccountToken = token
            filing.previousAppAccountToken = newest.appAccountToken
            var lines = [LedgerLine(filing: filing)]
            for purchase in first == newest ? [first] : [first, newest] {
                var purchase = purchase
                // The Apple account stays the same, even if the old token was its name.
                purchase.customer = purchase.account
                purchase.appAccountToken = token
                lines.append(LedgerLine(changed: purchase))
            }
            return ((), lines)
        }
        return answer(status: 200)
    }

    /// Send Consumption Information (endpoints 9 and 9b): the body is checked strictly and kept as it came.
    func consumption() throws(AppleError) -> AppleAnswer {
        let purchase = try ledger.read { store throws(AppleError) -> Purchase in try self.purchase(call.id, store) }
        guard purchase.inAppOwnershipType != "FAMILY_SHARED" else { throw .familyTransactionNotSupported }
        let fields = try BodyValue.fields(call.body)
        if call.service == .consumption {
            try Consumption.check(fields, of: purchase.type)
        } else {
            try Consumption.checkV1(fields, of: purchase.type)
        }
        var filing = Filing(
            call.service == .consumption ? .consumption : .consumptionV1, app: app, environment: environment,
            transactionId: call.id, at: now)
        filing.consumption = String(decoding: call.body, as: UTF8.self)
        let line = LedgerLine(filing: filing)
        try ledger.submit { _ throws(AppleError) -> (Void, [LedgerLine]) in ((), [line]) }
        return answer(status: 202)
    }
}

/// The rules of consumption information (AppleFacts 3.5).
enum Consumption {
    private static let deliveries: Set<String> = [
        "DELIVERED", "UNDELIVERED_QUALITY_ISSUE", "UNDELIVERED_WRONG_ITEM", "UNDELIVERED_SERVER_OUTAGE",
        "UNDELIVERED_OTHER",
    ]

    /// Checks version 2. Our reading: a wrong pair of `GRANT_PRORATED` and percentage is blamed on `refundPreference`.
    static func check(_ fields: [String: BodyValue], of type: ProductType) throws(AppleError) {
        guard fields["customerConsented"]?.bool == true else { throw .invalidCustomerConsented }
        guard fields["sampleContentProvided"]?.bool != nil else { throw .invalidSampleContentProvided }
        guard let delivery = fields["deliveryStatus"]?.string, deliveries.contains(delivery) else {
            throw .invalidDeliveryStatus
        }
        var percentage: Int64?
        if let value = fields["consumptionPercentage"] {
            guard type != .autoRenewable else { throw .percentageOfSubscription }
            guard let number = value.integer, (0...100_000).contains(number) else { throw .percentageOutOfRange }
            guard number == 0 || delivery == "DELIVERED" else { throw .undeliveredPercentage }
            percentage = number
        }
        guard let preference = fields["refundPreference"] else { return }
        switch preference.string {
        case "DECLINE", "GRANT_FULL": break
        case "GRANT_PRORATED":
            guard type == .autoRenewable || (1..<100_000).contains(percentage ?? 0) else {
                throw .invalidRefundPreference
            }
        default: throw .invalidRefundPreference
        }
    }

    /// Checks version 1: for consumables and auto-renewables.
    static func checkV1(_ fields: [String: BodyValue], of type: ProductType) throws(AppleError) {
        guard type == .consumable || type == .autoRenewable else { throw .transactionTypeNotSupported }
        guard fields["customerConsented"]?.bool == true else { throw .invalidCustomerConsented }
        guard fields["sampleContentProvided"]?.bool != nil else { throw .invalidSampleContentProvided }
        let numbers: [(String, ClosedRange<Int64>, AppleError)] = [
            ("consumptionStatus", 0...3, .invalidConsumptionStatus), ("platform", 0...2, .invalidPlatform),
            ("deliveryStatus", 0...5, .invalidDeliveryStatus), ("accountTenure", 0...7, .invalidAccountTenure),
            ("playTime", 0...7, .invalidPlayTime), ("lifetimeDollarsPurchased", 0...7, .invalidDollarsPurchased),
            ("lifetimeDollarsRefunded", 0...7, .invalidDollarsRefunded), ("userStatus", 0...4, .invalidUserStatus),
        ]
        for (name, range, error) in numbers {
            guard let value = fields[name]?.integer, range.contains(value) else { throw error }
        }
        guard let token = fields["appAccountToken"]?.string, token.isEmpty || UUID(uuidString: token) != nil else {
            throw .invalidAppAccountToken
        }
        if let preference = fields["refundPreference"] {
            guard let value = preference.integer, (0...3).contains(value) else { throw .invalidRefundPreference }
        }
    }
}
