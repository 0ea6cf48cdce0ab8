package import Purchases

extension Reason {
    /// In which state a receipt or a purchase has this reason: open (`received`), `held`, `already_granted`, `granted` or
    /// `rejected`.
    package var states: [ReceiptState] {
        switch self {
        case .productUnknown, .itemUnknown, .sandbox, .beforeCutover, .review, .purchaseAhead, .possessionMissing,
            .noTransactionYet, .orderUnknown, .userPlaceholder, .foreignToken, .foreignOrder, .foreignRecord,
            .tokenDisputed, .unclaimed, .transferReview, .credentialsMissing, .appUnknown, .idCollision, .shadow:
            [.held]
        case .ownedByAnotherUser, .imported, .transferred: [.alreadyGranted]
        case .refunded, .withdrawn: [.rejected, .granted]
        case .sharedNotServed, .historical, .malformed, .algorithm, .chainLength, .certificate, .untrustedRoot,
            .missingOID, .expired, .signature, .unsigned, .certificateRevoked, .wrongApp, .wrongEnvironment,
            .notAuthenticated, .accountNotFound, .appleRefused, .notFound, .invalidTransactionID, .takenOver:
            [.rejected]
        case .appleUnavailable, .appleAnswer, .notFoundYet, .historyPending, .clockAhead, .certificateStatusUnknown,
            .unclaimedYet, .appleBudget, .halted, .catalogueUnknown, .unconfirmed:
            [.received]
        case .neverWorked: [.parked]
        }
    }
}

/// The page of all reasons that answers, tables and logs give, in Markdown: deploy/reasons.md.
package enum ReasonPage {
    package static var text: String {
        """
        # Reasons

        Every reason that an answer, a table or a log line gives for the state of a receipt or of one purchase in it.
        `makegood reasons` prints this page.

        *Finish*: whether `safeToFinish` is true. "Once stored" means: true as soon as Apple's verified facts are stored
        here, unless the app's `finishHeld` says otherwise. A purchase that another user has by less than proof is not
        safe to finish for a day.

        | reason | state | finish | meaning, and what to do | what the player reads |
        | --- | --- | --- | --- | --- |
        \(Reason.allCases.map(row).joined(separator: "\n"))

        """
    }

    private static func row(_ reason: Reason) -> String {
        let states = reason.states
        let isFinished = states.map { state in
            SafeToFinish.judge(state: state.rawValue, reason: reason.rawValue, hasFacts: false)
        }
        let isOnceStored = states.contains { state in
            SafeToFinish.judge(state: state.rawValue, reason: reason.rawValue, hasFacts: true)
        }
        let finish = isFinished.contains(true) ? "yes" : isOnceStored && reason.holdsFacts ? "once stored" : "no"
        let sentence = PlayerSentence(states[0], reason)
        return "| `\(reason.rawValue)` | \(states.map { "`\($0.rawValue)`" }.joined(separator: ", ")) | \(finish) "
            + "| \(reason.remedy) | \(sentence.en) \(sentence.zh) |"
    }
}
