import AppStoreSimulator
import Encoding
import Foundation

/// Apple's word about one transaction at one moment, read from a signed transaction or from the store's ledger.
struct AppleWord: Decodable, Sendable, Equatable {
    let transactionId: String
    /// UNIX milliseconds.
    let signedDate: Int64
    let revocationDate: Int64?
    let revocationReason: Int?
    let revocationType: String?
    /// Thousandths of a percent.
    let revocationPercentage: Int?
    let isUpgraded: Bool?

    /// The payload of a transaction as JSON; nil: it is none.
    init?(json: Data) {
        guard let word = try? JSONDecoder().decode(AppleWord.self, from: json) else { return nil }
        self = word
    }

    /// A signed transaction in its compact form; nil: it is none.
    init?(jws: String) {
        let parts = jws.split(separator: ".")
        guard parts.count == 3, let json = Base64.decodeURL(Array(parts[1].utf8)[...]) else { return nil }
        self.init(json: Data(json))
    }

    /// A purchase as the store's ledger has it now.
    init(_ purchase: Purchase, signedDate: Int64) {
        transactionId = purchase.transactionId
        self.signedDate = signedDate
        revocationDate = purchase.revocationDate
        revocationReason = purchase.revocationReason
        revocationType = purchase.revocationType
        revocationPercentage = purchase.revocationPercentage
        isUpgraded = purchase.isUpgraded
    }

    /// The part of the goods that the end of the purchase leaves.
    enum Rest: Equatable {
        /// Everything. `isOwed`: the purchase must be granted.
        case all(isOwed: Bool)
        /// Nothing, whether it was granted before or not.
        case none
        /// All but this share, in thousandths of a percent.
        case without(percentage: Int)
    }

    var rest: Rest {
        if isUpgraded == true { return .all(isOwed: true) }
        guard revocationDate != nil else { return .all(isOwed: true) }
        switch (revocationType, revocationReason) {
        case ("FAMILY_REVOKE", _), ("ASSIGNMENT_REVOKE", _): return .all(isOwed: false)
        case ("REFUND_PRORATED", _): return .without(percentage: revocationPercentage ?? 100_000)
        // Moved into a bundle or out of it.
        case (_, 2): return .all(isOwed: false)
        default: return .none
        }
    }

    /// The goods that are left of what one grant gave.
    func left(of amount: Int) -> Int {
        switch rest {
        case .all: amount
        case .none: 0
        case .without(let percentage): amount - amount * percentage / 100_000
        }
    }

    /// Whether both words say the same about the end of the purchase.
    func saysTheSame(as other: AppleWord) -> Bool {
        (revocationDate, revocationReason, revocationType, revocationPercentage)
            == (other.revocationDate, other.revocationReason, other.revocationType, other.revocationPercentage)
            && (isUpgraded ?? false) == (other.isUpgraded ?? false)
    }
}

/// The history of the year's purchases outside of Makegood: the posts of each user, and the words that Apple brought.
struct YearBooks: Sendable {
    /// A transaction that the server accepted in a post.
    struct Posted: Sendable {
        let transactionID: String
        let userID: String
        let word: AppleWord?
    }

    /// Users by Apple's account: the first, and those who logged in on the device afterwards.
    private(set) var users: [String: [String]] = [:]
    /// The user that a registered token names, by the token in lower case.
    private(set) var tokens: [String: String] = [:]
    /// The place of the customer in the plan, by Apple's account.
    private(set) var numbers: [String: Int] = [:]
    private(set) var posted: [Posted] = []
    /// The places of the customers whose user was erased.
    private(set) var erased: Set<Int> = []

    mutating func note(user: String, of account: String, number: Int) {
        numbers[account] = number
        if users[account]?.contains(user) != true { users[account, default: []].append(user) }
    }

    mutating func note(token: UUID, of user: String) { tokens[token.uuidString.lowercased()] = user }

    mutating func note(_ post: Posted) { posted.append(post) }

    mutating func note(erased number: Int) { erased.insert(number) }

    /// Whether a user of the customer, or of the customer's family, was erased.
    func isErased(_ account: String) -> Bool { numbers[account].map(erased.contains) ?? false }
}
