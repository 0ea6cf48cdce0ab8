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
    /// The purchase carries a token that nobody registered, and its poster has another one.
    case foreignToken = "foreign_token"
    /// The submission names an order of another user, and nothing but the post speaks for its poster.
    case foreignOrder = "foreign_order"
    /// The record that was submitted names a user who is neither its poster nor known here (S0-24).
    case foreignRecord = "foreign_record"
    /// The purchase carries a token that nobody registered, and that one other user's purchases carried before.
    case tokenDisputed = "token_disputed"
    /// Nobody has posted it, and nothing says whose it is: the first authenticated post with possession has it.
    case unclaimed
    /// Another user has it, and the app's policy leaves it to a person whether it becomes the poster's.
    case transferReview = "transfer_review"
    case credentialsMissing = "credentials_missing"
    case appUnknown = "app_unknown"
    case idCollision = "id_collision"
    /// It would be given, but the app's goods are still given by the system before this one (``AppPolicy/Mode``).
    case shadow
    // Already granted.
    case ownedByAnotherUser = "owned_by_another_user"
    /// By the system before this one, to this user.
    case imported
    /// It was given to another user, and is the poster's since: without its goods.
    case transferred
    // Rejected for a purchase that is real: there is nothing left to give, ever.
    case refunded
    /// What was shared is shared no longer; no money went back.
    case withdrawn
    /// Another customer shares it, and the app's policy gives nothing for that (``AppPolicy/Shared``).
    case sharedNotServed = "shared_not_served"
    case historical
    // Rejected, and possibly our own fault: judged again by `makegood support rejudge`.
    case malformed
    case algorithm
    case chainLength = "chain_length"
    case certificate
    case untrustedRoot = "untrusted_root"
    case missingOID = "missing_oid"
    case expired
    case signature
    case unsigned
    /// A responder says that a certificate was revoked; it may take that back.
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
    /// Of a receipt with many purchases: Apple is asked about this one later. No attempt is counted for it.
    case historyPending = "history_pending"
    case clockAhead = "clock_ahead"
    /// The app wants a responder's word about the certificates, and none came (P16).
    case certificateStatusUnknown = "certificate_status_unknown"
    /// Nobody has posted it, and its owner's own post may still come (``Matcher/unpostedFor``).
    case unclaimedYet = "unclaimed_yet"
    /// Apple limits our calls, and others go first.
    case appleBudget = "apple_budget"
    case halted
    /// The catalogue in force is one that this program cannot read: nothing is given by another one.
    case catalogueUnknown = "catalogue_unknown"
    /// Given on trust while Apple cannot be reached: it has to confirm it (B10).
    case unconfirmed
    case neverWorked = "never_worked"
}

extension Reason {
    /// Whether a receipt held for this reason has Apple's facts stored: the debt is ours then, and no later failure of
    /// the proof as a whole takes it back. Not where another post is what settles it (``isSettledByAnotherPost``).
    package var holdsFacts: Bool {
        switch self {
        case .productUnknown, .itemUnknown, .sandbox, .beforeCutover, .review, .purchaseAhead, .orderUnknown,
            .unclaimed, .transferReview, .idCollision, .shadow:
            true
        default: false
        }
    }

    /// Whether only the configuration, the catalogue or a person changes what is held for this. A change of one of them
    /// makes it due, so time alone need not.
    package var waitsForConfiguration: Bool {
        switch self {
        case .productUnknown, .sandbox, .credentialsMissing, .transferReview, .idCollision, .shadow: true
        default: false
        }
    }

    /// Whether a proof that is rejected for this was not made by Apple for this app: forged, or taken from elsewhere, where
    /// the configuration is right.
    package var isForgery: Bool {
        switch self {
        case .algorithm, .chainLength, .certificate, .untrustedRoot, .missingOID, .signature, .unsigned,
            .certificateRevoked, .wrongApp, .wrongEnvironment, .notAuthenticated:
            true
        default: false
        }
    }

    /// Whether a post of somebody else, or one that says less, settles what is held for this: so it has to stay in the
    /// queue of a device.
    package var isSettledByAnotherPost: Bool {
        switch self {
        case .foreignOrder, .foreignRecord, .foreignToken, .tokenDisputed: true
        default: false
        }
    }

    /// What is held until somebody knows whose it is, which item it was, or that nobody has given it: a person may say
    /// so (`makegood support give`). Everything else waits for something that no person's word replaces.
    package static let givenByPerson: [Reason] = [
        .itemUnknown, .beforeCutover, .review, .possessionMissing, .orderUnknown, .foreignToken, .foreignOrder,
        .foreignRecord, .tokenDisputed, .unclaimed,
    ]

    /// What an open purchase waits for that is no try at Apple.
    package static let waiting: [Reason] = [.historyPending, .unclaimedYet]

    /// Apple's own word that there is nothing to give: what was given on trust is taken back for it. Whatever else a
    /// proof is rejected for may be our mistake as well.
    package static let takingBack: [Reason] = [
        .refunded, .withdrawn, .notAuthenticated, .accountNotFound, .appleRefused,
    ]
    /// A purchase that is real and rejected for this is over for its client too: nothing can come of another try.
    package static let leavingNothing: [Reason] = [.refunded, .withdrawn, .sharedNotServed, .historical]
}
