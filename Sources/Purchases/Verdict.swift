package import Foundation

/// What a worker found for one receipt: a decision for every transaction in it, or one for the receipt as a whole.
///
/// Written by one statement, guarded by the attempt it started from.
package struct Verdict: Sendable {
    package struct Entry: Sendable, Equatable {
        package let transaction: Transaction
        /// By Apple's word, else the catalogue's: two that were bought at different times are two purchases, whatever key
        /// they share.
        package let isConsumable: Bool
        package let decision: Decision
        /// Whose it is, and why, where it is to be given. Nil: the poster's, and nothing else is known of it.
        package let match: Match?
        /// What the app's policy says if somebody else has it. Nil: it stays with him.
        package let transfer: AppPolicy.Transfer?
        /// Of what is held: the row that found its owner, or could not, with its reasons.
        package let heldBy: HoldingRow?
        /// Of what is disputed: the other user whom something less than proof speaks for.
        package let rival: String?
        /// Where in the game the goods go by the words that are about this purchase alone; nil: by the post's.
        package var target: String?

        package struct HoldingRow: Sendable, Equatable {
            package let source: BindingSource
            package var reasons: [MatchReason] = []

            package init(_ source: BindingSource, reasons: [MatchReason] = []) {
                self.source = source
                self.reasons = reasons
            }
        }

        /// - Parameter kind: what its product is sold as here.
        package init(
            transaction: Transaction, soldAs kind: Transaction.Kind? = nil, decision: Decision, match: Match? = nil,
            transfer: AppPolicy.Transfer? = nil, heldBy: HoldingRow? = nil, rival: String? = nil
        ) {
            self.transaction = transaction
            isConsumable = (transaction.kind ?? kind) == .consumable
            self.decision = decision
            self.match = match
            self.transfer = transfer
            self.heldBy = heldBy
            self.rival = rival
        }

        /// The same purchase and owner, decided otherwise.
        package func with(_ decision: Decision) -> Entry {
            var row = heldBy
            if case .held = decision { row = row ?? match.map { HoldingRow($0.source, reasons: $0.reasons) } }
            var entry = Entry(
                transaction: transaction, soldAs: isConsumable ? .consumable : nil, decision: decision, match: match,
                transfer: transfer, heldBy: row)
            entry.target = target
            return entry
        }
    }

    /// What a verdict says: never both, so that "every transaction of its receipt" has one meaning.
    package enum Finding: Sendable {
        /// One entry or more, each transaction once.
        case transactions([Entry])
        /// Only its id is known, nobody proved anything of it: held, unless it was granted to this very user.
        case identifier(String, Reason)
        /// Nothing is known of any transaction: a proof that failed, an Apple that did not answer, an empty receipt.
        case receipt(Decision)
    }

    package let receiptID: UUID
    /// The row's attempt when it was read. A row that has moved on since ignores this verdict.
    package let attempt: Int
    /// How often something else had been said of the receipt when it was read. A row of which more is said since ignores
    /// this verdict.
    package var lines = 0
    package let appID: String
    package let claim: Claim
    package let finding: Finding
    /// When the row is due again if it stays open or held.
    package let dueIn: Duration
    /// The call to Apple that this attempt made, if it counted.
    package let call: Call?
    /// Written with it, each for what is granted or held by it.
    package var appleUpdates: [AppleUpdate] = []
    /// What it gives needs these.
    package var places: [LimitPlace] = []

    /// One call to Apple, for the attempts table.
    package struct Call: Sendable, Equatable {
        package let service: String
        package let environment: String
        package let httpStatus: Int?
        package let code: Int?
        package let milliseconds: Int

        package init(service: String, environment: String, httpStatus: Int?, code: Int?, milliseconds: Int) {
            self.service = service
            self.environment = environment
            self.httpStatus = httpStatus
            self.code = code
            self.milliseconds = milliseconds
        }
    }

    package init(
        receiptID: UUID, attempt: Int, appID: String, claim: Claim, finding: Finding, dueIn: Duration, call: Call? = nil
    ) {
        self.receiptID = receiptID
        self.attempt = attempt
        self.appID = appID
        self.claim = claim
        self.finding = finding
        self.dueIn = dueIn
        self.call = call
    }

    /// How many rows of the settle statement this takes.
    package var rowCount: Int {
        switch finding {
        case .transactions(let entries): max(1, entries.count)
        case .identifier, .receipt: 1
        }
    }
}

/// What an app's clients may finish on our word.
package enum FinishPolicy: Sendable {
    /// Nothing: the app is in shadow, and another system's word counts.
    case never
    /// What has ended well.
    case ended
    /// Also what is held once its facts are stored: the debt is ours then.
    case held
}

/// What a client is told about one transaction or receipt: may it finish (P2)?
package enum SafeToFinish {
    /// True where nothing more can come of the client's copy: granted, already granted (to anyone), rejected for one of
    /// ``Reason/leavingNothing``, and held once Apple's verified facts are stored here (the debt is ours then), unless another post of
    /// it is what settles it.
    ///
    /// - Parameter isDisputed: another user has it by less than proof, and its poster was told so less than a day ago.
    package static func judge(
        state: String, reason: String?, hasFacts: Bool, finishHeld: Bool = true, isDisputed: Bool = false
    ) -> Bool {
        switch state {
        case "granted", "already_granted": !isDisputed
        case "rejected": reason.flatMap(Reason.init(rawValue:)).map { Reason.leavingNothing.contains($0) } ?? false
        case "held":
            hasFacts && finishHeld && reason.flatMap(Reason.init(rawValue:))?.isSettledByAnotherPost != true
        default: false
        }
    }
}

extension Verdict.Finding {
    /// Whether it waits for the end of shadow, which a person brings about.
    package var isOfShadow: Bool {
        guard waitsForConfiguration, case .transactions(let entries) = self else { return false }
        return entries.contains { $0.decision == .held(.shadow) }
    }

    /// Whether that is so for all of it that is open.
    package var waitsForConfiguration: Bool {
        switch self {
        case .receipt(.held(let reason)): return reason.waitsForConfiguration
        case .receipt, .identifier: return false
        case .transactions(let entries):
            let waiting = entries.map(\.decision).filter {
                switch $0 {
                case .held, .open: true
                case .grant, .provisional, .rejected: false
                }
            }
            return !waiting.isEmpty
                && waiting.allSatisfy {
                    if case .held(let reason) = $0 { reason.waitsForConfiguration } else { false }
                }
        }
    }

    /// Whether other words of its poster may give what this does not give, or give otherwise what Apple has not confirmed.
    package var hangsOnWords: Bool {
        guard case .transactions(let entries) = self else { return false }
        return entries.contains { entry in
            switch entry.decision {
            case .held(.itemUnknown), .held(.foreignOrder), .held(.foreignRecord), .held(.tokenDisputed),
                .held(.review), .held(.shadow),
                .provisional:
                true
            default: false
            }
        }
    }
}
