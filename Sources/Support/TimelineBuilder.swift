import Encoding
import Foundation
import Ledger
import Purchases
import Settings

/// Makes entries from rows. The rows hold only what the reader may see.
struct TimelineBuilder {
    let rows: TimelineRows
    let app: String
    let audience: Audience

    var lines: [TimelineEntry] {
        var lines = rows.orders.flatMap(orders) + rows.transactions.flatMap(purchases)
        lines += rows.receipts.flatMap(receipts) + rows.attempts.map(attempt) + rows.outcomes.compactMap(outcome)
        lines += rows.grants.map(grant) + rows.trusts.flatMap(trusts) + rows.events.map(event)
        lines += rows.handOuts.map(handOut)
        lines += rows.appleUpdates.map(appleUpdate)
        lines += rows.commands.map(command) + ownerships + rows.doubleCharges.map(doubleCharge)
        lines += rows.reports.map(report) + rows.imported.map(imported) + hearingLines
        if rows.receipts.contains(where: { !$0.state.isEnded }) { lines += rows.halts.map(halt) }
        return lines
    }

    private func orders(_ order: TimelineRows.Order) -> [TimelineEntry] {
        let id = order.id.text
        let goods = Self.parsed(order.goods)
        let promise = order.goods.map { ", promised \(Self.text(goods: $0)) if paid by \(order.payBy.rfc3339)" } ?? ""
        let item = order.item.map { " (\($0))" } ?? ""
        let placed = TimelineEntry(
            order.placedAt, .orderPlaced,
            "\(name(order.userId)) placed order \(id) for \(order.quantity) × \(order.productId)\(item)\(promise)",
            [
                ("orderId", .string(id)), ("user", .string(name(order.userId))),
                ("productId", .string(order.productId)),
                ("item", order.item.map(JSONValue.string)), ("quantity", .integer(order.quantity)),
                ("promotion", order.promotion.map(JSONValue.string)), ("channel", .string(order.channel)),
                ("goods", goods), ("target", Self.parsed(order.target)),
                ("priceMilliunits", order.priceMilliunits.map(JSONValue.integer)),
                ("currency", order.currency.map(JSONValue.string)), ("payBy", .string(order.payBy.rfc3339)),
                ("reservedFor", order.reservedFor.map(JSONValue.string)),
            ])
        guard let transaction = order.transactionId, let boundAt = order.boundAt else { return [placed] }
        return [
            placed,
            TimelineEntry(
                max(boundAt, order.placedAt), .orderBound, "order \(id) was bound to transaction \(transaction)",
                [("orderId", .string(id)), ("transactionId", .string(transaction))]),
        ]
    }

    private func purchases(_ transaction: TimelineRows.Transaction) -> [TimelineEntry] {
        let id = transaction.transactionId
        let apple = (try? JSONValue(parsing: Array(transaction.facts.utf8))) ?? .object([])
        let price = Self.integer(apple["price"])
        var currency: String?
        if case .string(let word)? = apple["currency"] { currency = word }
        let cost = price.map { ", for \(Self.text(milliunits: $0)) \(currency ?? "")" } ?? ""
        var facts: [(String, JSONValue?)] = [
            ("transactionId", .string(id)), ("productId", .string(transaction.productId)),
            ("quantity", .integer(transaction.quantity)), ("environment", .string(transaction.environment)),
            ("priceMilliunits", price.map(JSONValue.integer)), ("currency", currency.map(JSONValue.string)),
            ("expiresAt", transaction.expiresAt.map { .string($0.rfc3339) }),
        ]
        if audience.isSupport {
            facts += [
                ("originalTransactionId", .string(transaction.originalTransactionId)),
                ("type", transaction.kind.map(JSONValue.string)),
                ("appAccountToken", transaction.appAccountToken.map { .string($0.text) }),
                ("ownership", transaction.ownership.map(JSONValue.string)),
                ("signedAt", transaction.signedAt.map { .string($0.rfc3339) }), ("apple", apple),
            ]
        }
        let bought = TimelineEntry(
            transaction.purchasedAt, .bought,
            "Apple sold \(transaction.quantity) × \(transaction.productId) as transaction \(id) "
                + "(\(transaction.environment)\(cost))", facts)
        guard let revokedAt = transaction.revokedAt else { return [bought] }
        return [
            bought,
            TimelineEntry(
                revokedAt, .refunded, Self.ending(transaction.takenBack.flatMap(Reason.init(rawValue:)), of: id),
                [("transactionId", .string(id))]),
        ]
    }

