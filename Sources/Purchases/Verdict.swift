package import Foundation

/// What a worker found for one receipt: a decision for every transaction in it, or one for the receipt as a whole.
///
/// One statement writes the verdict, if the row still has the attempt from which the worker started.
package struct Verdict: Sendable {
    package struct Entry: Sendable, Equatable {
        package var transaction: Transaction
        /// What kind of product it is, as Apple says it, else the catalogue; nil if neither does.
        package let kind: Transaction.Kind?
        /// Two consumables that were bought at different times are two purchases, even if they share a key.
        package var isConsumable: Bool { kind == .consumable }
        /// Whether nothing says that it is no consumable.
        package var mayBeConsumable: Bool { isConsumable || kind == nil && !transaction.isPeriod }
        package let decision: Decision
        /// The owner and the reasons, if the purchase is to be given. Nil: the poster is the owner, and nothing else is
        /// known.
        package private(set) var match: Match?
        /// What the app's policy says if another user has the purchase. Nil: it stays with that user.
        package let transfer: AppPolicy.Transfer?
        /// If it is held: the row that found its owner, or could not, with its reasons.
        package let heldBy: HoldingRow?
        /// If it is disputed: the other user for whom less than proof speaks.
        package let rival: String?
        /// Where in the game the goods go, by an earlier post about this purchase alone (``ReceiptLine``). Nil: by the
        /// post.
        package var target: String?

        package struct HoldingRow: Sendable, Equatable {
            package let source: BindingSource
            package var reasons: [MatchReason] = []
            /// The owner whom the row found. Nil: the row could not name one, or nobody is told (shadow).
            package var owner: String?

            package init(_ source: BindingSource, reasons: [MatchReason] = [], owner: String? = nil) {
                self.source = source
                self.reasons = reasons
                self.owner = owner
            }
        }

        /// - Parameter kind: what its product is sold as here.
        package init(
            transaction: Transaction, soldAs kind: Transaction.Kind? = nil, decision: Decision, match: Match? = nil,
            transfer: AppPolicy.Transfer? = nil, heldBy: HoldingRow? = nil, rival: String? = nil
        ) {
            self.transaction = transaction
            self.kind = transaction.kind ?? kind
            self.decision = decision
            self.match = match
            self.transfer = transfer
            self.heldBy = heldBy
            self.rival = rival
        }

        /// The same purchase and owner, decided otherwise. Of a hold nobody is told then.
        package func with(_ decision: Decision) -> Entry {
            var row = heldBy
            row?.owner = nil
            if case .held = decision { row = row ?? match.map { HoldingRow($0.source, reasons: $0.reasons) } }
            var entry = Entry(
                transaction: transaction, soldAs: kind, decision: decision, match: match,
                transfer: transfer, heldBy: row)
            entry.target = target
            return entry
        }

        /// The same decision, with a reason that was found beside it.
        package func noting(_ reason: MatchReason) -> Entry {
            var entry = self
            entry.match?.reasons.append(reason)
            return entry
        }
    }

    /// What a verdict says: never both, so that "every transaction of its receipt" has one meaning.
    package enum Decisions: Sendable {
        /// One entry or more, each transaction once.
        case transactions([Entry])
        /// Only its id is known, nobody proved anything of it: held, unless it was granted to this very user.
        case identifier(String, Reason)
        /// Nothing is known of any transaction: a proof that failed, an Apple that did not answer, an empty receipt.
        case receipt(Decision)
    }

    package let receiptID: UUID
    /// The row's attempt when the worker read it. If the row has another attempt by now, the verdict is ignored.
    package let attempt: Int
    /// How many posts had said something else about the receipt when the worker read the row. If there are more by now,
    /// the verdict is ignored.
    package var lines = 0
    package let appID: String
    package let claim: Claim
    package let decisions: Decisions
    /// When the row is due again if it stays open or held.
    package let dueIn: Duration
    /// The call to Apple that this attempt made, if it counted.
    package let call: Call?
    /// The Apple updates to write with the verdict, each only if its purchase is granted or held by the verdict.
    package var appleUpdates: [AppleUpdate] = []
    /// The places that its grants need.
    package var places: [LimitPlace] = []
    /// The bundle id of a proof of another app, if it looks like another build of this one.
    package var variantBundleID: String?

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
        receiptID: UUID, attempt: Int, appID: String, claim: Claim, decisions: Decisions, dueIn: Duration,
        call: Call? = nil
    ) {
        self.receiptID = receiptID
        self.attempt = attempt
        self.appID = appID
        self.claim = claim
        self.decisions = decisions
        self.dueIn = dueIn
        self.call = call
    }

    /// How many rows of a settle transaction this takes: one for each purchase, at least one.
    package var rowCount: Int {
        switch decisions {
        case .transactions(let entries): max(1, entries.count)
        case .identifier, .receipt: 1
        }
    }
}

/// Which transactions an app's clients may finish because this server says so.
package enum FinishPolicy: Sendable {
    /// None: the app is in shadow, and another system decides.
    case never
    /// Those that have ended well.
    case ended
    /// Also those that are held, once their facts are stored: then this server owes the purchase.
    case held
}

/// Whether a client may finish one transaction or receipt (P2).
package enum SafeToFinish {
    /// True if the client's copy is not needed any more: granted, already granted (to any user), rejected for one of
    /// ``Reason/leavingNothing``, or held once Apple's verified facts are stored here (then this server owes the
    /// purchase), unless another post settles it. A reason of a newer version may be one that another post settles.
    ///
    /// - Parameter isDisputed: whether another user has it by less than proof, and the poster was told so less than a
    ///   day ago.
    package static func judge(
        state: String, reason: String?, hasFacts: Bool, finishHeld: Bool = true, isDisputed: Bool = false
    ) -> Bool {
        switch state {
        case "granted", "already_granted": !isDisputed
        case "rejected": reason.flatMap(Reason.init(rawValue:)).map { Reason.leavingNothing.contains($0) } ?? false
        case "held":
            hasFacts && finishHeld && (reason.map { Reason(rawValue: $0)?.isSettledByAnotherPost == false } ?? true)
        default: false
        }
    }
}

extension Verdict.Decisions {
    /// Whether it waits for the end of shadow, which a person brings about.
    package var isOfShadow: Bool {
        guard waitsForConfiguration, case .transactions(let entries) = self else { return false }
        return entries.contains { $0.decision == .held(.shadow) }
    }

    /// Whether everything that is held or open in it waits for the configuration (``Reason/waitsForConfiguration``).
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

    /// Whether another post of its poster may get a purchase granted that is not granted now, or change a purchase on
    /// trust that Apple has not confirmed.
    package var dependsOnLines: Bool {
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
