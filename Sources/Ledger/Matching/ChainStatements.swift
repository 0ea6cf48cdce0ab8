import Encoding
import Postgres
import Purchases

// The chain of a purchase as evidence: its owner, what Apple took back of it, and what was granted of it.
extension Statements {
    /// The ids by which Apple knows the chain: one, or two after a migration or a change between a subscription and a
    /// bundle. The SQL looks up each id by itself, so that the latest purchase of both costs two walks of an index.
    private static let names = "unnest(array[i.original, i.previous]) as chain(id)"

    /// SQL: joins of a row `i` with the owner of its chain, who is `coalesce(l.user_id, o.user_id)` since
    /// `coalesce(l.at, o.at)`; no row where nobody has it.
    ///
    /// The row has `app`, `environment`, `original`, `previous` and `is_shared`.
    static let ownerOfChain = """
        cross join lateral (
              (select x.user_id, x.move > 0 as is_moved, x.purchased_at, x.decided_at as at
                from \(names) cross join lateral (
                  select user_id, move, purchased_at, transaction_id, decided_at from ownerships
                  where app_id = i.app and environment = i.environment and original_transaction_id = chain.id
                  order by purchased_at desc, transaction_id desc, move desc limit 1) x
                order by x.purchased_at desc, x.transaction_id desc, x.move desc limit 1)
              union all
              -- What was granted without an ownership, such as what is shared.
              (select g.user_id, false, g.purchased_at, g.at from (\(latestGrant(where: "true"))) g)
              limit 1) o
            -- Bought anew by its owner while another's claim moved it: his again from that purchase on.
            left join lateral (\(latestGrant(where: "o.is_moved and t.purchased_at > o.purchased_at"))) l on true
        """

