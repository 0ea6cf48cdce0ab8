import Foundation
package import Postgres
import Purchases

extension Statements {
    /// A support decision about the owner of a held purchase.
    package struct SupportDecision: Sendable {
        package var appID: String
        package var transactionID: String
        /// The user as the tables name users.
        package var userID: String
        /// One of the items that are sold as the purchase's product.
        package var item: String?
        /// Why, for the audit.
        package var because: String
        /// Whether Apple can be asked about a bare id.
        package var canAsk: Bool
        /// Whether the owner's token is to be set at Apple.
        package var isWrittenBack: Bool
        /// Whether nothing is to be stored, only answered.
        package var isDryRun: Bool

        package init(
            appID: String, transactionID: String, userID: String, item: String? = nil, because: String,
            canAsk: Bool = true, isWrittenBack: Bool = false, isDryRun: Bool = false
        ) {
            self.appID = appID
            self.transactionID = transactionID
            self.userID = userID
            self.item = item
            self.because = because
            self.canAsk = canAsk
            self.isWrittenBack = isWrittenBack
            self.isDryRun = isDryRun
        }
    }

    /// `makegood support give`: stores a decision about the owner of a purchase, and makes the receipts due that hold
    /// it. A worker then grants the purchase, as it grants all (``evidence``, ``settle``). One row: whether the
    /// decision is stored or why not, and why the purchase is held or rejected.
    ///
    /// While nothing is granted, a later decision replaces an earlier one. The statement makes verdicts stale that were
    /// matched before it, because they would hold the purchase for another while.
    package static let give = Statement<(supportDecision: SupportDecision, actor: String), SupportDecisionAnswer>(
        "repair.give",
        """
        with shown as (
          select o.state, o.reason, o.granted_as, r.id, r.kind, r.settled_at is null as is_open,
            r.kind = 'identifier' or \(isStored)
              or exists (select from kept_payloads k where k.receipt_id = r.id) as has_proof
          from outcomes o cross join lateral (
            select id, app_id, kind, received_at, settled_at from receipts where id = o.receipt_id and app_id = $1 offset 0) r
          where o.transaction_id = $2 and o.state <> 'granted'),
        held as (
          select * from shown where state = 'held' and is_open
            and (reason in (\(givenByPerson)) or reason = '\(Reason.idCollision.rawValue)' and granted_as is not null)),
        -- The id under which it is given: behind its environment, if a purchase of another one is granted under its own.
        named as (
          select coalesce((
            select granted_as from shown
            where granted_as in ('Production/' || $2, 'Sandbox/' || $2)
              or state = 'held' and is_open and reason in (\(givenByPerson))
            order by is_open desc, state = 'held' desc, granted_as nulls last limit 1), $2) as id),
        receiver as (select \(person("$3", of: "$1")) as user_id),
        answer as (
          select case
            when exists (select from grants where transaction_id = (select id from named) and app_id = $1)
              then 'granted'
            when exists (select from grants where transaction_id = (select id from named)) then 'collision'
            when exists (select from imported_grants
              where transaction_id = (select id from named) and app_id = $1) then 'imported'
            when exists (select from transactions
              where transaction_id = (select id from named) and app_id = $1
                and \(takenBack("transactions")) in ('refunded', 'withdrawn')) then 'refunded'
            when exists (select from transactions
              where transaction_id = (select id from named) and app_id = $1
              and ownership in (\(sharedOwnerships))) then 'shared'
            when not exists (select from held) then coalesce((
              select case when is_open and state = 'held' then 'waits' when is_open then 'open' else 'ended' end
              from shown order by is_open desc, state = 'held' desc limit 1), 'unknown')
            when not exists (select from held where has_proof) then 'gone'
            when not exists (select from held where has_proof and ($7 or kind <> 'identifier')) then 'unasked'
            when $4::text is null and not exists (
              select from held where reason <> '\(Reason.itemUnknown.rawValue)') then 'itemless'
            when exists (select from user_protection where fingerprint <> '') and not exists (
              select from users u where u.app_id = $1 and u.user_key = (select user_id from receiver)
                and u.erased_at is null) then 'stranger'
            else 'decided' end as word),
        person(id) as (\(idsOfPerson("$3", of: "$1"))),
        decided as (
          insert into support_decisions (app_id, transaction_id, user_id, item, token)
          select $1, id, user_id, $4, case when $8 then coalesce(\(tokenOfPerson), $9) end from receiver, named
          where (select word from answer) = 'decided' and not $10
          on conflict (app_id, transaction_id) do update set user_id = excluded.user_id, item = excluded.item,
            token = excluded.token, decided_at = now()
          returning user_id, token),
        issued as (
          insert into user_tokens (app_id, token, user_id, source)
          select $1, token, user_id, 'issued' from decided where token = $9
          on conflict do nothing),
        audited as (
          insert into audits (actor, action, details)
          select $6, 'support.give', jsonb_strip_nulls(jsonb_build_object('app', $1, 'transaction', id,
            'receiver', user_id, 'item', $4::text, 'because', $5::text))
          from decided, named),
        due as (
          update receipts set due_at = now(), rescues = 0, attempt = attempt + 1
          where id in (                -- in their order: two persons may decide about purchases of the same receipts
            select id from receipts
            where id in (select id from held) and settled_at is null and (select count(*) from decided) > 0
            order by id for no key update))
        select word, (select reason from shown order by is_open desc, state = 'held' desc limit 1) from answer
        """,
        bind: {
            [
                .text($0.supportDecision.appID), .text($0.supportDecision.transactionID),
                .text($0.supportDecision.userID), .text($0.supportDecision.item),
                .text($0.supportDecision.because), .text($0.actor), .bool($0.supportDecision.canAsk),
                .bool($0.supportDecision.isWrittenBack),
                .uuid(UUID()), .bool($0.supportDecision.isDryRun),
            ]
        },
        read: { row throws(PostgresError) in
            SupportDecisionAnswer(
                outcome: try row.word(0), reason: try row.optionalText(1).flatMap(Reason.init(rawValue:)))
        })

    private static let givenByPerson = Reason.givenByPerson.map { "'\($0.rawValue)'" }.joined(separator: ", ")
}
