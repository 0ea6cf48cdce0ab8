package import Foundation
package import Postgres
package import Purchases

/// A chain about which a worker asks Apple until its lease ends.
package struct ClaimedChain: Sendable, Equatable {
    package let appID: String
    package let environment: String
    package let originalID: String
    /// The number of the claim: only its worker moves the position.
    package let reader: Int
    /// Apple's answers so far. Nil: there was none.
    package let asked: Asked?
    /// Questions in a row without an answer.
    package let failures: Int
    /// The newest period that is known. Nil: none is.
    package let newest: Transaction?
    /// The database's clock when the chain was claimed.
    package let readAt: Date
}

/// The result of a question about a chain: the last part of the hear transaction that stores the answer.
package struct AskedChain: Sendable, Equatable {
    package let chain: ClaimedChain
    /// Whether Apple answered about the chain. False: the question is asked again after ``dueIn``.
    package var isAnswered = false
    package var dueIn: Duration = .zero
    /// When the chain is asked about next. Nil: only new facts bring a question.
    package var askAt: Date?
    /// The end of the period that the answer is about.
    package var endsAt: Date?
    /// The state that Apple's answer names. Nil: it names none.
    package var appleState: SubscriptionState?
    /// How long a follow-up may take to tell the state of the answer.
    package var comparedIn: Duration = .zero

    package init(_ chain: ClaimedChain) { self.chain = chain }
}

// The statements of the subscription sweep.
extension Statements {
    /// The most chains of one claim.
    package static let claimedMax = 64
    /// The most chains of one comparison.
    package static let comparedMax = 64

    package struct ChainClaim: Sendable {
        package let appIDs: [String]
        /// At most ``claimedMax``.
        package let limit: Int
        /// Longer than any question takes.
        package let lease: Duration

        package init(appIDs: [String], limit: Int, lease: Duration) {
            self.appIDs = appIDs
            self.limit = limit
            self.lease = lease
        }
    }

    /// SQL: the due chains of the app `i.app`, those first that were never asked about their present period; by the
    /// index `chains_to_ask` alone.
    private static func dueChains(asks: Int) -> String {
        """
        select app_id, environment, original_transaction_id, \(asks) as asks, coalesce(ask_at, expires_at) as at
              from chains
              where app_id = i.app and least(asks, 1) = \(asks) and coalesce(ask_at, expires_at) <= now()
                and coalesce(ask_at, expires_at) < 'infinity'
                and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'))
              order by coalesce(ask_at, expires_at) limit $2
        """
    }

    /// Claims chains of these apps about which it is time to ask. A chain that another worker claims at this moment is
    /// passed over.
    package static let claimChains = Statement<ChainClaim, ClaimedChain>(
        "subscriptions.claim",
        """
        with due as materialized (
          select d.* from unnest($1::text[]) as i(app) cross join lateral (
            (\(dueChains(asks: 0)))
            union all
            (\(dueChains(asks: 1)))) d
          order by d.asks, d.at limit $2),
        free as materialized (
          select c.app_id, c.environment, c.original_transaction_id
          from (select * from due order by asks, at offset 0) d
          cross join lateral (
            select app_id, environment, original_transaction_id from chains
            where app_id = d.app_id and environment = d.environment
              and original_transaction_id = d.original_transaction_id
              and coalesce(ask_at, expires_at) <= now()
            for no key update skip locked) c
          -- For the planner, who does not know $2 when it keeps a plan.
          limit \(claimedMax)),
        taken as (
          update chains c set ask_reader = c.ask_reader + 1, ask_at = now() + make_interval(secs => $3),
            ask_until = now() + make_interval(secs => $3)
          from free f
          where c.app_id = f.app_id and c.environment = f.environment
            and c.original_transaction_id = f.original_transaction_id
          returning c.app_id, c.environment, c.original_transaction_id, c.ask_reader, c.asked_at, c.asked_end, c.asks,
            c.ask_failures)
        select t.app_id, t.environment, t.original_transaction_id, t.ask_reader, t.asked_at, t.asked_end, t.asks,
          t.ask_failures, now(), p.*
        from taken t
        left join lateral (
          select \(storedFacts) from transactions
          where original_transaction_id = t.original_transaction_id and app_id = t.app_id
            and environment = t.environment and expires_at is not null
          order by expires_at desc limit 1) p on true
        """,
        bind: { [.texts($0.appIDs), .int($0.limit), .double($0.lease.inSeconds)] },
        read: { row throws(PostgresError) in
            var asked: Asked?
            if let at = try row.optionalDate(4), let end = try row.optionalDate(5) {
                asked = Asked(at: at, end: end, count: try row.int(6))
            }
            return ClaimedChain(
                appID: try row.text(0), environment: try row.text(1), originalID: try row.text(2),
                reader: try row.int(3), asked: asked, failures: try row.int(7), newest: try row.transaction(from: 9),
                readAt: try row.date(8))
        })

    /// SQL: whether Apple's state `apple` and the told state `told` are one. A subscription that another one continues
    /// has ended for Apple. Where nothing was told, nothing differs.
    private static func agrees(_ apple: String, _ told: String) -> String {
        "coalesce(\(apple) = \(told) or \(told) = 'replaced' and \(apple) in ('expired', 'revoked'), true)"
    }

    /// SQL: whether the answers that are counted in the row `c` of a chain are about the period of a row `i`.
    static let isSameEnd = "abs(extract(epoch from i.ends_at - c.asked_end)) < 1"