    /// The owner of each chain: no row without one.
    static let ownersOfChains = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.owners_of_chains",
        [.app, .environment, .original, .previous, .bool("is_shared") { $0.transaction.isShared }],
        sql: { questions in
            """
            select i.n - 1, h.user_id, o.is_moved and h.user_id = \(person("o.user_id", of: "i.app"))
            from \(questions.rows(as: "i", ordinality: "n"))
            \(ownerOfChain)
            cross join lateral (
              select \(person("coalesce(l.user_id, o.user_id)", of: "i.app")) as user_id, coalesce(l.at, o.at) as at
              offset 0) h
            -- Where its owner was erased, what it renews is a purchase that nobody is known for: it was paid for all the same.
            where not \(isForgotten("h.user_id", since: "h.at"))
            """
        },
        read: { row throws(PostgresError) in
            let chain = Evidence.Chain(userID: try row.text(1), isMoved: try row.optionalBool(2) ?? false)
            return EvidencePart(of: try row.int(0)) { $0.found.chain = chain }
        })

    private static func latestGrant(where condition: String) -> String {
        """
        select k.* from \(names) cross join lateral (
            select g.user_id, t.purchased_at, g.granted_at as at from transactions t
              cross join lateral (select user_id, granted_at from grants where transaction_id = t.transaction_id
                and (binding_source <> '\(BindingSource.shared.rawValue)' or i.is_shared) offset 0) g
            where \(condition) and t.original_transaction_id = chain.id and t.app_id = i.app
              and t.environment = i.environment
            order by t.purchased_at desc limit 1) k
          order by k.purchased_at desc limit 1
        """
    }

    /// The latest purchase of each chain before the one in question, granted or not. Read after ``ownersOfChains``: it
    /// counts only for a chain with an owner.
    static let purchasesBefore = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.purchases_before",
        [.app, .id, .environment, .original, .previous, .purchasedAt],
        sql: { questions in
            """
            select i.n - 1, k.product_id, k.expires_at
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select k.* from \(names) cross join lateral (
                select product_id, expires_at, purchased_at from transactions t
                where t.original_transaction_id = chain.id and t.app_id = i.app and t.environment = i.environment
                  and t.purchased_at < i.purchased_at and t.transaction_id <> i.id
                order by t.purchased_at desc limit 1) k
              order by k.purchased_at desc limit 1) k
            """
        },
        read: { row throws(PostgresError) in
            let (productID, runsUntil) = (try row.optionalText(1), try row.optionalDate(2))
            return EvidencePart(of: try row.int(0)) { search in
                search.found.chain?.productID = productID
                search.found.chain?.runsUntil = runsUntil
            }
        })

    /// What Apple took back of each chain before the purchase, and the key that the purchase was granted under by
    /// another id. A period is found by the end that Apple names now; the `period_key` of its grant holds the end of
    /// that day.
    ///
    /// By the chain alone: the index of refunds may be walked.
    static let grantsOfChains = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.grants_of_chains",
        [.app, .environment, .original, .purchasedAt, .expiresAt, .isPeriod],
        sql: { questions in
            """
            select i.n - 1, q.revocations, same.purchase_key
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select count(*) as revocations, max(t.revoked_at) as last
              from (select transaction_id, revoked_at from transactions
                  where not i.is_period and original_transaction_id = i.original and app_id = i.app
                    and environment = i.environment offset 0) t
                cross join lateral (
                  select from grants where transaction_id = t.transaction_id
                  union all select from imported_grants where transaction_id = t.transaction_id
                  -- Imported under an id that Apple has not named here.
                  union all select from imported_grants m
                  where (select true from imported_grants limit 1) and m.original_transaction_id = i.original
                    and (select true from transactions where transaction_id = m.transaction_id) is null limit 1) g
              where t.revoked_at < i.purchased_at) q
            left join lateral (
              select g.purchase_key from (
                  select transaction_id, app_id, environment, purchased_at from transactions
                  where i.is_period and original_transaction_id = i.original and expires_at = i.expires_at
                  union all
                  select transaction_id, app_id, environment, purchased_at from transactions
                  where not i.is_period and original_transaction_id = i.original and purchased_at > q.last) t
                cross join lateral (select purchase_key from grants where transaction_id = t.transaction_id
                  and binding_source <> 'shared' offset 0) g
              where t.app_id = i.app and t.environment = i.environment
              order by t.purchased_at limit 1) same on true
            """
        },
        read: { row throws(PostgresError) in
            let (revocations, key) = (try row.int(1), try row.optionalText(2))
            return EvidencePart(of: try row.int(0)) { search in
                search.found.revocations = revocations
                search.found.grantedKey = key
            }
        })

    /// Why each purchase was taken back under another of its ids, a restore's or the same period's, after it was bought
    /// and its proof was signed. By its chain alone. No row where it was not.
    static let takenBackUnderAnotherID = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.taken_back",
        [
            .app, .id, .environment, .original, .purchasedAt, .expiresAt, .isPeriod,
            .date("signed_at") { $0.transaction.signedAt },
            .bool("is_consumable") { ($0.transaction.kind ?? $0.kind) == .consumable },
        ],
        sql: { questions in
            """
            select i.n - 1, b.reason
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select \(takenBack("t")) as reason
              from (select * from transactions
                where original_transaction_id = i.original and revoked_at is not null offset 0) t
              where t.app_id = i.app and t.environment = i.environment and t.transaction_id <> i.id
                and t.revoked_at > i.purchased_at and t.signed_at > coalesce(i.signed_at, '-infinity')
                and (not i.is_period or t.expires_at = i.expires_at)
                -- A consumable that was bought at another time is another purchase, whatever its ids say.
                and (not i.is_consumable
                  or date_trunc('second', t.purchased_at) = date_trunc('second', i.purchased_at))
                -- Not undone since.
                and (select true from (
                    select app_id, environment, purchased_at, expires_at, revoked_at, signed_at from transactions
                    where original_transaction_id = i.original offset 0) u
                  where u.app_id = i.app and u.environment = i.environment and u.revoked_at is null
                    and u.signed_at > t.signed_at
                    and (not i.is_consumable
                      or date_trunc('second', u.purchased_at) = date_trunc('second', i.purchased_at))
                    and case when i.is_period then u.expires_at = i.expires_at else u.purchased_at < t.revoked_at end
                  limit 1) is null
              order by t.signed_at desc limit 1) b
            """
        },
        read: { row throws(PostgresError) in
            let reason = try row.optionalText(1).flatMap(Reason.init(rawValue:))
            return EvidencePart(of: try row.int(0)) { $0.found.takenBack = reason }
        })

    /// The questions about an ended purchase that stands by facts which are newer than the proof.
    static let purchasesStandingAgain = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.standing_again",
        [.app, .id, .environment, .date("signed_at") { $0.transaction.signedAt }],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (\(factsOfEnd) where transaction_id = i.id offset 0) t
            where t.app_id = i.app and t.environment = i.environment and t.signed_at > coalesce(i.signed_at, '-infinity')
              and \(takenBack("t")) is null
            """
        },
        read: { row throws(PostgresError) in
            EvidencePart(of: try row.int(0)) { $0.found.standsAgain = true }
        })

    /// The questions about an ended purchase whose place another product of its chain took.
    static let purchasesWithSuccessor = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.successors",
        [.app, .environment, .original, .product, .date("ended_at") { $0.endedAt }],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (\(successor(original: "i.original", app: "i.app", environment: "i.environment",
              product: "i.product", endedAt: "i.ended_at"))) s
            """
        },
        read: { row throws(PostgresError) in
            EvidencePart(of: try row.int(0)) { $0.found.hasSuccessor = true }
        })
}
