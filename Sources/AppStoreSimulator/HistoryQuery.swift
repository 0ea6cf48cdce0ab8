/// The query of a transaction history (AppleFacts 3.4): which purchases, in which order, from where on.
struct HistoryQuery {
    private var startDate: Int64?
    private var endDate: Int64?
    private var productIds: Set<String> = []
    private var types: Set<ProductType> = []
    private var groups: Set<String> = []
    private var ownership: String?
    private var revoked: Bool?
    private(set) var isDescending = false
    /// The modification after which to go on; nil: the first page.
    private(set) var after: Int?
    private let fingerprint: String

    private static let productTypes: [String: ProductType] = [
        "AUTO_RENEWABLE": .autoRenewable, "NON_RENEWABLE": .nonRenewing, "CONSUMABLE": .consumable,
        "NON_CONSUMABLE": .nonConsumable,
    ]

    /// - Parameter account: the owner of the history; a revision is valid only for the same customer and the same
    ///   parameters.
    init(_ call: AppleCall, account: Account) throws(AppleError) {
        startDate = try Self.date(call, "startDate", else: .invalidStartDate)
        endDate = try Self.date(call, "endDate", else: .invalidEndDate)
        for id in call.values("productId") {
            guard (1...255).contains(id.utf8.count) else { throw .invalidProductId }
            productIds.insert(id)
        }
        for name in call.values("productType") {
            guard let type = Self.productTypes[name] else { throw .invalidProductType }
            types.insert(type)
        }
        for group in call.values("subscriptionGroupIdentifier") {
            guard (1...255).contains(group.utf8.count) else { throw .invalidSubscriptionGroup }
            groups.insert(group)
        }
        if let value = try call.value("inAppOwnershipType", else: .invalidInAppOwnershipType) {
            guard ["PURCHASED", "FAMILY_SHARED", "ASSIGNED"].contains(value) else { throw .invalidInAppOwnershipType }
            ownership = value
        }
        if let value = try call.value("sort", else: .invalidSort) {
            guard ["ASCENDING", "DESCENDING"].contains(value) else { throw .invalidSort }
            isDescending = value == "DESCENDING"
        }
        if let value = try call.value("revoked", else: .invalidRevoked) {
            guard let wanted = Bool(value) else { throw .invalidRevoked }
            revoked = wanted
        }
        if let value = try call.value("excludeRevoked", else: .invalidExcludeRevoked) {
            guard let excluded = Bool(value) else { throw .invalidExcludeRevoked }
            if excluded { revoked = false }
        }
        fingerprint = Revision.fingerprint(call, account: account)
        if let value = try call.value("revision", else: .invalidRequestRevision) {
            guard let parts = Revision.parts(value, fingerprint), parts.count == 1 else {
                throw .invalidRequestRevision
            }
            after = Int(parts[0])
        }
    }

    private static func date(_ call: AppleCall, _ name: String, else error: AppleError) throws(AppleError) -> Int64? {
        guard let text = try call.value(name, else: error) else { return nil }
        guard let date = Int64(text), date >= 0 else { throw error }
        return date
    }

    func matches(_ purchase: Purchase) -> Bool {
        if let startDate, purchase.purchaseDate < startDate { return false }
        if let endDate, purchase.purchaseDate >= endDate { return false }
        if !productIds.isEmpty, !productIds.contains(purchase.productId) { return false }
        if !types.isEmpty, !types.contains(purchase.type) { return false }
        if !groups.isEmpty, !groups.contains(purchase.subscriptionGroupIdentifier ?? "") { return false }
        if let ownership, purchase.inAppOwnershipType != ownership { return false }
        if let revoked, purchase.revoked != revoked { return false }
        return true
    }

    /// Whether a modification comes after the previous page.
    func isDue(_ modification: Int) -> Bool {
        guard let after else { return true }
        return isDescending ? modification < after : modification > after
    }

    /// The token for the part of the history after `modification`; nil: the page is empty.
    func revision(_ modification: Int?) -> String {
        Revision.text([Int64(modification ?? after ?? (isDescending ? .max : 0))], fingerprint)
    }
}

/// A place in a list, as a token that is valid only for the same question. Apple's token is opaque. That Apple refuses
/// a token of another question is our reading of "the same parameters".
enum Revision {
    /// A hash of the question: the endpoint, the customer and all parameters but the token itself, whatever their
    /// order.
    static func fingerprint(_ call: AppleCall, account: Account?, body: String = "") -> String {
        let parameters = call.query.filter { $0.name != "revision" && $0.name != "paginationToken" }
            .map { "\($0.name)=\($0.value)" }.sorted()
        let question =
            [call.service.rawValue, call.environment.rawValue, account?.app ?? "", account?.customer ?? "", body]
            + parameters
        // FNV-1a; the separator keeps the parts apart.
        let hash = question.joined(separator: "\u{0}").utf8
            .reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
        return String(hash, radix: 16)
    }

    static func text(_ parts: [Int64], _ fingerprint: String) -> String {
        (parts.map(String.init) + [fingerprint]).joined(separator: "_")
    }

    /// The numbers in a token; nil if it is no token of this question.
    static func parts(_ text: String, _ fingerprint: String) -> [Int64]? {
        let parts = text.split(separator: "_", omittingEmptySubsequences: false)
        guard parts.last.map(String.init) == fingerprint else { return nil }
        let numbers = parts.dropLast().compactMap { Int64($0) }
        return numbers.count == parts.count - 1 ? numbers : nil
    }
}