    private static func ending(_ takenBack: Reason?, of id: String) -> String {
        switch takenBack {
        case .refunded: "Apple took transaction \(id) back: it was refunded"
        case .withdrawn: "Apple took transaction \(id) back: it is shared no longer"
        case nil: "Apple ended transaction \(id): upgraded, or refunded in part"
        default: "Apple took transaction \(id) back, for a reason that is not known here"
        }
    }

    private func receipts(_ receipt: TimelineRows.Receipt) -> [TimelineEntry] {
        let id = receipt.id.text
        let kind = Proof.Kind(rawValue: receipt.kind).map(Self.text) ?? receipt.kind
        // If the post names no user, its order does.
        let poster = (receipt.userId ?? owner(ofOrder: receipt.orderId)).map(name)
        var text = Self.arrival(of: kind, as: id, from: receipt.source, by: poster)
        if let named = receipt.transactionId { text += ", naming transaction \(named)" }
        let isShown = receipt.kind == Proof.Kind.signedTransaction.rawValue && receipt.purchases == 0
        let shown = isShown ? receipt.shownTransactionId : nil
        if let shown {
            text += ", which says it is transaction \(shown)"
            if let product = receipt.shownProductId { text += " of \(product)" }
            text += " (not verified)"
        }
        if let order = receipt.orderId { text += ", for order \(order)" }
        if receipt.isVouched, audience.isSupport { text += ", vouched for by a trusted backend" }
        if receipt.purchases > Statements.timelinePurchasesMax {
            text +=
                "; it holds \(receipt.purchases) purchases, of which \(Statements.timelinePurchasesMax) are told here"
        }
        let source: JSONValue? = audience.isSupport ? receipt.source.map(JSONValue.string) : nil
        var posts = [
            TimelineEntry(
                receipt.receivedAt, .posted, text,
                [
                    ("receiptId", .string(id)), ("user", poster.map(JSONValue.string)),
                    ("proof", .string(receipt.kind)),
                    ("transactionId", receipt.transactionId.map(JSONValue.string)),
                    ("originalTransactionId", receipt.originalTransactionId.map(JSONValue.string)),
                    ("orderId", receipt.orderId.map(JSONValue.string)),
                    ("shownTransactionId", shown.map(JSONValue.string)),
                    ("shownProductId", isShown ? receipt.shownProductId.map(JSONValue.string) : nil),
                    ("isVouched", audience.isSupport ? .bool(receipt.isVouched) : nil),
                    ("source", source),
                    ("target", Self.parsed(receipt.target)),
                    ("said", audience.isSupport ? Self.parsed(receipt.declared) : nil),
                ])
        ]
        posts += (receipt.said ?? []).map { said in
            let named = [said.transactionId.map { "transaction \($0)" }, said.orderId.map { "order \($0)" }]
                .compactMap(\.self)
            return TimelineEntry(
                said.saidAt, .said,
                "\(poster ?? "somebody") said of receipt \(id): \(named.isEmpty ? "no order" : named.joined(separator: ", "))",
                [
                    ("receiptId", .string(id)), ("user", poster.map(JSONValue.string)),
                    ("transactionId", said.transactionId.map(JSONValue.string)),
                    ("orderId", said.orderId.map(JSONValue.string)), ("target", Self.parsed(said.target)),
                    ("said", audience.isSupport ? Self.parsed(said.declared) : nil),
                ])
        }
        if let claimedAt = receipt.claimedAt {
            posts.append(
                TimelineEntry(
                    claimedAt, .posted, "\(poster ?? "somebody") posted it again, and receipt \(id) is judged anew",
                    [("receiptId", .string(id)), ("user", poster.map(JSONValue.string))]))
        }
        if let repeats = receipt.repeats, let repeatedAt = receipt.repeatedAt {
            posts.append(
                TimelineEntry(
                    repeatedAt, .posted,
                    "\(poster ?? "somebody") posted receipt \(id) again, \(repeats == 1 ? "once" : "\(repeats) times") so far",
                    [
                        ("receiptId", .string(id)), ("user", poster.map(JSONValue.string)),
                        ("repeats", .integer(repeats)),
                    ]))
        }
        // Decisions about its purchases have entries of their own.
        guard let reason = receipt.reason, receipt.purchases == 0, let at = receipt.settledAt ?? receipt.judgedAt
        else { return posts }
        let state = receipt.state == .received ? "tried again later" : receipt.state.rawValue
        return posts + [
            TimelineEntry(
                at, .decided, "receipt \(id): \(state), because \(reason)",
                [
                    ("receiptId", .string(id)), ("state", .string(receipt.state.rawValue)), ("reason", .string(reason)),
                ])
        ]
    }

