/// A report of an app's backend to Apple that changed the store or went on record; `GET /control/filings` lists it.
package struct Filing: Codable, Sendable, Equatable {
    package enum Kind: String, Codable, Sendable, CaseIterable {
        case finish, appAccountToken, consumption, consumptionV1, extendSubscription, massExtend
    }

    package let kind: Kind
    /// The bundle id.
    package let app: String
    package let environment: StoreEnvironment
    /// The path's id. `massExtend`: a subscription that was moved, or nil for the request as a whole.
    package let transactionId: String?
    /// UNIX milliseconds.
    package let at: Int64
    /// `appAccountToken`: the new one, lower case.
    package var appAccountToken: String?
    /// `appAccountToken`: the one before; nil: none.
    package var previousAppAccountToken: String?
    /// `consumption`, `consumptionV1`: the body as it came.
    package var consumption: String?
    /// `extendSubscription`, `massExtend`.
    package var moved: Extension?

    /// A renewal date that was moved, or, for a whole `massExtend`, how many dates were moved.
    package struct Extension: Codable, Sendable, Equatable {
        package let requestIdentifier: String
        package let extendByDays: Int
        package let extendReasonCode: Int
        /// The new renewal date; nil for a whole mass extension.
        package var effectiveDate: Int64?
        package var webOrderLineItemId: String?
        /// `massExtend`: the product.
        package var productId: String?
        /// `massExtend`: when its status turns to `complete`.
        package var completeDate: Int64?
        package var succeededCount: Int?
        package var failedCount: Int?
    }

    init(
        _ kind: Kind,
        app: String,
        environment: StoreEnvironment,
        transactionId: String? = nil,
        at: Int64
    ) {
        self.kind = kind
        self.app = app
        self.environment = environment
        self.transactionId = transactionId
        self.at = at
    }

    func write(_ json: inout JSONWriter) {
        json.field("kind", kind.rawValue)
        json.field("app", app)
        json.field("environment", environment.rawValue)
        json.field("transactionId", ifPresent: transactionId)
        json.field("at", at)
        json.field("appAccountToken", ifPresent: appAccountToken)
        json.field("previousAppAccountToken", ifPresent: previousAppAccountToken)
        json.field("consumption", ifPresent: consumption)
        guard let moved else { return }
        json.field("requestIdentifier", moved.requestIdentifier)
        json.field("extendByDays", moved.extendByDays)
        json.field("extendReasonCode", moved.extendReasonCode)
        json.field("effectiveDate", ifPresent: moved.effectiveDate)
        json.field("webOrderLineItemId", ifPresent: moved.webOrderLineItemId)
        json.field("productId", ifPresent: moved.productId)
        json.field("completeDate", ifPresent: moved.completeDate)
        json.field("succeededCount", ifPresent: moved.succeededCount)
        json.field("failedCount", ifPresent: moved.failedCount)
    }
}
