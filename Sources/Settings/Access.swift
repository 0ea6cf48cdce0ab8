package import Foundation

/// What a caller may do.
package enum Scope: String, Sendable, CaseIterable {
    /// Post receipts and read what became of them.
    case intake
    /// Vouch for users: with this scope a bare transaction id counts as possession.
    case claim
    /// Read the feed of events, store users' consents, and report consumption.
    case events
    /// Make one account part of another, for ever: everything of the first then belongs to the second.
    case merge
    /// Report that orders of another way of payment were paid, closed or refunded.
    case orders
    case support
}

/// How often a caller may come, in one process: with three ingest processes, three times as often.
package struct Rate: Sendable, Equatable {
    package let perSecond: Int
    /// Requests that may come at once after a rest of `burst / perSecond` seconds.
    package let burst: Int

    package init(perSecond: Int, burst: Int) {
        self.perSecond = perSecond
        self.burst = burst
    }

    /// `rate: {perSecond: 200, burst: 400}`; without `burst`, it is what one second allows.
    ///
    /// - Parameter max: the greatest value of each.
    static func read(
        _ section: inout ConfigurationReader, max: Int = 1_000_000
    ) throws(ConfigurationError) -> Rate? {
        guard var reader = try section.section("rate") else { return nil }
        guard let perSecond = try reader.integer("perSecond", in: 1...max) else {
            throw reader.error("perSecond", "is missing")
        }
        let burst = try reader.integer("burst", in: 1...max) ?? perSecond
        try reader.finish()
        return Rate(perSecond: perSecond, burst: burst)
    }
}

/// One service key: only its hash is known here.
package struct AccessKey: Sendable, Equatable {
    package let name: String
    /// SHA-256 of the key.
    package let keySHA256: [UInt8]
    package let scopes: Set<Scope>
    package let apps: Set<String>
    /// Nil: no limit.
    package let rate: Rate?
    /// The time from which on the key is refused. Nil: the key has no end.
    package let expires: Date?

    package func hasEnded(at now: Date) -> Bool { expires.map { now >= $0 } ?? false }

    /// When the last key of each name ends; infinity for a name with a key that has no end. Two keys of one name are a
    /// rotation.
    package static func lastEnds(_ keys: [AccessKey]) -> [String: Date] {
        Dictionary(keys.map { ($0.name, $0.expires ?? never) }, uniquingKeysWith: max)
    }

    package static let never = Date(timeIntervalSince1970: .infinity)

    static func read(
        _ section: ConfigurationReader, apps known: Set<String>
    ) throws(ConfigurationError) -> AccessKey {
        var reader = section
        let name = try reader.requiredText("name")
        let hex = try reader.requiredText("keySha256")
        guard let hash = [UInt8](hexadecimal: hex), hash.count == 32 else {
            throw reader.error("keySha256", "must be 64 hexadecimal digits, the SHA-256 of the key")
        }
        let key = AccessKey(
            name: name, keySHA256: hash, scopes: try reader.scopes("scopes"), apps: try reader.apps("apps", known),
            rate: try Rate.read(&reader), expires: try reader.date("expires"))
        try reader.finish()
        return key
    }
}

/// JWTs that the gateway signs for a user.
package struct GatewayJWTConfiguration: Sendable {
    package enum Algorithm: String, Sendable, CaseIterable {
        case es256 = "ES256"
        case es384 = "ES384"
        case rs256 = "RS256"
        case edDSA = "EdDSA"
    }

    package let issuer: String
    package let audience: String
    package let algorithms: Set<Algorithm>
    /// PEM public keys, or JWKS documents.
    package let keys: [String]
    package let userClaim: String
    /// Lists the promotions that the user may order; a token without it names none.
    package let promotionsClaim: String
    package let scopes: Set<Scope>
    package let apps: Set<String>
    package let leeway: Duration
    /// How much later than now a token may end at most: a stolen token is good for a day, not for years.
    package let lifetimeMax: Duration
    /// The rate of all users of the gateway together. Nil: no limit.
    package let rate: Rate?

    static func read(
        _ section: ConfigurationReader, directory: URL, apps known: Set<String>
    ) throws(ConfigurationError) -> GatewayJWTConfiguration {
        var reader = section
        var algorithms: Set<Algorithm> = []
        for name in try reader.texts("algorithms") ?? ["ES256"] {
            guard let algorithm = Algorithm(rawValue: name) else {
                throw reader.error(
                    "algorithms", "must be of \(Algorithm.allCases.map(\.rawValue).joined(separator: ", "))")
            }
            algorithms.insert(algorithm)
        }
        var keys: [String] = []
        for name in try reader.texts("keys") ?? [] {
            keys.append(String(decoding: try reader.readFile(name, key: "keys", relativeTo: directory), as: UTF8.self))
        }
        guard !keys.isEmpty else { throw reader.error("keys", "must name at least one file") }
        let lifetimeMax = try reader.duration("lifetimeMax") ?? .seconds(86_400)
        guard (.seconds(60) ... .seconds(365 * 86_400)).contains(lifetimeMax) else {
            throw reader.error("lifetimeMax", "must be from 1m to 365d")
        }
        let value = GatewayJWTConfiguration(
            issuer: try reader.requiredText("issuer"), audience: try reader.requiredText("audience"),
            algorithms: algorithms, keys: keys, userClaim: try reader.text("userClaim") ?? "sub",
            promotionsClaim: try reader.text("promotionsClaim") ?? "promotions",
            scopes: try reader.scopes("scopes"), apps: try reader.apps("apps", known),
            leeway: .seconds(try reader.integer("leewaySeconds", in: 0...300) ?? 30),
            lifetimeMax: lifetimeMax, rate: try Rate.read(&reader))
        try reader.finish()
        return value
    }
}

extension ConfigurationReader {
    mutating func scopes(_ key: String) throws(ConfigurationError) -> Set<Scope> {
        guard let scopes: Set<Scope> = try words(key), !scopes.isEmpty else { throw error(key, "is missing") }
        return scopes
    }

    /// A list of apps. It is required; all apps must be written as `"*"`.
    mutating func apps(_ key: String, _ known: Set<String>) throws(ConfigurationError) -> Set<String> {
        guard let names = try texts(key), !names.isEmpty else { throw error(key, "is missing (\"*\" for every app)") }
        if names == ["*"] { return known }
        if let unknown = names.first(where: { !known.contains($0) }) {
            throw error(key, "names \(unknown), which is no app of this file")
        }
        return Set(names)
    }
}

extension [UInt8] {
    /// Nil for an odd count or anything but hexadecimal digits.
    package init?(hexadecimal text: String) {
        let digits = text.utf8.map { Character(UnicodeScalar($0)).hexDigitValue }
        guard digits.count.isMultiple(of: 2) else { return nil }
        self = []
        for index in stride(from: 0, to: digits.count, by: 2) {
            guard let high = digits[index], let low = digits[index + 1] else { return nil }
            append(UInt8(high * 16 + low))
        }
    }
}