    private func attempt(_ attempt: TimelineRows.Attempt) -> TimelineEntry {
        var words = [attempt.service, attempt.environment].compactMap(\.self)
        if let status = attempt.httpStatus { words.append("HTTP \(status)") }
        if let code = attempt.code { words.append("code \(code)") }
        if let milliseconds = attempt.milliseconds { words.append("\(milliseconds) ms") }
        return TimelineEntry(
            attempt.at, .attempt,
            "try \(attempt.attempt) brought nothing: \(([attempt.reason ?? "no reason"] + words).joined(separator: ", "))",
            [
                ("receiptId", .string(attempt.receiptId.text)),
                ("attempt", .integer(attempt.attempt)),
                ("reason", attempt.reason.map(JSONValue.string)), ("service", attempt.service.map(JSONValue.string)),
                ("environment", attempt.environment.map(JSONValue.string)),
                ("httpStatus", attempt.httpStatus.map(JSONValue.integer)),
                ("code", attempt.code.map(JSONValue.integer)),
                ("milliseconds", attempt.milliseconds.map(JSONValue.integer)),
            ])
    }

    /// The entry for an outcome; nil if the grant's own entry tells it.
    private func outcome(_ outcome: TimelineRows.Outcome) -> TimelineEntry? {
        let id = outcome.transactionId
        let grant = rows.grant(of: id)
        if outcome.state == "granted", grant != nil { return nil }
        var (state, reason) = (outcome.state, outcome.reason)
        // The player's receipt brought the purchase to another account.
        if state == "granted" { (state, reason) = ("already_granted", Reason.ownedByAnotherUser.rawValue) }
        var text = "transaction \(id): \(state)"
        if let reason { text += ", because \(reason)" }
        if state == "already_granted", let grant {
            text += ", to \(name(grant.userId)) at \(grant.grantedAt.rfc3339)"
        }
        var facts: [(String, JSONValue?)] = [
            ("receiptId", .string(outcome.receiptId.text)), ("transactionId", .string(id)),
            ("state", .string(state)), ("reason", reason.map(JSONValue.string)),
            ("owner", state == "already_granted" ? grant.map { .string(name($0.userId)) } : nil),
        ]
        if audience.isSupport, state == "held", let source = outcome.bindingSource {
            let reasons = outcome.reasons ?? []
            text += "; by the rule of \(source)" + (reasons.isEmpty ? "" : " (\(reasons.joined(separator: ", ")))")
            facts.append(("bindingSource", .string(source)))
            if !reasons.isEmpty { facts.append(("reasons", .array(reasons.map(Self.explained)))) }
        }
        return TimelineEntry(outcome.decidedAt, .decided, text, facts)
    }

    private func grant(_ grant: TimelineRows.Grant) -> TimelineEntry {
        var text = "transaction \(grant.transactionId) was granted to \(name(grant.userId)): \(Self.text(grant.goods))"
        var facts: [(String, JSONValue?)] = [
            ("transactionId", .string(grant.transactionId)), ("user", .string(name(grant.userId))),
            ("productId", .string(grant.productId)), ("quantity", .integer(grant.quantity)),
            ("goods", .goods(grant.goods)),
        ]
        if audience.isSupport {
            text += "; " + (BindingSource(rawValue: grant.bindingSource)?.because ?? grant.bindingSource)
            facts += [
                ("bindingSource", .string(grant.bindingSource)),
                ("receiptId", .string(grant.receiptId.text)),
            ]
            let reasons = reasons(grant)
            if !reasons.isEmpty {
                text += " (\(reasons.joined(separator: ", ")))"
                facts.append(("reasons", .array(reasons.map(Self.explained))))
            }
        }
        return TimelineEntry(grant.grantedAt, .granted, text, facts)
    }

    private func imported(_ purchase: TimelineRows.Imported) -> TimelineEntry {
        TimelineEntry(
            purchase.importedAt, .imported,
            "transaction \(purchase.transactionId) is on record as given to \(name(purchase.userId)) by the former system",
            [
                ("transactionId", .string(purchase.transactionId)), ("user", .string(name(purchase.userId))),
                ("productId", .string(purchase.productId)), ("purchasedAt", .string(purchase.purchasedAt.rfc3339)),
            ], PlayerSentence(.alreadyGranted, .imported))
    }

    /// The matcher's reasons for a grant, from the rows of the receipt that brought it; empty if the rows lack that
    /// receipt.
    private func reasons(_ grant: TimelineRows.Grant) -> [String] {
        rows.outcomes.first { $0.receiptId == grant.receiptId && $0.transactionId == grant.transactionId }?.reasons
            ?? []
    }

