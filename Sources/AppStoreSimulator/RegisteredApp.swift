import Foundation

/// An app known to the store by more than its bundle id: the body of `POST /control/apps`.
package struct RegisteredApp: ControlBody, Codable, Sendable, Equatable {
    /// The name that purchases may use instead of the bundle id.
    package var app: String
    /// Default: `app`.
    package var bundleId: String
    /// `adam_id` of production receipts; default: a number made from the bundle id.
    package var appAppleId: Int64?
    /// The secret verifyReceipt expects for this app; default: the simulator's.
    package var sharedSecret: String?
    /// Where App Store Server Notifications go; without one a test notification is refused (4040007).
    package var notificationURL: String?
    /// The sandbox's own; default: `notificationURL`, as Apple does it.
    package var sandboxNotificationURL: String?
    /// 1, or 2 (default: the store's setting, else 2).
    package var notificationVersion: Int?
    /// The sandbox's own; default: `notificationVersion`.
    package var sandboxNotificationVersion: Int?
    /// How long access goes on when Apple cannot charge; default: no grace period.
    package var gracePeriod: GracePeriod?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, bundleId, appAppleId, sharedSecret, notificationURL, sandboxNotificationURL
        case notificationVersion, sandboxNotificationVersion, gracePeriod
    }

    package init(app: String, bundleId: String? = nil, appAppleId: Int64? = nil, sharedSecret: String? = nil) {
        self.app = app
        self.bundleId = bundleId ?? app
        self.appAppleId = appAppleId
        self.sharedSecret = sharedSecret
    }

    package init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: CodingKeys.self)
        app = try container.decode(String.self, forKey: .app)
        bundleId = try container.decodeIfPresent(String.self, forKey: .bundleId) ?? app
        appAppleId = try container.decodeIfPresent(Int64.self, forKey: .appAppleId)
        sharedSecret = try container.decodeIfPresent(String.self, forKey: .sharedSecret)
        notificationURL = try container.decodeIfPresent(String.self, forKey: .notificationURL)
        sandboxNotificationURL = try container.decodeIfPresent(String.self, forKey: .sandboxNotificationURL)
        notificationVersion = try container.decodeIfPresent(Int.self, forKey: .notificationVersion)
        sandboxNotificationVersion = try container.decodeIfPresent(Int.self, forKey: .sandboxNotificationVersion)
        gracePeriod = try container.decodeIfPresent(GracePeriod.self, forKey: .gracePeriod)
    }

    /// Where the notifications of an environment go; nil: nowhere.
    func notificationURL(_ environment: StoreEnvironment) -> String? {
        environment == .sandbox ? sandboxNotificationURL ?? notificationURL : notificationURL
    }

    /// The version of the notifications of an environment; nil: the store's setting decides.
    func notificationVersion(_ environment: StoreEnvironment) -> Int? {
        environment == .sandbox ? sandboxNotificationVersion ?? notificationVersion : notificationVersion
    }

    static func checkURL(_ url: String, _ field: String) throws(ControlError) {
        try SaleRequest.check(url, field)
        guard let parsed = URL(string: url), ["http", "https"].contains(parsed.scheme), parsed.host() != nil else {
            throw ControlError(field: field, "must be an http or https URL")
        }
    }

    static func checkVersion(_ version: Int, _ field: String) throws(ControlError) {
        guard (1...2).contains(version) else { throw ControlError(field: field, "must be 1 or 2") }
    }

    func validate() throws(ControlError) {
        try SaleRequest.check(app, "app")
        try SaleRequest.check(bundleId, "bundleId")
        if let sharedSecret { try SaleRequest.check(sharedSecret, "sharedSecret") }
        for (field, url) in [
            ("notificationURL", notificationURL), ("sandboxNotificationURL", sandboxNotificationURL),
        ] {
            if let url { try Self.checkURL(url, field) }
        }
        if let notificationVersion { try Self.checkVersion(notificationVersion, "notificationVersion") }
        if let sandboxNotificationVersion {
            try Self.checkVersion(sandboxNotificationVersion, "sandboxNotificationVersion")
        }
        if let appAppleId, appAppleId < 0 { throw ControlError(field: "appAppleId", "must not be negative") }
    }
}
