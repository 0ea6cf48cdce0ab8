import Encoding
package import Foundation
package import Purchases

/// The id that a timeline is asked for by: of a receipt, a transaction or an order.
package enum TimelineSubject: Sendable, Equatable {
    case receipt(UUID)
    case transaction(String)
    case order(UUID)

    package var kind: String {
        switch self {
        case .receipt: "receipt"
        case .transaction: "transaction"
        case .order: "order"
        }
    }

    package var id: String {
        switch self {
        case .receipt(let id), .order(let id): id.text
        case .transaction(let id): id
        }
    }
}

/// The reader of a timeline. The timeline leaves out what the reader may not see.
package enum TimelineReader: Sendable, Equatable {
    /// People who run the commands with access to the database.
    case people
    /// A key with the scope `support`: the key reads everything in these apps.
    case support(apps: Set<String>)
    /// A user, by app, as the tables name the user: reads the user's own receipts, orders and grants.
    case player([String: String])
}

/// The keys of everything that a timeline is made of, in one app.
package struct TimelineKeys: Sendable, Equatable {
    package let appID: String
    package let receipts: [UUID]
    package let transactions: [String]
    package let orders: [UUID]
}

/// The stored rows of a timeline, all read at the same moment. Times are the database's clock.
package struct TimelineRows: Sendable {
    package struct Receipt: Sendable, Decodable {
        package let id: UUID
        /// As the tables name users: the user's key, where users are protected.
        package let userId: String?
        package let orderId: String?
        package let kind: String
        package let lane: String
        /// The transaction that the poster named.
        package let transactionId: String?
        package let originalTransactionId: String?
        package let isVouched: Bool
        package let state: ReceiptState
        package let reason: String?
        package let attempt: Int
        package let receivedAt: Date
        package let judgedAt: Date?
        package let dueAt: Date?
        package let settledAt: Date?
        /// When it was last posted again and judged anew.
        package let claimedAt: Date?
        /// JSON: where in the game the goods go, and what else the post says of its purchase.
        package let target: String?
        package let declared: String?
        /// How many purchases it holds. Of a receipt with many, the timeline tells not all.
        package let purchases: Int
        /// The bundle id of its proof, where that is another app's and looks like another build of this one.
        package var variantBundleId: String?
        /// How often it was posted after the first time, and when last; nil: never.
        package var repeats: Int?
        package var repeatedAt: Date?
        /// What the proof says it is of, which nobody had verified when it was posted.
        package var shownTransactionId: String?
        package var shownProductId: String?
        /// `post`, or who brought it without a post: `notification`, `sweep`.
        package var source: String?
        /// What its posts said, each once, the first post included; nil where all posts said the same.
        package var said: [Said]?
    }

    package struct Said: Sendable, Decodable {
        /// When a post last said it.
        package let saidAt: Date
        package let orderId: String?
        package let transactionId: String?
        package let target: String?
        package let declared: String?
    }

    package struct Outcome: Sendable, Decodable {
        package let receiptId: UUID
        package let transactionId: String
        package let state: String
        package let reason: String?
        package let bindingSource: String?
        /// The matcher's reasons.
        package let reasons: [String]?
        package let decidedAt: Date
    }

    /// The owner of a chain, from one of its purchases on.
    package struct Ownership: Sendable, Decodable {
        package let originalTransactionId: String
        package let transactionId: String
        package let userId: String
        package let bindingSource: String
        package let purchasedAt: Date
        /// How often the purchase had moved before.
        package let move: Int
        package let decidedAt: Date
    }

    /// The later of two purchases that may be one, charged twice.
    package struct DoubleCharge: Sendable, Decodable {
        package let transactionId: String
        package let userId: String
        package let firstTransactionId: String?
        package let orderId: UUID?
        package let flaggedAt: Date
    }

    /// An app's report of a purchase that went wrong.
    package struct Report: Sendable, Decodable {
        package let userId: String?
        package let orderId: UUID?
        package let transactionId: String?
        package let kind: String
        package let message: String?
        package let appVersion: String?
        package let reportedAt: Date
        package let handledAt: Date?
    }

    package struct Attempt: Sendable, Decodable {
        package let receiptId: UUID
        package let attempt: Int
        package let at: Date
        package let reason: String?
        package let service: String?
        package let environment: String?
        package let httpStatus: Int?
        package let code: Int?
        package let milliseconds: Int?
    }

    /// Apple's facts about a transaction.
    package struct Transaction: Sendable, Decodable {
        package let transactionId: String
        package let originalTransactionId: String
        package let environment: String
        package let productId: String
        package let kind: String?
        package let quantity: Int
        package let purchasedAt: Date
        package let expiresAt: Date?
        package let revokedAt: Date?
        package let appAccountToken: UUID?
        package let ownership: String?
        package let signedAt: Date?
        /// A JSON object: what else Apple said.
        package let facts: String
        /// `refunded`, `withdrawn`, or `review` where Apple's reason is not known here. Nil: Apple has not taken it
        /// back, or it was paid for.
        package let takenBack: String?
    }

    package struct Grant: Sendable, Decodable {
        package let transactionId: String
        package let receiptId: UUID
        package let userId: String
        package let productId: String
        package let quantity: Int
        package let goods: [AppPolicy.Goods]
        package let bindingSource: String
        package let grantedAt: Date
    }

    /// A purchase that the former system gave.
    package struct Imported: Sendable, Decodable {
        package let transactionId: String
        package let userId: String
        package let productId: String
        package let purchasedAt: Date
        package let importedAt: Date
    }

    /// A purchase that was given on trust.
    package struct Trust: Sendable, Decodable {
        package let transactionId: String
        package let grantedAt: Date
        package let confirmedAt: Date?
        package let revokedAt: Date?
    }

    package struct Event: Sendable, Decodable {
        package let eventId: UUID
        package let type: String
        package let transactionId: String
        package let at: Date
    }

    /// What became of the goods of an event, as the app's backend says.
    package struct HandOut: Sendable, Decodable {
        package let eventId: UUID
        package let type: String
        /// Of an order of another way of payment the order's id.
        package let transactionId: String
        /// `handed_out`, `taken_back`, `refused` or `void`.
        package let outcome: String
        package let amount: Int?
        package let goods: [AppPolicy.Goods]?
        package let reason: String?
        package let at: Date
    }

    package struct Order: Sendable, Decodable {
        package let id: UUID
        package let userId: String
        package let productId: String
        package let item: String?
        package let quantity: Int
        package let promotion: String?
        package let channel: String
        /// JSON; nil: the catalogue held nothing when the order was placed.
        package let goods: String?
        /// JSON.
        package let target: String
        package let priceMilliunits: Int?
        package let currency: String?
        package let placedAt: Date
        package let payBy: Date
        package let reservedFor: String?
        package private(set) var transactionId: String?
        package private(set) var boundAt: Date?
        /// The owner of the purchase that the order was asked for, where that purchase binds no order.
        package let grantedTo: String?

        /// The order as a user who may not read that purchase sees it.
        package var open: Order {
            var order = self
            (order.transactionId, order.boundAt) = (nil, nil)
            return order
        }
    }

    /// What Apple is told about a purchase.
    package struct AppleUpdate: Sendable, Decodable {
        package let transactionId: String
        package let kind: String
        package let originalTransactionId: String
        package let token: UUID?
        package let state: String
        package let reason: String?
        package let attempt: Int
        package let httpStatus: Int?
        package let code: Int?
        package let createdAt: Date
        package let dueAt: Date?
        package let endedAt: Date?
    }

    /// A command that a person ran: it concerned the whole app, or a user of the timeline.
    package struct Command: Sendable, Decodable {
        package let at: Date
        package let actor: String
        package let action: String
        /// A JSON object.
        package let details: String
        /// The user whom the command gave something to.
        package let receiver: String?
    }

    package struct Halt: Sendable, Decodable {
        package let service: String
        package let environment: String
        package let reason: String
        package let since: Date
        package let probeAt: Date
    }

    package let now: Date
    package let receipts: [Receipt]
    package let outcomes: [Outcome]
    package let attempts: [Attempt]
    package let transactions: [Transaction]
    package let grants: [Grant]
    package let trusts: [Trust]
    package let events: [Event]
    package let orders: [Order]
    package let appleUpdates: [AppleUpdate]
    package let commands: [Command]
    package let halts: [Halt]
    package let ownerships: [Ownership]
    package let doubleCharges: [DoubleCharge]
    package let reports: [Report]
    package let imported: [Imported]
    package var handOuts: [HandOut] = []
    package var hearing = TimelineHearing()

    package init(
        now: Date, receipts: [Receipt], outcomes: [Outcome], attempts: [Attempt], transactions: [Transaction],
        grants: [Grant], trusts: [Trust], events: [Event], orders: [Order], appleUpdates: [AppleUpdate],
        commands: [Command],
        halts: [Halt], ownerships: [Ownership], doubleCharges: [DoubleCharge], reports: [Report], imported: [Imported]
    ) {
        self.now = now
        self.receipts = receipts
        self.outcomes = outcomes
        self.attempts = attempts
        self.transactions = transactions
        self.grants = grants
        self.trusts = trusts
        self.events = events
        self.orders = orders
        self.appleUpdates = appleUpdates
        self.commands = commands
        self.halts = halts
        self.ownerships = ownerships
        self.doubleCharges = doubleCharges
        self.reports = reports
        self.imported = imported
    }
}