    /// A reason with its sentence; a reason of a newer version has no sentence here.
    private static func explained(_ word: String) -> JSONValue {
        let sentence = MatchReason(rawValue: word).map { [JSONValue.Member("sentence", $0.sentence.json)] } ?? []
        return .object([.init("reason", .string(word))] + sentence)
    }

    /// The owners of each chain, in the order of the chain's purchases.
    private var ownerships: [TimelineEntry] {
        let chains = Dictionary(grouping: rows.ownerships, by: \.originalTransactionId)
        return chains.values.flatMap { chain in
            let steps = chain.sorted {
                ($0.purchasedAt, $0.move, $0.transactionId) < ($1.purchasedAt, $1.move, $1.transactionId)
            }
            return steps.enumerated().map { index, step in
                let before = index > 0 ? steps[index - 1].userId : nil
                let rule = BindingSource(rawValue: step.bindingSource)?.because ?? step.bindingSource
                let isMoved = before.map { !$0.isSameText(as: step.userId) } ?? false
                var text =
                    "\(step.originalTransactionId) is \(name(step.userId))'s from transaction \(step.transactionId) on"
                if isMoved, let before { text += ", and was \(name(before))'s" }
                if audience.isSupport { text += "; \(rule)" }
                return TimelineEntry(
                    step.decidedAt, .owned, text,
                    [
                        ("originalTransactionId", .string(step.originalTransactionId)),
                        ("transactionId", .string(step.transactionId)), ("user", .string(name(step.userId))),
                        ("before", isMoved ? before.map { .string(name($0)) } : nil),
                        ("bindingSource", audience.isSupport ? .string(step.bindingSource) : nil),
                    ], isMoved ? .ownershipMoved : .ownershipBegan)
            }
        }
    }

    private func doubleCharge(_ charge: TimelineRows.DoubleCharge) -> TimelineEntry {
        var text = "transaction \(charge.transactionId) may be a second charge"
        if let first = charge.firstTransactionId { text += " for what transaction \(first) bought" }
        if let order = charge.orderId { text += " on order \(order.text)" }
        return TimelineEntry(
            charge.flaggedAt, .possibleDoubleCharge, "\(text); both were given",
            [
                ("transactionId", .string(charge.transactionId)),
                ("firstTransactionId", charge.firstTransactionId.map(JSONValue.string)),
                ("orderId", charge.orderId.map { .string($0.text) }),
            ], .possibleDoubleCharge)
    }

    private func report(_ report: TimelineRows.Report) -> TimelineEntry {
        let kind = ClientReport.Kind(rawValue: report.kind)
        var text = "the app\(report.appVersion.map { " \($0)" } ?? "") reported \(report.kind)"
        if let user = report.userId { text += " for \(name(user))" }
        if audience.isSupport, let message = report.message { text += ": \(message)" }
        if let handledAt = report.handledAt { text += " (a person saw to it at \(handledAt.rfc3339))" }
        return TimelineEntry(
            report.reportedAt, .reported, text,
            [
                ("kind", .string(report.kind)), ("user", report.userId.map { .string(name($0)) }),
                ("orderId", report.orderId.map { .string($0.text) }),
                ("transactionId", report.transactionId.map(JSONValue.string)),
                ("message", audience.isSupport ? report.message.map(JSONValue.string) : nil),
                ("handledAt", report.handledAt.map { .string($0.rfc3339) }),
            ], kind?.sentence)
    }

    private func trusts(_ trust: TimelineRows.Trust) -> [TimelineEntry] {
        let id = trust.transactionId
        let facts: [(String, JSONValue?)] = [("transactionId", .string(id))]
        var lines = [
            TimelineEntry(
                trust.grantedAt, .givenOnTrust, "transaction \(id) was given before Apple confirmed it", facts)
        ]
        if let at = trust.confirmedAt {
            lines.append(TimelineEntry(at, .confirmed, "Apple confirmed transaction \(id), given on trust", facts))
        }
        if let at = trust.revokedAt {
            lines.append(TimelineEntry(at, .takenBack, "Apple denied transaction \(id), given on trust", facts))
        }
        return lines
    }

    private func event(_ event: TimelineRows.Event) -> TimelineEntry {
        let id = event.eventId.text
        return TimelineEntry(
            event.at, .told,
            "the app backend may read \(event.type) of transaction \(event.transactionId) as event \(id)",
            [
                ("eventId", .string(id)), ("type", .string(event.type)),
                ("transactionId", .string(event.transactionId)),
            ])
    }

