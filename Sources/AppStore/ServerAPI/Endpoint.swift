import NIOHTTP1

extension ServerAPIClient {
    /// The endpoints of the App Store Server API: one row each, of AppleFacts 3.3 and 3.8.
    package enum Endpoint: String, CaseIterable, Sendable {
        case transactionInfo, appTransactionInfo, transactionHistory, refundHistory, orderLookUp, finishTransaction,
            setAppAccountToken
        case subscriptionStatuses, extendRenewalDate, extendRenewalDates, renewalDateExtension
        case sendConsumption, sendConsumptionV1
        case requestTestNotification, testNotification, notificationHistory

        private struct Row {
            let method: HTTPMethod
            let path: String
            let perSecond: Double
            let environments: Set<StoreEnvironment>

            private static let everywhere: Set<StoreEnvironment> = [.production, .sandbox]

            init(
                _ method: HTTPMethod, _ path: String, perSecond: Double,
                in environments: Set<StoreEnvironment> = Self.everywhere
            ) {
                self.method = method
                self.path = path
                self.perSecond = perSecond
                self.environments = environments
            }
        }

        private var row: Row {
            switch self {
            case .transactionInfo: Row(.GET, "/inApps/v1/transactions/*", perSecond: 50)
            case .appTransactionInfo: Row(.GET, "/inApps/v1/transactions/appTransactions/*", perSecond: 50)
            case .transactionHistory: Row(.GET, "/inApps/v2/history/*", perSecond: 50)
            case .refundHistory: Row(.GET, "/inApps/v2/refund/lookup/*", perSecond: 10)
            case .orderLookUp: Row(.GET, "/inApps/v1/lookup/*", perSecond: 10, in: [.production])
            case .finishTransaction: Row(.POST, "/inApps/v1/transactions/*/finish", perSecond: 50)
            case .setAppAccountToken: Row(.PUT, "/inApps/v1/transactions/*/appAccountToken", perSecond: 20)
            case .subscriptionStatuses: Row(.GET, "/inApps/v1/subscriptions/*", perSecond: 50)
            case .extendRenewalDate: Row(.PUT, "/inApps/v1/subscriptions/extend/*", perSecond: 20)
            case .extendRenewalDates: Row(.POST, "/inApps/v1/subscriptions/extend/mass", perSecond: 1)
            // Not in Apple's table of limits: as slow as its neighbours.
            case .renewalDateExtension: Row(.GET, "/inApps/v1/subscriptions/extend/mass/*/*", perSecond: 1)
            case .sendConsumption: Row(.PUT, "/inApps/v2/transactions/consumption/*", perSecond: 50)
            case .sendConsumptionV1: Row(.PUT, "/inApps/v1/transactions/consumption/*", perSecond: 50)
            case .requestTestNotification: Row(.POST, "/inApps/v1/notifications/test", perSecond: 1)
            case .testNotification: Row(.GET, "/inApps/v1/notifications/test/*", perSecond: 1)
            case .notificationHistory: Row(.POST, "/inApps/v1/notifications/history", perSecond: 50)
            }
        }

        var method: HTTPMethod { row.method }

        /// The path after the host; each `*` stands for an id.
        var path: String { row.path }

        /// The environments in which Apple offers the endpoint.
        package var environments: Set<StoreEnvironment> { row.environments }

        /// Calls per second Apple allows one app, enforced by the hour and changed as Apple likes (AppleFacts 3.8).
        /// A tenth in the sandbox. nil where Apple does not offer it.
        package func callsPerSecond(in environment: StoreEnvironment) -> Double? {
            guard environments.contains(environment) else { return nil }
            return environment == .sandbox ? row.perSecond / 10 : row.perSecond
        }

        /// Apple's error code for an invalid id. For an empty id this client gives the code itself: without the id the
        /// path is another endpoint's, and Apple's answer to that would mean nothing.
        var invalidID: APIErrorCode {
            switch self {
            case .orderLookUp: .generalBadRequest
            case .testNotification: .invalidTestNotificationToken
            case .renewalDateExtension: .invalidRequestIdentifier
            case .extendRenewalDate: .invalidOriginalTransactionId
            default: .invalidTransactionId
            }
        }
    }
}
