import Encoding
package import Settings

/// The caller of a request, as its credential names it.
package struct Caller: Sendable, Equatable {
    /// The access key's name, or `gatewayJwt`; for logs, never shown.
    package let name: String
    /// The user that a gateway's token names; nil for a service key, which speaks for all users of its apps.
    package let userID: String?
    package let scopes: Set<Scope>
    package let apps: Set<String>
    /// The promotions that the user of a gateway's token may order; a service key may name any.
    package let promotions: [String]
    /// The caller's rate; nil: no limit.
    package let share: RateLimiter.Share?
    /// The rate of the user that a gateway's token names.
    package let userShare: RateLimiter.Share?
    /// Bytes that the bodies of that user may have in a day.
    let bytesPerDay: Int?

    package init(
        name: String, userID: String?, scopes: Set<Scope>, apps: Set<String>, promotions: [String] = [],
        share: RateLimiter.Share? = nil, userShare: RateLimiter.Share? = nil, bytesPerDay: Int? = nil
    ) {
        self.name = name
        self.userID = userID
        self.scopes = scopes
        self.apps = apps
        self.promotions = promotions
        self.share = share
        self.userShare = userShare
        self.bytesPerDay = bytesPerDay
    }

    package func require(_ scope: Scope) throws(Problem) {
        guard scopes.contains(scope) else { throw .missingScope(scope) }
    }

    package func require(_ scope: Scope, or other: Scope) throws(Problem) {
        guard scopes.contains(scope) || scopes.contains(other) else { throw .missingScope(scope, or: other) }
    }

    /// Whether this caller's orders may name a promotion. A user may order only the promotions in the gateway's token,
    /// or everybody could have their goods.
    package func mayOrder(promotion: String) -> Bool {
        userID == nil || promotions.contains { $0.isSameText(as: promotion) }
    }

    /// Whether this caller may read a receipt: a user's own, or one of the key's apps.
    package func mayRead(appID: String, userID owner: String?) -> Bool {
        guard apps.contains(appID) else { return false }
        guard let userID else { return true }
        return userID.isSameText(as: owner)
    }
}