    private func appleUpdate(_ appleUpdate: TimelineRows.AppleUpdate) -> TimelineEntry {
        let id = appleUpdate.transactionId
        let what =
            appleUpdate.token.map {
                "purchases of \(appleUpdate.originalTransactionId) carry token \($0.text)"
            }
            ?? "transaction \(id) is finished"
        let because = appleUpdate.reason.map { ", because \($0)" } ?? ""
        let tries = appleUpdate.attempt == 0 ? "" : " after \(appleUpdate.attempt.counted("try", "tries"))"
        let text =
            switch appleUpdate.state {
            case "done": "Apple was told that \(what)"
            case "superseded": "Apple need not be told that \(what): a later purchase has another token"
            case "refused": "Apple does not take it that \(what)\(tries)\(because)"
            default:
                "Apple is to be told that \(what)"
                    + (appleUpdate.dueAt.map { ", next try at \($0.rfc3339)" } ?? "") + tries + because
            }
        return TimelineEntry(
            appleUpdate.endedAt ?? appleUpdate.createdAt, .toldApple, text,
            [
                ("transactionId", .string(id)), ("appleUpdate", .string(appleUpdate.kind)),
                ("state", .string(appleUpdate.state)),
                ("reason", appleUpdate.reason.map(JSONValue.string)), ("attempt", .integer(appleUpdate.attempt)),
                ("appAccountToken", appleUpdate.token.map { .string($0.text) }),
                ("httpStatus", appleUpdate.httpStatus.map(JSONValue.integer)),
                ("code", appleUpdate.code.map(JSONValue.integer)),
                ("nextTryAt", appleUpdate.dueAt.map { .string($0.rfc3339) }),
            ])
    }

    private func command(_ command: TimelineRows.Command) -> TimelineEntry {
        let receiver = command.receiver.map { ", to \(name($0))" } ?? ""
        return TimelineEntry(
            command.at, .command, "\(command.actor) ran \(command.action) \(command.details)\(receiver)",
            [
                ("actor", .string(command.actor)), ("action", .string(command.action)),
                ("user", command.receiver.map { .string(name($0)) }),
                ("details", try? JSONValue(parsing: Array(command.details.utf8))),
            ])
    }

    private func halt(_ halt: TimelineRows.Halt) -> TimelineEntry {
        let isPause = halt.service == Halt.everyService
        return TimelineEntry(
            halt.since, .halted,
            isPause ? "\(app) was paused by hand" : "\(halt.service) in \(halt.environment) was halted: \(halt.reason)",
            [
                ("service", .string(halt.service)), ("environment", .string(halt.environment)),
                ("reason", .string(halt.reason)),
            ])
    }

    // MARK: Words

    func name(_ user: String) -> String { audience.name(user, app: app) }

    private func owner(ofOrder id: String?) -> String? {
        guard let id = id.flatMap(UUID.init(uuidString:)) else { return nil }
        return rows.orders.first { $0.id == id }?.userId
    }

    /// Stored JSON; nil for an object without members.
    private static func parsed(_ json: String?) -> JSONValue? {
        guard let json, !json.isSameText(as: "{}") else { return nil }
        return try? JSONValue(parsing: Array(json.utf8))
    }

    private static func text(_ kind: Proof.Kind) -> String {
        switch kind {
        case .signedTransaction: "a signed transaction"
        case .receipt: "an app receipt"
        case .identifier: "a bare id"
        }
    }

    static func text(_ goods: [AppPolicy.Goods]) -> String {
        guard !goods.isEmpty else { return "no goods" }
        return goods.map { good in
            "\(good.amount) \(good.item)" + (good.bonus.map { " (bonus \($0))" } ?? "")
        }.joined(separator: ", ")
    }

    /// An order's goods as text; JSON of another shape stays as it is.
    private static func text(goods json: String) -> String {
        (try? JSONDecoder().decode([AppPolicy.Goods].self, from: Data(json.utf8))).map(text) ?? json
    }

    private static func integer(_ value: JSONValue?) -> Int? {
        guard case .number(let text)? = value else { return nil }
        return Int(text)
    }

    /// An amount in milliunits as text: 1990 is 1.99.
    private static func text(milliunits: Int) -> String {
        let decimals = String(abs(milliunits % 1000) + 1000).dropFirst()
        let sign = milliunits < 0 ? "-" : ""
        return "\(sign)\(abs(milliunits / 1000)).\(decimals.hasSuffix("0") ? decimals.dropLast() : decimals)"
    }
}
