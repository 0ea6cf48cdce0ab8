package import Foundation
package import Postgres
package import Purchases

/// What became of a receipt when its verdict was written.
package struct Settlement: Sendable, Equatable {
    package let receiptID: UUID
    package let state: ReceiptState
    /// The row's attempt after the verdict: what the next pointer carries.
    package let attempt: Int
    /// Seconds since it was accepted, when the verdict was written, by the database's clock.
    package let age: Double
    /// That somebody has what another one shows, by less than proof, was told by it.
    package let tellsDispute: Bool
    /// A limit of which a purchase lacked a place: of the policy, by which it was held, or of the catalogue, where it was given.
    package let lackingLimit: LimitPlace.Limit?
}

/// One batch of verdicts, and the clocks that the statement needs beside them.
package struct SettleBatch: Sendable {
    package var verdicts: [Verdict]
    package var parking: Parking

    package init(verdicts: [Verdict], parking: Parking) {
        self.verdicts = verdicts
        self.parking = parking
    }
}

extension Statements {
    /// Writes every verdict of a batch, final or not: grants, facts, outcomes, attempts, events, receipts. Idempotent:
    /// a repeated batch finds settled rows, or rows whose attempt moved on, and changes nothing.
    ///
    /// Its parts: ``settleVerdicts`` (SettleGrants.swift) takes the receipts and answers from what is on record, a refund of
    /// the purchase's own id included; ``settleGrants`` inserts the grants (`won`); ``settleMoves`` moves what runs on to
    /// another owner; ``settleOutcomes`` (SettleOutcomes.swift) writes outcomes, attempts and Apple updates;
    /// ``settleEvents`` writes the events; the update at the end writes the receipts' states.
    ///
    /// The shape and its traps, each held by a test:
    /// - The guard is taken once per receipt with SKIP LOCKED: nobody waits for a neighbour. A receipt that is missing
    ///   from the result is read again by the caller.
    /// - "Inserted by us" is matched on transaction *and* receipt: three users may claim one transaction in one batch.
    /// - An owner that this snapshot does not see leaves the receipt as it is (`again`); the next statement sees it.
    /// - No join of two CTEs: the planner expects one row of them and turns quadratic. `IN … IS TRUE` is no join.
    /// - Grants go in the order of their purchases: batches that share purchases cannot deadlock on them, under whatever
    ///   ids (the same id has the same purchase, but a restore has another id). Batches that share two orders, each
    ///   wanted by two purchases, can: one of them is written again.
    /// - A period has two unique keys, and a grant under either is the purchase. Periods go by the second one, which all
    ///   ids of a period have; `on conflict` without a target heeds both.
    /// - Two consumables that were bought at different times are two purchases: one that meets the other's key is held
    ///   for a person, who gives it by its own id.
    /// - A proof that fails as a whole takes back nothing that it granted before: its outcomes still count.
    /// - A grant that exists answers before any decision but `open` (Ownership, rows 1 and 0b); without
    ///   possession only to its own user.
    /// - Purchases that Apple is asked about later, or that somebody may still post, and nothing else open, are no attempt
    ///   (``Reason/waiting``).
    /// - A refund or withdrawal on record answers a proof that Apple signed before it (row 0a): an old proof is no way
    ///   around it.
    /// - What the system before this one has given (`imported_grants`) answers like a grant, and nothing is given again.
    /// - What is given on trust (`provisional`) needs its place within the limits, and that the purchase was not held
    ///   or rejected. Its verdict keeps the receipt open, and of what it does not give it writes only what nothing was
    ///   said of. It is no attempt: what asking Apple brought is the next verdict. The verdict that brings Apple's word
    ///   about it marks and tells it, and the grant stays whatever that word is. Nothing but that word ends a receipt
    ///   with such a grant, also not a verdict that does not name it.
    /// - So is a verdict about what was said before its poster said something else (`lines`).
    /// - A verdict about somebody who became part of another account since it was matched, or was erased (`outdated`), is
    ///   none: the row is read again, and names him by what he is now. Of what was written before, whose it is now is asked.
    /// - What runs on may pass to whoever shows it, where the app's policy says so (row 1): of its chain's latest purchase
    ///   only, by claims since its last move, so often at most. Two who claim it at once: one row can be inserted.
    /// - An order is bound by one purchase, the one that is granted by it: the grant is the binding, and no two grants
    ///   have one order (`grants_of_order`). Whoever finds it bound gives nothing (`again`): its caller matches the purchase
    ///   anew. Whoever finds it in another statement's hands waits for that one, as for a purchase. What is granted is
    ///   the owner's, who may be another than the poster; then the poster is told no more than of anybody else's
    ///   purchase.
    /// - A bonus is inserted before its grant, by the user's key of its period: only who has the row gives its goods. Of
    ///   the rows of a batch for one purchase only the one that will have the grant asks for it; where another statement
    ///   gives the purchase or binds its order meanwhile the whole batch is refused (`given_bonuses_have_grants`) and
    ///   written again.
    /// - A place within a limit is taken before its grant, in the same transaction: whoever has none is held, and nobody
    ///   passes a limit by coming at once. A place whose purchase ended elsewhere meanwhile stays that purchase's. Who has none
    ///   of the catalogue's is given it all the same, for it is paid, with the limit among the reasons.
    /// - What is to be done at Apple afterwards is written with what it is for, so that neither is there alone.
    package static let settle = Statement<SettleBatch, Settlement>(
        "ledger.settle",
        """
        \(settleVerdicts)
        \(settleGrants)
        \(settleMoves)
        \(settleOutcomes)
        \(settleEvents)
        update receipts r set
          state = case when s.is_try and r.attempt + 1 >= \(given.attemptsMin) and coalesce(r.claimed_at, r.received_at) < now() - make_interval(secs => \(given.parkAfter))
            then 'parked' else s.state end,
          reason = s.reason,
          attempt = r.attempt + s.is_try::int,
          -- It comes back through Apple's queue.
          lane = case when s.is_try and r.lane = 'bulk' then 'apple' else r.lane end,
          rescues = 0,
          judged_at = now(),
          settled_at = case when s.state in ('granted', 'already_granted', 'rejected') then now() end,
          due_at = case
            when s.is_try and r.attempt + 1 >= \(given.attemptsMin) and coalesce(r.claimed_at, r.received_at) < now() - make_interval(secs => \(given.parkAfter))
              then now() + make_interval(secs => least(greatest(
                extract(epoch from now() - coalesce(r.claimed_at, r.received_at))::float8 - \(given.parkAfter), \(given.askAgainMin)), \(given.askAgainMax)))
            when s.state in ('received', 'held') then now() + make_interval(secs => s.due_in) end
        from summary s where r.id = s.receipt and s.state <> 'again'
        returning r.id, r.state, r.attempt, extract(epoch from clock_timestamp() - r.received_at)::float8,
          (r.id in (select receipt_id from disputed union all select receipt_id from claimed_against)) is true,
          case when r.state = 'held' and (select of_purchases from lacks) is not null then (
            select min(l.value) from lacks, jsonb_each_text(lacks.of_purchases) l where starts_with(l.key, r.id::text))
            when r.state = 'granted' and (select of_purchases from exceeds) is not null then (
            select substr(split_part(min(l.value), ',', 1), length('limit_') + 1)
            from exceeds, jsonb_each_text(exceeds.of_purchases) l where starts_with(l.key, r.id::text)) end
        """,
        parameters: given.list,
        read: { row throws(PostgresError) in
            Settlement(
                receiptID: try row.uuid(0), state: try row.state(1), attempt: try row.int(2), age: try row.double(3),
                tellsDispute: try row.bool(4),
                lackingLimit: try row.optionalText(5).flatMap(LimitPlace.Limit.init(rawValue:)))
        })

    /// Of a row of `verdict`.
    static let goodsWithBonuses = """
        case when bonuses is null then goods
          else goods || coalesce((select of_purchases from presents) -> transaction, '[]') end
        """
    static let given = SettleParameters()
    static let proofs = BindingSource.allCases.filter(\.isProof).map { "'\($0.rawValue)'" }.joined(separator: ", ")
    static let waiting = Reason.waiting.map { "'\($0.rawValue)'" }.joined(separator: ", ")
    static let takingBack = Reason.takingBack.map { "'\($0.rawValue)'" }.joined(separator: ", ")
}
