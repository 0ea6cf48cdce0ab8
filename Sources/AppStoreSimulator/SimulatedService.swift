/// The endpoints of Apple that the simulator plays (AppleFacts 3.3 and 5.1). The names are those of fault scripts, rate
/// limits and the call log.
package enum SimulatedService: String, Sendable, Codable, CaseIterable {
    case verifyReceipt
    case transactionInfo
    case history
    case historyV1
    case subscriptionStatuses
    case orderLookup
    case refundHistory
    case refundHistoryV1
    case extendSubscription
    case massExtend
    case massExtendStatus
    case consumption
    case consumptionV1
    case testNotification
    case testNotificationStatus
    case notificationHistory
    case appAccountToken
    case appTransaction
    case finish
    /// All endpoints of retention messaging.
    case messaging

    /// Calls a second that Apple allows one app in production (AppleFacts 3.8); nil: no limit is documented.
    var perSecond: Double? {
        switch self {
        case .verifyReceipt, .massExtendStatus, .messaging: nil
        case .extendSubscription, .appAccountToken: 20
        case .orderLookup, .refundHistory, .refundHistoryV1: 10
        case .massExtend, .testNotification, .testNotificationStatus: 1
        case .transactionInfo, .history, .historyV1, .subscriptionStatuses, .consumption, .consumptionV1,
            .notificationHistory, .appTransaction, .finish:
            50
        }
    }

    /// The answer of the fault `notFound`; nil: the endpoint has no such answer about a transaction.
    var notFound: AppleError? {
        switch self {
        case .extendSubscription, .appAccountToken, .refundHistoryV1: .originalTransactionIdNotFound
        case .transactionInfo, .history, .historyV1, .subscriptionStatuses, .refundHistory, .consumption,
            .consumptionV1, .notificationHistory, .appTransaction, .finish:
            .transactionIdNotFound
        case .verifyReceipt, .orderLookup, .massExtend, .massExtendStatus, .testNotification, .testNotificationStatus,
            .messaging:
            nil
        }
    }

    /// Whether the answer contains signed data, which the fault `foreignRoot` can sign below another root.
    var answersSigned: Bool {
        switch self {
        case .transactionInfo, .history, .historyV1, .subscriptionStatuses, .orderLookup, .refundHistory,
            .refundHistoryV1, .testNotificationStatus, .notificationHistory, .appTransaction:
            true
        case .verifyReceipt, .extendSubscription, .massExtend, .massExtendStatus, .consumption, .consumptionV1,
            .testNotification, .appAccountToken, .finish, .messaging:
            false
        }
    }
}
