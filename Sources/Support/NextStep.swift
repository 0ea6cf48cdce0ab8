import Encoding
package import Foundation
package import Ledger
package import Purchases

/// The next step of a receipt, who takes it, and when: from the receipt's row and the halts of its app.
package struct NextStep: Sendable, Equatable {
    package enum Actor: String, Sendable, CaseIterable {
        /// The receipt goes on by itself.
        case makegood
        case `operator`
        case player
        /// The receipt has ended.
        case nobody
    }

    package let by: Actor
    /// The latest time at which the receipt goes on by itself.
    package let at: Date?
    /// For support and operators.
    package let text: String

    package init(by actor: Actor, at: Date? = nil, _ text: String) {
        by = actor
        self.at = at
        self.text = text
    }

    package static let nothing = NextStep(by: .nobody, "nothing is left to do")

    /// - Parameters:
    ///   - halts: of the receipt's app.
    ///   - now: by the clock of the database.
    package init(_ receipt: TimelineRows.Receipt, app: String, halts: [TimelineRows.Halt], now: Date) {
        let reason = receipt.reason.flatMap(Reason.init(rawValue:))
        guard let dueAt = receipt.dueAt, !receipt.state.isEnded else {
            self = Self.ended(receipt, reason, app)
            return
        }
        if let halt = Self.halt(receipt, halts) {
            let since = halt.since.rfc3339
            self =
                halt.service == Halt.everyService
                ? NextStep(by: .operator, "\(app) is paused since \(since): makegood queue resume --app \(app) ends it")
                : NextStep(
                    by: .operator, at: dueAt,
                    "\(halt.service) in \(halt.environment) is halted since \(since) (\(halt.reason)): mend the "
                        + "credentials; a probe a minute finds out, the next after \(halt.probeAt.rfc3339)")
            return
        }
        let remedy = reason.map { "; \($0.remedy)" } ?? ""
        switch receipt.state {
        case .received where dueAt <= now:
            self = NextStep(
                by: .makegood, at: dueAt,
                "it is due, and a scheduler queues it within seconds; where it stays due, no scheduler runs or no worker "
                    + "does (makegood queue status)")
        case .received where reason == nil:
            self = NextStep(by: .makegood, at: dueAt, "a worker judges it; if none has, it is queued again")
        case .parked:
            self = NextStep(
                by: reason == .neverWorked ? .operator : .makegood, at: dueAt,
                "it is tried again; makegood queue redrive --app \(app) --state parked does it now\(remedy)")
        case .held:
            let isForPerson = reason.map { Reason.givenByPerson.contains($0) } ?? false
            self = NextStep(
                by: reason?.waitsFor ?? .operator, at: dueAt,
                "it is judged again, and at once when the configuration changes\(remedy)"
                    + (isForPerson ? "; a person who knows whose it is says so with makegood support give" : ""))
        default: self = NextStep(by: .makegood, at: dueAt, "it is tried again\(remedy)")
        }
    }

    private static func ended(_ receipt: TimelineRows.Receipt, _ reason: Reason?, _ app: String) -> NextStep {
        guard receipt.state == .rejected, let reason,
            !SafeToFinish.judge(state: receipt.state.rawValue, reason: reason.rawValue, hasFacts: false)
        else { return .nothing }
        let variant = receipt.variantBundleId.map {
            "its bundle id \($0) looks like this app's Mac Catalyst or App Clip build: list it under the app's bundleIdAliases"
        }
        return NextStep(
            by: .nobody,
            "it has ended; where that is our own mistake: makegood support rejudge --app \(app) --reason "
                + "\(reason.rawValue), after this: \(variant ?? reason.remedy)")
    }

    /// The halt that the receipt waits for: a pause by hand, or credentials that Apple does not accept.
    private static func halt(_ receipt: TimelineRows.Receipt, _ halts: [TimelineRows.Halt]) -> TimelineRows.Halt? {
        if let pause = halts.first(where: { $0.service == Halt.everyService }) { return pause }
        return receipt.reason == Reason.halted.rawValue ? halts.first : nil
    }
}

extension Reason {
    /// Who must act while a receipt is held for this reason.
    fileprivate var waitsFor: NextStep.Actor {
        switch self {
        case .itemUnknown, .possessionMissing, .noTransactionYet, .orderUnknown, .userPlaceholder, .unclaimed: .player
        case .purchaseAhead: .makegood
        default: .operator
        }
    }

