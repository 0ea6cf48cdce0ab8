package import AppStore
import Crypto
import Encoding
package import Foundation
package import Purchases

/// One app: its identity at Apple, its policy, its credentials.
package struct AppConfiguration: Sendable {
    package struct ServerAPI: Sendable, CustomStringConvertible, CustomReflectable {
        package let issuerID: String
        package let keyID: String
        package let privateKeyPEM: String
        package let productionURL: String?
        package let sandboxURL: String?
        /// Calls a second that Apple allows this app for Get Transaction Info. The other endpoints follow in Apple's
        /// proportion, and the sandbox gets a tenth.
        package let callsPerSecond: Double

        /// Without the key.
        package var description: String { "issuer \(issuerID), key \(keyID)" }
        package var customMirror: Mirror { Mirror(self, children: ["description": description]) }
    }

    package struct VerifyReceipt: Sendable, CustomStringConvertible, CustomReflectable {
        package let sharedSecret: String?
        package let productionURL: String?
        package let sandboxURL: String?

        /// Without the secret.
        package var description: String { sharedSecret == nil ? "no shared secret" : "a shared secret" }
        package var customMirror: Mirror { Mirror(self, children: ["description": description]) }
    }

    /// The app's settings for Apple's notifications.
    package struct Notifications: Sendable, Equatable {
        /// The URL to which each notification is sent on, as Apple sent it. Nil: none.
        package var forwardTo: URL?
    }

    /// How orders are taken.
    package struct Orders: Sendable {
        /// How long an order's promise holds: a purchase made later gets what is sold then.
        package var payBy: Duration = .seconds(48 * 3600)
        /// Within this time the same order again is the same tap; 0: each request is an order of its own.
        package var debounce: Duration = .seconds(5)
    }

    package let id: String
    package let identity: AppIdentity
    /// How long after an event the app's backend says that it handed the goods out. Nil: it does not say so.
    package let handOutWithin: Duration?
    /// `policy.grantFrom` is the configuration's, or distant past until the first start is known.
    package var policy: AppPolicy
    package let hasGrantFrom: Bool
    /// False: a held purchase is not safe to finish, although its facts are stored.
    package let finishHeld: Bool
    /// Whether a user who shows a purchase of another user is told that user's masked id.
    package let ownerHint: Bool
    /// What a client may finish because this program says so.
    package var finishing: FinishPolicy { policy.mode == .shadow ? .never : finishHeld ? .held : .ended }
    package let orders: Orders
    /// How the app's client derives a user's token from the user's id. Nil: the app has not said it.
    package let accountTokens: AccountToken.Derivation?
    package let rootCertificates: [[UInt8]]
    /// Whether responders are asked if a certificate was revoked.
    package let ocsp: OCSPMode
    package let serverAPI: ServerAPI?
    package let verifyReceipt: VerifyReceipt?
    package let notifications: Notifications
    /// The URLs of the app's backend to which its events go.
    package let endpoints: [EndpointSettings]
    /// A hash over everything that decides about receipts; if it changes, held rows become due.
    package let hash: Data

    static func read(_ section: ConfigurationReader, directory: URL) throws(ConfigurationError) -> AppConfiguration {
        var reader = section
        let id = try reader.requiredText("id")
        guard id.utf8.count <= 64 else { throw reader.error("id", "is longer than 64 bytes") }
        guard id.wholeMatch(of: /[A-Za-z0-9._\-]+/) != nil else {
            throw reader.error("id", "has other characters than A-Z a-z 0-9 . _ -")
        }
        let identity = try readIdentity(&reader)
        let grantFrom = try reader.date("grantFrom")
        let provisional = try readProvisional(&reader)
        let sold = try readProducts(&reader, hasProvisional: provisional != nil)
        var policy = AppPolicy(
            id: id, grantFrom: grantFrom ?? .distantPast, provisional: provisional, products: sold.products)
        policy.terms = sold.terms
        policy.subscriptions = try readSubscriptions(&reader)
        policy.mode = try reader.word("mode") ?? .live
        policy.sandboxPurchases = try reader.word("sandboxPurchases") ?? .testers
        policy.confirmWithApple = try reader.word("confirmWithApple") ?? .stale
        policy.transfer = try reader.word("transfer") ?? .keep
        policy.shared = try reader.word("shared") ?? .entitlement
        policy.recordsNameUsers = try reader.boolean("recordsNameUsers") ?? true
        policy.refunds = try RefundPolicy.read(&reader)
        policy.sweeps = try SweepPolicy.read(&reader)
        // In shadow nothing is given, on trust least of all, and no purchase moves to another user.
        if policy.mode == .shadow { (policy.provisional, policy.transfer) = (nil, .keep) }
        try readTesters(&reader, into: &policy)
        try readMakeUp(&reader, into: &policy)
        let finishHeld = try reader.boolean("finishHeld") ?? true
        let ownerHint = try reader.boolean("ownerHint") ?? true
        let orders = try readOrders(&reader)
        let handOutWithin = try readHandOut(&reader)
        let accountTokens = try readAccountTokens(&reader)
        var roots: [[UInt8]] = []
        for name in try reader.texts("rootCertificates") ?? [] {
            let bytes = try reader.readFile(name, key: "rootCertificates", relativeTo: directory)
            do {
                roots.append(contentsOf: try TrustAnchors.load(pemOrDER: bytes))
            } catch {
                throw reader.error("rootCertificates", "names a file that holds no certificate")
            }
        }
        // Read as text, because YAML reads a bare off as false.
        let ocsp: OCSPMode = try reader.word("ocsp") ?? .off
        let serverAPI = try reader.section("serverApi").map { section throws(ConfigurationError) in
            try readServerAPI(section, directory: directory)
        }
        let verifyReceipt = try reader.section("verifyReceipt").map { section throws(ConfigurationError) in
            try readVerifyReceipt(section, directory: directory)
        }
        let notifications = try reader.section("notifications").map(readNotifications) ?? Notifications()
        let endpoints = try EndpointSettings.read(&reader, directory: directory)
        policy.legacyReceipts = try readLegacyReceipts(
            &reader, hasServerAPI: serverAPI != nil, hasVerifyReceipt: verifyReceipt != nil)
        try readAppleUpdates(&reader, hasServerAPI: serverAPI != nil, finishHeld: finishHeld, into: &policy)
        try reader.finish()
        guard policy.confirmWithApple != .always || serverAPI != nil else {
            throw section.error("confirmWithApple", "is always, which needs serverApi")
        }
        return AppConfiguration(
            id: id, identity: identity, handOutWithin: handOutWithin, policy: policy, hasGrantFrom: grantFrom != nil,
            finishHeld: finishHeld,
            ownerHint: ownerHint, orders: orders, accountTokens: accountTokens, rootCertificates: roots, ocsp: ocsp,
            serverAPI: serverAPI,
            verifyReceipt: verifyReceipt, notifications: notifications, endpoints: endpoints,
            hash: digest(identity, policy, finishHeld, roots, ocsp, serverAPI, verifyReceipt))
    }

    private static func digest(
        _ identity: AppIdentity, _ policy: AppPolicy, _ finishHeld: Bool, _ roots: [[UInt8]], _ ocsp: OCSPMode,
        _ serverAPI: ServerAPI?, _ verifyReceipt: VerifyReceipt?
    ) -> Data {
        var hash = SHA256()
        let products = policy.products.values.sorted { $0.id < $1.id }
        let environments = identity.environments.map(\.rawValue).sorted()
        let policyText =
            "\(policy.sandboxPurchases) \(policy.testers.sorted()) \(policy.sandboxPerUserPerDay) "
            + "\(policy.sandboxPerAppPerDay) \(policy.grantFrom.timeIntervalSince1970) \(policy.makeUpMaxAge) "
            + "\(policy.makeUpUsersPerCustomer) \(policy.makeUpPerUserPerDay) \(policy.confirmWithApple) "
            + "\(policy.legacyReceipts) \(String(describing: policy.provisional))"
        hash.update(data: Data("\(identity.bundleId) \(identity.appAppleId ?? 0) \(environments)".utf8))
        hash.update(data: Data("\(policyText) \(finishHeld) \(products)".utf8))
        for root in roots { hash.update(data: root) }
        // A file that does not name the setting keeps the hash it always had.
        if !identity.bundleIdAliases.isEmpty {
            hash.update(data: Data("aliases \(identity.bundleIdAliases.sorted())".utf8))
        }
        if ocsp != .off { hash.update(data: Data("ocsp \(ocsp)".utf8)) }
        if policy.mode != .live { hash.update(data: Data("mode \(policy.mode)".utf8)) }
        if policy.transfer != .keep { hash.update(data: Data("transfer \(policy.transfer)".utf8)) }
        if policy.shared != .entitlement { hash.update(data: Data("shared \(policy.shared)".utf8)) }
        if policy.subscriptions.goods != .everyPeriod {
            hash.update(data: Data("goods \(policy.subscriptions.goods)".utf8))
        }
        // These terms decide about no receipt, but the catalogue that is kept for a hash has them.
        for (product, terms) in policy.terms.sorted(by: { $0.key < $1.key }) {
            hash.update(data: Data("terms \(product) \(terms.text ?? "")".utf8))
        }
        if !policy.recordsNameUsers { hash.update(data: Data("records".utf8)) }
        // The hash changes with this setting, because what is held may be finished now.
        if policy.finishAtApple != .never { hash.update(data: Data("finish \(policy.finishAtApple)".utf8)) }
        // Listed one by one, because their descriptions leave out the secrets.
        let credentials = [
            serverAPI?.issuerID, serverAPI?.keyID, serverAPI?.privateKeyPEM, serverAPI?.productionURL,
            serverAPI?.sandboxURL, verifyReceipt?.sharedSecret, verifyReceipt?.productionURL, verifyReceipt?.sandboxURL,
        ]
        hash.update(data: Data("\(serverAPI == nil) \(verifyReceipt == nil) \(credentials)".utf8))
        return Data(hash.finalize())
    }

    private static func readIdentity(_ reader: inout ConfigurationReader) throws(ConfigurationError) -> AppIdentity {
        let bundleID = try reader.requiredText("bundleId")
        let aliases = try reader.texts("bundleIdAliases") ?? []
        for (index, alias) in aliases.enumerated() {
            guard alias.wholeMatch(of: /[A-Za-z0-9.\-]+/) != nil else {
                throw reader.error("bundleIdAliases", "holds \(alias), which is no bundle id")
            }
            guard alias != bundleID, !aliases[..<index].contains(alias) else {
                throw reader.error("bundleIdAliases", "names \(alias), which is the app's already")
            }
        }
        let appAppleID = try reader.integer("appAppleId", in: 1...Int.max)
        let environments = try reader.environments("environments") ?? [.production]
        let acceptsUnsigned = try reader.boolean("acceptUnsignedXcodeData") ?? false
        if environments.contains(.production), appAppleID == nil {
            throw reader.error("appAppleId", "is missing, and needed for Production")
        }
        do {
            return try AppIdentity(
                bundleId: bundleID, bundleIdAliases: aliases, appAppleId: appAppleID.map(Int64.init),
                environments: environments,
                acceptsUnsignedXcodeData: acceptsUnsigned)
        } catch {
            throw reader.error("acceptUnsignedXcodeData", "cannot stand together with Production")
        }
    }

    private static func readProducts(
        _ reader: inout ConfigurationReader, hasProvisional: Bool
    ) throws(ConfigurationError) -> (products: [AppPolicy.Product], terms: [String: EntitlementTerms]) {
        var products: [AppPolicy.Product] = []
        var terms: [String: EntitlementTerms] = [:]
        for section in try reader.sections("products") ?? [] {
            var product = section
            let id = try product.requiredText("id")
            guard !products.contains(where: { $0.id == id }) else { throw product.error("id", "is used twice") }
            let kind = try product.kind("type")
            let said = try product.terms(of: kind)
            if said != EntitlementTerms() { terms[id] = said }
            let goods = try product.goods("goods")
            let isProvisional = try product.boolean("provisional") ?? false
            guard !isProvisional || hasProvisional else {
                throw product.error("provisional", "is true, which needs the app's limits (provisional)")
            }
            try product.finish()
            products.append(AppPolicy.Product(id: id, kind: kind, goods: goods, isProvisional: isProvisional))
        }
        return (products, terms)
    }

    /// Reads what subscriptions give.
    private static func readSubscriptions(
        _ reader: inout ConfigurationReader
    ) throws(ConfigurationError) -> SubscriptionPolicy {
        var policy = SubscriptionPolicy()
        guard var section = try reader.section("subscriptions") else { return policy }
        if let word: Entitling = try section.word("grace") { policy.graceEntitles = word == .entitled }
        if let word: Entitling = try section.word("retry") { policy.retryEntitles = word == .entitled }
        policy.goods = try section.word("goods") ?? .everyPeriod
        try section.finish()
        return policy
    }

    /// Whether a state of a subscription lets the user use it.
    private enum Entitling: String, CaseIterable {
        case entitled, not
    }

    /// Reads the limits of what is given on trust. The risk is in money, so both limits must be written.
    private static func readProvisional(
        _ reader: inout ConfigurationReader
    ) throws(ConfigurationError) -> AppPolicy.Provisional? {
        guard var section = try reader.section("provisional") else { return nil }
        guard let perUserPerDay = try section.integer("perUserPerDay", in: 1...1000) else {
            throw section.error("perUserPerDay", "is missing")
        }
        guard let perAppPerDay = try section.integer("perAppPerDay", in: 1...100_000) else {
            throw section.error("perAppPerDay", "is missing")
        }
        let provisional = AppPolicy.Provisional(
            perUserPerDay: perUserPerDay, perAppPerDay: perAppPerDay,
            purchasesMin: try section.integer("purchasesMin", in: 0...1000) ?? 1,
            knownFor: try section.duration("knownFor") ?? .zero)
        try section.finish()
        return provisional
    }

    private static func readAccountTokens(
        _ reader: inout ConfigurationReader
    ) throws(ConfigurationError) -> AccountToken.Derivation? {
        guard var section = try reader.section("accountTokens") else { return nil }
        guard let algorithm: AccountToken.Derivation.Algorithm = try section.word("derivedFrom") else {
            throw section.error("derivedFrom", "is missing")
        }
        let text = try section.text("namespace")
        let namespace = text.flatMap(UUID.init(uuidString:))
        guard text == nil || namespace != nil else { throw section.error("namespace", "must be a UUID") }
        try section.finish()
        return AccountToken.Derivation(algorithm, namespace: namespace)
    }

    private static func readOrders(_ reader: inout ConfigurationReader) throws(ConfigurationError) -> Orders {
        var orders = Orders()
        guard var section = try reader.section("orders") else { return orders }
        if let payBy = try section.duration("payBy") {
            guard (.seconds(60) ... .seconds(365 * 86_400)).contains(payBy) else {
                throw section.error("payBy", "must be from 60s to 365d")
            }
            orders.payBy = payBy
        }
        if let debounce = try section.duration("debounce") {
            guard debounce <= .seconds(3600) else { throw section.error("debounce", "must be at most 1h") }
            orders.debounce = debounce
        }
        try section.finish()
        return orders
    }

    /// Reads within which time the app's backend acknowledges what it hands out.
    private static func readHandOut(_ reader: inout ConfigurationReader) throws(ConfigurationError) -> Duration? {
        guard var section = try reader.section("handOut") else { return nil }
        guard let within = try section.duration("within") else { throw section.error("within", "is missing") }
        guard (.seconds(1) ... .seconds(30 * 86_400)).contains(within) else {
            throw section.error("within", "must be from 1s to 30d")
        }
        try section.finish()
        return within
    }

    /// Reads what Apple is told about decided purchases. Where it can be done, tokens are written back unless the file
    /// says no.
    private static func readAppleUpdates(
        _ reader: inout ConfigurationReader, hasServerAPI: Bool, finishHeld: Bool, into policy: inout AppPolicy
    ) throws(ConfigurationError) {
        policy.finishAtApple = try reader.word("finishAtApple") ?? .never
        guard policy.finishAtApple == .never || hasServerAPI else {
            throw reader.error("finishAtApple", "is \(policy.finishAtApple.rawValue), which needs serverApi")
        }
        guard policy.finishAtApple != .afterReceipt || finishHeld else {
            throw reader.error("finishAtApple", "is afterReceipt, which contradicts finishHeld: false")
        }
        policy.writesBackTokens = try reader.boolean("writeBackTokens") ?? hasServerAPI
        guard !policy.writesBackTokens || hasServerAPI else {
            throw reader.error("writeBackTokens", "is true, which needs serverApi")
        }
    }

    private static func readTesters(
        _ reader: inout ConfigurationReader, into policy: inout AppPolicy
    ) throws(ConfigurationError) {
        guard var testers = try reader.section("testers") else { return }
        policy.testers = try testers.texts("users") ?? []
        if var others = try testers.section("others") {
            policy.sandboxPerUserPerDay = try others.integer("perUserPerDay", in: 0...1_000_000) ?? 0
            policy.sandboxPerAppPerDay = try others.integer("perAppPerDay", in: 0...1_000_000) ?? 0
            try others.finish()
        }
        try testers.finish()
    }

    private static func readMakeUp(
        _ reader: inout ConfigurationReader, into policy: inout AppPolicy
    ) throws(ConfigurationError) {
        guard var makeUp = try reader.section("makeUp") else { return }
        if let maxAge = try makeUp.duration("maxAge") { policy.makeUpMaxAge = maxAge }
        if let users = try makeUp.integer("usersPerCustomer", in: 0...1_000_000) {
            policy.makeUpUsersPerCustomer = users
        }
        policy.makeUpPerUserPerDay = try makeUp.integer("perUserPerDay", in: 0...1_000_000) ?? 0
        try makeUp.finish()
    }

    /// Reads one strategy, or a list that is tried in order. The default is every service that has credentials, the
    /// Server API first, because Apple calls verifyReceipt deprecated.
    private static func readLegacyReceipts(
        _ reader: inout ConfigurationReader, hasServerAPI: Bool, hasVerifyReceipt: Bool
    ) throws(ConfigurationError) -> [AppPolicy.LegacyStrategy] {
        let key = "legacyReceipts"
        let isAvailable = { (strategy: AppPolicy.LegacyStrategy) in
            switch strategy {
            case .serverApi: hasServerAPI
            case .verifyReceipt: hasVerifyReceipt
            case .local: true
            }
        }
        guard let words = try reader.texts(key) else { return [.serverApi, .verifyReceipt].filter(isAvailable) }
        var strategies: [AppPolicy.LegacyStrategy] = []
        for word in words {
            guard let strategy = AppPolicy.LegacyStrategy(rawValue: word) else {
                let known = AppPolicy.LegacyStrategy.allCases.map(\.rawValue).joined(separator: ", ")
                throw reader.error(key, "must be one of \(known), or a list of them")
            }
            guard !strategies.contains(strategy) else { throw reader.error(key, "names \(strategy.rawValue) twice") }
            guard isAvailable(strategy) else {
                throw reader.error(key, "names \(strategy.rawValue), which needs a section of that name")
            }
            strategies.append(strategy)
        }
        guard !strategies.isEmpty else { throw reader.error(key, "must name at least one") }
        return strategies
    }

    private static func readServerAPI(
        _ section: ConfigurationReader, directory: URL
    ) throws(ConfigurationError) -> ServerAPI {
        var reader = section
        guard let key = try reader.secret("privateKey", relativeTo: directory) else {
            throw reader.error("privateKeyFile", "is missing")
        }
        let value = ServerAPI(
            issuerID: try reader.requiredText("issuerId"), keyID: try reader.requiredText("keyId"),
            privateKeyPEM: key, productionURL: try reader.url("productionUrl"),
            sandboxURL: try reader.url("sandboxUrl"),
            callsPerSecond: Double(try reader.integer("callsPerSecond", in: 1...100_000) ?? 50))
        try reader.finish()
        return value
    }

    private static func readNotifications(
        _ section: ConfigurationReader
    ) throws(ConfigurationError) -> Notifications {
        var reader = section
        var notifications = Notifications()
        if let text = try reader.url("forwardTo"), let url = URL(string: text) {
            guard url.scheme == "https" || ["127.0.0.1", "[::1]", "::1", "localhost"].contains(url.host()) else {
                throw reader.error("forwardTo", "must be an https address, or one of this machine")
            }
            notifications.forwardTo = url
        }
        try reader.finish()
        return notifications
    }

    private static func readVerifyReceipt(
        _ section: ConfigurationReader, directory: URL
    ) throws(ConfigurationError) -> VerifyReceipt {
        var reader = section
        let value = VerifyReceipt(
            sharedSecret: try reader.secret("sharedSecret", relativeTo: directory),
            productionURL: try reader.url("productionUrl"), sandboxURL: try reader.url("sandboxUrl"))
        try reader.finish()
        return value
    }
}

