import Foundation
import Purchases

@testable import Ledger

/// The rows that the ledger must have.
struct MachineModel {
    struct Row: Equatable {
        var state = ReceiptState.received
        var attempt = 0
        var rescues = 0
        var reason: String?
        /// The order that the newest post named while the row was open, and how often the line changed.
        var order: String?
        var lines = 0
        /// The outcomes by transaction; Apple's answer about a grant on trust is part of the text.
        var outcomes: [String: String] = [:]
    }

    struct Facts {
        var signedAt: Int
        var isRefunded: Bool
    }

    var rows: [UUID: Row] = [:]
    /// Transaction to receipt.
    var grants: [String: UUID] = [:]
    var facts: [String: Facts] = [:]
    /// For each transaction, the receipt that holds its place in the limits of trust.
    var places: [String: UUID] = [:]
    /// By transaction: `unconfirmed`, `confirmed` or `revoked`.
    var trusted: [String: String] = [:]
    /// The orders that were ever named beside a receipt.
    var said: [UUID: Set<String>] = [:]

    mutating func say(_ id: UUID, order: String) {
        guard var row = rows[id], row.order != order else { return }
        let isNew = said[id, default: []].insert(order).inserted
        if row.state.isEnded {
            guard isNew else { return }
        } else {
            row.order = order
        }
        row.lines += 1
        rows[id] = row
    }

    mutating func settle(_ id: UUID, attempt: Int, lines: Int, _ decisions: Verdict.Decisions, signedAt: Int) {
        guard var row = rows[id], !row.state.isEnded, row.attempt == attempt, row.lines == lines else { return }
        var states: [(state: String, reason: String?)] = []
        var isProvisional = false
        switch decisions {
        case .transactions(let entries):
            isProvisional = entries.contains { if case .provisional = $0.decision { true } else { false } }
            if entries.contains(where: { standsAgain($0, signedAt: signedAt) }) {
                // The receipt is judged anew. Its other purchases are given all the same.
                for entry in entries { giveAlone(entry, to: id, signedAt: signedAt) }
                note(entries, signedAt: signedAt)
                return
            }
            for entry in entries {
                let outcome = judge(entry, for: id, signedAt: signedAt)
                states.append(
                    outcome.state == "granted" ? (outcome.counts, outcome.reason) : (outcome.state, outcome.reason))
                let before = row.outcomes[entry.transaction.id]
                // Beside its grants, a verdict on trust writes only outcomes that had none before.
                if isProvisional, outcome.state != "granted", before != nil || outcome.state == "already_granted" {
                    continue
                }
                switch before {
                case "granted", "already_granted", "granted refunded": break
                case "granted unconfirmed" where outcome.state != "granted": break
                default:
                    let isTold = outcome.state == "granted" && outcome.reason != nil
                    row.outcomes[entry.transaction.id] =
                        isTold ? "granted \(outcome.reason ?? "")" : outcome.state
                }
            }
            note(entries, signedAt: signedAt)
        case .receipt(.rejected(let reason)):
            // A rejection of the whole receipt takes no grant back.
            let kept = row.outcomes.values.filter { $0.contains("granted") }
            states =
                kept.isEmpty
                ? [("rejected", reason.rawValue)] : kept.map { ($0.hasPrefix("granted") ? "granted" : $0, nil) }
            for (transaction, state) in row.outcomes where state == "open" || state == "held" {
                if !waits(id) { row.outcomes[transaction] = "rejected" }
            }
        case .receipt(.open(let reason)):
            states = [("open", reason.rawValue)]
        case .receipt(.held(let reason)): states = [("held", reason.rawValue)]
        case .receipt(.grant), .receipt(.provisional), .identifier: preconditionFailure("no worker finds this here")
        }
        let order = ["open", "held", "granted", "already_granted", "rejected"]
        var first = order.first { word in states.contains { $0.state == word } } ?? "rejected"
        if isProvisional { first = "open" }
        let waits = waits(id)
        if waits, first != "open" { first = "held" }
        row.state = first == "open" ? .received : ReceiptState(rawValue: first)!
        if first == "open" || first == "held" {
            let reasons = states.filter { $0.state == first }.compactMap(\.reason)
            row.reason =
                if waits, first == "open" || reasons.isEmpty { "unconfirmed" } else {
                    isProvisional ? "apple_unavailable" : reasons.min()
                }
        }
        row.attempt += first == "open" && !isProvisional ? 1 : 0
        row.rescues = 0
        rows[id] = row
    }

    private mutating func note(_ entries: [Verdict.Entry], signedAt: Int) {
        for entry in entries {
            let known = facts[entry.transaction.id]
            if known == nil || known!.signedAt < signedAt {
                facts[entry.transaction.id] = Facts(signedAt: signedAt, isRefunded: entry.transaction.revokedAt != nil)
            }
        }
    }

