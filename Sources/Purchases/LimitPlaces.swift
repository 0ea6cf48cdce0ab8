import Crypto
import Encoding
import Foundation

/// A place within a limit of an app's policy or of its catalogue. The database takes the place in the statement that
/// gives the purchase, so that purchases which come at once pass no limit unnoticed. A purchase that lacks a place of
/// the policy is held. A purchase that lacks a place of the catalogue is given, because it is paid, and its grant says
/// so.
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
        /// Units of an item of the catalogue that one user was given, per UTC day.
        case itemDay = "item_day"
        /// The same per UTC month.
        case itemMonth = "item_month"
        /// The same for ever.
        case itemEver = "item_ever"
    }

    package let transactionID: String
    package let purchaseKey: String
    package let limit: Limit
    package let holder: String
    package let takenFor: String
    /// How many places the limit has.
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
    /// The places that a verdict needs: for sandbox purchases of users who are no testers, for purchases that are
    /// granted by a post alone (rows 5a and 10), and for items that the catalogue limits. No purchase is dropped beyond
    /// a limit.
    ///
    /// - Parameter posterID: the owner where a decision names none.
    package func places(for decisions: Verdict.Decisions, posterID: String?) -> [LimitPlace] {
        guard case .transactions(let entries) = decisions else { return [] }
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
        // An entitlement without goods takes no place.
        guard source != .shared || shared == .goods else { return [] }
        var places = units(of: entry, userID: userID).map { place($0.limit, $0.holder, for: $0.unit, $0.places) }
        if transaction.environment != Transaction.production {
            guard sandboxPurchases == .testers, !isTester(userID) else { return places }
            return places + [
                place(.sandboxUser, Self.digest(userID), for: transaction.purchaseKey, sandboxPerUserPerDay),
                place(.sandboxApp, "", for: transaction.purchaseKey, sandboxPerAppPerDay),
            ]
        }
        guard source == .poster || source == .record || source == .shared else { return places }
        let user = Self.digest(userID)
        if makeUpUsersPerCustomer > 0, let customer = transaction.customerID {
            places.append(place(.makeUpCustomer, customer, for: user, makeUpUsersPerCustomer))
        }
        if makeUpPerUserPerDay > 0 {
            // For another user's record the holder is the poster: no user uses up what another user may be given in a
            // day.
            let holder = posterID.map(Self.digest) ?? user
            places.append(place(.makeUpUser, holder, for: transaction.purchaseKey, makeUpPerUserPerDay))
        }
        return places
    }

    /// The units of an item that the catalogue limits, each once for each limit. The database keeps a digest of the
    /// holder. By the holder the database also finds what the user was given before there were places.
    private func units(
        of entry: Verdict.Entry, userID: String
    ) -> [(limit: LimitPlace.Limit, holder: String, unit: String, places: Int)] {
        let transaction = entry.transaction
        guard let product = sold?.products[transaction.productID],
            let item = product.items[entry.match?.item ?? product.defaultItem ?? product.id], !item.limits.areNone,
            let holder = try? JSONSerialization.data(
                withJSONObject: [userID, product.id, item.id, item.id == product.defaultItem])
        else { return [] }
        return [
            (LimitPlace.Limit.itemDay, item.limits.day), (.itemMonth, item.limits.month), (.itemEver, item.limits.ever),
        ].flatMap { limit, most in
            // One unit more than the limit is as telling as a hundred more.
            most.map { most in
                (1...max(1, min(transaction.quantity, most + 1))).map { unit in
                    (
                        limit, String(decoding: holder, as: UTF8.self),
                        unit == 1 ? transaction.purchaseKey : "\(transaction.purchaseKey) \(unit)", most
                    )
                }
            } ?? []
        }
    }

    /// SHA-256 of a user's id, in hexadecimal. A place may outlive the erasure of its user, so it holds no id that a
    /// reader could see.
    private static func digest(_ userID: String) -> String {
        SHA256.hash(data: Data(userID.utf8)).hexadecimal
    }
}