    /// Writes what came of questions about chains. A question whose claim is over changes nothing. Where Apple names
    /// another state than the told one, the follow-up has some minutes before the states are compared.
    package static let reportChains = Statement<[AskedChain], Void>(
        "subscriptions.report",
        [
            .text("app") { $0.chain.appID }, .text("environment") { $0.chain.environment },
            .text("original") { $0.chain.originalID }, .int("reader") { $0.chain.reader },
            .bool("is_answered") { $0.isAnswered }, .double("due_in") { $0.dueIn.inSeconds },
            .date("ask_at") { $0.askAt }, .date("ends_at") { $0.endsAt },
            .text("apple_state") { $0.appleState?.rawValue }, .double("compared_in") { $0.comparedIn.inSeconds },
        ],
        sql: { rows in
            """
            update chains c set ask_until = null,
              ask_at = case when i.is_answered then coalesce(i.ask_at, 'infinity')
                else now() + make_interval(secs => i.due_in) end,
              ask_failures = case when i.is_answered then 0 else c.ask_failures + 1 end,
              asked_at = case when i.is_answered then now() else c.asked_at end,
              asks = case when not i.is_answered then c.asks when \(isSameEnd) then c.asks + 1 else 1 end,
              asked_end = case when i.is_answered then i.ends_at else c.asked_end end,
              apple_state = case when i.is_answered then i.apple_state else c.apple_state end,
              compare_at = case when not i.is_answered then c.compare_at
                when c.compare_at is not null or not \(agrees("i.apple_state", "c.state"))
                then now() + make_interval(secs => i.compared_in) end
            from (select * from \(rows.rows(as: "i")) order by app, environment, original offset 0) i
            where c.app_id = i.app and c.environment = i.environment and c.original_transaction_id = i.original
              and c.ask_reader = i.reader
            """
        })

    package struct Comparison: Sendable {
        package let appIDs: [String]
        /// After this time a chain whose state differs is looked at again.
        package let again: Duration

        package init(appIDs: [String], again: Duration) {
            self.appIDs = appIDs
            self.again = again
        }
    }

    /// Compares the state that Apple named with the told one, where they differed when Apple answered and a follow-up
    /// has had its time. Notes the differences that are left, and ends those that are gone. A difference that a person
    /// closed stays closed. Facts that are newer than Apple's answer end a difference too: the next answer is compared
    /// anew. Returns how many chains were looked at.
    package static let compareChains = Statement<Comparison, Int>(
        "subscriptions.compare",
        """
        with due as materialized (
          select d.* from unnest($1::text[]) as i(app) cross join lateral (
            select app_id, environment, original_transaction_id, state, apple_state, asked_at,
              \(agrees("apple_state", "state"))
                or coalesce(renewal_signed_at > asked_at + interval '1 minute', false) as is_gone
            from chains where app_id = i.app and compare_at <= now() order by compare_at limit \(comparedMax)
            for no key update skip locked) d
          limit $2),
        later as (
          update chains c set
            compare_at = case when not d.is_gone then now() + make_interval(secs => $3) end
          from due d
          where c.app_id = d.app_id and c.environment = d.environment
            and c.original_transaction_id = d.original_transaction_id),
        noted as (
          insert into differences as o (category, subject, app_id, environment, net, details)
          select 'state_differs', original_transaction_id, app_id, environment, '\(Net.subscription.rawValue)',
            jsonb_build_object('apple', apple_state, 'told', state, 'askedAt', asked_at)
          from due where not is_gone
          order by original_transaction_id
          on conflict (category, subject) do update set details = excluded.details, net = excluded.net, seen_at = now(),
            ended_at = null where o.ended_by is null),
        healed as (
          update differences o set ended_at = now() from due d
          where o.category = 'state_differs' and o.subject = d.original_transaction_id and o.ended_at is null
            and d.is_gone)
        select count(*)::int from due
        """,
        bind: { [.texts($0.appIDs), .int(comparedMax), .double($0.again.inSeconds)] },
        read: { row throws(PostgresError) in try row.int(0) })

    package struct ChainReceipt: Sendable, Equatable {
        package let receiptID: UUID
        /// Base64, as it was stored.
        package let payload: String
    }

    /// The newest app receipt that brought periods of a chain and whose payload is still stored. No row: there is none.
    package static let receiptOfChain = Statement<ChainQuestion, ChainReceipt>(
        "subscriptions.receipt_of_chain",
        """
        select r.id, coalesce(r.body, r.kept)
        from (
          select r.id, r.received_at, p.body, (select body from kept_payloads where receipt_id = r.id) as kept
          from (
            select distinct o.receipt_id from transactions t
            cross join lateral (
              select receipt_id from grants where transaction_id = t.transaction_id
              union all
              select receipt_id from outcomes where transaction_id = t.transaction_id and state <> 'granted') o
            where t.original_transaction_id = $3 and t.app_id = $1 and t.environment = $2 offset 0) o
          cross join lateral (select id, app_id, kind, state, received_at from receipts
            where id = o.receipt_id offset 0) r
          left join lateral (select body from payloads where receipt_id = r.id
            and received_on = (r.received_at at time zone 'UTC')::date offset 0) p on true
          where r.app_id = $1 and r.kind = 'receipt' and r.state in ('granted', 'already_granted')) r
        where coalesce(r.body, r.kept) is not null
        order by r.received_at desc, r.id limit 1
        """,
        bind: { [.text($0.appID), .text($0.environment), .text($0.originalID)] },
        read: { row throws(PostgresError) in ChainReceipt(receiptID: try row.uuid(0), payload: try row.text(1)) })

    /// Of these transactions those that nobody was granted and about which no receipt has been judged.
    package static let unjudged = Statement<[String], String>(
        "subscriptions.unjudged",
        """
        select i.id from unnest($1::text[]) as i(id)
        where not exists (select from grants where transaction_id = i.id)
          and not exists (select from outcomes where transaction_id = i.id and state <> 'granted')
        """,
        bind: { [.texts($0)] },
        read: { row throws(PostgresError) in try row.text(0) })
}