    /// The remedy, in words for support and operators.
    package var remedy: String {
        switch self {
        case .productUnknown: "add the product to the app's products"
        case .itemUnknown:
            "its product is sold as several items, none the default: the app has to post it again with the item, or give "
                + "the product a default"
        case .sandbox: "a purchase of the sandbox; the app's sandboxPurchases and testers say who may have one"
        case .beforeCutover:
            "bought before grantFrom: ask the former system whether it gave the goods; import it if so, else an earlier "
                + "grantFrom gives it here"
        case .review:
            "beyond a limit of the app (makeUp), its proof is gone, or Apple took it back for a reason that is not known here: "
                + "a person has to look"
        case .purchaseAhead: "Apple's purchase date lies ahead of our clock; it passes by itself"
        case .possessionMissing: "a bare id proves nothing: the app has to post Apple's own proof"
        case .noTransactionYet: "a genuine receipt without a purchase: the app has to refresh it and post it again"
        case .orderUnknown: "nobody is named: the app has to post it with the user's id"
        case .userPlaceholder:
            "the app has lost its user and sent a placeholder (undefined, null, 0): the user's own post decides it, or a person who "
                + "knows whose it is; see which version of the app sends it"
        case .unclaimed:
            "nobody has posted it, and its Apple customer is not one user's: the user's own post decides it"
        case .unclaimedYet: "nobody has posted it; a day later the Apple customer's past decides"
        case .foreignToken: "its appAccountToken is nobody's here, and the poster has another: register it for its user"
        case .foreignRecord:
            "the record names a user who is not known here: that user's own post decides it, the poster's without the record, or a "
                + "person who knows whose it is"
        case .tokenDisputed:
            "purchases with its appAccountToken were another user's: that user's own post within a day decides it, else its poster "
                + "has it; apps that register their users' tokens never see this"
        case .foreignOrder:
            "the post names another user's order: that user's own post decides it, the poster's without that order, or a person who "
                + "knows whose the purchase is"
        case .transferReview:
            "another user has it, and the app's transfer is hold: makegood support own says whose it is"
        case .credentialsMissing: "give the app its serverApi or verifyReceipt credentials"
        case .appUnknown: "add the app to the configuration"
        case .idCollision:
            "a grant of another app or environment has this id: a person looks, and gives it with makegood support give if the "
                + "environment is another one"
        case .shadow:
            "the app is in shadow (mode): it would be given; to end that, stop the former system, import what it gave "
                + "(makegood import), set the mode to live, and then run makegood queue redrive --state held --reason shadow"
        case .ownedByAnotherUser: "it stays with its owner"
        case .imported: "the former system gave it (makegood import grants)"
        case .transferred: "it was another user's, and is the poster's since, by the app's transfer"
        case .refunded: "Apple has given the money back"
        case .withdrawn: "the buyer who shared it, a family member or an organization, shares it no longer"
        case .sharedNotServed: "another customer shares it, and the app's shared is reject"
        case .historical: "bought long before grantFrom: the former system's"
        case .malformed, .unsigned, .signature:
            "what was posted is not what Apple signed: ask the app for its proof again"
        case .algorithm, .chainLength, .certificate, .missingOID, .expired:
            "the certificates in the proof are not Apple's: look at the proof with makegood inspect"
        case .untrustedRoot: "compare rootCertificates with the root in the proof"
        case .certificateRevoked: "a responder calls a certificate revoked: see whether it still does"
        case .wrongApp:
            "compare bundleId and appAppleId with the proof; bundleIdAliases takes the app's Mac Catalyst and App Clip builds"
        case .wrongEnvironment: "compare environments with the proof"
        case .notAuthenticated, .accountNotFound, .appleRefused:
            "Apple refuses this receipt: ask the app for a fresh one"
        case .notFound, .invalidTransactionID: "Apple knows no such id: compare it with the player's"
        case .takenOver: "a later receipt of the same user has brought the purchases"
        case .appleUnavailable: "Apple cannot be reached (v_apple)"
        case .appleAnswer:
            "what Apple answered says nothing of the purchase (an error of Apple's, or an answer that contradicts itself), see "
                + "the tries"
        case .notFoundYet: "Apple does not show it yet"
        case .historyPending: "the customer's history is read page by page"
        case .clockAhead: "signed ahead of our clock: compare clocks (makegood doctor)"
        case .certificateStatusUnknown: "no responder answers, and the app's ocsp wants one"
        case .appleBudget: "Apple limits our calls, and others go first (v_call_budgets)"
        case .halted: "calls were halted when it was tried last"
        case .catalogueUnknown:
            "the catalogue in force was written by a newer program: start workers of that version, or apply it again"
        case .unconfirmed: "given on trust; Apple has to confirm it"
        case .neverWorked: "its worker died with it, or nobody worked: see the workers' logs before it is tried again"
        }
    }
}
