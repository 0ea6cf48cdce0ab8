/// One Apple account in one app: a history shows the purchases of one account.
struct Account: Hashable, Sendable {
    /// The bundle id.
    let app: String
    let environment: StoreEnvironment
    /// The name that sales gave, or its default: ``Purchase/account``.
    let customer: String
}

/// The data of an Apple account beside its purchases: the body of `POST /control/customers`.
///
/// A customer needs none of this to buy. Registering a customer gives an app transaction to an account that bought
/// nothing, or takes the account or the app transaction away.
package struct Customer: ControlBody, Codable, Sendable, Equatable {
    /// Bundle id, or the short name it was registered under; in the ledger the bundle id.
    package var app: String
    package var customer: String
    /// Default `Production`.
    package var environment: StoreEnvironment
    /// False: Apple does not find the account (4040001); default true.
    package var account: Bool
    /// False: the app transaction does not exist (4040019); default true.
    package var appTransaction: Bool
    /// When the app was first downloaded, UNIX milliseconds; default: when the account is first seen.
    package var originalPurchaseDate: Int64?
    /// Default `1.0`.
    package var originalApplicationVersion: String?
    /// `iOS` (default), `macOS`, `tvOS`, `visionOS`.
    package var originalPlatform: String?
    package var preorderDate: Int64?
    /// Chosen by the store; in a request it is ignored.
    package var appTransactionId: String?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, customer, environment, account, appTransaction, originalPurchaseDate, originalApplicationVersion
        case originalPlatform, preorderDate, appTransactionId
    }

    package init(app: String, customer: String, environment: StoreEnvironment = .production) {
        self.app = app
        self.customer = customer
        self.environment = environment
        account = true
        appTransaction = true
    }

    package init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: CodingKeys.self)
        app = try container.decode(String.self, forKey: .app)
        customer = try container.decode(String.self, forKey: .customer)
        environment = try container.decodeIfPresent(StoreEnvironment.self, forKey: .environment) ?? .production
        account = try container.decodeIfPresent(Bool.self, forKey: .account) ?? true
        appTransaction = try container.decodeIfPresent(Bool.self, forKey: .appTransaction) ?? true
        originalPurchaseDate = try container.decodeIfPresent(Int64.self, forKey: .originalPurchaseDate)
        originalApplicationVersion = try container.decodeIfPresent(String.self, forKey: .originalApplicationVersion)
        originalPlatform = try container.decodeIfPresent(String.self, forKey: .originalPlatform)
        preorderDate = try container.decodeIfPresent(Int64.self, forKey: .preorderDate)
        appTransactionId = try container.decodeIfPresent(String.self, forKey: .appTransactionId)
    }

    var key: Account { Account(app: app, environment: environment, customer: customer) }

    func validate() throws(ControlError) {
        try SaleRequest.check(app, "app")
        try SaleRequest.check(customer, "customer")
        if let originalApplicationVersion {
            try SaleRequest.check(originalApplicationVersion, "originalApplicationVersion")
        }
        let platforms = ["iOS", "macOS", "tvOS", "visionOS"]
        if let originalPlatform, !platforms.contains(originalPlatform) {
            throw ControlError(field: "originalPlatform", "must be one of \(platforms.joined(separator: ", "))")
        }
        try SaleRequest.checkTime(originalPurchaseDate, "originalPurchaseDate")
        try SaleRequest.checkTime(preorderDate, "preorderDate")
    }

    /// The JSON of JWSAppTransactionDecodedPayload (AppleFacts 2.3). `firstSeen` is the first purchase's date.
    func payload(appTransactionId: String, appAppleId: Int64?, firstSeen: Int64, signedDate: Int64) -> [UInt8] {
        JSONWriter.object { json in
            json.field("receiptType", environment.rawValue)
            json.field("appAppleId", ifPresent: appAppleId)
            json.field("bundleId", app)
            json.field("applicationVersion", "1")
            json.field("receiptCreationDate", signedDate)
            json.field("originalPurchaseDate", originalPurchaseDate ?? firstSeen)
            json.field("originalApplicationVersion", originalApplicationVersion ?? "1.0")
            json.field("preorderDate", ifPresent: preorderDate)
            json.field("appTransactionId", appTransactionId)
            json.field("originalPlatform", originalPlatform ?? "iOS")
        }
    }
}
