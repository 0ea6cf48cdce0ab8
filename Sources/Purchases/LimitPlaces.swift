import Crypto
import Foundation

/// A place within a limit of an app's policy, which a purchase needs before it is given. The database takes it in the
/// statement that gives the purchase, so that purchases which come at once pass no limit.
package struct LimitPlace: Sendable, Equatable {
    /// The raw value is the word in SQL.
    package enum Limit: String, Sendable, CaseIterable {
        /// Sandbox purchases of one user who is no tester, per UTC day.
        case sandboxUser = "sandbox_user"
        /// Sandbox purchases of all users who are no testers, per UTC day.
        case sandboxApp = "sandbox_app"
        /// Users whom one Apple customer's purchases went to by a post alone, for ever.
        case makeUpCustomer = "make_up_customer"
        /// Purchases that one user was given by a post alone, per UTC day.
        case makeUpUser = "make_up_user"
    }

    package let transactionID: String
    package let purchaseKey: String
    package let limit: Limit
    package let holder: String
    package let takenFor: String
    /// How many there are.
    package let places: Int

    package init(
        transactionID: String, purchaseKey: String, limit: Limit, holder: String, takenFor: String, places: Int
    ) {
        self.transactionID = transactionID
        self.purchaseKey = purchaseKey
        self.limit = limit
        self.holder = holder
        self.takenFor = takenFor
        self.places = places
    }
}

extension AppPolicy {
    /// What a finding needs places for: sandbox purchases of users who are no testers, and what a post alone is granted
    /// for (rows 5a and 10). Beyond the limits a purchase is held; nothing is dropped.
    ///
    /// - Parameter posterID: the owner where a decision names none.
    package func places(for finding: Verdict.Finding, posterID: String?) -> [LimitPlace] {
        guard case .transactions(let entries) = finding else { return [] }
        return entries.flatMap { entry in
            (entry.match?.userID ?? posterID).map { places(for: entry, userID: $0, posterID: posterID) } ?? []
        }
    }

    private func places(for entry: Verdict.Entry, userID: String, posterID: String?) -> [LimitPlace] {
        let transaction = entry.transaction
        let source: BindingSource
        switch entry.decision {
        case .grant(_, let found), .provisional(_, let found): source = found
        case .rejected, .held, .open: return []
        }
        func place(_ limit: LimitPlace.Limit, _ holder: String, for purpose: String, _ places: Int) -> LimitPlace {
            LimitPlace(
                transactionID: transaction.id, purchaseKey: transaction.purchaseKey, limit: limit, holder: holder,
                takenFor: purpose, places: places)
        }
        guard source != .shared else { return [] }
        if transaction.environment != Transaction.production {
            guard sandboxPurchases == .testers, !isTester(userID) else { return [] }
            return [
                place(.sandboxUser, Self.digest(userID), for: transaction.purchaseKey, sandboxPerUserPerDay),
                place(.sandboxApp, "", for: transaction.purchaseKey, sandboxPerAppPerDay),
            ]
        }
        guard source == .poster || source == .record else { return [] }
        let user = Self.digest(userID)
        var places: [LimitPlace] = []
        if makeUpUsersPerCustomer > 0, let customer = transaction.customerID {
            places.append(place(.makeUpCustomer, customer, for: user, makeUpUsersPerCustomer))
        }
        if makeUpPerUserPerDay > 0 {
            // Of another user's record the poster's: nobody uses up what another user may be given in a day.
            let holder = posterID.map(Self.digest) ?? user
            places.append(place(.makeUpUser, holder, for: transaction.purchaseKey, makeUpPerUserPerDay))
        }
        return places
    }

    /// SHA-256 in hexadecimal. A place may outlive the erasure of its user, and holds no id that a reader could see.
    private static func digest(_ userID: String) -> String {
        SHA256.hash(data: Data(userID.utf8)).hexadecimal
    }
}