extension AppConfiguration {
    /// The roots that the app believes: Apple's, and those of its `rootCertificates`.
    ///
    /// - Throws: for bytes that hold no certificate, which reading the file has excluded.
    package var anchors: TrustAnchors {
        get throws(ConfigurationError) {
            do {
                return try TrustAnchors(rootCertificates: rootCertificates)
            } catch {
                throw ConfigurationError(key: "\(id).rootCertificates", problem: "holds no certificate")
            }
        }
    }
}

extension ConfigurationReader {
    /// Nil: the member is left out.
    mutating func environments(_ key: String) throws(ConfigurationError) -> Set<StoreEnvironment>? {
        guard let names = try texts(key) else { return nil }
        let known: [StoreEnvironment] = [.production, .sandbox, .xcode, .localTesting]
        guard names.allSatisfy({ known.map(\.rawValue).contains($0) }) else {
            throw error(key, "must be Production, Sandbox, Xcode or LocalTesting")
        }
        return Set(names.map(StoreEnvironment.init(rawValue:)))
    }

    mutating func url(_ key: String) throws(ConfigurationError) -> String? {
        guard let text = try text(key) else { return nil }
        guard let url = URL(string: text), ["http", "https"].contains(url.scheme), url.host() != nil else {
            throw error(key, "must be an http or https address")
        }
        return text
    }
}