    /// Whether it is rejected for its refund, and newer facts say that it stands.
    private func standsAgain(_ entry: Verdict.Entry, signedAt: Int) -> Bool {
        guard entry.decision.isForEnd, let known = facts[entry.transaction.id] else { return false }
        return !known.isRefunded && known.signedAt > signedAt
    }

    private mutating func giveAlone(_ entry: Verdict.Entry, to id: UUID, signedAt: Int) {
        guard case .grant = entry.decision, grants[entry.transaction.id] == nil else { return }
        if let known = facts[entry.transaction.id], known.isRefunded, known.signedAt > signedAt { return }
        grants[entry.transaction.id] = id
    }

    /// Whether this receipt gave on trust and still waits: only Apple's answer ends the grant, and so the receipt.
    private func waits(_ id: UUID) -> Bool {
        trusted.contains { $0.value == "unconfirmed" && grants[$0.key] == id }
    }

    /// - Returns: `counts`: the state by which a granted transaction counts for its receipt while it waits for Apple's
    ///   answer.
    private mutating func judge(
        _ entry: Verdict.Entry, for id: UUID, signedAt: Int
    ) -> (state: String, reason: String?, counts: String) {
        let transaction = entry.transaction.id
        var decision = entry.decision
        if decision.gives, let known = facts[transaction], known.isRefunded, known.signedAt > signedAt {
            decision = .rejected(.refunded)
        }
        let isTrusted = trusted[transaction] == "unconfirmed"
        let mayBeGiven =
            places[transaction] == id && (trusted[transaction] == nil || isTrusted)
            && !["held", "rejected"].contains(rows[id]?.outcomes[transaction] ?? "")
        if case .provisional = decision, !mayBeGiven { decision = .open(.appleUnavailable) }
        if case .open(let reason) = decision { return ("open", reason.rawValue, "open") }
        if let owner = grants[transaction] {
            guard owner == id else { return ("already_granted", nil, "") }
            return isTrusted ? answer(entry, decision) : ("granted", nil, "granted")
        }
        switch decision {
        case .grant:
            grants[transaction] = id
            return ("granted", nil, "granted")
        case .provisional:
            grants[transaction] = id
            trusted[transaction] = "unconfirmed"
            return ("granted", "unconfirmed", "open")
        case .held(let reason): return ("held", reason.rawValue, "")
        case .rejected(let reason): return ("rejected", reason.rawValue, "")
        case .open: preconditionFailure("answered above")
        }
    }

    /// The outcome of a verdict on a grant on trust of the same receipt: only Apple's own answer about it ends it.
    private mutating func answer(
        _ entry: Verdict.Entry, _ decision: Decision
    ) -> (state: String, reason: String?, counts: String) {
        switch (entry.decision, decision) {
        case (.grant, .grant):
            trusted[entry.transaction.id] = "confirmed"
            return ("granted", nil, "granted")
        case (.rejected(.refunded), _):
            trusted[entry.transaction.id] = "revoked"
            return ("granted", "refunded", "granted")
        case (.provisional, _): return ("granted", "unconfirmed", "open")
        default: return ("granted", "unconfirmed", "held")
        }
    }

    mutating func rescue() {
        for (id, row) in rows where !row.state.isEnded {
            var row = row
            if row.rescues >= Statements.rescuesMax, row.state == .received { row.park() } else { row.rescues += 1 }
            rows[id] = row
        }
    }

    mutating func strike(_ id: UUID, attempt: Int) {
        guard var row = rows[id], !row.state.isEnded, row.attempt == attempt else { return }
        let wasParkedForIt = row.state == .parked && row.reason == "never_worked"
        if row.rescues >= Statements.rescuesMax || wasParkedForIt { row.park() } else { row.rescues += 1 }
        rows[id] = row
    }

    mutating func postpone(_ id: UUID, attempt: Int, lines: Int, _ reason: Reason) {
        guard var row = rows[id], !row.state.isEnded, row.attempt == attempt, row.lines == lines else { return }
        row.rescues = 0
        if row.state == .received, row.reason != "unconfirmed" { row.reason = reason.rawValue }
        rows[id] = row
    }

    mutating func reopen() {
        for (id, row) in rows where row.state == .rejected {
            var row = row
            row.state = .received
            row.reason = nil
            row.attempt += 1
            row.rescues = 0
            row.outcomes = row.outcomes.mapValues { $0 == "rejected" ? "open" : $0 }
            rows[id] = row
        }
    }
}

extension MachineModel.Row {
    fileprivate mutating func park() {
        state = .parked
        reason = "never_worked"
        attempt += 1
        rescues = 0
    }
}
