/// The settings of the store that hold for every app: kept in the ledger, read by `GET /control/settings`.
package struct StoreSettings: Codable, Sendable, Equatable {
    package var rateLimits = RateLimitRule.off
    /// How long a new purchase is unknown to the App Store Server API, unless its sale says otherwise.
    package var propagationMilliseconds: Int64 = 0
    /// How long a mass extension takes until its status says `complete`.
    package var massExtensionMilliseconds: Int64 = 0
    /// How long a `paginationToken` of the notification history is good. Apple's own time is not documented.
    package var paginationTokenMilliseconds: Int64 = 86_400_000

    /// The period of auto-renewables that are sold without one, ISO 8601; nil: such a subscription does not live.
    package var subscriptionPeriod: String?
    /// Where the notifications of an app without a URL of its own go; nil: nowhere.
    package var notificationURL: String?
    /// The version of those notifications: 1, or 2 (default).
    package var notificationVersion: Int?
    /// How long the store waits for the answer to a notification; default 10,000.
    package var notificationTimeoutMilliseconds: Int64?

    package init() {}
}

/// The body of `PUT /control/settings`: a field left out stays as it is.
package struct SettingsRequest: ControlBody, Sendable {
    /// `off`, `apple`, or an object: `{"perSecond": 5}`, `{"history": 2}`.
    package var rateLimits: RateLimitRule?
    /// 0 to 86,400,000.
    package var propagationMilliseconds: Int64?
    /// 0 to 86,400,000.
    package var massExtensionMilliseconds: Int64?
    /// 0 to 86,400,000.
    package var paginationTokenMilliseconds: Int64?
    /// ISO 8601 duration, of a minute or more; empty: none.
    package var subscriptionPeriod: String?
    /// http or https; empty: nowhere.
    package var notificationURL: String?
    /// 1 or 2.
    package var notificationVersion: Int?
    /// 1 to 86,400,000.
    package var notificationTimeoutMilliseconds: Int64?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case rateLimits, propagationMilliseconds, massExtensionMilliseconds, paginationTokenMilliseconds
        case subscriptionPeriod, notificationURL, notificationVersion, notificationTimeoutMilliseconds
    }

    package init(rateLimits: RateLimitRule? = nil, propagationMilliseconds: Int64? = nil) {
        self.rateLimits = rateLimits
        self.propagationMilliseconds = propagationMilliseconds
    }

    static let millisecondsMax: Int64 = 86_400_000

    func applied(to settings: StoreSettings) throws(ControlError) -> StoreSettings {
        var settings = settings
        if let rateLimits { settings.rateLimits = rateLimits }
        let delays: [(String, Int64?, WritableKeyPath<StoreSettings, Int64>)] = [
            ("propagationMilliseconds", propagationMilliseconds, \.propagationMilliseconds),
            ("massExtensionMilliseconds", massExtensionMilliseconds, \.massExtensionMilliseconds),
            ("paginationTokenMilliseconds", paginationTokenMilliseconds, \.paginationTokenMilliseconds),
        ]
        for (field, value, path) in delays {
            guard let value else { continue }
            guard (0...Self.millisecondsMax).contains(value) else {
                throw ControlError(field: field, "must be 0 to \(Self.millisecondsMax)")
            }
            settings[keyPath: path] = value
        }
        if let subscriptionPeriod {
            if !subscriptionPeriod.isEmpty { try Period.check(subscriptionPeriod, "subscriptionPeriod") }
            settings.subscriptionPeriod = subscriptionPeriod.isEmpty ? nil : subscriptionPeriod
        }
        if let notificationURL {
            if !notificationURL.isEmpty { try RegisteredApp.checkURL(notificationURL, "notificationURL") }
            settings.notificationURL = notificationURL.isEmpty ? nil : notificationURL
        }
        if let notificationVersion {
            try RegisteredApp.checkVersion(notificationVersion, "notificationVersion")
            settings.notificationVersion = notificationVersion
        }
        if let wait = notificationTimeoutMilliseconds {
            guard (1...Self.millisecondsMax).contains(wait) else {
                throw ControlError(
                    field: "notificationTimeoutMilliseconds", "must be 1 to \(Self.millisecondsMax)")
            }
            settings.notificationTimeoutMilliseconds = wait
        }
        return settings
    }
}
