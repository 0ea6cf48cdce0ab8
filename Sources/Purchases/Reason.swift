/// Why something was rejected, held or left open. The raw value is the word in SQL, answers and dashboards.
package enum Reason: String, Sendable, CaseIterable {
    // Held: waits for a product, a policy or a person.
    case productUnknown = "product_unknown"
    /// A store product that is sold as several items, none of them the default, and nobody says which one it was.
    case itemUnknown = "item_unknown"
    case sandbox
    case beforeCutover = "before_cutover"
    case review
    case purchaseAhead = "purchase_ahead"
    case possessionMissing = "possession_missing"
    case noTransactionYet = "no_transaction_yet"
    case orderUnknown = "order_unknown"
    /// The post names a placeholder in the place of its user, as an app does that has lost its user (F9).
    case userPlaceholder = "user_placeholder"
    /// The purchase carries a token that nobody registered, and its poster has another one.
    case foreignToken = "foreign_token"
    /// The submission names an order of another user, and nothing but the post speaks for its poster.
    case foreignOrder = "foreign_order"
    /// The record that was submitted names a user who is neither its poster nor known here (S0-24).
    case foreignRecord = "foreign_record"
    /// The purchase carries a token that nobody registered, and that one other user's purchases carried before.
    case tokenDisputed = "token_disputed"
    /// Nobody has posted the purchase, and nothing names its owner. The first authenticated poster with possession gets
    /// it.
    case unclaimed
    /// Another user has the purchase. By the app's policy a person decides whether the poster gets it.
    case transferReview = "transfer_review"
    case credentialsMissing = "credentials_missing"
    case appUnknown = "app_unknown"
    case idCollision = "id_collision"
    /// The purchase would be granted, but the former system still gives this app's goods (``AppPolicy/Mode``).
    case shadow
    // Already granted.
    case ownedByAnotherUser = "owned_by_another_user"
    /// The former system gave the purchase to this user.
    case imported
    /// The purchase was granted to another user, and has moved to the poster without its goods.
    case transferred
    // Rejected for a purchase that is real: there is nothing left to give, ever.
    case refunded
    /// Another customer shared the purchase and shares it no longer; no money went back.
    case withdrawn
    /// Another customer shares the purchase, and the app's policy gives nothing for that (``AppPolicy/Shared``).
    case sharedNotServed = "shared_not_served"
    case historical
    // Rejected, possibly because of a mistake of ours: `makegood support rejudge` has these judged again.
    case malformed
    case algorithm
    case chainLength = "chain_length"
    case certificate
    case untrustedRoot = "untrusted_root"
    case missingOID = "missing_oid"
    case expired
    case signature
    case unsigned
    /// An OCSP responder says that a certificate was revoked. The responder may take that back.
    case certificateRevoked = "certificate_revoked"
    case wrongApp = "wrong_app"
    case wrongEnvironment = "wrong_environment"
    case notAuthenticated = "not_authenticated"
    case accountNotFound = "account_not_found"
    case appleRefused = "apple_refused"
    case notFound = "not_found"
    case invalidTransactionID = "invalid_transaction_id"
    case takenOver = "taken_over"
    // Open: what the next try waits for.
    case appleUnavailable = "apple_unavailable"
    case appleAnswer = "apple_answer"
    case notFoundYet = "not_found_yet"
    /// The receipt lists many purchases, and Apple is asked about this one later. No attempt is counted for it.
    case historyPending = "history_pending"
    case clockAhead = "clock_ahead"
    /// The app requires an OCSP responder's answer about the certificates, and none came (P16).
    case certificateStatusUnknown = "certificate_status_unknown"
    /// Nobody has posted the purchase, and its owner may still post it (``Matcher/unpostedFor``).
    case unclaimedYet = "unclaimed_yet"
    /// Apple limits our calls, and other receipts go first.
    case appleBudget = "apple_budget"
    case halted
    /// This program cannot read the catalogue in force, and grants nothing by any other catalogue.
    case catalogueUnknown = "catalogue_unknown"
    /// The purchase was given on trust while Apple could not be reached. Apple has yet to confirm the purchase (B10).
    case unconfirmed
    case neverWorked = "never_worked"
}

extension Reason {
    /// Whether a receipt held for this reason has Apple's facts stored. Then this server owes the purchase, and no
    /// later failure of the proof as a whole cancels that. False where another post settles the receipt
    /// (``isSettledByAnotherPost``).
    package var holdsFacts: Bool {
        switch self {
        case .productUnknown, .itemUnknown, .sandbox, .beforeCutover, .review, .purchaseAhead, .orderUnknown,
            .unclaimed, .transferReview, .idCollision, .shadow:
            true
        default: false
        }
    }

    /// Whether only the configuration, the catalogue or a person ends a hold for this reason. A change of one of them
    /// makes the receipt due, so the receipt need not become due by time.
    package var waitsForConfiguration: Bool {
        switch self {
        case .productUnknown, .sandbox, .credentialsMissing, .transferReview, .idCollision, .shadow: true
        default: false
        }
    }

    /// Whether a proof rejected for this reason was not made by Apple for this app, if the configuration is right: the
    /// proof is forged, or taken from elsewhere.
    package var isForgery: Bool {
        switch self {
        case .algorithm, .chainLength, .certificate, .untrustedRoot, .missingOID, .signature, .unsigned,
            .certificateRevoked, .wrongApp, .wrongEnvironment, .notAuthenticated:
            true
        default: false
        }
    }

    /// Whether another user's post, or a post that says less, settles a receipt held for this reason. The purchase then
    /// has to stay in the queue of the device.
    package var isSettledByAnotherPost: Bool {
        switch self {
        case .foreignOrder, .foreignRecord, .foreignToken, .tokenDisputed, .userPlaceholder: true
        default: false
        }
    }

    /// Reasons for which a person may give the held purchase (`makegood support give`): its owner is not known, or its
    /// item, or whether the former system gave it. For every other reason the purchase waits for something that no
    /// person's decision replaces.
    package static let givenByPerson: [Reason] = [
        .itemUnknown, .beforeCutover, .review, .possessionMissing, .orderUnknown, .userPlaceholder, .foreignToken,
        .foreignOrder, .foreignRecord, .tokenDisputed, .unclaimed,
    ]

    /// Reasons of a hold of which the owner is told, if the owner is known (`purchase.held`). For every other reason
    /// nobody knows who the owner is, or the purchase is another user's or another system's, so far.
    package static let toldToOwner: [Reason] = [.productUnknown, .itemUnknown, .sandbox, .review, .purchaseAhead]

    /// Reasons of an open purchase that waits for something other than a try at Apple.
    package static let waiting: [Reason] = [.historyPending, .unclaimedYet]

    /// Apple's own statement that there is nothing to give: for these reasons alone a purchase that was given on trust
    /// is taken back. Any other rejection of a proof may be our mistake.
    package static let takingBack: [Reason] = [
        .refunded, .withdrawn, .notAuthenticated, .accountNotFound, .appleRefused,
    ]
    /// Reasons for which a real purchase is rejected for good. The client may finish the transaction: no further try
    /// gives anything.
    package static let leavingNothing: [Reason] = [.refunded, .withdrawn, .sharedNotServed, .historical]
}
