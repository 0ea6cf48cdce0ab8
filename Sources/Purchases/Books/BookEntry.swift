package import Foundation

/// A transaction of our ledger, as a comparison with Apple's books sees it: a sale or a refund.
package struct BookEntry: Sendable, Equatable {
    package enum Standing: Sendable, Equatable {
        /// Counted by the ledger: a grant, or the refund of a grant.
        case counted
        /// Given by the former system, and imported.
        case imported
        /// Waiting: held, or still being tried.
        case undecided
        /// Judged and not granted.
        case rejected
        /// Bought before the app was live here, and not given again.
        case beforeCutover
        /// Replaced by an upgrade: no refund here, though Apple may give a part of the price back.
        case upgraded
    }

    package var id: String
    package var product: String
    /// Two capital letters; empty: not known.
    package var country: String
    /// The purchase, or Apple's date of the refund.
    package var at: Date
    package var units: Int
    package var side: AppleBooks.Place.Side
    package var standing: Standing
    package var isSandbox: Bool
    /// Bought by another customer (Family Sharing, seats).
    package var isShared: Bool
    /// Apple said that nothing was paid: an introductory offer, an offer code.
    package var isFree: Bool
    package var isRenewal: Bool
    /// Of a refund: Apple took it back later.
    package var isReversed: Bool

    package init(
        id: String, product: String, country: String, at: Date, units: Int = 1,
        side: AppleBooks.Place.Side = .sales, standing: Standing = .counted, isSandbox: Bool = false,
        isShared: Bool = false, isFree: Bool = false, isRenewal: Bool = false, isReversed: Bool = false
    ) {
        self.id = id
        self.product = product
        self.country = country
        self.at = at
        self.units = units
        self.side = side
        self.standing = standing
        self.isSandbox = isSandbox
        self.isShared = isShared
        self.isFree = isFree
        self.isRenewal = isRenewal
        self.isReversed = isReversed
    }
}

/// Why Apple's books and ours differ.
package enum BookCause: String, Sendable, CaseIterable {
    /// Apple counts the product, and the app does not sell it.
    case notOurs = "not_ours"
    /// Apple counts that a non-consumable was restored (IA3); nothing is granted for it.
    case restored
    /// Apple's reports have no purchase of the sandbox.
    case sandbox
    /// Apple counts what the buyer paid, and not what family members share.
    case familyShared = "family_shared"
    /// The purchase lies near midnight Pacific time, and Apple counts it on the next day or the day before.
    case dayBoundary = "day_boundary"
    /// Apple settled it in the fiscal month after or before.
    case settlementMonth = "settlement_month"
    /// Apple counts the refund on another day.
    case refundDay = "refund_day"
    /// An app receipt does not tell the country of a purchase.
    case countryUnknown = "country_unknown"
    case imported
    /// The purchase waits here: held, or still being tried.
    case undecided
    /// The purchase was judged here and not granted, with a reason.
    case rejected
    /// Apple gives a part of the price back for a period that an upgrade replaced.
    case upgraded
    /// Apple took the refund back.
    case refundReversed = "refund_reversed"
    /// Nothing was paid, and Apple's report leaves it out.
    case priceZero = "price_zero"
    /// Sold before the app was live here, and nobody imported or posted it.
    case beforeCutover = "before_cutover"
}

/// A difference between Apple's units and ours at one place, and what explains it.
package struct BookDifference: Sendable, Equatable {
    package struct Part: Sendable, Equatable {
        package var cause: BookCause
        /// The part of Apple's units less ours that the cause explains.
        package var units: Int
        /// The transactions behind it, in the order of their ids; empty where this server knows none.
        package var transactions: [String]

        package init(_ cause: BookCause, _ units: Int, _ transactions: [String] = []) {
            self.cause = cause
            self.units = units
            self.transactions = transactions
        }
    }

    package var place: AppleBooks.Place
    package var apple: Int
    package var ours: Int
    /// In the order of ``BookCause``.
    package var parts: [Part]
    /// Apple's units less ours, without what the parts explain.
    package var unexplained: Int
}
