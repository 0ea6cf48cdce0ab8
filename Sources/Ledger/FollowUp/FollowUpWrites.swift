import Foundation
import Postgres
import Purchases

// The statements by which a follow-up writes, in their order.
extension Statements {
    /// Appends revocations and reinstatements, each by its ordinal.
    static let writeRevocations = Statement<[(chain: ChainFacts, entry: RevocationEntry, holder: String)], Void>(
        "followup.write_revocations",
        [
            .text("transaction") { $0.entry.transactionID }, .int32("ordinal") { $0.entry.ordinal },
            .text("app") { $0.chain.appID }, .text("environment") { $0.chain.environment }, .text("usr") { $0.holder },
            .text("kind") { $0.entry.kind.rawValue }, .text("reason") { $0.entry.reason.rawValue },
            .bool("takes_back") { $0.entry.takesBack }, .int32("percentage") { $0.entry.percentage },
            .json("goods") { GoodsJSON.encode($0.entry.goods) }, .date("at") { $0.entry.at },
            .date("signed_at") { $0.entry.signedAt },
        ],
        sql: { rows in
            """
            insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason, takes_back,
              percentage, goods, at, signed_at)
            select transaction, ordinal, app, environment, usr, kind, reason, takes_back, percentage, goods, at, signed_at
            from \(rows.rows(as: "i"))
            order by transaction, ordinal
            on conflict do nothing
            """
        })

    /// Writes the told state of each chain, the time of the chain's next follow-up, and the time of the next question to
    /// Apple, which is not before the end of a question that is under way.
    static let writeChains = Statement<[FollowedChain], Void>(
        "followup.write_chains",
        [
            .text("app") { $0.facts.appID }, .text("environment") { $0.facts.environment },
            .text("original") { $0.facts.originalID }, .text("previous") { $0.facts.previousOriginalID },
            .text("state") { $0.followUp.told?.state.rawValue }, .text("product") { $0.followUp.told?.productID },
            .text("transaction") { $0.followUp.told?.transactionID },
            .date("expires_at") { $0.followUp.told?.accessUntil }, .json("told") { $0.toldJSON },
            .text("usr") { $0.followUp.told?.userID }, .date("lapse_seen_at") { $0.followUp.lapseSeenAt },
            .int32("steps") { $0.followUp.steps }, .date("due_at") { $0.followUp.dueAt },
            .date("ask_at") { $0.followUp.askAt }, .date("ends_at") { $0.followUp.periodEndsAt },
        ],
        sql: { rows in
            """
            update chains c set previous_original_transaction_id = i.previous, state = i.state, product_id = i.product,
              transaction_id = i.transaction, expires_at = i.expires_at, told = i.told, told_user_id = i.usr,
              lapse_seen_at = i.lapse_seen_at, steps = i.steps, due_at = i.due_at, followed_at = now(),
              ask_at = greatest(coalesce(i.ask_at, 'infinity'), c.ask_until),
              asks = case when \(isSameEnd) then c.asks else 0 end
            from \(rows.rows(as: "i"))
            where c.app_id = i.app and c.environment = i.environment and c.original_transaction_id = i.original
            """
        })

    /// Marks the chains of which this follow-up has learned that another chain continues them: their own follow-up ran
    /// before the row said so.
    static let markContinuedChains = Statement<[FollowedChain], Void>(
        "followup.mark_continued",
        [
            .text("app") { $0.facts.appID }, .text("environment") { $0.facts.environment },
            .text("previous") { $0.newPrevious },
        ],
        sql: { rows in
            """
            insert into chain_marks (app_id, environment, original_transaction_id)
            select app, environment, previous from \(rows.rows(as: "i"))
            """
        })

    /// Has chains that cannot be followed up at the moment followed up after the others: marked anew, or due some
    /// seconds later. Their former marks are forgotten.
    static let putOffBusy = Statement<[FollowedChain], Void>(
        "followup.put_off_busy",
        [
            .text("app") { $0.facts.appID }, .text("environment") { $0.facts.environment },
            .text("original") { $0.facts.originalID }, .bool("is_marked") { !$0.marks.isEmpty },
        ],
        sql: { rows in
            """
            with asked as materialized (select * from \(rows.rows(as: "i"))),
            later as (
              update chains c set due_at = now() + interval '5 seconds' from asked i
              where c.app_id = i.app and c.environment = i.environment and c.original_transaction_id = i.original
                and c.due_at <= now())
            insert into chain_marks (app_id, environment, original_transaction_id)
            select app, environment, original from asked where is_marked
            """
        })

    /// Opens the outcomes of locked receipts again, and has the receipts judged again from their payload, one after the
    /// other in this order, a second apart: of two posters the earlier one is judged first. A posted receipt without
    /// its payload stays as it is. A transaction that nobody posted is judged by its stored facts where its payload is
    /// gone.
    static let reopenRefunded = Statement<[ReceiptOfChain], WokenReceipt>(
        "followup.reopen_refunded",
        [.uuid("receipt") { $0.receiptID }, .text("transaction") { $0.opens }],
        sql: { rows in
            """
            with asked as materialized (
              select receipt, row_number() over (order by min(n)) as place
              from \(rows.rows(as: "i", ordinality: "n")) group by receipt),
            kept as materialized (
              select k.id from keep_reopened_payloads((select array_agg(receipt) from asked)) as k(id)),
            reopened as (
              update receipts r set state = 'received', reason = null, settled_at = null, rescues = 0,
                due_at = now() + make_interval(secs => asked.place - 1),
                attempt = r.attempt + 1, wakes = r.wakes + 1  -- a slow worker's verdict from before is stale
              from asked
              where r.id = asked.receipt and (r.kind = 'identifier' or r.id in (select id from kept)
                or r.source <> 'post' and r.kind = '\(Proof.Kind.signedTransaction.rawValue)')
              returning r.id, r.attempt, r.lane, asked.place),
            opened as (
              update outcomes o set state = 'open', reason = null, reasons = null, granted_as = null
              from \(rows.rows(as: "i"))
              where o.receipt_id = i.receipt and o.transaction_id = i.transaction
                and i.receipt in (select id from reopened))
            select id, attempt, lane from reopened where place = 1
            """
        },
        read: readWoken)

    /// Makes locked open receipts due, and begins a new attempt: a verdict by what was known before writes nothing.
    /// Returns the receipts.
    static let wakeReceipts = Statement<[UUID], WokenReceipt>(
        "followup.wake_receipts",
        """
        update receipts set due_at = least(due_at, now()), attempt = attempt + 1, wakes = wakes + 1
        where id = any($1::uuid[]) and settled_at is null
        returning id, attempt, lane
        """,
        bind: { [.uuids($0)] }, read: readWoken)

    private static let readWoken: @Sendable (borrowing RowReader) throws(PostgresError) -> WokenReceipt = {
        row throws(PostgresError) in
        WokenReceipt(pointer: Pointer(receiptID: try row.uuid(0), attempt: try row.int(1)), lane: try row.lane(2))
    }

    static let forgetMarks = Statement<[Int], Void>(
        "followup.forget_marks", "select forget_chain_marks($1)", bind: { [.ints($0)] }, read: { _ in })
}

extension FollowedChain {
    /// The told state without the user, who has a column of the chain.
    fileprivate var toldJSON: String? {
        guard var told = followUp.told else { return nil }
        told.userID = ""
        return StoredJSON.encode(told)
    }
}
